package spanring

import "testing"

// TestNoAllocations holds the paths that run on every span and every poll.
func TestNoAllocations(t *testing.T) {
	w := newHeap(t, Geometry{})
	r := heapReader(t, w, ReaderOptions{})
	s := newSlots(t, w, 8)
	span := fullSpan
	e := span.Words()
	buf := make([]Entry, 128)
	w.Name(NameKernel, "gemm")
	w.GraphName(1, 2, "decode")
	at := w.Allocs()
	at.Track(1, 1)
	var as []Alloc
	gen := uint32(0)
	var sink int64
	for name, f := range map[string]func(){
		"Append":    func() { w.Append(&e) },
		"Words":     func() { e = span.Words() },
		"Span":      func() { _, _ = e.Span() },
		"Add":       func() { w.Add(CtrBegun, 1) },
		"Name":      func() { w.Name(NameKernel, "gemm") },
		"GraphName": func() { w.GraphName(1, 2, "decode") },
		"Put": func() {
			gen++
			s.Store(0, MakeSlotWord(gen, SlotOpen))
			s.Put(0, &fullSlot)
			s.SetClosed(0, 1, GapQueued)
			_ = s.Get(0)
			s.CompareAndSwap(0, MakeSlotWord(gen, SlotOpen), MakeSlotWord(gen, SlotFree))
		},
		"allocation": func() {
			at.Lock()
			a := fullAlloc
			p, _ := at.Put(&a)
			q, _ := at.Put(&a)
			at.Add(CtrMemLiveBytes, 1)
			at.Unlock()
			at.Lock()
			at.Remove(p)
			at.Remove(q)
			at.Unlock()
			ev := MemEvent{Kind: KindAlloc, Alloc: fullAlloc}
			we := ev.Words()
			_, _ = we.MemEvent()
		},
		"Allocs": func() { as, _, _ = r.Allocs(as[:0]) },
		"MonoNS": func() { sink += MonoNS() },
		"Poll": func() {
			for range 100 {
				w.Append(&e)
			}
			if n, err := r.Poll(buf, 0); n == 0 || err != nil {
				t.Error(n, err)
			}
		},
		"Poll, nothing there": func() {
			if _, err := r.Poll(buf, 0); err != nil {
				t.Error(err)
			}
		},
		"Counters": func() {
			if _, err := r.Counters(); err != nil {
				t.Error(err)
			}
		},
	} {
		if n := testing.AllocsPerRun(200, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
