package cudaevents_test

import (
	"errors"
	"testing"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
	"github.com/lanetrace/lanetrace/spanring"
)

// external is the scripted driver with events in graphs: a record in a capture is
// noted, and replay does them all on a stream.
type external struct {
	*scripted.Driver
	nodes []cudaevents.Event
	fail  int // of the next records
}

func (d *external) RecordExternal(e cudaevents.Event, _ cudaevents.Stream) cudaevents.Result {
	if d.fail > 0 {
		d.fail--
		return 719
	}
	d.nodes = append(d.nodes, e)
	return cudaevents.Success
}

func (d *external) replay(s cudaevents.Stream) {
	for _, e := range d.nodes {
		d.Record(e, s)
	}
}

func TestGraphLanes(t *testing.T) {
	w, err := spanring.NewHeap(spanring.Options{})
	if err != nil {
		t.Fatal(err)
	}
	drv := &external{Driver: scripted.New(scripted.Options{RealTime: true})}
	r, err := cudaevents.New(drv, w, cudaevents.Options{Pairs: 8})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.NewGraphLanes(); !errors.Is(err, cudaevents.ErrClosed) {
		t.Errorf("without a pool: %v", err)
	}
	if err := r.EnsurePool(); err != nil {
		t.Fatal(err)
	}
	g, err := r.NewGraphLanes()
	if err != nil {
		t.Fatal(err)
	}
	s := drv.NewStream()
	a, ok := g.Begin(s, 0, 1)
	b, ok2 := g.Begin(s, 0, 2)
	if !ok || !ok2 || !g.End(s, b) || !g.End(s, a) || g.End(s, a) || g.End(s, 7) || g.Len() != 2 {
		t.Fatalf("lanes: %v %v, %d", ok, ok2, g.Len())
	}
	// A lane without an end is none, one whose start is refused was not begun.
	if _, ok := g.Begin(s, 0, 3); !ok {
		t.Error("third lane")
	}
	drv.fail = 1
	if _, ok := g.Begin(s, 0, 4); ok {
		t.Error("a refused record began a lane")
	}
	for n := 4; n <= cudaevents.MaxGraphLanes; n++ {
		if _, ok := g.Begin(s, 0, 1); !ok {
			t.Fatalf("lane %d", n)
		}
	}
	if _, ok := g.Begin(s, 0, 1); ok {
		t.Errorf("more than %d lanes", cudaevents.MaxGraphLanes)
	}
	opened, parents := uint32(0), []uint32(nil)
	open := func(parent uint32) (cudaevents.Meta, bool) {
		opened++
		parents = append(parents, parent)
		return cudaevents.Meta{Step: 9, Ordinal: opened, Parent: parent}, true
	}
	if g.Replay(s, func() bool { return false }, open) || opened != 0 {
		t.Errorf("a launch that failed opened %d", opened)
	}
	// Nothing recorded by the replay yet: the next one finds it pending or never
	// recorded, and both are accounted for.
	if !g.Replay(s, func() bool { drv.replay(s); return true }, open) || opened != 2 || parents[0] != 0 || parents[1] != 1 {
		t.Errorf("opened %d under %v", opened, parents)
	}
	if err := r.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c := w.Counters(); c[spanring.CtrBegun] != 2 || c[spanring.CtrLanded]+c.Failed() != 2 {
		t.Errorf("begun %d, landed %d, failed %d", c[spanring.CtrBegun], c[spanring.CtrLanded], c.Failed())
	}
	if !g.Replay(s, func() bool { return true }, func(uint32) (cudaevents.Meta, bool) { return cudaevents.Meta{}, false }) {
		t.Error("replay")
	}
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if !g.Replay(s, func() bool { return true }, open) || opened != 2 {
		t.Error("a replay on a closed recorder was opened")
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if _, err := r.NewGraphLanes(); !errors.Is(err, cudaevents.ErrClosed) {
		t.Errorf("on a closed recorder: %v", err)
	}
	var none *cudaevents.GraphLanes
	if err := none.Close(); err != nil {
		t.Error(err)
	}
	plain, err := cudaevents.New(scripted.New(scripted.Options{RealTime: true}), w, cudaevents.Options{Pairs: 8})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := plain.NewGraphLanes(); !errors.Is(err, cudaevents.ErrNoExternal) {
		t.Errorf("a driver without such events: %v", err)
	}
}

// TestGraphLanesAreAccountedFor: a harvest says what it asked for lanes in graphs, and
// what is under way when a graph goes was not replayed too soon.
func TestGraphLanesAreAccountedFor(t *testing.T) {
	w, err := spanring.NewHeap(spanring.Options{})
	if err != nil {
		t.Fatal(err)
	}
	drv := &external{Driver: scripted.New(scripted.Options{})}
	r, err := cudaevents.New(drv, w, cudaevents.Options{Pairs: 8, Now: drv.Now})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.EnsurePool(); err != nil {
		t.Fatal(err)
	}
	g, err := r.NewGraphLanes()
	if err != nil {
		t.Fatal(err)
	}
	s := drv.NewStream()
	if n, ok := g.Begin(s, 0, 1); !ok || !g.End(s, n) {
		t.Fatal("no lane")
	}
	replay := func() {
		t.Helper()
		if !g.Replay(s, func() bool { drv.replay(s); return true }, func(uint32) (cudaevents.Meta, bool) { return cudaevents.Meta{Step: 1}, true }) {
			t.Fatal("replay")
		}
	}
	count := func(what string, harvest bool, f func() int) {
		t.Helper()
		calls, total, harvests := drv.Calls(), w.Counter(spanring.CtrDriverCalls), w.Counter(spanring.CtrHarvestCalls)
		said := f()
		made := drv.Calls() - calls
		if n := w.Counter(spanring.CtrDriverCalls) - total; made == 0 || n != uint64(made) {
			t.Errorf("%s: %d driver calls counted, %d made", what, n, made)
		}
		if n := w.Counter(spanring.CtrHarvestCalls) - harvests; harvest && (n != uint64(made) || said != made) {
			t.Errorf("%s: %d calls of the harvest counted, %d said, %d made", what, n, said, made)
		}
	}
	replay()
	drv.Advance(1e6)
	count("harvest", true, func() int { return r.Harvest().Calls })
	drv.Stall(s)
	replay()
	count("harvest of what is under way", true, func() int { return r.Harvest().Calls })
	count("close", false, func() int {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		return 0
	})
	if c := w.Counters(); c[spanring.CtrLanded] != 1 || c[spanring.FailClosed.Counter()] != 1 || c.Failed() != 1 {
		t.Errorf("landed %d, failed %d, closed %d", c[spanring.CtrLanded], c.Failed(), c[spanring.FailClosed.Counter()])
	}
}
