package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/lanetrace/lanetrace/spanring"
)

// DefaultChunkBytes is the size of the ranges into which the driver packs
// allocations smaller than one: 2 MiB on an H200 (docs/h200.md).
const DefaultChunkBytes = 2 << 20

// Bounds of Options.ChunkBytes.
const (
	minChunkBytes = 4 << 10
	maxChunkBytes = 1 << 30
)

// Options are a ledger's settings. The zero value of a field is its default.
type Options struct {
	// ChunkBytes is the driver's chunk size, a power of two from 4 KiB to 1 GiB, by
	// which slack is reckoned. Default 2 MiB. See MeasureChunk.
	ChunkBytes int64
	// Redzone configures guard bands. Default: none.
	Redzone Redzone
	// Libraries are import paths whose code is no call site, like lanetrace's own:
	// an engine names its allocator's package here to see who asked it. Packages
	// below a path count too. Default: none.
	Libraries []string
	// Logger gets warnings, violated guard bands and the traced allocation.
	// Default: slog.Default().
	Logger *slog.Logger
}

// Ledger is the live allocations of one GPU. See the package's comment.
type Ledger struct {
	log     *slog.Logger
	redzone Redzone
	find    finder

	next atomic.Uint64 // index of the next allocation

	// bands is held shared by who takes an allocation away, and whole by a scan of
	// guard bands, while which no allocation may be freed. Taken before mu.
	bands sync.RWMutex

	mu         sync.Mutex
	byAddr     addrMap
	entries    []entry
	free       []int32 // unused entries
	sites      []site
	siteByText map[string]int32
	arenas     int  // entries that are arenas
	sweeping   bool // what is taken now was never freed

	// Slack: how many live small allocations each chunk holds, by chunk number + 1.
	chunks     addrMap
	chunkShift uint
	smallBytes int64 // of small allocations, guard bands included

	total totals
	publisher
}

// entry is one live allocation, or an arena.
type entry struct {
	addr   uint64 // 0: unused
	bytes  int64
	index  uint64
	monoNS int64
	guard  uint32
	site   int32
	place  int32 // on the ring's table; notListed
	kind   spanring.AllocKind
	fill   byte // what its guard band holds
}

// arena is the kind of an entry that is off the ledger but for a total.
const arena spanring.AllocKind = 0

const notListed = -1

// New makes an empty ledger.
func New(o Options) (*Ledger, error) {
	l := &Ledger{log: o.Logger, siteByText: make(map[string]int32)}
	if l.log == nil {
		l.log = slog.Default()
	}
	var err error
	if l.redzone, err = o.Redzone.settle(); err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	if o.ChunkBytes == 0 {
		o.ChunkBytes = DefaultChunkBytes
	}
	if err := checkChunk(o.ChunkBytes); err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	l.chunkShift = uint(bits.TrailingZeros64(uint64(o.ChunkBytes)))
	l.total.set(spanring.CtrMemChunkBytes, o.ChunkBytes)
	l.find.init(o.Libraries)
	l.siteNumber(unknownSiteText, "")
	return l, nil
}

func checkChunk(n int64) error {
	if n < minChunkBytes || n > maxChunkBytes || n&(n-1) != 0 {
		return fmt.Errorf("chunks of %d bytes: want a power of two from %d to %d", n, minChunkBytes, maxChunkBytes)
	}
	return nil
}

// Pending is an allocation about to be asked of the driver, from Ledger.Begin.
type Pending struct {
	l     *Ledger
	index uint64
	bytes int64
	guard uint32
	kind  spanring.AllocKind
}

// Begin announces an allocation of bytes and gives it its creation index. It is
// one atomic addition.
func (l *Ledger) Begin(kind spanring.AllocKind, bytes int64) Pending {
	p := Pending{l: l, bytes: bytes, kind: kind}
	if l != nil {
		p.index = l.next.Add(1) - 1
		p.guard = l.redzone.guard(p.index)
	}
	return p
}

// Index is the allocation's creation index, from 0.
func (p Pending) Index() uint64 { return p.index }

