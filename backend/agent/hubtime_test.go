package agent

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// landed gives the landed spans by step and ordinal.
func (e *hubRig) landed() map[[2]uint64]spanring.Span {
	e.t.Helper()
	out := map[[2]uint64]spanring.Span{}
	for _, en := range e.entries() {
		if !en.Words.Kind().IsSpan() {
			continue
		}
		s, err := en.Words.Span()
		if err != nil {
			e.t.Fatal(err)
		}
		out[[2]uint64{s.Step, uint64(s.Ordinal)}] = s
	}
	return out
}

// Starts lie where the stand-in really stamped them, within the published uncertainty,
// on a clock with another zero that drifts; durations are what was stamped.
func TestHubClockAgainstTruth(t *testing.T) {
	for _, c := range []struct {
		offset time.Duration
		ppb    int64
	}{{0, 0}, {-time.Hour, 11_800}, {12345 * time.Second, -90_000}} {
		t.Run(fmt.Sprint(c.offset, c.ppb), func(t *testing.T) {
			e := newHubRig(t, hubOptions{level: "off"})
			e.script(fmt.Sprintf("clock %d %d\n level 2 = 2", c.offset.Nanoseconds(), c.ppb))
			const steps = 60
			var truth [steps][2]int64
			for i := range steps {
				e.script("step 0\n begin 0 0 1 0 = 1\n launch 0 0\n end 0\n endstep 0\n drain = 0")
				var r, q int
				if _, err := fmt.Sscan(e.do("truth 0"), &r, &q, &truth[i][0], &truth[i][1]); err != nil || r != 0 || q != 0 {
					t.Fatalf("truth of step %d: %d %d %v", i, r, q, err)
				}
				e.do("sleepms 25") // so that several anchors are taken
			}
			spans := e.landed()
			var worst, widest, fine float64
			for i := range steps {
				s, ok := spans[[2]uint64{uint64(i + 1), 1}]
				if !ok {
					t.Fatalf("step %d has not landed: %v", i+1, namedCounters(e.counters(), nil))
				}
				off := math.Abs(float64(s.StartMonoNS - truth[i][0]))
				// The truth itself is stamped in ticks.
				if off > float64(s.PlaceUncertaintyNS)+32 {
					t.Errorf("step %d is placed %d ns off, ± %d ns", i+1, s.StartMonoNS-truth[i][0], s.PlaceUncertaintyNS)
				}
				// Milliseconds in 32 bits.
				ms := float32(s.RawNS) / 1e6
				step := 1e6 * float64(math.Nextafter32(ms, 2*ms)-ms)
				if d := float64(int64(s.RawNS) - truth[i][1]); math.Abs(d) > 1+step {
					t.Errorf("step %d took %d ns, want %d", i+1, s.RawNS, truth[i][1])
				}
				if s.EnqueueMonoNS() > truth[i][0] {
					t.Errorf("step %d was enqueued after it began", i+1)
				}
				worst, widest = max(worst, off), max(widest, float64(s.PlaceUncertaintyNS))
				if i == steps-1 {
					fine = float64(s.PlaceUncertaintyNS)
				}
			}
			counters := e.counters()
			if counters[spanring.CtrAnchors] < 2 {
				t.Errorf("%d anchors in %d steps", counters[spanring.CtrAnchors], steps)
			}
			cs, err := e.read.Contexts()
			if err != nil || len(cs) != 1 {
				t.Fatal(cs, err)
			}
			if cs[0].Capability != 90 || cs[0].Slots != 4096 || cs[0].UUIDText() == "GPU-00000000-0000-0000-0000-000000000000" {
				t.Errorf("context %+v", cs[0])
			}
			t.Logf("worst %.0f ns off; uncertainty %.0f ns at the widest, %.0f ns at the end; rate %d ppb; %d anchors, %d given up",
				worst, widest, fine, cs[0].RatePPB, counters[spanring.CtrAnchors], counters[spanring.CtrAnchorsGivenUp])
		})
	}
}

