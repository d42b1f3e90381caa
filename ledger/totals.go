package ledger

import "github.com/lanetrace/lanetrace/spanring"

// totals are the memory counters, by counter. Gauges are never negative.
type totals struct {
	n     [firstOther - firstTotal]int64
	dirty uint32 // a bit for each that may have changed since the ring had it
}

const (
	firstTotal = spanring.CtrMemLiveBytes
	firstOther = spanring.CtrRedzoneScans + 1

	allDirty = 1<<(firstOther-firstTotal) - 1
)

func (t *totals) add(c spanring.Counter, n int64) { t.set(c, t.n[c-firstTotal]+n) }
func (t *totals) get(c spanring.Counter) int64    { return t.n[c-firstTotal] }

func (t *totals) set(c spanring.Counter, n int64) {
	t.n[c-firstTotal] = n
	t.dirty |= 1 << (c - firstTotal)
}

// memory is t by name.
func (t *totals) memory() spanring.MemoryTotals {
	var c spanring.Counters
	for i, n := range t.n {
		c[firstTotal+spanring.Counter(i)] = uint64(n)
	}
	return c.Memory()
}
