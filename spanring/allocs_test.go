package spanring

import (
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var fullAlloc = Alloc{
	Addr: math.MaxUint64 - MaxAllocBytes - math.MaxUint32, Bytes: MaxAllocBytes, GuardBytes: math.MaxUint32, Site: math.MaxUint32,
	Index: math.MaxUint64, MonoNS: math.MaxInt64, Kind: AllocManaged, Context: MaxContexts - 1,
}

var fullViolation = Violation{
	Context: MaxContexts - 1, Addr: fullAlloc.Addr, Bytes: fullAlloc.Bytes, GuardBytes: math.MaxUint32, Site: math.MaxUint32,
	Index: math.MaxUint64, MonoNS: math.MaxInt64, First: 1, Last: math.MaxUint32 - 1, Changed: math.MaxUint32 - 1, Fill: 0xff, Value: 0xfe,
}

var allocGeometry = Geometry{LogEntries: 64, Slots: 1, NameBytes: 4096, Allocs: 64}

// sealedAlloc is allocation n of a writer; its words belong together.
func sealedAlloc(writer, n uint64) Alloc {
	h := mix(writer<<40 ^ n)
	return Alloc{
		Addr: 1<<32 + h>>8, Bytes: 1 + h%(1<<20), GuardBytes: uint32(mix(h)), Site: NameID(writer), Index: n,
		MonoNS: int64(mix(h+1) >> 1), Kind: AllocDevice, Context: uint8(writer),
	}
}

// churn makes and frees allocations, a few live at a time, while going says so.
func churn(w *Writer, g uint64, going func() bool) {
	at := w.Allocs()
	at.Lock()
	at.Track(1, 1)
	at.Unlock()
	type live struct {
		place int
		bytes uint64
	}
	var have []live
	for n := uint64(0); going(); n++ {
		at.Lock()
		if len(have) == 10 || len(have) > 0 && mix(n)%3 == 0 {
			i := mix(n+1) % uint64(len(have))
			at.Remove(have[i].place)
			at.Add(CtrMemLiveBytes, -int64(have[i].bytes))
			at.Add(CtrMemLiveCount, -1)
			have = slices.Delete(have, int(i), int(i)+1)
		} else {
			a := sealedAlloc(g, n)
			p, ok := at.Put(&a)
			if !ok {
				panic("table full")
			}
			at.Add(CtrMemLiveBytes, int64(a.Bytes))
			at.Add(CtrMemLiveCount, 1)
			have = append(have, live{p, a.Bytes})
		}
		at.Unlock()
	}
}

// checkScan fails the test for an allocation that no churn made, and for an exact
// scan that does not make up its totals.
func checkScan(t testing.TB, as []Alloc, s AllocScan) {
	t.Helper()
	sum := uint64(0)
	for _, a := range as {
		if a != sealedAlloc(uint64(a.Site), a.Index) {
			t.Fatalf("torn allocation: %+v", a)
		}
		sum += a.Bytes
	}
	if !s.Approximate && (sum != s.Totals.LiveBytes || uint64(len(as)) != s.Totals.LiveCount) {
		t.Fatalf("%d bytes in %d allocations, %+v", sum, len(as), s)
	}
}

func TestAllocEntriesRoundTrip(t *testing.T) {
	for _, e := range []MemEvent{
		{Kind: KindAlloc, Alloc: fullAlloc, LiveBytes: math.MaxUint64},
		{Kind: KindFree, Alloc: Alloc{Addr: 1, Bytes: 1, Kind: AllocDevice}},
		{Kind: KindFree, Alloc: fullAlloc, Swept: true},
	} {
		w := e.Words()
		got, err := w.MemEvent()
		if d := cmp.Diff(e, got); d != "" || err != nil {
			t.Errorf("%v %s", err, d)
		}
	}
	for _, v := range []Violation{
		fullViolation,
		{Addr: 1, Bytes: 1, GuardBytes: 1, Changed: 1, Fill: 0xa5, Value: 0},
		{Addr: 1, Bytes: 1, GuardBytes: 16, First: 3, Last: 9, Changed: 2, Value: 1},
	} {
		w := v.Words()
		got, err := w.Violation()
		if d := cmp.Diff(v, got); d != "" || err != nil {
			t.Errorf("%v %s", err, d)
		}
	}
}

// TestSweptIsOfFrees: an allocation cannot be swept, and there is no other mark.
func TestSweptIsOfFrees(t *testing.T) {
	w := (&MemEvent{Kind: KindAlloc, Alloc: fullAlloc}).Words()
	w[0] |= 1 << 16
	if _, err := w.MemEvent(); !errors.Is(err, ErrEntry) {
		t.Errorf("an allocation marked as swept: %v", err)
	}
	w = (&MemEvent{Kind: KindFree, Alloc: fullAlloc}).Words()
	w[0] |= 2 << 16
	if _, err := w.MemEvent(); !errors.Is(err, ErrEntry) {
		t.Errorf("a free with mark 2: %v", err)
	}
}

// TestAllocEntriesRefused: what cannot be is no allocation, on the log and on the
// table.
func TestAllocEntriesRefused(t *testing.T) {
	for name, f := range map[string]func(a *Alloc){
		"address 0":            func(a *Alloc) { a.Addr = 0 },
		"no bytes":             func(a *Alloc) { a.Bytes = 0 },
		"end beyond all":       func(a *Alloc) { a.Addr++ },
		"kind 0":               func(a *Alloc) { a.Kind = 0 },
		"kind 3":               func(a *Alloc) { a.Kind = 3 },
		"context":              func(a *Alloc) { a.Context = MaxContexts },
		"made before all time": func(a *Alloc) { a.MonoNS = -1 },
	} {
		a := fullAlloc
		f(&a)
		e := MemEvent{Kind: KindAlloc, Alloc: a}
		w := e.Words()
		if got, err := w.MemEvent(); !errors.Is(err, ErrEntry) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		w = a.words()
		if got, ok := parseAlloc(&w); ok {
			t.Errorf("%s: %+v on the table", name, got)
		}
	}
	big := fullAlloc
	big.Bytes = math.MaxUint64
	if w := big.words(); w[1] != MaxAllocBytes {
		t.Errorf("%d bytes are written as %d", big.Bytes, w[1])
	}
	for name, f := range map[string]func(v *Violation){
		"last before first":      func(v *Violation) { v.First, v.Last = 5, 4 },
		"last behind the band":   func(v *Violation) { v.Last = v.GuardBytes },
		"none changed":           func(v *Violation) { v.Changed = 0 },
		"more than lie there":    func(v *Violation) { v.Changed++; v.First++ },
		"the same":               func(v *Violation) { v.Value = v.Fill },
		"one, in two places":     func(v *Violation) { v.Changed = 1 },
		"no such allocation":     func(v *Violation) { v.Addr = 0 },
		"found before all times": func(v *Violation) { v.MonoNS = -5 },
	} {
		v := fullViolation
		f(&v)
		w := v.Words()
		if got, err := w.Violation(); !errors.Is(err, ErrEntry) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, w := range []Words{{uint64(KindLane)}, {}} {
		if _, err := w.MemEvent(); !errors.Is(err, ErrEntry) {
			t.Error(err)
		}
		if _, err := w.Violation(); !errors.Is(err, ErrEntry) {
			t.Error(err)
		}
	}
}

// TestAllocStates: not tracked is not 0 bytes, and stale is not up to date.
func TestAllocStates(t *testing.T) {
	w := newHeap(t, smallGeometry)
	r := heapReader(t, w, ReaderOptions{})
	at := w.Allocs()
	change := func(f func()) {
		at.Lock()
		f()
		at.Unlock()
	}
	want := func(what string, state AllocState, n int) {
		t.Helper()
		as, s, err := r.Allocs(nil)
		if err != nil || s.State != state || len(as) != n || s.Approximate {
			t.Errorf("%s: %d allocations, %v (%+v), %v", what, len(as), s.State, s, err)
		}
	}
	want("new", AllocsNotTracked, 0)
	change(func() { at.Track(1, 0) })
	want("a ledger at level off", AllocsStale, 0)
	a := fullAlloc
	var place int
	change(func() { at.Track(0, 1); place, _ = at.Put(&a); at.Raise(CtrMemPeakBytes, 70) })
	want("a rise", AllocsPublished, 1)
	change(func() { at.Track(1, 0) })
	want("a second ledger at level off", AllocsStale, 1)
	change(func() { at.Track(-1, 0) })
	want("gone", AllocsPublished, 1)
	change(func() { at.Track(0, -1) })
	want("a fall", AllocsStale, 1)
	change(func() { at.Track(0, 1); at.Remove(place); at.Remove(place); at.Remove(-1); at.Remove(8) })
	want("a rise, freed meanwhile", AllocsPublished, 0)
	change(func() { at.Track(-1, -1); at.Raise(CtrMemPeakBytes, 60) })
	want("ended", AllocsPublished, 0)
	if _, s, _ := r.Allocs(nil); s.Totals.PeakBytes != 70 {
		t.Errorf("peak %d", s.Totals.PeakBytes)
	}
	// What is in dst stays.
	as, _, err := r.Allocs([]Alloc{fullAlloc})
	if err != nil || len(as) != 1 {
		t.Errorf("%+v, %v", as, err)
	}
	r.Close()
	if as, s, err := r.Allocs([]Alloc{fullAlloc}); !errors.Is(err, ErrClosed) || len(as) != 1 || s != (AllocScan{}) {
		t.Errorf("closed: %+v, %+v, %v", as, s, err)
	}
	for s, want := range map[AllocState]string{0: "not tracked", 1: "published", 2: "stale", 3: "not tracked"} {
		if s.String() != want {
			t.Errorf("%d: %v", s, s)
		}
	}
	for k, want := range map[AllocKind]string{0: "unknown", 1: "device", 2: "managed", 3: "unknown"} {
		if k.String() != want {
			t.Errorf("%d: %v", k, k)
		}
	}
}

// TestAllocTableModel puts and removes at random in a table of few places, against
// a map of place to allocation.
func TestAllocTableModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		geo := smallGeometry
		geo.Allocs = rapid.IntRange(1, 20).Draw(t, "places")
		w, err := NewHeap(Options{Geometry: geo})
		if err != nil {
			t.Fatal(err)
		}
		r, err := NewHeapReader(w, ReaderOptions{})
		if err != nil {
			t.Fatal(err)
		}
		at := w.Allocs()
		at.Lock()
		at.Track(1, 1)
		at.Unlock()
		live := map[int]Alloc{}
		n := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				n++
				a := sealedAlloc(0, n)
				at.Lock()
				p, ok := at.Put(&a)
				at.Unlock()
				if ok != (len(live) < geo.Allocs) {
					t.Fatalf("put %v with %d of %d places taken", ok, len(live), geo.Allocs)
				}
				if !ok {
					return
				}
				if _, taken := live[p]; taken || p < 0 || p >= geo.Allocs {
					t.Fatalf("place %d of %d, taken %v", p, geo.Allocs, taken)
				}
				live[p] = a
			},
			"remove": func(t *rapid.T) {
				p := rapid.IntRange(-1, geo.Allocs).Draw(t, "place")
				at.Lock()
				at.Remove(p)
				at.Unlock()
				delete(live, p)
			},
			"": func(t *rapid.T) {
				as, s, err := r.Allocs(nil)
				if err != nil || s.Approximate || s.State != AllocsPublished {
					t.Fatalf("%+v, %v", s, err)
				}
				var want []Alloc
				for p := range geo.Allocs {
					if a, ok := live[p]; ok {
						want = append(want, a)
					}
				}
				if d := cmp.Diff(want, as); d != "" {
					t.Fatal(d)
				}
			},
		})
	})
}

