package web

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/top"
)

// engineLine is an engine in the picker.
type engineLine struct {
	Label string `json:"label"`
	Run   string `json:"run"`
	State string `json:"state"`
	Level string `json:"level"`
}

// runState says which run follows. Numbers beyond what the browser's numbers hold
// exactly are texts.
type runState struct {
	Label    string `json:"label"`
	Run      string `json:"run"`
	BaseNS   string `json:"base_mono_ns"` // all times of the run count from here
	BaseUnix string `json:"base_unix_ns"`
	Program  string `json:"program"`
	Service  string `json:"service"`
	PID      uint32 `json:"pid"`
	GPU      string `json:"gpu"`
	Model    string `json:"model"`
	Producer string `json:"producer"`
}

func (p *Page) runState(e *collector.Engine, baseNS int64) runState {
	i := e.Info()
	r := runState{
		Label: e.Label(), Run: e.RunID().String(), BaseNS: strconv.FormatInt(baseNS, 10),
		Program: clean(i.Executable), Service: clean(i.Service), PID: i.PID, GPU: clean(i.GPUName), Model: clean(i.Model), Producer: clean(i.Producer),
	}
	p.mu.Lock()
	if t := p.tracks[e]; t != nil && t.last.next > t.last.first {
		r.BaseUnix = strconv.FormatInt(baseNS+t.last.step(t.last.next-1).wallOffsetNS, 10)
	}
	p.mu.Unlock()
	if r.BaseUnix == "" {
		r.BaseUnix = strconv.FormatInt(baseNS-i.CreatedMonoNS+i.CreatedUnixNS, 10)
	}
	return r
}

func clean(s string) string { return collector.CutText(collector.CleanText(s), 256) }

// state is everything but steps.
type state struct {
	Server    string       `json:"server"`
	Version   string       `json:"version"`
	Waiting   string       `json:"waiting,omitempty"`
	Downloads bool         `json:"downloads"`
	Engines   []engineLine `json:"engines"`
	Engine    *engineState `json:"engine,omitempty"` // of the run shown
}

// engineState is what an engine's numbers are now.
type engineState struct {
	NowNS   int64             `json:"now"`
	State   string            `json:"state"`
	Level   string            `json:"level"`
	Every   uint32            `json:"kernel_every"`
	Lane    uint32            `json:"lane_every"`
	Account collector.Account `json:"account"`
	// Unbalanced are the lines of the account that do not add up at this moment: while
	// something moves that may be.
	Unbalanced []string `json:"unbalanced"`
	Busy       int      `json:"busy"` // pair slots in flight
	// Oldest is the span that has been in flight longest, of an engine that lives.
	Oldest  *oldestLine `json:"oldest,omitempty"`
	Clocks  []clockLine `json:"clocks"`
	GPUTime gpuTimeLine `json:"gpu_time"`
	// Overhead is missing where the engine does not measure it.
	Overhead *overheadLine `json:"overhead,omitempty"`
	Seconds  int           `json:"seconds"` // that the tables are of
	Steps    int           `json:"steps"`
	Lanes    []laneLine    `json:"lanes"`
	Kernels  []kernelLine  `json:"kernels"`
	History  []secondLine  `json:"history"` // since the last state
	Diffs    []diffLine    `json:"diffs,omitempty"`
	Memory   memoryState   `json:"memory"`
}

// oldestLine is a span in flight.
type oldestLine struct {
	Step  uint64 `json:"step"`
	AgeNS int64  `json:"age"` // since it was enqueued
}

type clockLine struct {
	Context       uint8  `json:"context"`
	Device        int32  `json:"device"`
	Calibration   string `json:"calibration"`
	ConstantNS    uint32 `json:"constant_ns"`
	UncertaintyNS uint64 `json:"uncertainty_ns"`
}

// overheadLine is what timing takes of the time of steps, as shares of it.
type overheadLine struct {
	Kernels float64 `json:"kernels"`
	Lanes   float64 `json:"lanes"`
}

type gpuTimeLine struct {
	LaneNS    uint64 `json:"lane"`
	WithinNS  uint64 `json:"within"`
	BetweenNS uint64 `json:"between"`
	UntimedNS uint64 `json:"untimed"`
}

type laneLine struct {
	Name  string  `json:"name"`
	Count uint64  `json:"count"`
	SumNS uint64  `json:"sum"`
	P50NS float64 `json:"p50"`
	P99NS float64 `json:"p99"`
}

type kernelLine struct {
	Name  string `json:"name"`
	Count uint64 `json:"count"`
	SumNS uint64 `json:"sum"`
}

type secondLine struct {
	TimeNS int64      `json:"t"`
	Steps  int        `json:"steps"`
	Lanes  []laneLine `json:"lanes"`
}

// maxRows is how many kernels and call sites a table has.
const maxRows = 40

// maxDiffs is how many regions that differ are told of, those that differ most.
const maxDiffs = 4

func laneLines(ls []top.Lane) []laneLine {
	out := make([]laneLine, len(ls))
	for i, l := range ls {
		out[i] = laneLine(l)
	}
	return out
}

func (s *stream) state(es []*collector.Engine) state {
	p := s.p
	st := state{Server: p.started, Version: p.o.Version, Downloads: p.o.Download != nil, Engines: make([]engineLine, len(es))}
	for i, e := range es {
		st.Engines[i] = engineLine{Label: e.Label(), Run: e.RunID().String(), State: e.State().String(), Level: collector.LevelText(e.Info().Level)}
	}
	if s.run == nil {
		st.Waiting = p.o.Waiting
		return st
	}
	st.Engine = s.engineState(s.run)
	return st
}