// Where no anchor can be had, its tries are bounded and given up, and a span is placed
// by its own bounds, honestly.
func TestHubWithoutAnchor(t *testing.T) {
	e := newHubRig(t, hubOptions{level: "lane"})
	e.script("stallown 1 = 0\n step 0\n begin 0 0 1 0 = 1\n launch 0 0\n end 0\n endstep 0\n drain = 0")
	var r, q int
	var start, dur int64
	if _, err := fmt.Sscan(e.do("truth 0"), &r, &q, &start, &dur); err != nil || r != 0 || q != 0 {
		t.Fatal(r, q, err)
	}
	s := e.landed()[[2]uint64{1, 1}]
	if off := s.StartMonoNS - start; math.Abs(float64(off)) > float64(s.PlaceUncertaintyNS)+32 {
		t.Errorf("placed %d ns off, ± %d ns", off, s.PlaceUncertaintyNS)
	}
	c := e.counters()
	if c[spanring.CtrAnchorsGivenUp] == 0 || c[spanring.CtrAnchors] != 0 {
		t.Errorf("%d anchors, %d given up", c[spanring.CtrAnchors], c[spanring.CtrAnchorsGivenUp])
	}
	// Released, the pending one is an anchor.
	e.script("stallown 0 = 0")
	for end := time.Now().Add(time.Minute); e.counters()[spanring.CtrAnchors] == 0; e.do("harvest") {
		if time.Now().After(end) {
			t.Fatal("no anchor after the release")
		}
	}
	e.balanced(0)
}

// No anchor is taken while nothing is in flight, and no driver call is made.
func TestHubIdleAsksNothing(t *testing.T) {
	e := newHubRig(t, hubOptions{level: "lane"})
	e.script("step 0\n begin 0 0 1 0 = 1\n end 0\n endstep 0\n drain = 0")
	// The thread may still be at what the last round began.
	before := e.do("allcalls")
	for last := ""; before != last; before = e.do("allcalls") {
		last = before
		e.do("harvest")
	}
	e.script("sleepms 700\n harvest")
	e.want("allcalls", before)
}

// The first anchors follow each other closely, so that the clock's rate is known
// soon, as in cudaevents: the next is due 8, 16, 31, 62, 125 and 250 ms after, and then
// every half second. After one that was not good, or was not complete at once, as on a
// busy machine, it is due sooner.
func TestHubYoungClock(t *testing.T) {
	const age, sooner, young = 500 * time.Millisecond, 4, 6
	e := newHubRig(t, hubOptions{level: "lane"})
	e.script("stall 0 1\n step 0\n begin 0 0 1 0 = 1\n end 0\n endstep 0")
	var seen, asPlanned int
	for end := time.Now().Add(time.Minute); seen <= young; {
		var n int
		var due time.Duration
		if _, err := fmt.Sscan(e.do("anchored"), &n, &due); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatalf("%d anchors in a minute", n)
		}
		if n == seen {
			continue
		}
		seen = n
		want := age >> max(0, young+1-n)
		if due != want && due != want/sooner && due != age/sooner {
			t.Errorf("anchor %d: the next is due %v later, want %v", n, due, want)
		}
		if due == want {
			asPlanned++
		}
	}
	t.Logf("%d anchors seen as planned", asPlanned)
	e.script("stall 0 0\n drain = 0")
	e.balanced(0)
}

// A driver that refuses the spin kernel: the constant is assumed, and taken off kernels
// alone.
func TestHubAssumedConstant(t *testing.T) {
	e := newHubRig(t, hubOptions{level: "off", env: []string{"LANETRACE_KERNEL_SPAN_EVERY=1"}})
	e.script("afterrecord 1580\n fail cuModuleLoadDataEx 218 0 0\n level 3 = 3")
	cs, err := e.read.Contexts()
	if err != nil || len(cs) != 1 || cs[0].Calibration != spanring.CalibrationAssumed || cs[0].ConstantNS != 3040 {
		t.Fatalf("contexts %+v, %v; want a constant of 3,040 ns that is assumed", cs, err)
	}
	// All of it is enqueued before any of it begins.
	e.script("heal\n kernelns 20000\n stall 0 1\n step 0 = 1 1\n begin 0 0 1 0 = 1\n launch 0 0\n launch 0 0\n end 0\n endstep 0\n sleepms 1\n stall 0 0\n drain = 0")
	spans := e.landed()
	for _, o := range []uint64{2, 3} {
		s := spans[[2]uint64{1, o}]
		if off := int64(s.DurationNS()) - 20_000; s.Gap != spanring.GapQueued || off < 0 || off > int64(s.DurationUncertaintyNS) {
			t.Errorf("%v kernel of 20 µs: %d ns of %d ns", s.Gap, s.DurationNS(), s.RawNS)
		}
		// The step had ended before they began: what else waited behind them is unknown.
		if s.CorrectionNS != 3040-720/2 || s.DurationUncertaintyNS < 600+720 || s.DurationUncertaintyNS > 600+720+40 {
			t.Errorf("kernel: %+v", s)
		}
	}
	if s := spans[[2]uint64{1, 1}]; s.CorrectionNS != 0 || s.Calibration != spanring.CalibrationNone {
		t.Errorf("a lane is corrected: %+v", s)
	}
}

