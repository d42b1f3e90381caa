package spanring

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// TestManyWriters has many goroutines write into logs that are far too small,
// while readers read: what is received is whole, comes once and in each writer's
// order, and with what is lost makes up all that was handed out.
func TestManyWriters(t *testing.T) {
	const writers = 6
	for _, c := range []struct{ log, each int }{{64, 5000}, {256, 5000}, {1 << 15, 5000}} {
		w := newHeap(t, Geometry{LogEntries: c.log, Slots: 1, NameBytes: 4096, Allocs: 1})
		readers := []*Reader{heapReader(t, w, ReaderOptions{}), heapReader(t, w, ReaderOptions{})}
		var ww, rw sync.WaitGroup
		var written, gaveUp atomic.Uint64
		done := make(chan struct{})
		for g := range uint64(writers) {
			ww.Go(func() {
				for i := range uint64(c.each) {
					e := sealed(g, i)
					if w.Append(&e) {
						written.Add(1)
					} else {
						gaveUp.Add(1)
					}
				}
			})
		}
		for k, r := range readers {
			rw.Go(func() {
				type key struct{ writer, n uint64 }
				seen := make(map[uint64]bool)
				who := make(map[key]bool)
				buf := make([]Entry, 50+100*k)
				for last := false; ; {
					n, err := r.Poll(buf, MonoNS())
					if err != nil {
						t.Error(err)
						return
					}
					for _, e := range buf[:n] {
						k := key{e.Words[1], e.Words[2]}
						if !intact(&e.Words) || k.writer >= writers {
							t.Errorf("entry %d is torn: %x", e.Seq, e.Words)
						}
						if seen[e.Seq] || who[k] {
							t.Errorf("entry %d, number %d of writer %d, came twice", e.Seq, k.n, k.writer)
						}
						seen[e.Seq], who[k] = true, true
					}
					if a := r.Account(); a.Published != a.Received+a.Lost+a.Missed+a.Pending {
						t.Errorf("does not balance: %+v", a)
					}
					if n > 0 {
						continue
					}
					if last {
						break
					}
					select {
					case <-done:
						r.MarkDead() // all have published or given up
						last = true
					default:
						runtime.Gosched()
					}
				}
				a := r.Account()
				if a.Pending != 0 || a.Published != uint64(writers*c.each) || a.Received != uint64(len(seen)) || a.Received+a.Lost != a.Published {
					t.Errorf("log %d: at the end %+v", c.log, a)
				}
				if a.Received > written.Load() || a.Lost < gaveUp.Load() {
					t.Errorf("log %d: %+v, %d written, %d given up", c.log, a, written.Load(), gaveUp.Load())
				}
				if a.Received == 0 {
					t.Errorf("log %d: nothing received", c.log)
				}
				if c.log >= writers*c.each && a.Lost != gaveUp.Load() {
					t.Errorf("log %d: %+v, %d given up: a log that holds all loses nothing", c.log, a, gaveUp.Load())
				}
			})
		}
		ww.Wait()
		close(done)
		rw.Wait()
		if n := w.Counter(CtrGivenUp); n != gaveUp.Load() {
			t.Errorf("%d given up, %d counted", gaveUp.Load(), n)
		}
	}
}

// TestNewest has a reader wait at the very entry that is being written, and
// TestOldest at the one that is being overwritten.
func TestNewest(t *testing.T) {
	w := newHeap(t, smallGeometry)
	r := heapReader(t, w, ReaderOptions{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range uint64(50000) {
			appendSealed(w, i, 1)
			if i%8 == 0 {
				linger()
			}
		}
	}()
	buf := make([]Entry, 64)
	read := func() int {
		n, err := r.Poll(buf, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range buf[:n] {
			if e.Words != sealed(1, e.Seq) {
				t.Fatalf("entry %d: %x", e.Seq, e.Words)
			}
		}
		return n
	}
	for going := true; going; {
		read()
		select {
		case <-done:
			going = false
		default:
		}
	}
	for read() > 0 {
	}
	if a := r.Account(); a.Published != 50000 || a.Received == 0 || a.Pending != 0 {
		t.Errorf("%+v", a)
	}
}

func TestOldest(t *testing.T) {
	w := newHeap(t, smallGeometry)
	r := heapReader(t, w, ReaderOptions{})
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := uint64(0); ; i++ {
			appendSealed(w, i, 1)
			if i%1024 == 0 {
				select {
				case <-stop:
					return
				default:
				}
			}
		}
	}()
	defer func() { close(stop); <-done }()
	buf := make([]Entry, 1)
	for range 200000 {
		n, err := r.Poll(buf, 0)
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 && buf[0].Words != sealed(1, buf[0].Seq) {
			t.Fatalf("entry %d: %x", buf[0].Seq, buf[0].Words)
		}
	}
	balanced(t, r.Account())
}

// TestCountersConcurrent adds from several goroutines.
func TestCountersConcurrent(t *testing.T) {
	w := newHeap(t, smallGeometry)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				w.Add(CtrBegun, 2)
				w.SetLevel(3)
				w.SetArming(64, 1)
			}
		})
	}
	wg.Wait()
	if n := w.Counter(CtrBegun); n != 8000 {
		t.Errorf("%d counted", n)
	}
}
