package launchtrace

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
)

// Trace is one recorded execution of a region. It never changes; its methods may
// be called from any goroutine.
type Trace struct {
	region  string
	step    uint64
	dropped uint64
	n       int
	chunks  [][]uint64
	texts   []string   // names by number; texts[0] is none
	table   *nameTable // what numbered them, if it numbers other traces too
	ranges  []Range    // sorted, without overlap
}

// Operations lie in chunks of words, one behind the other, never across two
// chunks:
//
//	0  kind u8 | flags u8 | number of arguments u16 | shared bytes u32
//	1  name u32 (its number in texts) | grid x u32
//	2  function's handle
//	3  grid y u32 | grid z u32
//	4  block x u32 | block y u32
//	5  block z u32 | 0
//	6… arguments
const (
	headWords  = 6
	chunkShift = 13
	chunkWords = 1 << chunkShift
	chunkBytes = chunkWords * 8

	flagArgsUnknown = 1 << 8
)

// The largest operation fits a chunk.
const _ = uint(chunkWords - headWords - MaxArgs)

// opWords are the words of one operation.
type opWords []uint64

func (w opWords) kind() Kind        { return Kind(w[0]) }
func (w opWords) argsUnknown() bool { return w[0]&flagArgsUnknown != 0 }
func (w opWords) nargs() int        { return int(w[0] >> 16 & 0xffff) }
func (w opWords) shared() uint32    { return uint32(w[0] >> 32) }
func (w opWords) name() uint32      { return uint32(w[1]) }
func (w opWords) fn() uint64        { return w[2] }
func (w opWords) grid() [3]uint32 {
	return [3]uint32{uint32(w[1] >> 32), uint32(w[3]), uint32(w[3] >> 32)}
}
func (w opWords) block() [3]uint32    { return [3]uint32{uint32(w[4]), uint32(w[4] >> 32), uint32(w[5])} }
func (w opWords) args() []uint64      { return w[headWords:] }
func at(c []uint64, off int) opWords  { return c[off : off+headWords+opWords(c[off:]).nargs()] }
func lo32(lo, hi uint32) uint64       { return uint64(lo) | uint64(hi)<<32 }
func (t *Trace) ref(r uint32) opWords { return at(t.chunks[r>>chunkShift], int(r&(chunkWords-1))) }

// opHead is an operation's words but for its arguments.
type opHead [headWords]uint64

func headOf(k Kind, fn uint64, grid, block [3]uint32, shared uint32) opHead {
	return opHead{
		uint64(k) | uint64(shared)<<32, uint64(grid[0]) << 32, fn,
		lo32(grid[1], grid[2]), lo32(block[0], block[1]), uint64(block[2]),
	}
}

// put appends an operation. A chunk that is needed comes from take; put reports
// false when there is none.
func (t *Trace) put(h *opHead, args []uint64, take func() []uint64) bool {
	need := headWords + len(args)
	last := len(t.chunks) - 1
	if last < 0 || cap(t.chunks[last])-len(t.chunks[last]) < need {
		c := take()
		if c == nil {
			return false
		}
		t.chunks = append(t.chunks, c[:0])
		last++
	}
	c := t.chunks[last]
	n := len(c)
	c = c[:n+need]
	copy(c[n:], h[:])
	c[n] |= uint64(len(args)) << 16
	copy(c[n+headWords:], args)
	t.chunks[last] = c
	t.n++
	return true
}

// words are the operations in order.
func (t *Trace) words() iter.Seq[opWords] {
	return func(yield func(opWords) bool) {
		for _, c := range t.chunks {
			for off := 0; off < len(c); {
				w := at(c, off)
				if !yield(w) {
					return
				}
				off += len(w)
			}
		}
	}
}

// refs appends the place of each operation.
func (t *Trace) refs(dst []uint32) []uint32 {
	for i, c := range t.chunks {
		for off := 0; off < len(c); off += len(at(c, off)) {
			dst = append(dst, uint32(i<<chunkShift|off))
		}
	}
	return dst
}

// MaxOps is how many operations a trace can have that is no recorder's.
const MaxOps = 1 << 24