// How much a queued kernel's pair is corrected by follows from how many kernels waited
// behind it, as in cudaevents; the stand-in's pairs all measure the same.
func TestHubDepth(t *testing.T) {
	const constant, shallow = 3040, 720
	const deep, few, unsure = constant, constant - shallow, constant - shallow/2
	e := newHubRig(t, hubOptions{level: "off", env: []string{"LANETRACE_KERNEL_SPAN_EVERY=1"}})
	e.script("fail cuModuleLoadDataEx 218 0 0\n level 3 = 3\n heal\n kernelns 20000")
	launches := func(n int) string { return strings.Repeat("launch 0 0 = 1\n", n) }
	// "apart" lets more time pass than places are uncertain by.
	const release = "\n apart\n stall 0 0\n"
	const done = "sync = 0\n apart\n"
	const end = "end 0\n endstep 0\n drain = 0"
	for _, c := range []struct {
		what, script string
		by           map[uint64]uint16 // a span's correction by its ordinal
	}{
		{
			"eleven in a queue, while the step goes on: behind the first two wait nine and more",
			"stall 0 1\n arm 1\n step 0\n begin 0 0 1 0 = 1\n" + launches(11) + release + done + end,
			map[uint64]uint16{2: deep, 3: deep, 4: few, 5: few, 6: few, 7: few, 8: few, 9: few, 10: few, 11: few, 12: few},
		},
		{
			"the same, but the step ends first",
			"stall 0 1\n arm 1\n step 0\n begin 0 0 1 0 = 1\n" + launches(10) + "end 0\n endstep 0" + release + "drain = 0",
			map[uint64]uint16{2: deep, 3: unsure, 4: unsure, 5: unsure, 6: unsure, 7: unsure, 8: unsure, 9: unsure, 10: unsure, 11: unsure},
		},
		{
			"the others come when it is done",
			"stall 0 1\n arm 1\n step 0\n begin 0 0 1 0 = 1\n launch 0 0 = 1" + release + done + launches(9) + done + end,
			map[uint64]uint16{2: few},
		},
		{
			"its own launch is still arriving when it begins",
			"callns cuEventRecord 50000\n arm 1\n step 0\n begin 0 0 1 0 = 1\n launch 0 0 = 1\n callns cuEventRecord 0\n" + done + end,
			map[uint64]uint16{2: unsure},
		},
		{
			"the next comes while it runs",
			"kernelns 300000000\n stall 0 1\n arm 1\n step 0\n begin 0 0 1 0 = 1\n launch 0 0 = 1" + release +
				"kernelns 20000\n began 0 ~ 1\n apart\n launch 0 0 = 1\n" + done + end,
			map[uint64]uint16{2: unsure},
		},
		{
			"one without a pair comes behind the second: it is of no step",
			"stall 0 1\n arm 1\n step 0\n launch 0 0 = 1\n launch 0 0 = 1\n launch 0 -1 = 0\n apart\n launch 0 0 = 1" + release + done + "endstep 0\n drain = 0",
			map[uint64]uint16{1: unsure, 2: unsure, 3: few},
		},
		{
			"a launch that overlaps others says so from outside",
			"stall 0 1\n arm 1\n step 0\n launch 0 0 = 1\n untimed 0\n apart\n launch 0 0 = 1" + release + done + "endstep 0\n drain = 0",
			map[uint64]uint16{1: unsure, 2: few},
		},
	} {
		// A busy machine's anchors are wide: then more time has to pass.
		for apart, tries := time.Millisecond, 0; ; tries++ {
			e.script(strings.ReplaceAll(c.script, "apart", fmt.Sprint("sleepms ", apart.Milliseconds())))
			step, spans := e.counters()[spanring.CtrStepsBegun], e.landed()
			var widest time.Duration
			for o := range c.by {
				widest = max(widest, time.Duration(spans[[2]uint64{step, o}].PlaceUncertaintyNS))
			}
			if 2*widest >= apart && tries < 20 {
				apart = min(max(2*apart, 4*widest), 100*time.Millisecond)
				continue
			}
			if 2*widest >= apart {
				t.Fatalf("%s: never quiet enough: places are uncertain by %v", c.what, widest)
			}
			for o, by := range c.by {
				s, ok := spans[[2]uint64{step, o}]
				if !ok || s.CorrectionNS != by {
					t.Errorf("%s: span %d is corrected by %d ns, want %d (landed: %v)", c.what, o, s.CorrectionNS, by, ok)
				}
				if over := int64(s.DurationUncertaintyNS) - 600; s.Gap == spanring.GapQueued && (over >= shallow) != (by == unsure) {
					t.Errorf("%s: span %d: ± %d ns", c.what, o, s.DurationUncertaintyNS)
				}
				// A starved one carries what the host took around its launch.
				if s.Gap == spanring.GapStarved && s.DurationUncertaintyNS < 600+shallow {
					t.Errorf("%s: span %d: starved, ± %d ns", c.what, o, s.DurationUncertaintyNS)
				}
			}
			break
		}
	}
	e.balanced(0)
}

