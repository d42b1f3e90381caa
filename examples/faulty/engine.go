package faulty

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/backend/sim"
	"github.com/lanetrace/lanetrace/launchtrace"
	"github.com/lanetrace/lanetrace/spanring"
)

// Options say which engine to run.
type Options struct {
	// Fault is what it does wrong. Required.
	Fault Fault
	// Dir is its ring directory, which must exist. Required.
	Dir string
	// Steps is how many steps it serves before the fault. Default 100, a second.
	Steps int
	// Serving, when not nil, is called once those have been served, Faulted when the
	// fault is there; what says in words what was done.
	Serving func(steps int)
	Faulted func(what string)
	// Logger gets what telemetry has to say. Default discards.
	Logger *slog.Logger
}

// The engine's figures.
const (
	pace   = 10 * time.Millisecond // from step to step
	layers = 2
	hidden = 128 // what every kernel is told; one less in a perturbed step

	pairs     = 256 // event pairs: enough for a loaded machine, and a burst runs out of them
	guardBand = 64  // bytes behind each allocation

	weightBytes  = 48 << 20
	cacheBytes   = 16 << 20
	scratchWords = 1000
	pastWords    = 3 // that an overrun writes too many
	leakedBytes  = 64 << 10
	burstLanes   = 264 // enqueued while the GPU stands still

	settleWait = 5 * time.Second
)

// engine serves one batch of sequences for ever.
type engine struct {
	o    Options
	hub  *lanetrace.Hub
	gpu  *sim.GPU
	dev  *lanetrace.Device
	k    map[string]backend.Kernel
	s    backend.Stream
	w, c backend.DevicePtr // weights and cache

	admit, prefill, decode lanetrace.LaneID
	region                 *launchtrace.Region
	leaking                bool
}

// Serve runs the engine until ctx ends, a minute or a day, and blocks meanwhile. Of
// a crash it returns too, without an error, should nobody end the process.
func Serve(ctx context.Context, o Options) (err error) {
	if o.Steps == 0 {
		o.Steps = 100
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Serving == nil {
		o.Serving = func(int) {}
	}
	if o.Faulted == nil {
		o.Faulted = func(string) {}
	}
	hub, err := lanetrace.Open(lanetrace.Config{
		Level: "lane", Dir: o.Dir, Service: "demo", Model: "faulty-" + string(o.Fault), Pairs: pairs, Logger: o.Logger,
	})
	if err == nil {
		err = hub.Disabled()
	}
	if err != nil {
		return fmt.Errorf("open telemetry of an engine with a fault: %w", err)
	}
	defer func() {
		c, cancel := context.WithTimeout(context.Background(), settleWait)
		defer cancel()
		err = errors.Join(err, hub.Close(c))
	}()
	gpu, err := sim.Open(sim.Config{
		Hub: hub, Logger: o.Logger, Modules: map[string]sim.Module{moduleName: kernels()},
		Memory: backend.MemoryConfig{Redzone: redzone()}, DrainWait: time.Second,
	})
	if err != nil {
		return fmt.Errorf("open the simulated GPU of an engine with a fault: %w", err)
	}
	defer func() {
		// A crash that did not come leaves an hour of work, which is dropped.
		if cerr := gpu.Close(); o.Fault != Crash {
			err = errors.Join(err, cerr)
		}
	}()
	e, err := newEngine(o, hub, gpu)
	if err != nil {
		return err
	}
	return e.serve(ctx)
}

func newEngine(o Options, hub *lanetrace.Hub, gpu *sim.GPU) (*engine, error) {
	e := &engine{o: o, hub: hub, gpu: gpu, dev: gpu.Telemetry(), k: make(map[string]backend.Kernel), s: gpu.DefaultStream()}
	if err := gpu.LoadModule(moduleName, nil); err != nil {
		return nil, err
	}
	for name := range kernels() {
		k, err := gpu.Kernel(moduleName, name)
		if err != nil {
			return nil, err
		}
		e.k[name] = k
	}
	var err error
	if e.w, err = gpu.Alloc(weightBytes); err != nil {
		return nil, fmt.Errorf("allocate weights: %w", err)
	}
	if e.c, err = gpu.Alloc(cacheBytes); err != nil {
		return nil, fmt.Errorf("allocate the cache: %w", err)
	}
	e.admit, e.prefill, e.decode = hub.Lane("admit"), hub.Lane("prefill"), hub.Lane("decode")
	if o.Fault == Perturb {
		e.region = gpu.LaunchTrace().Region("decode")
	}
	return e, nil
}

func (e *engine) launch(name string, args ...backend.Arg) error {
	one := backend.Dim3{1, 1, 1}
	return e.gpu.Launch(e.k[name], &backend.Launch{Grid: one, Block: backend.Dim3{128, 1, 1}, Stream: e.s, Args: args})
}

// serve serves steps, then faults, then serves on until ctx ends.
func (e *engine) serve(ctx context.Context) error {
	t := time.NewTicker(pace)
	defer t.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if ctx.Err() != nil { // both were ready: a step would wait behind what a fault left on the stream
			return nil
		}
		if _, err := e.step(hidden); err != nil {
			return err
		}
		if n != e.o.Steps {
			continue
		}
		e.o.Serving(n)
		if err := e.fault(ctx); err != nil {
			return fmt.Errorf("fault %s: %w", e.o.Fault, err)
		}
	}
}

// step serves one step whose kernels are told so a width, and says what the launch
// trace noticed, nil when it does not look.
func (e *engine) step(width uint32) (rep *launchtrace.Report, err error) {
	st := e.hub.StepBegin()
	defer st.End()
	st.SetAttrs(lanetrace.Attrs{BatchSize: 8, DecodeTokens: 8, GraphMode: spanring.GraphEager})
	// Every step takes scratch memory and gives it back.
	scratch, err := e.gpu.Alloc(4 * scratchWords)
	if err != nil {
		return nil, fmt.Errorf("allocate scratch memory: %w", err)
	}
	lane := e.dev.LaneBegin(st, e.admit, e.s)
	err = e.launch("admit", backend.Ptr(scratch), backend.U32(8))
	lane.End()
	if err != nil {
		return nil, err
	}
	if e.leaking {
		if err := e.leak(); err != nil {
			return nil, err
		}
	}
	e.region.Begin(uint64(e.s))
	lane = e.dev.LaneBegin(st, e.decode, e.s)
	err = e.pass(scratch, width)
	lane.End()
	rep = e.region.End(st.ID(), -1)
	if err != nil {
		return nil, err
	}
	if err := e.gpu.Synchronize(e.s); err != nil {
		return nil, err
	}
	return rep, e.gpu.Free(scratch)
}

// pass enqueues a decode.
func (e *engine) pass(scratch backend.DevicePtr, width uint32) error {
	err := e.launch("embed", backend.Ptr(e.w), backend.U32(hidden))
	for range layers {
		err = errors.Join(err,
			e.launch("attention", backend.Ptr(e.c), backend.U32(hidden)),
			e.launch("mlp", backend.Ptr(scratch), backend.Ptr(e.w), backend.U32(width)))
	}
	return errors.Join(err, e.launch("sample", backend.Ptr(scratch), backend.U32(8)))
}
