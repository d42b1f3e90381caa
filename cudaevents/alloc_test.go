package cudaevents_test

import (
	"testing"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/spanring"
)

func TestCellsAreCacheLines(t *testing.T) {
	if cudaevents.CellBytes != 64 {
		t.Errorf("a cell has %d bytes, want 64", cudaevents.CellBytes)
	}
}

func TestNothingAllocates(t *testing.T) {
	r, d, w := newBenchRecorder(t, 1024)
	lane := &cudaevents.Meta{Kind: spanring.KindLane, Step: 1, Ordinal: 1}
	kernel := &cudaevents.Meta{Kind: spanring.KindKernel, Step: 1, Ordinal: 2, Parent: 1}
	launched := cudaevents.LaunchResult{StartRecorded: true, EndRecorded: true, Pending: true, Calls: 4}
	round := func() {
		h, o := r.Begin(16, lane)
		if o != cudaevents.BeginOK {
			t.Fatal(o)
		}
		l, o := r.Reserve(16, kernel)
		if o != cudaevents.BeginOK || !r.Launched(l, launched) {
			t.Fatal(o)
		}
		if h, o = r.Switch(h, lane); o != cudaevents.BeginOK || !r.End(h) || r.End(h) {
			t.Fatal(o)
		}
		r.Harvest()
		d.now += 1e6
	}
	for range 2000 { // streams known, anchors taken, the clock's sets made
		round()
	}
	if n := testing.AllocsPerRun(2000, round); n != 0 {
		t.Errorf("%v allocations a round of begin, launch, switch, end and harvest", n)
	}
	c := w.Counters()
	if c[spanring.CtrLanded] < 4000*3 || c.Failed() != 0 || c[spanring.CtrAnchors] < 4 {
		t.Errorf("%d landed, %d failed, %d anchors", c[spanring.CtrLanded], c.Failed(), c[spanring.CtrAnchors])
	}
}
