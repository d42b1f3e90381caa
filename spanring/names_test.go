package spanring

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestNames(t *testing.T) {
	w := newHeap(t, Geometry{LogEntries: 64, Slots: 1, NameBytes: 1 << 16, Allocs: 1})
	r := heapReader(t, w, ReaderOptions{})
	long := strings.Repeat("template<", 200)
	ids := map[NameID]string{}
	for _, c := range []struct {
		what string
		id   NameID
		want Name
	}{
		{"kernel", w.Name(NameKernel, "gemm"), Name{Kind: NameKernel, Text: "gemm"}},
		{"same text, other kind", w.Name(NameLane, "gemm"), Name{Kind: NameLane, Text: "gemm"}},
		{"empty", w.Name(NameOther, ""), Name{Kind: NameOther}},
		{"eight bytes", w.Name(NameSite, "a.go:123"), Name{Kind: NameSite, Text: "a.go:123"}},
		{"nine bytes", w.Name(NameSite, "a.go:1234"), Name{Kind: NameSite, Text: "a.go:1234"}},
		{"graph", w.GraphName(7, 200, "decode"), Name{Kind: NameGraph, Text: "decode", GraphID: 7, GraphNodes: 200}},
		{"other graph of that label", w.GraphName(8, 200, "decode"), Name{Kind: NameGraph, Text: "decode", GraphID: 8, GraphNodes: 200}},
		{"graph of most", w.GraphName(1<<64-1, 1<<32-1, ""), Name{Kind: NameGraph, GraphID: 1<<64 - 1, GraphNodes: 1<<32 - 1}},
		{"graph by Name", w.Name(NameGraph, "label"), Name{Kind: NameGraph, Text: "label"}},
		{"as long as may be", w.Name(NameKernel, long[:1024]), Name{Kind: NameKernel, Text: long[:1024]}},
		{"too long", w.Name(NameKernel, long), Name{Kind: NameKernel, Text: long[:1005] + "…d55b1c7b4a40ac25"}},
		{"long graph", w.GraphName(1, 2, long), Name{Kind: NameGraph, Text: long[:1005] + "…d55b1c7b4a40ac25", GraphID: 1, GraphNodes: 2}},
		{"not UTF-8", w.Name(NameKernel, "a\xff\xfeb\x80"), Name{Kind: NameKernel, Text: "a\uFFFDb\uFFFD"}},
		{"NUL and control", w.Name(NameKernel, "a\x00\x1b[31m"), Name{Kind: NameKernel, Text: "a\x00\x1b[31m"}},
	} {
		if old, ok := ids[c.id]; ok || c.id == 0 {
			t.Errorf("%s: id %d, as %q", c.what, c.id, old)
		}
		ids[c.id] = c.what
		got, ok := r.Name(c.id)
		if d := cmp.Diff(c.want, got); d != "" || !ok {
			t.Errorf("%s: %v\n%s", c.what, ok, d)
		}
	}
	if a, b := w.Name(NameKernel, "gemm"), w.GraphName(7, 200, "decode"); ids[a] != "kernel" || ids[b] != "graph" {
		t.Errorf("interned again: %q, %q", ids[a], ids[b])
	}
	if a := w.Name(NameKernel, strings.Clone(long)); ids[a] != "too long" {
		t.Errorf("too long, again: %q", ids[a])
	}
	if n := w.Counter(CtrNamesFull); n != 0 {
		t.Errorf("%d names did not fit", n)
	}
}

