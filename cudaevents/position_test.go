package cudaevents_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
	"github.com/lanetrace/lanetrace/spanring"
)

const ms = int64(time.Millisecond)

// jitter is a launch latency's noise: up to 2 µs, and now and then 30.
func jitter() func() int64 {
	r := rand.New(rand.NewPCG(11, 12))
	return func() int64 {
		if r.IntN(50) == 0 {
			return r.Int64N(30_000)
		}
		return r.Int64N(2000)
	}
}

// An engine that runs steps of 20 ms, harvested every 5 ms: positions after 9 s
// and after an hour are as good as after one second.
func TestPositionsHoldWithUptime(t *testing.T) {
	for _, tc := range []struct {
		name     string
		driftPPM float64
		forNS    int64
	}{
		{"9 s, 10 ppm", 10, 9e9},
		{"1 h, 10 ppm", 10, 3600e9},
		{"2 min, -180 ppm", -180, 120e9},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if testing.Short() && tc.forNS > 1000e9 {
				t.Skip("an hour takes some seconds")
			}
			g := newRig(t, scripted.Options{DriftPPM: tc.driftPPM, Jitter: jitter(), CallNS: 100}, cudaevents.Options{Pairs: 64})
			w := g.watch()
			s := g.d.NewStream()
			stride := int64(1)
			if tc.forNS > 1000e9 {
				stride = 10
			}
			for end := g.d.Now() + tc.forNS; g.d.Now() < end; {
				h := g.begin(s, g.lane(1))
				g.d.Work(s, 15*ms)
				g.end(h)
				for range 4 {
					g.d.Advance(5 * ms * stride)
					w.harvest()
				}
				if w.spans < 50 {
					w.worst, w.worstU = 0, 0
				}
			}
			c := g.r.Clock()
			t.Logf("%d spans: worst %d ns off, uncertainty at most %d ns; clock %+v", w.spans, w.worst, w.worstU, c)
			if w.worst > 3500 || w.worstU > 8000 {
				t.Errorf("worst %d ns off, uncertainty up to %d ns", w.worst, w.worstU)
			}
			if got := float64(c.RatePPB) / 1000; got < tc.driftPPM-1 || got > tc.driftPPM+1 {
				t.Errorf("rate %.3f ppm, want %.3f", got, tc.driftPPM)
			}
			if c.Segments != 1 || c.Resets != 0 {
				t.Errorf("%d segments, %d contradictions, want 1 and 0", c.Segments, c.Resets)
			}
		})
	}
}

// A span of 9 s begins 9 s away from the anchor it is read with: it is placed by
// the anchor of its own time.
func TestPositionOfALongSpan(t *testing.T) {
	g := newRig(t, scripted.Options{DriftPPM: 10, Jitter: jitter()}, cudaevents.Options{Pairs: 1024})
	w := g.watch()
	s, other := g.d.NewStream(), g.d.NewStream()
	h := g.begin(s, g.lane(1))
	g.d.Work(s, 9000*ms)
	g.end(h)
	for range 9100 / 20 {
		k := g.begin(other, g.lane(2))
		g.d.Work(other, ms)
		g.end(k)
		g.d.Advance(20 * ms)
		for _, sp := range w.harvest() {
			if sp.Ordinal == 1 {
				if sp.PlaceUncertaintyNS > 15_000 || sp.RawNS < 9e9 {
					t.Errorf("the long span: raw %d ns, uncertainty %d ns", sp.RawNS, sp.PlaceUncertaintyNS)
				}
				return
			}
		}
	}
	t.Fatal("the long span never landed")
}

// On a machine whose anchors are very narrow, what is left is the coarseness of the
// driver's values: positions are right to tens of nanoseconds, and so is the
// uncertainty. A span of 18 s is placed by the anchor of its own time, where its
// start is known to 61 ns and not to 2 µs.
func TestPositionsOnAFastMachine(t *testing.T) {
	g := newRig(t, scripted.Options{LatencyNS: 1, EventNS: 1, DriftPPM: 10}, cudaevents.Options{Pairs: 8192})
	w := g.watch()
	s, long := g.d.NewStream(), g.d.NewStream()
	var h cudaevents.Handle
	for i := range 4000 {
		if i == 400 {
			h = g.begin(long, g.lane(1))
			g.d.Work(long, 18_000*ms)
			g.end(h)
			w.worst, w.worstU = 0, 0
		}
		k := g.begin(s, g.lane(2))
		g.d.Work(s, ms)
		g.end(k)
		g.d.Advance(5_000_001) // not in step with the ticks
		if w.harvest(); w.worst > 300 && i > 400 {
			t.Fatalf("round %d: %d ns off", i, w.worst)
		}
		if g.r.InFlight() > 1 || i < 4000-1 && i > 400 && w.spans < i {
			t.Fatalf("round %d: %d in flight", i, g.r.InFlight())
		}
	}
	t.Logf("worst %d ns off, uncertainty up to %d ns", w.worst, w.worstU)
	if w.spans != 4001 {
		t.Errorf("%d spans", w.spans)
	}
}

