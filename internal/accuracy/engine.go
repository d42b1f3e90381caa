package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/backend/cuda"
)

// engine is the process that is measured: a real hub over the real driver.
type engine struct {
	o       options
	hub     *lanetrace.Hub
	gpu     backend.GPU
	dev     *lanetrace.Device
	k       map[string]backend.Kernel
	plan    *planWriter
	s       backend.Stream // the one that is worked on
	num     int            // its number in the plan
	plugged backend.Event  // behind a plug
	passed  backend.Event  // nobody asks for it
	lane    [2]lanetrace.LaneID
}

// ready and proceed are what an engine and its parent say to each other.
const (
	ready   = "ready"
	proceed = "go"
)

// runEngine is the engine process: it makes its ring, waits until that is being
// read, does its parts and goes.
func runEngine(o options, in io.Reader, out io.Writer) (err error) {
	hub, err := lanetrace.Open(lanetrace.Config{
		Level: "kernel", Dir: o.dir, Service: "accuracy", KernelSpanEvery: 1 << 30,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err == nil {
		err = hub.Disabled()
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(out, ready)
	if line, _, err := bufio.NewReader(in).ReadLine(); err != nil || string(line) != proceed {
		return fmt.Errorf("waited to be read, got %q: %w", line, err)
	}
	e := &engine{o: o, hub: hub, k: make(map[string]backend.Kernel)}
	if e.plan, err = newPlanWriter(o.plan); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	defer func() {
		err = errors.Join(err, e.plan.close())
		if e.gpu != nil {
			err = errors.Join(err, e.gpu.Close())
		}
		err = errors.Join(err, hub.Close(ctx))
	}()
	if err := e.open(); err != nil {
		return err
	}
	work := map[string]func() error{
		"kernels": e.kernels, "cold": e.cold, "follow": e.follow, "constant": e.constant,
		"graphs": e.graphs, "lanes": e.lanes, "align": e.align,
	}
	for _, p := range o.parts {
		if f := work[p]; f != nil {
			if err := f(); err != nil {
				return fmt.Errorf("part %s: %w", p, err)
			}
		}
	}
	if err := e.landed(); err != nil {
		return err
	}
	return flushActivity(os.Getenv(activityEnv))
}

func (e *engine) open() (err error) {
	gpu, err := cuda.Open(cuda.Config{Hub: e.hub, Library: e.o.library})
	if err != nil {
		return err
	}
	e.gpu = gpu
	e.dev = e.gpu.Telemetry()
	if err := e.gpu.LoadModule(moduleName, kernelsPTX); err != nil {
		return err
	}
	for _, name := range []string{beginName, spinName, stampName, otherName} {
		if e.k[name], err = e.gpu.Kernel(moduleName, name); err != nil {
			return err
		}
	}
	for _, ev := range []*backend.Event{&e.plugged, &e.passed} {
		if *ev, err = e.gpu.CreateEvent(); err != nil {
			return err
		}
	}
	e.lane = [2]lanetrace.LaneID{e.hub.Lane("first"), e.hub.Lane("second")}
	e.s = e.gpu.DefaultStream()
	// The first launches of a process load code and grow the driver's buffers.
	for range 200 {
		if err := e.spin(grid{1, 1}, 2000); err != nil {
			return err
		}
	}
	if err := e.gpu.Synchronize(e.s); err != nil {
		return err
	}
	if err := e.gpu.Launch(e.k[beginName], &backend.Launch{Grid: backend.Dim3{1, 1, 1}, Block: backend.Dim3{1, 1, 1}, Stream: e.s}); err != nil {
		return err
	}
	return e.gpu.Synchronize(e.s)
}

// grid is a shape of launches.
type grid struct{ blocks, threads uint32 }

func (e *engine) spin(g grid, cycles uint64) error {
	return e.gpu.Launch(e.k[spinName], &backend.Launch{
		Grid: backend.Dim3{g.blocks, 1, 1}, Block: backend.Dim3{g.threads, 1, 1}, Stream: e.s,
		Args: []backend.Arg{backend.U64(cycles)},
	})
}

// landed waits until nothing is in flight.
func (e *engine) landed() error {
	for end := time.Now().Add(time.Minute); e.dev.Recorder().InFlight() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%d spans have not landed within a minute", e.dev.Recorder().InFlight())
		}
	}
	return nil
}

// job is a batch in the making.
type job struct {
	*engine
	b    batch
	step lanetrace.Step
	next uint32 // ordinal of the step's next span
	// ahead: the step ends before its work is waited for, as an asynchronous engine's.
	ahead bool
}

func (e *engine) job(r row) *job {
	return &job{engine: e, b: batch{row: r, Stream: e.num}}
}

// plug keeps the stream busy for so long, untimed, while what follows is enqueued.
func (j *job) plug(ns int64) error {
	j.b.Ops = append(j.b.Ops, op{Kind: opKernel, Name: spinName})
	if err := j.spin(grid{1, 1}, cyclesFor(ns)); err != nil {
		return err
	}
	return j.gpu.RecordEvent(j.plugged, j.s)
}

// begin begins the batch's step, on whose account launches are timed. It is asked
// for: no budget is to thin out what is measured.
func (j *job) begin() {
	j.hub.Arm(1)
	j.step, j.next = j.hub.StepBegin(), 0
	j.b.Step = j.step.ID()
	j.dev.Bind(j.step, j.s)
}

func (j *job) ordinal() uint32 { j.next++; return j.next }

// timed launches a kernel that gets a pair.
func (j *job) timed(g grid, cycles uint64) error {
	j.b.Ops = append(j.b.Ops, op{Kind: opKernel, Name: spinName, Ordinal: j.ordinal()})
	return j.spin(g, cycles)
}

// plain launches a kernel that gets none.
func (j *job) plain(g grid, cycles uint64) error {
	j.dev.Bind(lanetrace.Step{}, j.s)
	defer j.dev.Bind(j.step, j.s)
	j.b.Ops = append(j.b.Ops, op{Kind: opKernel, Name: spinName})
	return j.spin(g, cycles)
}

// end waits for the stream, ends the step and writes the plan. It notes whether the
// plug, if there was one, was still running.
func (j *job) end(plugged bool) error {
	if plugged {
		done, err := j.gpu.EventQuery(j.plugged)
		if err != nil {
			return err
		}
		j.b.Plugged = !done
	}
	j.dev.Bind(lanetrace.Step{}, j.s)
	if j.ahead {
		j.step.End()
	}
	if err := j.gpu.Synchronize(j.s); err != nil {
		return err
	}
	if !j.ahead {
		j.step.End()
	}
	if err := j.landed(); err != nil {
		return err
	}
	return j.plan.add(&j.b)
}

// plugFor is how long a plug runs for n launches to be enqueued behind it: they
// take 6 to 8 µs each, and twice that under CUPTI.
func plugFor(n int) int64 { return 500_000 + int64(n)*30_000 }

// count scales a number of samples by the flag.
func (e *engine) count(n int) int { return max(4, int(float64(n)*e.o.scale)) }
