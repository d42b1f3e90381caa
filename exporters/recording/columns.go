package recording

import (
	"encoding/binary"
	"errors"

	"github.com/lanetrace/lanetrace/spanring"
)

// maxBlockEntries bounds the entries of one block.
const maxBlockEntries = 1 << 16

// recvUnitNS is the grid on which the times of reception are kept, rounded up so
// that no entry seems received before it was. A collector polls about as often.
const recvUnitNS = 1_000_000

// gridNS is the step of the GPU's time stamps. Spans' starts and lengths lie
// close to it, so that what is left over compresses well. It is no assumption:
// any value comes through.
const gridNS = 32

// Groups of columns: one for each kind of entry whose fields are known, so that
// each column holds values alike.
const (
	grpCommon = iota
	grpStepBegin
	grpStepEnd
	grpStepAttrs
	grpLane
	grpKernel
	grpGraph
	grpFailed
	grpAnchor
	grpOther

	numGroups
)

// groupColumns is the number of columns of a group; numColumns of all, with the
// packed bits as the last one.
const (
	groupColumns = 24
	colBits      = numGroups * groupColumns
	numColumns   = colBits + 1
)

func groupOf(k spanring.Kind) int {
	switch k {
	case spanring.KindStepBegin:
		return grpStepBegin
	case spanring.KindStepEnd:
		return grpStepEnd
	case spanring.KindStepAttrs:
		return grpStepAttrs
	case spanring.KindLane:
		return grpLane
	case spanring.KindKernel:
		return grpKernel
	case spanring.KindGraph:
		return grpGraph
	case spanring.KindSpanFailed:
		return grpFailed
	case spanring.KindAnchor:
		return grpAnchor
	}
	return grpOther
}

// expect is what the entries of a block so far let expect of the next. Encoder
// and decoder keep it alike. Places in its tables may be shared by different
// keys: that costs size, never truth.
type expect struct {
	seq     uint64
	step    [numGroups]uint64
	word    [numGroups][7]uint64 // the group's last entry
	endNS   [256]uint64          // end of the last span, by kind and stream
	enqNS   [256]uint64          // enqueue of the last span, by kind and stream
	rawNS   [4096]uint64         // length of the last span, by kind and name
	beginNS [64]uint64           // begin of a step, by its number
	hostNS  uint64               // length of the last step on the host
	lastNS  uint64               // host time of the last step's begin or end
}

// codec turns entries into columns, or back: the layout stands once, in entry,
// for both directions.
type codec struct {
	decode bool
	cols   [numColumns][]byte
	bits   bitWriter
	in     bitReader
	bad    bool
	g      int // first column of the entry's group
	x      expect
}

// num is a field that is close to what is expected: a varint of the difference.
func (c *codec) num(col int, want uint64, v *uint64) {
	p := &c.cols[c.g+col]
	if c.decode {
		d, n := binary.Uvarint(*p)
		if n <= 0 {
			c.bad = true
			return
		}
		*p = (*p)[n:]
		*v = want + uint64(unzigzag(d))
		return
	}
	*p = binary.AppendUvarint(*p, zigzag(int64(*v-want)))
}

// noisy is a field whose difference from what is expected has a size that
// repeats but no value that does: the number of significant bits goes into a
// column, which compresses well, and the bits, which do not, into the packed
// ones.
func (c *codec) noisy(col int, want uint64, v *uint64) {
	p := &c.cols[c.g+col]
	if !c.decode {
		d := zigzag(int64(*v - want))
		m := magnitude(d)
		*p = append(*p, byte(m))
		if m > 33 {
			c.bits.put(d, 32)
			c.bits.put(d>>32, m-33)
		} else if m > 1 {
			c.bits.put(d, m-1)
		}
		return
	}
	if len(*p) == 0 || (*p)[0] > 64 {
		c.bad = true
		return
	}
	m := uint((*p)[0])
	*p = (*p)[1:]
	var d uint64
	switch {
	case m > 33:
		d = c.in.get(32)
		d |= c.in.get(m-33)<<32 | 1<<(m-1)
	case m > 1:
		d = c.in.get(m-1) | 1<<(m-1)
	default:
		d = uint64(m)
	}
	*v = want + uint64(unzigzag(d))
}

// grid is a noisy field whose difference lies close to a multiple of gridNS. It
// takes the columns col and col+1.
func (c *codec) grid(col int, want uint64, v *uint64) {
	var q, r uint64
	if !c.decode {
		d := int64(*v - want)
		n := (d + gridNS/2) >> 5
		q, r = uint64(n), uint64(d-n<<5)
	}
	c.noisy(col, 0, &q)
	c.num(col+1, 0, &r)
	if c.decode {
		*v = want + q<<5 + r
	}
}

