package sim

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lanetrace/lanetrace/backend"
)

// opKind says what an operation does. Markers have no body and can be completed
// by whoever looks at them; the rest is run by their stream's goroutine.
type opKind uint8

const (
	opMarker opKind = iota // an ordering event's record, a wait: costs nothing
	opRecord               // a timed event's record
	opKernel
	opFunc // a copy or memset
	opGraph
)

// op is one thing queued on a stream. Ops are used again: refs counts the queue,
// events and ops that wait for it, and whoever waits on the host.
type op struct {
	kind    opKind
	fixed   bool // its times are known
	done    bool
	dropped bool // done without having happened
	refs    int
	s       *stream
	next    *op
	deps    []*op

	enqNS, durNS, startNS, endNS int64
	stamp                        int64 // the GPU's clock at endNS

	fn    *Function
	call  Call
	body  func()
	graph *graph
}

func (o *op) hasBody() bool {
	switch o.kind {
	case opKernel:
		return o.fn.Run != nil
	case opFunc, opGraph:
		return true
	}
	return false
}

// stream is a queue of operations. Its worker sleeps, runs bodies and waits;
// anybody who holds the lock may complete markers whose time has come.
type stream struct {
	handle backend.Stream
	id     uint64

	head, tail *op
	freeNS     int64 // when its last completed operation ended
	running    bool  // the worker runs head's body
	stalled    bool
	closing    bool
	afterTimed bool // its last completed operation was a timed record

	cap     *capture
	capLast []*node // what the next captured operation depends on

	cond  *sync.Cond // work for the worker
	timer *time.Timer
	wake  chan struct{} // ends a long sleep
}

// hold is what keeps a stream from going on.
type hold uint8

const (
	holdEmpty   hold = iota
	holdStalled      // by Stall
	holdRunning      // the head's body runs
	holdDeps         // the head waits for another stream
	holdTime         // the head's end is not due
	holdBody         // the head is due, its body has to be run
)

func (g *GPU) newOp(kind opKind) *op {
	o := g.freeOps
	if o == nil {
		return &op{kind: kind}
	}
	g.freeOps = o.next
	o.kind, o.next = kind, nil
	return o
}

func (g *GPU) unref(o *op) {
	o.refs--
	if o.refs > 0 {
		return
	}
	deps := o.deps[:0]
	o.kind, o.fixed, o.done, o.dropped, o.s, o.fn, o.body, o.graph = 0, false, false, false, nil, nil, nil, nil
	o.enqNS, o.durNS, o.startNS, o.endNS, o.stamp = 0, 0, 0, 0, 0
	o.deps, o.next = deps, g.freeOps
	g.freeOps = o
}

// depend makes o wait for d, which may be nil.
func (o *op) depend(d *op) {
	if d != nil && !d.done {
		d.refs++
		o.deps = append(o.deps, d)
	}
}

// enqueue puts o, with its cost in durNS, at the end of s.
func (g *GPU) enqueue(s *stream, o *op) {
	o.s, o.enqNS = s, g.now()
	o.refs++
	if s.tail == nil {
		s.head = o
	} else {
		s.tail.next = o
	}
	s.tail = o
	if s.head == o {
		s.cond.Signal()
	}
}

// fix settles when the head of s starts and ends, once all that it waits for is
// complete.
func (g *GPU) fix(s *stream, o *op) bool {
	start := s.freeNS
	for _, d := range o.deps {
		if !d.done {
			// Waits go back in time only, so this ends.
			g.advance(d.s)
			if !d.done {
				return false
			}
		}
	}
	for _, d := range o.deps {
		start = max(start, d.endNS)
		g.unref(d)
	}
	o.deps = o.deps[:0]
	if o.kind == opMarker {
		start = max(start, o.enqNS)
	} else {
		start = max(start, o.enqNS+int64(g.cfg.LaunchLatency))
	}
	if o.kind == opKernel && s.afterTimed {
		start += int64(g.cfg.AfterRecord)
	}
	o.startNS, o.endNS, o.fixed = start, start+o.durNS, true
	return true
}

