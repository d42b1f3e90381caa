package player

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// clocked is a ring whose time a test sets.
type clocked struct {
	collector.Source
	collector.AllocSource
	nowNS int64
}

func (c *clocked) NowMonoNS() int64 { return c.nowNS }

// TestAllocsPlayed plays an engine whose memory comes and goes into a ring: in the
// end, and whenever the recording has its table, the ring's is the engine's.
func TestAllocsPlayed(t *testing.T) {
	geo := spanring.Geometry{LogEntries: 1 << 12, Slots: 16, NameBytes: 1 << 16, Allocs: 64}
	w, err := spanring.NewHeap(spanring.Options{Geometry: geo})
	if err != nil {
		t.Fatal(err)
	}
	w.Name(spanring.NameOther, "so that ids differ")
	r, err := spanring.NewHeapReader(w, spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rs := collector.NewRingSource(r)
	src := &clocked{Source: rs, AllocSource: rs.(collector.AllocSource), nowNS: spanring.MonoNS()}
	l, err := ledger.New(ledger.Options{Redzone: ledger.Redzone{Bytes: 16}})
	if err != nil {
		t.Fatal(err)
	}
	l.Attach(w, 3, true)
	alloc := func(addr uint64, bytes int64) { p := l.Begin(spanring.AllocDevice, bytes); p.Done(addr) }
	free := func(addr uint64) { tk := l.Take(addr); tk.Done(nil) }
	for i := range uint64(40) {
		alloc(1<<30+i<<21, int64(i+1)*1000)
	}
	var file bytes.Buffer
	rec, err := recording.NewWriter(&file, recording.Options{})
	if err != nil {
		t.Fatal(err)
	}
	run, err := rec.Begin(src)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]spanring.Entry, 64)
	for s := range uint64(60) {
		free(1<<30 + (s%40)<<21)
		alloc(1<<30+(s%40)<<21, int64(s+7)*500)
		if s == 30 {
			alloc(1<<50, 5<<20)
			l.SetPublishing(false)
		}
		if s == 45 {
			l.SetPublishing(true)
		}
		n, _, err := src.Poll(buf)
		if err != nil {
			t.Fatal(err)
		}
		if err := run.Append(buf[:n]); err != nil {
			t.Fatal(err)
		}
		src.nowNS += int64(time.Second)
		if err := run.Append(nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := rec.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := recording.NewReader(bytes.NewReader(file.Bytes()), int64(file.Len()), "x.ltrec")
	if err != nil {
		t.Fatal(err)
	}

	// Looked at while it is played: the table adds up to the totals.
	d := ringDir(t)
	states := map[spanring.AllocState]int{}
	var ring *spanring.Reader
	clock := &manual{now: 1e15}
	clock.tick = func(int64) {
		if ring == nil {
			paths, err := d.List()
			if err != nil || len(paths) != 1 {
				t.Fatal(paths, err)
			}
			if ring, err = spanring.Open(paths[0], spanring.ReaderOptions{}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ring.Close() })
		}
		as, s, err := ring.Allocs(nil)
		if err != nil || s.Approximate {
			t.Fatalf("%+v, %v", s, err)
		}
		states[s.State]++
		sum := uint64(0)
		for _, a := range as {
			sum += a.Bytes
		}
		if s.State == spanring.AllocsPublished && (sum != s.Totals.LiveBytes || uint64(len(as)) != s.Totals.LiveCount || s.Totals.LiveCount < 40) {
			t.Errorf("%d bytes in %d allocations, %+v", sum, len(as), s.Totals)
		}
	}
	out, err := Play(context.Background(), d, source(t, f), Options{Geometry: geo, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	if states[spanring.AllocsPublished] < 10 || states[spanring.AllocsStale] < 2 {
		t.Errorf("states seen: %v", states)
	}
	played, err := spanring.Open(out.Path(), spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer played.Close()
	want, ws, _ := src.Allocs(nil)
	got, gs, err := played.Allocs(nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(ws, gs); d != "" {
		t.Errorf("(-engine +played):\n%s", d)
	}
	if d := cmp.Diff(ledger.FromRing(want, ws, src.Name).Sites, ledger.FromRing(got, gs, played.Name).Sites); d != "" {
		t.Errorf("(-engine +played):\n%s", d)
	}
	// Each entry's site is one of this ring's names.
	n := 0
	for {
		m, err := played.Poll(buf, 0)
		if err != nil {
			t.Fatal(err)
		}
		if m == 0 {
			break
		}
		for _, e := range buf[:m] {
			ev, err := e.Words.MemEvent()
			if err != nil {
				continue
			}
			n++
			if s, ok := played.Name(ev.Alloc.Site); !ok || s.Kind != spanring.NameSite || ev.Alloc.Context != 3 {
				t.Errorf("%+v at %+v", ev, s)
			}
		}
	}
	if n < 80 {
		t.Errorf("%d entries of allocations", n)
	}
}

// TestAllocsFull: a ring with fewer places than the recording's keeps the totals.
func TestAllocsFull(t *testing.T) {
	w, err := spanring.NewHeap(spanring.Options{Geometry: spanring.Geometry{LogEntries: 64, Slots: 1, NameBytes: 4096, Allocs: 2}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := spanring.NewHeapReader(w, spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := &allocs{ring: w}
	s := recording.State{AllocsMonoNS: 5, AllocScan: spanring.AllocScan{State: spanring.AllocsPublished, Totals: spanring.MemoryTotals{LiveBytes: 60, LiveCount: 3, Allocs: 3}}}
	for i := range uint64(3) {
		s.Allocs = append(s.Allocs, spanring.Alloc{Addr: i + 1, Bytes: 10 * (i + 1), Index: i, Kind: spanring.AllocDevice})
	}
	p.table(&s, func(*spanring.Alloc) {})
	check := func(what string, listed int, live, unlisted, count uint64) {
		t.Helper()
		as, s, err := r.Allocs(nil)
		if tt := s.Totals; err != nil || len(as) != listed || tt.LiveBytes != live || tt.UnlistedBytes != unlisted || tt.UnlistedCount != count {
			t.Errorf("%s: %d listed, %+v, %v", what, len(as), s, err)
		}
	}
	check("table", 2, 60, 30, 1)
	event := func(k spanring.Kind, i uint64) {
		w := (&spanring.MemEvent{Kind: k, Alloc: spanring.Alloc{Addr: i + 1, Bytes: 10 * (i + 1), Index: i, Kind: spanring.AllocDevice}}).Words()
		p.entry(&w)
	}
	event(spanring.KindAlloc, 3)
	check("one more", 2, 100, 70, 2)
	event(spanring.KindAlloc, 3) // known already
	event(spanring.KindFree, 9)  // never heard of
	event(spanring.KindFree, 2)
	check("an unlisted one freed", 2, 70, 40, 1)
	event(spanring.KindFree, 0)
	check("a listed one freed", 1, 60, 40, 1)
}
