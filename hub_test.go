package lanetrace

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
	"github.com/lanetrace/lanetrace/spanring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a hub on a heap ring with a scripted GPU that runs in real time and
// whose harvest is called by the test.
type rig struct {
	t   *testing.T
	hub *Hub
	drv *scripted.Driver
	dev *Device
	s   cudaevents.Stream
}

func newRig(t *testing.T, cfg Config) *rig {
	t.Helper()
	return newRigOf(t, cfg, scripted.Options{RealTime: true})
}

func newRigOf(t *testing.T, cfg Config, o scripted.Options) *rig {
	t.Helper()
	cfg.HarvestEvery = -1
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	h, err := OpenHeap(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	drv := scripted.New(o)
	dev, err := h.Attach(drv)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t, h, drv, dev, drv.NewStream()}
}

// until harvests until ok or fails after a minute.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(end) {
			r.t.Fatalf("waited in vain until %s: %s", what, counterText(r.hub.Ring().Counters()))
		}
		r.hub.Harvest()
	}
}

func (r *rig) idle() bool { return r.dev.Recorder().InFlight() == 0 }

func counterText(c spanring.Counters) string {
	var b strings.Builder
	for i, n := range c {
		if n != 0 {
			b.WriteString(spanring.Counter(i).String() + "=" + itoa(n) + " ")
		}
	}
	return b.String()
}

func itoa(n uint64) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + string(rune('0'+n%10))
}