func TestCutName(t *testing.T) {
	for _, c := range []struct {
		what, in string
		runes    bool
	}{
		{"one byte too long", strings.Repeat("a", MaxNameBytes+1), true},
		{"two-byte runes", strings.Repeat("é", 600), true},
		{"three-byte runes", strings.Repeat("…", 400), true},
		{"four-byte runes", strings.Repeat("𝕏", 300), true},
		{"shifted by one", "a" + strings.Repeat("𝕏", 300), true},
		{"shifted by two", "aa" + strings.Repeat("𝕏", 300), true},
		{"shifted by three", "aaa" + strings.Repeat("𝕏", 300), true},
		{"continuation bytes only", strings.Repeat("\x80", 2000), false},
	} {
		got := cutName(c.in)
		head, tail, ok := strings.Cut(got, "…"+got[len(got)-16:])
		if !ok || tail != "" || !strings.HasPrefix(c.in, head) {
			t.Errorf("%s: %q", c.what, got)
		}
		if len(got) > MaxNameBytes || len(got) <= MaxNameBytes-utf8.UTFMax {
			t.Errorf("%s: %d bytes", c.what, len(got))
		}
		if c.runes && !utf8.ValidString(got) {
			t.Errorf("%s: a rune is cut: %q", c.what, got)
		}
	}
	if a, b := cutName(strings.Repeat("a", 2000)), cutName(strings.Repeat("a", 2001)); a == b {
		t.Error("two texts are cut to one")
	}
}

func TestClip(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"", 0, ""}, {"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"abc", 0, ""}, {"é", 1, ""}, {"aé", 2, "a"}, {"aé", 3, "aé"},
		{"𝕏", 3, ""}, {"a𝕏", 4, "a"}, {"\x80\x80\x80\x80\x80\x80", 5, "\x80\x80\x80\x80\x80"},
	} {
		if got := string(clip(c.in, c.n)); got != c.want {
			t.Errorf("%q to %d bytes: %q, want %q", c.in, c.n, got, c.want)
		}
	}
}

func TestNamesFull(t *testing.T) {
	w := newHeap(t, smallGeometry)
	r := heapReader(t, w, ReaderOptions{})
	// 4,096 bytes hold 128 records of 8 + 24 bytes.
	text := func(i int) string { return fmt.Sprintf("kernel %017d", i) }
	for i := range 128 {
		if id := w.Name(NameKernel, text(i)); id != NameID(2*i+1) {
			t.Fatalf("name %d has id %d", i, id)
		}
	}
	for i := range 3 {
		if id := w.Name(NameKernel, text(128+i)); id != 0 {
			t.Errorf("a name that does not fit has id %d", id)
		}
	}
	if id := w.Name(NameOther, ""); id != 0 {
		t.Errorf("the least name has id %d", id)
	}
	if n := w.Counter(CtrNamesFull); n != 4 {
		t.Errorf("%d names counted as not fitting", n)
	}
	for i := range 128 {
		if n, ok := r.Name(NameID(2*i + 1)); !ok || n.Text != text(i) {
			t.Errorf("name %d: %+v, %v", i, n, ok)
		}
		if id := w.Name(NameKernel, text(i)); id != NameID(2*i+1) {
			t.Errorf("name %d of the full table has id %d", i, id)
		}
	}
	if n, ok := r.Name(257); ok {
		t.Errorf("behind the table: %+v", n)
	}
}

func TestNamesConcurrent(t *testing.T) {
	w := newHeap(t, DefaultGeometry)
	r := heapReader(t, w, ReaderOptions{})
	const writers, names = 8, 300
	var ids [writers][names]NameID
	var wg sync.WaitGroup
	for g := range writers {
		wg.Go(func() {
			for i := range names {
				n := (i*7 + g*31) % names
				id := w.Name(NameKernel, fmt.Sprintf("kernel %d", n))
				ids[g][n] = id
				// It can be read as soon as its id is known.
				if got, ok := r.Name(id); !ok || got.Text != fmt.Sprintf("kernel %d", n) {
					t.Errorf("name %d: %+v, %v", n, got, ok)
				}
			}
		})
	}
	wg.Wait()
	for g := range writers {
		if ids[g] != ids[0] {
			t.Error("the same text has several ids")
		}
	}
	// Records of 8 + 8 or 8 + 9 to 10 bytes: each text is there once.
	if used := w.m.load(offNamesUsed); used != 10*16+290*32 {
		t.Errorf("%d bytes used", used)
	}
}

