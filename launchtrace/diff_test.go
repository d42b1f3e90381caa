package launchtrace

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// counts are a script's numbers.
type counts struct{ Inserted, Removed, Changed int }

func countsOf(s *Script) counts { return counts{s.Inserted(), s.Removed(), s.Changed()} }

// checkScript holds a script to what every script is.
func checkScript(t testing.TB, a, b *Trace, o DiffOptions) *Script {
	t.Helper()
	s := Diff(a, b, o)
	if s.Before() != a.Len() || s.After() != b.Len() || s.Before()-s.Removed()+s.Inserted() != s.After() {
		t.Fatalf("%d operations less %d and %d more are not %d", s.Before(), s.Removed(), s.Inserted(), s.After())
	}
	edits := s.Edits()
	n := counts{}
	for _, e := range edits {
		switch {
		case e.Removed == 0 && len(e.Ops) == 0:
			t.Fatalf("%+v does nothing", e)
		case e.Kind == EditChange && e.Removed == 1 && len(e.Ops) == 1:
			n.Changed++
			continue
		case e.Kind == EditInsert && e.Removed == 0, e.Kind == EditRemove && len(e.Ops) == 0, e.Kind == EditReplace && s.Limited():
		default:
			t.Fatalf("%v of %d operations by %d", e.Kind, e.Removed, len(e.Ops))
		}
		n.Removed += e.Removed
		n.Inserted += len(e.Ops)
	}
	if d := cmp.Diff(countsOf(s), n); d != "" {
		t.Fatalf("the script's counts and its edits' (-script +edits):\n%s", d)
	}
	from, to := a.Ops(), b.Ops()
	got, err := Apply(from, edits)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(to) {
		t.Fatalf("applied, %d operations come out, want %d", len(got), len(to))
	}
	for i := range got {
		if x := got[i]; o.BySite && len(x.Args) == len(to[i].Args) {
			// What is at the same place stays as it was.
			x.Args = slices.Clone(x.Args)
			for j, v := range x.Args {
				if a.samePlace(v, b, to[i].Args[j]) {
					x.Args[j] = to[i].Args[j]
				}
			}
			got[i] = x
		}
		if !got[i].equal(&to[i]) {
			t.Fatalf("applied, operation %d is %+v, want %+v", i, got[i], to[i])
		}
	}
	all := s.Report(-1)
	if all.Differing() != n.Inserted+n.Removed+n.Changed || len(all.Details) != all.Differences || all.Before != a.Len() || all.After != b.Len() {
		t.Fatalf("a report of %d differing operations with %d of %d details", all.Differing(), len(all.Details), all.Differences)
	}
	for _, k := range []int{0, 1, 3} {
		p := s.Report(k)
		if d := cmp.Diff(all.Details[:min(k, len(all.Details))], p.Details, cmpopts.EquateEmpty()); d != "" || p.Differences != all.Differences {
			t.Fatalf("a report of %d details (-all +of these):\n%s", k, d)
		}
	}
	if x, y := all.Text(), Diff(a, b, o).Report(-1).Text(); x != y {
		t.Fatalf("two reports of the same:\n%s%s", x, y)
	}
	return s
}

func repeat(n int, f func(i int) Op) []Op {
	var ops []Op
	for i := range n {
		ops = append(ops, f(i))
	}
	return ops
}

// layers is the decode of a model: in each layer the same kernels with the
// layer's weights.
func layers(n int) []Op {
	var ops []Op
	for i := range uint64(n) {
		ops = append(ops, kernel("norm", 0x1000*i, 64), kernel("gemm", 0x1000*i+0x100, 1), kernel("attention", 0x1000*i+0x200, 17),
			kernel("gemm", 0x1000*i+0x300, 1), Op{Kind: KindMemset, Args: []uint64{0x9000, 0, 4096}})
	}
	return ops
}

