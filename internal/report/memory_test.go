package report

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// memSource is a run of which a test sets the entries and what is live at its end.
type memSource struct {
	*synth.Engine
	info    spanring.Info
	entries []spanring.Words
	allocs  []spanring.Alloc
	state   spanring.AllocState
	missed  uint64 // entries that were overwritten before the reader came
}

func (s *memSource) Account() spanring.Account {
	a := s.Engine.Account()
	a.Missed += s.missed
	return a
}

func (s *memSource) Info() (spanring.Info, error) { return s.info, nil }

func (s *memSource) Poll(dst []spanring.Entry) (n int, done bool, err error) {
	for n < len(dst) && n < len(s.entries) {
		dst[n].Words = s.entries[n]
		n++
	}
	s.entries = s.entries[n:]
	return n, len(s.entries) == 0, nil
}

func (s *memSource) Name(id spanring.NameID) (spanring.Name, bool) {
	return spanring.Name{Kind: spanring.NameSite, Text: "site.go:" + string(rune('0'+id))}, id > 0 && id < 10
}

func (s *memSource) Allocs(dst []spanring.Alloc) ([]spanring.Alloc, spanring.AllocScan, error) {
	scan := spanring.AllocScan{State: s.state}
	scan.Totals.ChunkBytes = 2 << 20
	for _, a := range s.allocs {
		scan.Totals.LiveBytes += a.Bytes
		scan.Totals.LiveCount++
	}
	return append(dst, s.allocs...), scan, nil
}

const sec = int64(time.Second)

// newMemSource is a run of 100 steps, one a second from 1,000 s on, in a ring made
// then.
func newMemSource() *memSource {
	s := &memSource{Engine: synth.New(synth.Options{}), state: spanring.AllocsPublished}
	s.info = spanring.Info{Service: "s", Rank: spanring.NoRank, CreatedMonoNS: 1000 * sec}
	for n := range int64(101) {
		s.entries = append(s.entries,
			(&spanring.StepBegin{Step: uint64(n + 1), MonoNS: (1000 + n) * sec}).Words(),
			(&spanring.StepEnd{Step: uint64(n + 1), BeginNS: (1000 + n) * sec, MonoNS: (1000+n)*sec + 1}).Words())
	}
	return s
}

func (s *memSource) made(site spanring.NameID, bytes uint64, seconds ...int64) {
	for _, at := range seconds {
		s.allocs = append(s.allocs, spanring.Alloc{Addr: 1, Bytes: bytes, Site: site, MonoNS: at * sec, Kind: spanring.AllocDevice})
	}
}

func (s *memSource) freed(site spanring.NameID, second int64) {
	e := spanring.MemEvent{Kind: spanring.KindFree, Alloc: spanring.Alloc{Addr: 1, Bytes: 1, Site: site, MonoNS: second * sec, Kind: spanring.AllocDevice}}
	s.entries = append(s.entries, e.Words())
}

func (s *memSource) swept(site spanring.NameID, bytes uint64, madeSeconds ...int64) {
	for _, at := range madeSeconds {
		e := spanring.MemEvent{Kind: spanring.KindFree, Swept: true, Alloc: spanring.Alloc{Addr: 1, Bytes: bytes, Site: site, MonoNS: at * sec, Kind: spanring.AllocDevice}}
		s.entries = append(s.entries, e.Words())
	}
}

