package cudaevents_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
	"github.com/lanetrace/lanetrace/spanring"
)

func TestNothingOpensOnACapturingStream(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 4})
	s := g.d.NewStream()
	g.d.BeginCapture(s, scripted.ThreadLocal)
	if h, o := g.r.Begin(s, g.lane(1)); o != cudaevents.BeginCapturing || h != (cudaevents.Handle{}) {
		t.Errorf("begin: %v, %v", h, o)
	}
	l, o := g.r.Reserve(s, g.kernel(1))
	if o != cudaevents.BeginOK {
		t.Fatal(o)
	}
	if g.r.Launched(l, g.d.Launch(l.Pair, s, 1000)) {
		t.Error("a launch into a capture counts as timed")
	}
	if err := g.d.EndCapture(s); err != nil {
		t.Error(err)
	}
	if n := g.busy(); n != 0 {
		t.Errorf("%d slots busy", n)
	}
	if n := g.w.Counter(spanring.CtrCapturing); n != 2 {
		t.Errorf("%d counted as capturing, want 2", n)
	}
	g.balance(0, 0, 0, 0)
	g.span(s) // its identity is asked now
	g.settle()
	g.balance(1, 1, 0, 0)
}

func TestEndInACapture(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 4})
	s := g.d.NewStream()
	g.d.Work(s, ms)
	h := g.begin(s, g.lane(1))
	g.d.BeginCapture(s, scripted.Global)
	records := g.d.Queued(s)
	if !g.r.End(h) {
		t.Error("the end was stale")
	}
	if got := g.d.Queued(s); got != records {
		t.Error("something was recorded into the capture")
	}
	g.balance(1, 0, 1, 0)
	if n := g.busy(); n != 1 {
		t.Errorf("%d slots busy while the start is pending", n)
	}
	if err := g.d.EndCapture(s); err != nil {
		t.Error(err)
	}
	g.wantReasons(map[spanring.Reason]int{spanring.FailCapture: 1})
	g.settle()
	if n := g.busy(); n != 0 {
		t.Errorf("%d slots busy", n)
	}
}

// While another thread's GLOBAL capture is active everything goes on: spans on
// other streams, streams never seen before, positions, abandoning, closing. The
// capture is none the worse for it.
func TestAnothersCaptureSurvives(t *testing.T) {
	for _, known := range []bool{true, false} {
		name := map[bool]string{true: "known", false: "foreign"}[known]
		t.Run(name, func(t *testing.T) {
			g := newRig(t, scripted.Options{DriftPPM: 10}, cudaevents.Options{Pairs: 2048, Abandon: time.Second})
			c, s := g.d.NewStream(), g.d.NewStream()
			if known {
				g.d.BeginCapture(c, scripted.Global)
			} else {
				g.d.BeginForeignCapture(c, scripted.Global)
			}
			w := g.watch()
			g.begin(s, g.lane(9))
			g.stepEnded[9] = g.d.Now() // abandoned on the way
			for i := range 600 {
				if i%100 == 0 {
					s = g.d.NewStream()
				}
				h := g.begin(s, g.lane(1))
				g.d.Work(s, 2*ms)
				h, o := g.r.Switch(h, g.lane(1))
				if o != cudaevents.BeginOK {
					t.Fatal(o)
				}
				g.d.Work(s, 2*ms)
				g.end(h)
				l, _ := g.r.Reserve(s, g.kernel(1))
				g.r.Launched(l, g.d.Launch(l.Pair, s, 5000))
				g.d.Advance(5 * ms)
				w.pairs = w.pairs[:0]
				g.r.Harvest()
			}
			spans, failed, anchors := g.log()
			if len(spans) < 1750 || len(failed) != 1 || failed[0].Reason != spanring.FailAbandoned {
				t.Errorf("%d spans landed, failed %+v", len(spans), failed)
			}
			if len(anchors) < 5 {
				t.Errorf("%d anchors in 3 s", len(anchors))
			}
			if u := spans[len(spans)-1].PlaceUncertaintyNS; u > 600_000 {
				t.Errorf("uncertainty %d ns during a capture", u)
			}
			if err := g.r.Drain(deadline(t, g)); err != nil {
				t.Error(err)
			}
			if err := g.r.Close(context.Background()); err != nil {
				t.Error(err)
			}
			if err := g.d.EndCapture(c); err != nil {
				t.Errorf("the capture was spoilt: %v", err)
			}
		})
	}
}

