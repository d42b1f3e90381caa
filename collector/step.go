package collector

import (
	"slices"

	"github.com/lanetrace/lanetrace/spanring"
)

// Span is a landed lane, kernel or graph launch of a step. The embedded entry
// holds its times; Text and LaneText are its names, cleaned.
type Span struct {
	spanring.Span
	// Text is the name of the lane, kernel or graph: "unnamed" when the producer's
	// table has none, never nil.
	Text *Name
	// LaneText is the name of the lane that a kernel or graph lies in, nil when it
	// lies in none or the lane's name is not known; of a lane it is Text.
	LaneText *Name
}

// FailedSpan is a span that had begun in a step and will never land.
type FailedSpan struct {
	spanring.SpanFailed
	Text *Name
}

// IncompleteReason says why a step was closed before all it opened was accounted
// for.
type IncompleteReason uint8

// Why a step is incomplete.
const (
	Complete          IncompleteReason = iota // it is not
	IncompleteTimeout                         // its time-out passed
	IncompleteEvicted                         // more steps were open than are kept
	IncompleteEnded                           // the producer ended or died
	IncompleteDetach                          // the collector stopped

	numIncompleteReasons
)

// String is the value of the attribute lanetrace.step.incomplete.
func (r IncompleteReason) String() string {
	switch r {
	case IncompleteTimeout:
		return "timeout"
	case IncompleteEvicted:
		return "evicted"
	case IncompleteEnded:
		return "engine_ended"
	case IncompleteDetach:
		return "detached"
	}
	return ""
}

// Step is one closed step of one run. A Step that is handed to an [Observer] or
// [Exporter] is valid during that call only, and must not be changed; Clone keeps
// it.
type Step struct {
	Engine *Engine
	// Number counts the steps of a run from 1.
	Number uint64

	// BeginMonoNS and EndMonoNS are the step on the host; HasBegin and HasEnd tell
	// whether they are known. A known end knows the begin.
	BeginMonoNS, EndMonoNS int64
	HasBegin, HasEnd       bool

	Armed bool // its kernels are timed
	Asked bool // it is armed because somebody asked for armed steps
	// Untimed: the engine left its lanes out to stay within its budget for them. It
	// is a step without lanes for no other reason: what it did on the GPU is not known.
	Untimed bool
	// Level was in force at its begin, if its begin's entry came; basic (1) if it is
	// untimed.
	Level uint8
	// StandIn says what stood in for it, where the engine marks no steps: graph for a
	// graph launch, window for a fixed window of time, "" for a step that was marked.
	StandIn string

	// Attrs are what the engine said of the step, if HasAttrs.
	Attrs    spanring.StepAttrs
	HasAttrs bool

	// Links are the requests that the step worked for, in the order in which the
	// engine named them. At most MaxLinks are kept; LinksDropped is how many more
	// there were.
	Links []Link

	// Spans have landed, in order of Ordinal: a parent comes before its children.
	Spans []Span
	// Failed began and will never land. At most MaxFailedSpans are kept;
	// FailedCount is all of them.
	Failed      []FailedSpan
	FailedCount int

	// LaunchDiffs are the executions of regions, ended in this step, that enqueued
	// other operations than the ones before them. At most MaxLaunchDiffs are kept;
	// LaunchDiffCount is all of them.
	LaunchDiffs     []LaunchDiff
	LaunchDiffCount int

	// Opened is how many spans the step's end says were begun with a slot, Dropped
	// how many found no slot. Both are 0 until the end has come.
	Opened, Dropped uint32
	// LeftOut is how many landed spans were beyond the limit of spans a step; they
	// are dropped in the account.
	LeftOut int

	// Incomplete is not Complete when the step was closed early.
	Incomplete IncompleteReason

	// WallOffsetNS was fixed when the step closed; added to a CLOCK_MONOTONIC time
	// it gives Unix time, in ns.
	WallOffsetNS int64
	// ClosedMonoNS is the source's time when the step closed.
	ClosedMonoNS int64

	// Derived follows from the spans.
	Derived Derived

	linked      int  // links that the step's end says there were
	linkEntries int  // links that came
	linkedTwice int  // of them, those that had come before
	landed      int  // span entries, LeftOut among them
	rootCounted bool // the step itself is among the ledger's received
	touchedNS   int64
	firstSeq    uint64 // the lowest sequence number of its entries

	neighbours[Step] // among the open steps
}