// AskBytes is how many bytes to ask the driver for: the guard band comes on top.
func (p Pending) AskBytes() int64 { return p.bytes + int64(p.guard) }

// Guard says what has to be filled before Done: n bytes behind the allocation's
// own, from addr + offset on. n is 0 without a guard band.
func (p Pending) Guard() (offset, n int64, fill byte) {
	if p.guard == 0 {
		return 0, 0, 0
	}
	return p.bytes, int64(p.guard), *p.l.redzone.Fill
}

// Failed says that there is no such allocation: the driver refused it. It is
// counted.
func (p Pending) Failed() {
	if l := p.l; l != nil {
		l.mu.Lock()
		l.total.add(spanring.CtrAllocsFailed, 1)
		l.publishTotals()
		l.mu.Unlock()
	}
}

// Done puts the allocation, which the driver has made at addr, on the ledger. Its
// call site is the first caller outside the library. Done does not block for
// long, calls no driver, and allocates nothing while call sites and the number of
// live allocations stay within what they were before.
func (p Pending) Done(addr uint64) {
	l := p.l
	if l == nil || addr == 0 {
		return
	}
	var pcs [firstFrames]uintptr
	n := runtime.Callers(2, pcs[:]) // from the caller on
	e := entry{
		addr: addr, bytes: p.bytes, index: p.index, guard: p.guard, kind: p.kind, place: notListed,
		site: l.callSite(&pcs, n), monoNS: spanring.MonoNS(),
	}
	if e.guard != 0 {
		e.fill = *l.redzone.Fill
	}
	l.mu.Lock()
	l.replace(addr)
	l.insert(&e)
	l.total.add(spanring.CtrAllocs, 1)
	l.publishAlloc(&e)
	l.byAddr.put(addr, l.store(&e))
	l.mu.Unlock()
	if l.redzone.traces(e.index) {
		l.trace("allocated", &e)
	}
}

// replace drops what is still on the ledger at an address that the driver has
// just handed out: it was freed behind the ledger's back. The caller holds the
// lock.
func (l *Ledger) replace(addr uint64) {
	at, ok := l.byAddr.find(addr)
	if !ok {
		return
	}
	e := l.drop(at)
	if e.kind != arena {
		l.total.add(spanring.CtrAllocsReplaced, 1)
	}
	l.publishFree(&e)
}

// store keeps e in an unused place. The caller holds the lock.
func (l *Ledger) store(e *entry) uint32 {
	if n := len(l.free); n > 0 {
		i := l.free[n-1]
		l.free = l.free[:n-1]
		l.entries[i] = *e
		return uint32(i)
	}
	l.entries = append(l.entries, *e)
	if cap(l.free) < cap(l.entries) {
		// Room for all of them to become free: frees do not allocate.
		l.free = make([]int32, 0, cap(l.entries))
	}
	return uint32(len(l.entries) - 1)
}

// drop takes the entry whose address has the given cell off the ledger and out of
// the totals. The caller holds the lock.
func (l *Ledger) drop(at uint64) entry {
	i := l.byAddr.cells[at].val
	e := l.entries[i]
	l.entries[i] = entry{}
	l.free = append(l.free, int32(i))
	l.byAddr.deleteAt(at)
	l.remove(&e)
	return e
}

// insert adds e to the totals, remove takes it out of them. The caller holds the
// lock.
func (l *Ledger) insert(e *entry) { l.reckon(e, 1) }
func (l *Ledger) remove(e *entry) { l.reckon(e, -1) }

func (l *Ledger) reckon(e *entry, sign int64) {
	t := &l.total
	if e.kind == arena {
		t.add(spanring.CtrMemArenaBytes, sign*e.bytes)
		t.add(spanring.CtrMemArenaCount, sign)
		l.arenas += int(sign)
		return
	}
	t.add(spanring.CtrMemLiveBytes, sign*e.bytes)
	t.add(spanring.CtrMemLiveCount, sign)
	t.add(spanring.CtrMemGuardBytes, sign*int64(e.guard))
	if live := t.get(spanring.CtrMemLiveBytes); live > t.get(spanring.CtrMemPeakBytes) {
		t.set(spanring.CtrMemPeakBytes, live)
	}
	s := &l.sites[e.site]
	s.bytes += sign * e.bytes
	s.count += sign
	l.slack(e, sign)
}

