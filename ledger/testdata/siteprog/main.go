// Siteprog allocates in a few places, one of them a goroutine and two of them
// through the library, and prints its ledger's call sites in order of creation.
package main

import (
	"fmt"
	"os"

	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/ledger/testdata/siteprog/pool"
	"github.com/lanetrace/lanetrace/spanring"
)

func main() {
	l, err := ledger.New(ledger.Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	p := l.Begin(spanring.AllocDevice, 100)
	p.Done(4096)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p := l.Begin(spanring.AllocDevice, 100)
		// The line counts on which the call stands.
		p.Done(8192)
	}()
	<-done
	pool.Alloc(l, 12288, 0)
	pool.Alloc(l, 16384, 30)
	live, _ := l.LiveAllocations()
	for _, a := range live {
		fmt.Println(a.Site)
	}
}
