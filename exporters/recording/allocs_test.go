package recording

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// clocked is a live ring whose time a test sets.
type clocked struct {
	collector.Source
	collector.AllocSource
	nowNS int64
	scans int
}

func (c *clocked) NowMonoNS() int64 { return c.nowNS }

func (c *clocked) Allocs(dst []spanring.Alloc) ([]spanring.Alloc, spanring.AllocScan, error) {
	c.scans++
	return c.AllocSource.Allocs(dst)
}

// rig is a ledger that writes to a ring that is being recorded.
type rig struct {
	t    *testing.T
	w    *spanring.Writer
	l    *ledger.Ledger
	src  *clocked
	file bytes.Buffer
	rec  *Writer
	run  *Run
}

func newRig(t *testing.T, publish bool) *rig {
	t.Helper()
	g := &rig{t: t}
	var err error
	if g.w, err = spanring.NewHeap(spanring.Options{Geometry: spanring.Geometry{LogEntries: 1 << 16, Slots: 1, NameBytes: 1 << 16, Allocs: 1 << 17}}); err != nil {
		t.Fatal(err)
	}
	r, err := spanring.NewHeapReader(g.w, spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	src := collector.NewRingSource(r)
	g.src = &clocked{Source: src, AllocSource: src.(collector.AllocSource), nowNS: 1e12}
	if g.l, err = ledger.New(ledger.Options{}); err != nil {
		t.Fatal(err)
	}
	g.l.Attach(g.w, 0, publish)
	return g
}

func (g *rig) begin() {
	g.t.Helper()
	var err error
	if g.rec, err = NewWriter(&g.file, Options{}); err != nil {
		g.t.Fatal(err)
	}
	if g.run, err = g.rec.Begin(g.src); err != nil {
		g.t.Fatal(err)
	}
}

// pass records what the ring has got, and lets time pass.
func (g *rig) pass(d time.Duration) {
	g.t.Helper()
	buf := make([]spanring.Entry, 1024)
	for {
		n, _, err := g.src.Poll(buf)
		if err != nil {
			g.t.Fatal(err)
		}
		if n == 0 {
			break
		}
		if err := g.run.Append(buf[:n]); err != nil {
			g.t.Fatal(err)
		}
	}
	g.src.nowNS += int64(d)
	if err := g.run.Append(nil); err != nil {
		g.t.Fatal(err)
	}
}

func (g *rig) end() *File {
	g.t.Helper()
	if err := g.rec.Close(); err != nil {
		g.t.Fatal(err)
	}
	f, err := NewReader(bytes.NewReader(g.file.Bytes()), int64(g.file.Len()), "test")
	if err != nil {
		g.t.Fatal(err)
	}
	if f.Damage() != nil {
		g.t.Fatal(f.Damage())
	}
	return f
}

func alloc(l *ledger.Ledger, addr uint64, bytes int64) {
	p := l.Begin(spanring.AllocDevice, bytes)
	p.Done(addr)
}

func free(l *ledger.Ledger, addr uint64) {
	t := l.Take(addr)
	t.Done(nil)
}

// count is how many allocation blocks the file holds.
func (g *rig) count() int {
	f := &File{path: "test", r: bytes.NewReader(g.file.Bytes()), size: int64(g.file.Len())}
	n := 0
	for b := (blocks{f: f, offset: fileHeaderSize}); b.offset < f.size; {
		h, err := b.header()
		if err != nil {
			g.t.Fatal(err)
		}
		if h.typ == blockAllocs {
			n++
			if h.flags&flagOptional == 0 {
				g.t.Error("readers of an earlier release refuse the file")
			}
		}
		b.skip(&h)
	}
	return n
}

// TestAllocsRecorded: the table at the beginning, after changes, and at the end;
// the entries in between; and the names of the sites.
func TestAllocsRecorded(t *testing.T) {
	g := newRig(t, true)
	alloc(g.l, 1<<30, 1000)
	alloc(g.l, 2<<30, 3<<20)
	g.begin()
	for range 10 {
		g.pass(2 * time.Second)
	}
	if n := g.count(); n != 1 {
		t.Errorf("%d tables of a ledger that rests", n)
	}
	if g.src.scans > 4 {
		t.Errorf("%d scans in 20 s", g.src.scans)
	}
	for i := range uint64(100) { // one a second
		alloc(g.l, 1<<40+i<<20, 77)
		g.pass(time.Second)
	}
	if n := g.count(); n < 8 || n > 12 {
		t.Errorf("%d tables in 100 s of change", n)
	}
	free(g.l, 1<<30)
	g.pass(0)
	f := g.end()
	want, scan, err := g.src.AllocSource.Allocs(nil)
	if err != nil {
		t.Fatal(err)
	}

	src, err := f.Source(0)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	if as, s, err := src.Allocs(nil); err != nil || len(as) != 0 || s.State != spanring.AllocsNotTracked {
		t.Errorf("before anything is played: %+v, %+v, %v", as, s, err)
	}
	var states []int
	src.OnState(func(s State) {
		if len(states) == 0 || states[len(states)-1] != len(s.Allocs) {
			states = append(states, len(s.Allocs))
		}
		if uint64(len(s.Allocs)) != s.AllocScan.Totals.LiveCount || s.AllocScan.Approximate || s.AllocsMonoNS > s.MonoNS {
			t.Errorf("%d allocations, %+v at %d of %d", len(s.Allocs), s.AllocScan, s.AllocsMonoNS, s.MonoNS)
		}
	})
	kinds := map[spanring.Kind]int{}
	buf := make([]spanring.Entry, 16)
	for {
		n, done, err := src.Poll(buf)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range buf[:n] {
			ev, err := e.Words.MemEvent()
			if err != nil {
				t.Fatal(err)
			}
			kinds[ev.Kind]++
			if nm, ok := src.Name(ev.Alloc.Site); !ok || !strings.Contains(nm.Text, "allocs_test.go:") {
				t.Errorf("site %+v, %v", nm, ok)
			}
		}
		if done {
			break
		}
	}
	if kinds[spanring.KindAlloc] != 102 || kinds[spanring.KindFree] != 1 {
		t.Errorf("%v", kinds)
	}
	if len(states) < 10 || states[0] != 0 || states[1] != 2 || states[len(states)-1] != 101 || !slices.IsSorted(states[:len(states)-1]) {
		t.Errorf("tables of %v allocations", states)
	}
	got, s, err := src.Allocs(nil)
	if err != nil || s != scan {
		t.Errorf("%+v, want %+v, %v", s, scan, err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	// The report is that of the ring.
	live, recorded := ledger.FromRing(want, scan, g.src.Name), ledger.FromRing(got, s, src.Name)
	if d := cmp.Diff(live.Report(10, 0), recorded.Report(10, 0)); d != "" || live.Totals.LiveBytes != 3<<20+7700 {
		t.Errorf("%+v\n%s", live, d)
	}
}

// TestNoAllocsRecorded: of a ring without a ledger nothing is written, and it is
// not tracked when it is read.
func TestNoAllocsRecorded(t *testing.T) {
	g := newRig(t, true)
	w, err := spanring.NewHeap(spanring.Options{Geometry: spanring.Geometry{LogEntries: 64, Slots: 1, NameBytes: 4096, Allocs: 1}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := spanring.NewHeapReader(w, spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	src := collector.NewRingSource(r)
	g.src = &clocked{Source: src, AllocSource: src.(collector.AllocSource), nowNS: 1}
	g.begin()
	g.pass(time.Minute)
	f := g.end()
	if n := g.count(); n != 0 {
		t.Errorf("%d tables", n)
	}
	s, err := f.Source(0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := play(t, s, 10, nil); err != nil {
		t.Fatal(err)
	}
	if as, scan, err := s.Allocs(nil); err != nil || scan.State != spanring.AllocsNotTracked || as != nil {
		t.Errorf("%+v, %+v, %v", as, scan, err)
	}
}

// TestAllocsAtOff: a fall to off while it is recorded, and a rise.
func TestAllocsAtOff(t *testing.T) {
	g := newRig(t, false)
	g.begin()
	g.pass(20 * time.Second)
	g.l.SetPublishing(true)
	alloc(g.l, 4096, 10)
	g.pass(20 * time.Second)
	g.l.SetPublishing(false)
	g.pass(20 * time.Second)
	f := g.end()
	src, err := f.Source(0)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	var got []spanring.AllocState
	src.OnState(func(s State) {
		if len(got) == 0 || got[len(got)-1] != s.AllocScan.State {
			got = append(got, s.AllocScan.State)
		}
	})
	if _, err := play(t, src, 10, nil); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]spanring.AllocState{spanring.AllocsNotTracked, spanring.AllocsStale, spanring.AllocsPublished, spanring.AllocsStale}, got); d != "" {
		t.Error(d)
	}
}

// TestLargeTable: a table that one block does not hold comes back whole, or not at
// all when its last part is missing.
func TestLargeTable(t *testing.T) {
	const n = 2*partAllocs + 100
	g := newRig(t, true)
	for i := range uint64(n) {
		alloc(g.l, (i+1)<<21, int64(i+1))
	}
	g.begin()
	if c := g.count(); c != 3 {
		t.Errorf("%d blocks", c)
	}
	f := g.end()
	src, err := f.Source(0)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	if _, err := play(t, src, 10000, nil); err != nil {
		t.Fatal(err)
	}
	as, s, _ := src.Allocs(nil)
	if len(as) != n || s.Totals.LiveCount != n || as[n-1].Bytes != n || as[0].Addr != 1<<21 {
		t.Errorf("%d allocations, %+v", len(as), s)
	}
	if mib := float64(g.file.Len()) / (1 << 20); mib > 2 {
		t.Errorf("%.1f MiB for %d allocations", mib, n)
	}
}

// TestAllocTableRoundTrip: any table that can be comes back as it was.
func TestAllocTableRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var in allocTable
		in.monoNS = rapid.Int64Min(0).Draw(t, "time")
		in.scan.State = spanring.AllocState(rapid.IntRange(0, 2).Draw(t, "state"))
		in.scan.Approximate = rapid.Bool().Draw(t, "approximate")
		in.scan.Totals = spanring.MemoryTotals{LiveBytes: rapid.Uint64().Draw(t, "live"), Violations: rapid.Uint64().Draw(t, "violations")}
		for range rapid.IntRange(0, 20).Draw(t, "allocations") {
			in.list = append(in.list, spanring.Alloc{
				Addr: rapid.Uint64Range(1, 1<<63).Draw(t, "address"), Bytes: rapid.Uint64Range(1, spanring.MaxAllocBytes).Draw(t, "bytes"),
				GuardBytes: rapid.Uint32().Draw(t, "guard"), Site: spanring.NameID(rapid.Uint32().Draw(t, "site")), Index: rapid.Uint64().Draw(t, "index"),
				MonoNS: rapid.Int64Min(0).Draw(t, "made"), Kind: spanring.AllocKind(rapid.IntRange(1, 2).Draw(t, "kind")), Context: uint8(rapid.IntRange(0, 15).Draw(t, "context")),
			})
		}
		var out allocTable
		b := in.append(nil, in.list, false)
		more, ok := out.parse(b)
		if d := cmp.Diff(in, out, cmp.AllowUnexported(allocTable{})); !ok || more || d != "" {
			t.Fatalf("%v, %v, %s", ok, more, d)
		}
		// Cut short, it is no table.
		var cut allocTable
		if _, ok := cut.parse(b[:rapid.IntRange(0, len(b)-1).Draw(t, "cut")]); ok {
			t.Fatal("a cut table is one")
		}
	})
}

// FuzzAllocs takes anything for a table of allocations.
func FuzzAllocs(f *testing.F) {
	t := allocTable{monoNS: 1e12, scan: spanring.AllocScan{State: 1, Totals: spanring.MemoryTotals{LiveBytes: 9, ChunkBytes: 2 << 20}}}
	t.list = []spanring.Alloc{{Addr: 4096, Bytes: 5, Site: 1, Kind: 1}, {Addr: 8192, Bytes: 4, GuardBytes: 16, Site: 2, Index: 1, MonoNS: 5, Kind: 2, Context: 15}}
	f.Add(t.append(nil, t.list, true))
	f.Add(t.append(nil, nil, false))
	f.Fuzz(func(t *testing.T, b []byte) {
		var in allocTable
		more, ok := in.parse(b)
		if !ok {
			return
		}
		for i := range in.list {
			if err := in.list[i].Check(); err != nil {
				t.Fatal(err)
			}
		}
		var again allocTable
		if _, ok := again.parse(in.append(nil, in.list, more)); !ok {
			t.Fatalf("%+v does not come back", in)
		}
		if d := cmp.Diff(in.list, again.list); d != "" || in.scan != again.scan || in.monoNS != again.monoNS {
			t.Fatalf("%+v, then %+v\n%s", in, again, d)
		}
	})
}
