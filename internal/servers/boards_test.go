//go:build servers

package servers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
		servers.Poll(t, "a value of "+r.Record, func() error {
			ss, err := m.Query(t.Context(), r.Record, time.Time{})
			if err == nil && len(ss) == 0 {
				err = errors.New("none")
			}
			return err
		})
	}
	_, series, err := demo.Scrape(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for k := range series {
		names[k[:strings.IndexByte(k, '{')]] = true
	}
	// The demo's GPU is not here, and nobody reads it.
	devices := deviceMetrics()
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
				if devices[s.Metric] {
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
				if ss, err := m.Query(t.Context(), q, time.Time{}); err != nil || len(ss) == 0 {
					t.Errorf("%s: %s selects nothing of the demo: %v", where, q, err)
				}
			}
		}
	}
	answered := 0
	for i := range panels {
		for _, e := range panels[i].Exprs {
			ss, err := m.Query(t.Context(), servers.Interpolate(e, "1m"), time.Time{})
			if err != nil || len(ss) == 0 && !ofDevices(e, devices) {
				t.Errorf("%s: %d series, %v", panels[i].Where(), len(ss), err)
				continue
			}
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

// ofDevices reports whether a query selects nothing else.
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
// released.
type pausing struct {
	player.SystemClock
	mu       sync.Mutex
	atNS     int64
	heldNS   int64
	released bool
}

func (p *pausing) MonoNS() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.SystemClock.MonoNS()
	if !p.released && now > p.atNS {
		return p.atNS
	}
	return now - p.heldNS
}

func (p *pausing) Sleep(ctx context.Context, d time.Duration) error {
	return p.SystemClock.Sleep(ctx, min(d, 20*time.Millisecond))
}

func (p *pausing) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released, p.heldNS = true, max(0, p.SystemClock.MonoNS()-p.atNS)
}

