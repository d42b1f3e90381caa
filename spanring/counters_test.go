package spanring

import "testing"

func TestCounters(t *testing.T) {
	w := newHeap(t, smallGeometry)
	r := heapReader(t, w, ReaderOptions{})
	for c := range NumCounters {
		w.Add(c, uint64(c)+1)
	}
	// Beyond the last: ignored, and no neighbour is touched.
	for c := int(NumCounters); c <= 255; c++ {
		w.Add(Counter(c), 1)
		if w.Counter(Counter(c)) != 0 {
			t.Errorf("counter %d counts", c)
		}
	}
	if cs, err := r.Contexts(); len(cs) != 0 || err != nil {
		t.Errorf("contexts %v, %v", cs, err)
	}
	got, err := r.Counters()
	if err != nil {
		t.Fatal(err)
	}
	for c := range NumCounters {
		if got[c] != uint64(c)+1 || w.Counter(c) != uint64(c)+1 {
			t.Errorf("counter %d is %d", c, got[c])
		}
	}
	if w.Counters() != got {
		t.Error("writer and reader see different counters")
	}
}

func TestCountersAccount(t *testing.T) {
	var c Counters
	c[CtrBegun], c[CtrLanded], c[CtrDropped] = 100, 50, 7
	for r := FailNone + 1; int(r) < NumReasons; r++ {
		c[r.Counter()] = uint64(r)
	}
	// Of the twelve reasons, 1 + 2 + ... + 12.
	if c.Failed() != 78 {
		t.Errorf("failed %d", c.Failed())
	}
	if c.InFlight() != 100-50-7-78 {
		t.Errorf("in flight %d", c.InFlight())
	}
}

// TestMemoryTotals: every memory counter with a name is a field, and the way back
// is the same.
func TestMemoryTotals(t *testing.T) {
	var c Counters
	for k := range NumCounters {
		c[k] = uint64(k) + 1000
	}
	m := c.Memory()
	var back Counters
	m.Put(&back)
	for k := range NumCounters {
		want := uint64(0)
		if k.IsMemory() && k.String() != "reserved" {
			want = uint64(k) + 1000
		}
		if back[k] != want || k.IsMemory() != (k >= 64 && k < 96) {
			t.Errorf("counter %v is %d, want %d", k, back[k], want)
		}
	}
}
