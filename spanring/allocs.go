package spanring

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
)

// AllocKind says how memory was allocated.
type AllocKind uint8

// The kinds of allocation on the table.
const (
	AllocDevice  AllocKind = 1
	AllocManaged AllocKind = 2 // migrates between host and device

	numAllocKinds = 3
)

// String is the kind's name.
func (k AllocKind) String() string {
	switch k {
	case AllocDevice:
		return "device"
	case AllocManaged:
		return "managed"
	}
	return "unknown"
}

// MaxAllocBytes is the largest allocation that an entry holds, its guard band not
// counted: 8 TiB. So sums over a table of any size fit 64 bits.
const MaxAllocBytes = 1<<43 - 1

// Alloc is one live allocation.
type Alloc struct {
	Addr       uint64
	Bytes      uint64 // as asked for, guard band not counted
	GuardBytes uint32 // behind them
	Site       NameID // NameSite; 0 unknown
	Index      uint64 // order of creation within the producer's GPU, from 0
	MonoNS     int64  // when it was made, host, CLOCK_MONOTONIC
	Kind       AllocKind
	Context    uint8 // index of the context record
}

// AllocState says what a table of allocations is worth.
type AllocState uint8

// The states of a ring's table of allocations.
const (
	// AllocsNotTracked: no ledger writes to this ring. That is not 0 bytes.
	AllocsNotTracked AllocState = 0
	// AllocsPublished: table and totals are kept up to date or, in a ring that
	// has ended, are those of its end.
	AllocsPublished AllocState = 1
	// AllocsStale: a ledger runs, but the level forbids it to write. What the
	// table holds is as of the fall to off; nothing before the first rise.
	AllocsStale AllocState = 2
)

// String is the state's name.
func (s AllocState) String() string {
	switch s {
	case AllocsPublished:
		return "published"
	case AllocsStale:
		return "stale"
	}
	return "not tracked"
}

// A place of the table: the word, then the payload.
//
//	word:    u2 state (0 free, 1 live) | u62 generation
//	payload: address | bytes | u32 guard bytes, u32 site | index | time |
//	         u8 kind, u8 context, u48 reserved | reserved
const (
	allocLive     = 1
	allocWordMask = 3
	allocGen      = 4
)

// Words of the header about the table.
const (
	allocUsedMask = 1<<32 - 1 // places ever used, from the first on
	allocTracked  = 1 << 32
	allocStale    = 1 << 33
)

func (a *Alloc) words() Words {
	return Words{
		a.Addr, min(a.Bytes, MaxAllocBytes), uint64(a.GuardBytes) | uint64(a.Site)<<32, a.Index, uint64(a.MonoNS),
		uint64(a.Kind) | uint64(a.Context)<<8,
	}
}

// parseAlloc reverses words; ok is false for what cannot be an allocation.
func parseAlloc(w *Words) (a Alloc, ok bool) {
	a = Alloc{
		Addr: w[0], Bytes: w[1], GuardBytes: uint32(w[2]), Site: NameID(w[2] >> 32), Index: w[3], MonoNS: int64(w[4]),
		Kind: AllocKind(w[5]), Context: uint8(w[5] >> 8),
	}
	return a, a.Check() == nil
}

// Check reports what cannot be in an allocation, as ErrEntry.
func (a *Alloc) Check() error {
	switch {
	case a.Addr == 0 || a.Bytes == 0 || a.Bytes > MaxAllocBytes || a.Addr > math.MaxUint64-a.Bytes-uint64(a.GuardBytes):
		return fmt.Errorf("%w: %d bytes and a guard band of %d at %#x", ErrEntry, a.Bytes, a.GuardBytes, a.Addr)
	case a.Kind == 0 || a.Kind >= numAllocKinds || a.Context >= MaxContexts:
		return fmt.Errorf("%w: allocation of kind %d in context %d", ErrEntry, a.Kind, a.Context)
	case a.MonoNS < 0:
		return fmt.Errorf("%w: allocation at %d ns", ErrEntry, a.MonoNS)
	}
	return nil
}

// AllocTable is the producer's side of a ring's table of live allocations and of
// its memory counters; Writer.Allocs gives it. Several ledgers can share one.
//
// Whoever changes it calls Lock first and Unlock afterwards. In between the
// mutation counter is odd, so a reader knows whether it saw table and totals
// between two changes. Readers never wait for the lock, and the other way round.
type AllocTable struct {
	w      *Writer
	off    int64
	places int
	mut    *uint64
	use    *uint64

	mu        sync.Mutex
	used      int     // places ever used
	free      []int32 // of those, the free ones
	ledgers   int
	published int
}

func (t *AllocTable) init(w *Writer) {
	t.w, t.off, t.places = w, w.geo.allocOff(), w.geo.Allocs
	t.mut, t.use = w.m.word(offAllocMut), w.m.word(offAllocUse)
}

// Allocs is the ring's table of allocations.
func (w *Writer) Allocs() *AllocTable { return &w.allocs }

// Lock begins a change.
func (t *AllocTable) Lock() {
	t.mu.Lock()
	atomic.AddUint64(t.mut, 1)
}

// Unlock ends a change.
func (t *AllocTable) Unlock() {
	atomic.AddUint64(t.mut, 1)
	t.mu.Unlock()
}

