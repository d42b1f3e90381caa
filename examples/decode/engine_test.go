package main

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/backend/sim"
)

// simEngine is an engine on the sim without telemetry. broken kernels take the
// place of those of the same name.
func simEngine(t *testing.T, async bool, broken sim.Module) *engine {
	t.Helper()
	module := simKernels()
	for name, f := range broken {
		if _, ok := module[name]; !ok {
			t.Fatalf("no kernel %s to break", name)
		}
		module[name] = f
	}
	gpu, err := sim.Open(sim.Config{Modules: map[string]sim.Module{moduleName: module}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { gpu.Close() })
	m, err := newModel(gpu, shapes["tiny"], 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	e, err := newEngine(nil, gpu, m, async)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// streams serves n requests and returns each one's tokens.
func streams(t *testing.T, async bool, n int, rate float64) (map[int][]int32, *stats) {
	t.Helper()
	e := simEngine(t, async, nil)
	got := make(map[int][]int32)
	e.served = func(r *request) { got[r.id] = r.tokens }
	if err := e.serve(t.Context(), newArrivals(&e.model.shape, 7, rate, n, 0)); err != nil {
		t.Fatal(err)
	}
	if len(got) != n {
		t.Fatalf("%d requests served, want %d", len(got), n)
	}
	return got, &e.stats
}

// What a request generates hangs neither on the mode nor on what it was batched
// with.
func TestAsyncGeneratesTheSameTokens(t *testing.T) {
	const n = 24
	sync, _ := streams(t, false, n, 1e6)
	async, st := streams(t, true, n, 1e6)
	alone, _ := streams(t, false, n, 100)
	if diff := cmp.Diff(sync, async); diff != "" {
		t.Errorf("async (-sync +async):\n%s", diff)
	}
	if diff := cmp.Diff(sync, alone); diff != "" {
		t.Errorf("arriving slowly (-fast +slow):\n%s", diff)
	}
	if st.stopped == 0 || st.stale == 0 {
		t.Errorf("%d sequences stopped early, %d rows stale: the test covers less than it should", st.stopped, st.stale)
	}
}

func TestVerifyAgrees(t *testing.T) {
	e := simEngine(t, true, nil)
	v, err := verify(e, newReference(e.model.shape, 1), 1)
	if err != nil {
		t.Fatal(err)
	}
	if v.Sequences != 3 || v.Tokens < 6 || v.MaxDiff == 0 || v.MaxDiff > 1e-4 {
		t.Errorf("%+v", v)
	}
	if !e.async || e.stats.steps != 0 || e.inspect != nil {
		t.Errorf("verification left its traces: async %t, %d steps", e.async, e.stats.steps)
	}
}

// Every kernel's faults must show in the comparison.
func TestVerifyFindsABrokenKernel(t *testing.T) {
	good := simKernels()
	after := func(name string, spoil func(c *sim.Call)) sim.Module {
		f := good[name]
		run := f.Run
		f.Run = func(c *sim.Call) { run(c); spoil(c) }
		return sim.Module{name: f}
	}
	scale := func(i int, n func(c *sim.Call) int) func(*sim.Call) {
		return func(c *sim.Call) {
			for j, v := 0, c.F32s(i, n(c)); j < len(v); j++ {
				v[j] *= 1.01
			}
		}
	}
	s := shapes["tiny"]
	for name, broken := range map[string]sim.Module{
		"embed_rows": after("embed_rows", func(c *sim.Call) { c.F32s(0, 1)[0] += 1 }),
		"rms_norm":   after("rms_norm", scale(0, func(c *sim.Call) int { return int(c.Grid[0]) * s.hidden })),
		"matmul":     after("matmul", func(c *sim.Call) { c.F32s(0, 1)[0] += 0.1 }),
		"rope_store": after("rope_store", scale(1, func(c *sim.Call) int { return s.headDim() })),
		"attention":  after("attention", scale(0, func(c *sim.Call) int { return s.hidden })),
		"swiglu":     after("swiglu", scale(0, func(c *sim.Call) int { return s.ffn })),
		"sample":     after("sample", func(c *sim.Call) { c.I32s(0, 1)[0] ^= 1 }),
		"admit_slots": after("admit_slots", func(c *sim.Call) {
			a := c.I32s(0, 1)
			c.I32s(1, (int(a[0])+1)*s.ctx)[int(a[0])*s.ctx] ^= 1
		}),
	} {
		t.Run(name, func(t *testing.T) {
			e := simEngine(t, false, broken)
			if _, err := verify(e, newReference(s, 1), 1); err == nil || !strings.Contains(err.Error(), "numbers differ from the CPU reference: request ") {
				t.Errorf("error %v", err)
			}
		})
	}
	t.Run("weights", func(t *testing.T) {
		e := simEngine(t, false, nil)
		if _, err := verify(e, newReference(s, 2), 1); err == nil {
			t.Error("other weights give the same numbers")
		}
	})
}

// A failed launch ends serving with an error that says which.
func TestServeReportsTheLaunchThatFailed(t *testing.T) {
	e := simEngine(t, false, nil)
	if err := e.gpu.(*sim.GPU).FailNext("Launch", 719, 1); err != nil {
		t.Fatal(err)
	}
	err := e.serve(t.Context(), newArrivals(&e.model.shape, 1, 1e6, 1, 0))
	if err == nil || !strings.Contains(err.Error(), "launch admit_slots: ") {
		t.Errorf("error %v", err)
	}
}

func TestModelThatDoesNotFit(t *testing.T) {
	gpu, err := sim.Open(sim.Config{Modules: map[string]sim.Module{moduleName: simKernels()}, TotalMemory: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer gpu.Close()
	if _, err := newModel(gpu, shapes["tiny"], 1, nil); err == nil || !strings.Contains(err.Error(), "make model tiny: ") {
		t.Errorf("error %v", err)
	}
	total, _ := gpu.TotalMemory()
	if free, _ := gpu.FreeMemory(); free != total {
		t.Errorf("%d of %d bytes free after a failure", free, total)
	}
}

func TestModelFreesWhatItTook(t *testing.T) {
	e := simEngine(t, true, nil)
	total, _ := e.gpu.TotalMemory()
	if free, _ := e.gpu.FreeMemory(); free == total {
		t.Error("the model takes no memory")
	}
	if err := e.model.close(); err != nil {
		t.Fatal(err)
	}
	if free, _ := e.gpu.FreeMemory(); free != total {
		t.Errorf("%d of %d bytes free after close", free, total)
	}
	if err := e.close(); err != nil {
		t.Error(err)
	}
}

// nullGPU is a GPU that takes everything and does nothing.
type nullGPU struct{ backend.GPU }

func (nullGPU) Telemetry() *lanetrace.Device                                     { return nil }
func (nullGPU) Launch(backend.Kernel, *backend.Launch) error                     { return nil }
func (nullGPU) CopyHtoDAsync(backend.DevicePtr, []byte, backend.Stream) error    { return nil }
func (nullGPU) CopyDtoHOnStream([]byte, backend.DevicePtr, backend.Stream) error { return nil }
func (nullGPU) RecordEvent(backend.Event, backend.Stream) error                  { return nil }
func (nullGPU) StreamWaitEvent(backend.Stream, backend.Event) error              { return nil }

func TestStepsDoNotAllocate(t *testing.T) {
	for _, async := range []bool{false, true} {
		e := simEngine(t, async, nil)
		e.gpu, e.model.gpu = nullGPU{e.gpu}, nullGPU{e.gpu}
		if n := testing.AllocsPerRun(20, func() {
			if err := e.fixedRun(2); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("async %t: %v allocations in two fixed steps", async, n)
		}
		// Serving steps: the requests are made before.
		r := requestOf(&e.model.shape, 1, 0)
		r.output = 40
		e.sched.submit(r)
		if _, err := e.step(); err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(20, func() {
			if p, err := e.step(); err != nil || e.async && e.collect(p) != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("async %t: %v allocations in a serving step", async, n)
		}
	}
}

func TestArrivals(t *testing.T) {
	s := shapes["tiny"]
	a := newArrivals(&s, 1, 1000, 0, time.Second)
	n := 0
	for now := time.Duration(0); !a.over(now); now += 100 * time.Microsecond {
		for a.take(now) != nil {
			n++
		}
	}
	// A thousand expected, with a standard deviation of 32.
	if n < 850 || n > 1150 {
		t.Errorf("%d requests in a second at 1000 a second", n)
	}
	if a.take(2*time.Second) != nil {
		t.Error("a request after the end")
	}
	for id := range 200 {
		r := requestOf(&s, 3, id)
		if diff := cmp.Diff(r, requestOf(&s, 3, id), cmp.AllowUnexported(request{})); diff != "" {
			t.Fatalf("request %d is not the same twice:\n%s", id, diff)
		}
		if n := len(r.prompt); n < s.prompt[0] || n > s.prompt[1] || r.output < s.output[0] || r.output > s.output[1] {
			t.Fatalf("request %d of %d and %d tokens", id, n, r.output)
		}
		for _, token := range r.prompt {
			if token == stopToken || int(token) >= s.vocab {
				t.Fatalf("request %d has token %d in its prompt", id, token)
			}
		}
	}
}

func TestServeStopsWhenTold(t *testing.T) {
	e := simEngine(t, true, nil)
	ctx, cancel := context.WithCancel(t.Context())
	e.served = func(*request) { cancel() }
	if err := e.serve(ctx, newArrivals(&e.model.shape, 1, 1e6, 0, 0)); err != nil {
		t.Fatal(err)
	}
	if e.stats.served < 1 || e.stats.served == e.stats.came {
		t.Errorf("%d of %d served", e.stats.served, e.stats.came)
	}
}

func TestShapesAreChecked(t *testing.T) {
	for name, s := range shapes {
		if err := s.check(); err != nil || s.name != name {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, spoil := range []func(*shape){
		func(s *shape) { s.hidden = 60 }, func(s *shape) { s.heads = 3 }, func(s *shape) { s.ffn = 100 },
		func(s *shape) { s.slots = 0 }, func(s *shape) { s.rows = 0 }, func(s *shape) { s.ctx = 10 },
	} {
		s := shapes["tiny"]
		spoil(&s)
		if err := s.check(); err == nil {
			t.Errorf("%+v was accepted", s)
		}
	}
}
