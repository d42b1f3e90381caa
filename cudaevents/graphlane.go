package cudaevents

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/lanetrace/lanetrace/spanring"
)

// ErrNoExternal is returned where the driver cannot record events inside graphs.
var ErrNoExternal = errors.New("driver records no events in graphs")

// ExternalDriver is a Driver that can record events inside captured graphs
// (CU_EVENT_RECORD_EXTERNAL): each replay of the graph stamps them anew.
type ExternalDriver interface {
	Driver
	// RecordExternal records e on s, which is being captured.
	RecordExternal(e Event, s Stream) Result
}

// GraphLanes are the lanes inside one captured graph. Their event pairs are the
// graph's own for as long as it lives: each replay stamps the same events, so what
// one replay left there has to be read before the next one is launched. What is
// not complete by then is failed{replayed}.
//
// Begin and End are called while the graph is captured, Replay for each launch of
// it, Close when it is destroyed. All of them may be called from any goroutine.
type GraphLanes struct {
	r   *Recorder
	drv ExternalDriver

	mu      sync.Mutex // held from the read through the launch; taken before Recorder.mu
	events  []Event
	lanes   []graphLane
	whole   atomic.Int32
	pending bool // a replay was launched whose lanes are not all accounted for
	closed  bool
}

type graphLane struct {
	pair   Pair
	name   spanring.NameID
	lane   uint16
	parent int // among lanes, from 1; 0 for none
	open   bool
	whole  bool // both of its events are in the graph
	slot   spanring.Slot
	begun  bool
}

// MaxGraphLanes is how many lanes a graph can have.
const MaxGraphLanes = 32

// NewGraphLanes makes the events for a graph that is about to be captured. There is
// nothing without a pool: nil and ErrClosed or ErrNoExternal.
func (r *Recorder) NewGraphLanes() (*GraphLanes, error) {
	drv, ok := r.drv.(ExternalDriver)
	if !ok {
		return nil, ErrNoExternal
	}
	if p := r.pool.Load(); p == nil || p.closed.Load() {
		return nil, ErrClosed
	}
	g := &GraphLanes{r: r, drv: drv, events: make([]Event, 2*MaxGraphLanes)}
	err := r.drv.CreateEvents(g.events)
	r.count(len(g.events))
	if err != nil {
		return nil, fmt.Errorf("create events for a graph's lanes: %w", err)
	}
	r.graphMu.Lock()
	r.graphs = append(r.graphs, g)
	r.graphMu.Unlock()
	return g, nil
}

// Begin records the start of a lane on s, which is being captured, inside those
// that are open. ok is false beyond MaxGraphLanes lanes and where the driver
// refuses; nothing is then recorded.
func (g *GraphLanes) Begin(s Stream, name spanring.NameID, lane uint16) (i int, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := len(g.lanes)
	if g.closed || n == MaxGraphLanes {
		return 0, false
	}
	l := graphLane{pair: Pair{g.events[2*n], g.events[2*n+1]}, name: name, lane: lane, open: true}
	for k := range g.lanes {
		if g.lanes[k].open {
			l.parent = k + 1
		}
	}
	g.r.count(1)
	if g.drv.RecordExternal(l.pair.Start, s) != Success {
		return 0, false
	}
	g.lanes = append(g.lanes, l)
	return n, true
}

// End records the end of a lane, on the stream that it was begun on. It reports
// whether the lane was open and is whole.
func (g *GraphLanes) End(s Stream, i int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || i < 0 || i >= len(g.lanes) || !g.lanes[i].open {
		return false
	}
	l := &g.lanes[i]
	l.open = false
	g.r.count(1)
	if l.whole = g.drv.RecordExternal(l.pair.End, s) == Success; l.whole {
		g.whole.Add(1)
	}
	return l.whole
}

// Len is how many whole lanes the graph has. It takes no lock.
func (g *GraphLanes) Len() int { return int(g.whole.Load()) }

