package ledger_test

import (
	"fmt"

	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// A backend of one's own tells the ledger of what it allocates and frees. An engine on
// backend/cuda has this done for it.
func Example() {
	l, err := ledger.New(ledger.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	next := uint64(0x7f00_0000_0000)
	alloc := func(bytes int64) uint64 {
		p := l.Begin(spanring.AllocDevice, bytes)
		next += uint64(p.AskBytes()) // the driver's answer; p.Failed() were there none
		p.Done(next)
		return next
	}
	free := func(addr uint64) {
		t := l.Take(addr)
		t.Done(nil) // the driver has freed it
	}

	alloc(3 << 20)
	cache := alloc(1 << 20)
	free(cache)

	live, tracked := l.LiveBytes()
	peak, _ := l.PeakBytes()
	fmt.Println("live", live>>20, "MiB, peak", peak>>20, "MiB, tracked", tracked)
	// Output: live 3 MiB, peak 4 MiB, tracked true
}
