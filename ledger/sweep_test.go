package ledger

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

func TestSweep(t *testing.T) {
	logged, log := newLog()
	l := newLedger(t, Options{Logger: log})
	if n, err := l.Sweep(func(uint64) error { t.Error("frees"); return nil }); n != 0 || err != nil || logged.lines() != nil {
		t.Error(n, err, logged.lines())
	}
	put := func(i uint64) func() {
		return []func(){
			func() { alloc(l, i<<12, 100) },
		}[0]
	}
	for i := range uint64(3) {
		put(i + 1)()
	}
	// Six more sites.
	for i, f := range []func(p Pending, a uint64){
		func(p Pending, a uint64) { p.Done(a) },
		func(p Pending, a uint64) { p.Done(a) },
		func(p Pending, a uint64) { p.Done(a) },
		func(p Pending, a uint64) { p.Done(a) },
		func(p Pending, a uint64) { p.Done(a) },
		func(p Pending, a uint64) { p.Done(a) },
	} {
		f(l.Begin(device, int64(1000*(i+1))), uint64(i+10)<<12)
	}
	l.Arena(1<<40, 77)
	var freed []uint64
	n, err := l.Sweep(func(a uint64) error {
		// It is off the ledger before the driver frees it.
		for _, al := range l.mustLive(t) {
			if al.Addr == a {
				t.Errorf("%#x is still on the ledger", a)
			}
		}
		freed = append(freed, a)
		return nil
	})
	if n != 9 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	want := []uint64{1 << 12, 2 << 12, 3 << 12, 10 << 12, 11 << 12, 12 << 12, 13 << 12, 14 << 12, 15 << 12}
	if d := cmp.Diff(want, freed); d != "" {
		t.Error(d)
	}
	lines := logged.lines()
	if len(lines) != 1 || !strings.Contains(lines[0], "level=WARN") || !strings.Contains(lines[0], "allocations=9 bytes=21300") ||
		strings.Count(lines[0], "sweep_test.go:") != 5 || strings.Contains(lines[0], "main_test.go") ||
		strings.Index(lines[0], ": 6000 bytes in 1 allocation") > strings.Index(lines[0], ": 5000 bytes") || !strings.Contains(lines[0], ": 2000 bytes") ||
		strings.Contains(lines[0], ": 1000 bytes") {
		t.Errorf("log:\n%s", strings.Join(lines, "\n"))
	}
	tt, _ := l.Totals()
	if tt.LiveCount != 0 || tt.LiveBytes != 0 || tt.ChunkSlackBytes != 0 || tt.Frees != 9 || tt.ArenaBytes != 77 {
		t.Errorf("%+v", tt)
	}
	if n, err := l.Sweep(func(uint64) error { return nil }); n != 0 || err != nil || len(logged.lines()) != 1 {
		t.Error(n, err)
	}
	a := l.DrainArenas()
	tt, _ = l.Totals()
	if len(a) != 1 || a[0].Addr != 1<<40 || a[0].Bytes != 77 || tt.ArenaBytes != 0 || tt.ArenaCount != 0 || tt.Frees != 9 {
		t.Errorf("%+v, %+v", a, tt)
	}
}

func (l *Ledger) mustLive(t *testing.T) []Allocation {
	t.Helper()
	live, tracked := l.LiveAllocations()
	if !tracked {
		t.Fatal("not tracked")
	}
	return live
}

// TestSweepRefused: what the driver does not free stays known.
func TestSweepRefused(t *testing.T) {
	_, log := newLog()
	l := newLedger(t, Options{Logger: log})
	for i := range uint64(4) {
		alloc(l, (i+1)<<12, 10)
	}
	errs := map[uint64]error{2 << 12: errors.New("first"), 3 << 12: errors.New("second")}
	n, err := l.Sweep(func(a uint64) error { return errs[a] })
	if n != 4 || !errors.Is(err, errs[2<<12]) || !strings.Contains(err.Error(), "2 of 4 frees") {
		t.Errorf("%d, %v", n, err)
	}
	tt, _ := l.Totals()
	if tt.LiveCount != 2 || tt.FreesFailed != 2 || tt.Frees != 4 {
		t.Errorf("%+v", tt)
	}
}

// TestSweptInTheLog: the log tells what was swept from what was freed.
func TestSweptInTheLog(t *testing.T) {
	ring, err := spanring.NewHeap(spanring.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, log := newLog()
	l := newLedger(t, Options{Logger: log})
	l.Attach(ring, 0, true)
	alloc(l, 1<<12, 10)
	alloc(l, 2<<12, 20)
	l.Take(1 << 12).Done(nil)
	if n, err := l.Sweep(func(uint64) error { return nil }); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	alloc(l, 3<<12, 30)
	l.Take(3 << 12).Done(nil)

	r, err := spanring.NewHeapReader(ring, spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dst := make([]spanring.Entry, 16)
	n, err := r.Poll(dst, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := map[uint64]bool{}
	for i := range dst[:n] {
		if e, err := dst[i].Words.MemEvent(); err == nil && e.Kind == spanring.KindFree {
			got[e.Alloc.Addr] = e.Swept
		}
	}
	if d := cmp.Diff(map[uint64]bool{1 << 12: false, 2 << 12: true, 3 << 12: false}, got); d != "" {
		t.Errorf("swept by address (-want +got):\n%s", d)
	}
}
