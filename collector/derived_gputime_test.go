package collector

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

// stepOfLanes is a closed step with lanes, given as begin and end in turn.
func stepOfLanes(beginNS int64, ns ...int64) *Step {
	s := &Step{HasBegin: true, BeginMonoNS: beginNS}
	for i := 0; i < len(ns); i += 2 {
		s.Spans = append(s.Spans, laneOn(uint32(i/2+1), uint16(i/2), ns[i], ns[i+1], 0))
	}
	new(deriver).derive(s)
	return s
}

func TestGPUTime(t *testing.T) {
	// What is asked of the devices' time, one operation after another.
	type op func(g *gpuTime)
	add := func(beginNS int64, ns ...int64) op { return func(g *gpuTime) { g.add(stepOfLanes(beginNS, ns...)) } }
	settle := func(ns int64) op { return func(g *gpuTime) { g.settle(ns) } }
	blind := func(a, b int64) op { return func(g *gpuTime) { g.blind(a, b) } }
	finish := func(g *gpuTime) { g.finish() }
	for _, tt := range []struct {
		name string
		ops  []op
		want GPUTime // but for Bound
	}{
		{name: "nothing", ops: []op{settle(100), finish}},
		{
			//      10   20   30   40        60  70
			// 1    |----|    |----|
			// 2                             |---|
			name: "one step after another",
			ops:  []op{add(5, 10, 20, 30, 40), settle(45), add(50, 60, 70), finish},
			want: GPUTime{LaneNS: 30, WithinNS: 10, BetweenNS: 20},
		},
		{
			// 2 runs in the gap of 1, and 1 closes last.
			//      10   20      30   40
			// 1    |----|        |---|
			// 2           22-28
			name: "overlapping steps, closed out of order",
			ops:  []op{add(8, 22, 28), settle(5), add(5, 10, 20, 30, 40), settle(35), finish},
			want: GPUTime{LaneNS: 26, WithinNS: 4},
		},
		{
			name: "what no step can change any more counts as between",
			ops:  []op{add(5, 10, 20), settle(50)},
			want: GPUTime{LaneNS: 10, BetweenNS: 30},
		},
		{
			name: "what is open is not counted yet",
			ops:  []op{add(5, 10, 20), add(30, 40, 60), settle(30)},
			want: GPUTime{LaneNS: 10, BetweenNS: 10},
		},
		{
			name: "settled in the middle of a lane",
			ops:  []op{add(5, 10, 20, 40, 60), settle(15), settle(30), settle(45), settle(45), settle(44), finish},
			want: GPUTime{LaneNS: 30, WithinNS: 20},
		},
		{
			// Counted up to 50 as between; 30 to 45 comes too late.
			name: "late",
			ops:  []op{add(5, 10, 20), settle(50), add(25, 30, 45, 48, 60), finish},
			want: GPUTime{LaneNS: 20, BetweenNS: 30, LateNS: 20},
		},
		{
			name: "level below lane",
			ops:  []op{blind(0, 5), add(5, 10, 20), blind(18, 50), add(60, 70, 80), finish},
			want: GPUTime{LaneNS: 20, BetweenNS: 20, UntimedNS: 30},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var g gpuTime
			for _, op := range tt.ops {
				op(&g)
			}
			g.total.Bound = tt.want.Bound
			if d := cmp.Diff(tt.want, g.total); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestGPUTimeOfDevicesAndArmedSteps(t *testing.T) {
	var g gpuTime
	s := &Step{Armed: true, HasBegin: true, Spans: []Span{
		laneOn(1, 0, 10, 40, 5), kernelOn(2, 0, 12, 15, spanring.GapStarved), kernelOn(3, 0, 50, 54, spanring.GapQueued),
		onDevice(1, laneOn(4, 0, 1000, 1100, 5)),
	}}
	new(deriver).derive(s)
	g.add(s)
	g.finish()
	want := GPUTime{
		LaneNS: 30 + 100, WithinNS: 14, ArmedLaneNS: 130, ArmedBusyNS: 7, ArmedLaneIdleNS: 27, ArmedBusyOutsideNS: 4,
		Bound: [NumBounds]uint64{BoundUnknown: 1},
	}
	if d := cmp.Diff(want, g.total); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestGPUTimeAgainstBruteForce runs steps that overlap and close in any order
// through a whole processor, and counts each microsecond.
func TestGPUTimeAgainstBruteForce(t *testing.T) {
	const us, ticks = 1000, 60_000
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		lane := make([]bool, ticks)
		extent := make([]bool, ticks)
		first, last := ticks, 0
		type event struct {
			at int
			w  wordser
		}
		var events []event
		at := 100
		for n := uint64(1); n <= 60; n++ {
			at += rnd.IntN(1500)
			beginNS := int64(at) * us
			events = append(events, event{at, begin(n, beginNS)})
			lo, hi := ticks, 0
			lanes := 1 + rnd.IntN(3)
			from := at
			for o := range lanes {
				from += rnd.IntN(400)
				to := from + 1 + rnd.IntN(600)
				sp := lane0(n, uint32(o+1), int64(from)*us, uint64(to-from)*us, uint16(rnd.IntN(2)))
				// A lane lands some time after it ends, now and then long after.
				events = append(events, event{to + rnd.IntN(1+rnd.IntN(8000)), sp})
				lo, hi = min(lo, from), max(hi, to)
				for i := from; i < to; i++ {
					lane[i] = true
				}
			}
			for i := lo; i < hi; i++ {
				extent[i] = true
			}
			first, last = min(first, lo), max(last, hi)
			endAt := at + rnd.IntN(500)
			events = append(events, event{endAt, end(n, beginNS, int64(endAt)*us, uint32(lanes))})
		}
		// In order of time, as they are published.
		for i := 1; i < len(events); i++ {
			for j := i; j > 0 && events[j].at < events[j-1].at; j-- {
				events[j], events[j-1] = events[j-1], events[j]
			}
		}
		src := newMemSource("a")
		src.info.Level = levelLane
		p, _ := run(t, src, ProcessorOptions{})
		for i, e := range events {
			src.push(e.w)
			if i%(1+rnd.IntN(7)) == 0 {
				pollAll(t, p)
			}
		}
		pollAll(t, p)
		p.Finish()
		var want GPUTime
		for i := first; i < last; i++ {
			switch {
			case lane[i]:
				want.LaneNS += us
			case extent[i]:
				want.WithinNS += us
			default:
				want.BetweenNS += us
			}
		}
		got := p.Engine().GPUTime()
		want.Bound = got.Bound
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("seed %d (-want +got):\n%s", seed, d)
		}
		if want.BetweenNS == 0 || want.WithinNS == 0 {
			t.Fatalf("seed %d: nothing between or within: the test shows nothing", seed)
		}
	}
}

func lane0(step uint64, ordinal uint32, startNS int64, ns uint64, stream uint16) *spanring.Span {
	sp := lane(step, ordinal, 1, startNS, ns)
	sp.Stream = stream
	return sp
}

// TestGPUTimeIsBounded: a step that never closes holds nothing up for ever, and
// what that costs is told.
func TestGPUTimeIsBounded(t *testing.T) {
	var g gpuTime
	for i := range int64(100_000) {
		g.add(stepOfLanes(i*100, i*100, i*100+50))
		g.settle(0)
		for c := range g.devices {
			d := &g.devices[c]
			if n := max(len(d.lanes), len(d.extents), len(d.untimed)); n > maxPendingIntervals {
				t.Fatalf("%d intervals pending", n)
			}
		}
	}
	g.add(stepOfLanes(0, 60, 90)) // the one that hung
	g.finish()
	want := GPUTime{LaneNS: 50 * 100_000, BetweenNS: 50 * 99_999, LateNS: 30}
	want.Bound = g.total.Bound
	if d := cmp.Diff(want, g.total); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestUntimedWhileTheLevelIsLow: an engine at basic shows no lanes, which is not
// idling.
func TestUntimedWhileTheLevelIsLow(t *testing.T) {
	src := newMemSource("a")
	src.info.Level = levelLane
	p, _ := run(t, src, ProcessorOptions{})
	const s = 1_000_000_000
	step := func(n uint64, atNS int64) {
		src.push(begin(n, atNS), lane(n, 1, 1, atNS, s/10), end(n, atNS, atNS+s/10, 1))
	}
	step(1, src.nowNS)
	pollAll(t, p)
	src.info.Level = 1
	for range 40 {
		src.nowNS += s / 10
		pollAll(t, p)
	}
	src.info.Level = levelLane
	src.nowNS += s / 10
	pollAll(t, p)
	step(2, src.nowNS)
	pollAll(t, p)
	p.Finish()
	got := p.Engine().GPUTime()
	// The level is looked at every 100 ms.
	if want := (GPUTime{LaneNS: s / 5, UntimedNS: 39 * s / 10, BetweenNS: s / 10, Bound: got.Bound}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