// NewTrace makes a trace of operations, which it copies. It fails for kinds and
// numbers of arguments that cannot be.
func NewTrace(region string, step uint64, ops []Op) (*Trace, error) {
	b := newBuilder(region, step)
	for i := range ops {
		if err := b.add(&ops[i]); err != nil {
			return nil, fmt.Errorf("operation %d: %w", i, err)
		}
	}
	return b.t, nil
}

// builder makes a trace that no recorder made.
type builder struct {
	t   *Trace
	ids map[string]uint32
}

func newBuilder(region string, step uint64) *builder {
	return &builder{t: &Trace{region: cutName(region), step: step, texts: []string{""}}, ids: map[string]uint32{"": 0}}
}

func takeChunk() []uint64 { return make([]uint64, 0, chunkWords) }

func (b *builder) add(o *Op) error {
	switch {
	case !o.Kind.valid():
		return fmt.Errorf("unknown %v", o.Kind)
	case len(o.Args) > MaxArgs:
		return fmt.Errorf("%d arguments, at most %d", len(o.Args), MaxArgs)
	case o.ArgsUnknown && len(o.Args) > 0:
		return fmt.Errorf("unknown arguments and %d of them", len(o.Args))
	case b.t.n == MaxOps:
		return fmt.Errorf("more than %d operations", MaxOps)
	}
	h := headOf(o.Kind, o.Func, o.Grid, o.Block, o.SharedBytes)
	if o.ArgsUnknown {
		h[0] |= flagArgsUnknown
	}
	h[1] |= uint64(b.name(o.Name))
	b.t.put(&h, o.Args, takeChunk)
	return nil
}

func (b *builder) name(text string) uint32 {
	text = cutName(text)
	id, ok := b.ids[text]
	if !ok {
		id = uint32(len(b.t.texts))
		b.ids[text] = id
		b.t.texts = append(b.t.texts, text)
	}
	return id
}

// Region is the region's name.
func (t *Trace) Region() string { return t.region }

// Step is the step in which the execution ended, 0 for none.
func (t *Trace) Step() uint64 { return t.step }

// Len is the number of operations.
func (t *Trace) Len() int { return t.n }

// Dropped is how many operations were not recorded, for want of memory. They come
// after those that were.
func (t *Trace) Dropped() uint64 { return t.dropped }

// Ranges are the allocations that arguments lie in, by address. The slice must not
// be changed.
func (t *Trace) Ranges() []Range { return t.ranges }

// WithRanges is t with other ranges: those that overlap one of lower address, or
// are empty, are left out.
func (t *Trace) WithRanges(ranges []Range) *Trace {
	c := *t
	c.ranges = nil
	for _, r := range slices.SortedStableFunc(slices.Values(ranges), func(a, b Range) int { return cmp.Compare(a.Base, b.Base) }) {
		r.Site = cutName(r.Site)
		c.addRange(r)
	}
	return &c
}

// All are the operations with their numbers, each a copy.
func (t *Trace) All() iter.Seq2[int, Op] {
	return func(yield func(int, Op) bool) {
		i := 0
		for w := range t.words() {
			if !yield(i, t.op(w)) {
				return
			}
			i++
		}
	}
}

// Ops are all operations, copied.
func (t *Trace) Ops() []Op {
	if t == nil {
		return nil
	}
	ops := make([]Op, 0, t.n)
	for _, o := range t.All() {
		ops = append(ops, o)
	}
	return ops
}

func (t *Trace) op(w opWords) Op {
	o := Op{
		Kind: w.kind(), Func: w.fn(), Name: t.texts[w.name()], Grid: w.grid(), Block: w.block(), SharedBytes: w.shared(),
		ArgsUnknown: w.argsUnknown(),
	}
	if w.nargs() > 0 {
		o.Args = slices.Clone(w.args())
	}
	return o
}

// clone copies what a recorder will use again.
func (t *Trace) clone() *Trace {
	c := *t
	c.chunks = make([][]uint64, len(t.chunks))
	for i := range t.chunks {
		c.chunks[i] = slices.Clone(t.chunks[i])
	}
	c.ranges = slices.Clone(t.ranges)
	return &c
}

// reset empties t for another execution. Its chunks are their taker's.
func (t *Trace) reset() {
	*t = Trace{region: t.region, chunks: t.chunks[:0], ranges: t.ranges[:0]}
}
