package cudaevents_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
	"github.com/lanetrace/lanetrace/spanring"
)

// reasons counts failed spans by reason and checks the counters against them.
func (g *rig) reasons() map[spanring.Reason]int {
	g.t.Helper()
	_, failed, _ := g.log()
	got := map[spanring.Reason]int{}
	for _, f := range failed {
		got[f.Reason]++
	}
	return got
}

func (g *rig) wantReasons(want map[spanring.Reason]int) {
	g.t.Helper()
	if d := cmp.Diff(want, g.reasons()); d != "" {
		g.t.Errorf("failed spans in the log by reason (-want +got):\n%s", d)
	}
	for why := spanring.FailRecord; why <= spanring.FailMisplaced; why++ {
		if got := g.w.Counter(why.Counter()); got != uint64(want[why]) {
			g.t.Errorf("%d counted as failed{%v}, want %d", got, why, want[why])
		}
	}
}

// span runs one whole lane of 1 ms on s.
func (g *rig) span(s cudaevents.Stream) {
	h := g.begin(s, g.lane(1))
	g.d.Work(s, ms)
	g.end(h)
}

func (g *rig) settle() {
	g.t.Helper()
	g.d.Finish()
	g.r.Harvest()
}

func TestFullPoolDropsAndCounts(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 4})
	s := g.d.NewStream()
	var hs []cudaevents.Handle
	for range 4 {
		hs = append(hs, g.begin(s, g.lane(1)))
	}
	if h, o := g.r.Begin(s, g.lane(1)); o != cudaevents.BeginFull || h != (cudaevents.Handle{}) {
		t.Errorf("begin on a full pool: %v, %v", h, o)
	}
	if _, o := g.r.Reserve(s, g.kernel(1)); o != cudaevents.BeginFull {
		t.Errorf("reserve on a full pool: %v", o)
	}
	g.balance(6, 0, 0, 2)
	for _, h := range hs {
		g.end(h)
	}
	g.settle()
	g.balance(6, 4, 0, 2)
	g.span(s)
	g.settle()
	g.balance(7, 5, 0, 2)
	g.wantReasons(map[spanring.Reason]int{}) // what was dropped has no entry
}

func TestFailedRecords(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 2})
	s := g.d.NewStream()
	g.span(s)
	g.settle()
	g.log()

	m := g.lane(7)
	g.d.Fail(scripted.Record, 1, 999)
	if _, o := g.r.Begin(s, m); o != cudaevents.BeginFailed {
		t.Errorf("begin with a refused record: %v", o)
	}
	if n := g.busy(); n != 0 {
		t.Errorf("%d slots busy after a refused start", n)
	}
	_, failed, _ := g.log()
	want := []spanring.SpanFailed{{
		SpanKind: spanring.KindLane, Reason: spanring.FailRecord, Lane: 1, Stream: 1, Step: 7,
		EnqueueMonoNS: g.d.Now(), Name: 5, Ordinal: m.Ordinal,
	}}
	if d := cmp.Diff(want, failed); d != "" {
		t.Errorf("failed span (-want +got):\n%s", d)
	}

	h := g.begin(s, g.lane(7))
	g.d.Fail(scripted.Record, 1, 719)
	if !g.r.End(h) {
		t.Error("an end whose record was refused is no stale end")
	}
	if n := g.busy(); n != 1 {
		t.Errorf("%d slots busy while the start of a failed span is pending", n)
	}
	g.balance(3, 1, 2, 0)
	g.settle()
	if n := g.busy(); n != 0 {
		t.Errorf("%d slots busy after the start of a failed span completed", n)
	}
	if g.r.End(h) {
		t.Error("a failed span was ended again")
	}
	g.balance(3, 1, 2, 0)
	if n := g.w.Counter(spanring.CtrStaleEnds); n != 1 {
		t.Errorf("%d stale ends, want 1", n)
	}
	if got := g.reasons(); got[spanring.FailRecord] != 1 {
		t.Errorf("failed: %v", got)
	}
}

// Any code but success and not-ready is a failure, and frees the slot.
func TestUnreadableEvents(t *testing.T) {
	codes := []cudaevents.Result{1, 4, 400, 700, 719, 900, 999, -1, 1 << 30}
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 64})
	s := g.d.NewStream()
	for i, code := range codes {
		for range 3 {
			g.span(s)
		}
		g.d.Fail(scripted.Elapsed, 2, code)
		g.settle()
		if got := g.r.InFlight(); got != 0 {
			t.Fatalf("code %d: %d in flight", code, got)
		}
		if n := g.busy(); n != 0 {
			t.Errorf("code %d: %d slots busy", code, n)
		}
		g.balance(uint64(3*(i+1)), uint64(2*(i+1)), uint64(i+1), 0)
	}
	g.wantReasons(map[spanring.Reason]int{spanring.FailUnreadable: len(codes)})
}

