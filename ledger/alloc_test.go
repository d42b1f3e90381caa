package ledger

import "testing"

// TestNoAllocations: in steady state an allocation, a free and a look at one
// number allocate nothing, also while both are written to a ring.
func TestNoAllocations(t *testing.T) {
	for _, publishing := range []bool{false, true} {
		w, _ := heapRing(t, testGeometry)
		l := newLedger(t, Options{})
		l.Attach(w, 0, publishing)
		for i := range uint64(100) {
			alloc(l, 1<<30+i*4096, 1000)
		}
		next := uint64(100)
		for name, f := range map[string]func(){
			"alloc and free": func() {
				alloc(l, 1<<30+next*4096, 3000)
				alloc(l, 1<<40+next<<22, 3<<20)
				free(l, 1<<30+(next-100)*4096, nil)
				free(l, 1<<40+next<<22, nil)
				next++
			},
			"failures": func() {
				p := l.Begin(device, 5)
				p.Failed()
				free(l, 5, errFake)
				free(l, 1<<30+(next-1)*4096, errFake)
			},
			"arena":  func() { l.Arena(1<<50, 5); free(l, 1<<50, nil) },
			"figure": func() { l.ChunkSlackBytes(); l.LiveBytes(); l.Probe().Totals() },
		} {
			if n := testing.AllocsPerRun(1000, f); n != 0 {
				t.Errorf("%s, publishing %v: allocates %v times", name, publishing, n)
			}
		}
	}
}
