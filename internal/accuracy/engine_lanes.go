package main

import (
	"fmt"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	words "github.com/lanetrace/lanetrace/internal/report"
)

// graphs measures launches of whole graphs.
func (e *engine) graphs() error {
	for _, nodes := range []int{1, 10, 100} {
		if err := e.gpu.BeginCapture(e.s); err != nil {
			return err
		}
		for range nodes {
			if err := e.spin(grid{1, 1}, cyclesFor(5_000)); err != nil {
				e.gpu.AbortCapture(e.s)
				return err
			}
		}
		g, err := e.gpu.EndCapture(e.s)
		if err != nil {
			return err
		}
		launch := func(j *job) error {
			j.b.Ops = append(j.b.Ops, op{Kind: opGraph, Name: spinName, Nodes: nodes, Ordinal: j.ordinal()})
			return e.gpu.LaunchGraph(g, e.s)
		}
		// The first launches of a graph upload it.
		for range 3 {
			j := e.job(row{Part: "warm-up"})
			j.b.Ops = append(j.b.Ops, op{Kind: opGraph, Name: spinName, Nodes: nodes})
			if err := e.gpu.LaunchGraph(g, e.s); err != nil {
				return err
			}
			if err := e.gpu.Synchronize(e.s); err != nil {
				return err
			}
			if err := e.plan.add(&j.b); err != nil {
				return err
			}
		}
		r := row{Part: "graphs", Shape: words.Plural(uint64(nodes), "kernel"), TargetNS: 5_000 * int64(nodes), Clock: "warm", Mode: "queued"}
		for range e.count(4) {
			j := e.job(r)
			if err := j.plug(2_000_000); err != nil {
				return err
			}
			j.begin()
			for range 20 {
				if err := launch(j); err != nil {
					return err
				}
			}
			if err := j.end(true); err != nil {
				return err
			}
		}
		r.Mode = "drained"
		j := e.job(r)
		j.begin()
		for range e.count(80) {
			if err := launch(j); err != nil {
				return err
			}
			if err := e.gpu.Synchronize(e.s); err != nil {
				return err
			}
		}
		if err := j.end(false); err != nil {
			return err
		}
		if err := e.gpu.DestroyGraph(g); err != nil {
			return err
		}
	}
	return nil
}

// inLane is one thing that a lane is put around.
type inLane struct {
	name     string
	targetNS int64
	f        func(j *job, lane int) error
}

// lanes measures lanes around kernels, copies and memsets: the only way in which
// copies and memsets are timed at all.
func (e *engine) lanes() error {
	if err := e.hub.SetLevel(lanetrace.LevelLane); err != nil {
		return err
	}
	defer func() { _ = e.hub.SetLevel(lanetrace.LevelKernel) }()
	const large = 16 << 20
	buf, err := e.gpu.Alloc(2 * large)
	if err != nil {
		return err
	}
	pinned, err := e.gpu.AllocHostPinned(1 << 20)
	if err != nil {
		return err
	}
	spins := func(n int, ns int64) inLane {
		return inLane{words.Plural(uint64(n), "kernel"), int64(n) * ns, func(j *job, lane int) error {
			for range n {
				j.b.Ops = append(j.b.Ops, op{Kind: opKernel, Name: spinName, Lane: lane})
				if err := j.spin(grid{1, 1}, cyclesFor(ns)); err != nil {
					return err
				}
			}
			return nil
		}}
	}
	set := func(bytes int) inLane {
		return inLane{"memset of " + size(bytes), 0, func(j *job, lane int) error {
			j.b.Ops = append(j.b.Ops, op{Kind: opMemset, Bytes: int64(bytes), Lane: lane})
			return j.gpu.MemsetAsync(buf, 0, bytes, j.s)
		}}
	}
	dtod := func(bytes int) inLane {
		return inLane{"copy on the device of " + size(bytes), 0, func(j *job, lane int) error {
			j.b.Ops = append(j.b.Ops, op{Kind: opCopy, Bytes: int64(bytes), Lane: lane})
			return j.gpu.CopyDtoDAsync(buf+backend.DevicePtr(large), buf, bytes, j.s)
		}}
	}
	htod := inLane{"copy from the host of 1 MiB", 0, func(j *job, lane int) error {
		j.b.Ops = append(j.b.Ops, op{Kind: opCopy, Bytes: 1 << 20, Lane: lane})
		return j.gpu.CopyHtoDAsyncRetained(buf, pinned, j.s)
	}}
	dtoh := inLane{"copy to the host of 1 MiB", 0, func(j *job, lane int) error {
		j.b.Ops = append(j.b.Ops, op{Kind: opCopy, Bytes: 1 << 20, Lane: lane})
		return j.gpu.CopyDtoHAsync(pinned, buf, j.s)
	}}
	for _, w := range []inLane{
		spins(1, 5_000), spins(10, 5_000), spins(40, 5_000), spins(10, 100_000),
		set(4 << 10), set(large), dtod(4 << 10), dtod(large), htod, dtoh,
	} {
		r := row{Part: "lanes", Shape: w.name, TargetNS: w.targetNS, Clock: "warm", Mode: "queued"}
		for range e.count(10) {
			if err := e.laned(r, w, 8, false, false); err != nil {
				return err
			}
		}
		r.Mode = "drained"
		for range e.count(80) {
			if err := e.laned(r, w, 1, false, false); err != nil {
				return err
			}
		}
	}
	r := row{Part: "lanes", Shape: "10 kernels, event shared with the next lane", TargetNS: 50_000, Clock: "warm", Mode: "queued"}
	for range e.count(10) {
		if err := e.laned(r, spins(10, 5_000), 8, true, false); err != nil {
			return err
		}
	}
	// As on armed steps: every kernel inside has a pair of its own.
	if err := e.hub.SetLevel(lanetrace.LevelKernel); err != nil {
		return err
	}
	r.Shape = "10 kernels, each with its own pair"
	for range e.count(10) {
		if err := e.laned(r, spins(10, 5_000), 8, false, true); err != nil {
			return err
		}
	}
	if err := e.gpu.FreeHostPinned(pinned); err != nil {
		return err
	}
	return e.gpu.Free(buf)
}

// laned runs n lanes around w, each in a step of its own; with shared, two
// neighbours in each step; with armed, kernels inside have pairs of their own. Of a
// row that is queued they lie behind a plug.
func (e *engine) laned(r row, w inLane, n int, shared, armed bool) error {
	j := e.job(r)
	queued := r.Mode == "queued"
	if queued {
		if err := j.plug(plugFor(20 * n)); err != nil {
			return err
		}
	}
	for range n {
		if armed {
			e.hub.Arm(1)
		}
		step := e.hub.StepBegin()
		j.b.Lanes = append(j.b.Lanes, laneOf{step.ID(), 1})
		l := e.dev.LaneBegin(step, e.lane[0], e.s)
		if err := w.f(j, len(j.b.Lanes)); err != nil {
			return err
		}
		if shared {
			l = l.Next(e.lane[1])
			j.b.Lanes = append(j.b.Lanes, laneOf{step.ID(), 2})
			if err := w.f(j, len(j.b.Lanes)); err != nil {
				return err
			}
		}
		l.End()
		step.End()
	}
	if queued {
		done, err := e.gpu.EventQuery(e.plugged)
		if err != nil {
			return err
		}
		j.b.Plugged = !done
	}
	if err := e.gpu.Synchronize(e.s); err != nil {
		return err
	}
	if err := e.landed(); err != nil {
		return err
	}
	return e.plan.add(&j.b)
}

func size(bytes int) string {
	if bytes >= 1<<20 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d KiB", bytes>>10)
}
