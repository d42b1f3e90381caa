package sim

import (
	"fmt"
	"slices"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/spanring"
)

// capture is a graph in the making: what is enqueued on its streams is noted down
// and not run.
type capture struct {
	origin  *stream
	streams []*stream
	nodes   []*node // in the order they were captured, which respects deps
	invalid bool
	lanes   *cudaevents.GraphLanes
}

// node is a kernel, copy, memset or graph launch of a graph.
type node struct {
	fn    *Function
	call  *Call
	body  func()
	graph *graph
	event *event // recorded anew by each replay
	durNS int64
	deps  []*node
	mark  bool
	endNS int64
}

// graph is an instantiated graph.
type graph struct {
	nodes []*node
	durNS int64
	name  spanring.NameID
	lanes *cudaevents.GraphLanes // inside it, nil for none
}

// stampEvents makes o, a replay, the last record of the graph's events.
func (gr *graph) stampEvents(g *GPU, o *op) {
	for _, n := range gr.nodes {
		if n.event != nil {
			n.event.set(g, o)
			n.event.before = gr.durNS - n.endNS
		}
	}
}

// run does what the graph's nodes do.
func (gr *graph) run() error {
	for _, n := range gr.nodes {
		switch {
		case n.graph != nil:
			if err := n.graph.run(); err != nil {
				return err
			}
		case n.body != nil:
			n.body()
		case n.event != nil:
		case n.fn.Run != nil:
			// Replays may overlap, and a call keeps its fault.
			c := *n.call
			if err := runKernel(n.fn, &c); err != nil {
				return err
			}
		}
	}
	return nil
}

// add notes n down as the next thing on s.
func (c *capture) add(s *stream, n *node) error {
	if c.invalid {
		return errCaptureInvalid
	}
	n.deps = s.capLast
	c.nodes = append(c.nodes, n)
	s.capLast = []*node{n}
	return nil
}

// captureWait is a stream's wait for an event where one of them is in a capture.
func (g *GPU) captureWait(s *stream, e *event) error {
	c := e.cap
	switch {
	case c == nil && !e.recorded:
		return nil
	case c == nil, s.cap != nil && s.cap != c:
		s.cap.invalid = true
		return errIsolation
	case c.origin == nil:
		return errCaptured // that capture is over
	case c.invalid:
		return errCaptureInvalid
	case s.cap == nil:
		if s.handle == 0 {
			return errCapture
		}
		s.cap, s.capLast = c, slices.Clone(e.capLast)
		c.streams = append(c.streams, s)
		return nil
	}
	for _, n := range e.capLast {
		if !slices.Contains(s.capLast, n) {
			s.capLast = append(slices.Clone(s.capLast), n)
		}
	}
	return nil
}

// endCapture gives the capture's streams back to the GPU.
func (g *GPU) endCapture(c *capture) {
	for _, s := range c.streams {
		s.cap, s.capLast = nil, nil
	}
	if c.lanes != nil {
		g.dev.GraphCaptured(c.origin.handle)
		g.leave(c.lanes)
	}
	c.origin = nil
	g.captures--
}

// StreamIsCapturing reports whether a stream is being captured.
func (g *GPU) StreamIsCapturing(h backend.Stream) bool {
	s, err := g.enterStream("StreamIsCapturing", h)
	defer g.mu.Unlock()
	return err != nil || s.cap != nil
}

// BeginCapture begins to capture a stream. Any goroutine may go on with it.
func (g *GPU) BeginCapture(h backend.Stream) error {
	var lanes *cudaevents.GraphLanes
	if g.cfg.GraphLanes && !g.StreamIsCapturing(h) {
		lanes = g.dev.GraphCapture(h)
	}
	err := g.beginCapture(h, lanes)
	if err != nil {
		if lanes != nil {
			g.dev.GraphCaptured(h)
			_ = lanes.Close()
		}
		return fmt.Errorf("sim: begin capture of stream %#x: %w", h, err)
	}
	return nil
}