// One step in KernelSpanEvery is armed, fewer when armed work would cost more than
// KernelBudget of the step time.
func TestHubArming(t *testing.T) {
	e := newHubRig(t, hubOptions{level: "kernel", env: []string{"LANETRACE_KERNEL_SPAN_EVERY=4", "LANETRACE_KERNEL_BUDGET=0.9"}})
	var armed []int
	for i := 1; i <= 12; i++ {
		if got := e.do("step 0"); got == fmt.Sprint(i, " 1") {
			armed = append(armed, i)
		}
		e.script("endstep 0")
	}
	if fmt.Sprint(armed) != "[4 8 12]" {
		t.Errorf("armed steps %v, want one in four", armed)
	}
	if info, err := e.read.Info(); err != nil || info.KernelEvery != 4 {
		t.Errorf("%+v, %v", info, err)
	}
	// Those asked for come first, and are told apart.
	e.script("arm 2\n step 0 = 13 1\n endstep 0\n step 0 = 14 1\n endstep 0\n step 0 = 15 0\n endstep 0")

	// Ten launches of 3.5 µs after a step of 5 ms at a budget of one in a thousand: one in
	// seven, or fewer where the step took longer.
	e = newHubRig(t, hubOptions{level: "kernel", env: []string{"LANETRACE_KERNEL_SPAN_EVERY=2", "LANETRACE_KERNEL_BUDGET=0.001"}})
	e.script("step 0 = 1 0\n sleepms 5\n endstep 0\n step 0 = 2 1")
	for range 10 {
		e.want("launch 0 0", "1")
	}
	e.script("endstep 0\n drain = 0")
	var took float64
	for _, en := range e.entries() {
		if s, err := en.Words.StepEnd(); err == nil && s.Step == 1 {
			took = float64(s.MonoNS - s.BeginNS)
		}
	}
	want := max(2, uint32(math.Ceil(10*3500/(0.001*took))))
	info, err := e.read.Info()
	if err != nil || info.KernelEvery != want {
		t.Errorf("one in %d after ten launches and %v ns at 0.1 %%, want %d (%v)", info.KernelEvery, took, want, err)
	}
	t.Logf("one step in %d", info.KernelEvery)
	e.balanced(0)
}

// What processor time a step and a lane cost the calling thread, and the driver calls in
// a lane alone, over the stand-in.
func TestHubCost(t *testing.T) {
	if testing.Short() {
		t.Skip("measures")
	}
	e := newHubRig(t, hubOptions{level: "lane"})
	var step, lane, calls int64 = math.MaxInt64, math.MaxInt64, math.MaxInt64
	for range 5 {
		var s, l, c int64
		if _, err := fmt.Sscan(e.do("bench 1000"), &s, &l, &c); err != nil {
			t.Fatal(err)
		}
		step, lane, calls = min(step, s), min(lane, l), min(calls, c)
		e.want("drain", "0")
	}
	if step > 20_000 || lane-calls > 20_000 {
		t.Errorf("a step takes %d ns, a lane %d ns, of which its driver calls %d ns", step, lane, calls)
	}
	t.Logf("a step takes %d ns, a lane %d ns, of which its driver calls %d ns", step, lane, calls)
}

// With a budget for lanes, time in which the host waits for the GPU between two steps is
// step time, as far as the GPU works in it.
func TestHubTimeBetweenSteps(t *testing.T) {
	e := newHubRig(t, hubOptions{level: "lane", env: []string{"LANETRACE_LANE_BUDGET=0.9"}})
	e.do("kernelns 500000")
	begun := spanring.MonoNS()
	for range 100 {
		e.script("step 0\n begin 0 0 1 0 = 1\n launch 0 0\n end 0\n endstep 0\n drain = 0")
	}
	all, got := spanring.MonoNS()-begun, int64(e.counters()[spanring.CtrStepTimeNS])
	t.Logf("step time %d of %d ns", got, all)
	// Most of it, unless this machine pauses.
	if got < 10e6 || got > all {
		t.Errorf("step time %d ns of %d, in which the GPU worked for 50 ms", got, all)
	}
}