// A span that began before a gap which the host's clock bridged is placed with
// what was known before the gap, and says nothing about the time after it.
func TestPositionAcrossAGap(t *testing.T) {
	g := newRig(t, scripted.Options{DriftPPM: 150}, cudaevents.Options{Pairs: 1024})
	w := g.watch()
	s, long := g.d.NewStream(), g.d.NewStream()
	busy := func(n int) (got []spanring.Span) {
		for range n {
			k := g.begin(s, g.lane(2))
			g.d.Work(s, ms)
			g.end(k)
			g.d.Advance(5 * ms)
			got = append(got, w.harvest()...)
		}
		return got
	}
	busy(30) // one anchor: the rate is hardly known
	h := g.begin(long, g.lane(1))
	g.d.Work(long, 41_000*ms)
	g.end(h)
	busy(1)
	g.d.FailAll(scripted.Anchor, 1)
	for range 8 {
		g.d.Advance(5e9)
		busy(1)
	}
	g.d.Heal(scripted.Anchor)
	for _, sp := range busy(400) {
		if sp.RawNS < 1e9 {
			continue
		}
		if sp.PlaceUncertaintyNS > 60_000 {
			t.Errorf("the long span's uncertainty is %d ns, want what 150 ms at 200 ppm leave", sp.PlaceUncertaintyNS)
		}
		if c := g.r.Clock(); c.Segments != 2 || c.Resets != 0 {
			t.Errorf("%d segments, %d contradictions", c.Segments, c.Resets)
		}
		return
	}
	t.Error("the long span never landed")
}

// A rate that changes faster than clocks do shows in spans that contradict what was
// learnt. They land, with what the last anchor alone leaves, and bring the next.
func TestRateThatChanges(t *testing.T) {
	g := newRig(t, scripted.Options{DriftPPM: 10}, cudaevents.Options{Pairs: 64})
	w := g.watch()
	s := g.d.NewStream()
	busy := func(n int) { w.busy(s, n) }
	busy(610) // 50 ms after an anchor
	before := g.r.Clock()
	g.d.SetDrift(-150)
	w.worstU = 0
	w.excess = 6000 // until it shows, about an anchor's width
	n := 0
	for ; n < 80 && g.r.Clock().Anchors == before.Anchors; n++ {
		busy(1)
	}
	c := g.r.Clock()
	if c.Resets == 0 || n >= 80 {
		t.Errorf("%d contradictions, next anchor after %d ms", c.Resets, 5*n)
	}
	if w.worstU < 5000 || w.worstU > 25_000 {
		t.Errorf("uncertainty up to %d ns meanwhile", w.worstU)
	}
	t.Logf("next anchor after %d ms, uncertainty up to %d ns", 5*n, w.worstU)
	busy(400)
	w.excess, w.worstU = 0, 0
	busy(100)
	if w.worstU > 8000 {
		t.Errorf("uncertainty %d ns two seconds later", w.worstU)
	}
}

// Values that contradict the clock bring an anchor now and then, not each time.
func TestBadPositionsDoNotMultiplyAnchors(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 64})
	s := g.d.NewStream()
	for range 10 { // the first anchors follow each other closer anyway
		g.span(s)
		g.settle()
		g.d.Advance(500 * ms)
	}
	g.span(s)
	g.settle()
	g.log()
	g.d.OnElapsed(func(_ cudaevents.Pair, t *cudaevents.Times) cudaevents.Result {
		t.SinceAnchorMS += 10
		return cudaevents.Success
	})
	before := g.r.Clock().Anchors
	for range 100 {
		g.span(s)
		g.d.Advance(5 * ms)
		g.r.Harvest()
	}
	if n := g.r.Clock().Anchors - before; n < 3 || n > 6 {
		t.Errorf("%d anchors in half a second of bad values, want one in 125 ms", n)
	}
	g.wantReasons(map[spanring.Reason]int{spanring.FailMisplaced: 100})
}