// Arena says that the driver has made an arena: memory that an engine divides up
// itself. It stays off the ledger, but for a total of its own. It is freed like
// any allocation, with Take.
func (l *Ledger) Arena(addr uint64, bytes int64) {
	if l == nil || addr == 0 {
		return
	}
	e := entry{addr: addr, bytes: bytes, kind: arena, place: notListed}
	l.mu.Lock()
	l.replace(addr)
	l.insert(&e)
	l.publishTotals()
	l.byAddr.put(addr, l.store(&e))
	l.mu.Unlock()
}

// Taken is an allocation that is about to be freed, from Ledger.Take.
type Taken struct {
	l     *Ledger
	e     entry
	known bool
}

// Take takes the allocation at addr off the ledger; the driver may free it then,
// not before. It allocates nothing. While guard bands are being scanned it waits.
func (l *Ledger) Take(addr uint64) Taken {
	if l == nil || addr == 0 {
		return Taken{}
	}
	if l.redzone.Bytes != 0 {
		l.bands.RLock()
		defer l.bands.RUnlock()
	}
	l.mu.Lock()
	t := l.take(addr)
	l.mu.Unlock()
	if t.known && t.e.kind != arena && l.redzone.traces(t.e.index) {
		l.trace("freed", &t.e)
	}
	return t
}

func (l *Ledger) take(addr uint64) Taken {
	t := Taken{l: l}
	var at uint64
	if at, t.known = l.byAddr.find(addr); !t.known {
		return t
	}
	t.e = l.drop(at)
	if t.e.kind != arena {
		l.total.add(spanring.CtrFrees, 1)
	}
	l.publishFree(&t.e)
	return t
}

// Known reports whether the address was on the ledger, or an arena's.
func (t Taken) Known() bool { return t.known }

// Bytes is how large the allocation was, guard band not counted; 0 for one that
// was not known.
func (t Taken) Bytes() int64 { return t.e.bytes }

// Done says what the driver answered to the free. After an error an allocation
// that was known is back on the ledger, unless its address has been handed out
// again. What was not known is counted, whatever the driver said, and changes no
// total.
func (t Taken) Done(err error) {
	l := t.l
	if l == nil || t.known && err == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !t.known {
		l.total.add(spanring.CtrFreesUnknown, 1)
		l.publishTotals()
		return
	}
	l.restore(&t.e)
}

// restore puts back what the driver refused to free. The caller holds the lock.
func (l *Ledger) restore(e *entry) {
	if e.kind != arena {
		l.total.add(spanring.CtrFreesFailed, 1)
	}
	if _, taken := l.byAddr.get(e.addr); taken {
		if e.kind != arena {
			l.total.add(spanring.CtrAllocsReplaced, 1)
		}
		l.publishTotals()
		return
	}
	l.insert(e)
	l.publishAlloc(e)
	l.byAddr.put(e.addr, l.store(e))
}

// trace logs an allocation with the stack that led here.
func (l *Ledger) trace(what string, e *entry) {
	var pcs [maxFrames]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	var b strings.Builder
	for more := true; more; {
		var f runtime.Frame
		if f, more = frames.Next(); f.Function != "" {
			fmt.Fprintf(&b, "%s %s\n", f.Function, l.find.siteText(f.File, f.Line))
		}
	}
	l.log.LogAttrs(context.Background(), slog.LevelInfo, "lanetrace: traced allocation "+what,
		slog.Uint64("index", e.index), slog.String("address", hex(e.addr)), slog.Int64("bytes", e.bytes), slog.String("stack", b.String()))
}

func hex(addr uint64) string { return fmt.Sprintf("%#x", addr) }

// errNotTracked is what a nil ledger answers where an error is due.
var errNotTracked = errors.New("ledger: memory is not tracked")
