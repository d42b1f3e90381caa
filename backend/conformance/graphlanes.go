package conformance

import (
	"testing"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/spanring"
)

var graphLaneTests = []test{
	{"each replay is timed", replaysTimed},
	{"a replay that nobody read in time", replayedTooSoon},
	{"outside of steps and levels", replaysUntimed},
	{"left in flight", replaysLeft},
	{"a capture given up", graphLanesAborted},
}

// laneGraph captures a graph of two lanes, the second with one inside, on st.
func (x *telemetry) laneGraph(st backend.Stream, p backend.DevicePtr, first, second time.Duration) backend.Graph {
	x.t.Helper()
	step := x.hub.StepBegin()
	defer step.End()
	return x.capture(st, func() {
		l := x.dev.LaneBegin(step, x.hub.Lane("first"), st)
		x.spin(st, first)
		l = l.Next(x.hub.Lane("second"))
		x.spin(st, second/2)
		inner := x.dev.LaneBegin(step, x.hub.Lane("inner"), st)
		x.fill(st, p, 7, 10)
		inner.End()
		x.spin(st, second/2)
		l.End()
	})
}

func (s *suite) withGraphLanes(t *testing.T) *telemetry {
	return s.telemetryOn(t, newHub(t, "lane"), s.caps.OpenGraphLanes)
}

func replaysTimed(s *suite, t *testing.T) {
	x := s.withGraphLanes(t)
	st := x.stream()
	p := x.words(10, 0)
	g := x.laneGraph(st, p, 300*time.Microsecond, 700*time.Microsecond)
	if c := x.hub.Ring().Counters(); c[spanring.CtrBegun] != 1 || c[spanring.CtrCapturing] != 0 { // the step
		t.Errorf("the capture itself: %s", counters(c))
	}
	for round := range 3 {
		step := x.hub.StepBegin()
		outer := x.dev.LaneBegin(step, x.hub.Lane("outer"), st)
		x.ok(x.gpu.LaunchGraph(g, st))
		outer.End()
		step.End()
		x.sync(st)
		byName := map[string]spanring.Span{}
		for _, sp := range x.drain() {
			byName[x.name(sp)] = sp
		}
		if len(byName) != 4 {
			t.Fatalf("round %d: spans %v", round, byName)
		}
		o, a, b, in := byName["outer"], byName["first"], byName["second"], byName["inner"]
		if a.Parent != o.Ordinal || b.Parent != o.Ordinal || in.Parent != b.Ordinal || o.Parent != 0 {
			t.Errorf("round %d: parents %d %d %d of %d and %d", round, a.Parent, b.Parent, in.Parent, o.Ordinal, b.Ordinal)
		}
		for what, sp := range byName {
			if sp.Step != step.ID() || sp.Kind != spanring.KindLane {
				t.Errorf("round %d: %s is of step %d, kind %v, want %d", round, what, sp.Step, sp.Kind, step.ID())
			}
		}
		if d := time.Duration(a.RawNS); d < 300*time.Microsecond || d > s.atMost(x.cycles(300*time.Microsecond)) {
			t.Errorf("round %d: first took %v", round, d)
		}
		if d := time.Duration(b.RawNS); d < 700*time.Microsecond || d > 2*s.atMost(x.cycles(350*time.Microsecond)) {
			t.Errorf("round %d: second took %v", round, d)
		}
		if in.RawNS >= b.RawNS || a.RawNS+b.RawNS > o.RawNS {
			t.Errorf("round %d: first %d, second %d, inner %d, outer %d ns", round, a.RawNS, b.RawNS, in.RawNS, o.RawNS)
		}
		if a.StartMonoNS > b.StartMonoNS || b.StartMonoNS > in.StartMonoNS {
			t.Errorf("round %d: starts %d %d %d", round, a.StartMonoNS, b.StartMonoNS, in.StartMonoNS)
		}
	}
	x.wantAll("what the graph did", st, p, 7, 10)
	x.ok(x.gpu.DestroyGraph(g))
}