// entries reads all that is in the ring.
func (r *rig) entries() []spanring.Entry {
	r.t.Helper()
	rd, err := spanring.NewHeapReader(r.hub.Ring(), spanring.ReaderOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	defer rd.Close()
	dst := make([]spanring.Entry, 1<<16)
	n, err := rd.Poll(dst, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	return dst[:n]
}

func (r *rig) kinds() []string {
	var out []string
	for _, e := range r.entries() {
		if k := e.Words.Kind(); k != spanring.KindAnchor {
			out = append(out, k.String())
		}
	}
	return out
}

func (r *rig) spans() []spanring.Span {
	r.t.Helper()
	var out []spanring.Span
	for _, e := range r.entries() {
		if e.Words.Kind().IsSpan() {
			s, err := e.Words.Span()
			if err != nil {
				r.t.Fatal(err)
			}
			out = append(out, s)
		}
	}
	return out
}

func (r *rig) stepEnds() []spanring.StepEnd {
	r.t.Helper()
	var out []spanring.StepEnd
	for _, e := range r.entries() {
		if e.Words.Kind() == spanring.KindStepEnd {
			s, err := e.Words.StepEnd()
			if err != nil {
				r.t.Fatal(err)
			}
			out = append(out, s)
		}
	}
	return out
}

func (r *rig) want(c spanring.Counter, n uint64) {
	r.t.Helper()
	if got := r.hub.Ring().Counter(c); got != n {
		r.t.Errorf("%v = %d, want %d", c, got, n)
	}
}

// balanced checks the producer's line of the account with nothing moving.
func (r *rig) balanced() {
	r.t.Helper()
	c := r.hub.Ring().Counters()
	if got := c.InFlight(); got != 0 {
		r.t.Errorf("begun - landed - failed - dropped = %d with nothing in flight: %s", got, counterText(c))
	}
}

// launch makes a timed launch the way a backend does.
func (r *rig) launch(name spanring.NameID) bool {
	l, ok := r.dev.LaunchBegin(spanring.KindKernel, r.s, name)
	if !ok {
		return false
	}
	r.dev.LaunchEnd(l, r.drv.Launch(l.Pair, r.s, 20_000))
	return true
}

func TestStepAndLanesLand(t *testing.T) {
	r := newRig(t, Config{})
	prefill, decode := r.hub.Lane("prefill"), r.hub.Lane("decode")
	if again := r.hub.Lane("prefill"); again != prefill || prefill == decode {
		t.Fatalf("lanes %d, %d, again %d", prefill, decode, again)
	}
	// All of it is enqueued before any runs: no pause of the host's gets between.
	r.drv.Stall(r.s)
	step := r.hub.StepBegin()
	step.SetAttrs(Attrs{BatchSize: 3, DecodeTokens: 2, PrefillTokens: 70, GraphMode: spanring.GraphEager})
	a := r.dev.LaneBegin(step, prefill, r.s)
	r.drv.Work(r.s, 300_000)
	b := a.Next(decode)
	r.drv.Work(r.s, 500_000)
	b.End()
	step.End()
	r.drv.Release(r.s)
	r.until("both lanes landed", r.idle)

	ends := r.stepEnds()
	if len(ends) != 1 || ends[0].Opened != 2 || ends[0].Dropped != 0 || ends[0].Armed {
		t.Fatalf("step ends %+v", ends)
	}
	spans := r.spans()
	if len(spans) != 2 {
		t.Fatalf("%d spans, want 2: %v", len(spans), r.kinds())
	}
	for i, want := range []struct {
		lane   LaneID
		ns     uint64
		shared bool
	}{{prefill, 300_000, false}, {decode, 500_000, true}} {
		s := spans[i]
		if s.Lane != uint16(want.lane) || s.Step != step.ID() || s.Ordinal != uint32(i+1) || s.Parent != 0 || s.SharedStart != want.shared {
			t.Errorf("span %d: %+v", i, s)
		}
		if s.RawNS < want.ns || s.RawNS > want.ns+10_000 {
			t.Errorf("lane %d took %d ns, enqueued work of %d", i, s.RawNS, want.ns)
		}
	}
	if spans[1].StartMonoNS < spans[0].StartMonoNS {
		t.Errorf("decode starts before prefill")
	}
	r.want(spanring.CtrBegun, 3)
	r.want(spanring.CtrLanded, 3)
	r.balanced()
}

func TestNestedLanesAndAttribution(t *testing.T) {
	r := newRig(t, Config{Level: "kernel", KernelSpanEvery: 1, KernelBudget: 1, NoCalibration: true})
	outer, inner := r.hub.Lane("outer"), r.hub.Lane("inner")
	name := r.dev.Name(spanring.NameKernel, "k")

	if r.launch(name) {
		t.Error("a launch before any step was timed")
	}
	step := r.hub.StepBegin()
	if !step.Armed() {
		t.Fatal("step is not armed at one in one")
	}
	if r.launch(name) {
		t.Error("a launch outside every lane, with no step bound, was timed")
	}
	r.want(spanring.CtrUnattributed, 1)
	a := r.dev.LaneBegin(step, outer, r.s)
	r.launch(name) // ordinal 2, in outer
	b := r.dev.LaneBegin(step, inner, r.s)
	r.launch(name) // ordinal 4, in inner
	b.End()
	r.launch(name) // ordinal 5, in outer
	a.End()
	r.dev.Bind(step, r.s)
	r.launch(name) // ordinal 6, in the step
	r.dev.Bind(Step{}, r.s)
	step.End()
	r.until("all landed", r.idle)

	got := map[uint32]uint32{}
	for _, s := range r.spans() {
		got[s.Ordinal] = s.Parent
		if !s.Armed {
			t.Errorf("span %d of an armed step is not armed", s.Ordinal)
		}
	}
	want := map[uint32]uint32{1: 0, 2: 1, 3: 1, 4: 3, 5: 1, 6: 0}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("parents by ordinal (-want +got):\n%s", d)
	}
	r.want(spanring.CtrLaunches, 5)
	r.balanced()
}

func TestUnarmedStepTimesNoKernels(t *testing.T) {
	r := newRig(t, Config{Level: "kernel", NoCalibration: true}) // one in 64
	lane := r.hub.Lane("decode")
	step := r.hub.StepBegin()
	l := r.dev.LaneBegin(step, lane, r.s)
	if r.dev.Timing() || r.launch(0) {
		t.Error("the first of 64 steps is armed")
	}
	l.End()
	step.End()
	r.until("the lane landed", r.idle)
	if got := len(r.spans()); got != 1 {
		t.Errorf("%d spans, want the lane alone", got)
	}
}

func TestMisuseIsCountedAndHarmless(t *testing.T) {
	misuse := func(r *rig, what string, n uint64, f func()) {
		r.t.Helper()
		before := r.hub.Ring().Counter(spanring.CtrMisuse)
		f()
		if got := r.hub.Ring().Counter(spanring.CtrMisuse) - before; got != n {
			r.t.Errorf("%s: misuse counted %d times, want %d", what, got, n)
		}
	}
	r := newRig(t, Config{})
	lane := r.hub.Lane("decode")
	step := r.hub.StepBegin()
	misuse(r, "lane 0", 1, func() { r.dev.LaneBegin(step, 0, r.s).End() })
	misuse(r, "a lane nobody registered", 1, func() { r.dev.LaneBegin(step, 99, r.s).End() })
	misuse(r, "a lane without a name", 1, func() { r.hub.Lane("") })
	misuse(r, "a lane of the zero step", 0, func() { r.dev.LaneBegin(Step{}, lane, r.s).End() })
	a := r.dev.LaneBegin(step, lane, r.s)
	misuse(r, "a lane begun twice", 1, func() { r.dev.LaneBegin(step, lane, r.s).End() })
	a.End()
	a.End()
	r.want(spanring.CtrStaleEnds, 1)
	step.End()
	misuse(r, "a step ended twice", 1, step.End)
	misuse(r, "a lane on an ended step", 1, func() { r.dev.LaneBegin(step, lane, r.s).End() })
	r.until("the lane landed", r.idle)
	if got := len(r.spans()); got != 1 {
		t.Errorf("%d spans landed, want 1", got)
	}
	other := newRig(t, Config{})
	misuse(r, "a step of another hub", 1, func() { r.dev.LaneBegin(other.hub.StepBegin(), lane, r.s).End() })
	r.balanced()
}

func TestNothingBelowItsLevel(t *testing.T) {
	for _, c := range []struct {
		level string
		kinds []string
		calls bool
	}{
		{"off", nil, false},
		{"basic", []string{"step_begin", "step_attrs", "step_end"}, false},
		{"lane", []string{"step_begin", "step_attrs", "step_end", "lane"}, true},
	} {
		t.Run(c.level, func(t *testing.T) {
			r := newRig(t, Config{Level: c.level})
			lane := r.hub.Lane("decode")
			before := r.drv.Calls()
			step := r.hub.StepBegin()
			step.SetAttrs(Attrs{BatchSize: 1})
			l := r.dev.LaneBegin(step, lane, r.s)
			r.launch(0)
			l.End()
			step.End()
			r.until("idle", r.idle)
			if d := cmp.Diff(c.kinds, r.kinds()); d != "" {
				t.Errorf("entries (-want +got):\n%s", d)
			}
			if got := r.drv.Calls() - before; got > 0 != c.calls {
				t.Errorf("%d driver calls", got)
			}
			r.balanced()
		})
	}
}

// TestLevelFlips changes the level between every begin and its end.
func TestLevelFlips(t *testing.T) {
	levels := []Level{LevelOff, LevelBasic, LevelLane, LevelKernel}
	for _, from := range levels {
		for _, to := range levels {
			t.Run(from.String()+"_"+to.String(), func(t *testing.T) {
				r := newRig(t, Config{Level: from.String(), KernelSpanEvery: 1, KernelBudget: 1, NoCalibration: true})
				lane := r.hub.Lane("decode")
				step := r.hub.StepBegin()
				l := r.dev.LaneBegin(step, lane, r.s)
				if err := r.hub.SetLevel(to); err != nil {
					t.Fatal(err)
				}
				if r.hub.Level() != to {
					t.Fatalf("level is %v", r.hub.Level())
				}
				timed := r.launch(0)
				if want := from == LevelKernel && to == LevelKernel; timed != want {
					t.Errorf("launch timed: %v, want %v", timed, want)
				}
				l.End()
				step.End()
				r.until("idle", r.idle)
				var want uint64
				switch {
				case from == LevelBasic:
					want = 1
				case from >= LevelLane:
					want = 2
				}
				if timed {
					want++
				}
				r.want(spanring.CtrBegun, want)
				r.want(spanring.CtrLanded, want)
				// And the new level counts from the next step on.
				next := r.hub.StepBegin()
				if (next.ID() != 0) != (to > LevelOff) || next.Armed() != (to == LevelKernel) {
					t.Errorf("next step id %d, armed %v at level %v", next.ID(), next.Armed(), to)
				}
				next.End()
				r.balanced()
			})
		}
	}
}

func TestFullPoolDropsAndCounts(t *testing.T) {
	r := newRig(t, Config{Pairs: 4})
	r.drv.Stall(r.s)
	step := r.hub.StepBegin()
	for _, n := range []string{"a", "b", "c", "d", "e", "f"} {
		l := r.dev.LaneBegin(step, r.hub.Lane(n), r.s)
		r.drv.Work(r.s, 10_000)
		l.End()
	}
	step.End()
	if got := r.stepEnds(); len(got) != 1 || got[0].Opened != 4 || got[0].Dropped != 2 {
		t.Errorf("step end %+v, want 4 opened and 2 dropped", got)
	}
	r.want(spanring.CtrDropped, 2)
	r.drv.Release(r.s)
	r.until("idle", r.idle)
	r.want(spanring.CtrLanded, 5)
	r.balanced()
}

func TestAbandonedLane(t *testing.T) {
	r := newRig(t, Config{Abandon: 20 * time.Millisecond})
	lane := r.hub.Lane("decode")
	step := r.hub.StepBegin()
	l := r.dev.LaneBegin(step, lane, r.s)
	r.hub.Harvest()
	step.End()
	r.until("the lane is given up", r.idle)
	r.want(spanring.FailAbandoned.Counter(), 1)
	l.End()
	r.want(spanring.CtrStaleEnds, 1)
	// Its place on the stream is free again, however often that happens.
	for range 3 * maxNesting {
		s := r.hub.StepBegin()
		r.dev.LaneBegin(s, lane, r.s)
		s.End()
	}
	s := r.hub.StepBegin()
	last := r.dev.LaneBegin(s, lane, r.s)
	if last.dev == nil {
		t.Error("no lane after many that were never ended")
	}
	last.End()
	s.End()
	r.until("all are given up", r.idle)
	r.balanced()
}

func TestForgottenStepsAreAccountedFor(t *testing.T) {
	r := newRig(t, Config{Level: "kernel", KernelSpanEvery: 1, KernelBudget: 1, NoCalibration: true})
	first := r.hub.StepBegin()
	for range openSteps {
		r.hub.StepBegin().End()
	}
	r.want(spanring.FailAbandoned.Counter(), 1)
	r.want(spanring.CtrMisuse, 1)
	first.End()
	r.want(spanring.CtrMisuse, 2)
	if r.dev.Timing() {
		t.Error("a forgotten armed step keeps every launch looking")
	}
	r.balanced()
}

func TestSecondAttachReplacesTheFirst(t *testing.T) {
	r := newRig(t, Config{})
	lane := r.hub.Lane("decode")
	step := r.hub.StepBegin()
	l := r.dev.LaneBegin(step, lane, r.s)
	done := r.dev.LaneBegin(step, r.hub.Lane("other"), r.s)
	r.drv.Work(r.s, 1_000_000)
	done.End()

	drv := scripted.New(scripted.Options{RealTime: true})
	dev, err := r.hub.Attach(drv)
	if err != nil {
		t.Fatal(err)
	}
	// What had ended was drained, what was open is failed{closed}.
	r.want(spanring.FailClosed.Counter(), 1)
	r.want(spanring.CtrLanded, 1)
	l.End()
	r.want(spanring.CtrStaleEnds, 1)
	if dev.Recorder().ContextIndex() != r.dev.Recorder().ContextIndex() {
		t.Error("the second recorder has another context record")
	}
	s := drv.NewStream()
	again := dev.LaneBegin(step, lane, s)
	drv.Work(s, 10_000)
	again.End()
	step.End()
	r.dev = dev
	r.until("idle", r.idle)
	r.want(spanring.CtrBegun, 4) // counters went on
	r.want(spanring.CtrLanded, 3)
	if rest := r.drv.LiveEvents(); rest != 0 {
		t.Errorf("%d events of the first recorder left", rest)
	}
	r.balanced()
}

func TestPoolThatCannotBeMade(t *testing.T) {
	var log bytes.Buffer
	h, err := OpenHeap(Config{HarvestEvery: -1, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close(context.Background())
	drv := scripted.New(scripted.Options{RealTime: true})
	drv.FailAll(scripted.CreateEvents, 2)
	dev, err := h.Attach(drv)
	if err != nil {
		t.Fatal(err)
	}
	lane := h.Lane("decode")
	for range 3 {
		step := h.StepBegin()
		dev.LaneBegin(step, lane, 0).End()
		step.End()
		h.Harvest()
	}
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d lines logged, want 1:\n%s", n, log.String())
	}
	c := h.Ring().Counters()
	if c[spanring.CtrPoolsFailed] != 1 || c[spanring.CtrBegun] != 3 || c[spanring.CtrLanded] != 3 {
		t.Errorf("counters %s", counterText(c))
	}
}

func TestRingThatCannotBeMade(t *testing.T) {
	var log bytes.Buffer
	h, err := Open(Config{Dir: filepath.Join(t.TempDir(), "none"), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatalf("a missing directory stops the engine: %v", err)
	}
	if !errors.Is(h.Disabled(), spanring.ErrDirMissing) {
		t.Errorf("disabled because %v", h.Disabled())
	}
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d lines logged, want 1:\n%s", n, log.String())
	}
	if err := h.SetLevel(LevelKernel); err == nil {
		t.Error("level changed without a ring")
	}
	dev, err := h.Attach(scripted.New(scripted.Options{}))
	if dev != nil || err != nil {
		t.Errorf("attach: %v, %v", dev, err)
	}
	exercise(h, dev)
	if err := h.Close(context.Background()); err != nil {
		t.Error(err)
	}
	exercise(nil, nil)
}

// TestUntimedLaunchesAreTold: behind a timed kernel there may wait one that found no
// step, so how much its pair holds is not known.
func TestUntimedLaunchesAreTold(t *testing.T) {
	for _, untimed := range []bool{false, true} {
		r := newRigOf(t, Config{Level: "kernel", KernelSpanEvery: 1, KernelBudget: 1, NoCalibration: true},
			scripted.Options{RealTime: true, Device: cudaevents.Device{Capability: 90}})
		name := r.dev.Name(spanring.NameKernel, "k")
		run := func() (span spanring.Span) {
			step := r.hub.StepBegin()
			r.dev.Bind(step, r.s)
			r.drv.Stall(r.s)
			if !r.launch(name) {
				t.Fatal("not timed")
			}
			if untimed {
				r.dev.Bind(Step{}, r.s)
				if r.launch(name) {
					t.Fatal("timed, of no step")
				}
			}
			closed := spanring.MonoNS()
			r.until("it is long since the launch", func() bool { return spanring.MonoNS() > closed+5_000_000 })
			r.drv.Release(r.s)
			r.until("the kernel landed", r.idle)
			step.End()
			for _, s := range r.spans() {
				span = s
			}
			return span
		}
		run() // the stream is known then
		if got, want := run().CorrectionNS, map[bool]uint16{false: 3040 - 720, true: 3040 - 360}[untimed]; got != want {
			t.Errorf("untimed %v: corrected by %d ns, want %d", untimed, got, want)
		}
	}
}

// exercise calls everything that an engine calls.
func exercise(h *Hub, dev *Device) {
	lane := h.Lane("decode")
	h.Arm(3)
	step := h.StepBegin()
	step.SetAttrs(Attrs{BatchSize: 1})
	dev.Bind(step, 0)
	l := dev.LaneBegin(step, lane, 0)
	if dev.Timing() {
		if x, ok := dev.LaunchBegin(spanring.KindKernel, 0, dev.Name(spanring.NameKernel, "k")); ok {
			dev.LaunchEnd(x, cudaevents.LaunchResult{Capturing: true})
		}
	}
	l.Next(lane).End()
	step.End()
	h.Harvest()
	dev.StreamDestroyed(0)
	_ = h.Level()
	_ = h.Overhead()
}

func TestCloseStopsEverything(t *testing.T) {
	r := newRig(t, Config{})
	lane := r.hub.Lane("decode")
	step := r.hub.StepBegin()
	l := r.dev.LaneBegin(step, lane, r.s)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := r.hub.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	l.End()
	step.End()
	exercise(r.hub, r.dev)
	if _, err := r.hub.Attach(r.drv); err == nil {
		t.Error("attached to a closed hub")
	}
	if err := r.hub.SetLevel(LevelLane); err == nil {
		t.Error("changed the level of a closed hub")
	}
	r.want(spanring.FailClosed.Counter(), 1)
	r.balanced()
}

func TestBadConfiguration(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Level: "verbose"}, `unknown level "verbose": want one of off, basic, lane, kernel`},
		{Config{Level: "Lane"}, "unknown level"},
		{Config{Group: "wheel"}, "want a group's number"},
		{Config{RingBytes: 1000}, "need from 65536"},
		{Config{Pairs: 1 << 20}, "event pairs"},
		{Config{KernelBudget: 2}, "KernelBudget"},
		{Config{KernelSpanEvery: -1}, "KernelSpanEvery"},
	} {
		_, err := Open(c.cfg)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, want one line with %q", c.cfg, err, c.want)
		}
	}
}