func TestDiffCounts(t *testing.T) {
	row := repeat(50, func(i int) Op { return kernel("gemm", uint64(i)) })
	unnamed := func(fn uint64) Op { return Op{Kind: KindKernel, Func: fn} }
	with := func(ops []Op, i int, more ...Op) []Op { return slices.Insert(slices.Clone(ops), i, more...) }
	for _, c := range []struct {
		name string
		a, b []Op
		want counts
	}{
		{"nothing", nil, nil, counts{}},
		{"equal", layers(4), layers(4), counts{}},
		{"everything new", nil, layers(2), counts{10, 0, 0}},
		{"everything gone", layers(2), nil, counts{0, 10, 0}},
		{"one inserted", layers(4), with(layers(4), 7, kernel("new")), counts{1, 0, 0}},
		{"one removed", with(layers(4), 7, kernel("old")), layers(4), counts{0, 1, 0}},
		{"one inserted in a row of its like", row, with(row, 20, kernel("gemm", 999)), counts{1, 0, 0}},
		{"first of a row", row, with(row, 0, kernel("gemm", 999)), counts{1, 0, 0}},
		{"last of a row", row, with(row, 50, kernel("gemm", 999)), counts{1, 0, 0}},
		{"several in a row", row, with(with(with(row, 40, kernel("gemm", 7)), 20, kernel("gemm", 8), kernel("gemm", 9)), 3, kernel("gemm", 10)), counts{4, 0, 0}},
		{"several out of a row", with(with(row, 30, kernel("gemm", 7)), 20, kernel("gemm", 8)), row, counts{0, 2, 0}},
		{"a layer more", layers(4), append(layers(2), append(layers(1), layers(4)[10:]...)...), counts{5, 0, 0}},
		// A row of one function of the same length is changed, not moved.
		{"a row moved by one", row[:49], row[1:], counts{0, 0, 49}},
		{"changed", layers(4), with(slices.Delete(layers(4), 7, 8), 7, kernel("attention", 0x1200, 18)), counts{0, 0, 1}},
		{"changed and inserted", row, with(with(slices.Delete(slices.Clone(row), 30, 31), 30, kernel("gemm", 999)), 10, kernel("gemm", 555)), counts{1, 0, 1}},
		{"another function", []Op{kernel("a", 1)}, []Op{kernel("b", 1)}, counts{1, 1, 0}},
		{"another kind", []Op{{Kind: KindMemset, Args: []uint64{1, 2, 3}}}, []Op{{Kind: KindCopy, Args: []uint64{1, 2, 3}}}, counts{1, 1, 0}},
		{"another handle with a name", []Op{kernel("a", 1)}, []Op{{Kind: KindKernel, Func: 0x200, Name: "a", Grid: [3]uint32{4, 1, 1}, Block: [3]uint32{128, 1, 1}, Args: []uint64{1}}}, counts{}},
		{"another handle without", []Op{unnamed(1), unnamed(2)}, []Op{unnamed(1), unnamed(3)}, counts{1, 1, 0}},
		{"named meanwhile", []Op{unnamed(0x100)}, []Op{{Kind: KindKernel, Func: 0x100, Name: "a"}}, counts{1, 1, 0}},
		{"arguments known meanwhile", []Op{{Kind: KindKernel, Name: "a", ArgsUnknown: true}}, []Op{{Kind: KindKernel, Name: "a"}}, counts{0, 0, 1}},
		{"unknown arguments", []Op{{Kind: KindKernel, Name: "a", ArgsUnknown: true}}, []Op{{Kind: KindKernel, Name: "a", ArgsUnknown: true}}, counts{}},
		{"one argument more", []Op{kernel("a", 1)}, []Op{kernel("a", 1, 0)}, counts{0, 0, 1}},
		{"each field", repeat(8, func(int) Op { return kernel("a") }), func() []Op {
			ops := repeat(8, func(int) Op { return kernel("a") })
			for i := range 3 {
				ops[i].Grid[i]++
				ops[3+i].Block[i]++
			}
			ops[6].SharedBytes = 1
			ops[7].Args = []uint64{1}
			return ops
		}(), counts{0, 0, 8}},
	} {
		s := checkScript(t, trace(t, c.a...), trace(t, c.b...), DiffOptions{})
		if d := cmp.Diff(c.want, countsOf(s)); d != "" {
			t.Errorf("%s (-want +got):\n%s%s", c.name, d, s.Report(-1).Text())
		}
	}
}

// TestDiffNamesTheInserted: the operation that is called inserted is the one that
// was.
func TestDiffNamesTheInserted(t *testing.T) {
	row := repeat(300, func(i int) Op { return kernel("gemm", uint64(i)) })
	for _, at := range []int{0, 1, 150, 299, 300} {
		b := slices.Insert(slices.Clone(row), at, kernel("gemm", 0xabc))
		p := checkScript(t, trace(t, row...), trace(t, b...), DiffOptions{}).Report(-1)
		if len(p.Details) != 1 || p.Details[0].After != at || p.Details[0].New.Args[0] != 0xabc {
			t.Errorf("inserted at %d: %s", at, p.Text())
		}
	}
}

