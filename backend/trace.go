package backend

import (
	"cmp"
	"slices"
	"sync"

	"github.com/lanetrace/lanetrace/launchtrace"
	"github.com/lanetrace/lanetrace/ledger"
)

// ArgWords writes arguments as the launch trace has them, a word each, to buf and
// returns those. It does not allocate. There may be MaxArgs at most.
func ArgWords(buf *[MaxArgs]uint64, args []Arg) []uint64 {
	words := buf[:min(len(args), MaxArgs)]
	for i := range words {
		words[i] = launchtrace.WordOf(args[i].Bits, args[i].Size)
	}
	return words
}

// ResolveAllocation finds live allocations of l by an address in them, so that a
// launch trace shows addresses as places.
func ResolveAllocation(l *ledger.Ledger) launchtrace.Resolver {
	var r resolver
	return func(addr uint64) (launchtrace.Range, bool) { return r.find(l, addr) }
}

// resolver keeps the ledger's allocations sorted until the ledger has changed.
type resolver struct {
	mu            sync.Mutex
	allocs, frees uint64
	known         bool
	live          []ledger.Allocation
}

func (r *resolver) find(l *ledger.Ledger, addr uint64) (launchtrace.Range, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t, tracked := l.Totals()
	if !tracked {
		return launchtrace.Range{}, false
	}
	if !r.known || t.Allocs != r.allocs || t.Frees != r.frees {
		r.known, r.allocs, r.frees = true, t.Allocs, t.Frees
		r.live, _ = l.LiveAllocations()
		slices.SortFunc(r.live, func(a, b ledger.Allocation) int { return cmp.Compare(a.Addr, b.Addr) })
	}
	i, ok := slices.BinarySearchFunc(r.live, addr, func(a ledger.Allocation, x uint64) int { return cmp.Compare(a.Addr, x) })
	if !ok {
		i--
	}
	if i < 0 || addr-r.live[i].Addr >= uint64(r.live[i].Bytes) {
		return launchtrace.Range{}, false
	}
	return launchtrace.Range{Base: r.live[i].Addr, Bytes: uint64(r.live[i].Bytes), Site: r.live[i].Site}, true
}