func TestFromEnv(t *testing.T) {
	env := map[string]string{
		"LANETRACE_LEVEL": "kernel", "LANETRACE_DIR": "/d", "LANETRACE_GROUP": "7", "OTEL_SERVICE_NAME": "svc",
		"LANETRACE_RING_BYTES": "262144", "LANETRACE_PAIRS": "100", "LANETRACE_KERNEL_SPAN_EVERY": "8", "LANETRACE_KERNEL_BUDGET": "0.01",
		"LANETRACE_MODEL": "org/model", "LANETRACE_RANK_TENSOR": "0", "LANETRACE_RANK_EXPERT": "7",
	}
	got, err := Config{Dir: "/mine"}.FromEnv(func(k string) string { return env[k] })
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Level: "kernel", Dir: "/mine", Group: "7", Service: "svc", RingBytes: 262144, Pairs: 100,
		KernelSpanEvery: 8, KernelBudget: 0.01, Model: "org/model", Rank: &spanring.Rank{Data: -1, Tensor: 0, Pipeline: -1, Expert: 7},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for k, v := range map[string]string{
		"LANETRACE_RING_BYTES": "lots", "LANETRACE_PAIRS": "0", "LANETRACE_KERNEL_SPAN_EVERY": "-1", "LANETRACE_KERNEL_BUDGET": "NaN",
		"LANETRACE_RANK_DATA": "-1", "LANETRACE_RANK_PIPELINE": "x",
	} {
		_, err := Config{}.FromEnv(func(n string) string {
			if n == k {
				return v
			}
			return ""
		})
		if err == nil || !strings.Contains(err.Error(), k+"=") {
			t.Errorf("%s=%s: %v", k, v, err)
		}
	}
}

