package ledger

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

var update = flag.Bool("update", false, "write the golden files anew")

// bigMemory is what an engine with a model loaded may hold.
func bigMemory() Memory {
	m := Memory{
		State: spanring.AllocsPublished,
		Totals: spanring.MemoryTotals{
			PeakBytes: 80 << 30, ChunkSlackBytes: 2177024, RoundingSlackBytes: 1 << 19, ChunkBytes: 2 << 20,
		},
		Sites: []SiteTotal{
			{Site: "examples/decode/model.go:88", Bytes: 70 << 30, Count: 1234},
			{Site: "examples/decode/cache.go:31", Bytes: 8 << 30, Count: 2},
			{Site: "examples/decode/model.go:120", Bytes: 3 << 20, Count: 1},
			{Site: "examples/decode/sampler.go:9", Bytes: 1 << 20, Count: 64},
			{Site: "examples/decode/cache.go:40", Bytes: 1<<20 - 1, Count: 5},
			{Site: "unknown", Bytes: 512, Count: 1},
		},
	}
	for _, s := range m.Sites {
		m.Totals.LiveBytes += uint64(s.Bytes)
		m.Totals.LiveCount += uint64(s.Count)
	}
	return m
}

func TestReportGolden(t *testing.T) {
	with := func(f func(m *Memory)) Memory {
		m := bigMemory()
		f(&m)
		return m
	}
	l := newLedger(t, Options{ChunkBytes: 64 << 10})
	alloc(l, 65536-100, 200)
	alloc(l, 1<<20, 64<<10+1)
	own := l.Memory()
	for i := range own.Sites {
		own.Sites[i].Site = "engine/load.go:7" // not this file's path
	}
	for _, c := range []struct {
		name         string
		m            Memory
		topN, minMiB int
	}{
		{"not_tracked", Memory{}, 5, 1},
		{"nothing", Memory{State: spanring.AllocsPublished, Totals: spanring.MemoryTotals{ChunkBytes: 2 << 20}}, 5, 1},
		{"off", Memory{State: spanring.AllocsStale}, 5, 1},
		{"all", bigMemory(), 10, 0},
		{"top2", bigMemory(), 2, 0},
		{"least1", bigMemory(), 10, 1},
		{"top0", bigMemory(), 0, 0},
		{"own", own, 5, 0},
		{"troubled", with(func(m *Memory) {
			m.State, m.Approximate = spanring.AllocsStale, true
			m.Sites[0].Site = "evil\x1b[2J.go:1"
			m.Sites[3].Site = "libtorch.so+0x1234"
			t := &m.Totals
			t.GuardBytes, t.ArenaBytes, t.ArenaCount, t.UnlistedBytes, t.UnlistedCount = 4096, 4<<30, 2, 5<<20, 1
			t.Violations, t.AllocsFailed, t.FreesFailed, t.FreesUnknown, t.AllocsReplaced = 1, 2, 3, 4, 5
		}), 3, 1},
	} {
		got := c.m.Report(c.topN, c.minMiB)
		file := filepath.Join("testdata", "report", c.name+".golden")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
	// The same from the ledger.
	if got, want := l.AllocReport(5, 0), strings.ReplaceAll(own.Report(5, 0), "engine/load.go:7", l.Memory().Sites[0].Site); !strings.HasPrefix(got, want[:strings.Index(want, "\nfiles")]) {
		t.Errorf("AllocReport:\n%s\nwant\n%s", got, want)
	}
}

// TestFromRingJoins: two names of one text are one site, and names that cannot be
// read are unknown.
func TestFromRingJoins(t *testing.T) {
	names := map[spanring.NameID]string{1: "a.go:1", 2: "b.go:2", 3: "a.go:1", 4: ""}
	as := []spanring.Alloc{{Site: 1, Bytes: 5}, {Site: 2, Bytes: 7}, {Site: 3, Bytes: 6}, {Site: 0, Bytes: 1}, {Site: 9, Bytes: 1}, {Site: 4, Bytes: 1}, {Site: 2, Bytes: 4}}
	m := FromRing(as, spanring.AllocScan{State: spanring.AllocsStale, Approximate: true}, func(id spanring.NameID) (spanring.Name, bool) {
		s, ok := names[id]
		return spanring.Name{Text: s}, ok
	})
	want := Memory{State: spanring.AllocsStale, Approximate: true, Sites: []SiteTotal{
		{Site: "a.go:1", Bytes: 11, Count: 2}, {Site: "b.go:2", Bytes: 11, Count: 2}, {Site: "unknown", Bytes: 3, Count: 3},
	}}
	if d := cmp.Diff(want, m); d != "" {
		t.Error(d)
	}
}

// FuzzRing takes anything for a ring's allocations: a report of it is text, and
// adds up to what was read.
func FuzzRing(f *testing.F) {
	w, err := spanring.NewHeap(spanring.Options{Geometry: spanring.Geometry{LogEntries: 64, Slots: 1, NameBytes: 4096, Allocs: 8}})
	if err != nil {
		f.Fatal(err)
	}
	r, err := spanring.NewHeapReader(w, spanring.ReaderOptions{})
	if err != nil {
		f.Fatal(err)
	}
	l := newLedger(f, Options{})
	l.Attach(w, 0, true)
	for i := range uint64(5) {
		alloc(l, 4096*(i+1), int64(1000*i+1))
	}
	ring, err := r.Snapshot()
	if err != nil {
		f.Fatal(err)
	}
	table := len(ring) - 8*spanring.AllocSize
	f.Add(ring[table:], ring[1920:1936], 2, 1)
	f.Add([]byte{1}, []byte{2, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 3}, -1, -1)
	f.Fuzz(func(t *testing.T, allocs, header []byte, topN, minMiB int) {
		b := append([]byte(nil), ring...)
		copy(b[table:], allocs)
		copy(b[1920:1936], header)
		r, err := spanring.NewBytesReader(b, spanring.ReaderOptions{})
		if err != nil {
			t.Fatal(err)
		}
		as, s, err := r.Allocs(nil)
		if err != nil {
			t.Fatal(err)
		}
		m := FromRing(as, s, r.Name)
		n, bytes := int64(0), int64(0)
		for _, s := range m.Sites {
			if s.Bytes <= 0 || s.Count <= 0 || s.Site == "" {
				t.Fatalf("%+v", s)
			}
			n += s.Count
			bytes += s.Bytes
		}
		want := int64(0)
		for _, a := range as {
			want += int64(a.Bytes)
		}
		if n != int64(len(as)) || bytes != want || len(as) > 8 {
			t.Fatalf("%d allocations of %d bytes, sites say %d of %d", len(as), want, n, bytes)
		}
		if out := m.Report(topN, minMiB); !strings.HasSuffix(out, "\n") || strings.ContainsAny(out, "\x1b\x00") {
			t.Fatalf("report %q", out)
		}
		// At rest, a scan is exact unless the file says that a change was under way.
		if len(header) > 0 && s.Approximate != (header[0]&1 != 0) {
			t.Fatalf("%+v", s)
		}
	})
}