// An unreadable pair whose end is still pending keeps its slot until it is not.
func TestUnreadablePendingPairDrains(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 4})
	s := g.d.NewStream()
	g.span(s)
	g.settle()
	g.span(s)
	g.d.OnElapsed(nil)
	g.d.FailPairs(700)
	g.r.Harvest()
	g.balance(2, 1, 1, 0)
	if n := g.busy(); n != 1 {
		t.Errorf("%d slots busy, want the pending one", n)
	}
	g.d.FailPairs(cudaevents.Success)
	g.settle()
	if n := g.busy(); n != 0 {
		t.Errorf("%d slots busy after its end", n)
	}
}

func TestStalledStreamDelaysNoOther(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 256})
	slow, fast := g.d.NewStream(), g.d.NewStream()
	for range 10 { // until anchors are seldom
		g.span(slow)
		g.settle()
		g.d.Advance(500 * ms)
	}
	g.span(slow)
	g.settle()
	g.d.Stall(slow)
	for range 10 {
		g.span(slow)
	}
	for range 10 {
		for range 5 {
			g.span(fast)
		}
		g.d.Finish()
		h := g.r.Harvest()
		if h.Landed != 5 || h.InFlight != 10 {
			t.Fatalf("beside a stalled stream: %+v", h)
		}
		if h.Calls > 2*5+1+1 { // two a span, one not ready, one should an anchor be due
			t.Errorf("%d calls to land 5 spans beside one stalled stream", h.Calls)
		}
	}
	if n := g.d.Complete(slow, 3); n != 3 { // the first span: start, work, end
		t.Fatal(n)
	}
	if h := g.r.Harvest(); h.Landed != 1 || h.InFlight != 9 {
		t.Errorf("the stalled stream's first span: %+v", h)
	}
	g.d.Release(slow)
	g.settle()
	g.balance(71, 71, 0, 0)
}

func TestAbandonedLanes(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 4, Abandon: 2 * time.Second})
	s := g.d.NewStream()
	open := g.begin(s, g.lane(1)) // its step never ends
	lost := g.begin(s, g.lane(2))
	_ = lost
	g.stepEnded[2] = g.d.Now()
	run := func(d time.Duration) {
		for end := g.d.Now() + int64(d); g.d.Now() < end; g.d.Advance(50 * ms) {
			g.r.Harvest()
		}
	}
	run(1900 * time.Millisecond)
	g.balance(2, 0, 0, 0)
	run(time.Second)
	g.balance(2, 0, 1, 0)
	g.wantReasons(map[spanring.Reason]int{spanring.FailAbandoned: 1})
	if n := g.busy(); n != 1 {
		t.Errorf("%d slots busy, want the open lane's", n)
	}
	if g.r.End(lost) {
		t.Error("an abandoned lane was ended")
	}
	if n := g.w.Counter(spanring.CtrStaleEnds); n != 1 {
		t.Errorf("%d stale ends, want 1", n)
	}
	run(20 * time.Second)
	g.end(open)
	g.settle()
	g.balance(2, 1, 1, 0)
}

// A lane that is abandoned the moment it begins comes to its stream's queue before
// the one whose event it shares; each frees its own slot all the same.
func TestAbandonedBeforeItsPredecessor(t *testing.T) {
	var g *rig
	var h, next cudaevents.Handle
	g = newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 2, Abandon: time.Second, StepEnded: func(step uint64) (int64, bool) {
		if next == (cudaevents.Handle{}) { // between this harvest's landing and its sweep
			next, _ = g.r.Switch(h, g.lane(1))
		}
		return 1, true
	}})
	s := g.d.NewStream()
	h = g.begin(s, g.lane(1))
	g.d.Work(s, ms)
	g.d.Advance(2e9)
	g.r.Harvest()
	if next == (cudaevents.Handle{}) {
		t.Fatal("nothing switched")
	}
	g.wantReasons(map[spanring.Reason]int{spanring.FailAbandoned: 1})
	g.settle()
	g.balance(2, 1, 1, 0)
	if n := g.busy(); n != 0 {
		t.Errorf("%d slots busy", n)
	}
}

