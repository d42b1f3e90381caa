package cudaevents_test

import (
	"flag"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
	"github.com/lanetrace/lanetrace/spanring"
)

func TestMain(m *testing.M) {
	// Long runs of operations, unless the command line says otherwise.
	if err := flag.Set("rapid.steps", "150"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// tb is what a rig needs of a test, or of a rapid one.
type tb interface {
	Helper()
	Cleanup(func())
	Error(...any)
	Errorf(string, ...any)
	Fatal(...any)
	Fatalf(string, ...any)
}

// rig is a recorder over a scripted driver and a heap ring with its reader.
type rig struct {
	t  tb
	d  *scripted.Driver
	w  *spanring.Writer
	rd *spanring.Reader
	r  *cudaevents.Recorder
	o  cudaevents.Options

	stepEnded map[uint64]int64
	ordinal   uint32
	long      int64 // what the next kernels take more
}

// newRig makes a rig whose pool exists.
func newRig(t tb, so scripted.Options, o cudaevents.Options) *rig {
	t.Helper()
	g := &rig{t: t, d: scripted.New(so), stepEnded: map[uint64]int64{}}
	w, err := spanring.NewHeap(spanring.Options{Geometry: spanring.Geometry{LogEntries: 1 << 13, Slots: o.Pairs, Allocs: 1, NameBytes: 4096}})
	if err != nil {
		t.Fatal(err)
	}
	rd, err := spanring.NewHeapReader(w, spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	g.w, g.rd = w, rd
	if o.StepEnded == nil {
		o.StepEnded = func(step uint64) (int64, bool) { ns, ok := g.stepEnded[step]; return ns, ok }
	}
	o.Now = g.d.Now
	g.o = o
	if g.r, err = cudaevents.New(g.d, w, o); err != nil {
		t.Fatal(err)
	}
	if err := g.r.EnsurePool(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if v := g.d.Violations(); len(v) > 0 {
			t.Errorf("the recorder did what must never be done: %q", v)
		}
	})
	return g
}

// lane is the next lane of a step.
func (g *rig) lane(step uint64) *cudaevents.Meta {
	g.ordinal++
	return &cudaevents.Meta{Kind: spanring.KindLane, Lane: 1, Step: step, Name: 5, Ordinal: g.ordinal}
}

func (g *rig) kernel(step uint64) *cudaevents.Meta {
	g.ordinal++
	return &cudaevents.Meta{Kind: spanring.KindKernel, Armed: true, Lane: 1, Step: step, Name: 6, Ordinal: g.ordinal, Parent: 0}
}

func (g *rig) begin(s cudaevents.Stream, m *cudaevents.Meta) cudaevents.Handle {
	g.t.Helper()
	h, o := g.r.Begin(s, m)
	if o != cudaevents.BeginOK {
		g.t.Fatalf("begin: outcome %d", o)
	}
	return h
}

func (g *rig) end(h cudaevents.Handle) {
	g.t.Helper()
	if !g.r.End(h) {
		g.t.Fatal("end: the handle was stale")
	}
}

// log reads what was written since the last call, by kind.
func (g *rig) log() (spans []spanring.Span, failed []spanring.SpanFailed, anchors []spanring.Anchor) {
	g.t.Helper()
	buf := make([]spanring.Entry, 256)
	for {
		n, err := g.rd.Poll(buf, 0)
		if err != nil {
			g.t.Fatal(err)
		}
		if n == 0 {
			return spans, failed, anchors
		}
		for i := range buf[:n] {
			w := &buf[i].Words
			switch {
			case w.Kind().IsSpan():
				s, err := w.Span()
				if err != nil {
					g.t.Fatal(err)
				}
				spans = append(spans, s)
			case w.Kind() == spanring.KindSpanFailed:
				f, err := w.SpanFailed()
				if err != nil {
					g.t.Fatal(err)
				}
				failed = append(failed, f)
			case w.Kind() == spanring.KindAnchor:
				a, err := w.Anchor()
				if err != nil {
					g.t.Fatal(err)
				}
				anchors = append(anchors, a)
			default:
				g.t.Fatalf("entry of kind %v", w.Kind())
			}
		}
	}
}

// balance checks the producer's account and what is visible of it.
func (g *rig) balance(begun, landed, failed, dropped uint64) {
	g.t.Helper()
	c := g.w.Counters()
	got := [...]uint64{c[spanring.CtrBegun], c[spanring.CtrLanded], c.Failed(), c[spanring.CtrDropped]}
	if want := [...]uint64{begun, landed, failed, dropped}; got != want {
		g.t.Errorf("begun, landed, failed, dropped are %v, want %v", got, want)
	}
	if got := c.InFlight(); got != int64(g.r.InFlight()) {
		g.t.Errorf("%d in flight by the counters, %d by the recorder", got, g.r.InFlight())
	}
	if got := g.w.Counter(spanring.CtrDriverCalls); got != uint64(g.d.Calls()) {
		g.t.Errorf("%d driver calls counted, %d made", got, g.d.Calls())
	}
}

func (g *rig) busy() int {
	g.t.Helper()
	b, err := g.rd.Busy()
	if err != nil {
		g.t.Fatal(err)
	}
	return len(b)
}

func TestCompletedPairLandsOnceAndPendingWaits(t *testing.T) {
	g := newRig(t, scripted.Options{DriftPPM: 10}, cudaevents.Options{Pairs: 8})
	s := g.d.NewStream()
	g.d.Work(s, int64(50*time.Microsecond)) // keeps the stream busy
	enqueue := g.d.Now()
	h := g.begin(s, g.lane(1))
	g.d.Work(s, int64(time.Millisecond))
	g.end(h)
	if got := g.r.Harvest(); got.Landed != 0 || got.InFlight != 1 {
		t.Fatalf("harvest of a pending pair: %+v", got)
	}
	if n := g.busy(); n != 1 {
		t.Errorf("%d slots busy while one span is in flight", n)
	}
	g.d.Finish()
	if got := g.r.Harvest(); got.Landed != 1 || got.InFlight != 0 {
		t.Fatalf("harvest of a complete pair: %+v", got)
	}
	if got := g.r.Harvest(); got.Landed != 0 || got.Calls != 0 {
		t.Errorf("third harvest: %+v, want nothing landed and no call", got)
	}
	spans, failed, _ := g.log()
	if len(spans) != 1 || len(failed) != 0 {
		t.Fatalf("%d spans, %d failed in the log", len(spans), len(failed))
	}
	sp := spans[0]
	trueStart := enqueue + 2500 + 50_000 + 1280
	if off := sp.StartMonoNS - trueStart; abs64(off) > int64(sp.PlaceUncertaintyNS) || sp.PlaceUncertaintyNS > 5000 {
		t.Errorf("start is %d ns off, uncertainty %d ns", off, sp.PlaceUncertaintyNS)
	}
	if d := int64(sp.RawNS) - 1_001_290; abs64(d) > 100 {
		t.Errorf("raw %d ns for 1 ms at 10 ppm", sp.RawNS)
	}
	if got, want := sp.EnqueueMonoNS(), enqueue; got != want {
		t.Errorf("enqueued at %d, want %d", got, want)
	}
	sp.StartMonoNS, sp.RawNS, sp.LeadNS, sp.PlaceUncertaintyNS, sp.DurationUncertaintyNS = 0, 0, 0, 0, 0
	want := spanring.Span{Kind: spanring.KindLane, Lane: 1, Step: 1, Name: 5, Ordinal: 1, Stream: 1}
	if d := cmp.Diff(want, sp); d != "" {
		t.Errorf("span (-want +got):\n%s", d)
	}
	g.balance(1, 1, 0, 0)
	if n := g.busy(); n != 0 {
		t.Errorf("%d slots busy when nothing is in flight", n)
	}
}

// watcher compares where spans are placed with where they were.
type watcher struct {
	g      *rig
	pairs  []cudaevents.Pair
	worst  int64
	worstU uint64
	spans  int
	excess int64 // how much more than the uncertainty is forgiven
}

func (g *rig) watch() *watcher {
	w := &watcher{g: g}
	g.d.OnElapsed(func(p cudaevents.Pair, _ *cudaevents.Times) cudaevents.Result {
		w.pairs = append(w.pairs, p)
		return cudaevents.Success
	})
	return w
}

// busy runs n lanes of 3 ms on s, one every 5 ms, and harvests after each.
func (w *watcher) busy(s cudaevents.Stream, n int) {
	w.g.t.Helper()
	for range n {
		h := w.g.begin(s, w.g.lane(1))
		w.g.d.Work(s, 3*ms)
		w.g.end(h)
		w.g.d.Advance(5 * ms)
		w.harvest()
	}
}

// harvest harvests and checks what landed, before its events are recorded again.
func (w *watcher) harvest() []spanring.Span {
	w.g.t.Helper()
	w.pairs = w.pairs[:0]
	w.g.r.Harvest()
	spans, failed, _ := w.g.log()
	if len(failed) > 0 || len(spans) != len(w.pairs) {
		w.g.t.Fatalf("%d spans landed of %d read; failed: %+v", len(spans), len(w.pairs), failed)
	}
	for i, s := range spans {
		start, ok := w.g.d.HostOf(w.pairs[i].Start)
		if !ok {
			w.g.t.Fatal("a landed span's start is not complete")
		}
		off := s.StartMonoNS - start
		if abs64(off) > int64(s.PlaceUncertaintyNS)+w.excess {
			w.g.t.Fatalf("span %d is %d ns off, uncertainty %d", s.Ordinal, off, s.PlaceUncertaintyNS)
		}
		w.worst, w.worstU = max(w.worst, abs64(off)), max(w.worstU, s.PlaceUncertaintyNS)
	}
	w.spans += len(spans)
	return spans
}

func abs64(v int64) int64 { return max(v, -v) }