// Replay launches the graph with launch on s, which is not being captured: before
// it, it reads what the last replay left; behind it, it asks open for each lane
// which step and lane that replay of it belongs to, the outer ones first. Of a lane
// for which open says no nothing is counted. It waits for a harvest that is going
// on, and returns what launch does.
func (g *GraphLanes) Replay(s Stream, launch func() bool, open func(parent uint32) (m Meta, ok bool)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.r
	r.mu.Lock()
	r.count(g.read(r.pool.Load(), spanring.FailReplayed).Calls)
	r.mu.Unlock()
	at := r.now()
	if !launch() {
		return false
	}
	if g.closed || r.shutDown() {
		return true
	}
	st := r.lookup(s)
	if st == nil {
		st = r.identify(s)
	}
	for i := range g.lanes {
		l := &g.lanes[i]
		if !l.whole {
			continue
		}
		parent := uint32(0)
		if l.parent > 0 && g.lanes[l.parent-1].begun {
			parent = g.lanes[l.parent-1].slot.Ordinal
		}
		m, ok := open(parent)
		if !ok {
			continue
		}
		m.Kind, m.Name, m.Lane = spanring.KindLane, l.name, l.lane
		l.slot = m.slot(r.index, st, at, false)
		l.slot.ClosedMonoNS = at
		l.begun = true
		g.pending = true
		r.begun()
	}
	return true
}

// shutDown reports whether the recorder's pool is closed, so that nobody would ever
// read a span.
func (r *Recorder) shutDown() bool {
	p := r.pool.Load()
	return p == nil || p.closed.Load()
}

// read lands the lanes of the last replay that are complete. Those that are not have
// failed for the reason left, unless it is none. The caller holds both locks and
// counts the calls.
func (g *GraphLanes) read(p *pool, left spanring.Reason) (h HarvestStats) {
	if !g.pending {
		return h
	}
	r := g.r
	g.pending = false
	for i := range g.lanes {
		l := &g.lanes[i]
		if !l.begun {
			continue
		}
		why := left
		if p != nil && !r.closed {
			by := r.anchors.latest()
			r.batch[0] = l.pair
			n, res, calls := r.drv.Elapsed(by.event, r.batch[:1], r.times[:1])
			h.Calls += calls
			if n == 1 {
				l.begun = false
				r.landSlot(p, &l.slot, l.pair.Start, nil, &r.times[0], by, r.now(), &h)
				continue
			}
			if res != NotReady {
				why = spanring.FailUnreadable
			}
		} else {
			why = spanring.FailClosed
		}
		if why == spanring.FailNone {
			g.pending = true
			continue
		}
		l.begun = false
		r.failed(&l.slot, why)
		h.Failed++
	}
	return h
}

// harvestGraphs reads the lanes of graphs whose owners are not inside a replay. The
// caller holds mu.
func (r *Recorder) harvestGraphs(p *pool, h *HarvestStats) {
	r.graphMu.Lock()
	defer r.graphMu.Unlock()
	for _, g := range r.graphs {
		if !g.mu.TryLock() {
			continue // it reads them itself
		}
		got := g.read(p, spanring.FailNone)
		g.mu.Unlock()
		h.Landed, h.Failed, h.Calls = h.Landed+got.Landed, h.Failed+got.Failed, h.Calls+got.Calls
	}
}

// failGraphs accounts for what is in flight when the recorder closes. The caller
// does not hold mu.
func (r *Recorder) failGraphs() {
	r.graphMu.Lock()
	graphs := r.graphs
	r.graphs = nil
	r.graphMu.Unlock()
	for _, g := range graphs {
		g.mu.Lock()
		r.mu.Lock()
		g.read(nil, spanring.FailClosed)
		r.mu.Unlock()
		g.mu.Unlock()
	}
}

// Close reads what is complete, fails the rest and destroys the events. The graph
// must be destroyed before: it records them.
func (g *GraphLanes) Close() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	r := g.r
	if g.pending { // else it can be called under locks that harvesting takes
		r.mu.Lock()
		r.count(g.read(r.pool.Load(), spanring.FailClosed).Calls)
		r.mu.Unlock()
	}
	r.graphMu.Lock()
	for i, x := range r.graphs {
		if x == g {
			r.graphs = append(r.graphs[:i:i], r.graphs[i+1:]...)
			break
		}
	}
	r.graphMu.Unlock()
	r.count(len(g.events))
	return r.drv.DestroyEvents(g.events)
}