// A handle is stale as soon as it was ended, also when its slot was taken again.
func TestStaleEnds(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 1})
	s := g.d.NewStream()
	if g.r.End(cudaevents.Handle{}) {
		t.Error("the zero handle was ended")
	}
	old := g.begin(s, g.lane(1))
	g.end(old)
	if g.r.End(old) {
		t.Error("ended twice")
	}
	g.settle()
	young := g.begin(s, g.lane(1))
	if g.r.End(old) {
		t.Error("an old handle ended a new span")
	}
	g.end(young)
	g.settle()
	if n := g.w.Counter(spanring.CtrStaleEnds); n != 2 {
		t.Errorf("%d stale ends, want 2 (the zero handle is none)", n)
	}
	g.balance(2, 2, 0, 0)
}

func TestLaunches(t *testing.T) {
	type want struct {
		begun, landed, failed uint64
		reason                spanring.Reason
		launched              bool
	}
	for _, tc := range []struct {
		name  string
		fault func(*scripted.Driver)
		want  want
	}{
		{"lands", func(*scripted.Driver) {}, want{1, 1, 0, 0, true}},
		{"start refused", func(d *scripted.Driver) { d.Fail(scripted.Record, 1, 1) }, want{1, 0, 1, spanring.FailRecord, false}},
		{"launch refused", func(d *scripted.Driver) { d.Fail(scripted.Launch, 1, 701) }, want{1, 0, 1, spanring.FailLaunch, false}},
		{"end refused", func(d *scripted.Driver) { d.Fail(scripted.Record, 2, 1) }, want{1, 0, 1, spanring.FailRecord, false}},
		{"all refused", func(d *scripted.Driver) { d.FailAll(scripted.Record, 1); d.FailAll(scripted.Launch, 1) }, want{1, 0, 1, spanring.FailLaunch, false}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 4})
			s := g.d.NewStream()
			tc.fault(g.d)
			l, o := g.r.Reserve(s, g.kernel(1))
			if o != cudaevents.BeginOK {
				t.Fatal(o)
			}
			if got := g.r.Launched(l, g.d.Launch(l.Pair, s, 5000)); got != tc.want.launched {
				t.Errorf("launched: %v", got)
			}
			g.d.Heal(scripted.Record)
			g.settle()
			g.balance(tc.want.begun, tc.want.landed, tc.want.failed, 0)
			if tc.want.failed > 0 {
				g.wantReasons(map[spanring.Reason]int{tc.want.reason: 1})
			}
			if n := g.busy(); n != 0 {
				t.Errorf("%d slots busy", n)
			}
			if g.r.Launched(l, cudaevents.LaunchResult{}) {
				t.Error("launched twice")
			}
			if n := g.w.Counter(spanring.CtrStaleEnds); n != 1 {
				t.Errorf("%d stale ends", n)
			}
		})
	}
}

// A launch that was refused between two recorded events keeps its slot until the
// second has completed.
func TestRefusedLaunchDrains(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 1})
	s := g.d.NewStream()
	l, _ := g.r.Reserve(s, g.kernel(1))
	a := g.d.Record(l.Pair.Start, s)
	g.d.Work(s, 100*ms)
	b := g.d.Record(l.Pair.End, s)
	g.r.Launched(l, cudaevents.LaunchResult{StartRecorded: true, EndRecorded: true, LaunchResult: 701, Calls: a.Calls + b.Calls})
	g.d.Advance(50 * ms) // the start has completed
	g.r.Harvest()
	if n := g.busy(); n != 1 {
		t.Errorf("%d slots busy while an event is pending", n)
	}
	g.settle()
	if n := g.busy(); n != 0 {
		t.Errorf("%d slots busy", n)
	}
	g.balance(1, 0, 1, 0)
}

