package ledger

import (
	"math/bits"

	"github.com/lanetrace/lanetrace/spanring"
)

// publisher is the ledger's tie to a ring. It is guarded by the ledger's lock,
// and takes that of the ring's table inside it.
//
// Entries keep their place on the table while the ledger does not write, so that
// a rise has to write only what has changed since the fall.
type publisher struct {
	ring    *spanring.Writer // nil while detached
	table   *spanring.AllocTable
	context uint8
	on      bool                           // the level allows it to write
	wrote   bool                           // it did, at some time
	inRing  [firstOther - firstTotal]int64 // what of the totals is in the ring's counters
	orphans []int32                        // places whose allocations were freed since the fall
}

// Attach ties the ledger to a ring, whose context record it belongs to, and
// leaves the one before. With publish, which follows from the level, it writes
// what is live; without, the ring's table says that it is stale.
func (l *Ledger) Attach(ring *spanring.Writer, context uint8, publish bool) {
	if l == nil || ring == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.detach()
	l.publisher = publisher{ring: ring, table: ring.Allocs(), context: context}
	for i := range l.sites {
		l.sites[i].name, l.sites[i].named = 0, false
	}
	l.table.Lock()
	l.table.Track(1, 0)
	l.table.Unlock()
	if publish {
		l.rise()
	}
}

// SetPublishing follows the level: from basic on the ledger writes to its ring, at
// off it does not. A rise writes what has changed since the fall; a fall leaves
// the table as it is, stale.
func (l *Ledger) SetPublishing(on bool) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ring == nil || on == l.on:
	case on:
		l.rise()
	default:
		l.fall()
	}
}

// Detach ends the writing to the ring, before the ring is closed or when the
// backend goes. What is live then stays on the ring's table, and in its totals.
func (l *Ledger) Detach() {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.detach()
	l.mu.Unlock()
}

func (l *Ledger) detach() {
	if l.ring == nil {
		return
	}
	if !l.on && l.wrote && len(l.free) == len(l.entries) {
		// Nothing is left: the table can be put right whatever the level.
		l.rise()
	}
	l.table.Lock()
	switch {
	case l.on:
		l.table.Track(-1, -1)
	case !l.wrote && len(l.free) == len(l.entries):
		// Nothing of it was ever there, and nothing is missing.
		l.table.Track(-1, 0)
	}
	l.table.Unlock()
	// Else it stays stale, for nobody will put it right any more.
	l.publisher = publisher{}
	l.forgetPlaces()
}

func (l *Ledger) forgetPlaces() {
	for i := range l.entries {
		l.entries[i].place = notListed
	}
	l.total.set(spanring.CtrMemUnlistedBytes, 0)
	l.total.set(spanring.CtrMemUnlistedCount, 0)
}

func (l *Ledger) fall() {
	l.on = false
	l.table.Lock()
	l.table.Track(0, -1)
	l.table.Unlock()
	// What is not on the table then is only not there yet.
	l.total.set(spanring.CtrMemUnlistedBytes, 0)
	l.total.set(spanring.CtrMemUnlistedCount, 0)
}

func (l *Ledger) rise() {
	l.on, l.wrote = true, true
	l.table.Lock()
	defer l.table.Unlock()
	for _, p := range l.orphans {
		l.table.Remove(int(p))
	}
	l.orphans = l.orphans[:0]
	for i := range l.entries {
		if e := &l.entries[i]; e.addr != 0 && e.kind != arena && e.place == notListed {
			a := l.record(e)
			l.list(e, &a)
		}
	}
	l.table.Track(0, 1)
	l.total.dirty = allDirty
	l.syncTotals()
}

// list puts e, of which a is the record, on the table. The caller holds the
// table's lock.
func (l *Ledger) list(e *entry, a *spanring.Alloc) {
	place, ok := l.table.Put(a)
	if !ok {
		l.total.add(spanring.CtrAllocsUnlisted, 1)
		l.total.add(spanring.CtrMemUnlistedBytes, e.bytes)
		l.total.add(spanring.CtrMemUnlistedCount, 1)
		return
	}
	e.place = int32(place)
}

