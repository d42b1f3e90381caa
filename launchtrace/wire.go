package launchtrace

import "encoding/binary"

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

func (f *fields) text() string {
	n := f.uint()
	if n > maxNameBytes || n > uint64(len(f.b)) {
		f.b, f.bad = nil, true
		return ""
	}
	s := string(f.b[:n])
	f.b = f.b[n:]
	return s
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendDelta writes v as its difference from what is expected, which wraps
// around: any two values give one.
func appendDelta(b []byte, want, v uint64) []byte {
	d := int64(v - want)
	return binary.AppendUvarint(b, uint64(d)<<1^uint64(d>>63))
}

func (f *fields) delta(want uint64) uint64 {
	d := f.uint()
	return want + (d>>1 ^ -(d & 1))
}

// codec writes operations, or reads them: each as what differs from the last one of
// the same function in the same block. A block depends on no other.
type codec struct {
	last map[uint64][]uint64 // by kind and function, the last operation's words
}

func (c *codec) reset() { c.last = make(map[uint64][]uint64) }

// expected are the words of the last operation of that kind and function, zeros
// where there was none, and as many as asked for.
func (c *codec) expected(kind Kind, fn uint64, n int) []uint64 {
	k := uint64(kind)<<56 | fn
	p := c.last[k]
	for len(p) < n {
		p = append(p, 0)
	}
	c.last[k] = p
	return p
}

// Words of an operation that are coded, but for those that come first.
func dimWords(w []uint64) [7]uint64 {
	o := opWords(w)
	g, b := o.grid(), o.block()
	return [7]uint64{uint64(o.shared()), uint64(g[0]), uint64(g[1]), uint64(g[2]), uint64(b[0]), uint64(b[1]), uint64(b[2])}
}

const numDims = 7

func (c *codec) append(b []byte, w opWords, fn uint64) []byte {
	b = append(b, byte(w.kind()), byte(w[0]>>8))
	b = binary.AppendUvarint(b, fn)
	b = binary.AppendUvarint(b, uint64(w.nargs()))
	p := c.expected(w.kind(), fn, numDims+w.nargs())
	for i, v := range dimWords(w) {
		b = appendDelta(b, p[i], v)
		p[i] = v
	}
	for i, v := range w.args() {
		b = appendDelta(b, p[numDims+i], v)
		p[numDims+i] = v
	}
	return b
}

// next reads an operation; args is scratch. fns is how many functions there are.
func (c *codec) next(f *fields, fns int, args []uint64) (h opHead, fn int, _ []uint64) {
	args = args[:0]
	if len(f.b) < 2 {
		f.bad = true
		return h, 0, args
	}
	kind, flags := Kind(f.b[0]), f.b[1]
	f.b = f.b[2:]
	i, n := f.uint(), f.uint()
	if !kind.valid() || flags > 1 || i >= uint64(fns) || n > MaxArgs || flags == 1 && n > 0 || n > uint64(len(f.b)) {
		f.bad = true
		return h, 0, args
	}
	p := c.expected(kind, i, numDims+int(n))
	for j := range numDims {
		p[j] = f.delta(p[j])
		if p[j] > 1<<32-1 {
			f.bad = true
		}
	}
	for j := range int(n) {
		v := f.delta(p[numDims+j])
		p[numDims+j] = v
		args = append(args, v)
	}
	d := func(j int) uint32 { return uint32(p[j]) }
	h = headOf(kind, 0, [3]uint32{d(1), d(2), d(3)}, [3]uint32{d(4), d(5), d(6)}, d(0))
	h[0] |= uint64(flags) << 8
	return h, int(i), args
}
