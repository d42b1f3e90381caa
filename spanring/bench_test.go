package spanring

import (
	"sync"
	"testing"
)

func benchWords() Words {
	s := Span{Kind: KindLane, Step: 1, Ordinal: 1, RawNS: 3000, StartMonoNS: 1e9}
	return s.Words()
}

// BenchmarkAppend is one goroutine's write of an entry, without a clock.
func BenchmarkAppend(b *testing.B) {
	w := newHeap(b, Geometry{})
	e := benchWords()
	b.ReportAllocs()
	for b.Loop() {
		w.Append(&e)
	}
	b.ReportMetric(float64(w.Counter(CtrGivenUp)), "given_up")
}

// BenchmarkAppendParallel2 is the same from two goroutines at once: time by the
// wall clock for each of a goroutine's own writes.
func BenchmarkAppendParallel2(b *testing.B) {
	w := newHeap(b, Geometry{})
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			e := benchWords()
			for range b.N {
				w.Append(&e)
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(w.Counter(CtrGivenUp)), "given_up")
}

// BenchmarkPoll is a reader's time for one entry, in batches of 512.
func BenchmarkPoll(b *testing.B) {
	const batch = 512
	w := newHeap(b, Geometry{})
	r := heapReader(b, w, ReaderOptions{})
	e := benchWords()
	buf := make([]Entry, batch)
	b.ReportAllocs()
	for n := 0; n < b.N; n += batch {
		b.StopTimer()
		for range batch {
			w.Append(&e)
		}
		b.StartTimer()
		if got, err := r.Poll(buf, 0); got != batch || err != nil {
			b.Fatal(got, err)
		}
	}
}

// BenchmarkPollIdle is a poll that finds nothing.
func BenchmarkPollIdle(b *testing.B) {
	w := newHeap(b, Geometry{})
	r := heapReader(b, w, ReaderOptions{})
	buf := make([]Entry, 1)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Poll(buf, 0); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMonoNS(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		MonoNS()
	}
}

func BenchmarkAdd(b *testing.B) {
	w := newHeap(b, Geometry{})
	b.ReportAllocs()
	for b.Loop() {
		w.Add(CtrBegun, 1)
	}
}

// BenchmarkNameSeen looks up a text that was interned before.
func BenchmarkNameSeen(b *testing.B) {
	w := newHeap(b, Geometry{})
	const text = "void gemm_kernel<float, 128, 64, 8>(float const*, float const*, float*, int)"
	w.Name(NameKernel, text)
	b.ReportAllocs()
	for b.Loop() {
		w.Name(NameKernel, text)
	}
}

// BenchmarkSlotPut fills a slot, as each span's begin does.
func BenchmarkSlotPut(b *testing.B) {
	w := newHeap(b, Geometry{})
	s, err := w.NewContext(&ContextState{}, 1)
	if err != nil {
		b.Fatal(err)
	}
	v := fullSlot
	b.ReportAllocs()
	for b.Loop() {
		s.Put(0, &v)
	}
}

// BenchmarkAllocPut is one allocation and its free on the table, without the log.
func BenchmarkAllocPut(b *testing.B) {
	w := newHeap(b, Geometry{})
	at := w.Allocs()
	at.Track(1, 1)
	a := fullAlloc
	b.ReportAllocs()
	for b.Loop() {
		at.Lock()
		p, _ := at.Put(&a)
		at.Add(CtrMemLiveBytes, int64(a.Bytes))
		at.Unlock()
		at.Lock()
		at.Remove(p)
		at.Add(CtrMemLiveBytes, -int64(a.Bytes))
		at.Unlock()
	}
}

// BenchmarkAllocsFull scans a full table of the default size through a mapping of
// its own, as another process does.
func BenchmarkAllocsFull(b *testing.B) {
	w := create(b, privateDir(b), Geometry{})
	at := w.Allocs()
	at.Lock()
	at.Track(1, 1)
	for i := range uint64(DefaultGeometry.Allocs) {
		a := sealedAlloc(1, i)
		at.Put(&a)
	}
	at.Unlock()
	r := open(b, w.Path())
	var as []Alloc
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if as, _, err = r.Allocs(as[:0]); err != nil || len(as) != DefaultGeometry.Allocs {
			b.Fatal(len(as), err)
		}
	}
}