// fileHub is a hub with a ring file, whose pollers run.
func fileHub(t *testing.T) *Hub {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	h, err := Open(Config{Dir: dir, RingBytes: 256 << 10, Logger: slog.New(slog.DiscardHandler), NoCalibration: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Disabled(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close(context.Background()) })
	return h
}

func TestControlFile(t *testing.T) {
	h := fileHub(t)
	// The hub's own poller would act on the same files.
	close(h.stop)
	h.done.Wait()
	h.stop = make(chan struct{})
	path := h.Ring().Path()
	last := ""
	apply := func(c spanring.Control) {
		t.Helper()
		if err := spanring.WriteControl(path, c); err != nil {
			t.Fatal(err)
		}
		last = h.applyControl(last)
	}
	apply(spanring.Control{ID: "1", Level: "kernel", ArmSteps: 5})
	if h.Level() != LevelKernel {
		t.Errorf("level %v after a request for kernel", h.Level())
	}
	if got := h.over.arms.requested(); got != 5 {
		t.Errorf("%d steps asked for, want 5", got)
	}
	apply(spanring.Control{ID: "2", Level: "loud"})
	apply(spanring.Control{ID: "3", Level: "off", ArmSteps: maxArmRequest + 1})
	if h.Level() != LevelKernel {
		t.Errorf("level %v after nonsense", h.Level())
	}
	if got := h.Ring().Counter(spanring.CtrControlRejected); got != 2 {
		t.Errorf("%d requests rejected, want 2", got)
	}
	if err := os.WriteFile(path+spanring.ControlSuffix, []byte("{nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	last = h.applyControl(last)
	last = h.applyControl(last)
	if got := h.Ring().Counter(spanring.CtrControlRejected); got != 3 {
		t.Errorf("%d requests rejected, want 3: the same nonsense counts once", got)
	}
}

// TestControlIsPolled leaves a request to the hub's own poller.
func TestControlIsPolled(t *testing.T) {
	h := fileHub(t)
	if err := spanring.WriteControl(h.Ring().Path(), spanring.Control{ID: "x", Level: "basic"}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the level is basic", func() bool { return h.Level() == LevelBasic })
	waitFor(t, "the request is counted", func() bool { return h.Ring().Counter(spanring.CtrControlApplied) == 1 })
}

// waitFor polls a condition that another goroutine brings about.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func TestManyGoroutines(t *testing.T) {
	r := newRig(t, Config{Level: "kernel", KernelSpanEvery: 2, KernelBudget: 1, NoCalibration: true, Pairs: 64})
	const workers, steps = 4, 200
	var wg sync.WaitGroup
	for range workers {
		s := r.drv.NewStream()
		wg.Go(func() {
			for i := range steps {
				step := r.hub.StepBegin()
				l := r.dev.LaneBegin(step, r.hub.Lane("decode"), s)
				w := &rig{t: t, hub: r.hub, drv: r.drv, dev: r.dev, s: s}
				w.launch(0)
				if i%7 == 0 {
					r.hub.Arm(1)
				}
				l.End()
				step.End()
			}
		})
	}
	stop := make(chan struct{})
	var hg sync.WaitGroup
	for range 2 {
		hg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					r.hub.Harvest()
				}
			}
		})
	}
	wg.Go(func() {
		for _, l := range []Level{LevelLane, LevelOff, LevelKernel, LevelBasic, LevelKernel} {
			if err := r.hub.SetLevel(l); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	close(stop)
	hg.Wait()
	r.until("idle", r.idle)
	if r.dev.Timing() {
		t.Error("an armed step is still counted as open")
	}
	r.balanced()
}
