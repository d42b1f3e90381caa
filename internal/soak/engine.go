package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/backend/sim"
	"github.com/lanetrace/lanetrace/spanring"
)

// An engine tells on its standard output, a JSON object a line, where its ring is, and
// for each line on its standard input what its calls took since the last time. It ends
// when its input does.

// hello is what an engine says first.
type hello struct {
	Ring string `json:"ring"`
}

// window is what an engine says of a time.
type window struct {
	Steps      uint64 `json:"steps"`
	P50NS      int64  `json:"p50_ns"`
	P99NS      int64  `json:"p99_ns"`
	P999NS     int64  `json:"p999_ns"`
	Goroutines int    `json:"goroutines"`
	FDs        int    `json:"fds"`
}

// The engine's step: lanes of which each holds one kernel now and then.
const (
	lanesAStep = 9
	spansAStep = lanesAStep + 1
	tickEvery  = time.Millisecond
	// An engine that was stopped does not make up for more than this.
	catchUp = 100 * time.Millisecond
)

// engine serves about so many spans a second until stdin ends.
func engine(service, dir string, spansPerSecond int, stdin io.Reader, stdout io.Writer) (err error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	hub, err := lanetrace.Open(lanetrace.Config{Level: "kernel", Dir: dir, Service: service, NoCalibration: true, Logger: log})
	if err == nil {
		err = hub.Disabled()
	}
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err = errors.Join(err, hub.Close(ctx))
	}()
	gpu, err := sim.Open(sim.Config{
		Hub: hub, Logger: log, Ordinal: int(service[len(service)-1]),
		Modules: map[string]sim.Module{"soak": {"work": {Cost: func(*sim.Call) time.Duration { return 2 * time.Microsecond }}}},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gpu.Close()) }()
	if err := gpu.LoadModule("soak", nil); err != nil {
		return err
	}
	work, err := gpu.Kernel("soak", "work")
	if err != nil {
		return err
	}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		for s := bufio.NewScanner(stdin); s.Scan(); {
			asked <- struct{}{}
		}
	}()
	out := json.NewEncoder(stdout)
	if err := out.Encode(hello{hub.Ring().Path()}); err != nil {
		return err
	}
	e := soakEngine{hub: hub, gpu: gpu, dev: gpu.Telemetry(), stream: gpu.DefaultStream(), decode: hub.Lane("decode")}
	e.launch = backend.Launch{Grid: backend.Dim3{1, 1, 1}, Block: backend.Dim3{32, 1, 1}, Stream: e.stream}
	e.kernel = work
	perTick := float64(spansPerSecond) * tickEvery.Seconds() / spansAStep
	return e.serve(perTick, asked, out)
}

type soakEngine struct {
	hub    *lanetrace.Hub
	gpu    *sim.GPU
	dev    *lanetrace.Device
	stream backend.Stream
	decode lanetrace.LaneID
	kernel backend.Kernel
	launch backend.Launch
	calls  histogram
	steps  uint64
}

func (e *soakEngine) serve(perTick float64, asked <-chan struct{}, out *json.Encoder) error {
	t := time.NewTicker(tickEvery)
	defer t.Stop()
	last, due := time.Now(), 0.0
	for {
		select {
		case _, ok := <-asked:
			if !ok {
				return e.gpu.Synchronize(e.stream)
			}
			if err := e.tell(out); err != nil {
				return err
			}
			continue
		case <-t.C:
		}
		now := time.Now()
		due += perTick * float64(min(now.Sub(last), catchUp)) / float64(tickEvery)
		for last = now; due >= 1; due-- {
			if err := e.step(); err != nil {
				return err
			}
		}
		if err := e.gpu.Synchronize(e.stream); err != nil {
			return err
		}
	}
}

// step is one step; each lane's two calls are timed together.
func (e *soakEngine) step() error {
	p, err := e.gpu.Alloc(4096)
	if err != nil {
		return err
	}
	st := e.hub.StepBegin()
	st.SetAttrs(lanetrace.Attrs{BatchSize: 4, DecodeTokens: 4, GraphMode: spanring.GraphEager})
	for i := range lanesAStep {
		began := time.Now()
		lane := e.dev.LaneBegin(st, e.decode, e.stream)
		begun := time.Since(began)
		if i == 0 {
			err = errors.Join(err, e.gpu.Launch(e.kernel, &e.launch))
		}
		ending := time.Now()
		lane.End()
		e.calls.add(int64(begun + time.Since(ending)))
	}
	st.End()
	e.steps++
	return errors.Join(err, e.gpu.Free(p))
}

func (e *soakEngine) tell(out *json.Encoder) error {
	fds, err := countFDs(os.Getpid())
	if err != nil {
		return err
	}
	h := &e.calls
	err = out.Encode(window{
		Steps: e.steps, P50NS: h.quantile(0.5), P99NS: h.quantile(0.99), P999NS: h.quantile(0.999),
		Goroutines: runtime.NumGoroutine(), FDs: fds,
	})
	if err != nil {
		return fmt.Errorf("tell what calls took: %w", err)
	}
	e.calls, e.steps = histogram{}, 0
	return nil
}
