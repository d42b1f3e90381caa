//go:build amd64 && !race

package spanring

// putWords stores an entry's payload. On amd64 stores become visible in program
// order and the publishing store that follows is atomic, so plain stores do.
func putWords(p *[8]uint64, w *Words) {
	p[1], p[2], p[3], p[4], p[5], p[6], p[7] = w[0], w[1], w[2], w[3], w[4], w[5], w[6]
}

// putWord stores one word that a bracket of atomic operations publishes.
func putWord(p *uint64, v uint64) { *p = v }