// TestDiffNamesTheInsertedAmongChanged: also where no operation is equal to what it
// was, the one that has least in common with its neighbours' places is it.
func TestDiffNamesTheInsertedAmongChanged(t *testing.T) {
	row := func(length uint64) []Op {
		return repeat(60, func(i int) Op { return kernel("attention", 0x1000*uint64(i), length) })
	}
	for _, at := range []int{0, 1, 30, 59, 60} {
		for _, n := range []int{1, 3} {
			more := repeat(n, func(i int) Op { return kernel("attention", 0xabc000+uint64(i), 18) })
			a, b := trace(t, row(17)...), trace(t, slices.Insert(row(18), at, more...)...)
			for _, p := range []*Report{
				checkScript(t, a, b, DiffOptions{}).Report(-1),
				checkScript(t, b, a, DiffOptions{}).Report(-1),
			} {
				var got []uint64
				for _, d := range p.Details {
					switch d.Kind {
					case EditInsert:
						got = append(got, d.New.Args[0])
					case EditRemove:
						got = append(got, d.Old.Args[0])
					}
				}
				if len(got) != n || got[0] != 0xabc000 || got[n-1] != 0xabc000+uint64(n-1) || p.Changed != 60 {
					t.Errorf("%d at %d: %s", n, at, p.Text())
				}
			}
		}
	}
}

// TestDiffOverLimit: after 4,096 insertions and removals the rest is one block, and
// a common end is still one.
func TestDiffOverLimit(t *testing.T) {
	mk := func(name string, n int) []Op {
		return repeat(n, func(i int) Op { return kernel(fmt.Sprint(name, i), uint64(i)) })
	}
	common := layers(3)
	a := trace(t, slices.Concat(common, mk("old", 2500), common)...)
	b := trace(t, slices.Concat(common, mk("new", 2000), common)...)
	s := checkScript(t, a, b, DiffOptions{})
	if d := cmp.Diff(counts{2000, 2500, 0}, countsOf(s)); d != "" || !s.Limited() {
		t.Errorf("limited %v, %s", s.Limited(), d)
	}
	edits := s.Edits()
	last := edits[len(edits)-1]
	if last.Kind != EditReplace || last.Removed+len(last.Ops) != 4500-MaxEdits || last.Before+last.Removed != len(common)+2500 {
		t.Errorf("the last edit is %v of %d by %d", last.Kind, last.Removed, len(last.Ops))
	}
	// Exactly the limit is none.
	a, b = trace(t, mk("old", MaxEdits/2)...), trace(t, mk("new", MaxEdits/2)...)
	if s := checkScript(t, a, b, DiffOptions{}); s.Limited() || s.Inserted() != MaxEdits/2 {
		t.Errorf("limited %v with %+v", s.Limited(), countsOf(s))
	}
	b = trace(t, mk("new", MaxEdits/2+1)...)
	if s := checkScript(t, a, b, DiffOptions{}); !s.Limited() || s.Inserted() != MaxEdits/2+1 {
		t.Errorf("limited %v with %+v", s.Limited(), countsOf(s))
	}
}

// TestDiffLarge: a hundred differences in 100,000 operations, each found as what it
// is. BenchmarkDiff100k says how long it takes.
func TestDiffLarge(t *testing.T) {
	a, b := large(t)
	s := Diff(a, b, DiffOptions{})
	if d := cmp.Diff(counts{50, 25, 25}, countsOf(s)); d != "" {
		t.Errorf("(-want +got):\n%s%s", d, s.Report(20).Text())
	}
	got, err := Apply(a.Ops(), s.Edits())
	if err != nil {
		t.Fatal(err)
	}
	want := b.Ops()
	if !slices.EqualFunc(want, got, func(a, b Op) bool { return a.equal(&b) }) {
		t.Error("applied, something else comes out")
	}
}

