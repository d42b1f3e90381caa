package recording

import (
	"encoding/binary"
	"math/bits"
)

// fields reads a payload field by field. After the first field that is not there
// it returns zeros; bad then says so.
type fields struct {
	b   []byte
	bad bool
}

func (f *fields) uint() uint64 {
	v, n := binary.Uvarint(f.b)
	if n <= 0 {
		f.b, f.bad = nil, true
		return 0
	}
	f.b = f.b[n:]
	return v
}

func (f *fields) int() int64 { return unzigzag(f.uint()) }

func (f *fields) bytes(n uint64) []byte {
	if n > uint64(len(f.b)) {
		f.b, f.bad = nil, true
		return nil
	}
	p := f.b[:n]
	f.b = f.b[n:]
	return p
}

// text reads a text of at most limit bytes.
func (f *fields) text(limit int) string {
	n := f.uint()
	if n > uint64(limit) {
		f.b, f.bad = nil, true
		return ""
	}
	return string(f.bytes(n))
}

func appendInt(b []byte, v int64) []byte { return binary.AppendUvarint(b, zigzag(v)) }

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func zigzag(v int64) uint64   { return uint64(v)<<1 ^ uint64(v>>63) }
func unzigzag(v uint64) int64 { return int64(v>>1) ^ -int64(v&1) }

// bitWriter packs bits, lowest first.
type bitWriter struct {
	b   []byte
	acc uint64
	n   uint // bits in acc, under 8 between calls
}

func (w *bitWriter) reset() { w.b, w.acc, w.n = w.b[:0], 0, 0 }

// put appends the low n bits of v, n at most 56.
func (w *bitWriter) put(v uint64, n uint) {
	w.acc |= (v & (1<<n - 1)) << w.n
	w.n += n
	for w.n >= 8 {
		w.b = append(w.b, byte(w.acc))
		w.acc >>= 8
		w.n -= 8
	}
}

// finish pads the last byte with zeros and returns all.
func (w *bitWriter) finish() []byte {
	if w.n > 0 {
		w.b = append(w.b, byte(w.acc))
		w.acc, w.n = 0, 0
	}
	return w.b
}

type bitReader struct {
	b   []byte
	acc uint64
	n   uint
	bad bool
}

// get reads n bits, n at most 56.
func (r *bitReader) get(n uint) uint64 {
	for r.n < n {
		if len(r.b) == 0 {
			r.bad = true
			return 0
		}
		r.acc |= uint64(r.b[0]) << r.n
		r.b = r.b[1:]
		r.n += 8
	}
	v := r.acc & (1<<n - 1)
	r.acc >>= n
	r.n -= n
	return v
}

// magnitude is the number of significant bits of v.
func magnitude(v uint64) uint { return uint(bits.Len64(v)) }
