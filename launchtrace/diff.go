package launchtrace

import "math/bits"

// MaxEdits is how many operations inserted and removed an alignment has at most;
// what comes behind them is one replaced block.
const MaxEdits = 4096

// DiffOptions say what counts as a difference.
type DiffOptions struct {
	// BySite makes the same place in another allocation of the same site no
	// difference.
	BySite bool
}

// Script is what makes the second of two executions of the first: which operations
// are inserted, removed, changed, or replaced as a block, in order. It never
// changes; its methods may be called from any goroutine.
type Script struct {
	before, after              *Trace
	a, b                       []uint32 // where their operations lie
	o                          DiffOptions
	edits                      []edit
	inserted, removed, changed int
	limited                    bool
}

// edit replaces an operations of the first from a on by bn of the second from b
// on. A change has one of both, an insertion and a removal a run of one of them.
type edit struct {
	kind         EditKind
	a, an, b, bn int32
}

// Diff compares two executions. For n operations with d insertions and removals it
// takes time in proportion to n·d, and memory to n. Neither may be nil.
func Diff(before, after *Trace, o DiffOptions) *Script {
	var c comparison
	c.diff(before, after, o)
	return &Script{
		before: before, after: after, a: c.a, b: c.b, o: o, edits: c.edits,
		inserted: c.inserted, removed: c.removed, changed: c.changed, limited: c.limited,
	}
}

// comparison is a script in the making, and what is needed for it.
type comparison struct {
	Script
	names []uint32 // the second's numbers of names as the first's; nil: they are the same
	al    aligner
}