// advance completes what is due on s without running bodies, and says what keeps
// it from going on.
func (g *GPU) advance(s *stream) hold {
	var now int64
	for {
		o := s.head
		switch {
		case o == nil:
			return holdEmpty
		case s.running:
			return holdRunning
		case g.aborted || g.sticky != 0:
			if !o.fixed {
				for _, d := range o.deps {
					g.unref(d)
				}
				o.deps = o.deps[:0]
				o.fixed, o.endNS = true, max(s.freeNS, g.now())
			}
			o.dropped = true
			g.complete(s, o)
			continue
		case s.stalled:
			return holdStalled
		case !o.fixed && !g.fix(s, o):
			return holdDeps
		}
		if o.endNS > now {
			if now = g.now(); o.endNS > now {
				return holdTime
			}
		}
		if o.hasBody() {
			return holdBody
		}
		g.complete(s, o)
	}
}

// complete takes the head off its stream.
func (g *GPU) complete(s *stream, o *op) {
	s.head = o.next
	if s.head == nil {
		s.tail = nil
	}
	o.next = nil
	s.freeNS = max(s.freeNS, o.endNS)
	if o.kind != opMarker {
		s.afterTimed = o.kind == opRecord
	}
	o.stamp = g.stamp(o.endNS)
	o.done = true
	g.unref(o)
	g.changed.Broadcast()
}

// work is a stream's goroutine.
func (g *GPU) work(s *stream) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		switch g.advance(s) {
		case holdEmpty:
			if s.closing {
				g.streams = slices.DeleteFunc(g.streams, func(o *stream) bool { return o == s })
				g.changed.Broadcast()
				return
			}
			s.cond.Wait()
		case holdStalled:
			s.cond.Wait()
		case holdDeps:
			g.changed.Wait()
		case holdTime:
			g.sleep(s, s.head.endNS)
		case holdBody:
			o := s.head
			s.running = true
			g.mu.Unlock()
			err := g.runBody(o)
			g.mu.Lock()
			s.running = false
			if err != nil && g.sticky == 0 {
				g.sticky = errIllegalAddress
				g.log.Error("sim: a kernel failed, the GPU is unusable from here on", "error", err.Error())
				g.wakeAll()
			}
			if s.stalled {
				// A stall that began meanwhile holds the completion back too.
				o.endNS = max(o.endNS, g.now())
				for s.stalled && !g.aborted && g.sticky == 0 {
					s.cond.Wait()
					o.endNS = max(o.endNS, g.now())
				}
			}
			g.complete(s, o)
		}
	}
}

// runBody runs what an operation does, without the lock.
func (g *GPU) runBody(o *op) error {
	switch o.kind {
	case opKernel:
		return runKernel(o.fn, &o.call)
	case opFunc:
		o.body()
	case opGraph:
		return o.graph.run()
	}
	return nil
}

// runKernel runs a kernel's body. Whatever goes wrong in it is the kernel's fault
// and not the engine's process's.
func runKernel(fn *Function, c *Call) (err error) {
	c.fault = nil
	defer func() {
		if p := recover(); p != nil && c.fault == nil {
			c.fault = fmt.Errorf("%v", p)
		}
		if c.fault != nil {
			err = fmt.Errorf("kernel %s: %w", c.name, c.fault)
		}
	}()
	fn.Run(c)
	return nil
}

func (g *GPU) wakeAll() {
	for _, s := range g.streams {
		s.cond.Broadcast()
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	g.changed.Broadcast()
}

// wait blocks until o is complete. The caller holds the lock.
func (g *GPU) wait(o *op) error {
	if o == nil {
		return nil
	}
	o.refs++
	defer g.unref(o)
	for !o.done {
		if g.advance(o.s); !o.done {
			g.changed.Wait()
		}
	}
	switch {
	case g.sticky != 0:
		return g.sticky
	case o.dropped:
		return errClosed
	}
	return nil
}

// settle returns when nothing more is due on any stream: for a manual clock.
func (g *GPU) settle() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wakeAll()
	for {
		busy := false
		for _, s := range g.streams {
			h := g.advance(s)
			busy = busy || h == holdRunning || h == holdBody
		}
		if !busy {
			return
		}
		g.changed.Wait()
	}
}