// deadline is a context for draining in virtual time: all work has ended.
func deadline(t *testing.T, g *rig) context.Context {
	g.d.Finish()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestPoolWaitsForCaptures(t *testing.T) {
	d := scripted.New(scripted.Options{})
	w, err := spanring.NewHeap(spanring.Options{Geometry: spanring.Geometry{LogEntries: 64, Slots: 8, Allocs: 1, NameBytes: 4096}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := cudaevents.New(d, w, cudaevents.Options{Now: d.Now, Calibrate: true})
	if err != nil {
		t.Fatal(err)
	}
	s := d.NewStream()
	d.BeginCapture(s, scripted.Global)
	if err := r.EnsurePool(); !errors.Is(err, cudaevents.ErrCapturing) {
		t.Errorf("ensure a pool during a capture: %v", err)
	}
	r.Harvest()
	if d.Calls() != 0 || w.Counter(spanring.CtrPoolsFailed) != 0 {
		t.Errorf("%d driver calls, %d pools failed during a capture", d.Calls(), w.Counter(spanring.CtrPoolsFailed))
	}
	if err := d.EndCapture(s); err != nil {
		t.Error(err)
	}
	r.Harvest() // makes it up
	if h, o := r.Begin(s, &cudaevents.Meta{Kind: spanring.KindLane, Step: 1, Ordinal: 1}); o != cudaevents.BeginOK || !r.End(h) {
		t.Errorf("begin after the capture: %v", o)
	}
	if v := d.Violations(); len(v) > 0 {
		t.Errorf("%q", v)
	}
}

func TestPoolThatCannotBeMade(t *testing.T) {
	for _, m := range []scripted.Method{scripted.CreateStream, scripted.CreateEvents} {
		t.Run(string(m), func(t *testing.T) {
			d := scripted.New(scripted.Options{})
			w, err := spanring.NewHeap(spanring.Options{Geometry: spanring.Geometry{LogEntries: 64, Slots: 8, Allocs: 1, NameBytes: 4096}})
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			r, err := cudaevents.New(d, w, cudaevents.Options{Now: d.Now, Logger: slog.New(slog.NewTextHandler(&out, nil))})
			if err != nil {
				t.Fatal(err)
			}
			const outOfMemory = 2
			d.Fail(m, 1, outOfMemory)
			first := r.EnsurePool()
			if !errors.Is(first, cudaevents.Result(outOfMemory)) {
				t.Errorf("error %v", first)
			}
			calls := d.Calls()
			if again := r.EnsurePool(); again == nil || again.Error() != first.Error() {
				t.Errorf("second error %v, first %v", again, first)
			}
			r.Harvest()
			if d.Calls() != calls {
				t.Error("it was tried again")
			}
			if n := w.Counter(spanring.CtrPoolsFailed); n != 1 {
				t.Errorf("%d pools failed, want 1", n)
			}
			if n := strings.Count(out.String(), "\n"); n != 1 || !strings.Contains(out.String(), "GPU spans are off") {
				t.Errorf("log:\n%s", &out)
			}
			if _, o := r.Begin(0, &cudaevents.Meta{Kind: spanring.KindLane}); o != cudaevents.BeginOff {
				t.Errorf("begin: %v", o)
			}
			if n := d.LiveEvents(); n != 0 {
				t.Errorf("%d events left behind", n)
			}
			if n := w.Counter(spanring.CtrDriverCalls); n != uint64(calls) {
				t.Errorf("%d driver calls counted, %d made", n, calls)
			}
			if err := r.Close(context.Background()); err != nil {
				t.Error(err)
			}
			if err := r.EnsurePool(); !errors.Is(err, cudaevents.ErrClosed) {
				t.Errorf("ensure a pool on a closed recorder: %v", err)
			}
		})
	}
}

func TestRingWithoutRoom(t *testing.T) {
	d := scripted.New(scripted.Options{})
	w, err := spanring.NewHeap(spanring.Options{Geometry: spanring.Geometry{LogEntries: 64, Slots: 8, Allocs: 1, NameBytes: 4096}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cudaevents.New(d, w, cudaevents.Options{}); err != nil { // as many pairs as the ring has slots
		t.Error(err)
	}
	if _, err := cudaevents.New(d, w, cudaevents.Options{Pairs: 1}); !errors.Is(err, spanring.ErrFull) {
		t.Errorf("a second context without slots: %v", err)
	}
}
