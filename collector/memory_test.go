package collector

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// allMetrics are the values of every metric by name and labels, the engine's left
// out.
func allMetrics(t *testing.T, r *sdkmetric.ManualReader) map[string]float64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := r.Collect(context.Background(), &rm); err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	add := func(name string, set attribute.Set, v float64) {
		var b strings.Builder
		for _, kv := range set.ToSlice() {
			if kv.Key != labelEngine {
				fmt.Fprintf(&b, " %s=%s", kv.Key, kv.Value.AsString())
			}
		}
		out[strings.TrimPrefix(name, "lanetrace.")+b.String()] = v
	}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					add(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[int64]:
				for _, p := range d.DataPoints {
					add(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range d.DataPoints {
					add(m.Name, p.Attributes, p.Value)
				}
			}
		}
	}
	return out
}

func memoryMetrics(t *testing.T, r *sdkmetric.ManualReader) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for k, v := range allMetrics(t, r) {
		if strings.HasPrefix(k, "memory.") {
			out[k] = v
		}
	}
	return out
}

func instruments(t *testing.T, o InstrumentOptions) (*Instruments, *sdkmetric.ManualReader) {
	t.Helper()
	in := NewInstruments(o)
	reader := sdkmetric.NewManualReader()
	mp := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	t.Cleanup(func() { mp.Shutdown(context.Background()) })
	if err := in.Register(mp.Meter("test")); err != nil {
		t.Fatal(err)
	}
	return in, reader
}

func put(l *ledger.Ledger, addr uint64, bytes int64) {
	p := l.Begin(spanring.AllocDevice, bytes)
	p.Done(addr)
}

func drop(l *ledger.Ledger, addr uint64, err error) {
	t := l.Take(addr)
	t.Done(err)
}

