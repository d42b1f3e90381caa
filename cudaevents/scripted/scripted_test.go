package scripted_test

import (
	"errors"
	"testing"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
)

const ms = 1_000_000

func events(t *testing.T, d *scripted.Driver, n int) []cudaevents.Event {
	t.Helper()
	e := make([]cudaevents.Event, n)
	if err := d.CreateEvents(e); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestStreamsRunInOrderAndInTime(t *testing.T) {
	d := scripted.New(scripted.Options{LatencyNS: 2000, EventNS: 1000, DriftPPM: 10})
	s, e := d.NewStream(), events(t, d, 3)
	t0 := d.Now()
	d.Record(e[0], s)
	d.Work(s, 10*ms)
	d.Record(e[1], s)
	if r := d.Pending(e[0]); r != cudaevents.NotReady {
		t.Errorf("just recorded: %v", r)
	}
	d.Advance(3000)
	if a, b, c := d.Pending(e[0]), d.Pending(e[1]), d.Pending(e[2]); a != cudaevents.Success || b != cudaevents.NotReady || c != scripted.InvalidHandle {
		t.Errorf("3 µs later: %v, %v, never recorded: %v", a, b, c)
	}
	if at, ok := d.HostOf(e[0]); !ok || at != t0+3000 {
		t.Errorf("first event at %d, want %d", at, t0+3000)
	}
	d.Finish()
	if got := d.Now() - t0; got != 3000+10*ms+1000 {
		t.Errorf("all work took %d ns", got)
	}
	v, r := d.Since(e[0], e[1])
	if want := float32(10.001 * (1 + 10e-6)); r != cudaevents.Success || v < want-0.00004 || v > want+0.00004 {
		t.Errorf("measured %v ms (%v), want %v", v, r, want)
	}
	if v, _ := d.Since(e[1], e[0]); v > -10 {
		t.Errorf("backwards: %v ms", v)
	}
	d.Record(e[0], s)
	if _, r := d.Since(e[0], e[1]); r != cudaevents.NotReady {
		t.Errorf("recorded anew: %v", r)
	}
}

func TestTimesAreCoarseFloats(t *testing.T) {
	d := scripted.New(scripted.Options{})
	s, e := d.NewStream(), events(t, d, 3)
	d.Record(e[0], s)
	d.Advance(18e9)
	d.Record(e[1], s)
	d.Work(s, 1000)
	d.Record(e[2], s)
	d.Finish()
	a, _ := d.Since(e[0], e[1])
	b, _ := d.Since(e[0], e[2])
	c, _ := d.Since(e[1], e[2])
	if off := float64(b-a)*1e6 - float64(c)*1e6; off == 0 || off > 2000 || off < -2000 {
		t.Errorf("18 s away a difference is %v ns off, want up to 2 µs and not 0", off)
	}
	if ticks := float64(c) * 1e6 / 32; ticks-float64(int(ticks+0.5)) > 0.01 {
		t.Errorf("%v ms is no multiple of 32 ns", c)
	}
}

func TestStallReleaseComplete(t *testing.T) {
	d := scripted.New(scripted.Options{})
	a, b, e := d.NewStream(), d.NewStream(), events(t, d, 3)
	d.Stall(a)
	d.Record(e[0], a)
	d.Record(e[1], a)
	d.Record(e[2], b)
	d.Advance(ms)
	if d.Pending(e[0]) != cudaevents.NotReady || d.Pending(e[2]) != cudaevents.Success || d.Queued(a) != 2 {
		t.Error("a stall holds its own stream and no other")
	}
	if d.Complete(a, 1) != 1 || d.Pending(e[0]) != cudaevents.Success || d.Pending(e[1]) != cudaevents.NotReady {
		t.Error("one item by hand")
	}
	d.Release(a)
	d.Finish()
	if d.Pending(e[1]) != cudaevents.Success {
		t.Error("released")
	}
}

func TestCapturesAndViolations(t *testing.T) {
	d := scripted.New(scripted.Options{})
	s, o, e := d.NewStream(), d.NewStream(), events(t, d, 2)
	d.BeginCapture(s, scripted.Global)
	if r := d.Record(e[0], s); !r.Capturing || d.Queued(s) != 0 {
		t.Errorf("record into a capture: %+v", r)
	}
	if r := d.Record(e[0], o); r.Capturing || r.Result != cudaevents.Success {
		t.Errorf("record beside a capture: %+v", r)
	}
	if !d.Capturing() || len(d.Violations()) != 0 {
		t.Errorf("capturing %v, violations %q", d.Capturing(), d.Violations())
	}
	if _, err := d.StreamID(o); err != nil {
		t.Error(err)
	}
	if err := d.EndCapture(s); err != nil {
		t.Errorf("a capture nobody touched: %v", err)
	}
	d.BeginForeignCapture(s, scripted.Global)
	if d.Capturing() {
		t.Error("a foreign capture is known")
	}
	if d.Anchor(e[1], o, 1e6); len(d.Violations()) != 0 {
		t.Errorf("%q", d.Violations())
	}
	if _, err := d.StreamID(s); !errors.Is(err, scripted.CaptureUnsafe) {
		t.Errorf("identity of a capturing stream: %v", err)
	}
	if err := d.EndCapture(s); !errors.Is(err, scripted.Invalidated) {
		t.Errorf("a spoilt capture: %v", err)
	}
	d.BeginCapture(s, scripted.Global)
	d.Anchor(e[1], o, 1e6)
	_ = d.DestroyEvents(e)
	d.Record(e[0], o)
	if n := len(d.Violations()); n != 3 {
		t.Errorf("%d violations, want identity, anchor, destroyed event: %q", n, d.Violations())
	}
}

func TestFaults(t *testing.T) {
	d := scripted.New(scripted.Options{})
	s, e := d.NewStream(), events(t, d, 2)
	d.Fail(scripted.Record, 2, 999)
	if a, b, c := d.Record(e[0], s), d.Record(e[1], s), d.Record(e[1], s); a.Result != 0 || b.Result != 999 || c.Result != 0 {
		t.Errorf("second of three: %v %v %v", a.Result, b.Result, c.Result)
	}
	d.FailAll(scripted.Pending, 700)
	d.Finish()
	for range 2 {
		if r := d.Pending(e[0]); r != 700 {
			t.Errorf("result %d, want 700 of every one", r)
		}
	}
	d.Heal(scripted.Pending)
	if d.Pending(e[0]) != cudaevents.Success {
		t.Error("healed")
	}
	out := make([]cudaevents.Times, 2)
	p := cudaevents.Pair{Start: e[0], End: e[1]}
	d.Fail(scripted.Elapsed, 2, 4)
	if n, r, calls := d.Elapsed(e[0], []cudaevents.Pair{p, p}, out); n != 1 || r != 4 || calls != 3 {
		t.Errorf("elapsed: %d, %v, %d calls", n, r, calls)
	}
	if got, want := d.Calls(), 2+2+2+2+1+1+1+3; got != want {
		t.Errorf("%d calls, want %d", got, want)
	}
}

func TestHandlesAreGivenAgain(t *testing.T) {
	d := scripted.New(scripted.Options{})
	s := d.NewStream()
	first, _ := d.StreamID(s)
	d.DropStream(s)
	if again := d.NewStream(); again != s {
		t.Errorf("handle %#x, want %#x", again, s)
	}
	if second, _ := d.StreamID(s); second == first {
		t.Errorf("both streams have the identity %d", first)
	}
}