// TestAllocsWhileChanging scans a table that hardly ever rests: no allocation is
// torn, and a scan that says it is exact adds up.
func TestAllocsWhileChanging(t *testing.T) {
	w := newHeap(t, allocGeometry)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for g := range uint64(3) {
		n := 0
		wg.Go(func() {
			churn(w, g, func() bool {
				if n++; n%64 == 0 {
					runtime.Gosched()
				}
				select {
				case <-stop:
					return false
				default:
					return true
				}
			})
		})
	}
	eventually(t, "some changes", func() bool { return atomic.LoadUint64(w.m.word(offAllocMut)) > 1000 })
	var readers sync.WaitGroup
	for range 2 {
		r := heapReader(t, w, ReaderOptions{})
		readers.Go(func() {
			exact, seen := 0, 0
			var as []Alloc
			for n := 0; n < 3000 || exact < 10 && n < 1e6; n++ {
				var s AllocScan
				var err error
				if as, s, err = r.Allocs(as[:0]); err != nil {
					t.Error(err)
					return
				}
				for _, a := range as {
					if a != sealedAlloc(uint64(a.Site), a.Index) {
						t.Errorf("torn: %+v", a)
						return
					}
				}
				seen += len(as)
				if s.Approximate {
					continue
				}
				exact++
				if sum := sumBytes(as); sum != s.Totals.LiveBytes || uint64(len(as)) != s.Totals.LiveCount {
					t.Errorf("%d bytes in %d allocations, %+v", sum, len(as), s)
					return
				}
			}
			if exact < 10 || seen == 0 {
				t.Errorf("%d exact scans, %d allocations seen", exact, seen)
			}
		})
	}
	// Snapshots too.
	r := heapReader(t, w, ReaderOptions{})
	exact := 0
	for n := 0; n < 1000 || exact < 10 && n < 1e6; n++ {
		b, err := r.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		br, err := NewBytesReader(b, ReaderOptions{})
		if err != nil {
			t.Fatal(err)
		}
		as, s, err := br.Allocs(nil)
		if err != nil {
			t.Fatal(err)
		}
		checkScan(t, as, s)
		if !s.Approximate {
			exact++
		}
	}
	if exact < 10 {
		t.Errorf("%d exact snapshots", exact)
	}
	readers.Wait()
	close(stop)
	wg.Wait()
	as, s, err := r.Allocs(nil)
	if err != nil || s.Approximate {
		t.Errorf("at rest: %+v, %v", s, err)
	}
	checkScan(t, as, s)
}