func (s *stream) engineState(e *collector.Engine) *engineState {
	i := e.Info()
	a := e.Account()
	ts := s.p.view.Tables(e)
	g := e.GPUTime()
	o := &engineState{
		NowNS: e.NowMonoNS() - s.baseNS, State: e.State().String(), Level: collector.LevelText(i.Level), Every: i.KernelEvery, Lane: i.LaneEvery,
		Account: a, Unbalanced: a.Unbalanced(), Busy: len(e.Busy()),
		GPUTime: gpuTimeLine{g.LaneNS, g.WithinNS, g.BetweenNS, g.UntimedNS},
		Seconds: ts.Seconds, Steps: ts.Steps, Lanes: laneLines(ts.Lanes),
		Memory: s.memoryState(e), Diffs: diffLines(e.LaunchRegions()),
	}
	if f, ok := e.OldestInFlight(); ok && e.State() == collector.EngineLive {
		o.Oldest = &oldestLine{f.Slot.Step, max(0, int64(f.Age))}
	}
	if v := e.Overhead(); v.StepTime > 0 {
		o.Overhead = &overheadLine{}
		o.Overhead.Kernels, o.Overhead.Lanes = v.Shares()
	}
	for _, c := range e.Contexts() {
		o.Clocks = append(o.Clocks, clockLine{c.Index, c.Device, c.Calibration.String(), c.ConstantNS, c.UncertaintyNS})
	}
	for _, k := range ts.Kernels[:min(len(ts.Kernels), maxRows)] {
		o.Kernels = append(o.Kernels, kernelLine(k))
	}
	if rest := ts.Kernels[min(len(ts.Kernels), maxRows):]; len(rest) > 0 {
		sum := kernelLine{Name: strconv.Itoa(len(rest)) + " others"}
		for _, k := range rest {
			sum.Count, sum.SumNS = sum.Count+k.Count, sum.SumNS+k.SumNS
		}
		o.Kernels = append(o.Kernels, sum)
	}
	for _, sec := range s.p.view.SecondsAfter(e, s.second) {
		s.second = sec.Second
		o.History = append(o.History, secondLine{sec.Second*1e9 - s.baseNS, sec.Steps, laneLines(sec.Lanes)})
	}
	return o
}

// diffLine is a region of which executions differed.
type diffLine struct {
	Region     string `json:"region"`
	Executions uint64 `json:"executions"`
	Differing  uint64 `json:"differing"`
	Step       uint64 `json:"step"` // in which the last of them ended, 0 for none
}

func diffLines(rs []collector.LaunchRegion) (out []diffLine) {
	for _, r := range rs {
		if r.Differing > 0 {
			out = append(out, diffLine{clean(r.Region), r.Executions, r.Differing, r.Last.Step})
		}
	}
	slices.SortStableFunc(out, func(a, b diffLine) int { return cmp.Compare(b.Differing, a.Differing) })
	return out[:min(len(out), maxDiffs)]
}

// memoryState is a run's memory now, and its past since the last state.
type memoryState struct {
	State       string        `json:"state"`
	Approximate bool          `json:"approximate"`
	Live        uint64        `json:"live"`
	Count       uint64        `json:"count"`
	Peak        uint64        `json:"peak"`
	Chunk       uint64        `json:"chunk"`
	Rounding    uint64        `json:"rounding"`
	Guard       uint64        `json:"guard"`
	Arenas      uint64        `json:"arenas"`
	Unlisted    uint64        `json:"unlisted"`
	Violations  uint64        `json:"violations"`
	Sites       []siteLine    `json:"sites"`
	Suspects    []suspectLine `json:"suspects"`
	Names       []string      `json:"names"` // of the sites of the past
	Past        []memoryPoint `json:"past"`
}

type siteLine struct {
	Site     string `json:"site"`
	Function string `json:"function,omitempty"`
	Bytes    int64  `json:"bytes"`
	Count    int64  `json:"count"`
}

type suspectLine struct {
	Site           string  `json:"site"`
	Bytes          int64   `json:"bytes"`
	Grown          int64   `json:"grown"`
	OverNS         int64   `json:"over"`
	BytesPerSecond float64 `json:"rate"`
}

func (s *stream) memoryState(e *collector.Engine) memoryState {
	m := e.Memory()
	t := &m.Totals
	o := memoryState{
		State: m.State.String(), Approximate: m.Approximate, Live: t.LiveBytes, Count: t.LiveCount, Peak: t.PeakBytes,
		Chunk: t.ChunkSlackBytes, Rounding: t.RoundingSlackBytes, Guard: t.GuardBytes, Arenas: t.ArenaBytes, Unlisted: t.UnlistedBytes,
	}
	_, o.Violations = e.Violations()
	for _, x := range m.Sites[:min(len(m.Sites), maxRows)] {
		o.Sites = append(o.Sites, siteLine{clean(x.Site), clean(x.Function), x.Bytes, x.Count})
	}
	for _, x := range e.SuspectedLeaks() {
		o.Suspects = append(o.Suspects, suspectLine{clean(x.Site), x.Bytes, x.Grown, int64(x.Over), x.BytesPerSecond})
	}
	s.p.mu.Lock()
	if tr := s.p.tracks[e]; tr != nil {
		o.Past = tr.memory.after(s.memory, s.baseNS)
		o.Names = slices.Clone(tr.memory.names)
		s.memory = tr.memory.next
	}
	s.p.mu.Unlock()
	return o
}
