package faulty

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lanetrace/lanetrace/spanring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ran is an engine that ran until it had its fault.
type ran struct {
	steps    int
	what     string
	log      string
	begun    spanring.Counters // when the fault was there
	ended    spanring.Counters // at the end
	busy     int               // pairs in flight when the fault was there
	diffs    []spanring.LaunchDiff
	violated []spanring.Violation
}

// serve runs an engine of five good steps until after has seen enough of its
// counters.
func serve(t *testing.T, f Fault, after func(*spanring.Counters) bool) (r ran) {
	t.Helper()
	dir := spanring.Dir{Path: filepath.Join(t.TempDir(), "rings"), Group: -1}
	if err := dir.Make(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	faulted := make(chan string, 1)
	served := make(chan error, 1)
	var log bytes.Buffer // read after the engine's end
	go func() {
		served <- Serve(ctx, Options{
			Fault: f, Dir: dir.Path, Steps: 5, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Serving: func(n int) { r.steps = n },
			Faulted: func(what string) { faulted <- what },
		})
	}()
	select {
	case r.what = <-faulted:
	case err := <-served:
		t.Fatalf("ended without its fault: %v\n%s", err, &log)
	}
	rings, err := dir.List()
	if err != nil || len(rings) != 1 {
		t.Fatalf("rings %v, %v", rings, err)
	}
	ring, err := spanring.Open(rings[0], spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer ring.Close()
	counters := func() spanring.Counters {
		c, err := ring.Counters()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	r.begun = counters()
	slots, err := ring.Busy()
	if err != nil {
		t.Fatal(err)
	}
	r.busy = len(slots)
	for c := counters(); !after(&c); c = counters() {
		select {
		case <-ctx.Done():
			t.Fatalf("not within a minute: %v", c)
		case <-time.After(time.Millisecond):
		}
	}
	stop()
	if err := <-served; err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	r.ended, r.log = counters(), log.String()
	entries := make([]spanring.Entry, 256)
	for {
		n, err := ring.Poll(entries, spanring.MonoNS())
		if err != nil {
			t.Fatal(err)
		}
		for i := range entries[:n] {
			w := &entries[i].Words
			switch w.Kind() {
			case spanring.KindLaunchDiff:
				d, err := w.LaunchDiff()
				if err != nil {
					t.Fatal(err)
				}
				if d.Differing() > 0 {
					r.diffs = append(r.diffs, d)
				}
			case spanring.KindViolation:
				v, err := w.Violation()
				if err != nil {
					t.Fatal(err)
				}
				r.violated = append(r.violated, v)
			}
		}
		if n == 0 {
			return r
		}
	}
}

// at waits for a counter.
func at(c spanring.Counter, least uint64) func(*spanring.Counters) bool {
	return func(cs *spanring.Counters) bool { return cs[c] >= least }
}

func now(*spanring.Counters) bool { return true }

// tickDue waits until the next step is due as well as the end: none may begin behind
// what the fault left on the stream.
func tickDue() func(*spanring.Counters) bool {
	var faulted time.Time
	return func(*spanring.Counters) bool {
		if faulted.IsZero() {
			faulted = time.Now()
		}
		return time.Since(faulted) > 2*pace
	}
}

// balanced checks the producer's account when nothing moves.
func balanced(t *testing.T, c *spanring.Counters) {
	t.Helper()
	if c[spanring.CtrBegun] != c[spanring.CtrLanded]+c.Failed()+c[spanring.CtrDropped] {
		t.Errorf("begun %d, landed %d, failed %d, dropped %d", c[spanring.CtrBegun], c[spanring.CtrLanded], c.Failed(), c[spanring.CtrDropped])
	}
}

func TestCrash(t *testing.T) {
	for range 4 {
		crash(t)
	}
}

func crash(t *testing.T) {
	t.Helper()
	r := serve(t, Crash, tickDue())
	// Five steps of two lanes, and one whose prefill is under way.
	if r.steps != 5 || r.busy != 1 || r.begun[spanring.CtrBegun] != 5*3+2 {
		t.Errorf("%d steps, %d in flight, %d begun", r.steps, r.busy, r.begun[spanring.CtrBegun])
	}
	balanced(t, &r.ended)
}

func TestHang(t *testing.T) {
	r := serve(t, Hang, now)
	if r.busy != 1 || r.begun[spanring.CtrBegun] != 5*3+2 {
		t.Errorf("%d in flight, %d begun", r.busy, r.begun[spanring.CtrBegun])
	}
	// At the end the GPU goes on, and all lands.
	balanced(t, &r.ended)
	if n := r.ended[spanring.CtrLanded]; n != r.ended[spanring.CtrBegun] {
		t.Errorf("%d landed of %d", n, r.ended[spanring.CtrBegun])
	}
}

func TestLeak(t *testing.T) {
	r := serve(t, Leak, at(spanring.CtrStepsEnded, 12))
	// What is not leaked: weights, cache and five steps' scratch memory.
	if n := r.begun[spanring.CtrMemLiveBytes]; n != weightBytes+cacheBytes {
		t.Errorf("%d bytes live when it begins", n)
	}
	if !strings.Contains(r.log, "examples/faulty/make.go:") || !strings.Contains(r.log, "never freed") {
		t.Errorf("log %s", r.log)
	}
	balanced(t, &r.ended)
}

func TestOverrun(t *testing.T) {
	r := serve(t, Overrun, now)
	want := []spanring.Violation{{Bytes: 4 * scratchWords, GuardBytes: guardBand, First: 0, Last: 4*pastWords - 1, Changed: 4 * pastWords, Fill: 0xa5, Value: 0x65}}
	for i := range r.violated {
		v := &r.violated[i]
		v.Context, v.Addr, v.Index, v.MonoNS, v.Site = 0, 0, 0, 0, 0
	}
	if d := cmp.Diff(want, r.violated); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if want := "a kernel wrote 1003 words into a buffer of 1000; a scan of the guard bands found 1 changed"; r.what != want {
		t.Errorf("%q, want %q", r.what, want)
	}
}

func TestPerturb(t *testing.T) {
	r := serve(t, Perturb, at(spanring.CtrStepsEnded, 8))
	type diff struct {
		step    uint64
		changed uint32
	}
	var got []diff
	for _, d := range r.diffs {
		got = append(got, diff{d.Step, uint32(d.Changed)})
	}
	// There and back.
	if d := cmp.Diff([]diff{{6, layers}, {7, layers}}, got, cmp.AllowUnexported(diff{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for _, want := range []string{
		"one step passed mlp a width of 127, all others pass 128",
		"changed #2 kernel faulty::mlp: arg2 0x80 -> 0x7f (-1)",
	} {
		if !strings.Contains(r.what, want) {
			t.Errorf("no %q in %q", want, r.what)
		}
	}
	if strings.HasSuffix(r.what, "\n") {
		t.Error("an empty line at the end")
	}
}

func TestDrop(t *testing.T) {
	r := serve(t, Drop, now)
	if n := r.ended[spanring.CtrDropped]; n != burstLanes-pairs {
		t.Errorf("%d dropped", n)
	}
	balanced(t, &r.ended)
}

func TestFaultText(t *testing.T) {
	for _, f := range Faults() {
		var got Fault
		if err := got.UnmarshalText([]byte(f)); err != nil || got != f {
			t.Errorf("%s: %s, %v", f, got, err)
		}
	}
	f := Crash
	err := f.UnmarshalText([]byte("fire"))
	if want := `want crash, hang, leak, overrun, perturb or drop, got "fire"`; err == nil || err.Error() != want || f != Crash {
		t.Errorf("%v, %s", err, f)
	}
}

// An engine that cannot have a ring says so.
func TestNoDir(t *testing.T) {
	err := Serve(t.Context(), Options{Fault: Leak, Dir: filepath.Join(t.TempDir(), "missing")})
	if err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("error %v", err)
	}
}