func TestQueuedAndStarved(t *testing.T) {
	g := newRig(t, scripted.Options{CallNS: 500, EventNS: 320, Device: cudaevents.Device{Capability: 90}}, cudaevents.Options{Pairs: 8})
	s := g.d.NewStream()
	launch := func() {
		l, _ := g.r.Reserve(s, g.kernel(1))
		if !g.r.Launched(l, g.d.Launch(l.Pair, s, 5600)) {
			t.Fatal("not launched")
		}
	}
	g.d.Work(s, ms)
	launch() // behind work
	g.settle()
	g.d.SetLatency(func(bool) int64 { return 100 })
	launch() // on a drained stream
	g.settle()
	spans, _, _ := g.log()
	if len(spans) != 2 {
		t.Fatalf("%d spans", len(spans))
	}
	q, st := spans[0], spans[1]
	if q.Gap != spanring.GapQueued || st.Gap != spanring.GapStarved {
		t.Errorf("gaps %v, %v, want queued, starved", q.Gap, st.Gap)
	}
	for _, s := range spans {
		if s.Calibration != spanring.CalibrationAssumed || s.RawNS-s.DurationNS() != uint64(s.CorrectionNS) {
			t.Errorf("corrected by %d ns (%v), assumed", s.CorrectionNS, s.Calibration)
		}
	}
	// Nothing waited behind the first; the second's launch was still arriving.
	if q.CorrectionNS != 3040-720 || st.CorrectionNS != 3040-360 {
		t.Errorf("corrected by %d and %d ns, want 2,320 and 2,680", q.CorrectionNS, st.CorrectionNS)
	}
	if q.DurationNS() != 5600+720 || q.DurationUncertaintyNS < 600 || q.DurationUncertaintyNS > 640 {
		t.Errorf("queued kernel of 5,600 ns, in a pair of a deep one's length, reads %d ± %d", q.DurationNS(), q.DurationUncertaintyNS)
	}
	// Capture status, two records and the question took the host 500 ns each.
	if d := st.DurationUncertaintyNS - q.DurationUncertaintyNS; d < 2720 || d > 2722 {
		t.Errorf("a starved span is %d ns more uncertain, want 2,720", d)
	}
	// A GPU that has slept meanwhile takes its time.
	g.d.Advance(21 * ms)
	launch()
	g.settle()
	spans, _, _ = g.log()
	if d := spans[0].DurationUncertaintyNS - q.DurationUncertaintyNS; d < 102_720 || d > 102_920 {
		t.Errorf("a starved span after 21 ms without work is %d ns more uncertain, want 102,720", d)
	}
	if a, b := g.w.Counter(spanring.CtrQueued), g.w.Counter(spanring.CtrStarved); a != 1 || b != 2 {
		t.Errorf("%d queued, %d starved", a, b)
	}
}

// A kernel shorter than the constant is 0, never less.
func TestCorrectionIsNeverMoreThanRaw(t *testing.T) {
	g := newRig(t, scripted.Options{ConstantNS: 1, Device: cudaevents.Device{Capability: 90}}, cudaevents.Options{Pairs: 8})
	s := g.d.NewStream()
	l, _ := g.r.Reserve(s, g.kernel(1))
	g.r.Launched(l, g.d.Launch(l.Pair, s, 900))
	g.settle()
	spans, _, _ := g.log()
	if len(spans) != 1 || spans[0].DurationNS() != 0 || spans[0].CorrectionNS != uint16(spans[0].RawNS) {
		t.Errorf("spans %+v", spans)
	}
}

// Lanes and graphs are what their pairs measure.
func TestOnlyKernelsAreCorrected(t *testing.T) {
	g := newRig(t, scripted.Options{Device: cudaevents.Device{Capability: 90}}, cudaevents.Options{Pairs: 8})
	s := g.d.NewStream()
	m := g.kernel(1)
	m.Kind = spanring.KindGraph
	l, _ := g.r.Reserve(s, m)
	g.r.Launched(l, g.d.Launch(l.Pair, s, 900_000))
	g.span(s)
	g.settle()
	spans, _, _ := g.log()
	for _, s := range spans {
		if s.CorrectionNS != 0 || s.Calibration != spanring.CalibrationNone || s.DurationUncertaintyNS > 200 {
			t.Errorf("%v corrected by %d, %v, uncertainty %d", s.Kind, s.CorrectionNS, s.Calibration, s.DurationUncertaintyNS)
		}
	}
	if len(spans) != 2 {
		t.Errorf("%d spans", len(spans))
	}
}

