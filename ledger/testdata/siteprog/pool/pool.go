// Package pool lies where the library's packages lie, so its frames are no call
// sites.
package pool

import (
	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// Alloc puts an allocation at addr on the ledger, depth calls further down.
func Alloc(l *ledger.Ledger, addr uint64, depth int) {
	if depth > 0 {
		Alloc(l, addr, depth-1)
		return
	}
	p := l.Begin(spanring.AllocDevice, 100)
	p.Done(addr)
}
