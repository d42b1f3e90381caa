package launchtrace

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/lanetrace/lanetrace/spanring"
)

func newRing(t testing.TB) (*spanring.Writer, *spanring.Reader) {
	t.Helper()
	w, err := spanring.NewHeap(spanring.Options{Geometry: spanring.Geometry{LogEntries: 1024, Slots: 8, NameBytes: 8192, Allocs: 8}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := spanring.NewHeapReader(w, spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return w, r
}

// diffs are the entries that came since the last time.
func diffs(t testing.TB, r *spanring.Reader) (out []spanring.LaunchDiff) {
	t.Helper()
	buf := make([]spanring.Entry, 100)
	n, err := r.Poll(buf, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range buf[:n] {
		d, err := buf[i].Words.LaunchDiff()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, d)
	}
	return out
}

const (
	fnNorm = 0x55d0001000
	fnGemm = 0x55d0002000
)

// enqueue is a step's work on a stream.
func enqueue(r *Recorder, stream uint64, length uint64) {
	r.Memset(stream, 0x9000, 0xff, 4096)
	r.Kernel(stream, fnNorm, [3]uint32{1, 2, 3}, [3]uint32{4, 5, 6}, 7, []uint64{0x9000, length})
	r.KernelArgsUnknown(stream, fnGemm, [3]uint32{8, 1, 1}, [3]uint32{9, 1, 1}, 0)
	r.Copy(stream, 0xa000, 0x9000, 256)
}

func enqueued(norm, gemm string, length uint64) []Op {
	return []Op{
		{Kind: KindMemset, Args: []uint64{0x9000, 0xff, 4096}},
		{Kind: KindKernel, Func: fnNorm, Name: norm, Grid: [3]uint32{1, 2, 3}, Block: [3]uint32{4, 5, 6}, SharedBytes: 7, Args: []uint64{0x9000, length}},
		{Kind: KindKernel, Func: fnGemm, Name: gemm, Grid: [3]uint32{8, 1, 1}, Block: [3]uint32{9, 1, 1}, ArgsUnknown: true},
		{Kind: KindCopy, Args: []uint64{0xa000, 0x9000, 256}},
	}
}

func TestRecorder(t *testing.T) {
	ring, reader := newRing(t)
	r := New(Options{Ring: ring})
	r.Name(fnNorm, "model.norm")
	g := r.Region("decode")
	if g.Name() != "decode" || r.Region("decode") != g {
		t.Errorf("region %q", g.Name())
	}

	// Nothing is recorded before it is begun.
	if r.On() {
		t.Error("on")
	}
	enqueue(r, 1, 10)
	if g.End(1, 9) != nil || ring.Counter(spanring.CtrMisuse) != 1 {
		t.Error("an end without a begin is something")
	}

	g.Begin()
	if !r.On() {
		t.Error("not on")
	}
	enqueue(r, 1, 10)
	p := g.End(7, 9)
	if r.On() {
		t.Error("still on")
	}
	if d := cmp.Diff(&Report{Region: "decode", Step: 7, First: true, After: 4}, p); d != "" {
		t.Error(d)
	}
	if want := "region decode, step 7: 4 operations, the first execution, nothing to compare with\n"; p.Text() != want {
		t.Errorf("%q", p.Text())
	}
	before, after := g.Executions()
	if before != nil {
		t.Error("there is one before the first")
	}
	sameOps(t, enqueued("model.norm", "", 10), after.Ops())
	enqueue(r, 1, 10) // between two executions

	g.Begin()
	enqueue(r, 1, 10)
	p = g.End(8, 9)
	if p.Differing() != 0 || p.First || p.BeforeStep != 7 {
		t.Errorf("%+v", p)
	}

	g.Begin()
	enqueue(r, 1, 11)
	r.Copy(1, 1, 2, 3)
	p = g.End(9, 9)
	want := "region decode, step 9 against step 8: 4 operations before, 5 after: 1 inserted, 0 removed, 1 changed\n" +
		"  changed #1 kernel model.norm: arg1 0xa -> 0xb (+1)\n" +
		"  inserted #4 copy: arg0 0x1; arg1 0x2; arg2 0x3\n"
	if p.Text() != want {
		t.Errorf("got\n%swant\n%s", p.Text(), want)
	}
	before, after = g.Executions()
	sameOps(t, enqueued("model.norm", "", 10), before.Ops())
	sameOps(t, append(enqueued("model.norm", "", 11), Op{Kind: KindCopy, Args: []uint64{1, 2, 3}}), after.Ops())
	if before.Step() != 8 || after.Step() != 9 || after.Region() != "decode" {
		t.Errorf("steps %d and %d of %s", before.Step(), after.Step(), after.Region())
	}
	if d := Diff(before, after, DiffOptions{}).Report(9); d.Text() != want {
		t.Errorf("of the copies:\n%s", d.Text())
	}

	// From the next begin on the one before is gone; copies stay.
	g.Begin()
	if b, a := g.Executions(); b != nil || a == nil {
		t.Error("the execution before is still there")
	}
	enqueue(r, 1, 999)
	g.Cancel()
	sameOps(t, enqueued("model.norm", "", 10), before.Ops())
	if r.On() || g.End(10, 0) != nil {
		t.Error("on after a cancel")
	}

	got := diffs(t, reader)
	id := ring.Name(spanring.NameOther, "decode")
	wantDiffs := []spanring.LaunchDiff{
		{Region: id, Step: 7, First: true, After: 4},
		{Region: id, Step: 8, Before: 4, After: 4},
		{Region: id, Step: 9, Before: 4, After: 5, Inserted: 1, Changed: 1},
	}
	if d := cmp.Diff(wantDiffs, got, cmpopts.IgnoreFields(spanring.LaunchDiff{}, "MonoNS")); d != "" {
		t.Errorf("entries (-want +got):\n%s", d)
	}
	for i, d := range got {
		if d.MonoNS <= 0 || i > 0 && d.MonoNS < got[i-1].MonoNS {
			t.Errorf("entry %d at %d ns", i, d.MonoNS)
		}
	}
	for c, want := range map[spanring.Counter]uint64{
		spanring.CtrLaunchExecutions: 3, spanring.CtrLaunchDiffs: 1, spanring.CtrLaunchDiffOps: 2, spanring.CtrLaunchOpsDropped: 0, spanring.CtrMisuse: 2,
	} {
		if n := ring.Counter(c); n != want {
			t.Errorf("%v is %d, want %d", c, n, want)
		}
	}
}

// TestPublish: what the ring is not told of is compared all the same.
func TestPublish(t *testing.T) {
	ring, reader := newRing(t)
	tell := false
	r := New(Options{Ring: ring, Publish: func() bool { return tell }})
	g := r.Region("decode")
	for step := range uint64(4) {
		tell = step == 2
		g.Begin()
		enqueue(r, 1, step)
		if p := g.End(step, 0); p.First != (step == 0) || step > 0 && p.Changed != 1 {
			t.Error(p.Text())
		}
	}
	if got := diffs(t, reader); len(got) != 1 || got[0].Step != 2 || ring.Counter(spanring.CtrLaunchExecutions) != 1 {
		t.Errorf("%+v", got)
	}
}

// TestRegions: an operation belongs to every open region that covers its stream,
// and each region to its own executions.
func TestRegions(t *testing.T) {
	r := New(Options{})
	all, one, two := r.Region("all"), r.Region("one"), r.Region("two")
	launch := func(stream uint64) { r.Copy(stream, stream, 0, 0) }
	streams := func(g *Region) (s []uint64) {
		_, t := g.Executions()
		for _, o := range t.Ops() {
			s = append(s, o.Args[0])
		}
		return s
	}
	all.Begin()
	launch(1)
	one.Begin(1)
	launch(1)
	launch(2)
	two.Begin(2, 3)
	for s := range uint64(5) {
		launch(s)
	}
	one.End(0, 0)
	launch(1)
	launch(3)
	two.End(0, 0)
	launch(3)
	all.End(0, 0)
	launch(1)
	for _, c := range []struct {
		g    *Region
		want []uint64
	}{{all, []uint64{1, 1, 2, 0, 1, 2, 3, 4, 1, 3, 3}}, {one, []uint64{1, 1}}, {two, []uint64{2, 3, 3}}} {
		if got := streams(c.g); !slices.Equal(got, c.want) {
			t.Errorf("%s has %v, want %v", c.g.Name(), got, c.want)
		}
	}

	// Begun again, a region starts afresh, and on other streams.
	one.Begin(1)
	launch(1)
	one.Begin(2)
	launch(1)
	launch(2)
	if p := one.End(0, -1); p.Before != 2 || p.After != 1 {
		t.Error(p.Text())
	}
	if got := streams(one); !slices.Equal(got, []uint64{2}) {
		t.Errorf("begun again it has %v", got)
	}
	one.Begin(1)
	one.Begin()
	launch(9)
	one.Forget()
	if _, a := one.Executions(); a != nil || r.On() {
		t.Error("something is left after Forget")
	}
	one.Begin()
	if p := one.End(0, 0); !p.First {
		t.Error("not the first after Forget")
	}
}

func TestRegionLimits(t *testing.T) {
	ring, _ := newRing(t)
	r := New(Options{Ring: ring, MaxRegions: 2})
	if r.Region("") != nil || r.Region("a") == nil || r.Region("b") == nil || r.Region("c") != nil || r.Region("a") == nil {
		t.Error("regions are not limited")
	}
	if n := ring.Counter(spanring.CtrMisuse); n != 2 {
		t.Errorf("misuse %d", n)
	}
	long := strings.Repeat("x", 5000)
	if g := New(Options{}).Region(long); len(g.Name()) > maxNameBytes {
		t.Errorf("a name of %d bytes", len(g.Name()))
	}
}

// TestNil: what is not there does nothing.
func TestNil(t *testing.T) {
	var r *Recorder
	enqueue(r, 1, 1)
	r.Name(1, "a")
	g := r.Region("a")
	g.Begin(1)
	g.Cancel()
	g.Forget()
	b, a := g.Executions()
	if r.On() || g != nil || g.End(1, 1) != nil || b != nil || a != nil || g.Name() != "" || r.Dropped() != 0 || r.MemoryBytes() != 0 {
		t.Error("a nil recorder does something")
	}
	var tr *Trace
	if tr.Ops() != nil {
		t.Error("no trace has operations")
	}
}

// TestNames: operations keep the name that their handle had; after a reload, under
// other handles, they are the same.
func TestNames(t *testing.T) {
	r := New(Options{})
	g := r.Region("r")
	exec := func(fns ...uint64) *Report {
		g.Begin()
		for _, f := range fns {
			r.Kernel(0, f, [3]uint32{}, [3]uint32{}, 0, nil)
		}
		return g.End(0, -1)
	}
	names := func() (s []string) {
		_, t := g.Executions()
		for _, o := range t.All() {
			s = append(s, o.FuncName())
		}
		return s
	}
	r.Name(0x10, "norm")
	r.Name(0x20, "gemm")
	exec(0x10, 0x20, 0x30)
	// The module is loaded again: one handle is new, one is another's.
	r.Name(0x20, "norm")
	r.Name(0x40, "gemm")
	if p := exec(0x20, 0x40, 0x30); p.Differing() != 0 {
		t.Error(p.Text())
	}
	if got := names(); !slices.Equal(got, []string{"norm", "gemm", "fn@0x30"}) {
		t.Errorf("%q", got)
	}
	if before, _ := g.Executions(); before.Ops()[1].FuncName() != "gemm" {
		t.Error("what was recorded lost its name")
	}
	r.Name(0x40, "")
	p := exec(0x20, 0x40, 0x30)
	if want := "region r: 3 operations before, 3 after: 1 inserted, 1 removed, 0 changed\n" +
		"  removed #1 kernel gemm: grid (0,0,0); block (0,0,0); shared 0; no args\n" +
		"  inserted #1 kernel fn@0x40: grid (0,0,0); block (0,0,0); shared 0; no args\n"; p.Text() != want {
		t.Errorf("%s", p.Text())
	}
	// Long ones are cut, and different ones stay different.
	long := strings.Repeat("é", 600)
	r.Name(1, long+"a")
	r.Name(2, long+"b")
	exec(1, 2)
	if got := names(); len(got[0]) > maxNameBytes || got[0] == got[1] || !strings.HasPrefix(got[0], "éé") || strings.ContainsRune(got[0], '\ufffd') {
		t.Errorf("%q", got)
	}
}

func TestNamesFull(t *testing.T) {
	ring, _ := newRing(t)
	r := New(Options{Ring: ring})
	for i := range uint64(maxNames) {
		r.Name(1+i, "same")
	}
	if n := ring.Counter(spanring.CtrNamesFull); n != 0 {
		t.Errorf("%d did not fit", n)
	}
	r.Name(1<<40, "one more")
	r.Name(1, "renamed, which takes no more room")
	if n := ring.Counter(spanring.CtrNamesFull); n != 1 {
		t.Errorf("%d did not fit", n)
	}
	r = New(Options{Ring: ring})
	for i := range maxNames + 1 {
		r.Name(7, fmt.Sprint("name ", i))
	}
	if n := ring.Counter(spanring.CtrNamesFull); n != 2 {
		t.Errorf("%d did not fit", n)
	}
	g := r.Region("r")
	g.Begin()
	r.Kernel(0, 7, [3]uint32{}, [3]uint32{}, 0, nil)
	g.End(0, 0)
	if _, tr := g.Executions(); tr.Ops()[0].FuncName() != "fn@0x7" {
		t.Error("a handle whose name does not fit has its old one")
	}
}

// TestPlacesOfOperationsFit: whatever bound is asked for, the last place that it allows
// is one of 32 bits.
func TestPlacesOfOperationsFit(t *testing.T) {
	r := New(Options{MaxBytes: math.MaxInt64})
	if last := (r.most-1)<<chunkShift | (chunkWords - 1); last != math.MaxUint32 {
		t.Errorf("the last word is %#x", last)
	}
}

// TestMemoryBound: what finds no room is counted, what was recorded is the
// beginning, and the report says so.
func TestMemoryBound(t *testing.T) {
	ring, reader := newRing(t)
	r := New(Options{Ring: ring, MaxBytes: 1})
	g, h := r.Region("r"), r.Region("other")
	args := make([]uint64, 94) // 100 words: 81 operations a chunk, 324 in 256 KiB
	exec := func(g *Region, n int) *Report {
		g.Begin()
		for i := range n {
			args[0] = uint64(i)
			r.Kernel(0, 1, [3]uint32{}, [3]uint32{}, 0, args)
			// Small enough for what is left of the last chunk, and not the beginning's.
			if i >= 324 {
				r.Copy(0, 1, 2, 3)
			}
		}
		return g.End(0, 3)
	}
	if p := exec(g, 330); p.After != 324 || p.AfterDropped != 12 || !p.Partial() {
		t.Errorf("%+v", p)
	}
	if n := r.MemoryBytes(); n != 256<<10 || r.Dropped() != 12 || ring.Counter(spanring.CtrLaunchOpsDropped) != 12 {
		t.Errorf("%d bytes, %d dropped", n, r.Dropped())
	}
	_, tr := g.Executions()
	for i, o := range tr.All() {
		if o.Kind != KindKernel || o.Args[0] != uint64(i) {
			t.Fatalf("operation %d is %v of %d", i, o.Kind, o.Args[0])
		}
	}
	// Nothing is left for another region, nor for the next execution, until the
	// last one is given up.
	if p := exec(h, 10); p.After != 0 || p.AfterDropped != 10 {
		t.Errorf("%+v", p)
	}
	if p := exec(g, 5); p.Removed != 324 || p.After != 0 || p.BeforeDropped != 12 || p.AfterDropped != 5 ||
		!strings.Contains(p.Text(), "not recorded for want of memory, and not compared: the last 12 operations before, the last 5 after\n") {
		t.Error(p.Text())
	}
	if p := exec(g, 100); p.After != 100 || p.Inserted != 100 || p.AfterDropped != 0 || r.MemoryBytes() != 256<<10 {
		t.Error(p.Text())
	}
	ds := diffs(t, reader)
	for i := range 4 { // the last was compared with one that was
		if !ds[i].Partial {
			t.Errorf("entry %d: %+v", i, ds[i])
		}
	}
}

func TestManyArgs(t *testing.T) {
	r := New(Options{})
	g := r.Region("r")
	g.Begin()
	r.Kernel(0, 1, [3]uint32{}, [3]uint32{}, 0, make([]uint64, MaxArgs))
	r.Kernel(0, 1, [3]uint32{}, [3]uint32{}, 0, make([]uint64, MaxArgs+1))
	g.End(0, 0)
	_, tr := g.Executions()
	if ops := tr.Ops(); len(ops[0].Args) != MaxArgs || ops[0].ArgsUnknown || !ops[1].ArgsUnknown || ops[1].Args != nil {
		t.Errorf("%d and %d arguments", len(ops[0].Args), len(ops[1].Args))
	}
}

// TestResolve: places are those of the end of each execution.
func TestResolve(t *testing.T) {
	live := []Range{{0x10000, 0x1000, "kv.go:12"}}
	asked := map[uint64]int{}
	r := New(Options{BySite: true, Resolve: func(addr uint64) (Range, bool) {
		asked[addr]++
		for _, l := range live {
			if l.holds(addr) {
				return l, true
			}
		}
		return Range{1, 2, "not where it was asked for"}, addr == 0x77777
	}})
	g := r.Region("r")
	exec := func(base uint64) *Report {
		clear(asked)
		g.Begin()
		for i := range uint64(10) {
			r.Copy(0, base+i, base, 64)
		}
		r.Copy(0, 0, 0x77777, 64)
		return g.End(0, 1)
	}
	exec(0x10000)
	if asked[0x10000] != 1 || asked[64] != 1 || asked[0x77777] != 1 || len(asked) != 3 {
		t.Errorf("asked for %v", asked)
	}
	// The buffer goes and comes again, and so do others where it was.
	live = []Range{{0x80000, 0x2000, "kv.go:12"}, {0x10000, 0x10, "tmp.go:1"}}
	if p := exec(0x80000); p.Differing() != 0 {
		t.Error(p.Text())
	}
	live = []Range{{0x90000, 0x2000, "kv.go:99"}}
	if p, want := exec(0x90000), "arg0 0x80000 -> 0x90000 (+65536) kv.go:12+0x0 -> kv.go:99+0x0;"; p.Changed != 10 || !strings.Contains(p.Text(), want) {
		t.Error(p.Text())
	}
	before, after := g.Executions()
	if d := cmp.Diff([]Range{{0x80000, 0x2000, "kv.go:12"}}, before.Ranges()); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(live, after.Ranges()); d != "" {
		t.Error(d)
	}
}

// TestSteadyState: nothing is allocated by a launch, whether it is recorded or not.
func TestSteadyState(t *testing.T) {
	ring, _ := newRing(t)
	r := New(Options{Ring: ring})
	for i := range uint64(20) {
		r.Name(fnNorm+i, fmt.Sprint("kernel", i))
	}
	regions := []*Region{r.Region("a"), r.Region("b")}
	launches := func() {
		var args [8]uint64
		for i := range uint64(1000) {
			args[3] = i
			if r.On() {
				r.Kernel(1, fnNorm+i%30, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0, args[:])
			}
			r.Memset(1, 0, 0, 0)
			r.Copy(1, 0, 0, 0)
			r.KernelArgsUnknown(1, i, [3]uint32{}, [3]uint32{}, 0)
		}
	}
	if n := testing.AllocsPerRun(5, launches); n != 0 {
		t.Errorf("off: %v allocations", n)
	}
	end := func() {
		for _, g := range regions {
			if p := g.End(0, 10); p.Differing() != 0 {
				t.Error(p.Text())
			}
		}
	}
	begin := func() {
		for _, g := range regions {
			g.Begin(1)
		}
	}
	for range 3 {
		begin()
		launches()
		end()
	}
	held := r.MemoryBytes()
	// The two reports are allocated, and nothing else.
	if n := testing.AllocsPerRun(5, func() { begin(); launches(); end() }); n > 2 {
		t.Errorf("on: %v allocations", n)
	}
	if n := r.MemoryBytes(); n != held {
		t.Errorf("memory went from %d to %d bytes", held, n)
	}
}

// TestConcurrent: everything at once, for the race detector; each region's reports
// add up.
func TestConcurrent(t *testing.T) {
	ring, _ := newRing(t)
	r := New(Options{Ring: ring, MaxBytes: 1 << 20, Resolve: func(a uint64) (Range, bool) { return Range{a &^ 0xff, 0x100, "s"}, a > 100 }})
	stop := make(chan struct{})
	var launches, ends sync.WaitGroup
	for s := range uint64(3) {
		launches.Go(func() {
			for i := uint64(0); ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				enqueue(r, s, i%5)
				r.Name(fnNorm+i%7, fmt.Sprint("n", i%3))
			}
		})
	}
	for i := range 4 {
		ends.Go(func() {
			g := r.Region(fmt.Sprint("region ", i/2)) // two goroutines each
			for k := range uint64(60) {
				switch k % 5 {
				case 4:
					g.Cancel()
				case 3:
					g.Begin(k % 3)
				default:
					g.Begin()
				}
				if p := g.End(k, 3); p != nil && !p.First && p.Before-p.Removed+p.Inserted != p.After {
					t.Errorf("%s", p.Text())
				}
				if b, a := g.Executions(); b != nil && a != nil && k%10 == 0 && a.Len() < 1000 {
					checkScript(t, b, a, DiffOptions{})
				}
			}
		})
	}
	ends.Wait()
	close(stop)
	launches.Wait()
	if r.On() {
		t.Error("still on")
	}
}

// TestRecorderModel: a recorder does what a few slices do.
func TestRecorderModel(t *testing.T) {
	type region struct {
		g         *Region
		recording bool
		streams   []uint64
		cur       []Op
		prev      []Op
		ended     bool
	}
	rapid.Check(t, func(t *rapid.T) {
		r := New(Options{})
		regions := []*region{{g: r.Region("a")}, {g: r.Region("b")}, {g: r.Region("c")}}
		names := map[uint64]string{}
		pick := func(t *rapid.T) *region { return rapid.SampledFrom(regions).Draw(t, "region") }
		some := rapid.Uint64Range(0, 3)
		record := func(stream uint64, o Op) {
			for _, m := range regions {
				if m.recording && (len(m.streams) == 0 || slices.Contains(m.streams, stream)) {
					m.cur = append(m.cur, o)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				m := pick(t)
				m.streams = rapid.SliceOfN(some, 0, 2).Draw(t, "streams")
				m.recording, m.cur = true, nil
				m.g.Begin(m.streams...)
			},
			"end": func(t *rapid.T) {
				m := pick(t)
				p := m.g.End(some.Draw(t, "step"), -1)
				if (p != nil) != m.recording {
					t.Fatalf("report %v of a region that records: %v", p, m.recording)
				}
				if p == nil {
					return
				}
				if p.First == m.ended || p.After != len(m.cur) || !p.First && p.Before != len(m.prev) {
					t.Fatalf("%s after %d and %d operations", p.Text(), len(m.prev), len(m.cur))
				}
				before, after := m.g.Executions()
				for _, x := range []struct {
					want []Op
					got  *Trace
				}{{m.prev, before}, {m.cur, after}} {
					got := x.got.Ops()
					if !slices.EqualFunc(x.want, got, func(a, b Op) bool { return a.equal(&b) && a.Func == b.Func }) {
						t.Fatalf("recorded %v, want %v", got, x.want)
					}
				}
				if m.ended {
					got, err := Apply(m.prev, Diff(before, after, DiffOptions{}).Edits())
					if err != nil || !slices.EqualFunc(m.cur, got, func(a, b Op) bool { return a.equal(&b) }) {
						t.Fatalf("applied %v, %v, want %v", got, err, m.cur)
					}
				}
				m.prev, m.cur, m.recording, m.ended = m.cur, nil, false, true
			},
			"cancel": func(t *rapid.T) {
				m := pick(t)
				m.g.Cancel()
				m.recording = false
			},
			"forget": func(t *rapid.T) {
				m := pick(t)
				m.g.Forget()
				m.recording, m.ended, m.prev = false, false, nil
			},
			"name": func(t *rapid.T) {
				h, n := some.Draw(t, "handle"), rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "name")
				r.Name(h, n)
				names[h] = n
			},
			"launch": func(t *rapid.T) {
				s, fn := some.Draw(t, "stream"), 1+some.Draw(t, "function")
				args := rapid.SliceOfN(some, 0, 3).Draw(t, "args")
				r.Kernel(s, fn, [3]uint32{1, 2, 3}, [3]uint32{4, 5, 6}, 7, args)
				record(s, Op{Kind: KindKernel, Func: fn, Name: names[fn], Grid: [3]uint32{1, 2, 3}, Block: [3]uint32{4, 5, 6}, SharedBytes: 7, Args: args})
			},
			"memset": func(t *rapid.T) {
				s := some.Draw(t, "stream")
				r.Memset(s, 5, 6, 7)
				record(s, Op{Kind: KindMemset, Args: []uint64{5, 6, 7}})
			},
			"": func(t *rapid.T) {
				on := false
				for _, m := range regions {
					on = on || m.recording
				}
				if r.On() != on {
					t.Fatalf("on is %v", r.On())
				}
			},
		})
	})
}