// Put writes a into a free place, where it stays until Remove, and returns the
// place. ok is false, and nothing written or counted, when there is none. It
// allocates only while the number of places ever used grows.
func (t *AllocTable) Put(a *Alloc) (place int, ok bool) {
	if n := len(t.free); n > 0 {
		place = int(t.free[n-1])
		t.free = t.free[:n-1]
	} else {
		if t.used == t.places {
			return -1, false
		}
		if cap(t.free) <= t.used {
			// Room for every place in use to become free: Remove never allocates.
			t.free = append(make([]int32, 0, min(t.places, max(64, 2*cap(t.free)))), t.free...)
		}
		place = t.used
		t.used++
		t.publishUse()
	}
	p := t.w.m.words8(t.off + int64(place)*AllocSize)
	w := a.words()
	putWords(p, &w)
	atomic.StoreUint64(&p[0], (p[0]&^allocWordMask+allocGen)|allocLive)
	return place, true
}

// Remove empties a place that Put returned.
func (t *AllocTable) Remove(place int) {
	if uint(place) >= uint(t.used) {
		return
	}
	p := t.w.m.words8(t.off + int64(place)*AllocSize)
	if p[0]&allocLive == 0 {
		return
	}
	atomic.StoreUint64(&p[0], p[0]&^allocWordMask)
	t.free = append(t.free, int32(place))
}

// Add changes one of the ring's memory counters, a gauge also downwards; another
// counter is left alone. Nobody else may change them, so this is no atomic
// addition: it costs a store.
func (t *AllocTable) Add(c Counter, delta int64) {
	if c >= ctrMemFirst && c < ctrMemEnd {
		p := &t.w.counters[c]
		putWord(p, atomic.LoadUint64(p)+uint64(delta))
	}
}

// Raise lifts a memory counter to at least v.
func (t *AllocTable) Raise(c Counter, v uint64) {
	if old := t.w.Counter(c); v > old {
		t.Add(c, int64(v-old))
	}
}

// Track says that ledgers more ledgers (negative: fewer) stand behind the ring,
// and published more of them write to it. The table is stale while one does not.
func (t *AllocTable) Track(ledgers, published int) {
	t.ledgers += ledgers
	t.published += published
	t.publishUse()
}

func (t *AllocTable) publishUse() {
	// Once there was a ledger there was one.
	v := uint64(t.used) | atomic.LoadUint64(t.use)&allocTracked
	if t.ledgers > 0 {
		v |= allocTracked
	}
	if t.published < t.ledgers {
		v |= allocStale
	}
	atomic.StoreUint64(t.use, v)
}

// AllocScan is what Reader.Allocs found.
type AllocScan struct {
	State AllocState
	// Approximate: the table changed during every try, or its producer died
	// changing it. Each allocation is whole nevertheless; some of those made or
	// freed meanwhile are missing or too many, and the totals are of another
	// moment. Otherwise the allocations listed and the unlisted ones make up the
	// totals.
	Approximate bool
	Totals      MemoryTotals
}

// allocTries is how often a scan is begun anew when the table changed meanwhile.
const allocTries = 8

// Allocs appends the live allocations on the ring's table to dst, in the order
// of their places. Of a table that is not tracked there are none. It allocates
// only to grow dst and takes a time in proportion to the places ever used: half a
// millisecond for the default table when it is full.
func (r *Reader) Allocs(dst []Alloc) (_ []Alloc, s AllocScan, err error) {
	n := len(dst)
	err = r.locked(func() error {
		for range allocTries {
			dst = dst[:n]
			if dst, s = r.scanAllocs(dst); !s.Approximate {
				break
			}
		}
		return nil
	})
	if err != nil {
		return dst[:n], AllocScan{}, err
	}
	return dst, s, nil
}

func (r *Reader) scanAllocs(dst []Alloc) ([]Alloc, AllocScan) {
	var s AllocScan
	before := r.m.load(offAllocMut)
	use := r.m.load(offAllocUse)
	switch {
	case use&allocTracked == 0:
	case use&allocStale != 0:
		s.State = AllocsStale
	default:
		s.State = AllocsPublished
	}
	if s.State != AllocsNotTracked {
		c := loadCounters(r.m)
		s.Totals = c.Memory()
		used := min(use&allocUsedMask, uint64(r.geo.Allocs))
		for i := range int64(used) {
			if a, ok := loadAlloc(r.m.words8(r.geo.allocOff() + i*AllocSize)); ok {
				dst = append(dst, a)
			}
		}
	}
	s.Approximate = before&1 != 0 || r.m.load(offAllocMut) != before
	return dst, s
}

// loadAlloc reads a place; ok is false for one that is free, changes meanwhile,
// or holds what cannot be.
func loadAlloc(p *[8]uint64) (Alloc, bool) {
	word := atomic.LoadUint64(&p[0])
	if word&allocWordMask != allocLive {
		return Alloc{}, false
	}
	var w Words
	for i := range w {
		w[i] = atomic.LoadUint64(&p[i+1])
	}
	if atomic.LoadUint64(&p[0]) != word {
		return Alloc{}, false
	}
	return parseAlloc(&w)
}