func TestRefusedValues(t *testing.T) {
	nan := float32(0)
	nan /= nan
	for _, tc := range []struct {
		name string
		edit func(*cudaevents.Times)
		want spanring.Reason
	}{
		{"as read", func(*cudaevents.Times) {}, spanring.FailNone},
		{"end before start", func(t *cudaevents.Times) { t.DurationMS = -0.5 }, spanring.FailEndBeforeStart},
		{"a tick before", func(t *cudaevents.Times) { t.DurationMS = -0.000032 }, spanring.FailEndBeforeStart},
		{"zero", func(t *cudaevents.Times) { t.DurationMS = 0 }, spanring.FailZero},
		{"under half a nanosecond", func(t *cudaevents.Times) { t.DurationMS = 1e-7 }, spanring.FailZero},
		{"NaN", func(t *cudaevents.Times) { t.DurationMS = nan }, spanring.FailNotFinite},
		{"infinite", func(t *cudaevents.Times) { t.DurationMS = 1 / nan32(0) }, spanring.FailNotFinite},
		{"minus infinite", func(t *cudaevents.Times) { t.DurationMS = -1 / nan32(0) }, spanring.FailNotFinite},
		{"longer than could be", func(t *cudaevents.Times) { t.DurationMS += 20 }, spanring.FailTooLong},
		{"years", func(t *cudaevents.Times) { t.DurationMS = 1e12 }, spanring.FailTooLong},
		{"begins before its enqueue", func(t *cudaevents.Times) { t.SinceAnchorMS -= 2; t.DurationMS += 2 }, spanring.FailMisplaced},
		{"ends after it was seen", func(t *cudaevents.Times) { t.SinceAnchorMS += 12 }, spanring.FailMisplaced},
		{"ends before its end was enqueued", func(t *cudaevents.Times) { t.DurationMS = 0.001 }, spanring.FailMisplaced},
		{"nowhere", func(t *cudaevents.Times) { t.SinceAnchorMS = nan }, spanring.FailNone}, // its own bounds place it
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newRig(t, scripted.Options{DriftPPM: 10}, cudaevents.Options{Pairs: 4})
			s := g.d.NewStream()
			g.span(s)
			g.settle()
			g.d.Advance(50 * ms)
			h := g.begin(s, g.lane(1))
			g.d.Work(s, ms)
			g.d.Advance(900_000)
			g.end(h)
			g.d.Finish()
			g.d.Advance(10 * ms)
			g.d.OnElapsed(func(_ cudaevents.Pair, t *cudaevents.Times) cudaevents.Result {
				tc.edit(t)
				return cudaevents.Success
			})
			at := g.d.Now()
			g.r.Harvest()
			if tc.want == spanring.FailNone {
				g.balance(2, 2, 0, 0)
				spans, _, _ := g.log()
				s := spans[len(spans)-1]
				if start := at - 11*ms - 1280; abs64(s.StartMonoNS-start) > int64(s.PlaceUncertaintyNS)+100 {
					t.Errorf("%d ns off, uncertainty %d", s.StartMonoNS-start, s.PlaceUncertaintyNS)
				}
				return
			}
			g.balance(2, 1, 1, 0)
			g.wantReasons(map[spanring.Reason]int{tc.want: 1})
			// The refused span left the clock and its slot as they were.
			g.d.OnElapsed(nil)
			g.d.Advance(300 * ms)
			g.span(s)
			g.settle()
			g.balance(3, 2, 1, 0)
			if n := g.busy(); n != 0 {
				t.Errorf("%d slots busy", n)
			}
			if c := g.r.Clock(); c.Resets != 0 || c.UncertaintyNS > 5000 {
				t.Errorf("after a refused value: %+v", c)
			}
		})
	}
}

// The shortest there is, is a span.
func TestOneTickIsASpan(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 4})
	s := g.d.NewStream()
	h := g.begin(s, g.lane(1))
	g.end(h)
	g.d.Finish()
	g.d.OnElapsed(func(_ cudaevents.Pair, t *cudaevents.Times) cudaevents.Result {
		t.DurationMS = 0.000032
		return cudaevents.Success
	})
	g.r.Harvest()
	spans, _, _ := g.log()
	if len(spans) != 1 || spans[0].RawNS != 32 {
		t.Errorf("spans %+v", spans)
	}
}

// nan32 hides a constant from the compiler.
func nan32(v float32) float32 { return v }

func TestSwitch(t *testing.T) {
	g := newRig(t, scripted.Options{CallNS: 10}, cudaevents.Options{Pairs: 8})
	s := g.d.NewStream()
	g.span(s)
	g.settle()
	records := g.d.MethodCalls()[scripted.Record]
	h := g.begin(s, g.lane(2))
	g.d.Work(s, ms)
	for range 3 {
		var o cudaevents.Outcome
		if h, o = g.r.Switch(h, g.lane(2)); o != cudaevents.BeginOK {
			t.Fatal(o)
		}
		g.d.Work(s, 2*ms)
	}
	g.end(h)
	if got := g.d.MethodCalls()[scripted.Record] - records; got != 5 {
		t.Errorf("%d records for four lanes in a row, want 5", got)
	}
	g.settle()
	spans, _, _ := g.log()
	spans = spans[1:]
	if len(spans) != 4 {
		t.Fatalf("%d spans", len(spans))
	}
	for i, sp := range spans {
		if sp.SharedStart != (i > 0) {
			t.Errorf("span %d: shared start %v", i, sp.SharedStart)
		}
		if i > 0 {
			if gap := sp.StartMonoNS - spans[i-1].EndMonoNS(); abs64(gap) > 200 {
				t.Errorf("span %d starts %d ns after its neighbour's end", i, gap)
			}
		}
	}
	g.balance(5, 5, 0, 0)
	if n := g.busy(); n != 0 {
		t.Errorf("%d slots busy", n)
	}
}

