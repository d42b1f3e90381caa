//go:build cgo

package cuda

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/backend/conformance"
	"github.com/lanetrace/lanetrace/backend/cuda/internal/raw"
	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/internal/testdriver"
	"github.com/lanetrace/lanetrace/internal/testdriver/control"
	"github.com/lanetrace/lanetrace/spanring"
)

// fixture is a GPU with one of everything.
type fixture struct {
	t  testing.TB
	g  *GPU
	k  backend.Kernel
	s  backend.Stream
	e  backend.Event
	gr backend.Graph
	p  backend.DevicePtr
	ev []cudaevents.Event
}

var one = backend.Dim3{1, 1, 1}

func newFixture(t testing.TB, cfg Config) *fixture {
	t.Helper()
	f := &fixture{t: t, g: openTest(t, cfg)}
	f.ok(f.g.LoadModule(conformance.Module, conformance.Image))
	var err error
	f.k, err = f.g.Kernel(conformance.Module, "lt_spin")
	f.ok(err)
	f.s, err = f.g.CreateStream()
	f.ok(err)
	f.e, err = f.g.CreateEvent()
	f.ok(err)
	f.p, err = f.g.Alloc(1 << 20)
	f.ok(err)
	runtime.LockOSThread() // for Config.Capture
	f.ok(f.g.BeginCapture(f.s))
	f.ok(f.launch(f.s))
	f.gr, err = f.g.EndCapture(f.s)
	runtime.UnlockOSThread()
	f.ok(err)
	f.ev = make([]cudaevents.Event, 2)
	f.ok(f.g.Driver().CreateEvents(f.ev))
	t.Cleanup(func() {
		if !f.g.released.Load() {
			if err := f.g.Driver().DestroyEvents(f.ev); err != nil {
				t.Errorf("destroy events: %v", err)
			}
		}
		if err := f.g.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return f
}

func (f *fixture) ok(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) spin(s backend.Stream, cycles uint64) error {
	return f.g.Launch(f.k, &backend.Launch{Grid: one, Block: one, Stream: s, Args: []backend.Arg{backend.U64(cycles)}})
}

func (f *fixture) launch(s backend.Stream) error { return f.spin(s, 1980) }

// TestEveryCallCanFail fails each of the driver's functions once, under each
// method that calls it: the error says what was tried and carries the code, and
// the GPU goes on.
func TestEveryCallCanFail(t *testing.T) {
	lib, ctl := controlled(t)
	f := newFixture(t, Config{Library: lib})
	g, d := f.g, f.g.Driver()
	host := make([]byte, 100)
	const code = 719
	firstSpin := func() error {
		if sp := g.spin.Swap(nil); sp != nil {
			_ = g.ctx.telModuleUnload(sp.module)
		}
		return d.Spin(f.s, 1)
	}
	for _, c := range []struct {
		function string
		call     func() error
		says     string
	}{
		{"cuCtxGetCurrent", func() error { return g.Synchronize(f.s) }, "synchronize stream"},
		{"cuCtxPushCurrent_v2", func() (err error) { elsewhere(func() { err = g.Synchronize(f.s) }); return err }, "synchronize stream"},
		{"cuModuleLoadDataEx", func() error { return g.LoadModule("m2", conformance.Image) }, `load module "m2"`},
		{"cuModuleGetFunction", func() error { _, err := g.Kernel(conformance.Module, "lt_test_fill"); return err }, "look up kernel lt_test_fill"},
		{"cuLaunchKernel", func() error { return f.launch(f.s) }, "launch lt_spin on stream"},
		{"cuStreamCreate", func() error { _, err := g.CreateStream(); return err }, "create stream"},
		{"cuStreamSynchronize", func() error { return g.Synchronize(f.s) }, "synchronize stream"},
		{"cuEventCreate", func() error { _, err := g.CreateEvent(); return err }, "create event"},
		{"cuEventRecord", func() error { return g.RecordEvent(f.e, f.s) }, "record event"},
		{"cuStreamWaitEvent", func() error { return g.StreamWaitEvent(f.s, f.e) }, "wait for event"},
		{"cuEventQuery", func() error { _, err := g.EventQuery(f.e); return err }, "query event"},
		{"cuEventSynchronize", func() error { return g.EventSynchronize(f.e) }, "wait for event"},
		{"cuStreamBeginCapture_v2", func() error { defer g.AbortCapture(f.s); return g.BeginCapture(f.s) }, "begin capture"},
		{"cuStreamEndCapture", func() error {
			f.ok(g.BeginCapture(f.s))
			_, err := g.EndCapture(f.s)
			ctl.ClearFaults()
			g.ctx.captureAbort(f.s) // the stand-in's capture goes on
			return err
		}, "end the capture"},
		{"cuGraphGetNodes", f.captured, "count the graph's nodes"},
		{"cuGraphInstantiateWithFlags", f.captured, "instantiate the graph"},
		{"cuGraphLaunch", func() error { return g.LaunchGraph(f.gr, f.s) }, "launch graph"},
		{"cuMemAlloc_v2", func() error { _, err := g.Alloc(77); return err }, "allocate 77 bytes"},
		{"cuMemFree_v2", func() error { return g.Free(f.p) }, "free 0x"},
		{"cuMemGetInfo_v2", func() error { _, err := g.FreeMemory(); return err }, "free memory"},
		{"cuMemcpyHtoDAsync_v2", func() error { return g.CopyHtoD(f.p, host) }, "copy 100 bytes to"},
		{"cuMemcpyDtoHAsync_v2", func() error { return g.CopyDtoH(host, f.p) }, "copy 100 bytes from"},
		{"cuMemcpyDtoDAsync_v2", func() error { return g.CopyDtoDAsync(f.p, f.p+512, 100, f.s) }, "copy 100 bytes from"},
		{"cuMemsetD8Async", func() error { return g.MemsetAsync(f.p, 1, 100, f.s) }, "set 100 bytes"},
		{"cuStreamSynchronize", func() error { return g.CopyHtoD(f.p, host) }, "copy 100 bytes to"},
		{"cuMemAllocHost_v2", func() error { return g.CopyHtoDAsync(f.p, host, f.s) }, "copy 100 bytes to"},
		{"cuMemcpyHtoDAsync_v2", func() error { return g.CopyHtoDAsync(f.p, host, f.s) }, "copy 100 bytes to"},
		{"cuEventRecord", func() error { return g.CopyHtoDAsync(f.p, host, f.s) }, "copy 100 bytes to"},
		// Telemetry's.
		{"cuEventCreate", func() error { return d.CreateEvents(make([]cudaevents.Event, 5)) }, "create 5 timing events"},
		{"cuThreadExchangeStreamCaptureMode", func() error { return d.CreateEvents(make([]cudaevents.Event, 5)) }, "create 5 timing events"},
		{"cuStreamCreate", func() error { _, err := d.CreateStream(); return err }, "create telemetry's stream"},
		{"cuStreamGetId", func() error { _, err := d.StreamID(f.s); return err }, "identify stream"},
		{"cuModuleLoadDataEx", firstSpin, "spin for 1 cycles"},
		{"cuModuleGetFunction", firstSpin, "spin for 1 cycles"},
		{"cuLaunchKernel", func() error { return d.Spin(f.s, 1) }, "spin for 1 cycles"},
		{"cuEventRecord", func() error { return d.SpinPair(f.s, 1, cudaevents.Pair{Start: f.ev[0], End: f.ev[1]}) }, "spin for 1 cycles"},
	} {
		f.ok(ctl.Fail(c.function, code, 0, 0))
		err := c.call()
		ctl.ClearFaults()
		if !errors.Is(err, ErrLaunchFailed) || !errors.Is(err, cudaevents.Result(code)) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s fails: %v, want %d and %q", c.function, err, code, c.says)
		}
		f.ok(f.launch(f.s))
		f.ok(g.Synchronize(f.s))
		if err := c.call(); err != nil && c.function != "cuStreamEndCapture" {
			t.Errorf("once %s works again: %v", c.function, err)
		}
		if c.function == "cuMemFree_v2" { // freed now
			var err error
			f.p, err = g.Alloc(1 << 20)
			f.ok(err)
		}
	}
}

func (f *fixture) captured() error {
	f.ok(f.g.BeginCapture(f.s))
	f.ok(f.launch(f.s))
	gr, err := f.g.EndCapture(f.s)
	if err == nil {
		f.ok(f.g.DestroyGraph(gr))
	}
	return err
}

// TestTelemetryCallsCanFail: what telemetry asks gets the driver's code.
func TestTelemetryCallsCanFail(t *testing.T) {
	lib, ctl := controlled(t)
	f := newFixture(t, Config{Library: lib})
	d := f.g.Driver()
	const code = 719
	p := cudaevents.Pair{Start: f.ev[0], End: f.ev[1]}
	f.ok(d.SpinPair(f.s, 1, p))
	f.ok(f.g.Synchronize(f.s))
	out := make([]cudaevents.Times, 1)
	failing := func(function string, skip int, call func()) {
		t.Helper()
		f.ok(ctl.Fail(function, code, skip, 1))
		call()
		ctl.ClearFaults()
	}
	want := func(what string, got cudaevents.Result) {
		t.Helper()
		if got != code {
			t.Errorf("%s: result %d, want %d", what, got, code)
		}
	}
	failing("cuEventRecord", 0, func() {
		r := d.Record(f.ev[0], f.s)
		want("record", r.Result)
		if r.Capturing || r.Calls != 2 { // status, record
			t.Errorf("record: %+v", r)
		}
	})
	failing("cuStreamIsCapturing", 0, func() {
		if r := d.Record(f.ev[0], f.s); !r.Capturing || r.Result != cudaevents.Success {
			t.Errorf("record with a status that cannot be had: %+v", r)
		}
	})
	failing("cuStreamIsCapturing", 0, func() {
		if !f.g.StreamIsCapturing(f.s) {
			t.Error("a status that cannot be had is not capturing")
		}
	})
	for _, fn := range []string{"cuCtxGetCurrent", "cuEventElapsedTime_v2"} {
		failing(fn, 0, func() {
			n, r, _ := d.Elapsed(0, []cudaevents.Pair{p}, out)
			want("elapsed", r)
			if n != 0 {
				t.Errorf("read %d pairs", n)
			}
		})
		failing(fn, 0, func() { want("pending", d.Pending(p.End)) })
		failing(fn, 0, func() { _, r := d.Since(p.Start, p.End); want("since", r) })
		failing(fn, 0, func() { want("anchor", d.Anchor(f.ev[0], f.s, 1e6).Result) })
		f.ok(d.SpinPair(f.s, 1, p))
		f.ok(f.g.Synchronize(f.s))
	}
	failing("cuEventElapsedTime_v2", 1, func() {
		n, r, _ := d.Elapsed(f.ev[0], []cudaevents.Pair{p}, out)
		if n != 1 || r != cudaevents.Success {
			t.Errorf("with an unreadable position: read %d, result %d", n, r)
		}
		want("position", out[0].SinceResult)
	})
	// A driver that wants a current context all the same is asked again with it.
	const noContext = 201
	for _, fn := range []string{"cuStreamIsCapturing", "cuEventRecord"} {
		f.ok(ctl.Fail(fn, noContext, 0, 1))
		if r := d.Record(f.ev[0], f.s); r.Capturing || r.Result != cudaevents.Success {
			t.Errorf("record where %s wants a context: %+v", fn, r)
		}
		ctl.ClearFaults()
	}
	f.ok(ctl.Fail("cuStreamIsCapturing", noContext, 0, 1))
	f.ok(ctl.Fail("cuCtxGetCurrent", code, 0, 1))
	if r := d.Record(f.ev[0], f.s); !r.Capturing {
		t.Errorf("record without a context: %+v", r)
	}
	ctl.ClearFaults()
	failing("cuEventDestroy_v2", 0, func() {
		ev := make([]cudaevents.Event, 3)
		f.ok(d.CreateEvents(ev))
		if err := d.DestroyEvents(ev); !errors.Is(err, ErrLaunchFailed) {
			t.Errorf("destroy events: %v", err)
		}
		f.ok(d.DestroyEvents(ev[:1])) // the others are gone
	})
	// All or none.
	before := ctl.Live("event")
	failing("cuEventCreate", 3, func() {
		if err := d.CreateEvents(make([]cudaevents.Event, 5)); !errors.Is(err, ErrLaunchFailed) {
			t.Errorf("create events: %v", err)
		}
	})
	if n := ctl.Live("event"); n != before {
		t.Errorf("%d events are left of a pool that could not be made", n-before)
	}
	// No more is read than there is room for.
	if n, r, _ := d.Elapsed(0, []cudaevents.Pair{p, p, p}, out); n != 1 || r != cudaevents.Success {
		t.Errorf("3 pairs and room for 1: read %d, result %d", n, r)
	}
	// A spin in somebody's capture would be a node of their graph.
	f.ok(f.g.BeginCapture(f.s))
	if err := d.SpinPair(f.s, 1, p); !errors.Is(err, ErrCaptureUnsupported) {
		t.Errorf("spin on a capturing stream: %v", err)
	}
	gr, err := f.g.EndCapture(f.s)
	f.ok(err)
	f.ok(f.g.DestroyGraph(gr))
}

// TestTimedLaunchFaults fails each call of a timed launch: the launch's own error
// is the engine's, the rest is telemetry's.
func TestTimedLaunchFaults(t *testing.T) {
	lib, ctl := controlled(t)
	hub, err := lanetrace.OpenHeap(lanetrace.Config{Level: "kernel", HarvestEvery: -1, NoCalibration: true, Pairs: 64, KernelSpanEvery: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	defer hub.Close(context.Background()) //nolint:errcheck // the GPU is closed first
	f := newFixture(t, Config{Library: lib, Hub: hub})
	dev, ring := f.g.Telemetry(), hub.Ring()
	for _, c := range []struct {
		function string
		skip     int
		launched bool
		counter  spanring.Counter
	}{
		{"", 0, true, spanring.CtrLanded},
		{"cuEventRecord", 0, true, spanring.FailRecord.Counter()},
		{"cuEventRecord", 1, true, spanring.FailRecord.Counter()},
		{"cuLaunchKernel", 0, false, spanring.FailLaunch.Counter()},
		{"cuStreamIsCapturing", 0, true, spanring.CtrCapturing},
		{"cuEventElapsedTime_v2", 0, true, spanring.CtrStarved}, // whether it was pending is not known
	} {
		hub.Arm(1)
		step := hub.StepBegin()
		dev.Bind(step, f.s)
		before := ring.Counter(c.counter)
		launches := ctl.Calls("cuLaunchKernel")
		if c.function != "" {
			f.ok(ctl.Fail(c.function, 719, c.skip, 1))
		}
		err := f.launch(f.s)
		ctl.ClearFaults()
		if c.launched != (err == nil) || err != nil && !errors.Is(err, ErrLaunchFailed) {
			t.Errorf("%s %d fails: the launch returned %v", c.function, c.skip, err)
		}
		if n := ctl.Calls("cuLaunchKernel") - launches; n != 1 {
			t.Errorf("%s %d fails: launched %d times", c.function, c.skip, n)
		}
		dev.Bind(lanetrace.Step{}, f.s)
		f.ok(f.g.Synchronize(f.s))
		f.ok(dev.Recorder().Drain(context.Background()))
		if n := ring.Counter(c.counter) - before; n != 1 {
			t.Errorf("%s %d fails: %s went up by %d", c.function, c.skip, c.counter, n)
		}
		step.End()
	}
	if c := ring.Counters(); c.InFlight() != 0 {
		t.Errorf("%d spans in flight", c.InFlight())
	}
}

// TestCallsAreCounted holds telemetry's account of its driver calls against the
// driver's own.
func TestCallsAreCounted(t *testing.T) {
	lib, ctl := controlled(t)
	hub, err := lanetrace.OpenHeap(lanetrace.Config{Level: "kernel", HarvestEvery: -1, NoCalibration: true, Pairs: 64, KernelSpanEvery: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	defer hub.Close(context.Background()) //nolint:errcheck // the GPU is closed first
	f := newFixture(t, Config{Library: lib, Hub: hub})
	dev, ring, lane := f.g.Telemetry(), hub.Ring(), hub.Lane("decode")
	round := func(armed bool) {
		if armed {
			hub.Arm(1)
		}
		step := hub.StepBegin()
		l := dev.LaneBegin(step, lane, f.s)
		f.ok(f.launch(f.s))
		f.ok(f.g.LaunchGraph(f.gr, f.s))
		l.End()
		step.End()
		f.ok(f.g.Synchronize(f.s))
		hub.Harvest()
	}
	round(true) // streams are identified, the clock has its anchor
	f.ok(dev.Recorder().Drain(context.Background()))
	for _, armed := range []bool{false, true} {
		ours, all := ring.Counter(spanring.CtrDriverCalls), ctl.TotalCalls()
		for range 10 {
			round(armed)
		}
		f.ok(dev.Recorder().Drain(context.Background()))
		ours, all = ring.Counter(spanring.CtrDriverCalls)-ours, ctl.TotalCalls()-all
		// The engine's own: three calls a round, each with the question for the
		// current context. What changes threads meanwhile pushes and pops.
		binding := ctl.Calls("cuCtxPushCurrent_v2") + ctl.Calls("cuCtxPopCurrent_v2")
		if engine := uint64(10 * 3 * 2); all < ours+engine || all > ours+engine+binding {
			t.Errorf("armed %v: the driver counts %d calls, telemetry %d of its own, the engine made %d", armed, all, ours, engine)
		}
	}
}

func elsewhere(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlock: the thread ends with its state
		f()
	}()
	<-done
}

// TestThreadsKeepTheirState calls every kind of operation from a thread that has
// another context and another capture mode.
func TestThreadsKeepTheirState(t *testing.T) {
	lib := anyDriver(t)
	f := newFixture(t, Config{Library: lib})
	rd, err := raw.Open(lib)
	f.ok(err)
	d := f.g.Driver()
	everything := func() {
		host := make([]byte, 64)
		out := make([]cudaevents.Times, 1)
		ev := make([]cudaevents.Event, 1)
		p := cudaevents.Pair{Start: f.ev[0], End: f.ev[1]}
		for what, err := range map[string]error{
			"Launch": f.launch(f.s), "LaunchGraph": f.g.LaunchGraph(f.gr, f.s), "RecordEvent": f.g.RecordEvent(f.e, f.s),
			"CopyHtoD": f.g.CopyHtoD(f.p, host), "CopyHtoDAsync": f.g.CopyHtoDAsync(f.p, host, f.s),
			"CopyDtoHOnStream": f.g.CopyDtoHOnStream(host, f.p, f.s), "MemsetAsync": f.g.MemsetAsync(f.p, 0, 1, f.s),
			"captured": f.captured(), "SpinPair": d.SpinPair(f.s, 1, p), "Synchronize": f.g.Synchronize(f.s),
			"CreateEvents": d.CreateEvents(ev), "DestroyEvents": d.DestroyEvents(ev),
		} {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if _, err := d.StreamID(f.s); err != nil {
			t.Error(err)
		}
		if n, r, _ := d.Elapsed(0, []cudaevents.Pair{p}, out); n != 1 {
			t.Errorf("elapsed: %d", r)
		}
		if r := d.Record(f.ev[0], f.s); r.Capturing || r.Result != cudaevents.Success {
			t.Errorf("record: %+v", r)
		}
		if try := d.Anchor(f.ev[0], f.s, 1e9); try.Result != cudaevents.Success {
			t.Errorf("anchor: %+v", try)
		}
	}
	state := func() (s [2]uintptr) {
		c, err := rd.Current()
		if err != nil {
			t.Error(err)
		}
		m, err := rd.ExchangeMode(1)
		if err != nil {
			t.Error(err)
		}
		if _, err := rd.ExchangeMode(m); err != nil {
			t.Error(err)
		}
		return [2]uintptr{c, uintptr(m)}
	}
	elsewhere(func() {
		before := state()
		everything()
		if d := cmp.Diff(before, state()); d != "" || before[0] != 0 {
			t.Errorf("a thread without a context (-before +after):\n%s", d)
		}
	})
	elsewhere(func() {
		if err := rd.WithContext(func(ctx uintptr) {
			if _, err := rd.ExchangeMode(1); err != nil {
				t.Error(err)
			}
			before := state()
			everything()
			if d := cmp.Diff(before, state()); d != "" || before != [2]uintptr{ctx, 1} {
				t.Errorf("a thread with a context and a mode of its own (-before +after):\n%s", d)
			}
		}); err != nil {
			t.Error(err)
		}
	})
}

// TestCompilersWords are in the error about PTX that it refuses.
func TestCompilersWords(t *testing.T) {
	lib := anyDriver(t)
	f := newFixture(t, Config{Library: lib})
	bad := strings.Replace(string(conformance.Image), ".visible .entry lt_test_store(", ".visible .entry 17(", 1)
	err := f.g.LoadModule("bad", []byte(bad))
	var e *Error
	if !errors.As(err, &e) || e.Detail == "" {
		t.Errorf("nonsense in PTX: %v, want the compiler's words", err)
	}
	t.Log(err)
}

// TestCloseOfAStuckGPU returns, says why and frees nothing: the driver might wait
// for ever.
func TestCloseOfAStuckGPU(t *testing.T) {
	lib, ctl := controlled(t)
	const inDriver = "a goroutine in the driver"
	for _, name := range []string{"a stalled stream", "a destroyed stream that waits", inDriver} {
		t.Run(name, func(t *testing.T) {
			hub, err := lanetrace.OpenHeap(lanetrace.Config{Level: "lane", HarvestEvery: -1, NoCalibration: true, Pairs: 16})
			if err != nil {
				t.Fatal(err)
			}
			defer hub.Close(context.Background()) //nolint:errcheck // the GPU is closed first
			g, err := Open(Config{Library: lib, Hub: hub, DrainWait: 100 * time.Millisecond, Logger: testLogger(t)})
			if err != nil {
				t.Fatal(err)
			}
			f := &fixture{t: t, g: g}
			f.ok(g.LoadModule(conformance.Module, conformance.Image))
			f.k, err = g.Kernel(conformance.Module, "lt_spin")
			f.ok(err)
			f.s, err = g.CreateStream()
			f.ok(err)
			f.p, err = g.Alloc(1)
			f.ok(err)
			step := hub.StepBegin()
			l := g.Telemetry().LaneBegin(step, hub.Lane("decode"), f.s)
			holder := f.s
			if name == "a destroyed stream that waits" {
				// For a stream that this GPU knows nothing of.
				other := openTest(t, Config{Library: lib})
				defer func() { f.ok(other.Close()) }()
				holder, err = other.CreateStream()
				f.ok(err)
				e, err := other.CreateEvent()
				f.ok(err)
				stall(t, ctl, holder, true)
				f.ok(other.MemsetAsync(f.p, 1, 1, holder))
				f.ok(other.RecordEvent(e, holder))
				if r := g.ctx.streamWait(f.s, e); r != Success {
					t.Fatal(r)
				}
			} else {
				stall(t, ctl, holder, true)
			}
			f.ok(f.launch(f.s))
			l.End()
			step.End()
			release := func() { stall(t, ctl, holder, false) }
			waited := make(chan error, 1)
			switch name {
			case inDriver:
				go func() { waited <- g.Synchronize(f.s) }()
				until(t, "it is in the driver", func() bool { return ctl.Calls("cuStreamSynchronize") > 0 })
			case "a destroyed stream that waits":
				f.ok(g.DestroyStream(f.s))
				waited <- nil
			default:
				waited <- nil
			}
			modules := ctl.Live("module")
			if err := g.Close(); !errors.Is(err, ErrNotReady) || !strings.Contains(err.Error(), "still in flight") {
				t.Errorf("close: %v", err)
			}
			if n := ctl.Live("module"); n != modules {
				t.Errorf("%d modules, were %d: unloaded under a kernel's feet", n, modules)
			}
			if _, err := g.CreateStream(); !errors.Is(err, ErrDeinitialized) {
				t.Errorf("used after a close that failed: %v", err)
			}
			if rc := hub.Ring().Counters(); rc.InFlight() != 0 {
				t.Errorf("%d spans in flight after the close", rc.InFlight())
			}
			release()
			f.ok(<-waited)
			// What is left is given back for the tests that count it.
			g.closing.Store(false)
			g.released.Store(false)
			g.cfg.DrainWait = 5 * time.Second
			f.ok(g.Close())
			ctl.ResetCalls()
		})
	}
}

// stall stops a stream or lets it go on.
func stall(t testing.TB, ctl *control.Driver, s backend.Stream, on bool) {
	t.Helper()
	if r := ctl.StallStream(uintptr(s), on); r != 0 {
		t.Fatalf("stall stream %#x: %d", s, r)
	}
}

// until polls, for a minute at most: a driver tells of nothing by itself.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(100 * time.Microsecond)
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

// TestFailedContext: after a kernel's fault every call fails, and Close ends all
// the same.
func TestFailedContext(t *testing.T) {
	lib, ctl := controlled(t)
	hub, err := lanetrace.OpenHeap(lanetrace.Config{Level: "lane", HarvestEvery: -1, NoCalibration: true, Pairs: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer hub.Close(context.Background()) //nolint:errcheck // the GPU is closed first
	g := openTest(t, Config{Library: lib, Hub: hub})
	step := hub.StepBegin()
	l := g.Telemetry().LaneBegin(step, hub.Lane("decode"), g.DefaultStream())
	l.End()
	ctl.SetSticky(700)
	if err := g.Synchronize(g.DefaultStream()); !errors.Is(err, ErrIllegalAddress) {
		t.Errorf("synchronize: %v", err)
	}
	step.End()
	if err := g.Close(); !errors.Is(err, ErrIllegalAddress) {
		t.Errorf("close: %v", err)
	}
	if c := hub.Ring().Counters(); c.InFlight() != 0 || c[spanring.FailUnreadable.Counter()] != 1 {
		t.Errorf("in flight %d, unreadable %d", c.InFlight(), c[spanring.FailUnreadable.Counter()])
	}
	ctl.ClearFaults()
}

// TestStagingRing fills the ring many times over while its copies cannot move.
func TestStagingRing(t *testing.T) {
	lib, ctl := controlled(t)
	f := newFixture(t, Config{Library: lib, StagingBytes: 64 << 10})
	src := make([]byte, 10_000)
	fill := func(v byte) []byte {
		for i := range src {
			src[i] = v
		}
		return src
	}
	stall(t, ctl, f.s, true)
	// Six copies of 10,000 fit into 64 KiB; the seventh waits for the first.
	for i := range 6 {
		f.ok(f.g.CopyHtoDAsync(f.p+backend.DevicePtr(i*10_000), fill(byte(i)), f.s))
	}
	done := make(chan error)
	go func() { done <- f.g.CopyHtoDAsync(f.p+60_000, fill(6), f.s) }()
	until(t, "the seventh waits", func() bool { return ctl.Calls("cuEventSynchronize") > 0 })
	select {
	case err := <-done:
		t.Fatalf("the seventh copy did not wait: %v", err)
	default:
	}
	stall(t, ctl, f.s, false)
	f.ok(<-done)
	got := make([]byte, 70_000)
	f.ok(f.g.CopyDtoHOnStream(got, f.p, f.s))
	for i, b := range got {
		if b != byte(i/10_000) {
			t.Fatalf("byte %d is %d, want %d", i, b, i/10_000)
		}
	}
	// Without an event there is no copy.
	for len(f.g.stage.copies) > 1 {
		if r := f.g.stage.reclaim(false); r != Success {
			t.Fatal(r)
		}
	}
	events := f.g.stage.events
	f.g.stage.events = nil
	f.ok(ctl.Fail("cuEventCreate", 719, 0, 1))
	f.ok(ctl.Fail("cuEventQuery", 600, 0, 1))
	if err := f.g.CopyHtoDAsync(f.p, src, f.s); !errors.Is(err, ErrLaunchFailed) {
		t.Errorf("without an event: %v", err)
	}
	ctl.ClearFaults()
	f.g.stage.events = append(f.g.stage.events, events...)
	// An event that fails while it is waited for is the copy's error.
	f.ok(ctl.Fail("cuEventQuery", 719, 0, 0))
	f.ok(ctl.Fail("cuEventSynchronize", 719, 0, 0))
	var err error
	for range 20 {
		if err = f.g.CopyHtoDAsync(f.p, src, f.s); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrLaunchFailed) {
		t.Errorf("with a failing event: %v", err)
	}
	ctl.ClearFaults()
	f.ok(f.g.CopyHtoDAsync(f.p, src, f.s))
}

// TestCapturedCopies: a stream that joined a capture keeps its host memory with
// that capture's graph.
func TestCapturedCopies(t *testing.T) {
	lib, ctl := controlled(t)
	f := newFixture(t, Config{Library: lib})
	other, err := f.g.CreateStream()
	f.ok(err)
	join, err := f.g.CreateEvent()
	f.ok(err)
	f.ok(f.g.BeginCapture(f.s))
	f.ok(f.g.RecordEvent(f.e, f.s))
	f.ok(f.g.StreamWaitEvent(other, f.e))
	f.ok(f.g.CopyHtoDAsync(f.p, []byte{7, 8, 9}, other))
	f.ok(ctl.Fail("cuMemcpyHtoDAsync_v2", 719, 0, 1))
	if err := f.g.CopyHtoDAsync(f.p, []byte{1}, other); !errors.Is(err, ErrLaunchFailed) {
		t.Errorf("a captured copy that fails: %v", err)
	}
	f.ok(ctl.Fail("cuMemAllocHost_v2", 719, 0, 1))
	if err := f.g.CopyHtoDAsync(f.p, []byte{1}, other); !errors.Is(err, ErrLaunchFailed) {
		t.Errorf("a captured copy without host memory: %v", err)
	}
	f.ok(f.g.RecordEvent(join, other))
	f.ok(f.g.StreamWaitEvent(f.s, join))
	gr, err := f.g.EndCapture(f.s)
	f.ok(err)
	if n := len(f.g.graphs[gr].held); n != 1 || len(f.g.orphans) != 0 {
		t.Errorf("the graph holds %d pieces of host memory, %d belong to none", n, len(f.g.orphans))
	}
	f.ok(f.g.LaunchGraph(gr, other))
	var got [3]byte
	f.ok(f.g.CopyDtoHOnStream(got[:], f.p, other))
	if got != [3]byte{7, 8, 9} {
		t.Errorf("got %v", got)
	}
	f.ok(f.g.DestroyGraph(gr))
}

// TestWrongThread: in a stricter mode a capture has to end where it began.
func TestWrongThread(t *testing.T) {
	lib := anyDriver(t)
	f := newFixture(t, Config{Library: lib, Capture: CaptureThreadLocal})
	elsewhere(func() {
		if err := f.g.BeginCapture(f.s); err != nil {
			t.Error(err)
		}
		elsewhere(func() {
			if _, err := f.g.EndCapture(f.s); !errors.Is(err, ErrCaptureWrongThread) {
				t.Errorf("ended on another thread: %v", err)
			}
		})
	})
	if f.g.StreamIsCapturing(f.s) || f.g.Driver().Capturing() {
		t.Error("that was not its end")
	}
	f.ok(f.launch(f.s))
	f.ok(f.g.Synchronize(f.s))
	elsewhere(func() {
		if err := f.g.BeginCapture(f.s); err != nil {
			t.Error(err)
		}
		if err := f.launch(f.s); err != nil {
			t.Error(err)
		}
		gr, err := f.g.EndCapture(f.s)
		if err != nil {
			t.Error(err)
		}
		if err := f.g.LaunchGraph(gr, f.s); err != nil {
			t.Error(err)
		}
	})
	f.ok(f.g.Synchronize(f.s))
}

// TestForeignCapture: host memory of a capture that was not begun here lives until
// the GPU is closed.
func TestForeignCapture(t *testing.T) {
	lib, ctl := controlled(t)
	f := newFixture(t, Config{Library: lib})
	if r := f.g.ctx.captureBegin(f.s, CaptureRelaxed); r != Success {
		t.Fatal(r)
	}
	f.ok(f.g.CopyHtoDAsync(f.p, []byte{1}, f.s))
	if n := len(f.g.orphans); n != 1 {
		t.Errorf("%d pieces of host memory are kept, want 1", n)
	}
	if _, err := f.g.EndCapture(f.s); !errors.Is(err, ErrIllegalState) {
		t.Errorf("ending somebody else's capture: %v", err)
	}
	// A stream that captures for somebody else can be destroyed.
	f.ok(f.g.DestroyStream(f.s))
	var err error
	f.s, err = f.g.CreateStream()
	f.ok(err)
	f.ok(ctl.Fail("cuEventRecord", 719, 0, 0))
	f.ok(f.g.DestroyStream(f.s)) // only Close's wait for it is lost
	ctl.ClearFaults()
}

// TestHostMemoryNotFreed is logged: the engine can do nothing about it.
func TestHostMemoryNotFreed(t *testing.T) {
	lib, ctl := controlled(t)
	f := newFixture(t, Config{Library: lib})
	f.ok(f.g.BeginCapture(f.s))
	f.ok(f.g.CopyHtoDAsync(f.p, []byte{1}, f.s))
	gr, err := f.g.EndCapture(f.s)
	f.ok(err)
	var log strings.Builder
	f.g.log = slog.New(slog.NewTextHandler(&log, nil))
	f.ok(ctl.Fail("cuMemFreeHost", 719, 0, 1))
	f.ok(f.g.DestroyGraph(gr))
	if !strings.Contains(log.String(), "host memory of a graph was not freed") {
		t.Errorf("log: %s", log.String())
	}
}

// TestGraphsLeftOpen are destroyed by Close, with what they hold, and a driver
// that refuses something then is heard.
func TestGraphsLeftOpen(t *testing.T) {
	lib, ctl := controlled(t)
	g := openTest(t, Config{Library: lib})
	f := &fixture{t: t, g: g, s: g.DefaultStream()}
	var err error
	f.p, err = g.Alloc(16)
	f.ok(err)
	for range 2 {
		f.ok(g.BeginCapture(f.s))
		f.ok(g.CopyHtoDAsync(f.p, []byte{1}, f.s))
		_, err = g.EndCapture(f.s)
		f.ok(err)
	}
	_, err = g.CreateEvent()
	f.ok(err)
	f.ok(ctl.Fail("cuGraphExecDestroy", 719, 1, 1))
	f.ok(ctl.Fail("cuDevicePrimaryCtxRelease_v2", 720, 0, 1))
	err = g.Close()
	ctl.ClearFaults()
	for _, want := range []string{"destroy graph", "release the primary context of device 0"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("close: %v, want %q", err, want)
		}
	}
	if !errors.Is(err, ErrLaunchFailed) || !errors.Is(err, Result(720)) {
		t.Errorf("close: %v, want both codes", err)
	}
	// The context that was not given back.
	rd, err := raw.Open(lib)
	f.ok(err)
	f.ok(rd.ReleasePrimary())
}

// TestOpenFails under each call that opening makes, and leaves nothing behind.
func TestOpenFails(t *testing.T) {
	lib, ctl := controlled(t)
	contexts, streams := ctl.Live("context"), ctl.Live("stream")
	for _, c := range []struct {
		function string
		says     string
	}{
		{"cuInit", "initialise the driver"},
		{"cuDeviceGetCount", "count devices"},
		{"cuDeviceGet", "find the device 0"},
		{"cuDriverGetVersion", "describe the device"},
		{"cuDeviceGetName", "describe the device"},
		{"cuDeviceGetAttribute", "describe the device"},
		{"cuDeviceTotalMem_v2", "describe the device"},
		{"cuDevicePrimaryCtxRetain", "retain the primary context of device 0"},
		{"cuStreamCreate", "create the default stream"},
	} {
		if err := ctl.Fail(c.function, 802, 0, 1); err != nil {
			t.Fatal(err)
		}
		g, err := Open(Config{Library: lib})
		ctl.ClearFaults()
		if err == nil {
			t.Errorf("%s fails: opened", c.function)
			_ = g.Close()
		} else if !errors.Is(err, Result(802)) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s fails: %v, want %q", c.function, err, c.says)
		}
	}
	hub, err := lanetrace.OpenHeap(lanetrace.Config{Level: "off"})
	if err != nil {
		t.Fatal(err)
	}
	if err := hub.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if g, err := Open(Config{Library: lib, Hub: hub}); err == nil {
		t.Error("opened with a hub that is closed")
		_ = g.Close()
	} else if !strings.Contains(err.Error(), "open device 0: ") {
		t.Errorf("with a hub that is closed: %v", err)
	}
	if c, s := ctl.Live("context"), ctl.Live("stream"); c != contexts || s != streams {
		t.Errorf("%d contexts and %d streams are left", c-contexts, s-streams)
	}
}

// TestDriversOwnNames: a code that this package does not know has the driver's
// name for it.
func TestDriversOwnNames(t *testing.T) {
	lib, ctl := controlled(t)
	g := openTest(t, Config{Library: lib})
	known := names[ErrIllegalAddress]
	delete(names, ErrIllegalAddress)
	defer func() { names[ErrIllegalAddress] = known }()
	if err := ctl.Fail("cuEventCreate", 700, 0, 1); err != nil {
		t.Fatal(err)
	}
	_, err := g.CreateEvent()
	if want := "cuda: create event: CUDA_ERROR_ILLEGAL_ADDRESS (700)"; err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// TestMIG: an instance has an identity of its own.
func TestMIG(t *testing.T) {
	standIn(t)
	lib := testdriver.Build(t)
	g := openTest(t, Config{Library: lib})
	if g.info.mig || g.Driver().Device().MIG {
		t.Error("a whole GPU is taken for an instance")
	}
	if g.DriverVersion() < 11040 || g.Capability() != g.Driver().Device().Capability {
		t.Errorf("driver %d, capability %d", g.DriverVersion(), g.Capability())
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}
