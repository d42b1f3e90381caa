package sim

import (
	"fmt"
	"time"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/spanring"
)

// maxThreads is the most threads that a block may have.
const maxThreads = 1024

func (k *kernel) check(l *backend.Launch) error {
	if len(l.Args) > backend.MaxArgs {
		return fmt.Errorf("%d arguments, at most %d: %w", len(l.Args), backend.MaxArgs, errInvalidValue)
	}
	threads := uint64(1)
	for i := range 3 {
		threads *= uint64(l.Block[i])
		if l.Grid[i] == 0 || l.Block[i] == 0 {
			return fmt.Errorf("grid %v, block %v: %w", l.Grid, l.Block, errInvalidValue)
		}
	}
	if threads > maxThreads {
		return fmt.Errorf("%d threads in a block, at most %d: %w", threads, maxThreads, errInvalidValue)
	}
	for i, a := range l.Args {
		if a.Size != 1 && a.Size != 2 && a.Size != 4 && a.Size != 8 {
			return fmt.Errorf("argument %d has %d bytes: %w", i, a.Size, errInvalidValue)
		}
	}
	if p := k.fn.Params; p != nil {
		if len(p) != len(l.Args) {
			return fmt.Errorf("%d arguments, it has %d parameters: %w", len(l.Args), len(p), errInvalidValue)
		}
		for i, a := range l.Args {
			if a.Size != p[i] {
				return fmt.Errorf("argument %d has %d bytes, the parameter %d: %w", i, a.Size, p[i], errInvalidValue)
			}
		}
	}
	return nil
}

// Launch enqueues a kernel; on armed steps it is timed.
func (g *GPU) Launch(h backend.Kernel, l *backend.Launch) error {
	ks := *g.kernels.Load()
	if h == 0 || uint64(h) > uint64(len(ks)) {
		return fmt.Errorf("sim: launch kernel %d: %w", h, errInvalidHandle)
	}
	k := ks[h-1]
	if err := k.check(l); err != nil {
		return fmt.Errorf("sim: launch %s: %w", k.name, err)
	}
	if err := g.launch(launchable{kind: spanring.KindKernel, name: k.id, kernel: k, l: l}, l.Stream); err != nil {
		return fmt.Errorf("sim: launch %s on stream %#x: %w", k.name, l.Stream, err)
	}
	if g.debugSync {
		if err := g.launched(l.Stream); err != nil {
			return fmt.Errorf("sim: launch %s on stream %#x: %w", k.name, l.Stream, err)
		}
	}
	if g.trc.On() {
		var words [backend.MaxArgs]uint64
		g.trc.Kernel(uint64(l.Stream), uint64(h), l.Grid, l.Block, l.SharedBytes, backend.ArgWords(&words, l.Args))
	}
	return nil
}

// LaunchGraph enqueues a graph; on armed steps it is timed.
func (g *GPU) LaunchGraph(h backend.Graph, s backend.Stream) error {
	g.mu.Lock()
	gr := g.graphs[h]
	capturing := g.byHandle[s] != nil && g.byHandle[s].cap != nil
	g.mu.Unlock()
	if gr == nil {
		return fmt.Errorf("sim: launch graph %d: %w", h, errInvalidHandle)
	}
	var err error
	launch := func() bool {
		err = g.launch(launchable{kind: spanring.KindGraph, name: gr.name, graph: gr}, s)
		return err == nil
	}
	// Inside another capture it is a part of that graph, and no replay.
	if gr.lanes == nil || capturing {
		launch()
	} else {
		g.dev.GraphReplay(gr.lanes, s, launch)
	}
	if err != nil {
		return fmt.Errorf("sim: launch graph %d on stream %#x: %w", h, s, err)
	}
	return nil
}

// SetLaunchCall changes Config.LaunchCall.
func (g *GPU) SetLaunchCall(d time.Duration) { g.launchCall.Store(int64(d)) }

// launchable is a kernel with its launch, or a graph.
type launchable struct {
	kind   spanring.Kind
	name   spanring.NameID
	kernel *kernel
	l      *backend.Launch
	graph  *graph
}

func (x *launchable) method() string {
	if x.graph != nil {
		return "LaunchGraph"
	}
	return "Launch"
}

func (g *GPU) launch(x launchable, h backend.Stream) error {
	if g.dev.Timing() {
		if tl, ok := g.dev.LaunchBegin(x.kind, h, x.name); ok {
			r, err := g.launchTimed(tl.Pair, &x, h)
			g.dev.LaunchEnd(tl, r)
			return err
		}
	}
	g.hostBusy(time.Duration(g.launchCall.Load()))
	s, err := g.enterStream(x.method(), h)
	defer g.mu.Unlock()
	if err != nil {
		return err
	}
	return g.put(s, &x)
}

// launchTimed is what one crossing does on a real GPU: capture status, record,
// launch, record, is the start pending.
func (g *GPU) launchTimed(p cudaevents.Pair, x *launchable, h backend.Stream) (r cudaevents.LaunchResult, err error) {
	rec := driver{g}.Record(p.Start, h)
	r.Calls, r.Capturing, r.StartResult = rec.Calls, rec.Capturing, rec.Result
	r.StartRecorded = !rec.Capturing && rec.Result == cudaevents.Success
	g.hostBusy(time.Duration(g.launchCall.Load()))
	s, err := g.enterStream(x.method(), h)
	if err == nil {
		err = g.put(s, x)
	}
	r.LaunchResult = result(err)
	if err != nil || !r.StartRecorded {
		g.mu.Unlock()
		return r, err
	}
	r.Calls += 2
	if err := g.fault("Record"); err != nil {
		r.EndResult = result(err)
	} else if e, err := g.event(p.End); err != nil {
		r.EndResult = result(err)
	} else {
		g.record(e, s)
		r.EndRecorded = true
	}
	if e, bad := g.event(p.Start); bad == nil {
		done, qerr := g.eventDone(e)
		r.Pending = !done && qerr == nil
	}
	g.mu.Unlock()
	return r, nil
}

// put enqueues x on s, or notes it in the capture.
func (g *GPU) put(s *stream, x *launchable) error {
	if s.cap != nil {
		n := &node{graph: x.graph}
		if x.kernel != nil {
			n.fn, n.call = x.kernel.fn, new(Call)
			n.call.set(g, x)
			n.durNS = g.cost(n.fn, n.call)
		} else {
			n.durNS = x.graph.durNS
		}
		return s.cap.add(s, n)
	}
	if x.graph != nil {
		o := g.newOp(opGraph)
		o.graph, o.durNS = x.graph, x.graph.durNS
		g.enqueue(s, o)
		x.graph.stampEvents(g, o)
		return nil
	}
	o := g.newOp(opKernel)
	o.fn = x.kernel.fn
	o.call.set(g, x)
	o.durNS = g.cost(o.fn, &o.call)
	g.enqueue(s, o)
	return nil
}

func (c *Call) set(g *GPU, x *launchable) {
	c.gpu, c.name, c.fault = g, x.kernel.name, nil
	c.Grid, c.Block, c.SharedBytes = x.l.Grid, x.l.Block, x.l.SharedBytes
	c.n = copy(c.args[:], x.l.Args)
}

// cost is what a kernel takes, in ns, scaled.
func (g *GPU) cost(fn *Function, c *Call) int64 {
	d := g.cfg.KernelCost
	if fn.Cost != nil {
		d = fn.Cost(c)
	}
	return g.scaled(d)
}

func (g *GPU) scaled(d time.Duration) int64 {
	return max(0, int64(float64(d)*g.cfg.TimeScale))
}
