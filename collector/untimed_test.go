package collector

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

// untimedEvery pushes steps of an asynchronous engine, one a millisecond, whose host
// takes 100 µs and whose lane runs for the millisecond after its begin; of every one in
// four the lane is timed. The last one is.
func untimedEvery(src *memSource, steps uint64) {
	const ms = 1_000_000
	for n := uint64(1); n <= steps; n++ {
		at := src.nowNS
		if timed := n%4 == 1; timed {
			src.push(begin(n, at), end(n, at, at+ms/10, 1))
		} else {
			src.push(
				&spanring.StepBegin{Step: n, MonoNS: at, Level: 2, Untimed: true},
				&spanring.StepEnd{Step: n, BeginNS: at, MonoNS: at + ms/10, Untimed: true})
		}
		src.nowNS += ms
		if n%4 == 2 { // the lane of the step before has landed
			src.push(lane(n-1, 1, 1, at, ms))
		}
	}
}

// TestUntimedSteps: a step whose lanes were left out is no loss, and no step without
// lanes. Lanes count what was timed, steps all; how long an untimed step took is not
// known, and the GPU's time meanwhile is not idle.
func TestUntimedSteps(t *testing.T) {
	src := newMemSource("a")
	src.info.Level = levelLane
	p, k := run(t, src, ProcessorOptions{})
	untimedEvery(src, 42)
	src.counters[spanring.CtrBegun], src.counters[spanring.CtrLanded] = 53, 53
	pollAll(t, p)
	p.Finish()
	e := p.Engine()
	if len(k.steps) != 42 {
		t.Fatalf("%d steps closed, want 42", len(k.steps))
	}
	untimed := 0
	for _, s := range k.steps {
		if s.Incomplete != Complete || s.Faulty() {
			t.Errorf("step %d: %s, faulty %v", s.Number, s.Incomplete, s.Faulty())
		}
		if s.Untimed != (s.Number%4 != 1) || s.Untimed != (len(s.Spans) == 0) {
			t.Errorf("step %d: untimed %v, %d spans", s.Number, s.Untimed, len(s.Spans))
		}
		if s.Untimed {
			untimed++
			if s.Level != 1 {
				t.Errorf("step %d: level %d, want what was measured: basic", s.Number, s.Level)
			}
		}
	}
	type counts struct {
		Steps, Durations, Hosts, Lanes uint64
		Untimed                        int
		GPU                            GPUTime
	}
	const ms = 1_000_000
	got := counts{e.sum.steps[0], e.sum.stepTime[0].count, e.sum.stepHost.count, e.sum.lanes["a"].duration[0].count, untimed, e.GPUTime()}
	// Eleven lanes of a millisecond with three between that nobody saw.
	want := counts{42, 11, 42, 11, 31, GPUTime{LaneNS: 11 * ms, UntimedNS: 30 * ms, Bound: got.GPU.Bound}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	a := e.Account()
	if u := a.Unbalanced(); len(u) > 0 || a.Sidecar.Received != 53 {
		t.Errorf("%v does not balance: %+v", u, a)
	}
}

// TestUntimedStepsCloseFirst: steps without lanes close at once, those with lanes when
// these have been read, many steps later. The GPU's time is the same in whichever order.
func TestUntimedStepsCloseFirst(t *testing.T) {
	const ms = 1_000_000
	for _, late := range []uint64{0, 1, 2, 5, 9} { // steps later that a lane is read
		src := newMemSource("a")
		src.info.Level = levelLane
		p, _ := run(t, src, ProcessorOptions{})
		from := src.nowNS
		for n := uint64(1); n <= 41+late; n++ {
			at := from + int64(n)*ms
			switch {
			case n > 41:
			case n%4 == 1:
				src.push(begin(n, at), end(n, at, at+ms/10, 1))
			default:
				src.push(
					&spanring.StepBegin{Step: n, MonoNS: at, Level: 2, Untimed: true},
					&spanring.StepEnd{Step: n, BeginNS: at, MonoNS: at + ms/10, Untimed: true})
			}
			if m := n - late; m%4 == 1 && m <= 41 && n > late { // it ran two steps after its begin
				src.push(lane(m, 1, 1, from+int64(m)*ms+2*ms, ms))
			}
			src.nowNS = at + 4*ms
			pollAll(t, p)
		}
		p.Finish()
		// Eleven lanes of a millisecond with three between that nobody saw.
		got := p.Engine().GPUTime()
		if want := (GPUTime{LaneNS: 11 * ms, UntimedNS: 30 * ms, Bound: got.Bound}); got != want {
			t.Errorf("read %d steps later: %+v, want %+v", late, got, want)
		}
	}
}

// TestUntimedStepsAreAClass: steps of which the host's part alone is known are held
// against each other, not against those of which the GPU's is.
func TestUntimedStepsAreAClass(t *testing.T) {
	l := newLoad(SlowOptions{})
	untimed := func(hostNS int64) func(*Step) {
		return func(s *Step) { s.Untimed, s.Spans, s.EndMonoNS = true, nil, hostNS }
	}
	for i := range 4000 {
		if i%8 == 0 {
			l.step(1_000_000, nil)
		} else {
			l.step(0, untimed(100_000))
		}
	}
	if len(l.slow) > 0 {
		t.Errorf("slow steps %v in a load that does not change", l.slow)
	}
	if !l.step(0, untimed(400_000)) {
		t.Error("an untimed step of four times the others' length on the host is not slow")
	}
	if l.step(1_000_000, nil) {
		t.Error("a timed step like all others is slow")
	}
}

// TestOneInNHasLanes: where a step in so many is exported and the lanes of a step in so
// many are timed, the two strides do not go together so that no trace has lanes.
func TestOneInNHasLanes(t *testing.T) {
	l := NewLiveSelector(LiveOptions{OneInN: 100, BudgetBytes: -1, Slow: SlowOptions{Factor: -1}})
	var got []uint64
	for n := uint64(1); n <= 500; n++ {
		s := &Step{Number: n, HasBegin: true, HasEnd: true, EndMonoNS: 1000, Untimed: n%4 != 1 && n > 250}
		if r, _ := l.Select(s); r == ExportOneInN {
			got = append(got, n)
		} else if r != ExportNone {
			t.Errorf("step %d: %v", n, r)
		}
	}
	if d := cmp.Diff([]uint64{100, 200, 301, 401}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestRequestsSayWhatWasLeftOut: a request's GPU time lacks the steps whose lanes were
// left out, and its summary says of how many.
func TestRequestsSayWhatWasLeftOut(t *testing.T) {
	src := newMemSource("a")
	k := &keepRequests{}
	p, _ := run(t, src, ProcessorOptions{Observers: []Observer{k}})
	c := spanring.TraceContext{TraceID: [16]byte{1}, SpanID: [8]byte{2}, Flags: 1}
	at := src.nowNS
	for n := uint64(1); n <= 4; n++ {
		src.push(&spanring.StepBegin{Step: n, MonoNS: at, Level: 2, Untimed: n > 1}, &spanring.StepLink{Step: n, TraceContext: c})
		opened := uint32(0)
		if n == 1 {
			src.push(lane(n, 1, 1, at, 500))
			opened = 1
		}
		src.push(&spanring.StepEnd{Step: n, BeginNS: at, MonoNS: at + 1000, Untimed: n > 1, Opened: opened, Linked: 1})
		at += 2000
	}
	src.push(&spanring.RequestEnd{TraceContext: c, BeginNS: src.nowNS, EndNS: at})
	pollAll(t, p)
	p.Finish()
	if len(k.requests) != 1 {
		t.Fatalf("%d requests", len(k.requests))
	}
	if r := k.requests[0]; r.Steps != 4 || r.StepsUntimed != 3 || r.GPULaneNS != 500 {
		t.Errorf("%d steps, %d of them untimed, %d ns of lanes", r.Steps, r.StepsUntimed, r.GPULaneNS)
	}
}

// TestOverhead: totals since the run began, and shares of the last half minute to
// minute.
func TestOverhead(t *testing.T) {
	src := newMemSource("a")
	src.info.KernelEvery, src.info.LaneEvery = 70, 4
	p, _ := run(t, src, ProcessorOptions{})
	e := p.Engine()
	if k, l := (&Overhead{}).Shares(); k != 0 || l != 0 {
		t.Errorf("of nothing %v and %v", k, l)
	}
	step := func(stepTime, kernels, lanes time.Duration) [2]float64 {
		c := &src.counters
		c[spanring.CtrStepTimeNS] += uint64(stepTime)
		c[spanring.CtrArmedCostNS] += uint64(kernels)
		c[spanring.CtrLaneCostNS] += uint64(lanes)
		src.nowNS += int64(15 * time.Second)
		return e.overheadLately()
	}
	for i, want := range [][2]float64{{0.01, 0.02}, {0.01, 0.02}, {0.01, 0.02}, {0.01, 0.02}} {
		if got := step(10*time.Second, 100*time.Millisecond, 200*time.Millisecond); got != want {
			t.Errorf("look %d: %v, want %v", i, got, want)
		}
	}
	// What changes is all there is a minute later.
	var got [2]float64
	for range 4 {
		got = step(10*time.Second, 0, 300*time.Millisecond)
	}
	if want := [2]float64{0, 0.03}; got != want {
		t.Errorf("a minute after a change %v, want %v", got, want)
	}
	src.counters[spanring.CtrStepsUntimed] = 9
	want := Overhead{
		StepTime: 80 * time.Second, Kernels: 400 * time.Millisecond, Lanes: 2 * time.Second, KernelStride: 70, LaneStride: 4, Untimed: 9,
	}
	if d := cmp.Diff(want, e.Overhead()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	// A damaged ring's are not under 0.
	for _, ctr := range []spanring.Counter{spanring.CtrStepTimeNS, spanring.CtrArmedCostNS, spanring.CtrLaneCostNS} {
		src.counters[ctr] = math.MaxUint64
	}
	o := e.Overhead()
	if k, l := o.Shares(); o.StepTime < 0 || o.Kernels < 0 || o.Lanes < 0 || k != 1 || l != 1 {
		t.Errorf("%+v, shares %v and %v", o, k, l)
	}
}
