package backend

import (
	"fmt"

	"github.com/lanetrace/lanetrace/ledger"
)

// MemoryConfig says how a backend keeps account of its device memory. The zero
// value of a field takes its default; a field with a variable in parentheses is
// set by it where it is zero.
type MemoryConfig struct {
	// Redzone configures guard bands (LANETRACE_REDZONE and others, see
	// ledger.Redzone). Default: none.
	Redzone ledger.Redzone
	// ChunkBytes is the size of the ranges into which the driver packs small
	// allocations, a power of two from 4 KiB to 1 GiB, by which slack is reckoned.
	// Default 2 MiB.
	ChunkBytes int64
	// Libraries are import paths whose code is no call site of an allocation:
	// an engine's own allocator. Default: none.
	Libraries []string
}

// NewLedger makes the ledger that c describes. getenv is os.Getenv or a test's. A
// variable that cannot be right is an error that names it.
func (c MemoryConfig) NewLedger(o ledger.Options, getenv func(string) string) (*ledger.Ledger, error) {
	var err error
	if o.Redzone, err = c.Redzone.FromEnv(getenv); err != nil {
		return nil, fmt.Errorf("guard bands: %w", err)
	}
	o.ChunkBytes, o.Libraries = c.ChunkBytes, c.Libraries
	return ledger.New(o)
}

// Accounts is the part of GPU that reads the ledger. Backends embed it.
type Accounts struct{ l *ledger.Ledger }

// AccountsOf are the accounts of l; a nil ledger is memory that is not tracked.
func AccountsOf(l *ledger.Ledger) Accounts { return Accounts{l} }

// LiveBytes is what live allocations hold, guard bands and arenas not counted.
func (a Accounts) LiveBytes() (bytes int64, tracked bool) { return a.l.LiveBytes() }

// LiveCount is how many allocations are live.
func (a Accounts) LiveCount() (n int64, tracked bool) { return a.l.LiveCount() }

// PeakBytes is the most that live allocations have held at once.
func (a Accounts) PeakBytes() (bytes int64, tracked bool) { return a.l.PeakBytes() }

// ArenaBytes is what arenas hold.
func (a Accounts) ArenaBytes() (bytes int64, tracked bool) { return a.l.ArenaBytes() }

// LiveAllocations are all live allocations in order of creation. It allocates.
func (a Accounts) LiveAllocations() (live []ledger.Allocation, tracked bool) {
	return a.l.LiveAllocations()
}

// ChunkSlackBytes is what the driver keeps for small allocations beyond them.
func (a Accounts) ChunkSlackBytes() (bytes int64, tracked bool) { return a.l.ChunkSlackBytes() }

// RoundingSlackBytes is what large allocations are rounded up by.
func (a Accounts) RoundingSlackBytes() (bytes int64, tracked bool) {
	return a.l.RoundingSlackBytes()
}

// AllocReport is a text about live memory: see ledger.Memory.Report.
func (a Accounts) AllocReport(topN, minMiB int) string { return a.l.AllocReport(topN, minMiB) }

// LedgerProbe reads the ledger for as long as its holder likes.
func (a Accounts) LedgerProbe() ledger.Probe { return a.l.Probe() }