// A slot whose end event is somebody's start stays taken until that one is done.
func TestSharedEventsFreeSlotsInOrder(t *testing.T) {
	state := func(g *rig) (states []spanring.SlotState) {
		b, err := g.rd.Busy()
		if err != nil {
			g.t.Fatal(err)
		}
		for _, e := range b {
			states = append(states, e.State)
		}
		return states
	}
	type chain struct {
		g          *rig
		s          cudaevents.Stream
		first, mid cudaevents.Handle
	}
	for _, tc := range []struct {
		name   string
		finish func(*chain)
		landed uint64
		failed map[spanring.Reason]int
	}{
		{"landed", func(c *chain) { c.g.end(c.mid) }, 2, map[spanring.Reason]int{}},
		{"end refused", func(c *chain) { c.g.d.Fail(scripted.Record, 1, 1); c.g.r.End(c.mid) }, 1, map[spanring.Reason]int{spanring.FailRecord: 1}},
		{"ended in a capture", func(c *chain) {
			c.g.d.BeginCapture(c.s, scripted.ThreadLocal)
			c.g.r.End(c.mid)
			if err := c.g.d.EndCapture(c.s); err != nil {
				c.g.t.Error(err)
			}
		}, 1, map[spanring.Reason]int{spanring.FailCapture: 1}},
		{"abandoned", func(c *chain) {
			c.g.stepEnded[1] = c.g.d.Now()
			c.g.d.Advance(30e9)
			c.g.r.Harvest()
			c.g.d.Advance(30e9)
		}, 1, map[spanring.Reason]int{spanring.FailAbandoned: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 8})
			c := &chain{g: g, s: g.d.NewStream()}
			c.first = g.begin(c.s, g.lane(1))
			g.d.Work(c.s, ms)
			var o cudaevents.Outcome
			if c.mid, o = g.r.Switch(c.first, g.lane(1)); o != cudaevents.BeginOK {
				t.Fatal(o)
			}
			g.settle()
			if d := cmp.Diff([]spanring.SlotState{spanring.SlotDrain, spanring.SlotOpen}, state(g)); d != "" {
				t.Errorf("slots of a landed lane and its successor (-want +got):\n%s", d)
			}
			g.balance(2, 1, 0, 0)
			tc.finish(c)
			g.settle()
			if n := g.busy(); n != 0 {
				t.Errorf("slots in states %v at the end", state(g))
			}
			g.wantReasons(tc.failed)
			if got := g.w.Counter(spanring.CtrLanded); got != tc.landed {
				t.Errorf("%d landed", got)
			}
		})
	}
}

