package lanetrace

import (
	"maps"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/spanring"
)

// Lanes inside captured graphs are opt-in, because they are nodes of the graph: a
// backend that was told to have them announces each capture with GraphCapture, and
// launches the graph with GraphReplay. A lane begun on the stream meanwhile is in
// the graph, and every replay times it.

// GraphCapture says that s is about to be captured into a graph that may have lanes
// inside. It makes the events, driver calls. Nil: there are to be none, because the
// level is below lane or the driver cannot. GraphCaptured must follow.
func (d *Device) GraphCapture(s cudaevents.Stream) *cudaevents.GraphLanes {
	if d == nil || d.hub.level.Load() < uint32(LevelLane) || d.gone.Load() {
		return nil
	}
	g, err := d.rec.NewGraphLanes()
	if err != nil {
		return nil
	}
	d.setCapturing(s, g)
	return g
}

// GraphCaptured says that the capture of s is over, whatever came of it.
func (d *Device) GraphCaptured(s cudaevents.Stream) {
	if d != nil {
		d.setCapturing(s, nil)
	}
}

func (d *Device) setCapturing(s cudaevents.Stream, g *cudaevents.GraphLanes) {
	d.captMu.Lock()
	defer d.captMu.Unlock()
	next := make(map[cudaevents.Stream]*cudaevents.GraphLanes)
	if old := d.capturing.Load(); old != nil {
		maps.Copy(next, *old)
	}
	if delete(next, s); g != nil {
		next[s] = g
	}
	if len(next) == 0 {
		d.capturing.Store(nil)
		return
	}
	d.capturing.Store(&next)
}

// graphLanes are those that a lane begun on s now would be one of.
func (d *Device) graphLanes(s cudaevents.Stream) *cudaevents.GraphLanes {
	if m := d.capturing.Load(); m != nil {
		return (*m)[s]
	}
	return nil
}

// GraphReplay launches a graph with lanes inside, by launch, on a stream that is
// not being captured. The lanes of this replay belong to the innermost lane open on
// s, else to the step bound to s; without either they are not timed. It returns
// what launch returns.
func (d *Device) GraphReplay(g *cudaevents.GraphLanes, s cudaevents.Stream, launch func() bool) bool {
	if d == nil || g == nil {
		return launch()
	}
	return g.Replay(s, launch, func(parent uint32) (m cudaevents.Meta, ok bool) {
		if d.gone.Load() || d.hub.level.Load() < uint32(LevelLane) {
			return m, false
		}
		st := d.stream(s)
		st.mu.Lock()
		step := st.bound
		if n := len(st.lanes); n > 0 {
			step = st.lanes[n-1].step
			if parent == 0 {
				parent = st.lanes[n-1].ordinal
			}
		}
		st.mu.Unlock()
		if step.hub == nil {
			d.hub.ring.Add(spanring.CtrUnattributed, 1)
			return m, false
		}
		if step.untimed() {
			return m, false
		}
		if m.Ordinal, ok = step.open(); !ok {
			return m, false
		}
		m.Step, m.Armed, m.Parent = step.ID(), step.Armed(), parent
		return m, true
	})
}

// laneInGraph begins a lane inside the graph that s is being captured into.
func (d *Device) laneInGraph(g *cudaevents.GraphLanes, lane LaneID, s cudaevents.Stream) Lane {
	name, known := d.hub.lanes.name(lane)
	if !known {
		d.hub.ring.Add(spanring.CtrMisuse, 1)
		return Lane{}
	}
	i, ok := g.Begin(s, name, uint16(lane))
	if !ok {
		d.hub.ring.Add(spanring.CtrCapturing, 1)
		return Lane{}
	}
	return Lane{dev: d, graph: g, stream: s, at: i}
}

// endInGraph ends a lane inside a graph.
func (l Lane) endInGraph() {
	if !l.graph.End(l.stream, l.at) {
		l.dev.hub.ring.Add(spanring.CtrStaleEnds, 1)
	}
}
