package cudaevents_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
	"github.com/lanetrace/lanetrace/spanring"
)

func TestCloseDrainsAndFrees(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 16})
	s := g.d.NewStream()
	for range 10 {
		g.span(s)
	}
	g.d.Finish()
	if err := g.r.Close(context.Background()); err != nil {
		t.Error(err)
	}
	g.balance(10, 10, 0, 0)
	if n := g.d.LiveEvents(); n != 0 {
		t.Errorf("%d events left", n)
	}
	if m := g.d.MethodCalls(); m[scripted.DestroyStream] != 1 {
		t.Error("the recorder's stream was not destroyed")
	}
	if n := g.busy(); n != 0 {
		t.Errorf("%d slots busy", n)
	}
	calls := g.d.Calls()
	if err := g.r.Close(context.Background()); err != nil {
		t.Errorf("second close: %v", err)
	}
	if _, o := g.r.Begin(s, g.lane(1)); o != cudaevents.BeginOff {
		t.Errorf("begin after close: %v", o)
	}
	if _, o := g.r.Reserve(s, g.kernel(1)); o != cudaevents.BeginOff {
		t.Errorf("reserve after close: %v", o)
	}
	if h := g.r.Harvest(); h != (cudaevents.HarvestStats{}) {
		t.Errorf("harvest after close: %+v", h)
	}
	if g.d.Calls() != calls {
		t.Error("driver calls after close")
	}
}

func TestCloseFailsWhatIsInFlight(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 16})
	s := g.d.NewStream()
	g.span(s)
	g.settle()
	g.d.Stall(s)
	g.span(s)
	open := g.begin(s, g.lane(1))
	next, o := g.r.Switch(open, g.lane(1)) // open is closed and held, next is open
	if o != cudaevents.BeginOK {
		t.Fatal(o)
	}
	g.d.BeginCapture(s, scripted.Global)
	drained := g.r.End(next) // failed, and its slot drains
	if err := g.d.EndCapture(s); err != nil || !drained {
		t.Error(err)
	}
	last := g.begin(s, g.lane(1))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := g.r.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close: %v", err)
	}
	g.balance(5, 1, 4, 0)
	g.wantReasons(map[spanring.Reason]int{spanring.FailClosed: 3, spanring.FailCapture: 1})
	if n := g.busy(); n != 0 {
		t.Errorf("%d slots busy", n)
	}
	if n := g.d.LiveEvents(); n != 0 {
		t.Errorf("%d events left", n)
	}
	if g.r.End(last) || g.r.End(open) {
		t.Error("a span of a closed recorder was ended")
	}
	if h, o := g.r.Switch(last, g.lane(1)); o != cudaevents.BeginOff || h != (cudaevents.Handle{}) {
		t.Errorf("switch on a closed recorder: %v", o)
	}
	if n := g.w.Counter(spanring.CtrStaleEnds); n != 3 {
		t.Errorf("%d stale ends, want 3", n)
	}
	g.d.ReleaseAll()
	g.d.Finish() // nothing of ours is touched by what completes late
}

// A recorder that takes another's place has its slots and counters; handles of
// the old one are stale and never mistaken for the new one's.
func TestReplacing(t *testing.T) {
	g := newRig(t, scripted.Options{DriftPPM: 10}, cudaevents.Options{Pairs: 4})
	s := g.d.NewStream()
	old := g.r
	if _, err := cudaevents.NewReplacing(old, g.d, g.o); !errors.Is(err, cudaevents.ErrNotClosed) {
		t.Errorf("replace a recorder that runs: %v", err)
	}
	g.span(s)
	g.d.Finish()
	open := g.begin(s, g.lane(1))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if err := old.Close(ctx); !errors.Is(err, context.DeadlineExceeded) { // a lane is open
		t.Errorf("close: %v", err)
	}
	o := g.o
	o.Pairs = 100 // more than there are slots
	r, err := cudaevents.NewReplacing(old, g.d, o)
	if err != nil {
		t.Fatal(err)
	}
	if r.ContextIndex() != old.ContextIndex() {
		t.Errorf("context %d, was %d", r.ContextIndex(), old.ContextIndex())
	}
	if _, o := r.Begin(s, g.lane(2)); o != cudaevents.BeginOff {
		t.Errorf("begin before the pool: %v", o)
	}
	if err := r.EnsurePool(); err != nil {
		t.Fatal(err)
	}
	g.r = r
	var hs []cudaevents.Handle
	for range 4 { // every slot is taken again
		hs = append(hs, g.begin(s, g.lane(2)))
	}
	if _, o := r.Begin(s, g.lane(2)); o != cudaevents.BeginFull {
		t.Errorf("a fifth span in four slots: %v", o)
	}
	if r.End(open) || old.End(open) {
		t.Error("a handle of the old recorder's ended a span")
	}
	if n := g.w.Counter(spanring.CtrStaleEnds); n != 2 {
		t.Errorf("%d stale ends, want 2", n)
	}
	for _, h := range hs {
		g.end(h)
	}
	g.settle()
	g.balance(7, 5, 1, 1)
	cs, err := g.rd.Contexts()
	if err != nil || len(cs) != 1 {
		t.Errorf("contexts %+v, %v", cs, err)
	}
	spans, _, _ := g.log()
	if n := len(spans); n != 5 || spans[n-1].Stream == spans[0].Stream {
		t.Errorf("%d spans; streams %d and %d: a new recorder's streams have new numbers", n, spans[0].Stream, spans[n-1].Stream)
	}
	if err := r.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if n := g.d.LiveEvents(); n != 0 {
		t.Errorf("%d events left", n)
	}
}