// TestMemoryMetrics follows an engine from no ledger at all to its end.
func TestMemoryMetrics(t *testing.T) {
	in, reader := instruments(t, InstrumentOptions{})
	w := newRing(t, ringDir(t), spanring.Info{Service: "s"})
	p, _ := run(t, openRing(t, w), ProcessorOptions{Instruments: in})

	counters := func(over map[string]float64) map[string]float64 {
		m := map[string]float64{
			"memory.tracked": 0, "memory.allocations": 0, "memory.frees": 0, "memory.violations": 0, "memory.scans": 0, "memory.site.growth site=other": 0,
			"memory.problems reason=allocs_failed": 0, "memory.problems reason=frees_failed": 0, "memory.problems reason=frees_unknown": 0,
			"memory.problems reason=allocs_unlisted": 0, "memory.problems reason=allocs_replaced": 0,
		}
		for k, v := range over {
			m[k] = v
		}
		return m
	}
	check := func(what string, want map[string]float64) {
		t.Helper()
		if d := cmp.Diff(want, memoryMetrics(t, reader)); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
	check("no ledger", counters(nil))
	if m := p.Engine().Memory(); m.State != spanring.AllocsNotTracked {
		t.Errorf("%+v", m)
	}

	l, err := ledger.New(ledger.Options{Redzone: ledger.Redzone{Bytes: 64}})
	if err != nil {
		t.Fatal(err)
	}
	l.Attach(w, 0, false)
	put(l, 1<<30, 1000)
	check("level off", counters(nil))

	l.SetPublishing(true)
	put(l, 4<<30, 3<<20)
	l.Arena(1<<40, 500)
	site := ""
	for _, s := range p.Engine().Memory().Sites {
		site = s.Site
	}
	if !strings.Contains(site, "memory_test.go:") {
		t.Fatalf("site %q", site)
	}
	live := float64(3<<20 + 1000)
	want := counters(map[string]float64{
		"memory.tracked": 1, "memory.allocations": 2, "memory.live": live, "memory.peak": live, "memory.allocations.live": 2,
		"memory.slack kind=chunk": 2<<20 - 1064, "memory.slack kind=rounding": 1<<20 - 64, "memory.guard_bands": 128, "memory.arenas": 500,
		"memory.site.live site=" + CutSite(site, MaxLabelBytes): live, "memory.site.live site=other": 0,
	})
	check("two allocations", want)

	drop(l, 4<<30, errors.New("refused"))
	drop(l, 99, errors.New("unknown"))
	n, err := l.ScanBands(func(bands []ledger.Band, into []byte) error {
		for i := range into {
			into[i] = 0xa5
		}
		into[3] = 1
		return nil
	}, func(ledger.Band) error { return nil })
	if n != 1 || err != nil {
		t.Fatal(n, err)
	}
	pollAll(t, p)
	for k, v := range map[string]float64{"memory.frees": 1, "memory.problems reason=frees_failed": 1, "memory.problems reason=frees_unknown": 1, "memory.violations": 1, "memory.scans": 1} {
		want[k] = v
	}
	check("problems", want)
	vs, total := p.Engine().Violations()
	if len(vs) != 1 || total != 1 || vs[0].Site.Text != site || vs[0].Index != 0 || vs[0].First != 3 || vs[0].Value != 1 {
		t.Errorf("%d violations, %+v", total, vs)
	}
	// Its entries are no ignored ones.
	if got := allMetrics(t, reader)["entries.ignored reason=other_kind"]; got != 0 {
		t.Errorf("%v entries ignored", got)
	}

	l.SetPublishing(false)
	check("level off again", counters(map[string]float64{
		"memory.allocations": 2, "memory.frees": 1, "memory.problems reason=frees_failed": 1, "memory.problems reason=frees_unknown": 1, "memory.violations": 1, "memory.scans": 1,
	}))
	l.SetPublishing(true)
	l.Detach()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end", func() bool { _, done, err := p.Poll(); return done && err == nil })
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	check("ended", want)
}

// TestSuspectedLeaks: a site that does nothing but grow is told after warm-up and
// window, on the source's own time; a table that is not exact is not looked at.
func TestSuspectedLeaks(t *testing.T) {
	in, reader := instruments(t, InstrumentOptions{})
	src := &allocSource{memSource: newMemSource("leak.go:1", "cache.go:2"), scan: spanring.AllocScan{State: spanring.AllocsPublished}}
	p, _ := run(t, src, ProcessorOptions{Instruments: in, Growth: ledger.GrowthOptions{WarmUp: 20 * time.Second, Window: 100 * time.Second}})
	start := src.nowNS
	for s := int64(0); s < 200; s++ {
		src.nowNS = start + s*int64(time.Second)
		src.allocs = []spanring.Alloc{{Site: 1, Bytes: uint64(1000_000 * (s + 1))}, {Site: 2, Bytes: uint64(5000_000 + s%30)}}
		if src.scan.Approximate = s%10 == 3; src.scan.Approximate {
			src.allocs = nil // what was missed looks like a fall
		}
		pollAll(t, p)
		if got := len(p.Engine().SuspectedLeaks()); (got > 0) != (s >= 120) {
			t.Fatalf("after %d s: %d suspects", s, got)
		}
	}
	if s := p.Engine().SuspectedLeaks(); len(s) != 1 || s[0].Site != "leak.go:1" || s[0].BytesPerSecond != 1e6 {
		t.Errorf("%+v", s)
	}
	m := memoryMetrics(t, reader)
	if m["memory.site.growth site=leak.go:1"] != 1e6 || m["memory.site.growth site=other"] != 0 || m["memory.site.live site=leak.go:1"] != 200e6 {
		t.Errorf("%v", m)
	}
	if src.scans > 200/5+10 {
		t.Errorf("%d scans in 200 s", src.scans)
	}
}

// TestShortLeakWindow: a window that is shorter than usual is looked at more often.
func TestShortLeakWindow(t *testing.T) {
	for _, c := range []struct {
		window time.Duration
		scans  int // in 30 s
	}{{0, 6}, {20 * time.Minute, 6}, {100 * time.Second, 6}, {20 * time.Second, 30}, {4 * time.Second, 150}} {
		src := &allocSource{memSource: newMemSource("leak.go:1"), scan: spanring.AllocScan{State: spanring.AllocsPublished}}
		p, _ := run(t, src, ProcessorOptions{Growth: ledger.GrowthOptions{Window: c.window}})
		start, before := src.nowNS, src.scans
		for s := range int64(300) {
			src.nowNS = start + s*int64(100*time.Millisecond)
			pollAll(t, p)
		}
		if n := src.scans - before; n < c.scans || n > c.scans+2 {
			t.Errorf("window %v: %d scans in 30 s, want %d", c.window, n, c.scans)
		}
	}
}

// allocSource is a source whose allocations a test sets.
type allocSource struct {
	*memSource
	allocs []spanring.Alloc
	scan   spanring.AllocScan
	err    error
	scans  int
}

func (s *allocSource) Allocs(dst []spanring.Alloc) ([]spanring.Alloc, spanring.AllocScan, error) {
	s.scans++
	return append(dst, s.allocs...), s.scan, s.err
}

// TestMemoryOfOtherSources: a source that knows no allocations, and one that
// cannot tell now.
func TestMemoryOfOtherSources(t *testing.T) {
	p, _ := run(t, newMemSource(), ProcessorOptions{})
	pollAll(t, p)
	if m := p.Engine().Memory(); m.State != spanring.AllocsNotTracked || m.Sites != nil {
		t.Errorf("%+v", m)
	}
	src := &allocSource{memSource: newMemSource("a.go:1"), scan: spanring.AllocScan{State: spanring.AllocsPublished}, allocs: []spanring.Alloc{{Site: 1, Bytes: 7}}}
	p, _ = run(t, src, ProcessorOptions{})
	before := p.Engine().Memory()
	src.err = errors.New("gone")
	if d := cmp.Diff(before, p.Engine().Memory()); d != "" || len(before.Sites) != 1 {
		t.Errorf("%+v, then %s", before, d)
	}
}

// TestSiteTop: the largest have series of their own; one that was shown stays
// until another is clearly larger; all together are all there is.
func TestSiteTop(t *testing.T) {
	top := siteTop{k: 2, attrs: func(string) metric.MeasurementOption { return nil }, members: map[string]*topSite{}}
	for i, c := range []struct {
		in   map[string]int64
		rest int64
		want map[string]int64
	}{
		{nil, 0, map[string]int64{"other": 0}},
		{map[string]int64{"a": 10, "b": 20, "c": 5}, 3, map[string]int64{"a": 10, "b": 20, "other": 8}},
		{map[string]int64{"a": 10, "b": 20, "c": 15}, 0, map[string]int64{"a": 10, "b": 20, "other": 15}},
		{map[string]int64{"a": 10, "b": 20, "c": 16}, 0, map[string]int64{"b": 20, "c": 16, "other": 10}},
		{map[string]int64{"b": 20}, 0, map[string]int64{"b": 20, "c": 0, "other": 0}},
		{map[string]int64{"b": 20, "d": 1, "other": 9}, 0, map[string]int64{"b": 20, "d": 1, "other": 9}},
		{map[string]int64{"x": 100, "y": 200}, 0, map[string]int64{"x": 100, "y": 200, "other": 0}},
		{map[string]int64{"x\n": 1, " x ": 2}, 0, map[string]int64{"x": 3, "y": 0, "other": 0}},
	} {
		var sites []ledger.SiteTotal
		for s, n := range c.in {
			sites = append(sites, ledger.SiteTotal{Site: s, Bytes: n})
		}
		got := map[string]int64{}
		for _, s := range top.pick(sites, c.rest) {
			got[s.label] = s.bytes
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%d (-want +got):\n%s", i, d)
		}
	}
}

// TestViolationsKept: the last ones, and the number of all; what cannot be is
// malformed.
func TestViolationsKept(t *testing.T) {
	src := newMemSource("a.go:1")
	p, _ := run(t, src, ProcessorOptions{})
	for i := range uint64(MaxViolations + 6) {
		src.push(&spanring.Violation{Addr: 1, Bytes: 1, GuardBytes: 16, Site: 1, Index: i, Changed: 1, Value: 1})
	}
	src.push(&spanring.Violation{Index: 999}, &spanring.MemEvent{Kind: spanring.KindAlloc}, &spanring.MemEvent{Kind: spanring.KindFree, Alloc: spanring.Alloc{Addr: 1, Bytes: 1, Kind: 1}})
	pollAll(t, p)
	vs, n := p.Engine().Violations()
	if n != MaxViolations+6 || len(vs) != MaxViolations || vs[0].Index != 6 || vs[MaxViolations-1].Index != MaxViolations+5 || vs[0].Site.Text != "a.go:1" {
		t.Errorf("%d violations, %d kept", n, len(vs))
	}
	if s := &p.Engine().sum; s.malformed != 2 || s.otherEntries != 0 {
		t.Errorf("%d malformed, %d of other kinds", s.malformed, s.otherEntries)
	}
}