func sumBytes(as []Alloc) (sum uint64) {
	for _, a := range as {
		sum += a.Bytes
	}
	return sum
}

// TestAllocsOfKilled: whatever a producer was doing when it was killed, the
// allocations read are whole, and an exact scan adds up.
func TestAllocsOfKilled(t *testing.T) {
	for range 5 {
		c := start(t, "allocate", privateDir(t).Path)
		r := open(t, c.say(t, "ring"))
		eventually(t, "some changes", func() bool { return r.m.load(offAllocMut) > 20000 })
		for range 200 {
			as, s, err := r.Allocs(nil)
			if err != nil {
				t.Fatal(err)
			}
			checkScan(t, as, s)
		}
		c.kill()
		eventually(t, "the lock falls", func() bool { alive, err := r.Alive(); return err == nil && !alive })
		as, s, err := r.Allocs(nil)
		if err != nil || s.State != AllocsPublished || len(as) == 0 {
			t.Fatalf("%d allocations, %+v, %v", len(as), s, err)
		}
		checkScan(t, as, s)
		if s.Approximate != (r.m.load(offAllocMut)&1 != 0) {
			t.Errorf("%+v", s)
		}
	}
}

// TestAllocsOfKilledHalfway: a change that was never finished shows.
func TestAllocsOfKilledHalfway(t *testing.T) {
	c := start(t, "halfway", privateDir(t).Path)
	r := open(t, c.say(t, "ring"))
	for _, when := range []string{"alive", "dead"} {
		as, s, err := r.Allocs(nil)
		if err != nil || !s.Approximate || s.State != AllocsPublished || s.Totals.LiveCount != 3 {
			t.Errorf("%s: %+v, %v", when, s, err)
		}
		if d := cmp.Diff([]Alloc{sealedAlloc(0, 0), sealedAlloc(0, 2)}, as); d != "" {
			t.Errorf("%s: %s", when, d)
		}
		c.kill()
	}
}