func (s *memSource) run(t *testing.T, o Options) (*Run, *collector.Engine) {
	t.Helper()
	r := New(o)
	p, err := collector.NewProcessor(s, collector.ProcessorOptions{Observers: []collector.Observer{r}, Taps: []collector.Tap{r}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Drain(); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return r, p.Engine()
}

// TestLeaks: a site is suspected if something of each quarter after warm-up is
// live at the end and nothing was freed since.
func TestLeaks(t *testing.T) {
	const kib = 1024
	for _, c := range []struct {
		name     string
		set      func(s *memSource)
		recorded bool
		want     []string // "site: … over …"
	}{
		{"none", func(s *memSource) { s.made(1, 9<<20, 1001, 1002) }, false, nil},
		{"one in each quarter", func(s *memSource) { s.made(1, 100*kib, 1001, 1030, 1050, 1070, 1090) }, false,
			[]string{"site.go:1: 500.00 KiB live, +5.33 KiB/s over 75.0 s"}},
		{"a quarter without", func(s *memSource) { s.made(1, 100*kib, 1030, 1031, 1050, 1051, 1070, 1071) }, false, nil},
		{"only warming up", func(s *memSource) { s.made(1, 100*kib, 1005, 1010, 1015, 1020, 1025) }, false, nil},
		{"too little", func(s *memSource) { s.made(1, 10*kib, 1030, 1050, 1070, 1090) }, false, nil},
		{"freed since", func(s *memSource) { s.made(1, 100*kib, 1030, 1050, 1070, 1090); s.freed(1, 1060) }, false, nil},
		{"freed while warming up", func(s *memSource) { s.made(1, 100*kib, 1030, 1050, 1070, 1090); s.freed(1, 1010); s.freed(2, 1060) }, false,
			[]string{"site.go:1: 400.00 KiB live, +5.33 KiB/s over 75.0 s"}},
		{"before there was a ring", func(s *memSource) {
			s.info.CreatedMonoNS = 1080 * sec
			s.made(1, 100*kib, 1000, 1030, 1050, 1070, 1090)
		}, false,
			[]string{"site.go:1: 500.00 KiB live, +5.33 KiB/s over 75.0 s"}},
		{"before the recording", func(s *memSource) { s.info.CreatedMonoNS = 1 * sec; s.made(1, 100*kib, 1, 1030, 1050, 1070, 1090) }, true,
			[]string{"site.go:1: 500.00 KiB live, +5.33 KiB/s over 75.0 s"}},
		{"all of the engine's life", func(s *memSource) { s.info.CreatedMonoNS = 700 * sec; s.made(1, 100*kib, 850, 920, 990, 1060) }, false,
			[]string{"site.go:1: 400.00 KiB live, +1.33 KiB/s over 300 s"}},
		{"two", func(s *memSource) {
			s.made(1, 100*kib, 1030, 1050, 1070, 1090)
			s.made(2, 1100*kib, 1030, 1050, 1070, 1090)
		}, false, []string{"site.go:2: 4.30 MiB live, +58.67 KiB/s over 75.0 s", "site.go:1: 400.00 KiB live, +5.33 KiB/s over 75.0 s"}},
		{"no name", func(s *memSource) { s.made(99, 100*kib, 1030, 1050, 1070, 1090) }, false, []string{"unknown: 400.00 KiB live, +5.33 KiB/s over 75.0 s"}},
	} {
		s := newMemSource()
		c.set(s)
		r, e := s.run(t, Options{Recorded: c.recorded})
		text := r.MemoryText(e, 0)
		var got []string
		if _, list, ok := strings.Cut(text, "suspected leaks: call sites that did nothing but grow\n"); ok {
			for l := range strings.Lines(list) {
				got = append(got, strings.TrimSpace(l))
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		whole := r.Text(e)
		for _, w := range c.want {
			if !strings.Contains(whole, "\n  suspected leak: "+w+"\n") {
				t.Errorf("%s: the report does not say %q:\n%s", c.name, w, whole)
			}
		}
		if len(c.want) == 0 && strings.Contains(whole, "leak") {
			t.Errorf("%s:\n%s", c.name, whole)
		}
	}
}

// TestLeaksOfAHostileRing: times that cannot be cost nothing but the figures.
func TestLeaksOfAHostileRing(t *testing.T) {
	s := newMemSource()
	for _, at := range []int64{math.MaxInt64/2 + 1<<56, math.MaxInt64} {
		s.allocs = append(s.allocs, spanring.Alloc{Addr: 1, Bytes: 1 << 20, Site: 1, MonoNS: at, Kind: spanring.AllocDevice})
	}
	r, e := s.run(t, Options{})
	if text := r.MemoryText(e, 0); text == "" {
		t.Error("no text")
	}
	r.Report(e)
}

// TestStepOfAHostileRing: a step of any length can be drawn.
func TestStepOfAHostileRing(t *testing.T) {
	for _, end := range []int64{0, 1, 1 << 61, math.MaxInt64 - 1, math.MaxInt64} {
		for _, at := range []int64{0, end / 2, min(end, math.MaxInt64-1<<48)} {
			s := newMemSource()
			lane := spanring.Span{Kind: spanring.KindLane, Step: 1, StartMonoNS: at, RawNS: 1<<48 - 1, LeadNS: at, Ordinal: 1}
			s.entries = []spanring.Words{
				(&spanring.StepBegin{Step: 1}).Words(), lane.Words(), (&spanring.StepEnd{Step: 1, MonoNS: end, Opened: 1}).Words(),
			}
			r, e := s.run(t, Options{})
			if text := r.Text(e); !strings.Contains(text, "one column is ") {
				t.Errorf("to %d ns, a lane from %d: not drawn\n%s", end, at, text)
			}
			r.Report(e)
		}
	}
}

// TestSwept: what nobody freed is found after a clean end, when nothing is live any
// more, and a site that only grew is suspected all the same.
func TestSwept(t *testing.T) {
	const kib = 1024
	s := newMemSource()
	s.swept(1, 100*kib, 1001, 1030, 1050, 1070, 1090)
	s.swept(2, 10*kib, 1001)
	r, e := s.run(t, Options{})
	text := r.MemoryText(e, 0)
	for _, want := range []string{
		"\nnever freed, swept at the end: 510.00 KiB in 6 allocations\n" +
			"  site.go:1: 500.00 KiB in 5 allocations\n  site.go:2: 10.00 KiB in 1 allocation\n",
		"\nsuspected leaks: call sites that did nothing but grow\n  site.go:1: 500.00 KiB live, +5.33 KiB/s over 75.0 s\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("does not say %q:\n%s", want, text)
		}
	}
	if whole := r.Text(e); !strings.Contains(whole, "  never freed, swept at the end: 510.00 KiB in 6 allocations; the most:\n    site.go:1: 500.00 KiB in 5 allocations\n") {
		t.Errorf("the report:\n%s", whole)
	}
}

// TestMemorySection: what the whole report says, in each state.
func TestMemorySection(t *testing.T) {
	violations := func(s *memSource, n int) {
		for i := range n {
			v := spanring.Violation{Addr: 4096, Bytes: 1000, GuardBytes: 64, Site: 3, Index: uint64(i), MonoNS: 1, First: 2, Last: 9, Changed: 5, Fill: 0xa5, Value: 1}
			s.entries = append(s.entries, v.Words())
		}
	}
	for _, c := range []struct {
		name string
		set  func(s *memSource)
		want string // from MEMORY to the loss account; "" for no such section
	}{
		{"not tracked", func(s *memSource) { s.state = spanring.AllocsNotTracked }, ""},
		{"not tracked, but guarded", func(s *memSource) { s.state = spanring.AllocsNotTracked; violations(s, 1) },
			"  not tracked\n  guard bands found changed: 1; the last:\n    site.go:3, allocation 0, 1,000 bytes\n" +
				"      5 of its band's 64 bytes, from 2 to 9, the first is 0x01, not 0xa5\n"},
		{"some", func(s *memSource) { s.made(1, 3<<20, 1001) }, "  3.00 MiB live, allocations: 1, peak: 0 B\n  chunk slack: 0 B, rounding slack: 0 B\n"},
		{"stale", func(s *memSource) { s.state = spanring.AllocsStale; s.made(1, 1, 1001) },
			"  1 B live, allocations: 1, peak: 0 B, as of the fall to off\n  chunk slack: 0 B, rounding slack: 0 B\n"},
	} {
		s := newMemSource()
		c.set(s)
		r, e := s.run(t, Options{})
		_, got, ok := strings.Cut(r.Text(e), "\nMEMORY\n")
		got, _, _ = strings.Cut(got, "\nLOSS ACCOUNT")
		if got != c.want || ok != (c.want != "") {
			t.Errorf("%s: %v\n%s\nwant\n%s", c.name, ok, got, c.want)
		}
	}
	s := newMemSource()
	violations(s, collector.MaxViolations+3)
	r, e := s.run(t, Options{})
	text := r.MemoryText(e, 0)
	if !strings.Contains(text, "\nchanged guard bands, the last 64 of 67\n  site.go:3, allocation 3, 1,000 bytes\n") || strings.Count(text, "site.go:3, allocation") != 64 {
		t.Errorf("%s", text)
	}
}

// TestLongSites: a long path does not push out what is said of the call site.
func TestLongSites(t *testing.T) {
	site := "/home/engine/" + strings.Repeat("deep/", 20) + "cache.go:1234"
	leak := ledger.Suspect{Site: site, Bytes: 3 << 20, BytesPerSecond: 1 << 20, Over: 4 * time.Second}
	violation := collector.Violation{Violation: spanring.Violation{Bytes: 4000, Index: 102}, Site: &collector.Name{Text: site}}
	swept := ledger.SiteTotal{Site: site, Bytes: 3 << 20, Count: 7}
	for _, c := range []struct {
		text, end string
	}{
		{leakText(&leak, 70), "cache.go:1234: 3.00 MiB live, +1.00 MiB/s"},
		{violationText(&violation, 70)[0], "cache.go:1234, allocation 102, 4,000 bytes"},
		{sweptText(&swept, 70), "cache.go:1234: 3.00 MiB in 7 allocations"},
	} {
		if width(c.text) != 70 || !strings.HasSuffix(c.text, c.end) {
			t.Errorf("%d cells: %q, want 70 that end in %q", width(c.text), c.text, c.end)
		}
	}
	// A module's place has its symbol in words, and no build.
	leak.Site, swept.Site = "libt.so!_ZN2at3fooIfEEvi+0x1 in kv (build 00)", "libt.so!_ZN2at3fooIfEEvi+0x1 in kv (build 00)"
	if got := leakText(&leak, 70); got != "libt.so!at::foo+0x1 in kv: 3.00 MiB live, +1.00 MiB/s over 4.00 s" {
		t.Errorf("a leak in a module: %q", got)
	}
	if got := sweptText(&swept, 70); got != "libt.so!at::foo+0x1 in kv: 3.00 MiB in 7 allocations" {
		t.Errorf("swept of a module: %q", got)
	}
	leak.Site = "a.go:1"
	if got := leakText(&leak, 70); got != "a.go:1: 3.00 MiB live, +1.00 MiB/s over 4.00 s" {
		t.Errorf("a short one: %q", got)
	}
}

// TestFreesUnseen: the report says when frees before the entries that were read may
// be missing.
func TestFreesUnseen(t *testing.T) {
	const says = "over 75.0 s\nwhat they freed before the oldest entry that was read is not known\n"
	for _, c := range []struct {
		missed         uint64
		recorded, want bool
	}{{0, false, false}, {1, false, true}, {1, true, false}} {
		s := newMemSource()
		s.missed = c.missed
		s.made(1, 100*1024, 1001, 1030, 1050, 1070, 1090)
		r, e := s.run(t, Options{Recorded: c.recorded})
		if text := r.MemoryText(e, 0); !strings.Contains(text, "suspected leaks") || strings.Contains(text, says) != c.want {
			t.Errorf("%+v:\n%s", c, text)
		}
	}
}
