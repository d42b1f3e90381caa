package spanring

import (
	"sync/atomic"
	"unsafe"
)

// memory is the mapped file or a heap backing. It is the only place in this
// package that turns offsets into addresses. Offsets are checked where they come
// from outside (parseHeader) and are constants or masked elsewhere.
type memory struct {
	b    []byte
	base unsafe.Pointer
}

// newMemory wraps b, whose first byte must lie on an 8-byte boundary.
func newMemory(b []byte) memory {
	m := memory{b: b, base: unsafe.Pointer(unsafe.SliceData(b))}
	if uintptr(m.base)&7 != 0 {
		panic("spanring: backing is not aligned")
	}
	return m
}

// heapMemory is a zeroed backing on the Go heap, aligned to 8 bytes.
func heapMemory(n int64) memory {
	w := make([]uint64, (n+7)/8)
	return newMemory(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), n))
}

// word is the 8-byte word at offset off, which must be aligned and inside.
func (m memory) word(off int64) *uint64 {
	if off < 0 || off&7 != 0 || off+8 > int64(len(m.b)) {
		panic("spanring: offset outside the ring")
	}
	return (*uint64)(unsafe.Add(m.base, off))
}

// words8 is the 64-byte record at offset off.
func (m memory) words8(off int64) *[8]uint64 {
	if off < 0 || off&7 != 0 || off+64 > int64(len(m.b)) {
		panic("spanring: offset outside the ring")
	}
	return (*[8]uint64)(unsafe.Add(m.base, off))
}

func (m memory) load(off int64) uint64     { return atomic.LoadUint64(m.word(off)) }
func (m memory) store(off int64, v uint64) { atomic.StoreUint64(m.word(off), v) }

// half loads the 32-bit half i (0 low, 1 high) of the word at off.
func (m memory) half(off int64, i int) uint32 { return uint32(m.load(off) >> (32 * i)) }

// storeBytes writes b padded with zeros to n bytes, n a multiple of 8, word by
// word.
func (m memory) storeBytes(off int64, n int, b []byte) {
	for i := 0; i < n; i += 8 {
		var w uint64
		for j := 0; j < 8 && i+j < len(b); j++ {
			w |= uint64(b[i+j]) << (8 * j)
		}
		m.store(off+int64(i), w)
	}
}

// loadBytes appends the n bytes at off (both multiples of 8) to dst.
func (m memory) loadBytes(dst []byte, off int64, n int) []byte {
	for i := 0; i < n; i += 8 {
		w := m.load(off + int64(i))
		for j := 0; j < 8; j++ {
			dst = append(dst, byte(w>>(8*j)))
		}
	}
	return dst
}

// text loads a NUL-padded field of n bytes.
func (m memory) text(off int64, n int) string {
	b := m.loadBytes(make([]byte, 0, n), off, n)
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
