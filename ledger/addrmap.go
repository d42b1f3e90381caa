package ledger

import "math/bits"

// addrMap is a hash table of numbers by address. Unlike Go's map it leaves nothing
// behind where an entry was deleted, so that a ledger whose size stays the same
// never allocates, however many addresses come and go. The zero value is empty.
type addrMap struct {
	cells []cell // a power of two, at most half of them in use
	used  int
	shift uint
}

type cell struct {
	key uint64 // 0 is empty
	val uint32
}

const minCells = 64

// home is where key would be if it were alone.
func (m *addrMap) home(key uint64) uint64 { return key * 0x9e3779b97f4a7c15 >> m.shift }

func (m *addrMap) find(key uint64) (at uint64, ok bool) {
	if len(m.cells) == 0 || key == 0 {
		return 0, false
	}
	mask := uint64(len(m.cells) - 1)
	for at = m.home(key); ; at = (at + 1) & mask {
		switch m.cells[at].key {
		case key:
			return at, true
		case 0:
			return at, false
		}
	}
}

// get returns the value of key.
func (m *addrMap) get(key uint64) (uint32, bool) {
	if at, ok := m.find(key); ok {
		return m.cells[at].val, true
	}
	return 0, false
}

// put sets the value of key, which must not be 0.
func (m *addrMap) put(key uint64, val uint32) {
	at, ok := m.find(key)
	if !ok {
		if 2*(m.used+1) > len(m.cells) {
			m.grow()
			at, _ = m.find(key)
		}
		m.used++
	}
	m.cells[at] = cell{key, val}
}

func (m *addrMap) grow() {
	old := m.cells
	m.cells = make([]cell, max(minCells, 2*len(old)))
	m.shift = 64 - uint(bits.TrailingZeros(uint(len(m.cells))))
	for _, c := range old {
		if c.key != 0 {
			at, _ := m.find(c.key)
			m.cells[at] = c
		}
	}
}

// deleteAt empties a cell in use, and moves those behind it up that would not be
// found over the gap.
func (m *addrMap) deleteAt(gap uint64) {
	m.used--
	mask := uint64(len(m.cells) - 1)
	for at := gap; ; {
		at = (at + 1) & mask
		c := m.cells[at]
		if c.key == 0 {
			break
		}
		// From its home, c is found over the gap only if the gap does not lie between.
		if (at-m.home(c.key))&mask >= (at-gap)&mask {
			m.cells[gap] = c
			gap = at
		}
	}
	m.cells[gap] = cell{}
}
