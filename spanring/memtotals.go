package spanring

// The memory counters: what all ledgers behind the ring add up to. They change
// together with the table of allocations, inside its bracket. Those from 64 to 79
// are gauges, the only words among the counters that also fall.
const (
	// CtrMemLiveBytes and CtrMemLiveCount are the live allocations, guard bands
	// and arenas not among them; CtrMemPeakBytes is the most of the former so far.
	CtrMemLiveBytes Counter = 64
	CtrMemLiveCount Counter = 65
	CtrMemPeakBytes Counter = 66
	// CtrMemGuardBytes is the live allocations' guard bands.
	CtrMemGuardBytes Counter = 67
	// CtrMemChunkSlackBytes is what the driver's chunks that hold live device
	// allocations smaller than a chunk have beyond those.
	CtrMemChunkSlackBytes Counter = 68
	// CtrMemRoundingSlackBytes is what live device allocations of a chunk or more
	// are rounded up by.
	CtrMemRoundingSlackBytes Counter = 69
	// CtrMemArenaBytes and CtrMemArenaCount are the arenas, which are neither on
	// the table nor in any other of these.
	CtrMemArenaBytes Counter = 70
	CtrMemArenaCount Counter = 71
	// CtrMemChunkBytes is the size of the driver's chunks, by which slack is
	// reckoned: of several GPUs, the largest.
	CtrMemChunkBytes Counter = 72
	// CtrMemUnlistedBytes and CtrMemUnlistedCount are the live allocations that
	// are in the totals but found no place on the table.
	CtrMemUnlistedBytes Counter = 73
	CtrMemUnlistedCount Counter = 74

	// CtrAllocs and CtrFrees count allocations made, and those that left the ledger
	// to be freed:
	//
	//	allocs + frees failed = frees + replaced + live
	CtrAllocs Counter = 80
	CtrFrees  Counter = 81
	// CtrAllocsFailed counts allocations that the driver refused.
	CtrAllocsFailed Counter = 82
	// CtrFreesFailed counts frees of known allocations that the driver refused:
	// those are back on the ledger.
	CtrFreesFailed Counter = 83
	// CtrFreesUnknown counts frees of addresses that are no live allocation.
	CtrFreesUnknown Counter = 84
	// CtrAllocsUnlisted counts allocations that found no place on the table.
	CtrAllocsUnlisted Counter = 85
	// CtrAllocsReplaced counts allocations at an address that was still live: the
	// one before it had been freed behind the ledger's back.
	CtrAllocsReplaced Counter = 86
	// CtrViolations counts guard bands found changed, CtrRedzoneScans the scans.
	CtrViolations   Counter = 87
	CtrRedzoneScans Counter = 88

	ctrMemFirst Counter = 64
	ctrMemEnd   Counter = 96
)

// IsMemory reports whether c is one of the memory counters, which belong to the
// table of allocations.
func (c Counter) IsMemory() bool { return c >= ctrMemFirst && c < ctrMemEnd }

// IsGauge reports whether c also falls.
func (c Counter) IsGauge() bool { return c >= ctrMemFirst && c < CtrAllocs }

// MemoryTotals is the memory counters by name. Bytes and counts; see the
// counters of the same names.
type MemoryTotals struct {
	LiveBytes, LiveCount, PeakBytes     uint64
	GuardBytes                          uint64
	ChunkSlackBytes, RoundingSlackBytes uint64
	ArenaBytes, ArenaCount              uint64
	ChunkBytes                          uint64
	UnlistedBytes, UnlistedCount        uint64

	Allocs, Frees             uint64
	AllocsFailed, FreesFailed uint64
	FreesUnknown              uint64
	AllocsUnlisted            uint64
	AllocsReplaced            uint64
	Violations, RedzoneScans  uint64
}

// Memory is the memory counters in c.
func (c *Counters) Memory() MemoryTotals {
	return MemoryTotals{
		LiveBytes: c[CtrMemLiveBytes], LiveCount: c[CtrMemLiveCount], PeakBytes: c[CtrMemPeakBytes],
		GuardBytes:      c[CtrMemGuardBytes],
		ChunkSlackBytes: c[CtrMemChunkSlackBytes], RoundingSlackBytes: c[CtrMemRoundingSlackBytes],
		ArenaBytes: c[CtrMemArenaBytes], ArenaCount: c[CtrMemArenaCount],
		ChunkBytes:    c[CtrMemChunkBytes],
		UnlistedBytes: c[CtrMemUnlistedBytes], UnlistedCount: c[CtrMemUnlistedCount],
		Allocs: c[CtrAllocs], Frees: c[CtrFrees],
		AllocsFailed: c[CtrAllocsFailed], FreesFailed: c[CtrFreesFailed],
		FreesUnknown: c[CtrFreesUnknown], AllocsUnlisted: c[CtrAllocsUnlisted], AllocsReplaced: c[CtrAllocsReplaced],
		Violations: c[CtrViolations], RedzoneScans: c[CtrRedzoneScans],
	}
}

// Put stores t in the memory counters of c: the inverse of Counters.Memory.
func (t *MemoryTotals) Put(c *Counters) {
	c[CtrMemLiveBytes], c[CtrMemLiveCount], c[CtrMemPeakBytes] = t.LiveBytes, t.LiveCount, t.PeakBytes
	c[CtrMemGuardBytes] = t.GuardBytes
	c[CtrMemChunkSlackBytes], c[CtrMemRoundingSlackBytes] = t.ChunkSlackBytes, t.RoundingSlackBytes
	c[CtrMemArenaBytes], c[CtrMemArenaCount] = t.ArenaBytes, t.ArenaCount
	c[CtrMemChunkBytes] = t.ChunkBytes
	c[CtrMemUnlistedBytes], c[CtrMemUnlistedCount] = t.UnlistedBytes, t.UnlistedCount
	c[CtrAllocs], c[CtrFrees] = t.Allocs, t.Frees
	c[CtrAllocsFailed], c[CtrFreesFailed] = t.AllocsFailed, t.FreesFailed
	c[CtrFreesUnknown], c[CtrAllocsUnlisted], c[CtrAllocsReplaced] = t.FreesUnknown, t.AllocsUnlisted, t.AllocsReplaced
	c[CtrViolations], c[CtrRedzoneScans] = t.Violations, t.RedzoneScans
}