func (g *GPU) beginCapture(h backend.Stream, lanes *cudaevents.GraphLanes) error {
	s, err := g.enterStream("BeginCapture", h)
	defer g.mu.Unlock()
	switch {
	case err != nil:
		return err
	case h == 0:
		return errCapture
	case s.cap != nil:
		return errIllegalState
	}
	s.cap, s.capLast = &capture{origin: s, streams: []*stream{s}, lanes: lanes}, nil
	g.captures++
	return nil
}

// EndCapture ends a capture and makes a graph of it.
func (g *GPU) EndCapture(h backend.Stream) (backend.Graph, error) {
	defer g.closeLanes()
	s, err := g.enterStream("EndCapture", h)
	defer g.mu.Unlock()
	var gr *graph
	if err == nil {
		gr, err = g.graphOf(s)
	}
	if err != nil {
		return 0, fmt.Errorf("sim: end capture of stream %#x: %w", h, err)
	}
	g.lastGraph++
	gr.name = g.dev.GraphName(uint64(g.lastGraph), uint32(len(gr.nodes)), "")
	g.graphs[g.lastGraph] = gr
	return g.lastGraph, nil
}

// closeLanes destroys the events of lanes in graphs that are gone. The caller does
// not hold the lock.
func (g *GPU) closeLanes() {
	g.mu.Lock()
	left := g.leftLanes
	g.leftLanes = nil
	g.mu.Unlock()
	for _, l := range left {
		_ = l.Close()
	}
}

// leave keeps lanes for closeLanes. The caller holds the lock.
func (g *GPU) leave(l *cudaevents.GraphLanes) {
	if l != nil {
		g.leftLanes = append(g.leftLanes, l)
	}
}

// graphOf ends the capture of s.
func (g *GPU) graphOf(s *stream) (*graph, error) {
	c := s.cap
	if c == nil || c.origin != s {
		return nil, errIllegalState
	}
	last := s.capLast
	g.endCapture(c)
	if c.invalid {
		return nil, errCaptureInvalid
	}
	// All that was captured must lie before the end of the first stream. Nodes
	// stand behind what they depend on, so one pass backwards finds it.
	for _, n := range last {
		n.mark = true
	}
	gr := &graph{nodes: c.nodes}
	if c.lanes != nil && c.lanes.Len() > 0 {
		// endCapture was the last to know them; now the graph does.
		gr.lanes = c.lanes
		g.leftLanes = slices.DeleteFunc(g.leftLanes, func(l *cudaevents.GraphLanes) bool { return l == c.lanes })
	}
	for i := len(c.nodes) - 1; i >= 0; i-- {
		n := c.nodes[i]
		if !n.mark {
			g.leave(gr.lanes)
			return nil, errUnjoined
		}
		for _, d := range n.deps {
			d.mark = true
		}
	}
	for _, n := range c.nodes {
		start := int64(0)
		for _, d := range n.deps {
			start = max(start, d.endNS)
		}
		n.endNS = start + n.durNS
		gr.durNS = max(gr.durNS, n.endNS)
	}
	return gr, nil
}

// AbortCapture ends a capture, if there is one, and discards it.
func (g *GPU) AbortCapture(h backend.Stream) {
	defer g.closeLanes()
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.byHandle[h]; s != nil && s.cap != nil && s.cap.origin == s {
		s.cap.invalid = true
		g.endCapture(s.cap)
	}
}

// DestroyGraph destroys a graph; replays in flight still happen.
func (g *GPU) DestroyGraph(h backend.Graph) error {
	defer g.closeLanes()
	err := g.enter("DestroyGraph")
	defer g.mu.Unlock()
	if err == nil && g.graphs[h] == nil {
		err = errInvalidHandle
	}
	if err != nil {
		return fmt.Errorf("sim: destroy graph %d: %w", h, err)
	}
	g.leave(g.graphs[h].lanes)
	delete(g.graphs, h)
	return nil
}