func TestPositionsAfterIdle(t *testing.T) {
	for _, idle := range []int64{1e9, 5e9, 60e9, 3600e9} {
		g := newRig(t, scripted.Options{DriftPPM: 10, Jitter: jitter()}, cudaevents.Options{Pairs: 64})
		w := g.watch()
		s := g.d.NewStream()
		busy := func(n int) { w.busy(s, n) }
		busy(1000)
		anchors := g.r.Clock().Anchors
		for range 10 { // nothing in flight: harvests make no call
			g.d.Advance(idle / 10)
			if h := g.r.Harvest(); h.Calls != 0 {
				t.Fatalf("%d calls while nothing is in flight", h.Calls)
			}
		}
		if n := g.r.Clock().Anchors; n != anchors {
			t.Errorf("%d anchors while nothing was in flight", n-anchors)
		}
		w.worst, w.worstU = 0, 0
		anchors = g.r.Clock().Anchors
		busy(1)
		if segs := g.r.Clock().Segments; segs > 1 {
			busy(39)
			if n := g.r.Clock().Anchors - anchors; n < 2 {
				t.Errorf("%d anchors in the first 200 ms after a bridged gap, want the rate learnt soon", n)
			}
		}
		if w.worstU > 9000 {
			t.Errorf("first span after %d s of idling: %d ns off, uncertainty %d", idle/1e9, w.worst, w.worstU)
		}
		busy(1000)
		if w.worst > 9000 || w.worstU > 9000 {
			t.Errorf("after %d s of idling: worst %d ns off, uncertainty %d", idle/1e9, w.worst, w.worstU)
		}
		if got, want := g.r.Clock().Segments, uint64(1); idle > 5e9 && got != want+1 || idle < 4e9 && got != want {
			t.Errorf("%d segments after %d s of idling", got, idle/1e9)
		}
	}
}

// With every queue full an anchor completes when the queues do. Tries are given
// up, and the spans themselves bound the clock.
func TestPositionsWhileAnchorsCannotComplete(t *testing.T) {
	g := newRig(t, scripted.Options{DriftPPM: 10, CallNS: 100}, cudaevents.Options{Pairs: 64})
	w := g.watch()
	g.d.SetLatency(func(own bool) int64 {
		if own {
			return 11_500_000
		}
		return 2500
	})
	s := g.d.NewStream()
	for range 400 {
		h := g.begin(s, g.lane(1))
		g.d.Work(s, 4*ms)
		g.end(h)
		g.d.Advance(5 * ms)
		w.harvest()
	}
	c := g.r.Clock()
	if c.GivenUp == 0 || c.Anchors == 0 {
		t.Errorf("%d anchors, %d tries given up, want some of both", c.Anchors, c.GivenUp)
	}
	w.worst, w.worstU = 0, 0
	for range 100 {
		h := g.begin(s, g.lane(1))
		g.d.Work(s, 4*ms)
		g.end(h)
		g.d.Advance(5 * ms)
		w.harvest()
	}
	t.Logf("worst %d ns off, uncertainty %d ns; %+v", w.worst, w.worstU, c)
	if w.worstU > 1_000_000 {
		t.Errorf("uncertainty %d ns: the spans do not bound the clock", w.worstU)
	}
	if c.Refits <= c.Anchors {
		t.Errorf("%d refits with %d anchors: what the spans say moves no map", c.Refits, c.Anchors)
	}
}

// One clock jumps against the other, as it can when a virtual machine was paused:
// the first span that shows it brings an anchor at once, and lands where it was.
func TestClockJumpIsSurvived(t *testing.T) {
	for _, jump := range []int64{20 * ms, -20 * ms, 3e9} {
		g := newRig(t, scripted.Options{DriftPPM: 10}, cudaevents.Options{Pairs: 64})
		w := g.watch()
		s := g.d.NewStream()
		busy := func(n int) { w.busy(s, n) }
		busy(320) // a fifth of a second to the next anchor
		g.d.Advance(abs64(jump))
		g.d.JumpHost(jump)
		w.worst, w.worstU = 0, 0
		busy(1)
		if jump > 0 && (w.worst > 10_000 || w.worstU > 20_000) {
			t.Errorf("first span after a jump by %d ns: %d ns off, uncertainty %d", jump, w.worst, w.worstU)
		}
		busy(300)
		w.worst, w.worstU = 0, 0
		busy(100)
		if w.worst > 4000 || w.worstU > 8000 {
			t.Errorf("after a jump by %d ns: worst %d ns off, uncertainty %d", jump, w.worst, w.worstU)
		}
		if got := g.r.Clock().Resets; got != 1 {
			t.Errorf("%d contradictions, want the jump", got)
		}
	}
}