// MaxFailedSpans is how many failed spans a step keeps.
const MaxFailedSpans = 64

// Bounds is the time that the step's root span covers, CLOCK_MONOTONIC in ns:
// from the earlier of the host's begin and the first span's start to the later of
// the host's end and the last span's end. No span is cut to fit.
func (s *Step) Bounds() (startMonoNS, endMonoNS int64) {
	set := false
	add := func(a, b int64) {
		if !set {
			startMonoNS, endMonoNS, set = a, b, true
			return
		}
		startMonoNS, endMonoNS = min(startMonoNS, a), max(endMonoNS, b)
	}
	if s.HasBegin {
		add(s.BeginMonoNS, s.BeginMonoNS)
	}
	if s.HasEnd {
		add(s.BeginMonoNS, s.EndMonoNS)
	}
	for i := range s.Spans {
		add(s.Spans[i].StartMonoNS, s.Spans[i].EndMonoNS())
	}
	for i := range s.Failed {
		add(s.Failed[i].EnqueueMonoNS, s.Failed[i].EnqueueMonoNS)
	}
	for i := range s.LaunchDiffs {
		add(s.LaunchDiffs[i].MonoNS, s.LaunchDiffs[i].MonoNS)
	}
	return startMonoNS, endMonoNS
}

// placed reports whether anything says when the step was. Where begin and end were
// lost, what is left of a step may be attributes and links alone; they are no unit
// of the account.
func (s *Step) placed() bool {
	return s.HasBegin || s.HasEnd || len(s.Spans) > 0 || len(s.Failed) > 0 || len(s.LaunchDiffs) > 0
}

// UnixNS places a CLOCK_MONOTONIC time on the wall clock, both in ns.
func (s *Step) UnixNS(monoNS int64) int64 { return monoNS + s.WallOffsetNS }

// HostNS is how long the step took on the host in ns, 0 when its end is unknown.
func (s *Step) HostNS() int64 {
	if !s.HasEnd {
		return 0
	}
	return s.EndMonoNS - s.BeginMonoNS
}

// Missing is how many spans the step opened of which neither landing nor failure
// was seen.
func (s *Step) Missing() int { return max(0, int(s.Opened)-s.landed-s.FailedCount) }

// LinksDropped is how many links the step had beyond those that were kept, or
// whose entry was lost.
func (s *Step) LinksDropped() int { return max(s.linked, s.linkEntries) - s.linkedTwice - len(s.Links) }

// Linked reports whether the step worked for a request whose trace is recorded.
func (s *Step) Linked() bool {
	return slices.ContainsFunc(s.Links, func(l Link) bool { return l.Sampled() })
}

// Landed is how many of the step's spans have landed, those left out included.
func (s *Step) Landed() int { return s.landed }

// Units is how many spans of the loss account the step holds: itself, if its own
// begin or end was received, and the spans kept.
func (s *Step) Units() int {
	n := len(s.Spans)
	if s.rootCounted {
		n++
	}
	return n
}

// ParentOf is the index in Spans of the lane around span i, or -1 for the step
// itself, also when the parent was lost.
func (s *Step) ParentOf(i int) int {
	p := s.Spans[i].Parent
	if p == 0 {
		return -1
	}
	j, ok := slices.BinarySearchFunc(s.Spans, p, func(a Span, o uint32) int {
		if a.Ordinal < o {
			return -1
		}
		if a.Ordinal > o {
			return 1
		}
		return 0
	})
	if !ok || j >= i || s.Spans[j].Kind != spanring.KindLane {
		return -1
	}
	return j
}

// Faulty reports whether something of the step failed, was dropped or is missing.
func (s *Step) Faulty() bool {
	return s.Incomplete != Complete || s.FailedCount > 0 || s.Dropped > 0 || s.LeftOut > 0
}

// Clone copies the step for keeping.
func (s *Step) Clone() *Step {
	c := *s
	c.neighbours = neighbours[Step]{}
	c.Spans = slices.Clone(s.Spans)
	c.Failed = slices.Clone(s.Failed)
	c.LaunchDiffs = slices.Clone(s.LaunchDiffs)
	c.Links = slices.Clone(s.Links)
	return &c
}

func (s *Step) reset() {
	*s = Step{Spans: s.Spans[:0], Failed: s.Failed[:0], LaunchDiffs: s.LaunchDiffs[:0], Links: s.Links[:0]}
}