// of is what a panel's query is to say: by the value of one label, "" where there is
// one series.
type of struct {
	query  int
	label  string
	values map[string]float64
	// within is by how much a value may be off, as a factor; of quantiles the width of
	// a bucket.
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
	ruleWindow = 900.0
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
		"kernels: Kernels by GPU time":                       {{0, "kernel", kernels(func(k *reports.KernelReport) float64 { return sec(k.SumNS) / ruleWindow * scale }), shortly}},
		"kernels: Kernel time":                               {{0, "kernel", kernels(func(k *reports.KernelReport) float64 { return sec(k.SumNS) / ruleWindow * scale }), shortly}},
		"kernels: Kernel launches a second":                  {{0, "kernel", kernels(func(k *reports.KernelReport) float64 { return float64(k.Count) / ruleWindow * scale }), shortly}},
		"kernels: Mean kernel duration":                      {{0, "kernel", kernels(func(k *reports.KernelReport) float64 { return sec(k.SumNS) / float64(k.Count) }), shortly}},
		"kernels: Kernel duration, p99":                      {{0, "kernel", kernels(func(k *reports.KernelReport) float64 { return sec(k.P99NS) }), coarser}},
		"kernels: Queued and starved":                        {one(0, rate(c["queued"]), exactly), one(1, rate(c["starved"]), exactly)},
		"kernels: Steps for each armed one, 15 minutes":      {one(0, scale, shortly), one(1, float64(e.KernelEvery), exactly)},
		"kernels: What arming costs a lane":                  {{0, "lane", lanes(func(l *reports.LaneReport) float64 { return sec(l.Armed.SumNS) / float64(l.Armed.Count) }), shortly}, {1, "lane", lanes(func(l *reports.LaneReport) float64 { return sec(l.Unarmed.SumNS) / float64(l.Unarmed.Count) }), shortly}},
		"kernels: What arming costs a step":                  {one(0, sec(e.Steps.Armed.SumNS)/float64(e.Steps.Armed.Count), shortly), one(1, sec(e.Steps.Unarmed.SumNS)/float64(e.Steps.Unarmed.Count), shortly)},
		"kernels: Time of armed steps":                       {{0, "state", map[string]float64{"busy_in_lane": sec(g.Armed.Busy-g.Armed.BusyOutside) / rateWindow, "idle_in_lane": sec(g.Armed.LaneIdle) / rateWindow}, shortly}},
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
		"health: Begun, less what became of it":              {one(0, 0, exactly)},
		"health: Published, less what became of it":          {one(0, 0, exactly)},
		"health: Received, less what became of it":           {one(0, 0, exactly)},
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

// unread are the panels that show what no recording of an engine says, each with why.
// What they select is tested over the demo.
var unread = map[string]string{
	"steps: GPU time known late":                            "nothing is late",
	"steps: Slow steps":                                     "the sidecar judges that",
	"steps: Steps selected as traces":                       "the sidecar selects",
	"steps: Requests open":                                  "none is, at the end",
	"kernels: Graph time":                                   "no graphs are synthesised",
	"kernels: Graph launch duration":                        "no graphs are synthesised",
	"memory: Suspected leaks":                               "takes ten minutes; the alert's test has one",
	"memory: Engines with a ledger":                         "1",
	"memory: Problems":                                      "there are none",
	"ranks: The late rank":                                  "one rank; tested with the recording rules",
	"ranks: In collectives in a step":                       "one rank; tested with the recording rules",
	"ranks: Spread of the mean lane across ranks":           "one rank",
	"ranks: Uncertainty of GPU clocks by rank":              "grows with time",
	"ranks: Engines":                                        "no number",
	"device: Uncertainty of the GPU's clock":                "grows with time",
	"device: Age of the clock map":                          "grows with time",
	"device: Drift":                                         "read below",
	"device: What an event pair measures beyond its kernel": "read below",
	"device: Anchors":                                       "the synthetic engine counts none",
}

// still are queries that are 0 over the synthetic engine: no launch of its starves, it
// has no guard bands, no arenas, and every step of it is whole. A stand-in has the
// first three.
var still = map[string]bool{
	"kernels: Queued and starved, query 1":    true,
	"memory: Guard bands and arenas, query 0": true,
	"memory: Guard bands and arenas, query 1": true,
	"steps: Incomplete steps, query 0":        true,
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
	begin := spanring.MonoNS() + int64(3*time.Second)
	clock := &pausing{atNS: begin + int64(120*time.Millisecond)}
	_, src := firstRun(t, rec)
	played := make(chan error, 1)
	go func() {
		_, err := player.Play(t.Context(), spanring.Dir{Path: dir, Group: -1}, src, player.Options{Clock: clock, StartMonoNS: begin})
		played <- err
	}()
	for _, q := range []string{`lanetrace_gpu_lane_duration_seconds_count > 0`, `lanetrace_gpu_kernel_armed_duration_seconds_count{kernel!="other"} > 0`} {
		servers.Poll(t, "the first of "+q, func() error {
			ss, err := m.Query(t.Context(), q, time.Time{})
			if err == nil && len(ss) == 0 {
				err = errors.New("none")
			}
			return err
		})
	}
	clock.release()
	if err := <-played; err != nil {
		t.Fatal(err)
	}
	side.Settled(1)
	// Some scrapes later everything that was recorded from the last values is there.
	var at time.Time
	settled := time.Now().Add(5 * time.Second)
	servers.Poll(t, "scrapes after the end", func() error {
		v, err := m.Value(t.Context(), "timestamp(lanetrace_engines_live)")
		if at = time.UnixMilli(int64(math.Round(v * 1e3))); err == nil && at.Before(settled) {
			err = errors.New("not yet")
		}
		return err
	})

	want, devices := expected(e, readSpans(t, rec)), deviceMetrics()
	panels, _ := servers.Boards(t)
	checked, constant := 0, 0
	for i := range panels {
		p := &panels[i]
		exps, ok := want[p.Where()]
		delete(want, p.Where())
		if !ok {
			device := !slices.ContainsFunc(p.Exprs, func(e string) bool { return !ofDevices(e, devices) })
			if unread[p.Where()] == "" && p.Board != "health" && !device {
				t.Errorf("%s: compared with nothing", p.Where())
			}
			continue
		}
		for _, x := range exps {
			query := servers.Interpolate(p.Exprs[x.query], "5m")
			ss, err := m.Query(t.Context(), query, at)
			if err != nil {
				t.Error(err)
				continue
			}
			got := make(map[string]float64)
			for _, s := range ss {
				got[s.Label(x.label)] += s.Value
			}
			moves := false
			for k, v := range x.values {
				checked++
				g, ok := got[k]
				lo, hi := v/x.within, v*x.within
				if x.within == coarse && v < firstBound {
					lo, hi = 0, firstBound
				}
				if !ok || g < lo-1e-12 || g > hi+1e-12 {
					t.Errorf("%s, query %d: %s %q is %v, the recording says %v", p.Where(), x.query, x.label, k, g, v)
				}
				moves = moves || v != 0
			}
			if at0 := fmt.Sprintf("%s, query %d", p.Where(), x.query); !moves {
				if constant++; p.Board != "health" && !still[at0] {
					t.Errorf("%s: nothing but 0 was compared", at0)
				}
			}
		}
	}
	for w := range want {
		t.Errorf("there is no panel %s", w)
	}
	t.Logf("%d values of %d panels compared, %d queries at 0", checked, len(panels), constant)

	c := &e.Contexts[0]
	for q, v := range map[string]float64{
		"lanetrace_clock_drift_ratio":            float64(c.RatePPB) / 1e9,
		"lanetrace_calibration_constant_seconds": float64(c.ConstantNS) / 1e9,
	} {
		if g, err := m.Value(t.Context(), q); err != nil || math.Abs(g-v) > 1e-12 {
			t.Errorf("%s is %v (%v), the recording says %v", q, g, err, v)
		}
	}
}

// rankSteps writes n steps of a rank, every other one armed. All ranks have lanes of 7 ms
// with an all-reduce in them, in which those wait that have less to do.
func rankSteps(w *spanring.Writer, first, n int, admitNS, ownNS, collectiveNS uint64) {
	lane := [2]spanring.NameID{w.Name(spanring.NameLane, "admit"), w.Name(spanring.NameLane, "decode")}
	kernel := [2]spanring.NameID{w.Name(spanring.NameKernel, "gemm"), w.Name(spanring.NameKernel, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL")}
	graph := w.GraphName(7, 40, "")
	for s := first; s < first+n; s++ {
		step, armed, at := uint64(s), s%2 == 0, spanring.MonoNS()
		var words []spanring.Words
		put := func(k spanring.Kind, name spanring.NameID, ordinal, parent uint32, fromNS int64, ns uint64) {
			sp := spanring.Span{Kind: k, Armed: armed, Gap: spanring.GapQueued, Step: step, Name: name, Ordinal: ordinal, Parent: parent, StartMonoNS: at + fromNS, RawNS: ns, LeadNS: 2000}
			words = append(words, sp.Words())
		}
		b := spanring.StepBegin{Step: step, MonoNS: at, Armed: armed, Level: 3}
		words = append(words, b.Words())
		put(spanring.KindLane, lane[0], 1, 0, 0, admitNS)
		put(spanring.KindLane, lane[1], 2, 0, int64(admitNS), ownNS+collectiveNS)
		if armed {
			put(spanring.KindKernel, kernel[0], 3, 2, int64(admitNS), ownNS)
			put(spanring.KindKernel, kernel[1], 4, 2, int64(admitNS+ownNS), collectiveNS)
			put(spanring.KindGraph, graph, 5, 0, int64(admitNS+ownNS+collectiveNS), 250_000)
		}
		e := spanring.StepEnd{Step: step, MonoNS: at + 1000, BeginNS: at, Armed: armed, Opened: uint32(len(words) - 1)}
		w.Add(spanring.CtrBegun, uint64(len(words)))
		w.Add(spanring.CtrLanded, uint64(len(words)))
		words = append(words, e.Words())
		for i := range words {
			w.Append(&words[i])
		}
	}
}

// Of two ranks whose decode lanes are equally long, the board names the one that the
// other waits for. What the synthetic engine lacks is shown, too: graphs, starved
// launches, guard bands, arenas.
func TestBoardsNameTheLateRank(t *testing.T) {
	rules, _ := ruleFiles(t)
	dir := servers.RingDir(t)
	side := sidecar(t, dir, nil)
	m := servers.StartPrometheus(t, servers.PrometheusOptions{Targets: []string{side.URL}, Rules: rules})
	m.AwaitTargets(1)
	rank := func(tensor int32) *spanring.Writer {
		r := spanring.NoRank
		r.Tensor = tensor
		return servers.StandInRank(t, dir, spanring.Geometry{}, r)
	}
	waits, late := rank(0), rank(1)
	write := func(first, n int) {
		rankSteps(waits, first, n, 1e6, 4e6, 3e6)
		rankSteps(late, first, n, 2e6, 6e6, 1e6)
	}
	// Series that the first spans make are scraped before the rest comes.
	write(1, 4)
	scraped := func(steps float64) {
		servers.Poll(t, fmt.Sprintf("%v steps of both ranks", steps), func() error {
			ss, err := m.Query(t.Context(), fmt.Sprintf("sum by (engine) (lanetrace_steps_total) >= %v", steps), time.Time{})
			if err == nil && len(ss) != 2 {
				err = fmt.Errorf("of %d engines", len(ss))
			}
			return err
		})
	}
	scraped(3) // the last one may still be open
	write(5, 1000)
	late.Add(spanring.CtrStarved, 600)
	a := late.Allocs()
	a.Lock()
	a.Track(1, 1)
	a.Add(spanring.CtrMemGuardBytes, 4096)
	a.Add(spanring.CtrMemArenaBytes, 1<<20)
	a.Unlock()
	scraped(1000)

	panels, _ := servers.Boards(t)
	expr := func(where string, query int) string {
		for i := range panels {
			if panels[i].Where() == where {
				return servers.Interpolate(panels[i].Exprs[query], "5m")
			}
		}
		t.Fatalf("there is no panel %s", where)
		return ""
	}
	for _, c := range []struct {
		where, label string
		query        int
		want         map[string]float64
	}{
		{"ranks: The late rank", "rank_tensor", 0, map[string]float64{"0": 0, "1": 3e-3}},
		{"ranks: Own work in a step", "engine", 0, map[string]float64{"stand-in-tp0": 5e-3, "stand-in-tp1": 8e-3}},
		{"ranks: In collectives in a step", "engine", 0, map[string]float64{"stand-in-tp0": 3e-3, "stand-in-tp1": 1e-3}},
		{"ranks: Spread of the mean lane across ranks", "lane", 0, map[string]float64{"admit": 1e-3, "decode": 0}},
		{"kernels: Graph launch duration", "", 0, map[string]float64{"": 250e-6}},
		{"kernels: Graph time", "", 0, map[string]float64{"": 2 * 1000 * 250e-6 / 900}},
		{"kernels: Queued and starved", "", 1, map[string]float64{"": 600.0 / 300}},
		{"memory: Guard bands and arenas", "engine", 0, map[string]float64{"stand-in-tp1": 4096}},
		{"memory: Guard bands and arenas", "engine", 1, map[string]float64{"stand-in-tp1": 1 << 20}},
	} {
		q := expr(c.where, c.query)
		servers.Poll(t, c.where, func() error {
			ss, err := m.Query(t.Context(), q, time.Time{})
			if err != nil {
				return err
			}
			got := make(map[string]float64)
			for _, s := range ss {
				if !math.IsNaN(s.Value) { // the graph other, of which there is none
					got[s.Label(c.label)] += s.Value
				}
			}
			for k, v := range c.want {
				if g, ok := got[k]; !ok || math.Abs(g-v) > 0.08*v+1e-6 {
					return fmt.Errorf("%s %q is %v, want %v; there are %v", c.label, k, g, v, got)
				}
			}
			return nil
		})
	}
	ss, err := m.Query(t.Context(), "topk(1, "+strings.TrimSuffix(strings.TrimPrefix(expr("ranks: The late rank", 0), "sort_desc("), ")")+")", time.Time{})
	if err != nil || len(ss) != 1 || ss[0].Label("rank_tensor") != "1" {
		t.Errorf("the late rank is %+v, %v", ss, err)
	}
}
