// Package ledger knows every live device allocation: its address, size, call
// site, creation index and time. From it come live bytes and counts, the peak,
// totals by call site, what the driver keeps beyond what was asked for, the sweep
// of what was never freed, guard bands, and the table of allocations that other
// processes read from the ring file.
//
// A backend keeps one Ledger for each of its GPUs and tells it of every
// allocation and free, in two lines each:
//
//	p := l.Begin(spanring.AllocDevice, bytes)      t := l.Take(addr)
//	addr, err := alloc(p.AskBytes())               err := free(addr)
//	p.Done(addr)  // or p.Failed()                 t.Done(err)
//
// An allocation leaves the ledger before the driver frees its address, so that
// an address which the driver hands out again at once never meets its former
// owner. What is freed but not on the ledger is counted and changes no total.
//
// A ledger works without a ring and at every level of telemetry. Attach ties it
// to a ring, and SetPublishing follows the level: a rise writes what is live, a
// fall leaves the table behind, marked stale.
//
// All methods may be called from many goroutines. A nil *Ledger is the ledger of
// a backend that has none: it takes everything and answers that memory is not
// tracked, which is not the same as 0 bytes.
package ledger