func TestSwitchThatCannot(t *testing.T) {
	for _, tc := range []struct {
		name    string
		do      func(*rig, cudaevents.Stream, cudaevents.Handle) // before the switch
		undo    func(*rig, cudaevents.Stream)
		outcome cudaevents.Outcome
		begun   uint64
		landed  uint64
		dropped uint64
		failed  map[spanring.Reason]int
	}{
		{"stale", func(g *rig, s cudaevents.Stream, h cudaevents.Handle) { g.end(h) }, nil,
			cudaevents.BeginOK, 2, 1, 0, map[spanring.Reason]int{}},
		{"capturing", func(g *rig, s cudaevents.Stream, h cudaevents.Handle) { g.d.BeginCapture(s, scripted.Global) },
			func(g *rig, s cudaevents.Stream) { _ = g.d.EndCapture(s) },
			cudaevents.BeginCapturing, 1, 0, 0, map[spanring.Reason]int{spanring.FailCapture: 1}},
		{"record refused", func(g *rig, s cudaevents.Stream, h cudaevents.Handle) { g.d.Fail(scripted.Record, 1, 5) }, nil,
			cudaevents.BeginFailed, 2, 0, 0, map[spanring.Reason]int{spanring.FailRecord: 2}},
		{"full", func(g *rig, s cudaevents.Stream, h cudaevents.Handle) {
			other := g.d.NewStream()
			for range 3 {
				g.begin(other, g.lane(1))
			}
		}, nil, cudaevents.BeginFull, 5, 1, 1, map[spanring.Reason]int{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 4})
			s := g.d.NewStream()
			h := g.begin(s, g.lane(1))
			tc.do(g, s, h)
			next, o := g.r.Switch(h, g.lane(1))
			if o != tc.outcome || (next != cudaevents.Handle{}) != (o == cudaevents.BeginOK) {
				t.Errorf("switch: %v, %v", next, o)
			}
			if tc.undo != nil {
				tc.undo(g, s)
			}
			g.settle()
			var failed uint64
			for _, n := range tc.failed {
				failed += uint64(n)
			}
			g.balance(tc.begun, tc.landed, failed, tc.dropped)
			g.wantReasons(tc.failed)
		})
	}
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 4})
	// A stale handle whose stream was destroyed says nothing about the stream that
	// has its handle now, known or not.
	s := g.d.NewStream()
	stale := g.begin(s, g.lane(1))
	g.end(stale)
	g.settle()
	g.r.StreamDestroyed(s)
	g.d.DropStream(s)
	for range 2 {
		if h, o := g.r.Switch(stale, g.lane(1)); o != cudaevents.BeginOff || h != (cudaevents.Handle{}) {
			t.Errorf("switch on a destroyed stream: %v, %v", h, o)
		}
		if g.d.NewStream() == s {
			g.span(s)
			g.settle()
		}
	}
	g.balance(2, 2, 0, 0)

	g = newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 4})
	if h, o := g.r.Switch(cudaevents.Handle{}, g.lane(1)); o != cudaevents.BeginOff || h != (cudaevents.Handle{}) {
		t.Errorf("switch of the zero handle: %v, %v", h, o)
	}
	g.balance(0, 0, 0, 0)
}

// A destroyed stream's handle names another stream: spans go by identity.
func TestStreamHandleReuse(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 16})
	s := g.d.NewStream()
	g.d.Work(s, 50*ms)
	g.span(s) // in flight when its stream goes
	open := g.begin(s, g.lane(1))
	g.r.StreamDestroyed(s)
	g.d.DropStream(s)
	again := g.d.NewStream()
	if again != s {
		t.Fatalf("the driver gave %#x, not %#x again", again, s)
	}
	g.span(again)
	records := g.d.MethodCalls()[scripted.Record]
	if !g.r.End(open) {
		t.Error("the open span of a destroyed stream is no stale one")
	}
	if got := g.d.MethodCalls()[scripted.Record]; got != records {
		t.Error("an end was recorded on a stream that is not its own")
	}
	g.settle()
	spans, failed, _ := g.log()
	if len(spans) != 2 || len(failed) != 1 || failed[0].Reason != spanring.FailRecord {
		t.Fatalf("%d spans, failed %+v", len(spans), failed)
	}
	if spans[0].Stream == spans[1].Stream {
		t.Errorf("both on stream %d", spans[0].Stream)
	}
	if n := g.d.MethodCalls()[scripted.StreamID]; n != 2 {
		t.Errorf("%d identities asked, want one for each stream", n)
	}
	g.balance(3, 2, 1, 0)
}

// Streams that come and go leave nothing behind.
func TestStreamsComeAndGo(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 16, Abandon: time.Second})
	for range 500 {
		s := g.d.NewStream()
		g.span(s)
		g.r.StreamDestroyed(s)
		g.d.DropStream(s)
		g.settle()
		g.d.Advance(20 * ms)
	}
	g.balance(500, 500, 0, 0)
	if n := cudaevents.Streams(g.r); n > 20 {
		t.Errorf("%d streams known after 500 came and went", n)
	}
}

// A stream that is forgotten while an end on it is inside the driver loses nothing.
func TestStreamForgottenUnderAnEnd(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 4, Abandon: time.Second})
	s := g.d.NewStream()
	h := g.begin(s, g.lane(1))
	inside, leave := make(chan struct{}), make(chan struct{})
	g.d.OnCall(func(m scripted.Method) {
		if m == scripted.Record {
			close(inside)
			<-leave
		}
	})
	done := make(chan bool)
	go func() { done <- g.r.End(h) }()
	<-inside
	g.d.OnCall(nil)
	g.r.StreamDestroyed(s) // and destroyed when the end has returned
	for range 4 {
		g.d.Advance(1e9)
		g.r.Harvest()
	}
	if n := cudaevents.Streams(g.r); n != 0 {
		t.Errorf("%d streams known, want none", n)
	}
	close(leave)
	if !<-done {
		t.Error("the end was stale")
	}
	g.settle()
	g.balance(1, 1, 0, 0)
}

