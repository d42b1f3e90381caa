//go:build !amd64 || race

package spanring

import "sync/atomic"

// putWords stores an entry's payload atomically word by word: without amd64's
// order of stores, and under the race detector, which does not know the
// protocol.
func putWords(p *[8]uint64, w *Words) {
	for i, v := range w {
		atomic.StoreUint64(&p[i+1], v)
	}
}

// putWord stores one word that a bracket of atomic operations publishes.
func putWord(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
