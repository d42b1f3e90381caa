package spanring

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// Kind is the kind of a log entry.
type Kind uint8

// The kinds of log entry. A kind's number never changes its meaning within a
// layout version.
const (
	KindStepBegin    Kind = 1
	KindStepEnd      Kind = 2
	KindLane         Kind = 3
	KindKernel       Kind = 4
	KindGraph        Kind = 5
	KindAlloc        Kind = 6
	KindFree         Kind = 7
	KindViolation    Kind = 8
	KindLaunchDiff   Kind = 9
	KindAnchor       Kind = 10
	KindStepAttrs    Kind = 11
	KindTraceContext Kind = 12
	KindRequestEnd   Kind = 13
	KindDevice       Kind = 14
	KindSpanFailed   Kind = 15

	numKinds = 16
)

var kindText = [numKinds]string{
	"none", "step_begin", "step_end", "lane", "kernel", "graph", "alloc", "free", "violation",
	"launch_diff", "anchor", "step_attrs", "trace_context", "request_end", "device", "span_failed",
}

// String is the kind's name, lower case with underscores.
func (k Kind) String() string {
	if k < numKinds {
		return kindText[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// IsSpan reports whether k is a timed span on the GPU: a lane, kernel or graph.
func (k Kind) IsSpan() bool { return k == KindLane || k == KindKernel || k == KindGraph }

// NameID is a place in the ring's table of names; 0 is no name.
type NameID uint32

// Entry is one entry of the log: its sequence number and its payload words.
type Entry struct {
	Seq   uint64
	Words Words
}

// Words is the payload of an entry. The first word holds kind, flags, reason,
// context, lane and stream in every kind. Decoders refuse kinds, enumerations,
// indexes and times that cannot be, and ignore bits that no field uses.
type Words [7]uint64

// Kind is the entry's kind, which may be one that this package does not know.
func (w *Words) Kind() Kind { return Kind(w[0]) }

func head(k Kind, flags, reason, context uint8, lane, stream uint16) uint64 {
	return uint64(k) | uint64(flags)<<8 | uint64(reason)<<16 | uint64(context)<<24 |
		uint64(lane)<<32 | uint64(stream)<<48
}

func (w *Words) flags() uint8   { return uint8(w[0] >> 8) }
func (w *Words) reason() uint8  { return uint8(w[0] >> 16) }
func (w *Words) context() uint8 { return uint8(w[0] >> 24) }
func (w *Words) lane() uint16   { return uint16(w[0] >> 32) }
func (w *Words) stream() uint16 { return uint16(w[0] >> 48) }

// ErrEntry is wrapped by every error about an entry whose words cannot be.
var ErrEntry = errors.New("bad entry")

// Calibration says where the constant came from that a corrected kernel time is
// less than its pair.
type Calibration uint8

// The states of a context's calibration.
const (
	CalibrationNone     Calibration = 0 // no constant: corrected and raw are the same
	CalibrationMeasured Calibration = 1 // measured on this machine
	CalibrationAssumed  Calibration = 2 // taken from a table
)

// String is the value of the attribute calibration.
func (c Calibration) String() string {
	switch c {
	case CalibrationMeasured:
		return "measured"
	case CalibrationAssumed:
		return "assumed"
	}
	return "none"
}

// Gap says whether the host may have left a gap inside a pair.
type Gap uint8

// What is known of the gap between a pair's start stamp and its work.
const (
	GapUnknown Gap = 0 // not asked (lanes)
	GapQueued  Gap = 1 // the start was still pending when all had been enqueued: no host gap inside
	GapStarved Gap = 2 // the stream had run dry: the pair holds launch latency
)

// String is the value of the attribute queued.
func (g Gap) String() string {
	switch g {
	case GapQueued:
		return "queued"
	case GapStarved:
		return "starved"
	}
	return "unknown"
}

// Span is a landed lane, kernel or graph launch.
type Span struct {
	Kind        Kind // KindLane, KindKernel or KindGraph
	Armed       bool // its step's kernels are timed
	SharedStart bool // its start event is the end event of the lane before it
	InGraph     bool // its events are nodes of a captured graph
	Gap         Gap
	Calibration Calibration
	Context     uint8  // index of the context record
	Lane        uint16 // the engine's lane index; of a kernel, that of its lane
	Stream      uint16 // number of the stream within the producer
	Step        uint64
	Name        NameID // lane, kernel or graph
	Ordinal     uint32 // from 1, in order of begin within its step
	Parent      uint32 // ordinal of the lane around it, 0 for the step itself

	// StartMonoNS is the start on CLOCK_MONOTONIC in ns, from the GPU's stamp.
	StartMonoNS int64
	// RawNS is the pair's duration in ns, under 1<<48.
	RawNS uint64
	// CorrectionNS is what the machine's constant takes off, at most RawNS and
	// 65,535 ns.
	CorrectionNS uint16
	// LeadNS is from the host's enqueue to the start, in ns; within the clock's
	// uncertainty it can be negative.
	LeadNS int64
	// PlaceUncertaintyNS and DurationUncertaintyNS are half-widths in ns, stored
	// with 11 significant bits and rounded up, so at most 0.1 % too wide. What is
	// wider than 2,047<<31 ns (73 minutes) is stored as that.
	PlaceUncertaintyNS    uint64
	DurationUncertaintyNS uint64
}

// DurationNS is the corrected duration in ns.
func (s *Span) DurationNS() uint64 { return s.RawNS - min(s.RawNS, uint64(s.CorrectionNS)) }

// EndMonoNS is the end of the raw pair on CLOCK_MONOTONIC in ns.
func (s *Span) EndMonoNS() int64 { return s.StartMonoNS + int64(s.RawNS) }

// EnqueueMonoNS is when the host enqueued the start, on CLOCK_MONOTONIC in ns.
func (s *Span) EnqueueMonoNS() int64 { return s.StartMonoNS - s.LeadNS }

const (
	flagGapMask      = 0x03
	flagCalShift     = 2
	flagArmed        = 0x10
	flagSharedStart  = 0x20
	flagInGraph      = 0x40
	flagAsked        = 0x20 // of a step's begin
	flagUntimed      = 0x40 // of a step's begin and end
	flagSourceMask   = 0x03 // of a step's begin
	max48            = 1<<48 - 1
	minLead          = -1 << 47
	maxLead          = 1<<47 - 1
	uncertaintyExpSh = 11
)

// Words encodes s. Durations of 1<<48 ns and more and leads beyond ±1<<47 ns are
// cut to the end of their range (78 and 39 hours).
func (s *Span) Words() Words {
	f := uint8(s.Gap)&flagGapMask | uint8(s.Calibration)<<flagCalShift
	if s.Armed {
		f |= flagArmed
	}
	if s.SharedStart {
		f |= flagSharedStart
	}
	if s.InGraph {
		f |= flagInGraph
	}
	lead := max(min(s.LeadNS, maxLead), minLead)
	return Words{
		head(s.Kind, f, 0, s.Context, s.Lane, s.Stream),
		s.Step,
		uint64(s.StartMonoNS),
		min(s.RawNS, max48) | uint64(s.CorrectionNS)<<48,
		uint64(lead)&max48 | uint64(packUncertainty(s.PlaceUncertaintyNS))<<48,
		uint64(s.Name) | uint64(s.Ordinal)<<32,
		uint64(s.Parent) | uint64(packUncertainty(s.DurationUncertaintyNS))<<32,
	}
}

// Span decodes a lane, kernel or graph entry.
func (w *Words) Span() (Span, error) {
	f := w.flags()
	s := Span{
		Kind: w.Kind(), Armed: f&flagArmed != 0, SharedStart: f&flagSharedStart != 0, InGraph: f&flagInGraph != 0,
		Gap: Gap(f & flagGapMask), Calibration: Calibration(f >> flagCalShift & 3),
		Context: w.context(), Lane: w.lane(), Stream: w.stream(),
		Step: w[1], StartMonoNS: int64(w[2]),
		RawNS: w[3] & max48, CorrectionNS: uint16(w[3] >> 48),
		LeadNS: int64(w[4]<<16) >> 16, PlaceUncertaintyNS: unpackUncertainty(uint16(w[4] >> 48)),
		Name: NameID(w[5]), Ordinal: uint32(w[5] >> 32),
		Parent: uint32(w[6]), DurationUncertaintyNS: unpackUncertainty(uint16(w[6] >> 32)),
	}
	switch {
	case !s.Kind.IsSpan():
		return s, fmt.Errorf("%w: %v is no span", ErrEntry, s.Kind)
	case s.Gap > GapStarved || s.Calibration > CalibrationAssumed || s.Context >= MaxContexts:
		return s, fmt.Errorf("%w: %v with gap %d, calibration %d, context %d", ErrEntry, s.Kind, s.Gap, s.Calibration, s.Context)
	case s.StartMonoNS < 0 || s.StartMonoNS > math.MaxInt64-max48:
		return s, fmt.Errorf("%w: %v starts at %d ns", ErrEntry, s.Kind, s.StartMonoNS)
	case s.Ordinal == 0 || s.Parent >= s.Ordinal:
		return s, fmt.Errorf("%w: %v with ordinal %d inside %d", ErrEntry, s.Kind, s.Ordinal, s.Parent)
	}
	return s, nil
}

// packUncertainty keeps 11 significant bits, rounded up, and a 5-bit exponent.
// It grows with ns; what is too wide for it becomes the widest.
func packUncertainty(ns uint64) uint16 {
	n := bits.Len64(ns)
	if n <= uncertaintyExpSh {
		return uint16(ns)
	}
	e := n - uncertaintyExpSh
	m := (ns + 1<<e - 1) >> e
	if m == 1<<uncertaintyExpSh {
		m >>= 1
		e++
	}
	if e > 31 {
		return math.MaxUint16
	}
	return uint16(m) | uint16(e)<<uncertaintyExpSh
}

func unpackUncertainty(v uint16) uint64 {
	return uint64(v&(1<<uncertaintyExpSh-1)) << (v >> uncertaintyExpSh)
}

// SpanFailed says that a span which had begun will never land.
type SpanFailed struct {
	SpanKind      Kind
	Reason        Reason
	Context       uint8
	Lane          uint16
	Stream        uint16
	Step          uint64
	EnqueueMonoNS int64
	Name          NameID
	Ordinal       uint32
	Parent        uint32
}

// Words encodes f.
func (f *SpanFailed) Words() Words {
	return Words{
		head(KindSpanFailed, uint8(f.SpanKind), uint8(f.Reason), f.Context, f.Lane, f.Stream),
		f.Step, uint64(f.EnqueueMonoNS), 0, 0,
		uint64(f.Name) | uint64(f.Ordinal)<<32, uint64(f.Parent),
	}
}

// SpanFailed decodes a failed span.
func (w *Words) SpanFailed() (SpanFailed, error) {
	f := SpanFailed{
		SpanKind: Kind(w.flags()), Reason: Reason(w.reason()), Context: w.context(), Lane: w.lane(), Stream: w.stream(),
		Step: w[1], EnqueueMonoNS: int64(w[2]), Name: NameID(w[5]), Ordinal: uint32(w[5] >> 32), Parent: uint32(w[6]),
	}
	switch {
	case w.Kind() != KindSpanFailed:
		return f, fmt.Errorf("%w: %v is no failed span", ErrEntry, w.Kind())
	case !f.SpanKind.IsSpan() || f.Reason == FailNone || f.Reason >= numReasons || f.Context >= MaxContexts:
		return f, fmt.Errorf("%w: failed %v, reason %d, context %d", ErrEntry, f.SpanKind, f.Reason, f.Context)
	case f.EnqueueMonoNS < 0 || f.Ordinal == 0 || f.Parent >= f.Ordinal:
		return f, fmt.Errorf("%w: failed %v at %d ns with ordinal %d inside %d", ErrEntry, f.SpanKind, f.EnqueueMonoNS, f.Ordinal, f.Parent)
	}
	return f, nil
}

// levelBasic is the level at which steps have no lanes.
const levelBasic = 1

// StepSource says what marked a step.
type StepSource uint8

// The sources of steps. Where a program marks none, something stands in for them.
const (
	StepMarked StepSource = 0 // the engine's own marks, or its ranges
	StepGraph  StepSource = 1 // each graph launch stands in for a step
	StepWindow StepSource = 2 // fixed windows of time do

	NumStepSources = 3
)

// String is marked, graph or window.
func (s StepSource) String() string {
	switch s {
	case StepMarked:
		return "marked"
	case StepGraph:
		return "graph"
	case StepWindow:
		return "window"
	}
	return fmt.Sprintf("step source %d", uint8(s))
}

// StepBegin opens a step.
type StepBegin struct {
	Step   uint64 // from 1, growing by 1 within a run
	MonoNS int64  // host, CLOCK_MONOTONIC
	Armed  bool   // its kernels are timed
	Asked  bool   // it is armed because somebody asked for armed steps
	Level  uint8  // the level in force; basic (1) for an untimed step
	// Untimed: the budget for lanes left its lanes out. What is measured of it is what
	// level basic measures, and Level says so: a reader that does not know this flag
	// reads a step at level basic.
	Untimed bool
	Source  StepSource
}

// Words encodes s.
func (s *StepBegin) Words() Words {
	var f uint8
	if s.Armed {
		f = flagArmed
	}
	if s.Asked {
		f |= flagAsked
	}
	level := s.Level
	if s.Untimed {
		f |= flagUntimed
		level = min(level, levelBasic)
	}
	f |= uint8(s.Source) & flagSourceMask
	return Words{head(KindStepBegin, f, level, 0, 0, 0), s.Step, uint64(s.MonoNS)}
}

// StepBegin decodes the begin of a step.
func (w *Words) StepBegin() (StepBegin, error) {
	s := StepBegin{
		Step: w[1], MonoNS: int64(w[2]), Armed: w.flags()&flagArmed != 0, Asked: w.flags()&flagAsked != 0, Level: w.reason(),
		Untimed: w.flags()&flagUntimed != 0, Source: StepSource(w.flags() & flagSourceMask),
	}
	if w.Kind() != KindStepBegin || s.MonoNS < 0 || s.Step == 0 || s.Source >= NumStepSources {
		return s, fmt.Errorf("%w: %v of step %d at %d ns", ErrEntry, w.Kind(), s.Step, s.MonoNS)
	}
	return s, nil
}

// StepEnd closes a step on the host. Its spans may land before and after it.
type StepEnd struct {
	Step    uint64
	MonoNS  int64 // host, CLOCK_MONOTONIC
	BeginNS int64 // the step's begin again, should its entry have been lost
	Armed   bool
	Untimed bool   // as in StepBegin
	Opened  uint32 // spans begun in it that land or fail, each with an entry
	Dropped uint32 // spans that found no free slot
	Linked  uint32 // trace contexts it was linked to, of which MaxStepLinks have entries
}

// Words encodes s.
func (s *StepEnd) Words() Words {
	var f uint8
	if s.Armed {
		f = flagArmed
	}
	if s.Untimed {
		f |= flagUntimed
	}
	return Words{
		head(KindStepEnd, f, 0, 0, 0, 0), s.Step, uint64(s.MonoNS), uint64(s.BeginNS),
		uint64(s.Opened) | uint64(s.Dropped)<<32, uint64(s.Linked),
	}
}

// StepEnd decodes the end of a step.
func (w *Words) StepEnd() (StepEnd, error) {
	s := StepEnd{
		Step: w[1], MonoNS: int64(w[2]), BeginNS: int64(w[3]), Armed: w.flags()&flagArmed != 0, Untimed: w.flags()&flagUntimed != 0,
		Opened: uint32(w[4]), Dropped: uint32(w[4] >> 32), Linked: uint32(w[5]),
	}
	if w.Kind() != KindStepEnd || s.BeginNS < 0 || s.MonoNS < s.BeginNS || s.Step == 0 {
		return s, fmt.Errorf("%w: %v of step %d from %d to %d ns", ErrEntry, w.Kind(), s.Step, s.BeginNS, s.MonoNS)
	}
	return s, nil
}

// GraphMode says how a step's kernels were launched.
type GraphMode uint8

// How a step's kernels were launched, as far as the engine said.
const (
	GraphUnknown GraphMode = 0
	GraphEager   GraphMode = 1
	GraphReplay  GraphMode = 2
	GraphMixed   GraphMode = 3
)

// String is the value of the attribute graph mode.
func (g GraphMode) String() string {
	switch g {
	case GraphEager:
		return "eager"
	case GraphReplay:
		return "replay"
	case GraphMixed:
		return "mixed"
	}
	return "unknown"
}

// StepAttrs describes what a step worked on.
type StepAttrs struct {
	Step          uint64
	BatchSize     uint32 // sequences
	DecodeTokens  uint32 // tokens generated
	PrefillTokens uint32 // prompt tokens processed
	GraphMode     GraphMode
}

// Words encodes a.
func (a *StepAttrs) Words() Words {
	return Words{
		head(KindStepAttrs, uint8(a.GraphMode), 0, 0, 0, 0), a.Step,
		uint64(a.BatchSize) | uint64(a.DecodeTokens)<<32, uint64(a.PrefillTokens),
	}
}

// StepAttrs decodes the attributes of a step.
func (w *Words) StepAttrs() (StepAttrs, error) {
	a := StepAttrs{
		Step: w[1], BatchSize: uint32(w[2]), DecodeTokens: uint32(w[2] >> 32), PrefillTokens: uint32(w[3]),
		GraphMode: GraphMode(w.flags()),
	}
	if w.Kind() != KindStepAttrs || a.Step == 0 || a.GraphMode > GraphMixed {
		return a, fmt.Errorf("%w: %v of step %d, graph mode %d", ErrEntry, w.Kind(), a.Step, a.GraphMode)
	}
	return a, nil
}

// Anchor is one observation of a context's clock against the host's.
type Anchor struct {
	Context       uint8
	GPUNS         int64  // on the context's own timeline
	MonoNS        int64  // where the map, fitted anew with this anchor, puts it
	RatePPB       int64  // the GPU's clock against the host's, parts in 1e9
	ResidualNS    int64  // where the map before it had put it, less MonoNS
	UncertaintyNS uint64 // half-width of the map here
}

// Words encodes a.
func (a *Anchor) Words() Words {
	return Words{
		head(KindAnchor, 0, 0, a.Context, 0, 0),
		uint64(a.GPUNS), uint64(a.MonoNS), uint64(a.RatePPB), uint64(a.ResidualNS), a.UncertaintyNS,
	}
}

// Anchor decodes a clock anchor.
func (w *Words) Anchor() (Anchor, error) {
	a := Anchor{
		Context: w.context(), GPUNS: int64(w[1]), MonoNS: int64(w[2]), RatePPB: int64(w[3]),
		ResidualNS: int64(w[4]), UncertaintyNS: w[5],
	}
	if w.Kind() != KindAnchor || a.Context >= MaxContexts || a.MonoNS < 0 {
		return a, fmt.Errorf("%w: %v of context %d at %d ns", ErrEntry, w.Kind(), a.Context, a.MonoNS)
	}
	return a, nil
}