// part is width bits of w from bit shift on.
func part(w uint64, shift, width uint) uint64 { return w >> shift & (1<<width - 1) }

// head is the first word but its kind: columns 0 to 4.
func (c *codec) head(w *uint64) {
	var flags, reason, context, lane, stream uint64
	if !c.decode {
		flags, reason, context = part(*w, 8, 8), part(*w, 16, 8), part(*w, 24, 8)
		lane, stream = part(*w, 32, 16), part(*w, 48, 16)
	}
	c.num(0, 0, &flags)
	c.num(1, 0, &reason)
	c.num(2, 0, &context)
	c.num(3, 0, &lane)
	c.num(4, 0, &stream)
	if c.decode {
		*w = *w&0xff | part(flags, 0, 8)<<8 | part(reason, 0, 8)<<16 | part(context, 0, 8)<<24 | part(lane, 0, 16)<<32 | part(stream, 0, 16)<<48
	}
}

// rest are words that differ little from the group's last entry.
func (c *codec) rest(col, from int, last *[7]uint64, w *spanring.Words) {
	for i := from; i < len(w); i++ {
		c.num(col+i-from, last[i], &w[i])
	}
}

// pair is a word of two 32-bit halves.
func (c *codec) pair(col int, wantLo, wantHi uint64, w *uint64) {
	lo, hi := *w&0xffffffff, *w>>32
	c.num(col, wantLo, &lo)
	c.num(col+1, wantHi, &hi)
	if c.decode {
		*w = lo&0xffffffff | hi<<32
	}
}

// entry codes one entry.
func (c *codec) entry(e *spanring.Entry) {
	c.g = grpCommon * groupColumns
	c.num(0, c.x.seq, &e.Seq)
	c.x.seq = e.Seq + 1
	w := &e.Words
	kind := uint64(w.Kind())
	c.num(1, 0, &kind)
	if c.decode {
		*w = spanring.Words{kind & 0xff}
	}
	g := groupOf(spanring.Kind(kind))
	c.g = g * groupColumns
	last := &c.x.word[g]
	c.head(&w[0])
	c.num(5, c.x.step[g], &w[1])
	switch g {
	case grpStepBegin:
		c.noisy(6, c.x.lastNS, &w[2])
		c.rest(7, 3, last, w)
		c.x.lastNS = w[2]
		c.x.beginNS[w[1]&63] = w[2]
		c.x.step[g] = w[1] + 1
	case grpStepEnd:
		c.noisy(6, c.x.beginNS[w[1]&63], &w[3])
		c.noisy(7, w[3]+c.x.hostNS, &w[2])
		c.pair(8, last[4]&0xffffffff, last[4]>>32, &w[4])
		c.rest(10, 5, last, w)
		c.x.hostNS = w[2] - w[3]
		c.x.lastNS = w[2]
		c.x.step[g] = w[1] + 1
	case grpLane, grpKernel, grpGraph:
		c.span(g, last, w)
		c.x.step[g] = w[1]
	case grpFailed:
		c.noisy(6, c.x.lastNS, &w[2])
		c.num(7, last[3], &w[3])
		c.num(8, last[4], &w[4])
		c.pair(9, last[5]&0xffffffff, last[5]>>32, &w[5])
		c.pair(11, last[6]&0xffffffff, last[6]>>32, &w[6])
		c.x.step[g] = w[1]
	case grpAnchor:
		c.noisy(6, last[2]+(w[1]-last[1]), &w[2])
		c.rest(7, 3, last, w)
		c.x.step[g] = w[1]
	default:
		c.rest(6, 2, last, w)
		c.x.step[g] = w[1]
	}
	c.x.word[g] = *w
}

// span codes the words of a lane, kernel or graph from the third on.
func (c *codec) span(g int, last *[7]uint64, w *spanring.Words) {
	i := (part(w[0], 48, 16)*3 + part(w[0], 24, 8)*7 + uint64(g)*61) & 255
	stream, enq := &c.x.endNS[i], &c.x.enqNS[i]
	// The name and place within the step come first: they say how long such a
	// span was the last time.
	lastOrdinal := last[5] >> 32
	if w[1] != last[1] {
		lastOrdinal = 0
	}
	c.pair(6, 0, lastOrdinal+1, &w[5])
	raw := &c.x.rawNS[(part(w[5], 0, 32)*31+uint64(g)*1009+part(w[0], 32, 16)*517)&4095]

	const mask48 = 1<<48 - 1
	parent, uncertainty := w[6]&0xffffffff, w[6]>>32
	c.num(8, last[6]&0xffffffff, &parent)
	c.num(9, last[6]>>32, &uncertainty)
	length, correction := w[3]&mask48, w[3]>>48
	c.grid(10, *raw, &length)
	c.num(12, last[3]>>48, &correction)
	c.grid(13, *stream, &w[2])
	lead, place := uint64(int64(w[4]<<16)>>16), w[4]>>48
	enqueue := w[2] - lead
	c.noisy(15, *enq, &enqueue)
	c.num(16, last[4]>>48, &place)
	if c.decode {
		w[6] = parent&0xffffffff | uncertainty<<32
		w[3] = length&mask48 | correction<<48
		w[4] = (w[2]-enqueue)&mask48 | place<<48
		length = w[3] & mask48
	}
	*raw, *stream, *enq = length, w[2]+length, enqueue
}