// TestNamesTwoAtOnce: of two goroutines that intern the same new text, one finds
// what the other has done once it has the lock.
func TestNamesTwoAtOnce(t *testing.T) {
	w := newHeap(t, smallGeometry)
	w.names.mu.Lock()
	var ids [2]NameID
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() { ids[i] = w.Name(NameKernel, "gemm") })
	}
	stacks := make([]byte, 1<<20)
	eventually(t, "both wait for the lock", func() bool {
		s := string(stacks[:runtime.Stack(stacks, true)])
		return strings.Count(s, "spanring.(*Writer).intern(") == 2 && strings.Count(s, "[sync.Mutex.Lock") == 2
	})
	w.names.mu.Unlock()
	wg.Wait()
	if used := w.m.load(offNamesUsed); ids[0] != ids[1] || used != 16 {
		t.Errorf("ids %v, %d bytes used", ids, used)
	}
}

// TestHostileNames changes what is in the table under the reader.
func TestHostileNames(t *testing.T) {
	w := newHeap(t, smallGeometry)
	r := heapReader(t, w, ReaderOptions{})
	at := w.geo.nameOff()
	id := w.Name(NameKernel, "0123456789abcdef")
	graph := w.GraphName(1, 2, "x")
	good := w.m.load(at)
	restore := func() {
		w.m.store(at, good)
		w.m.storeBytes(at+8, 16, []byte("0123456789abcdef"))
		w.m.store(offNamesUsed, 64)
	}
	zeros := func(n int) uint64 { return uint64(n) | nameMark<<24 | uint64(hash32(make([]byte, n)))<<32 }
	if w.m.load(offNamesUsed) != 64 {
		t.Fatalf("%d bytes used", w.m.load(offNamesUsed))
	}
	for _, c := range []struct {
		what string
		id   NameID
		do   func()
	}{
		{"no name", 0, func() {}},
		{"inside a record", 2, func() {}},
		{"not there yet", 5, func() {}},
		{"far away", 1<<32 - 1, func() {}},
		{"no mark", id, func() { w.m.store(at, good&^(0xff<<24)) }},
		{"longer than the text", id, func() { w.m.store(at, good+1) }},
		{"longer than any", id, func() { w.m.store(at, good|0xffff) }},
		{"longer than the table", id, func() { w.m.store(at, good&^0xffff|1040); w.m.store(offNamesUsed, 1<<20) }},
		{"other text", id, func() { w.m.store(at+8, 1) }},
		{"no names at all", id, func() { w.m.store(offNamesUsed, 0) }},
		{"half a record used", id, func() { w.m.store(offNamesUsed, 16) }},
		{"a good record that is too long", 65, func() { w.m.store(at+1024, zeros(1041)); w.m.store(offNamesUsed, 4096) }},
		{"short graph", id, func() { w.m.store(at, good&^(0xffff)&^(0xff<<16)|4|uint64(NameGraph)<<16) }},
	} {
		restore()
		c.do()
		if n, ok := r.Name(c.id); ok {
			t.Errorf("%s: %+v", c.what, n)
		}
	}
	w.m.store(at+1024, zeros(1040))
	w.m.store(offNamesUsed, 4096)
	if n, ok := r.Name(65); !ok || len(n.Text) != 1040 {
		t.Errorf("as long as may be: %v", ok)
	}
	restore()
	w.m.store(offNamesUsed, 1<<63|1<<50) // whatever it says, no more than the table
	if n, ok := r.Name(id); ok {
		t.Errorf("no bytes used, says the low part: %+v", n)
	}
	w.m.store(offNamesUsed, 1<<39)
	if n, ok := r.Name(id); !ok || n.Text != "0123456789abcdef" {
		t.Errorf("%+v, %v", n, ok)
	}
	if n, ok := r.Name(graph); !ok || n.GraphNodes != 2 {
		t.Errorf("%+v, %v", n, ok)
	}
	// The last records of the table, whose length would reach behind it.
	w.m.store(offNamesUsed, 4096)
	for i := NameID(200); i <= 256; i++ {
		w.m.store(at+int64(i-1)*16, 1040|uint64(nameMark)<<24)
		r.Name(i)
	}
}
