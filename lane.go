package lanetrace

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/spanring"
)

// LaneID is a lane's number within a hub, from Hub.Lane. 0 is no lane.
type LaneID uint16

// maxLanes bounds the lanes of a hub: an engine has a handful.
const maxLanes = 1024

// laneTable numbers lanes by name. Reading takes no lock.
type laneTable struct {
	ring  *spanring.Writer
	mu    sync.Mutex
	ids   map[string]LaneID
	count atomic.Uint32
	names [maxLanes]spanring.NameID
}

func (t *laneTable) init(ring *spanring.Writer) {
	t.ring, t.ids = ring, make(map[string]LaneID)
}

// Lane returns the number of the lane of that name, the same for the same name.
// It takes a lock; call it at start-up. It returns 0, which every method accepts
// and counts as misuse, for an empty name or beyond 1,023 lanes.
func (h *Hub) Lane(name string) LaneID {
	if h == nil || h.ring == nil {
		return 0
	}
	t := &h.lanes
	t.mu.Lock()
	defer t.mu.Unlock()
	if id, ok := t.ids[name]; ok {
		return id
	}
	n := t.count.Load() + 1
	if name == "" || n >= maxLanes {
		h.ring.Add(spanring.CtrMisuse, 1)
		return 0
	}
	t.names[n] = h.ring.Name(spanring.NameLane, name)
	t.count.Store(n)
	t.ids[name] = LaneID(n)
	return LaneID(n)
}

func (t *laneTable) name(id LaneID) (spanring.NameID, bool) {
	if id == 0 || uint32(id) > t.count.Load() {
		return 0, false
	}
	return t.names[id], true
}

// Lane is an open lane, begun by Device.LaneBegin. It is a value to be ended by
// End, or by Next, once; the zero Lane does nothing.
type Lane struct {
	dev    *Device
	handle cudaevents.Handle

	// Of a lane inside a graph that is being captured.
	graph  *cudaevents.GraphLanes
	stream cudaevents.Stream
	at     int
}

// LaneBegin begins a lane of step on stream s: its span starts when the GPU has
// done what is queued on s so far. At level lane and above it records one event,
// in one crossing into the driver; below, and in a step whose lanes the budget for
// them leaves out, it is a load or two. A stream that is
// being captured gets no lane (counted). A lane that is already open on s in the
// same step is not begun again (counted as misuse).
func (d *Device) LaneBegin(step Step, lane LaneID, s cudaevents.Stream) Lane {
	if step.hub == nil {
		return Lane{}
	}
	return d.laneFirst(step, lane, s)
}

func (d *Device) laneFirst(step Step, lane LaneID, s cudaevents.Stream) Lane {
	if d == nil || d.hub.level.Load() < uint32(LevelLane) {
		return Lane{}
	}
	if g := d.graphLanes(s); g != nil {
		return d.laneInGraph(g, lane, s)
	}
	if step.untimed() {
		return Lane{}
	}
	return d.laneBegin(step, lane, s, Lane{})
}

// laneBegin begins a lane; prev, if it is open and already off the stack, ends
// with the event that begins the new one.
func (d *Device) laneBegin(step Step, lane LaneID, s cudaevents.Stream, prev Lane) Lane {
	h := d.hub
	name, known := h.lanes.name(lane)
	if !known || step.hub != h || d.gone.Load() {
		h.ring.Add(spanring.CtrMisuse, 1)
		prev.end()
		return Lane{}
	}
	st := d.stream(s)
	m := cudaevents.Meta{Kind: spanring.KindLane, Armed: step.Armed(), Lane: uint16(lane), Step: step.ID(), Name: name}
	st.mu.Lock()
	if len(st.lanes) >= maxNesting/2 {
		st.prune(h)
	}
	twice := false
	for i := range st.lanes {
		if o := &st.lanes[i]; o.step.state == step.state {
			m.Parent = o.ordinal
			twice = twice || o.lane == lane
		}
	}
	if n := len(st.lanes); n > 0 && st.lanes[n-1].step.state != step.state {
		m.Parent = 0 // another step's lane lies between
	}
	st.mu.Unlock()
	if twice {
		h.ring.Add(spanring.CtrMisuse, 1)
		prev.end()
		return Lane{}
	}
	var ok bool
	if m.Ordinal, ok = step.open(); !ok {
		prev.end()
		return Lane{}
	}
	var hd cudaevents.Handle
	var out cudaevents.Outcome
	if prev.dev != nil {
		hd, out = d.rec.Switch(prev.handle, &m)
	} else {
		hd, out = d.rec.Begin(s, &m)
	}
	if !step.began(out) {
		return Lane{}
	}
	st.mu.Lock()
	st.lanes = append(st.lanes, openLane{step: step, handle: hd, ordinal: m.Ordinal, lane: lane})
	st.mu.Unlock()
	return Lane{dev: d, handle: hd}
}

// prune takes lanes off the stack that were never ended: those of steps that
// ended longer ago than the recorder waits for them and, should that not make
// room, the oldest one, which counts as misuse. The caller holds the lock.
func (s *streamState) prune(h *Hub) {
	now := spanring.MonoNS()
	s.lanes = slices.DeleteFunc(s.lanes, func(o openLane) bool {
		at, ended := h.steps.ended(o.step.ID())
		return ended && now-at > int64(h.cfg.Abandon)
	})
	if len(s.lanes) >= maxNesting {
		s.lanes = slices.Delete(s.lanes, 0, 1)
		h.ring.Add(spanring.CtrMisuse, 1)
	}
}

// remove takes a lane off the stack, wherever in it the lane lies. The caller
// holds the lock.
func (s *streamState) remove(h cudaevents.Handle) (openLane, bool) {
	for i := len(s.lanes) - 1; i >= 0; i-- {
		if o := s.lanes[i]; o.handle == h {
			s.lanes = append(s.lanes[:i], s.lanes[i+1:]...)
			return o, true
		}
	}
	return openLane{}, false
}

// End ends the lane: its span ends when the GPU has done what is queued on its
// stream so far. It records one event. Ending twice is counted as a stale end.
// An end on a stream that is being captured records nothing: the span is
// failed{capture}.
func (l Lane) End() {
	if l.dev != nil {
		l.close()
	}
}

func (l Lane) close() {
	if l.graph != nil {
		l.endInGraph()
		return
	}
	l.pop()
	l.end()
}

func (l Lane) pop() (openLane, bool) {
	st := l.dev.stream(l.handle.Stream())
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.remove(l.handle)
}

func (l Lane) end() {
	if l.dev != nil {
		l.dev.rec.End(l.handle)
	}
}

// Next ends the lane and begins another of the same step on the same stream with
// one event for both, which costs the GPU half of what End and LaneBegin do.
// Where l is the zero Lane, or was ended before (counted), it begins nothing.
func (l Lane) Next(lane LaneID) Lane {
	if l.dev == nil {
		return Lane{}
	}
	return l.next(lane)
}

func (l Lane) next(lane LaneID) Lane {
	if l.graph != nil {
		l.endInGraph()
		return l.dev.laneInGraph(l.graph, lane, l.stream)
	}
	o, open := l.pop()
	if !open || l.dev.hub.level.Load() < uint32(LevelLane) {
		l.end()
		return Lane{}
	}
	return l.dev.laneBegin(o.step, lane, l.handle.Stream(), l)
}