var errColumns = errors.New("entries do not decode")

// encoder collects the entries of one block.
type encoder struct {
	c       codec
	n       int
	recv    []byte // pairs of count and time on recvUnitNS
	recvAt  int64  // in units, of the pair being counted
	recvN   uint64
	firstNS int64
}

func (e *encoder) reset() {
	for i := range e.c.cols {
		e.c.cols[i] = e.c.cols[i][:0]
	}
	e.c.bits.reset()
	e.c.x = expect{}
	e.n, e.recv, e.recvN, e.recvAt = 0, e.recv[:0], 0, 0
}

// add takes an entry received at recvMonoNS, which must not go backwards within a
// block.
func (e *encoder) add(en *spanring.Entry, recvMonoNS int64) {
	at := max((recvMonoNS+recvUnitNS-1)/recvUnitNS, e.recvAt)
	if e.n == 0 {
		e.firstNS = recvMonoNS
		e.recvAt = at
		e.recv = appendInt(e.recv, at)
	} else if at != e.recvAt {
		e.flushRecv(at)
	}
	e.recvN++
	// The coder may write to the entry only when it decodes.
	e.c.entry(en)
	e.n++
}

func (e *encoder) flushRecv(at int64) {
	e.recv = binary.AppendUvarint(e.recv, e.recvN)
	e.recv = binary.AppendUvarint(e.recv, uint64(at-e.recvAt))
	e.recvN, e.recvAt = 0, at
}

// payload appends the block's payload: count, times of reception, then each
// column behind its length.
func (e *encoder) payload(b []byte) []byte {
	e.flushRecv(e.recvAt)
	e.c.cols[colBits] = e.c.bits.finish()
	b = binary.AppendUvarint(b, uint64(e.n))
	b = binary.AppendUvarint(b, uint64(len(e.recv)))
	b = binary.AppendUvarint(b, numColumns)
	for i := range e.c.cols {
		b = binary.AppendUvarint(b, uint64(len(e.c.cols[i])))
	}
	b = append(b, e.recv...)
	for i := range e.c.cols {
		b = append(b, e.c.cols[i]...)
	}
	e.c.bits.b = e.c.cols[colBits]
	return b
}

// decoder reads the entries of one block, one after the other.
type decoder struct {
	c      codec
	left   uint64 // entries
	recv   fields
	recvN  uint64 // entries left of the current time
	recvAt int64
	nextAt int64
}

// open begins a block's payload, which must stay as it is until the last entry
// was read.
func (d *decoder) open(payload []byte) error {
	f := fields{b: payload}
	n, recvLen, cols := f.uint(), f.uint(), f.uint()
	if f.bad || n > maxBlockEntries || cols != numColumns {
		return errColumns
	}
	var lens [numColumns]uint64
	for i := range lens {
		lens[i] = f.uint()
	}
	d.recv = fields{b: f.bytes(recvLen)}
	for i := range lens {
		d.c.cols[i] = f.bytes(lens[i])
	}
	if f.bad {
		return errColumns
	}
	d.c.decode, d.c.bad, d.c.x = true, false, expect{}
	d.c.in = bitReader{b: d.c.cols[colBits]}
	d.left = n
	d.recvN, d.nextAt = 0, d.recv.int()
	return d.readRecv()
}

func (d *decoder) readRecv() error {
	for d.left > 0 && d.recvN == 0 {
		d.recvAt = d.nextAt
		d.recvN = d.recv.uint()
		delta := d.recv.uint()
		const limit = 1 << 62 / recvUnitNS
		if d.recv.bad || d.recvAt < 0 || d.recvAt > limit || delta > limit {
			d.left = 0
			return errColumns
		}
		d.nextAt = d.recvAt + int64(delta)
	}
	return nil
}

// recvMonoNS is when the next entry was received; there must be one.
func (d *decoder) recvMonoNS() int64 { return d.recvAt * recvUnitNS }

// next reads the next entry; there must be one.
func (d *decoder) next(e *spanring.Entry) error {
	d.c.entry(e)
	if d.c.bad || d.c.in.bad {
		d.left = 0
		return errColumns
	}
	d.left--
	d.recvN--
	return d.readRecv()
}
