package ledger

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lanetrace/lanetrace/spanring"
)

// fakeDriver hands out addresses, the last freed one first, as drivers do, and
// refuses to free what it has not handed out.
type fakeDriver struct {
	mu    sync.Mutex
	live  map[uint64]bool
	freed []uint64
	next  uint64
}

var errFake = errors.New("no such address")

func (d *fakeDriver) alloc() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	var a uint64
	if n := len(d.freed); n > 0 {
		a, d.freed = d.freed[n-1], d.freed[:n-1]
	} else {
		d.next++
		a = d.next * 4096
	}
	d.live[a] = true
	return a
}

func (d *fakeDriver) free(a uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.live[a] {
		return errFake
	}
	delete(d.live, a)
	d.freed = append(d.freed, a)
	return nil
}

// TestConcurrent allocates and frees from many goroutines over a driver that
// hands an address out again at once, while others read, change the level and
// scan guard bands. No allocation meets the former owner of its address.
func TestConcurrent(t *testing.T) {
	w, r := heapRing(t, testGeometry)
	l := newLedger(t, Options{Redzone: Redzone{Bytes: 16}})
	l.Attach(w, 0, true)
	d := &fakeDriver{live: map[uint64]bool{}}
	var wg, side sync.WaitGroup
	var unknown atomic.Uint64
	const each = 4000
	for g := range uint64(4) {
		wg.Go(func() {
			var mine []uint64
			for n := range uint64(each) {
				if h := (n*7 + g) * 0x9e3779b97f4a7c15; len(mine) > 20 || len(mine) > 0 && h>>62 == 0 {
					i := h >> 20 % uint64(len(mine))
					a := mine[i]
					mine[i] = mine[len(mine)-1]
					mine = mine[:len(mine)-1]
					tk := l.Take(a)
					if !tk.Known() {
						t.Errorf("%#x is not on the ledger", a)
					}
					runtime.Gosched()
					err := d.free(a)
					tk.Done(err)
					if err != nil {
						t.Error(err)
					}
					if h>>60 == 3 { // twice: by then it may be somebody else's
						if tk := l.Take(a + 1); tk.Known() {
							t.Errorf("%#x is known", a+1)
						} else {
							tk.Done(errFake)
							unknown.Add(1)
						}
					}
					continue
				}
				p := l.Begin(device, int64(1+n%9000))
				a := d.alloc()
				p.Done(a)
				mine = append(mine, a)
			}
			for _, a := range mine {
				tk := l.Take(a)
				tk.Done(d.free(a))
			}
		})
	}
	stop := make(chan struct{})
	looking := func(f func(n int)) {
		side.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
					f(n)
					runtime.Gosched()
				}
			}
		})
	}
	looking(func(n int) { l.SetPublishing(n%3 != 0) })
	looking(func(int) {
		live, _ := l.LiveAllocations()
		seen := map[uint64]bool{}
		for _, a := range live {
			if seen[a.Addr] || a.Site == unknownSiteText {
				t.Errorf("%+v, twice %v", a, seen[a.Addr])
			}
			seen[a.Addr] = true
		}
		m := l.Memory()
		sum := int64(0)
		for _, s := range m.Sites {
			sum += s.Bytes
		}
		if sum != int64(m.Totals.LiveBytes) {
			t.Errorf("sites hold %d bytes of %d", sum, m.Totals.LiveBytes)
		}
		_ = m.Report(5, 0)
	})
	looking(func(int) {
		_, s, err := r.Allocs(nil)
		if err != nil {
			t.Error(err)
		}
		if tt := s.Totals; !s.Approximate && tt.Allocs+tt.FreesFailed != tt.Frees+tt.AllocsReplaced+tt.LiveCount {
			t.Errorf("does not balance: %+v", tt)
		}
	})
	looking(func(int) {
		n, err := l.ScanBands(func(bands []Band, into []byte) error {
			for i := range into {
				into[i] = bands[0].Fill
			}
			// None of them may be freed now.
			for _, b := range bands {
				d.mu.Lock()
				if !d.live[b.Allocation.Addr] {
					t.Errorf("the band of a freed allocation is read: %+v", b)
				}
				d.mu.Unlock()
			}
			return nil
		}, func(Band) error { return nil })
		if n != 0 || err != nil {
			t.Error(n, err)
		}
	})
	wg.Wait()
	close(stop)
	side.Wait()
	tt, _ := l.Totals()
	if tt.LiveCount != 0 || tt.LiveBytes != 0 || tt.ChunkSlackBytes != 0 || tt.RoundingSlackBytes != 0 || tt.GuardBytes != 0 ||
		tt.FreesUnknown != unknown.Load() || tt.AllocsReplaced != 0 || tt.FreesFailed != 0 || tt.Allocs != tt.Frees || tt.PeakBytes == 0 {
		t.Errorf("at the end: %+v", tt)
	}
	if l.chunks.used != 0 || l.byAddr.used != 0 {
		t.Errorf("%d chunks, %d addresses left", l.chunks.used, l.byAddr.used)
	}
	l.SetPublishing(true)
	as, s, err := r.Allocs(nil)
	if len(as) != 0 || err != nil || s.State != spanring.AllocsPublished {
		t.Errorf("%+v, %+v, %v", as, s, err)
	}
	if got := s.Totals; got != tt {
		t.Errorf("ring %+v, ledger %+v", got, tt)
	}
}

// TestTwoLedgers: of two GPUs behind one ring the totals add up, and the table is
// stale until both write.
func TestTwoLedgers(t *testing.T) {
	w, r := heapRing(t, testGeometry)
	a, b := newLedger(t, Options{}), newLedger(t, Options{ChunkBytes: 1 << 20})
	a.Attach(w, 0, true)
	b.Attach(w, 1, false)
	alloc(a, 4096, 1000)
	alloc(b, 4096, 3<<20)
	check := func(what string, state spanring.AllocState, count, live, peak, chunk uint64) {
		t.Helper()
		as, s, err := r.Allocs(nil)
		if err != nil || s.State != state || uint64(len(as)) != count || s.Totals.LiveBytes != live || s.Totals.PeakBytes != peak || s.Totals.ChunkBytes != chunk {
			t.Errorf("%s: %d allocations, %+v, %v", what, len(as), s, err)
		}
	}
	check("one of two writes", spanring.AllocsStale, 1, 1000, 1000, 2<<20)
	b.SetPublishing(true)
	check("both write", spanring.AllocsPublished, 2, 1000+3<<20, 1000+3<<20, 2<<20)
	free(b, 4096, nil)
	b.Detach()
	check("one is gone", spanring.AllocsPublished, 1, 1000, 1000+3<<20, 2<<20)
	if err := a.SetChunkBytes(1 << 20); err != nil {
		t.Fatal(err)
	}
	check("smaller chunks", spanring.AllocsPublished, 1, 1000, 1000+3<<20, 1<<20)
	a.Detach()
	check("both are gone, one with an allocation left", spanring.AllocsPublished, 1, 1000, 1000+3<<20, 1<<20)
	alloc(a, 8192, 5)
	check("detached", spanring.AllocsPublished, 1, 1000, 1000+3<<20, 1<<20)
}