// unlist takes e off the table, or remembers to. The caller holds the table's
// lock while the ledger writes.
func (l *Ledger) unlist(e *entry) {
	switch {
	case e.place == notListed && l.on:
		l.total.add(spanring.CtrMemUnlistedBytes, -e.bytes)
		l.total.add(spanring.CtrMemUnlistedCount, -1)
	case e.place == notListed:
	case l.on:
		l.table.Remove(int(e.place))
	default:
		l.orphans = append(l.orphans, e.place)
	}
	e.place = notListed
}

// publishAlloc writes e, which is in the totals already, to table and log. The
// caller holds the ledger's lock.
func (l *Ledger) publishAlloc(e *entry) {
	if e.kind == arena {
		l.publishTotals()
		return
	}
	if !l.on {
		return
	}
	ev := spanring.MemEvent{Kind: spanring.KindAlloc, Alloc: l.record(e)}
	l.table.Lock()
	l.list(e, &ev.Alloc)
	l.syncTotals()
	l.table.Unlock()
	l.writeEvent(&ev)
}

// publishFree takes e, which is no longer in the totals, off the table and writes
// that to the log. The caller holds the ledger's lock.
func (l *Ledger) publishFree(e *entry) {
	if e.kind == arena {
		l.publishTotals()
		return
	}
	if !l.on {
		l.unlist(e)
		return
	}
	ev := spanring.MemEvent{Kind: spanring.KindFree, Alloc: l.record(e), Swept: l.sweeping}
	if !l.sweeping {
		ev.Alloc.MonoNS = spanring.MonoNS()
	}
	l.table.Lock()
	l.unlist(e)
	l.syncTotals()
	l.table.Unlock()
	l.writeEvent(&ev)
}

// writeEvent writes a log entry.
func (l *Ledger) writeEvent(ev *spanring.MemEvent) {
	ev.LiveBytes = uint64(l.total.get(spanring.CtrMemLiveBytes))
	w := ev.Words()
	l.ring.Append(&w)
}

// publishTotals writes the totals alone. The caller holds the ledger's lock.
func (l *Ledger) publishTotals() {
	if l.on {
		l.table.Lock()
		l.syncTotals()
		l.table.Unlock()
	}
}

// syncTotals adds to the ring's counters what has changed. Other ledgers add to
// the same ones. The caller holds the table's lock.
func (l *Ledger) syncTotals() {
	for l.total.dirty != 0 {
		i := bits.TrailingZeros32(l.total.dirty)
		l.total.dirty &= l.total.dirty - 1
		n := l.total.n[i]
		if d := n - l.inRing[i]; d != 0 {
			l.inRing[i] = n
			l.syncTotal(firstTotal+spanring.Counter(i), d)
		}
	}
}

func (l *Ledger) syncTotal(c spanring.Counter, delta int64) {
	switch c {
	case spanring.CtrMemPeakBytes:
		l.table.Raise(c, uint64(l.total.get(c)))
	case spanring.CtrMemChunkBytes:
		// The largest of several GPUs', but ours alone may become smaller.
		if now := uint64(l.total.get(c)); l.ring.Counter(c) == now-uint64(delta) {
			l.table.Add(c, delta)
		} else {
			l.table.Raise(c, now)
		}
	case spanring.CtrMemLiveBytes:
		l.table.Add(c, delta)
		l.table.Raise(spanring.CtrMemPeakBytes, l.ring.Counter(c))
	default:
		l.table.Add(c, delta)
	}
}

// record is e as the ring has it.
func (l *Ledger) record(e *entry) spanring.Alloc {
	return spanring.Alloc{
		Addr: e.addr, Bytes: uint64(e.bytes), GuardBytes: e.guard, Site: l.siteName(e.site), Index: e.index, MonoNS: e.monoNS,
		Kind: e.kind, Context: l.context,
	}
}

func (l *Ledger) siteName(n int32) spanring.NameID {
	s := &l.sites[n]
	if !s.named {
		s.name, s.named = l.ring.Name(spanring.NameSite, s.text), true
	}
	return s.name
}
