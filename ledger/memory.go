package ledger

import (
	"cmp"
	"slices"

	"github.com/lanetrace/lanetrace/spanring"
)

// Allocation is one live allocation.
type Allocation struct {
	Addr       uint64
	Bytes      int64 // as asked for, guard band not counted
	GuardBytes int64
	Kind       spanring.AllocKind
	Index      uint64 // order of creation, from 0
	MonoNS     int64  // when it was made, CLOCK_MONOTONIC
	Site       string // file:line
}

// Memory is the device memory of a ledger, or of a ring, at one moment.
type Memory struct {
	// State is AllocsNotTracked for a backend without a ledger; then there is
	// nothing else. Of a ring it can also be AllocsStale.
	State spanring.AllocState
	// Approximate: sites and totals are not of the same moment. Only of a ring.
	Approximate bool
	Totals      spanring.MemoryTotals
	// Sites are the call sites that hold live allocations, largest first. Those of
	// Totals.UnlistedBytes are not among them.
	Sites []SiteTotal
}

// Memory is the ledger's memory now. It allocates, and holds the ledger's lock
// for as long as it takes to copy the sites.
func (l *Ledger) Memory() Memory {
	if l == nil {
		return Memory{}
	}
	l.mu.Lock()
	m := Memory{State: spanring.AllocsPublished, Totals: l.total.memory()}
	for i := range l.sites {
		if s := &l.sites[i]; s.count > 0 {
			m.Sites = append(m.Sites, SiteTotal{Site: s.text, Function: s.function, Bytes: s.bytes, Count: s.count})
		}
	}
	l.mu.Unlock()
	// To the ledger every allocation is known.
	m.Totals.UnlistedBytes, m.Totals.UnlistedCount = 0, 0
	sortSites(m.Sites)
	return m
}

// FromRing is the memory that a ring's table and totals describe. name looks up
// call sites, as spanring.Reader.Name does.
func FromRing(allocs []spanring.Alloc, scan spanring.AllocScan, name func(spanring.NameID) (spanring.Name, bool)) Memory {
	m := Memory{State: scan.State, Approximate: scan.Approximate, Totals: scan.Totals}
	at := make(map[spanring.NameID]int)
	texts := make(map[string]int)
	for i := range allocs {
		a := &allocs[i]
		n, ok := at[a.Site]
		if !ok {
			text := unknownSiteText
			if s, ok := name(a.Site); ok && s.Text != "" {
				text = s.Text
			}
			if n, ok = texts[text]; !ok {
				n = len(m.Sites)
				m.Sites = append(m.Sites, SiteTotal{Site: text})
				texts[text] = n
			}
			at[a.Site] = n
		}
		m.Sites[n].Bytes += int64(a.Bytes)
		m.Sites[n].Count++
	}
	sortSites(m.Sites)
	return m
}

// sortSites puts the largest first, and equal ones in the order of their texts.
func sortSites(s []SiteTotal) {
	slices.SortFunc(s, func(a, b SiteTotal) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Site, b.Site))
	})
}

// Totals are the ledger's totals; tracked is false for a nil ledger. It allocates
// nothing, like the others of one number.
func (l *Ledger) Totals() (t spanring.MemoryTotals, tracked bool) {
	if l == nil {
		return t, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total.memory(), true
}

func (l *Ledger) one(c spanring.Counter) (int64, bool) {
	if l == nil {
		return 0, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total.get(c), true
}

// LiveBytes is the bytes of all live allocations, guard bands and arenas not
// counted.
func (l *Ledger) LiveBytes() (n int64, tracked bool) { return l.one(spanring.CtrMemLiveBytes) }

// LiveCount is how many live allocations there are, arenas not counted.
func (l *Ledger) LiveCount() (n int64, tracked bool) { return l.one(spanring.CtrMemLiveCount) }

// PeakBytes is the most that LiveBytes has been.
func (l *Ledger) PeakBytes() (n int64, tracked bool) { return l.one(spanring.CtrMemPeakBytes) }

// ChunkSlackBytes is what the driver's chunks that hold live allocations smaller
// than a chunk have beyond those.
func (l *Ledger) ChunkSlackBytes() (n int64, tracked bool) {
	return l.one(spanring.CtrMemChunkSlackBytes)
}

// RoundingSlackBytes is what live allocations of a chunk or more are rounded up
// by.
func (l *Ledger) RoundingSlackBytes() (n int64, tracked bool) {
	return l.one(spanring.CtrMemRoundingSlackBytes)
}

// ArenaBytes is the bytes of all arenas, which are in no other figure.
func (l *Ledger) ArenaBytes() (n int64, tracked bool) { return l.one(spanring.CtrMemArenaBytes) }

// LiveAllocations are all live allocations, in order of creation. It allocates.
func (l *Ledger) LiveAllocations() (live []Allocation, tracked bool) {
	if l == nil {
		return nil, false
	}
	l.mu.Lock()
	live = l.live(func(e *entry) bool { return e.kind != arena })
	l.mu.Unlock()
	return live, true
}

// live lists the entries that are wanted. The caller holds the lock.
func (l *Ledger) live(want func(e *entry) bool) []Allocation {
	list := make([]Allocation, 0, len(l.entries)-len(l.free))
	for i := range l.entries {
		if e := &l.entries[i]; e.addr != 0 && want(e) {
			list = append(list, l.allocation(e))
		}
	}
	slices.SortFunc(list, func(a, b Allocation) int { return cmp.Compare(a.Index, b.Index) })
	return list
}

func (l *Ledger) allocation(e *entry) Allocation {
	return Allocation{
		Addr: e.addr, Bytes: e.bytes, GuardBytes: int64(e.guard), Kind: e.kind, Index: e.index, MonoNS: e.monoNS,
		Site: l.sites[e.site].text,
	}
}

// AllocReport is Memory().Report(topN, minMiB).
func (l *Ledger) AllocReport(topN, minMiB int) string {
	m := l.Memory()
	return m.Report(topN, minMiB)
}

// Probe looks at a ledger and cannot change it. It may outlive the backend. The
// zero Probe says that memory is not tracked.
type Probe struct{ l *Ledger }

// Probe is a probe on the ledger.
func (l *Ledger) Probe() Probe { return Probe{l} }

// Totals are the ledger's totals; tracked is false where there is no ledger. It
// allocates nothing.
func (p Probe) Totals() (t spanring.MemoryTotals, tracked bool) { return p.l.Totals() }

// Memory is the ledger's memory now.
func (p Probe) Memory() Memory { return p.l.Memory() }

// LiveAllocations are all live allocations, in order of creation.
func (p Probe) LiveAllocations() (live []Allocation, tracked bool) { return p.l.LiveAllocations() }
