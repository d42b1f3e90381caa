//go:build cgo

package cuda

import (
	"maps"
	"math"
	"slices"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/spanring"
)

// capture is a capture begun here.
type capture struct {
	held  [][]byte // host memory that the graph copies from
	lanes *cudaevents.GraphLanes
}

// graph is an instantiated graph.
type graph struct {
	exec uintptr
	name spanring.NameID
	held [][]byte
	// lanes are those inside it, nil for none.
	lanes *cudaevents.GraphLanes
	// used is where it was launched, if it holds host memory or events.
	used map[backend.Stream]struct{}
}

// dropCapture forgets a capture that is over. The caller holds mu or is alone.
func (g *GPU) dropCapture(s backend.Stream) *capture {
	c := g.captures[s]
	delete(g.captures, s)
	g.active.Add(-1)
	g.dev.GraphCaptured(s)
	return c
}

// StreamIsCapturing reports whether a stream is being captured; a status that
// cannot be had counts as capturing.
func (g *GPU) StreamIsCapturing(s backend.Stream) bool {
	yes := true
	r := g.onStream(s, func() Result {
		yes = g.ctx.streamCapturing(s)
		return Success
	})
	return yes || r != Success
}

// BeginCapture begins to capture a stream in Config.Capture's mode.
func (g *GPU) BeginCapture(s backend.Stream) error {
	if r := g.onStream(s, func() Result {
		g.mu.Lock()
		defer g.mu.Unlock()
		if _, ok := g.captures[s]; ok {
			return ErrIllegalState
		}
		c := &capture{}
		if g.cfg.GraphLanes {
			c.lanes = g.dev.GraphCapture(s)
		}
		// Counted before it begins, so that telemetry never sees none where one is.
		g.active.Add(1)
		r := g.ctx.captureBegin(s, g.cfg.Capture)
		if r != Success {
			g.active.Add(-1)
			g.dev.GraphCaptured(s)
			_ = c.lanes.Close()
			return r
		}
		g.captures[s] = c
		return Success
	}); r != Success {
		return g.fail(r, "begin capture of stream %#x", s)
	}
	return nil
}

// EndCapture ends the capture of a stream and instantiates its graph. In a mode
// other than CaptureRelaxed it fails, and the capture is lost, on another thread
// than the capture began on.
func (g *GPU) EndCapture(s backend.Stream) (id backend.Graph, err error) {
	step := "end the capture"
	if r := g.onStream(s, func() Result {
		g.mu.Lock()
		defer g.mu.Unlock()
		if _, ok := g.captures[s]; !ok {
			return ErrIllegalState
		}
		exec, nodes, at, r := g.ctx.captureEnd(s)
		step = at
		c := g.dropCapture(s) // whatever came of it, it is over
		if r != Success {
			g.giveUp(c)
			return r
		}
		g.lastGraph++
		id = g.lastGraph
		gr := &graph{exec: exec, held: c.held, lanes: c.lanes, name: g.dev.GraphName(uint64(id), uint32(min(nodes, math.MaxUint32)), "")}
		if gr.lanes != nil && gr.lanes.Len() == 0 {
			_ = gr.lanes.Close()
			gr.lanes = nil
		}
		if len(gr.held) > 0 || gr.lanes != nil {
			gr.used = make(map[backend.Stream]struct{})
		}
		g.graphs[id] = gr
		return Success
	}); r != Success {
		return 0, g.fail(r, "capture stream %#x: %s", s, step)
	}
	return id, nil
}

// giveUp frees what a capture that is over held.
func (g *GPU) giveUp(c *capture) {
	g.freeHeld(c.held)
	_ = c.lanes.Close()
}

func (g *GPU) freeHeld(held [][]byte) {
	for _, b := range held {
		if r := g.ctx.hostFree(b); r != Success {
			g.log.Warn("cuda: host memory of a graph was not freed", "bytes", len(b), "reason", r.Error())
		}
	}
}

// AbortCapture ends a capture, if there is one, and discards it.
func (g *GPU) AbortCapture(s backend.Stream) {
	if !g.acquire() {
		return
	}
	defer g.release()
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.captures[s]; ok && g.hasStream(s) {
		g.ctx.captureAbort(s)
		g.giveUp(g.dropCapture(s))
	}
}

// LaunchGraph enqueues a graph; on armed steps it is timed, with one event pair
// around all of it.
func (g *GPU) LaunchGraph(id backend.Graph, s backend.Stream) error {
	if !g.acquire() {
		return g.fail(ErrDeinitialized, "launch graph %d on stream %#x", id, s)
	}
	defer g.release()
	g.mu.Lock()
	gr := g.graphs[id]
	if gr != nil && gr.used != nil {
		gr.used[s] = struct{}{}
	}
	g.mu.Unlock()
	r := ErrInvalidHandle
	if gr != nil && g.hasStream(s) {
		d := graphDesc(gr.exec, s)
		launch := func() bool {
			r = g.launch(spanring.KindGraph, gr.name, s, &d, &arguments{})
			return r == Success
		}
		// Inside another capture it is a part of that graph, and no replay.
		if gr.lanes == nil || g.ctx.streamCapturing(s) {
			launch()
		} else {
			g.dev.GraphReplay(gr.lanes, s, launch)
		}
	}
	if r != Success {
		return g.fail(r, "launch graph %d on stream %#x", id, s)
	}
	return nil
}

// DestroyGraph destroys a graph. Replays in flight still happen; if the graph
// copies from host memory or has lanes inside it waits for them.
func (g *GPU) DestroyGraph(id backend.Graph) error {
	if r := g.call(func() Result {
		g.mu.Lock()
		gr := g.graphs[id]
		delete(g.graphs, id)
		var used []backend.Stream
		if gr != nil {
			used = slices.Collect(maps.Keys(gr.used))
		}
		g.mu.Unlock()
		if gr == nil {
			return ErrInvalidHandle
		}
		for _, s := range used {
			g.awaitLeaving(s)
			if g.hasStream(s) {
				_ = g.ctx.streamSync(s)
			}
		}
		r := g.ctx.graphDestroy(gr.exec)
		g.freeHeld(gr.held)
		_ = gr.lanes.Close()
		return r
	}); r != Success {
		return g.fail(r, "destroy graph %d", id)
	}
	return nil
}
