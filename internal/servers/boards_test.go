//go:build servers

package servers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/player"
	reports "github.com/lanetrace/lanetrace/internal/report"
	"github.com/lanetrace/lanetrace/internal/servers"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// some is what is wrong with an answer that is to have something in it. A scrape that
// came too late leaves a moment with nothing: whoever asks, asks again.
func some(ss []servers.Sample, err error) error {
	if err == nil && len(ss) == 0 {
		err = errors.New("none")
	}
	return err
}

// Every query of every board is answered over the demo, and everything that it
// selects is among what the demo serves.
func TestBoardsOverDemo(t *testing.T) {
	rules, _ := ruleFiles(t)
	demo := built.Demo(t, nil)
	m := servers.StartPrometheus(t, servers.PrometheusOptions{Targets: []string{demo.URL}, Rules: rules})
	m.AwaitTargets(1)
	recorded := make(map[string]bool)
	shipped := servers.ShippedRules(t)
	for _, r := range shipped {
		if r.Record == "" {
			continue
		}
		recorded[r.Record] = true
		servers.Poll(t, "a value of "+r.Record, func() error { return some(m.Query(t.Context(), r.Record, time.Time{})) })
	}
	_, series, err := demo.Scrape(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for k := range series {
		names[k[:strings.IndexByte(k, '{')]] = true
	}
	// The demo's GPU was alone in its machine.
	absent := map[string]bool{"lanetrace_device_nvlink_throughput_bytes_per_second": true}
	panels, variables := servers.Boards(t)
	queries := map[string][]string{"variables": variables}
	for i := range panels {
		queries[panels[i].Where()] = panels[i].Exprs
	}
	for _, r := range shipped {
		queries["rule "+r.Name()] = []string{r.Expr}
	}
	selectors := 0
	for where, exprs := range queries {
		for _, e := range exprs {
			for _, s := range servers.Selectors(e) {
				selectors++
				if absent[s.Metric] {
					continue
				}
				if !names[s.Metric] && !recorded[s.Metric] {
					t.Errorf("%s: the demo serves no %s", where, s.Metric)
				}
				// What a rule looks for may be absent; that the values exist is another test's.
				if where == "variables" || strings.HasPrefix(where, "rule ") {
					continue
				}
				var ms []string
				for _, l := range s.Matchers {
					ms = append(ms, fmt.Sprintf("%s%s%q", l.Label, l.Op, servers.Interpolate(l.Value, "")))
				}
				q := s.Metric + "{" + strings.Join(ms, ",") + "}"
				servers.Poll(t, where+": series of "+q, func() error { return some(m.Query(t.Context(), q, time.Time{})) })
			}
		}
	}
	answered := 0
	for i := range panels {
		for _, e := range panels[i].Exprs {
			servers.Poll(t, panels[i].Where(), func() error {
				ss, err := m.Query(t.Context(), servers.Interpolate(e, "1m"), time.Time{})
				if err == nil && (onlyIfAny(e) || ofDevices(e, absent)) {
					return nil
				}
				return some(ss, err)
			})
			answered++
		}
	}
	t.Logf("%d panels, %d queries answered, %d selectors", len(panels), answered, selectors)
}

// deviceMetrics are the names of what only a device has.
func deviceMetrics() map[string]bool {
	out := make(map[string]bool)
	for _, m := range collector.Metrics() {
		if m.Device() {
			out[m.PrometheusName()] = true
		}
	}
	return out
}

// onlyIfAny reports whether a query leaves out what is 0.
func onlyIfAny(expr string) bool { return strings.HasSuffix(expr, ") > 0") }

// ofDevices reports whether a query selects nothing but those.
func ofDevices(expr string, devices map[string]bool) bool {
	ss := servers.Selectors(expr)
	return len(ss) > 0 && !slices.ContainsFunc(ss, func(s servers.Selector) bool { return !devices[s.Metric] })
}

// synthetic is an engine with everything that boards show, but for graphs and leaks.
var synthetic = synth.Options{
	Duration: 6 * time.Second, StepEvery: 3 * time.Millisecond, KernelEvery: 16, Layers: 2,
	FailEvery: 70, DropEvery: 90, DiffEvery: 50, Memory: true, LeakEvery: 30, ViolateAt: 900, RequestEvery: 40, Model: "synthetic",
}

// record writes a synthetic engine's recording.
func record(t *testing.T, o synth.Options) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "synthetic.ltrec")
	w, err := recording.Create(path, recording.Options{Writer: "test", FlushEvery: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	p, err := collector.NewProcessor(synth.New(o), collector.ProcessorOptions{Taps: []collector.Tap{w}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Drain(), p.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// pausing is the machine's clock, which stands still from a moment on until it is
// told of a later one.
type pausing struct {
	player.SystemClock
	mu     sync.Mutex
	atNS   int64
	heldNS int64
}

func (p *pausing) MonoNS() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(p.SystemClock.MonoNS()-p.heldNS, p.atNS)
}

func (p *pausing) Sleep(ctx context.Context, d time.Duration) error {
	return p.SystemClock.Sleep(ctx, min(d, 20*time.Millisecond))
}

// until has it go on, up to a moment.
func (p *pausing) until(atNS int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heldNS += max(0, p.SystemClock.MonoNS()-p.heldNS-p.atNS)
	p.atNS = atNS
}

// of is what a panel's query is to say: by the value of one label or, with a blank
// between them, of several that commas part; "" where there is one series.
type of struct {
	query  int
	label  string
	values map[string]float64
	// within is by how much a value may be off, as a factor; of quantiles the width of
	// a bucket. What is NaN, a mean of none, is to be missing.
	within float64
}

func one(query int, v, within float64) of { return of{query, "", map[string]float64{"": v}, within} }

const (
	// shortly is how much of a run is over when a series that a run's first span makes
	// is seen first, which growth lacks, and what Prometheus makes of the time between
	// a scrape and a rule.
	shortly = 1.08
	exactly = 1.000001
	// A quantile lies in the bucket of the true value, which is as wide as this; what
	// is under the first bound of lanes and steps lies between 0 and it.
	coarse     = 1.7
	coarser    = 2.5
	rateWindow = 300.0 // seconds
	firstBound = 10e-6 // seconds
)

// expected is what each panel shows at the end of a run, of the run's recording: by
// code that knows neither Prometheus nor the instruments.
func expected(e *reports.EngineReport, spans spanTimes) map[string][]of {
	rate := func(n uint64) float64 { return float64(n) / rateWindow }
	sec := func(ns uint64) float64 { return float64(ns) / 1e9 }
	lanes := func(f func(l *reports.LaneReport) float64) map[string]float64 {
		out := make(map[string]float64)
		for i := range e.Lanes {
			out[e.Lanes[i].Lane] = f(&e.Lanes[i])
		}
		return out
	}
	kernels := func(f func(k *reports.KernelReport) float64) map[string]float64 {
		out := make(map[string]float64)
		for i := range e.Kernels {
			out[e.Kernels[i].Kernel] = f(&e.Kernels[i])
		}
		return out
	}
	regions := func(f func(r *reports.RegionReport) float64) map[string]float64 {
		out := make(map[string]float64)
		for i := range e.Regions {
			out[e.Regions[i].Region] = f(&e.Regions[i])
		}
		return out
	}
	reasons := func(m map[string]uint64) map[string]float64 {
		out := make(map[string]float64)
		for k, n := range m {
			out[k] = rate(n)
		}
		return out
	}
	total := func(m map[string]uint64) (n uint64) {
		for _, v := range m {
			n += v
		}
		return n
	}
	var laneCount, laneSum uint64
	for i := range e.Lanes {
		laneCount += e.Lanes[i].Unarmed.Count
		laneSum += e.Lanes[i].Unarmed.SumNS
	}
	g, c, m := &e.GPUTime, e.Counters, e.Memory
	unarmed, armed := spans.steps[0], spans.steps[1]
	scale := float64(unarmed+armed) / float64(armed)
	sites := make(map[string]float64)
	for _, s := range m.Sites {
		sites[s.Site] = float64(s.Bytes)
	}
	seen := float64(g.Lanes + g.Within + g.Between)
	return map[string][]of{
		"steps: Steps a second":                              {one(0, rate(unarmed+armed), exactly)},
		"steps: Step duration":                               {one(0, sec(e.Steps.Unarmed.P50NS), coarse), one(1, sec(e.Steps.Unarmed.P99NS), coarse)},
		"steps: Step duration, all of them":                  {{0, "le", map[string]float64{"+Inf": float64(e.Steps.Unarmed.Count)}, exactly}},
		"steps: Steps on the host":                           {one(0, sec(e.Steps.Host.P50NS), coarse), one(1, sec(e.Steps.Host.P99NS), coarse)},
		"steps: Lane duration, all of them":                  {{0, "le", map[string]float64{"+Inf": float64(laneCount)}, shortly}},
		"steps: Lane duration":                               {{0, "lane", lanes(func(l *reports.LaneReport) float64 { return sec(l.Unarmed.P50NS) }), coarse}, {1, "lane", lanes(func(l *reports.LaneReport) float64 { return sec(l.Unarmed.P99NS) }), coarse}},
		"steps: Lane time":                                   {{0, "lane", lanes(func(l *reports.LaneReport) float64 { return sec(l.Unarmed.SumNS) / rateWindow }), shortly}},
		"steps: Queue delay":                                 {{0, "lane", spans.queueP50, coarse}, {1, "lane", spans.queueP99, coarse}},
		"steps: GPU time":                                    {{0, "state", map[string]float64{"lane": sec(g.Lanes) / rateWindow, "in_step": sec(g.Within) / rateWindow, "between_steps": sec(g.Between) / rateWindow}, shortly}},
		"steps: Share of GPU time outside lanes":             {one(0, float64(g.Within+g.Between)/seen, shortly)},
		"steps: Share of GPU time in lanes, 5 minutes":       {one(0, float64(g.Lanes)/seen, shortly)},
		"steps: Longest steps":                               {one(0, sec(e.Steps.Unarmed.MaxNS), coarse)},
		"steps: What limits steps":                           {{0, "bound", reasons(g.LimitedBy), exactly}},
		"steps: Incomplete steps":                            {{0, "reason", reasons(e.Steps.Incomplete), exactly}},
		"steps: Requests ended":                              {one(0, rate(e.Requests.Taken.Count), exactly)},
		"kernels: Kernels by GPU time":                       {{0, "kernel", kernels(func(k *reports.KernelReport) float64 { return sec(k.SumNS) / rateWindow * scale }), shortly}},
		"kernels: Kernel time":                               {{0, "kernel", kernels(func(k *reports.KernelReport) float64 { return sec(k.SumNS) / rateWindow * scale }), shortly}},
		"kernels: Kernel launches a second":                  {{0, "kernel", kernels(func(k *reports.KernelReport) float64 { return float64(k.Count) / rateWindow * scale }), shortly}},
		"kernels: Mean kernel duration":                      {{0, "kernel", kernels(func(k *reports.KernelReport) float64 { return sec(k.SumNS) / float64(k.Count) }), shortly}},
		"kernels: Kernel duration, p99":                      {{0, "kernel", kernels(func(k *reports.KernelReport) float64 { return sec(k.P99NS) }), coarser}},
		"kernels: Queued and starved":                        {one(0, rate(c["queued"]), exactly), one(1, rate(c["starved"]), exactly)},
		"kernels: Steps for each armed one, 15 minutes":      {one(0, scale, shortly), one(1, float64(e.KernelEvery), exactly)},
		"kernels: What arming costs a lane":                  {{0, "lane", lanes(func(l *reports.LaneReport) float64 { return sec(l.Armed.SumNS) / float64(l.Armed.Count) }), shortly}, {1, "lane", lanes(func(l *reports.LaneReport) float64 { return sec(l.Unarmed.SumNS) / float64(l.Unarmed.Count) }), shortly}},
		"kernels: What arming costs a step":                  {one(0, sec(e.Steps.Armed.SumNS)/float64(e.Steps.Armed.Count), shortly), one(1, sec(e.Steps.Unarmed.SumNS)/float64(e.Steps.Unarmed.Count), shortly)},
		"kernels: Time of armed steps":                       {{0, "state", map[string]float64{"busy_in_lane": sec(g.Armed.Busy-g.Armed.BusyOutside) / rateWindow, "busy_outside_lanes": sec(g.Armed.BusyOutside) / rateWindow, "idle_in_lane": sec(g.Armed.LaneIdle) / rateWindow}, shortly}},
		"kernels: Share of lane time in kernels, 15 minutes": {one(0, float64(g.Armed.Busy-g.Armed.BusyOutside)/float64(g.Armed.Busy-g.Armed.BusyOutside+g.Armed.LaneIdle), shortly)},
		"kernels: Launches on armed steps":                   {one(0, rate(c["launches"]), shortly)},
		"kernels: Executions of regions":                     {{0, "region", regions(func(r *reports.RegionReport) float64 { return rate(r.Executions) }), shortly}},
		"kernels: Executions that differ":                    {{0, "region", regions(func(r *reports.RegionReport) float64 { return rate(r.Differing) }), shortly}, {1, "region", regions(func(r *reports.RegionReport) float64 { return rate(r.DifferingOps) }), shortly}},
		"memory: Live and peak":                              {one(0, float64(m.Live), exactly), one(1, float64(m.Peak), exactly)},
		"memory: Live by call site":                          {{0, "site", sites, exactly}},
		"memory: Slack":                                      {{0, "kind", map[string]float64{"chunk": float64(m.ChunkSlack), "rounding": float64(m.RoundingSlack)}, exactly}},
		"memory: Slack of live bytes":                        {one(0, float64(m.ChunkSlack+m.RoundingSlack)/float64(m.Live), exactly)},
		"memory: Guard bands and arenas":                     {one(0, float64(m.Guard), exactly), one(1, float64(m.Arenas), exactly)},
		"memory: Live allocations":                           {one(0, float64(m.Count), exactly)},
		"memory: Guard bands violated":                       {one(0, float64(e.Bands.Violations), exactly)},
		"memory: Allocations and frees":                      {one(0, rate(spans.allocs), shortly), one(1, rate(spans.frees), shortly)},
		"memory: Guard band scans":                           {one(0, float64(c["redzone_scans"]), exactly)},
		"ranks: Own work in a step":                          {one(0, sec(laneSum)/float64(unarmed), shortly)},
		"ranks: Lane duration by rank, p50":                  {{0, "lane", lanes(func(l *reports.LaneReport) float64 { return sec(l.Unarmed.P50NS) }), coarse}},
		"ranks: Lane duration by rank, p99":                  {{0, "lane", lanes(func(l *reports.LaneReport) float64 { return sec(l.Unarmed.P99NS) }), coarse}},
		"ranks: Queue delay by rank, p50":                    {{0, "lane", spans.queueP50, coarse}},
		"ranks: Steps a second by rank":                      {one(0, rate(unarmed+armed), exactly)},
		"health: Spans dropped":                              {one(0, float64(e.Account.Producer.Dropped), exactly)},
		"health: Spans failed":                               {one(0, float64(total(e.Account.Producer.Failed)), exactly)},
		"health: Entries lost":                               {one(0, 0, exactly)},
		"health: Spans unaccounted for in engines":           {one(0, 0, exactly)},
		"health: Entries unaccounted for":                    {one(0, 0, exactly)},
		"health: Spans unaccounted for in sidecars":          {one(0, 0, exactly)},
		"health: Spans in the engine":                        {one(0, rate(e.Account.Producer.Begun), exactly), one(1, rate(e.Account.Producer.Landed), exactly), {2, "reason", reasons(e.Account.Producer.Failed), exactly}, {3, "reason", map[string]float64{"pool_full": rate(e.Account.Producer.Dropped)}, exactly}},
		"health: Ring entries":                               {one(0, rate(spans.entries), exactly), one(1, rate(spans.entries), exactly)},
		"health: Spans in flight":                            {one(0, 0, exactly)},
		"health: Steps and requests as engines count them":   {{0, "state", map[string]float64{"begun": rate(c["steps_begun"]), "ended": rate(c["steps_ended"]), "armed": rate(c["steps_armed"])}, exactly}, one(1, rate(c["requests"]), exactly)},
		"health: Spans in the sidecar":                       {one(0, rate(e.Account.Sidecar.Received), exactly)},
		"device: Time of GPUs in lanes":                      {one(0, sec(g.Lanes)/rateWindow, shortly)},
	}
}

// spanTimes are what a plain pass over a recording's entries finds.
type spanTimes struct {
	entries            uint64
	allocs, frees      uint64    // since the recording began
	steps              [2]uint64 // ended: not armed, armed
	queueP50, queueP99 map[string]float64
}

// firstRun opens a recording and its first run; both are closed at the test's end.
func firstRun(t *testing.T, rec string) (*recording.File, *recording.Source) {
	t.Helper()
	f, err := recording.Open(rec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	src, err := f.Source(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	return f, src
}

// readSpans makes that pass.
func readSpans(t *testing.T, rec string) spanTimes {
	t.Helper()
	_, src := firstRun(t, rec)
	out := spanTimes{queueP50: make(map[string]float64), queueP99: make(map[string]float64)}
	leads := make(map[string][]float64)
	buf := make([]spanring.Entry, 256)
	for done := false; !done; {
		var n int
		var err error
		if n, done, err = src.Poll(buf); err != nil {
			t.Fatal(err)
		}
		for i := range buf[:n] {
			out.entries++
			w := &buf[i].Words
			switch w.Kind() {
			case spanring.KindStepEnd:
				e, err := w.StepEnd()
				if err != nil {
					t.Fatal(err)
				}
				k := 0
				if e.Armed {
					k = 1
				}
				out.steps[k]++
			case spanring.KindAlloc:
				out.allocs++
			case spanring.KindFree:
				out.frees++
			case spanring.KindLane:
				s, err := w.Span()
				if err != nil {
					t.Fatal(err)
				}
				if name, ok := src.Name(s.Name); ok && !s.Armed {
					leads[name.Text] = append(leads[name.Text], float64(s.LeadNS)/1e9)
				}
			}
		}
	}
	for l, v := range leads {
		slices.Sort(v)
		out.queueP50[l], out.queueP99[l] = v[len(v)/2], v[len(v)*99/100]
	}
	return out
}

// still are queries that are 0 over the synthetic engine: no launch of its starves, it
// has no guard bands, no arenas, and every step of it is whole. Where they are not 0
// TestBoardsShowWhatIsRare compares them.
var still = map[string]bool{
	"kernels: Queued and starved, query 1":    true,
	"memory: Guard bands and arenas, query 0": true,
	"memory: Guard bands and arenas, query 1": true,
	"steps: Incomplete steps, query 0":        true,
}

// compare compares panels with what they are to show at a time. Series of which nothing
// was said have to be 0. Only the health board, and still, may show nothing but 0.
func compare(t *testing.T, m *servers.Prometheus, at time.Time, want map[string][]of) {
	t.Helper()
	panels, _ := servers.Boards(t)
	left := maps.Clone(want)
	checked, constant := 0, 0
	for i := range panels {
		p := &panels[i]
		exps, ok := left[p.Where()]
		delete(left, p.Where())
		if !ok {
			continue
		}
		for _, x := range exps {
			query := servers.Interpolate(p.Exprs[x.query], "5m")
			ss, err := m.Query(t.Context(), query, at)
			if err != nil {
				t.Error(err)
				continue
			}
			at0 := fmt.Sprintf("%s, query %d", p.Where(), x.query)
			got := make(map[string]float64)
			for _, s := range ss {
				if math.IsNaN(s.Value) {
					continue // a mean of none
				}
				var key []string
				for _, l := range strings.Split(x.label, ",") {
					key = append(key, s.Label(l))
				}
				got[strings.TrimSpace(strings.Join(key, " "))] += s.Value
			}
			moves := false
			for k, v := range x.values {
				checked++
				k = strings.TrimSpace(k)
				g, ok := got[k]
				delete(got, k)
				if !ok && (math.IsNaN(v) || v == 0 && onlyIfAny(p.Exprs[x.query])) {
					continue
				}
				lo, hi := min(v/x.within, v*x.within), max(v/x.within, v*x.within)
				if x.within == coarse && v < firstBound {
					lo, hi = 0, firstBound
				}
				if !ok || g < lo-1e-12 || g > hi+1e-12 {
					t.Errorf("%s: %s %q is %v, the recording says %v", at0, x.label, k, g, v)
				}
				moves = moves || v != 0
			}
			for k, g := range got {
				if g != 0 && x.label != "le" {
					t.Errorf("%s: %s %q is %v, of which the recording says nothing", at0, x.label, k, g)
				}
			}
			if !moves {
				if constant++; p.Board != "health" && !still[at0] {
					t.Errorf("%s: nothing but 0 was compared", at0)
				}
			}
		}
	}
	for w := range left {
		t.Errorf("there is no panel %s", w)
	}
	t.Logf("%d values of %d panels compared, %d queries at 0", checked, len(want), constant)
}

// Each panel shows what the recording of the same run says, by separate code. Only
// the health board may show what is constant.
func TestBoardsShowTheRecording(t *testing.T) {
	rec := record(t, synthetic)
	var doc reports.Document
	if err := json.Unmarshal([]byte(built.Run(t, nil, "report", "--json", rec)), &doc); err != nil || len(doc.Engines) != 1 {
		t.Fatal(len(doc.Engines), err)
	}
	e := doc.Engines[0]
	dir := servers.RingDir(t)
	took := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-protobuf")
	})
	rules, _ := ruleFiles(t)
	side := sidecar(t, dir, traces(took), "--every", "20")
	m := servers.StartPrometheus(t, servers.PrometheusOptions{Targets: []string{side.URL}, Rules: rules})
	m.AwaitTargets(1)

	// The ring is there, with its counters at 0, before anything happens in it; then a
	// little does, and the rest once that was scraped.
	begin := spanring.MonoNS() + int64(time.Second)
	clock := &pausing{atNS: begin - 1}
	_, src := firstRun(t, rec)
	played := make(chan error, 1)
	go func() {
		_, err := player.Play(t.Context(), spanring.Dir{Path: dir, Group: -1}, src, player.Options{Clock: clock, StartMonoNS: begin})
		played <- err
	}()
	await := func(q string) {
		t.Helper()
		servers.Poll(t, "the first of "+q, func() error { return some(m.Query(t.Context(), q, time.Time{})) })
	}
	await(`lanetrace_spans_begun_total == 0`)
	clock.until(begin + int64(120*time.Millisecond))
	await(`lanetrace_gpu_lane_duration_seconds_count > 0`)
	await(`lanetrace_gpu_kernel_armed_duration_seconds_count{kernel!="other"} > 0`)
	clock.until(math.MaxInt64)
	if err := <-played; err != nil {
		t.Fatal(err)
	}
	side.Settled(1)
	// Everything that is recorded of the last values is there.
	at := restAfter(t, m, time.Now().Add(5*time.Second))

	want, devices := expected(e, readSpans(t, rec)), deviceMetrics()
	compare(t, m, at, want)
	panels, _ := servers.Boards(t)
	for i := range panels {
		p := &panels[i]
		device := !slices.ContainsFunc(p.Exprs, func(e string) bool { return !ofDevices(e, devices) })
		if want[p.Where()] == nil && !slices.Contains(rare, p.Where()) && p.Board != "health" && !device {
			t.Errorf("%s: compared with nothing", p.Where())
		}
	}
}