// Generations skip 0, which no handle has.
func TestGenerationsWrap(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 1})
	cudaevents.SetGeneration(g.r, 0, 1<<32-2)
	s := g.d.NewStream()
	for _, want := range []uint32{1<<32 - 1, 1, 2} {
		h := g.begin(s, g.lane(1))
		if got := cudaevents.Generation(h); got != want {
			t.Errorf("generation %d, want %d", got, want)
		}
		g.end(h)
		g.settle()
	}
	g.balance(3, 3, 0, 0)
}

// Stream numbers come round after 65,535 streams, skipping those in use.
func TestStreamNumbersComeRound(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 16})
	first := g.d.NewStream()
	g.span(first) // number 1
	cudaevents.SetStreamNumber(g.r, 1<<16-2)
	for range 3 {
		g.span(g.d.NewStream())
	}
	g.span(first)
	g.settle()
	spans, _, _ := g.log()
	got := map[uint16]int{}
	for _, s := range spans {
		got[s.Stream]++
	}
	if d := cmp.Diff(map[uint16]int{1: 2, 65535: 1, 2: 1, 3: 1}, got); d != "" {
		t.Errorf("spans by stream (-want +got):\n%s", d)
	}
}

// Two handles of one stream are one stream.
func TestStreamAliases(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 16})
	s := g.d.NewStream()
	alias := g.d.Alias(s)
	g.span(s)
	g.span(alias)
	g.settle()
	spans, _, _ := g.log()
	if len(spans) != 2 || spans[0].Stream != spans[1].Stream {
		t.Errorf("spans %+v", spans)
	}
}

// A stream whose identity cannot be had is known by its handle.
func TestStreamWithoutIdentity(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 16})
	g.d.FailAll(scripted.StreamID, 3)
	a, b := g.d.NewStream(), g.d.NewStream()
	for range 2 {
		g.span(a)
		g.span(b)
	}
	g.settle()
	spans, _, _ := g.log()
	seen := map[uint16]int{}
	for _, s := range spans {
		seen[s.Stream]++
	}
	if d := cmp.Diff(map[uint16]int{1: 2, 2: 2}, seen); d != "" {
		t.Errorf("spans by stream (-want +got):\n%s", d)
	}
}

// Steps may overlap: step 2's spans begin while step 1's are in flight.
func TestOverlappingSteps(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 64})
	s := g.d.NewStream()
	for step := uint64(1); step <= 5; step++ {
		h := g.begin(s, g.lane(step))
		g.d.Work(s, 10*ms)
		g.end(h)
		g.stepEnded[step] = g.d.Now() // on the host, before the GPU has begun it
		g.d.Advance(ms)
	}
	g.settle()
	g.balance(5, 5, 0, 0)
	spans, _, _ := g.log()
	for i, s := range spans {
		if s.Step != uint64(i+1) || i > 1 && s.LeadNS < 8*ms*int64(i) {
			t.Errorf("span %d: step %d, lead %d ns", i, s.Step, s.LeadNS)
		}
	}
}

// Nothing is called before the pool is wanted.
func TestNoPoolNoCall(t *testing.T) {
	d := scripted.New(scripted.Options{})
	w, err := spanring.NewHeap(spanring.Options{Geometry: spanring.Geometry{LogEntries: 64, Slots: 8, Allocs: 1, NameBytes: 4096}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := cudaevents.New(d, w, cudaevents.Options{Now: d.Now})
	if err != nil {
		t.Fatal(err)
	}
	m := &cudaevents.Meta{Kind: spanring.KindLane, Step: 1, Ordinal: 1}
	if h, o := r.Begin(0, m); o != cudaevents.BeginOff || h != (cudaevents.Handle{}) {
		t.Errorf("begin: %v, %v", h, o)
	}
	if _, o := r.Reserve(0, m); o != cudaevents.BeginOff {
		t.Errorf("reserve: %v", o)
	}
	r.StreamDestroyed(0)
	if h := r.Harvest(); h != (cudaevents.HarvestStats{}) {
		t.Errorf("harvest: %+v", h)
	}
	if err := r.Drain(context.Background()); err != nil {
		t.Error(err)
	}
	if err := r.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if n := d.Calls(); n != 0 || len(d.MethodCalls()) != 0 {
		t.Errorf("%d driver calls: %v", n, d.MethodCalls())
	}
	if c := w.Counters(); c != (spanring.Counters{}) {
		t.Errorf("counters %v", c)
	}
}