// Closing never destroys an event that a caller is inside the driver with. The spans
// that the caller has in hand fail when it comes back, whether it ends them or not.
func TestCloseWhileACallerIsInTheDriver(t *testing.T) {
	for at, pairs := range map[string]int{"begin": 1, "switch": 2, "end": 1, "launch": 1} {
		t.Run(at, func(t *testing.T) {
			g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 4})
			s := g.d.NewStream()
			g.span(s)
			g.settle()
			var h cudaevents.Handle
			var l cudaevents.Launch
			switch at {
			case "end", "switch":
				h = g.begin(s, g.lane(1))
			case "launch":
				l, _ = g.r.Reserve(s, g.kernel(1))
			}
			inside, leave := make(chan struct{}), make(chan struct{})
			g.d.OnCall(func(m scripted.Method) {
				if m == scripted.Record {
					close(inside)
					<-leave
				}
			})
			var wg sync.WaitGroup
			if at != "launch" {
				wg.Go(func() {
					switch at {
					case "begin":
						h, _ = g.r.Begin(s, g.lane(1))
					case "switch":
						h, _ = g.r.Switch(h, g.lane(1))
					case "end":
						g.r.End(h)
					}
				})
				<-inside
				g.d.OnCall(nil)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
			defer cancel()
			err := g.r.Close(ctx)
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d pairs still in use", pairs)) {
				t.Errorf("close: %v", err)
			}
			if n := g.d.LiveEvents(); n != 2*pairs {
				t.Errorf("%d events alive, want those of the caller's %d pairs", n, pairs)
			}
			close(leave)
			wg.Wait()
			if at == "launch" {
				g.r.Launched(l, g.d.Launch(l.Pair, s, 1000))
			}
			g.balance(uint64(1+pairs), 1, uint64(pairs), 0)
			g.wantReasons(map[spanring.Reason]int{spanring.FailClosed: pairs})
			if n := g.busy(); n != 0 {
				t.Errorf("%d slots busy", n)
			}
			if n := g.r.InFlight(); n != 0 {
				t.Errorf("%d spans in flight", n)
			}
			if g.r.End(h) {
				t.Error("a span of a closed recorder was ended")
			}
		})
	}
}

// A caller that was overtaken by the closing between looking and taking gives the
// slot back; one that has taken it is waited for.
func TestTakingWhileClosing(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 1})
	if o := cudaevents.TakeLate(g.r); o != cudaevents.BeginOff {
		t.Errorf("taken too late: %v", o)
	}
	if n := g.busy(); n != 0 {
		t.Errorf("%d slots busy", n)
	}
	if cudaevents.ShutWhileTaken(g.r) {
		t.Error("closing took a slot from under its taker")
	}
	g.balance(0, 0, 0, 0)
}

func TestCloseReportsTheDriver(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 4})
	const gone = 709 // CUDA_ERROR_CONTEXT_IS_DESTROYED
	g.d.FailAll(scripted.DestroyEvents, gone)
	g.d.FailAll(scripted.DestroyStream, gone)
	err := g.r.Close(context.Background())
	if !errors.Is(err, cudaevents.Result(gone)) || strings.Count(err.Error(), "709") != 2 {
		t.Errorf("close: %v", err)
	}
}

// A device that answers nothing but failures is drained all the same.
func TestDrainOfADeadDevice(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 16})
	s := g.d.NewStream()
	for range 5 {
		g.span(s)
	}
	const dead = 700
	for _, m := range []scripted.Method{scripted.Record, scripted.Pending, scripted.Since, scripted.Anchor} {
		g.d.FailAll(m, dead)
	}
	g.d.FailPairs(dead)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := g.r.Drain(ctx); err != nil {
		t.Error(err)
	}
	g.balance(5, 0, 5, 0)
	g.wantReasons(map[spanring.Reason]int{spanring.FailUnreadable: 5})
	if err := g.r.Close(ctx); err != nil {
		t.Error(err)
	}
}

// Without any anchor a span lies where its own bounds leave it.
func TestNoAnchorAtAll(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 16})
	g.d.FailAll(scripted.Anchor, 1)
	w := g.watch()
	s := g.d.NewStream()
	for range 10 {
		g.span(s)
		g.d.Advance(5 * ms)
		w.harvest()
	}
	if n := g.d.MethodCalls()[scripted.Anchor]; n != 1 {
		t.Errorf("%d tries to anchor within 60 ms of the first refusal", n)
	}
	if w.spans != 10 || w.worstU < 1_000_000 || w.worstU > 3_000_000 {
		t.Errorf("%d spans, uncertainty up to %d ns, want some 2 ms", w.spans, w.worstU)
	}
}

// The very first anchor is waited for, but not for ever.
func TestFirstAnchorThatIsLate(t *testing.T) {
	g := newRig(t, scripted.Options{}, cudaevents.Options{Pairs: 16})
	g.d.StallAll()
	s := g.d.NewStream()
	g.span(s)
	g.d.Finish()
	if h := g.r.Harvest(); h.Landed != 0 {
		t.Errorf("landed without a clock: %+v", h)
	}
	g.d.Advance(500 * ms)
	if h := g.r.Harvest(); h.Landed != 0 {
		t.Errorf("landed without a clock after half a second: %+v", h)
	}
	g.d.Advance(600 * ms)
	if h := g.r.Harvest(); h.Landed != 1 {
		t.Errorf("after a second: %+v", h)
	}
	g.d.ReleaseAll()
	g.span(s)
	g.settle()
	g.balance(2, 2, 0, 0)
	if c := g.r.Clock(); c.Anchors == 0 || c.GivenUp != 1 {
		t.Errorf("clock %+v", c)
	}
}