// Starts on one stream never go backwards, whatever the anchors say meanwhile.
func TestPositionsNeverGoBackwards(t *testing.T) {
	g := newRig(t, scripted.Options{DriftPPM: 10, Jitter: jitter()}, cudaevents.Options{Pairs: 256})
	w := g.watch()
	s := g.d.NewStream()
	r := rand.New(rand.NewPCG(1, 1))
	var last spanring.Span
	for range 2000 {
		for range r.IntN(8) {
			h := g.begin(s, g.lane(1))
			g.d.Work(s, 1000+r.Int64N(ms))
			g.end(h)
			g.d.Advance(r.Int64N(ms))
		}
		if r.IntN(300) == 0 {
			g.d.Advance(r.Int64N(20e9))
		}
		g.d.Advance(r.Int64N(10 * ms))
		for _, sp := range w.harvest() {
			if sp.StartMonoNS < last.StartMonoNS {
				t.Fatalf("span %d starts %d ns before span %d", sp.Ordinal, last.StartMonoNS-sp.StartMonoNS, last.Ordinal)
			}
			// A part in a thousand for the two clocks' rates and slewing.
			if over := last.EndMonoNS() - sp.StartMonoNS; over > 100+int64(last.RawNS/1000) {
				t.Fatalf("span %d starts %d ns before the end of span %d of %d ns on its stream", sp.Ordinal, over, last.Ordinal, last.RawNS)
			}
			last = sp
		}
	}
	if w.spans < 4000 {
		t.Errorf("%d spans checked", w.spans)
	}
}

// Every anchor is in the log, and the context record says the same.
func TestAnchorsAreShown(t *testing.T) {
	g := newRig(t, scripted.Options{DriftPPM: 10}, cudaevents.Options{Pairs: 8})
	s := g.d.NewStream()
	h := g.begin(s, g.lane(1))
	var all []spanring.Anchor
	for range 40 {
		g.d.Advance(100 * ms)
		g.r.Harvest()
		_, _, a := g.log()
		all = append(all, a...)
	}
	g.end(h)
	c := g.r.Clock()
	// Harvested every 100 ms, five are younger than that, the next comes after 250 ms
	// and then one each half a second.
	if len(all) != 13 || c.Anchors != 13 {
		t.Fatalf("%d anchors in the log, %d taken in 4 s, want 13", len(all), c.Anchors)
	}
	// Before the rate was known the map was 10 ppm of a tenth of a second behind.
	if r := all[1].ResidualNS; r < 500 || r > 1500 {
		t.Errorf("the second anchor's residual is %d ns, want some 1,000", r)
	}
	if r := all[12].ResidualNS; abs64(r) > 1500 {
		t.Errorf("the last anchor's residual is %d ns", r)
	}
	last := all[len(all)-1]
	cs, err := g.rd.Contexts()
	if err != nil || len(cs) != 1 {
		t.Fatal(cs, err)
	}
	if cs[0].GPURefNS != last.GPUNS || cs[0].HostRefNS != last.MonoNS || cs[0].UncertaintyNS != last.UncertaintyNS ||
		c.GPUNS != last.GPUNS || c.MonoNS != last.MonoNS {
		t.Errorf("record %+v, clock %+v, log %+v", cs[0], c, last)
	}
	// The record's line, 10 s on, is right within its rate's uncertainty.
	gpu := cs[0].GPURefNS + 10e9 + 100_000 // 10 ppm of 10 s
	host := cs[0].HostRefNS + int64(float64(gpu-cs[0].GPURefNS)*(1-float64(cs[0].RatePPB)/1e9))
	if off := host - (cs[0].HostRefNS + 10e9); abs64(off) > 10*c.RateUncertaintyPPB+100 || abs64(off) > 30_000 {
		t.Errorf("the record's line is %d ns off after 10 s, rate %d ± %d ppb", off, cs[0].RatePPB, c.RateUncertaintyPPB)
	}
}

// The first half second is placed nearly as well as what follows: the first anchors
// follow each other closely.
func TestYoungClock(t *testing.T) {
	g := newRig(t, scripted.Options{DriftPPM: 20, CallNS: 500}, cudaevents.Options{Pairs: 64})
	s := g.d.NewStream()
	worst := uint64(0)
	for range 200 {
		g.d.Advance(5 * ms)
		g.span(s)
		g.settle()
		spans, _, _ := g.log()
		for i := range spans {
			worst = max(worst, spans[i].PlaceUncertaintyNS)
		}
	}
	if worst > 12_000 {
		t.Errorf("uncertainty up to %d ns in the first second", worst)
	}
	if n := g.r.Clock().Anchors; n > 10 {
		t.Errorf("%d anchors in the first second", n)
	}
	t.Logf("uncertainty up to %d ns, %d anchors", worst, g.r.Clock().Anchors)
}
