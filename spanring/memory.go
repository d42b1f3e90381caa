package spanring

import (
	"encoding/binary"
	"strings"
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

// outside is what word and words8 panic with. No file can cause it as long as
// the checks in this package are complete; should one be missing, a reader's
// guard makes it ErrCorrupt instead of the end of the process.
type outside int64

func (o outside) Error() string { return "offset outside the ring" }

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
	if off < 0 || off&7 != 0 || off > int64(len(m.b))-8 {
		panic(outside(off))
	}
	return (*uint64)(unsafe.Add(m.base, off))
}

// words8 is the 64-byte record at offset off.
func (m memory) words8(off int64) *[8]uint64 {
	if off < 0 || off&7 != 0 || off > int64(len(m.b))-64 {
		panic(outside(off))
	}
	return (*[8]uint64)(unsafe.Add(m.base, off))
}

// holds reports whether addr lies in the backing.
func (m memory) holds(addr uintptr) bool {
	return addr-uintptr(m.base) < uintptr(len(m.b))
}

// counters is the array of counters at offset off.
func (m memory) counters(off int64) *[NumCounters]uint64 {
	if off < 0 || off&7 != 0 || off > int64(len(m.b))-8*int64(NumCounters) {
		panic(outside(off))
	}
	return (*[NumCounters]uint64)(unsafe.Add(m.base, off))
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
		dst = binary.LittleEndian.AppendUint64(dst, m.load(off+int64(i)))
	}
	return dst
}

// clean makes s valid UTF-8, each run of other bytes becoming U+FFFD. Writers
// store texts as they get them and a file can hold anything, so readers clean
// every text they hand out: exporters may take it for valid. Control characters
// stay; who prints to a terminal quotes them.
func clean(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// text loads a NUL-padded field of n bytes, cleaned.
func (m memory) text(off int64, n int) string {
	b := m.loadBytes(make([]byte, 0, n), off, n)
	for i, c := range b {
		if c == 0 {
			return clean(string(b[:i]))
		}
	}
	return clean(string(b))
}
