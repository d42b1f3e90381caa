package ledger

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

// TestLogEntries: each allocation and free is an entry, while the ledger writes.
func TestLogEntries(t *testing.T) {
	w, r := heapRing(t, testGeometry)
	l := newLedger(t, Options{Redzone: Redzone{Bytes: 10}})
	l.Attach(w, 2, true)
	alloc(l, 4096, 100)
	alloc(l, 8192, 50)
	free(l, 4096, nil)
	l.SetPublishing(false)
	alloc(l, 4096, 7)
	free(l, 8192, nil)
	l.SetPublishing(true)
	free(l, 4096, errFake)
	l.Arena(1<<30, 99)
	free(l, 1<<30, nil)
	free(l, 5, errFake)
	var got []spanring.MemEvent
	buf := make([]spanring.Entry, 64)
	n, err := r.Poll(buf, 0)
	if err != nil {
		t.Fatal(err)
	}
	lastNS := int64(0)
	for _, e := range buf[:n] {
		ev, err := e.Words.MemEvent()
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := r.Name(ev.Alloc.Site); !ok || s.Kind != spanring.NameSite || !strings.Contains(s.Text, "/main_test.go:") {
			t.Errorf("site %+v", s)
		}
		if ev.Alloc.MonoNS <= 0 || ev.Kind == spanring.KindFree && ev.Alloc.MonoNS < lastNS {
			t.Errorf("%+v before %d", ev, lastNS)
		}
		lastNS = ev.Alloc.MonoNS
		ev.Alloc.MonoNS, ev.Alloc.Site = 0, 0
		got = append(got, ev)
	}
	a := func(addr, bytes, index uint64) spanring.Alloc {
		return spanring.Alloc{Addr: addr, Bytes: bytes, GuardBytes: 16, Index: index, Kind: device, Context: 2}
	}
	want := []spanring.MemEvent{
		{Kind: spanring.KindAlloc, Alloc: a(4096, 100, 0), LiveBytes: 100},
		{Kind: spanring.KindAlloc, Alloc: a(8192, 50, 1), LiveBytes: 150},
		{Kind: spanring.KindFree, Alloc: a(4096, 100, 0), LiveBytes: 50},
		// Refused by the driver: back again.
		{Kind: spanring.KindFree, Alloc: a(4096, 7, 2), LiveBytes: 0},
		{Kind: spanring.KindAlloc, Alloc: a(4096, 7, 2), LiveBytes: 7},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("entries (-want +got):\n%s", d)
	}
}

// TestOverflow: allocations that the table has no place for are in the totals, and
// get a place when the ledger rises the next time and there is one.
func TestOverflow(t *testing.T) {
	geo := testGeometry
	geo.Allocs = 3
	w, r := heapRing(t, geo)
	l := newLedger(t, Options{})
	l.Attach(w, 0, true)
	for i := range uint64(5) {
		alloc(l, (i+1)*4096, int64(10+i))
	}
	check := func(what string, listed int, live, unlisted, unlistedCount, times uint64) {
		t.Helper()
		as, s, err := r.Allocs(nil)
		tt := s.Totals
		if err != nil || len(as) != listed || tt.LiveBytes != live || tt.UnlistedBytes != unlisted || tt.UnlistedCount != unlistedCount || tt.AllocsUnlisted != times {
			t.Errorf("%s: %d listed, %+v, %v", what, len(as), tt, err)
		}
		// Inside, every allocation is known.
		if m := l.Memory(); m.Totals.UnlistedCount != 0 || m.Totals.LiveBytes != live || m.Sites[0].Bytes != int64(live) {
			t.Errorf("%s: the ledger's own %+v", what, m)
		}
	}
	check("full", 3, 60, 27, 2, 2)
	free(l, 5*4096, nil)
	check("one of the unlisted freed", 3, 46, 13, 1, 2)
	free(l, 4096, nil)
	check("one of the listed freed", 2, 36, 13, 1, 2)
	alloc(l, 4096, 100)
	check("its place taken", 3, 136, 13, 1, 2)
	free(l, 2*4096, nil)
	l.SetPublishing(false)
	l.SetPublishing(true)
	check("a rise", 3, 125, 0, 0, 2)
}

// TestAttachAgain: a second ring gets all that is live, under names of its own, and
// the first one keeps what it had.
func TestAttachAgain(t *testing.T) {
	l := newLedger(t, Options{})
	alloc(l, 4096, 10)
	w1, r1 := heapRing(t, testGeometry)
	w1.Name(spanring.NameOther, "something else, so that ids differ")
	l.Attach(w1, 0, true)
	alloc(l, 8192, 20)
	w2, r2 := heapRing(t, testGeometry)
	l.Attach(w2, 0, true)
	free(l, 4096, nil)
	l.Attach(nil, 0, true) // nothing
	for i, c := range []struct {
		r    *spanring.Reader
		live uint64
	}{{r1, 30}, {r2, 20}} {
		as, s, err := c.r.Allocs(nil)
		m := FromRing(as, s, c.r.Name)
		if err != nil || s.State != spanring.AllocsPublished || m.Totals.LiveBytes != c.live || m.Totals.PeakBytes != 30 || len(m.Sites) != 1 ||
			m.Sites[0].Bytes != int64(c.live) || m.Sites[0].Site == unknownSiteText {
			t.Errorf("ring %d: %+v, %v", i+1, m, err)
		}
	}
}

// TestNamesFull: a ring whose table of names is full costs the sites' names, and
// is asked once for each.
func TestNamesFull(t *testing.T) {
	geo := testGeometry
	geo.NameBytes = 4096
	w, r := heapRing(t, geo)
	for i := 0; w.Name(spanring.NameOther, string(rune('a'+i%26))+string(make([]byte, i))) != 0; i++ {
	}
	before := w.Counter(spanring.CtrNamesFull)
	l := newLedger(t, Options{})
	l.Attach(w, 0, true)
	for i := range uint64(10) {
		alloc(l, (i+1)*4096, 1)
	}
	as, s, err := r.Allocs(nil)
	m := FromRing(as, s, r.Name)
	if err != nil || w.Counter(spanring.CtrNamesFull) != before+1 || len(m.Sites) != 1 || m.Sites[0] != (SiteTotal{Site: unknownSiteText, Bytes: 10, Count: 10}) {
		t.Errorf("%+v, %v, asked %d times", m, err, w.Counter(spanring.CtrNamesFull)-before)
	}
}

// TestDetachAtOff: a ledger that leaves at level off with nothing on it leaves an
// empty table; with something on it, a stale one.
func TestDetachAtOff(t *testing.T) {
	for _, left := range []bool{false, true} {
		w, r := heapRing(t, testGeometry)
		l := newLedger(t, Options{})
		l.Attach(w, 0, true)
		alloc(l, 4096, 10)
		alloc(l, 8192, 10)
		l.SetPublishing(false)
		free(l, 4096, nil)
		want, n := spanring.AllocsPublished, 0
		if left {
			want, n = spanring.AllocsStale, 2
		} else {
			free(l, 8192, nil)
		}
		l.Detach()
		l.Detach()
		as, s, err := r.Allocs(nil)
		if err != nil || s.State != want || len(as) != n {
			t.Errorf("left %v: %d allocations, %+v, %v", left, len(as), s, err)
		}
	}
}