func TestDiffBySite(t *testing.T) {
	kv := func(base uint64) []Range {
		return []Range{{base, 0x1000, "kv.go:12"}, {base + 0x10000, 0x100, "tmp.go:9"}, {0x500, 0x10, "fixed.go:1"}}
	}
	at := func(base uint64, ops ...Op) *Trace { return trace(t, ops...).WithRanges(kv(base)) }
	op := func(base, off uint64) Op { return kernel("attention", base+off, 3) }
	for _, c := range []struct {
		name          string
		a, b          *Trace
		plain, bySite counts
	}{
		{"the same buffer", at(0x10000, op(0x10000, 8)), at(0x10000, op(0x10000, 8)), counts{}, counts{}},
		{"allocated again", at(0x10000, op(0x10000, 8)), at(0x80000, op(0x80000, 8)), counts{0, 0, 1}, counts{}},
		{"at another place", at(0x10000, op(0x10000, 8)), at(0x80000, op(0x80000, 16)), counts{0, 0, 1}, counts{0, 0, 1}},
		{"of another site", at(0x10000, op(0x10000, 8)), at(0x80000, op(0x90000, 8)), counts{0, 0, 1}, counts{0, 0, 1}},
		{"its last byte", at(0x10000, op(0x10000, 0xfff)), at(0x80000, op(0x80000, 0xfff)), counts{0, 0, 1}, counts{}},
		{"behind its end", at(0x10000, op(0x10000, 0x1000)), at(0x80000, op(0x80000, 0x1000)), counts{0, 0, 1}, counts{0, 0, 1}},
		// What is the same number is no difference, whatever is there now.
		{"another site at the address", at(0x10000, op(0x20000, 8)), at(0x20000, op(0x20000, 8)), counts{}, counts{}},
	} {
		if d := cmp.Diff(c.plain, countsOf(checkScript(t, c.a, c.b, DiffOptions{}))); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
		if d := cmp.Diff(c.bySite, countsOf(checkScript(t, c.a, c.b, DiffOptions{BySite: true}))); d != "" {
			t.Errorf("%s, by site (-want +got):\n%s", c.name, d)
		}
	}
	// Also where the alignment needs to know what is equal.
	var a, b []Op
	for i := range uint64(20) {
		a, b = append(a, kernel("attention", 0x10000+i)), append(b, kernel("attention", 0x80000+i))
	}
	b = slices.Insert(b, 7, kernel("attention", 0x80800))
	s := checkScript(t, at(0x10000, a...), at(0x80000, b...), DiffOptions{BySite: true})
	if d := cmp.Diff(counts{1, 0, 0}, countsOf(s)); d != "" || s.Edits()[0].After != 7 {
		t.Errorf("inserted among those of a buffer allocated again: %s", s.Report(-1).Text())
	}
}

func TestRanges(t *testing.T) {
	tr := trace(t).WithRanges([]Range{
		{100, 10, "b"}, {50, 10, "a"}, {105, 10, "overlaps its end"}, {45, 6, "a before"}, {40, 30, "overlaps all"},
		{200, 0, "empty"}, {1<<64 - 8, 8, "last"}, {1<<64 - 4, 8, "wraps"}, {110, 5, "next to b"},
	})
	for _, c := range []struct {
		addr uint64
		want string
	}{
		{0, ""}, {39, ""}, {40, "overlaps all+0x0"}, {69, "overlaps all+0x1d"}, {70, ""}, {99, ""}, {100, "b+0x0"}, {109, "b+0x9"}, {110, "next to b+0x0"},
		{115, ""}, {200, ""}, {1<<64 - 9, ""}, {1<<64 - 8, "last+0x0"}, {1<<64 - 1, "last+0x7"},
	} {
		if got := tr.site(c.addr); got != c.want {
			t.Errorf("%#x is at %q, want %q", c.addr, got, c.want)
		}
	}
}

func TestApplyRefuses(t *testing.T) {
	ops := layers(1)
	for _, edits := range [][]Edit{
		{{Before: -1}}, {{Before: 6, After: 6}}, {{Before: 4, Removed: 2, After: 4}}, {{Removed: -1}},
		{{Before: 2, Removed: 1, After: 2}, {Before: 2, Removed: 1, After: 2}}, {{Before: 2, Removed: 1, After: 1}},
		{{Before: 2, Removed: 1 << 62, After: 2}},
	} {
		if got, err := Apply(ops, edits); err == nil {
			t.Errorf("%+v give %v", edits, got)
		}
	}
}

func TestNewTraceRefuses(t *testing.T) {
	for _, o := range []Op{
		{}, {Kind: 4}, {Kind: 255}, {Kind: KindKernel, ArgsUnknown: true, Args: []uint64{1}}, {Kind: KindKernel, Args: make([]uint64, MaxArgs+1)},
	} {
		if _, err := NewTrace("r", 0, []Op{o}); err == nil {
			t.Errorf("%v with %d arguments is taken", o.Kind, len(o.Args))
		}
	}
	most := Op{Kind: KindKernel, Args: make([]uint64, MaxArgs)}
	for i := range most.Args {
		most.Args[i] = uint64(i)
	}
	tr := trace(t, most, kernel("a"), most)
	if d := cmp.Diff([]Op{most, kernel("a"), most}, tr.Ops()); d != "" {
		t.Error(d)
	}
}

// equal reports whether o and x are the same operation but for their handles,
// should they be named.
func (o *Op) equal(x *Op) bool {
	return o.Kind == x.Kind && o.Name == x.Name && (o.Name != "" || o.Func == x.Func) &&
		o.Grid == x.Grid && o.Block == x.Block && o.SharedBytes == x.SharedBytes &&
		o.ArgsUnknown == x.ArgsUnknown && slices.Equal(o.Args, x.Args)
}
