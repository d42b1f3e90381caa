package sim_test

import (
	"bytes"
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/backend/conformance"
	"github.com/lanetrace/lanetrace/backend/sim"
	"github.com/lanetrace/lanetrace/cudaevents"
)

// manual is a GPU whose clock the test moves.
type manual struct {
	t     *testing.T
	clock *sim.ManualClock
	gpu   *sim.GPU
	drv   cudaevents.Driver
	log   bytes.Buffer
}

func newManual(t *testing.T, cfg sim.Config) *manual {
	t.Helper()
	m := &manual{t: t, clock: sim.NewManualClock(1_000_000)}
	cfg.Clock, cfg.Logger = m.clock, slog.New(slog.NewTextHandler(&m.log, nil))
	if cfg.Modules == nil {
		cfg.Modules = conformance.SimModules()
	}
	g, err := sim.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	m.gpu, m.drv = g, g.Driver()
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func (m *manual) ok(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *manual) kernel(module, name string) backend.Kernel {
	m.t.Helper()
	if !m.gpu.HasModule(module) {
		m.ok(m.gpu.LoadModule(module, nil))
	}
	k, err := m.gpu.Kernel(module, name)
	m.ok(err)
	return k
}

func (m *manual) stream() backend.Stream {
	m.t.Helper()
	s, err := m.gpu.CreateStream()
	m.ok(err)
	return s
}

func (m *manual) events(n int) []cudaevents.Event {
	m.t.Helper()
	ev := make([]cudaevents.Event, n)
	m.ok(m.drv.CreateEvents(ev))
	return ev
}

func (m *manual) record(e cudaevents.Event, s backend.Stream) {
	m.t.Helper()
	if r := m.drv.Record(e, s); r.Capturing || r.Result != cudaevents.Success {
		m.t.Fatalf("record: %+v", r)
	}
}

var one = backend.Dim3{1, 1, 1}

func (m *manual) spin(k backend.Kernel, s backend.Stream, cycles uint64) {
	m.t.Helper()
	m.ok(m.gpu.Launch(k, &backend.Launch{Grid: one, Block: one, Stream: s, Args: []backend.Arg{backend.U64(cycles)}}))
}

// TestTimesAreComputed holds every stamp against the model, to the nanosecond.
func TestTimesAreComputed(t *testing.T) {
	// 1,980 cycles are a microsecond; the fixed part of a spin is 523 ns.
	m := newManual(t, sim.Config{LaunchLatency: 4 * time.Microsecond, RecordCost: 1000, AfterRecord: 500})
	k := m.kernel(conformance.Module, "lt_spin")
	a, b := m.stream(), m.stream()
	ev := m.events(6)
	since := func(from, to int) float64 {
		t.Helper()
		ms, r := m.drv.Since(ev[from], ev[to])
		if r != cudaevents.Success {
			t.Fatalf("since %d %d: %d", from, to, r)
		}
		return math.Round(float64(ms) * 1e6)
	}
	m.record(ev[0], a)  // 4,000 to 5,000
	m.spin(k, a, 19800) // 5,500 to 16,023
	m.record(ev[1], a)  // to 17,023
	m.record(ev[2], b)  // 4,000 to 5,000
	m.clock.Advance(20 * time.Microsecond)
	m.record(ev[3], b) // enqueued at 20,000: 24,000 to 25,000
	m.spin(k, b, 1980) // 25,500 to 27,023
	e, err := m.gpu.CreateEvent()
	m.ok(err)
	m.ok(m.gpu.RecordEvent(e, b)) // costs nothing
	m.ok(m.gpu.StreamWaitEvent(a, e))
	m.record(ev[4], a) // 27,023 to 28,023
	if r := m.drv.Pending(ev[4]); r != cudaevents.NotReady {
		t.Errorf("pending before its time: %d", r)
	}
	m.clock.Advance(8 * time.Microsecond) // to 28,000
	if r := m.drv.Pending(ev[4]); r != cudaevents.NotReady {
		t.Errorf("pending 23 ns before its time: %d", r)
	}
	m.clock.Advance(23)
	if r := m.drv.Pending(ev[4]); r != cudaevents.Success {
		t.Errorf("pending at its time: %d", r)
	}
	// The clock began at 1,000,000, a multiple of 32; stamps are rounded down.
	down := func(ns float64) float64 { return math.Floor(ns/32) * 32 }
	got := []float64{since(0, 1), since(0, 2), since(0, 3), since(0, 4), since(1, 0)}
	at := func(ns float64) float64 { return down(1_000_000 + ns) }
	want := []float64{
		at(17_023) - at(5_000), 0, at(25_000) - at(5_000), at(28_023) - at(5_000), at(5_000) - at(17_023),
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("ns between events (-want +got):\n%s", d)
	}
}

// TestTimeScale stretches kernels and copies and nothing else.
func TestTimeScale(t *testing.T) {
	m := newManual(t, sim.Config{TimeScale: 10, RecordCost: 320, AfterRecord: -1, LaunchLatency: -1, CopyCost: 100})
	k := m.kernel(conformance.Module, "lt_spin")
	s, ev := m.stream(), m.events(3)
	m.record(ev[0], s)
	m.spin(k, s, 1980) // (1,000 + 523) * 10
	m.record(ev[1], s)
	p, err := m.gpu.Alloc(50_000)
	m.ok(err)
	m.ok(m.gpu.CopyHtoDAsync(p, make([]byte, 50_000), s)) // (100 + 1,000) * 10
	m.record(ev[2], s)
	m.clock.Advance(time.Millisecond)
	for i, want := range []float64{15_230 + 320, 11_000 + 320} {
		ms, r := m.drv.Since(ev[i], ev[i+1])
		if got := float64(ms) * 1e6; r != cudaevents.Success || math.Abs(got-want) > 33 {
			t.Errorf("from event %d to the next %v ns (%d), want %v", i, got, r, want)
		}
	}
}

// TestClockOffsetAndDrift reads a GPU clock that is hours off and too fast.
func TestClockOffsetAndDrift(t *testing.T) {
	m := newManual(t, sim.Config{ClockOffset: -3 * time.Hour, ClockDriftPPB: 11_800, RecordCost: -1, LaunchLatency: -1})
	s, ev := m.stream(), m.events(2)
	m.record(ev[0], s)
	m.clock.Advance(1000 * time.Second)
	m.record(ev[1], s)
	m.clock.Advance(0)
	ms, r := m.drv.Since(ev[0], ev[1])
	// 1,000 s at 11.8 ppm are 11.8 ms; a 32-bit float of a million ms is good to 63 µs.
	if want := 1_000_011.8; r != cudaevents.Success || math.Abs(float64(ms)-want) > 0.07 {
		t.Errorf("1,000 s are %v ms on the GPU (%d), want %v", ms, r, want)
	}
}

func TestAnchorMovesAManualClock(t *testing.T) {
	m := newManual(t, sim.Config{})
	s, ev := m.stream(), m.events(2)
	try := m.drv.Anchor(ev[0], s, 200_000)
	if d := try.AfterMonoNS - try.BeforeMonoNS; try.Result != cudaevents.Success || d != 5_460 {
		t.Errorf("on an idle stream: %+v, %d ns wide, want 4,000 + 1,460", try, d)
	}
	m.spin(m.kernel(conformance.Module, "lt_spin"), s, 1980*1000)
	try = m.drv.Anchor(ev[1], s, 200_000)
	if d := try.AfterMonoNS - try.BeforeMonoNS; try.Result != cudaevents.NotReady || d != 200_000 {
		t.Errorf("behind work: %+v, %d ns wide, want given up after 200,000", try, d)
	}
}

func TestStall(t *testing.T) {
	m := newManual(t, sim.Config{LaunchLatency: -1, RecordCost: -1, AfterRecord: -1})
	k := m.kernel(conformance.Module, "lt_spin")
	s, other, ev := m.stream(), m.stream(), m.events(4)
	m.record(ev[0], s)
	m.clock.Advance(0)
	m.spin(k, s, 19_800)
	m.record(ev[1], s)
	m.clock.Advance(5 * time.Microsecond) // half of it
	m.ok(m.gpu.Stall(s))
	m.record(ev[2], other)
	m.clock.Advance(time.Second)
	if r := m.drv.Pending(ev[1]); r != cudaevents.NotReady {
		t.Errorf("on a stalled stream: %d", r)
	}
	if r := m.drv.Pending(ev[2]); r != cudaevents.Success {
		t.Errorf("on another stream: %d", r)
	}
	m.ok(m.gpu.Resume(s))
	m.ok(m.gpu.Resume(s))
	m.clock.Advance(0)
	ms, r := m.drv.Since(ev[0], ev[1])
	if r != cudaevents.Success || float64(ms) < 1000.005 || float64(ms) > 1000.006 {
		t.Errorf("held back for a second: %v ms (%d)", ms, r)
	}
	if err := m.gpu.Stall(0xdead0); !errors.Is(err, cudaevents.Result(400)) {
		t.Errorf("stalling no stream: %v", err)
	}
}

func TestFailNext(t *testing.T) {
	m := newManual(t, sim.Config{})
	const code = cudaevents.Result(999)
	if err := m.gpu.FailNext("Lunch", code, 1); err == nil || !strings.Contains(err.Error(), "Launch") {
		t.Errorf("a misspelt call: %v", err)
	}
	s, ev := m.stream(), m.events(2)
	k := m.kernel(conformance.Module, "lt_spin")
	launch := func() error {
		return m.gpu.Launch(k, &backend.Launch{Grid: one, Block: one, Stream: s, Args: []backend.Arg{backend.U64(1)}})
	}
	for name, call := range map[string]func() error{
		"Launch":       launch,
		"Synchronize":  func() error { m.clock.Advance(time.Second); return m.gpu.Synchronize(s) },
		"CreateStream": func() error { _, err := m.gpu.CreateStream(); return err },
		"CreateEvents": func() error { return m.drv.CreateEvents(make([]cudaevents.Event, 1)) },
		"StreamID":     func() error { _, err := m.drv.StreamID(s); return err },
		"Spin":         func() error { return m.drv.SpinPair(s, 1, cudaevents.Pair{Start: ev[0], End: ev[1]}) },
		"Alloc":        func() error { _, err := m.gpu.Alloc(1); return err },
	} {
		m.ok(m.gpu.FailNext(name, code, 2))
		got := []bool{}
		for range 3 {
			err := call()
			got = append(got, errors.Is(err, code))
			if err != nil && !errors.Is(err, code) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if d := cmp.Diff([]bool{true, true, false}, got); d != "" {
			t.Errorf("%s: which calls failed (-want +got):\n%s", name, d)
		}
	}
	m.ok(m.gpu.FailNext("Record", code, 1))
	if r := m.drv.Record(ev[0], s); r.Result != code || r.Capturing {
		t.Errorf("failed record: %+v", r)
	}
	m.ok(m.gpu.FailNext("StreamIsCapturing", code, 2))
	if r := m.drv.Record(ev[0], s); !r.Capturing {
		t.Errorf("record with a status that cannot be had: %+v", r)
	}
	if !m.gpu.StreamIsCapturing(s) {
		t.Error("a status that cannot be had is not capturing")
	}
	m.record(ev[0], s)
	m.record(ev[1], s)
	m.clock.Advance(time.Second)
	m.ok(m.gpu.FailNext("Elapsed", code, 1))
	out := make([]cudaevents.Times, 1)
	for i, want := range []cudaevents.Result{code, cudaevents.Success} {
		if _, r, _ := m.drv.Elapsed(0, []cudaevents.Pair{{Start: ev[0], End: ev[1]}}, out); r != want {
			t.Errorf("elapsed %d: %d, want %d", i, r, want)
		}
	}
}

// TestFaultyKernels: what a kernel does wrong fails the GPU, not the process.
func TestFaultyKernels(t *testing.T) {
	for name, body := range map[string]func(c *sim.Call){
		"past the end":         func(c *sim.Call) { c.U32s(0, 26)[25] = 1 },
		"no such memory":       func(c *sim.Call) { c.Bytes(1, 1) },
		"misaligned":           func(c *sim.Call) { c.U64s(2, 1) },
		"no such argument":     func(c *sim.Call) { c.U32(7) },
		"index out of range":   func(c *sim.Call) { c.U32s(0, 25)[c.NumArgs()*100] = 1 },
		"too much of a slice":  func(c *sim.Call) { c.F32s(0, -1) },
		"a panic of some kind": func(*sim.Call) { panic("broken") },
	} {
		t.Run(name, func(t *testing.T) {
			m := newManual(t, sim.Config{Modules: map[string]sim.Module{"m": {"bad": {Run: body}, "good": {}}}})
			p, err := m.gpu.Alloc(100)
			m.ok(err)
			s := m.stream()
			l := &backend.Launch{Grid: one, Block: one, Stream: s, Args: []backend.Arg{backend.Ptr(p), backend.Ptr(p + 4096), backend.Ptr(p + 4)}}
			ev := m.events(2)
			m.record(ev[0], s)
			m.ok(m.gpu.Launch(m.kernel("m", "bad"), l))
			m.record(ev[1], s)
			good := m.kernel("m", "good")
			m.clock.Advance(time.Second)
			const illegal = cudaevents.Result(700)
			for what, err := range map[string]error{
				"Synchronize": m.gpu.Synchronize(s), "Launch": m.gpu.Launch(good, l), "Memset": m.gpu.Memset(p, 0, 1),
			} {
				if !errors.Is(err, illegal) {
					t.Errorf("%s afterwards: %v, want an illegal address", what, err)
				}
			}
			if r := m.drv.Pending(ev[1]); r != illegal {
				t.Errorf("Pending afterwards: %d", r)
			}
			if !strings.Contains(m.log.String(), "kernel bad") {
				t.Errorf("the log does not name the kernel: %s", m.log.String())
			}
		})
	}
}

func TestKernelsSeeTheirLaunch(t *testing.T) {
	type seen struct {
		Threads uint64
		Shared  uint32
		Args    int
		Values  []any
	}
	var got seen
	m := newManual(t, sim.Config{Modules: map[string]sim.Module{"m": {"k": {
		Run: func(c *sim.Call) {
			got = seen{c.Threads(), c.SharedBytes, c.NumArgs(), []any{
				c.U8(0), c.U16(1), c.I32(2), c.I64(3), c.F32(4), c.F64(5), c.Ptr(6), c.I32s(6, 1)[0], c.U16s(6, 2)[1], c.F32s(6, 1)[0],
			}}
		},
	}}}})
	p, err := m.gpu.Alloc(8)
	m.ok(err)
	s := m.stream()
	m.ok(m.gpu.CopyHtoDAsync(p, []byte{0, 0, 0xc0, 0x3f}, s))
	m.ok(m.gpu.Launch(m.kernel("m", "k"), &backend.Launch{
		Grid: backend.Dim3{3, 2, 1}, Block: backend.Dim3{32, 4, 2}, SharedBytes: 77, Stream: s,
		Args: []backend.Arg{
			backend.U8(200), backend.U16(60_000), backend.I32(-5), backend.I64(-6), backend.F32(1.25), backend.F64(-2.5), backend.Ptr(p),
		},
	}))
	m.clock.Advance(time.Second)
	want := seen{6 * 256, 77, 7, []any{
		uint8(200), uint16(60_000), int32(-5), int64(-6), float32(1.25), -2.5, p, int32(0x3fc00000), uint16(0x3fc0), float32(1.5),
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("launch as the kernel sees it (-want +got):\n%s", d)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	m := newManual(t, sim.Config{TotalMemory: 10 * 512})
	var ps []backend.DevicePtr
	for range 10 {
		p, err := m.gpu.Alloc(500)
		m.ok(err)
		ps = append(ps, p)
	}
	if _, err := m.gpu.Alloc(1); !errors.Is(err, cudaevents.Result(2)) {
		t.Errorf("the eleventh allocation: %v, want out of memory", err)
	}
	if free, err := m.gpu.FreeMemory(); err != nil || free != 0 {
		t.Errorf("free %d, %v", free, err)
	}
	m.ok(m.gpu.Free(ps[3]))
	if p, err := m.gpu.Alloc(501); err != nil || p != ps[3] {
		t.Errorf("the address given back is not given out again: %#x, %v, want %#x", p, err, ps[3])
	}
	// A step over an allocation's end is found.
	for _, c := range []struct {
		at backend.DevicePtr
		n  int
		ok bool
	}{{ps[0], 500, true}, {ps[0], 501, false}, {ps[0] + 499, 1, true}, {ps[0] + 500, 1, false}, {ps[0] - 1, 1, false}} {
		if err := m.gpu.MemsetAsync(c.at, 1, c.n, 0); (err == nil) != c.ok {
			t.Errorf("%d bytes at %d: %v", c.n, c.at-ps[0], err)
		}
	}
}

func TestBadConfig(t *testing.T) {
	for name, c := range map[string]sim.Config{
		"time scale":  {TimeScale: -1},
		"memory":      {TotalMemory: -1},
		"kernel cost": {KernelCost: -1},
		"drift":       {ClockDriftPPB: 1e9},
		"parameters":  {Modules: map[string]sim.Module{"m": {"k": {Params: make([]uint8, 65)}}}},
	} {
		if g, err := sim.Open(c); err == nil {
			t.Errorf("%s: no error", name)
			_ = g.Close()
		} else if !strings.HasPrefix(err.Error(), "sim: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := newManual(t, sim.Config{})
	if err := m.gpu.LoadModule("nosuch", nil); !errors.Is(err, cudaevents.Result(500)) || !strings.Contains(err.Error(), "nosuch") {
		t.Errorf("a module that is not registered: %v", err)
	}
}

// TestCloseDropsWhatIsStuck: a stalled stream does not hold Close up for ever.
func TestCloseDropsWhatIsStuck(t *testing.T) {
	g, err := sim.Open(sim.Config{DrainWait: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	s := g.DefaultStream()
	p, err := g.Alloc(4)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Stall(s); err != nil {
		t.Fatal(err)
	}
	if err := g.MemsetAsync(p, 1, 4, s); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- g.Synchronize(s) }()
	if err := g.Close(); !errors.Is(err, cudaevents.NotReady) {
		t.Errorf("close: %v, want that work was dropped", err)
	}
	if err := <-done; err == nil {
		t.Error("a wait for work that was dropped succeeded")
	}
}

// TestIntegrated: what can be allocated of a GPU that shares the host's memory is
// the larger of both figures, what the device has its own.
func TestIntegrated(t *testing.T) {
	for _, c := range []struct{ host, free int64 }{{0, 1 << 30}, {1 << 20, 1 << 30}, {1 << 40, 1 << 40}} {
		m := newManual(t, sim.Config{TotalMemory: 1 << 30, HostAvailable: c.host})
		device, err := m.gpu.DeviceFreeMemory()
		if device != 1<<30 || err != nil {
			t.Errorf("host %d: device free %d, %v", c.host, device, err)
		}
		if free, err := m.gpu.FreeMemory(); free != c.free || err != nil {
			t.Errorf("host %d: free %d, %v, want %d", c.host, free, err, c.free)
		}
	}
}