// diff makes c the comparison of two executions. What it has from the last one it
// uses again: it allocates nothing unless something differs.
func (c *comparison) diff(before, after *Trace, o DiffOptions) {
	c.Script = Script{before: before, after: after, o: o, a: before.refs(c.a[:0]), b: after.refs(c.b[:0]), edits: c.edits[:0]}
	c.names = commonNames(before, after)
	a, b := c.a, c.b
	n := 0
	for len(a) > 0 && len(b) > 0 && c.same(a[0], b[0]) {
		a, b = a[1:], b[1:]
		n++
	}
	for len(a) > 0 && len(b) > 0 && c.same(a[len(a)-1], b[len(b)-1]) {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	if len(a) > 0 || len(b) > 0 {
		c.compare(a, b, int32(n))
	}
}

// commonNames gives the second's names the numbers that the first has them under,
// and new ones where it has not.
func commonNames(a, b *Trace) []uint32 {
	if a.table != nil && a.table == b.table {
		return nil
	}
	ids := make(map[string]uint32, len(a.texts))
	for i, s := range a.texts {
		if _, ok := ids[s]; !ok {
			ids[s] = uint32(i)
		}
	}
	m := make([]uint32, len(b.texts))
	next := uint32(len(a.texts))
	for i, s := range b.texts {
		id, ok := ids[s]
		if !ok {
			id = next
			next++
			ids[s] = id
		}
		m[i] = id
	}
	return m
}

func (c *comparison) nameOf(w opWords) uint32 {
	if c.names == nil {
		return w.name()
	}
	return c.names[w.name()]
}

// same reports whether two operations are no difference.
func (c *comparison) same(ra, rb uint32) bool {
	x, y := c.before.ref(ra), c.after.ref(rb)
	if x[0] != y[0] || x[1]>>32 != y[1]>>32 || x[3] != y[3] || x[4] != y[4] || x[5] != y[5] {
		return false
	}
	if name := x.name(); name != c.nameOf(y) || name == 0 && x[2] != y[2] {
		return false
	}
	p, q := x.args(), y.args()
	for i, v := range p {
		if v != q[i] && !c.sameArg(v, q[i]) {
			return false
		}
	}
	return true
}

func (s *Script) sameArg(x, y uint64) bool {
	return x == y || s.o.BySite && s.before.samePlace(x, s.after, y)
}

// compare aligns what is left between the equal beginnings, n operations long, and
// the equal ends.
func (c *comparison) compare(a, b []uint32, n int32) {
	ka, kb := c.keys(a, b)
	gaps, x, y := c.al.align(ka, kb, MaxEdits)
	match := pair(gaps, x, y)
	if len(gaps) > 0 {
		c.prefer(match, a[:x], b[:y], ka, kb)
		c.slide(match, a, b[:y], ka, kb)
	}
	j := int32(0)
	for i, m := range match {
		i := int32(i)
		if m < 0 {
			c.remove(n + i)
			c.edits[len(c.edits)-1].b = n + j
			continue
		}
		c.insert(n+i, n+j, m-j)
		if !c.same(a[i], b[m]) {
			c.edits = append(c.edits, edit{EditChange, n + i, 1, n + m, 1})
			c.changed++
		}
		j = m + 1
	}
	c.insert(n+int32(x), n+j, int32(y)-j)
	if an, bn := len(a)-x, len(b)-y; an > 0 || bn > 0 {
		c.limited = true
		c.edits = append(c.edits, edit{EditReplace, n + int32(x), int32(an), n + int32(y), int32(bn)})
		c.removed += an
		c.inserted += bn
	}
}

func (c *comparison) remove(a int32) {
	c.removed++
	if k := len(c.edits) - 1; k >= 0 && c.edits[k].kind == EditRemove && c.edits[k].a+c.edits[k].an == a {
		c.edits[k].an++
		return
	}
	c.edits = append(c.edits, edit{kind: EditRemove, a: a, an: 1})
}

func (c *comparison) insert(a, b, bn int32) {
	if bn > 0 {
		c.inserted += int(bn)
		c.edits = append(c.edits, edit{EditInsert, a, 0, b, bn})
	}
}

// keys numbers kinds and functions alike in both.
func (c *comparison) keys(a, b []uint32) (ka, kb []int32) {
	type key struct {
		kind Kind
		name uint32
		fn   uint64
	}
	ids := make(map[key]int32)
	of := func(w opWords, name uint32) int32 {
		k := key{kind: w.kind(), name: name}
		if name == 0 {
			k.fn = w.fn()
		}
		id, ok := ids[k]
		if !ok {
			id = int32(len(ids))
			ids[k] = id
		}
		return id
	}
	ka, kb = make([]int32, len(a)), make([]int32, len(b))
	for i, r := range a {
		w := c.before.ref(r)
		ka[i] = of(w, w.name())
	}
	for i, r := range b {
		w := c.after.ref(r)
		kb[i] = of(w, c.nameOf(w))
	}
	return ka, kb
}

// pair is, for each of the first x elements, the one of the second's first y that
// it matches, -1 for none.
func pair(gaps []gap, x, y int) []int32 {
	m := make([]int32, x)
	i, j := int32(0), int32(0)
	for _, g := range append(gaps[:len(gaps):len(gaps)], gap{a: int32(x), b: int32(y)}) {
		for ; i < g.a; i, j = i+1, j+1 {
			m[i] = j
		}
		for ; i < g.a+g.an; i++ {
			m[i] = -1
		}
		j = g.b + g.bn
	}
	return m
}

// prefer replaces parts of an alignment by others as short that make operations
// meet which are equal in everything. In a row of launches of one kernel an
// inserted one could be any of them as far as kind and function go; only one of
// the choices leaves the others unchanged.
//
// The other alignment matches what is equal in everything first, and then kind and
// function in between. Where both go through the same points, a part of it that is
// as short as that of the shortest can stand in its place.
func (c *comparison) prefer(match []int32, a, b []uint32, ka, kb []int32) {
	fa, fb := c.wholes(a, b)
	gaps, x, y := c.al.align(fa, fb, MaxEdits)
	gaps = append([]gap(nil), gaps...)
	other := pair(gaps, x, y)
	for len(other) < len(match) {
		other = append(other, -1)
	}
	for _, g := range gaps {
		in, gx, gy := c.al.align(ka[g.a:g.a+g.an], kb[g.b:g.b+g.bn], MaxEdits)
		for i, m := range pair(in, gx, gy) {
			if m >= 0 {
				other[g.a+int32(i)] = g.b + m
			}
		}
	}
	from, have, could := 0, 0, 0
	for i := range len(match) + 1 {
		if i < len(match) && (match[i] < 0 || match[i] != other[i]) {
			have += b2i(match[i] >= 0)
			could += b2i(other[i] >= 0)
			continue
		}
		if could >= have {
			copy(match[from:i], other[from:i])
		}
		from, have, could = i+1, 0, 0
	}
}

// slide moves each insertion and each removal up or down where that makes
// operations meet that are more alike, as far as kind and function allow and up to
// the next one. It does for operations that all differ a little, and so are
// nowhere equal, what prefer does for others.
func (c *comparison) slide(match []int32, a, b []uint32, ka, kb []int32) {
	// A removal is an insertion with the sequences' parts exchanged.
	back := make([]int32, len(b))
	for j := range back {
		back[j] = -1
	}
	for i, m := range match {
		if m >= 0 {
			back[m] = int32(i)
		}
	}
	slideRuns(match, back, kb, func(i, j int32) int { return c.likeness(a[i], b[j]) })
	slideRuns(back, match, ka, func(j, i int32) int { return c.likeness(a[i], b[j]) })
}

// slideRuns moves runs of the second sequence that match nothing, where the first
// has no such run at the same place. match and back are the pairs seen from both.
func slideRuns(match, back, kb []int32, like func(i, j int32) int) {
	for j := int32(0); j < int32(len(back)); {
		if back[j] >= 0 {
			j++
			continue
		}
		from := j
		for j < int32(len(back)) && back[j] < 0 {
			j++
		}
		n := j - from
		// The operation of the first that comes behind the run.
		var i int32
		if from > 0 {
			i = back[from-1] + 1
		}
		if next := int32(len(match)); i < next && match[i] < 0 || j < int32(len(back)) && i != back[j] || j == int32(len(back)) && i != next {
			continue // the first has operations here that match nothing, too
		}
		best, score, sum := int32(0), 0, 0
		for k := int32(1); from-k >= 0 && back[from-k] >= 0 && back[from-k] == i-k && kb[from-k] == kb[from+n-k]; k++ {
			if sum += like(i-k, from+n-k) - like(i-k, from-k); sum > score {
				best, score = -k, sum
			}
		}
		sum = 0
		for k := int32(0); from+n+k < int32(len(back)) && back[from+n+k] == i+k && kb[from+k] == kb[from+n+k]; k++ {
			if sum += like(i+k, from+k) - like(i+k, from+n+k); sum > score {
				best, score = k+1, sum
			}
		}
		pair := func(i, j int32) { match[i], back[j] = j, i }
		for k := int32(1); k <= -best; k++ {
			pair(i-k, from+n-k)
		}
		for k := int32(0); k < best; k++ {
			pair(i+k, from+k)
		}
		if best != 0 {
			for k := range n {
				back[from+best+k] = -1
			}
			j = max(j, from+best+n)
		}
	}
}

// likeness is how much two operations of one kind and function have in common.
func (c *comparison) likeness(ra, rb uint32) int {
	if c.same(ra, rb) {
		return 1 << 16
	}
	x, y := c.before.ref(ra), c.after.ref(rb)
	n := b2i(x.grid() == y.grid()) + b2i(x.block() == y.block()) + b2i(x.shared() == y.shared())
	p, q := x.args(), y.args()
	for i := range min(len(p), len(q)) {
		n += b2i(c.sameArg(p[i], q[i]))
	}
	return n
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// wholes numbers operations alike that are equal in everything.
func (c *comparison) wholes(a, b []uint32) (fa, fb []int32) {
	t := wholes{c: c, first: make(map[uint64]int32)}
	fa, fb = make([]int32, len(a)), make([]int32, len(b))
	for i, r := range a {
		w := c.before.ref(r)
		fa[i] = t.id(whole{c.before, w, w.name()})
	}
	for i, r := range b {
		w := c.after.ref(r)
		fb[i] = t.id(whole{c.after, w, c.nameOf(w)})
	}
	return fa, fb
}

// whole is an operation with its name's number in the first trace.
type whole struct {
	t    *Trace
	w    opWords
	name uint32
}

type wholes struct {
	c     *comparison
	first map[uint64]int32 // by hash
	next  []int32          // of the same hash, -1 for none
	all   []whole
}

func (t *wholes) id(o whole) int32 {
	h := t.hash(o)
	id, ok := t.first[h]
	if !ok {
		id = -1
	}
	for i := id; i >= 0; i = t.next[i] {
		if t.equal(o, t.all[i]) {
			return i
		}
	}
	n := int32(len(t.all))
	t.all = append(t.all, o)
	t.next = append(t.next, id)
	t.first[h] = n
	return n
}

// mix folds a word into a hash.
func mix(h, w uint64) uint64 {
	hi, lo := bits.Mul64(h^w, 0x9e3779b97f4a7c15)
	return hi ^ lo ^ w
}

func (t *wholes) hash(o whole) uint64 {
	w := o.w
	h := mix(w[0], w[1]&^(1<<32-1)|uint64(o.name))
	if o.name == 0 {
		h = mix(h, w[2])
	}
	h = mix(mix(mix(h, w[3]), w[4]), w[5])
	for _, v := range w.args() {
		if t.c.o.BySite {
			if r := o.t.place(v); r != nil {
				// Sites are compared where hashes agree; offsets tell most apart.
				h = mix(h, ^(v - r.Base))
				continue
			}
		}
		h = mix(h, v)
	}
	return h
}

// equal is same for operations of either trace; of a place in an allocation only
// the place counts.
func (t *wholes) equal(p, q whole) bool {
	x, y := p.w, q.w
	if x[0] != y[0] || x[1]>>32 != y[1]>>32 || x[3] != y[3] || x[4] != y[4] || x[5] != y[5] ||
		p.name != q.name || p.name == 0 && x[2] != y[2] {
		return false
	}
	u, v := x.args(), y.args()
	for i := range u {
		if t.c.o.BySite {
			if r := p.t.place(u[i]); r != nil {
				if !p.t.samePlace(u[i], q.t, v[i]) {
					return false
				}
				continue
			}
			if q.t.place(v[i]) != nil {
				return false
			}
		}
		if u[i] != v[i] {
			return false
		}
	}
	return true
}

// Before and After are the numbers of operations of both executions, Inserted,
// Removed and Changed those that differ: Before - Removed + Inserted = After. A
// replaced block counts as removed and inserted.
func (s *Script) Before() int   { return s.before.n }
func (s *Script) After() int    { return s.after.n }
func (s *Script) Inserted() int { return s.inserted }
func (s *Script) Removed() int  { return s.removed }
func (s *Script) Changed() int  { return s.changed }

// Limited reports whether there were more than MaxEdits insertions and removals,
// so that the rest is one replaced block.
func (s *Script) Limited() bool { return s.limited }