func replayedTooSoon(s *suite, t *testing.T) {
	x := s.withGraphLanes(t)
	st := x.stream()
	p := x.words(10, 0)
	g := x.laneGraph(st, p, time.Millisecond, time.Millisecond)
	seen(t, "a replay before the one before it has begun", func() bool {
		failed := x.counter(spanring.FailReplayed.Counter())
		step := x.hub.StepBegin()
		x.dev.Bind(step, st)
		x.spin(st, 30*time.Millisecond)
		x.ok(x.gpu.LaunchGraph(g, st))
		x.ok(x.gpu.LaunchGraph(g, st))
		step.End()
		failed = x.counter(spanring.FailReplayed.Counter()) - failed
		x.sync(st)
		spans := x.drain()
		if failed+uint64(len(spans)) != 6 || failed > 3 {
			t.Errorf("%d lanes failed and %d landed, want those of the second replay alone to land", failed, len(spans))
		}
		return failed == 3
	})
	// Read in time, nothing is lost.
	failed := x.counter(spanring.FailReplayed.Counter())
	step := x.hub.StepBegin()
	x.dev.Bind(step, st)
	for range 3 {
		x.ok(x.gpu.LaunchGraph(g, st))
		x.sync(st)
	}
	step.End()
	if spans := x.drain(); len(spans) != 9 {
		t.Errorf("%d lanes landed, want 9: the next launch reads what nobody harvested", len(spans))
	}
	x.wantCounter(spanring.FailReplayed.Counter(), failed, 0)
	x.ok(x.gpu.DestroyGraph(g))
}

func replaysUntimed(s *suite, t *testing.T) {
	x := s.withGraphLanes(t)
	st := x.stream()
	p := x.words(10, 0)
	g := x.laneGraph(st, p, 10*time.Microsecond, 10*time.Microsecond)
	before := x.counter(spanring.CtrBegun)
	x.ok(x.gpu.LaunchGraph(g, st)) // no step
	x.ok(x.hub.SetLevel(lanetrace.LevelBasic))
	step := x.hub.StepBegin()
	x.dev.Bind(step, st)
	x.ok(x.gpu.LaunchGraph(g, st))
	step.End()
	x.sync(st)
	x.wantCounter(spanring.CtrBegun, before, 1) // the step
	// A graph captured below level lane has no lanes inside.
	h := x.laneGraph(st, p, 10*time.Microsecond, 10*time.Microsecond)
	x.ok(x.hub.SetLevel(lanetrace.LevelLane))
	before = x.counter(spanring.CtrBegun)
	step = x.hub.StepBegin()
	x.dev.Bind(step, st)
	x.ok(x.gpu.LaunchGraph(h, st))
	step.End()
	x.sync(st)
	x.wantCounter(spanring.CtrBegun, before, 1)
	x.ok(x.gpu.DestroyGraph(g))
	x.ok(x.gpu.DestroyGraph(h))
}

// replaysLeft destroys a graph whose lanes are in flight, and closes with another's.
func replaysLeft(s *suite, t *testing.T) {
	x := s.withGraphLanes(t)
	st := x.stream()
	p := x.words(10, 0)
	g := x.laneGraph(st, p, time.Millisecond, time.Millisecond)
	step := x.hub.StepBegin()
	x.dev.Bind(step, st)
	x.spin(st, 2*time.Millisecond)
	x.ok(x.gpu.LaunchGraph(g, st))
	x.ok(x.gpu.DestroyGraph(g))
	h := x.laneGraph(x.gpu.DefaultStream(), x.words(10, 0), time.Millisecond, time.Millisecond) // of its own: the two run at once
	x.dev.Bind(step, x.gpu.DefaultStream())
	x.ok(x.gpu.LaunchGraph(h, x.gpu.DefaultStream()))
	step.End()
	x.ok(x.gpu.Close())
	c := x.hub.Ring().Counters()
	// A backend may wait for a graph's replays before it destroys it.
	if lost := c[spanring.FailReplayed.Counter()] + c[spanring.FailClosed.Counter()]; c.InFlight() != 0 || lost > 6 || lost%3 != 0 {
		t.Errorf("account: %s", counters(c))
	}
}

func graphLanesAborted(s *suite, t *testing.T) {
	x := s.withGraphLanes(t)
	st := x.stream()
	step := x.hub.StepBegin()
	x.ok(x.gpu.BeginCapture(st))
	l := x.dev.LaneBegin(step, x.hub.Lane("first"), st)
	x.gpu.AbortCapture(st)
	l.End() // stale: there is no such graph
	// The stream's lanes are ordinary ones again.
	l = x.dev.LaneBegin(step, x.hub.Lane("first"), st)
	x.spin(st, 10*time.Microsecond)
	l.End()
	step.End()
	x.sync(st)
	if spans := x.drain(); len(spans) != 1 || x.name(spans[0]) != "first" {
		t.Errorf("spans %v", spans)
	}
	x.wantCounter(spanring.CtrStaleEnds, 0, 1)
}
