//go:build servers

package servers_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/internal/servers"
	"github.com/lanetrace/lanetrace/spanring"
)

// requestContext is the span of request n, whose trace is recorded.
func requestContext(n int) spanring.TraceContext {
	c := spanring.TraceContext{Flags: 1}
	c.TraceID[0], c.TraceID[15], c.SpanID[7] = 0x4b, byte(n), byte(n)
	return c
}

// Steps of the script in which something is rare.
const (
	scriptedSteps = 1302
	lateStep      = 101 // its lanes are known only when most others are over
	knownAfter    = 1282
	requestsOpen  = 3 // of as many more
)

// unusual is what is so in a step of both ranks.
func unusual(n uint64) scriptedStep {
	o := scriptedStep{armed: n%4 == 0, prefill: n%10 == 7}
	switch {
	case n == 700 || n == 720: // long ago
		o.armed, o.prefill, o.longerNS = false, false, 9e6
	case n == 1291 || n == 1293 || n == 1295:
		o.armed, o.prefill, o.longerNS = false, false, 8e6
	case n == 60: // long, but of a kind of which too few were seen
		o.armed, o.prefill, o.longerNS = false, true, 9e6
	case n%97 == 0:
		o.failed = true
	case n%89 == 0:
		o.dropped = true
	case n%83 == 0:
		o.differs = true
	case n%148 == 0:
		o.asked = true
	case n >= 900 && n < 912:
		o.links = []spanring.TraceContext{requestContext(int(n%6) + 1)}
	}
	return o
}

// What is rare in an engine that is well is on the boards as the sidecar's own recording
// has it: slow steps and why steps are traces, requests, ranks of which one is late,
// graphs, clocks, problems.
func TestBoardsShowWhatIsRare(t *testing.T) {
	const every = 20
	rules, _ := ruleFiles(t)
	dir, keep := servers.RingDir(t), filepath.Join(t.TempDir(), "keep")
	var (
		requests, sent atomic.Int64
		mu             sync.Mutex
		bodies         bytes.Buffer
	)
	took := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		n, err := bodies.ReadFrom(r.Body)
		mu.Unlock()
		if err != nil {
			t.Error(err)
		}
		requests.Add(1)
		sent.Add(n)
		w.Header().Set("Content-Type", "application/x-protobuf")
	})
	side := sidecar(t, dir, traces(took), "--every", fmt.Sprint(every), "--budget", "0", "--keep", keep, "--leak-window", "3s")
	m := servers.StartPrometheus(t, servers.PrometheusOptions{Targets: []string{side.URL}, Rules: rules})
	m.AwaitTargets(1)
	before, err := usedBy(side.PID())
	if err != nil {
		t.Fatal(err)
	}

	// At level lane no step is armed; and of an engine that has ended no request is open.
	never := func(n uint64) scriptedStep {
		o := unusual(n)
		o.armed, o.asked, o.links = false, false, nil
		return o
	}
	began := spanring.MonoNS()
	rank := func(tensor int32, o spanring.ContextState, admitNS, ownNS, collectiveNS uint64) *scripted {
		r := spanring.NoRank
		r.Tensor = tensor
		return newScripted(t, dir, spanring.Info{Rank: r, Model: "small", KernelEvery: 4, LaneEvery: uint32(tensor) + 1}, o, admitNS, ownNS, collectiveNS)
	}
	waits := rank(0, spanring.ContextState{
		UUID: [16]byte{0xa0, 0x11}, Calibration: spanring.CalibrationMeasured, ConstantNS: 3040, RatePPB: 11_800, UncertaintyNS: 1500, UpdatedMonoNS: began - 40e9,
	}, 1e6, 4e6, 3e6)
	late := rank(1, spanring.ContextState{
		UUID: [16]byte{0xa1, 0x22}, Calibration: spanring.CalibrationAssumed, ConstantNS: 2900, RatePPB: -4_300, UncertaintyNS: 42_000, UpdatedMonoNS: began - 7e9,
	}, 2e6, 6e6, 1e6)
	alone := newScripted(t, dir, spanring.Info{Service: "alone", Rank: spanring.NoRank, Level: 2}, spanring.ContextState{
		UUID: [16]byte{0xa2, 0x33}, UncertaintyNS: 900, RatePPB: 200, UpdatedMonoNS: began - 90e9,
	}, 1e6, 2e6, 0)
	engines := []*scripted{waits, late, alone}
	scripts := map[*scripted]func(uint64) scriptedStep{waits: unusual, late: unusual, alone: never}
	a := waits.w.Allocs()
	a.Lock()
	a.Track(1, 1)
	a.Unlock()
	defer leaking(waits)()

	// Every series is scraped before most of what it counts happens, and those of which
	// each one counts at 0: what is made of growth is then right however long this takes.
	scraped := func(q string, series int) {
		t.Helper()
		servers.Poll(t, q, func() error {
			ss, err := m.Query(t.Context(), q, time.Time{})
			if err == nil && len(ss) != series {
				err = fmt.Errorf("%d series, want %d", len(ss), series)
			}
			return err
		})
	}
	stepped := func(n int) {
		t.Helper()
		scraped(fmt.Sprintf("sum by (engine) (lanetrace_steps_total) >= %d", n), len(engines))
	}
	scraped("lanetrace_spans_begun_total == 0", len(engines))
	for _, s := range engines {
		s.endAt(began-60e9, 4)
		s.write(4, scripts[s])
	}
	stepped(4)
	// Not all of a scrape is of one moment. Two engines have armed steps.
	scraped("lanetrace_gpu_lane_duration_seconds_count > 0", 3*2)
	scraped("lanetrace_gpu_lane_armed_duration_seconds_count > 0", 2*2)
	scraped("lanetrace_gpu_kernel_armed_duration_seconds_count > 0", 2*2)
	scraped("lanetrace_gpu_graph_armed_duration_seconds_count > 0", 2*2)
	for _, s := range engines {
		s.endAt(spanring.MonoNS(), scriptedSteps-4)
		s.write(lateStep-1, scripts[s])
		st := s.beginStep(scriptedStep{})
		s.write(knownAfter, scripts[s])
		st.end()
	}
	// A slow step is asked about while it is fresh: what comes before it is read by then.
	stepped(knownAfter)
	for _, s := range engines {
		s.endAt(spanring.MonoNS(), scriptedSteps-knownAfter)
		s.write(scriptedSteps, scripts[s])
		if s == alone {
			continue
		}
		for n := range requestsOpen {
			r := spanring.RequestEnd{TraceContext: requestContext(n + 1), BeginNS: began, EndNS: began + 1000, PromptTokens: 10, OutputTokens: 2}
			s.put(r.Words(), spanring.CtrRequests)
		}
	}
	late.w.Add(spanring.CtrStarved, 600)
	for c, n := range map[spanring.Counter]uint64{spanring.CtrAnchors: 90, spanring.CtrAnchorsGivenUp: 6} {
		waits.w.Add(c, n)
		late.w.Add(c, 2*n)
	}
	a = late.w.Allocs()
	a.Lock()
	a.Track(1, 1)
	for c, n := range map[spanring.Counter]int64{
		spanring.CtrMemGuardBytes: 4096, spanring.CtrMemArenaBytes: 1 << 20, spanring.CtrAllocsFailed: 3, spanring.CtrFreesUnknown: 12, spanring.CtrAllocsReplaced: 30,
	} {
		a.Add(c, n)
	}
	a.Unlock()
	for i, s := range engines[:2] {
		s.stray(10 * (i + 1))
		for c, n := range map[spanring.Counter]uint64{
			spanring.CtrCapturing: 2, spanring.CtrMisuse: 3, spanring.CtrNamesFull: 4, spanring.CtrOverlapping: 5, spanring.CtrControlApplied: 6,
			spanring.CtrHarvests: 700, spanring.CtrHarvestCalls: 8000, spanring.CtrHarvestNS: 9e7, spanring.CtrDriverCalls: 10_000,
			spanring.CtrStepsUntimed: 11, spanring.CtrStepTimeNS: 20e9, spanring.CtrArmedCostNS: 3e7 + 1e7*uint64(i), spanring.CtrLaneCostNS: 9e6,
		} {
			s.w.Add(c, n*uint64(i+1))
		}
	}
	waits.fly(began - 5e9)
	stepped(scriptedSteps)
	// This one goes in the middle of a step.
	alone.beginStep(scriptedStep{})
	if err := alone.w.Close(); err != nil {
		t.Fatal(err)
	}
	servers.Poll(t, "the end of an engine", func() error {
		v, err := m.Value(t.Context(), `sum(lanetrace_steps_incomplete_total{reason="engine_ended"})`)
		if err == nil && v != 1 {
			err = fmt.Errorf("%v steps", v)
		}
		return err
	})
	if err := os.WriteFile(filepath.Join(dir, strings.Repeat("ab", 16)+spanring.Suffix), []byte(strings.Repeat("not a ring ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	waits.beginStep(scriptedStep{})
	over := time.Now().Add(6 * time.Second)
	scrapedAfter(t, m, over.Add(-3*time.Second))
	watched := watch(t, side.PID())
	at := restAfter(t, m, over)
	own := ownFigures{instance: instance(t, side.URL), requests: requests.Load(), sent: sent.Load(), before: before, keptBytes: bytesIn(t, keep)}
	own.least, own.most = watched()
	if err := side.Stop(); err != nil {
		t.Fatal(err)
	}

	runs := surveyAll(t, keep, selection{oneInN: every})
	if len(runs) != len(engines) {
		t.Fatalf("%d runs were kept", len(runs))
	}
	for l, s := range runs {
		if s.account.Lost != 0 || s.account.Missed != 0 || s.late == 0 || s.slow["limited"]+s.slow["level"] == 0 || (s.open == 0) != (s.info.Level < 3) {
			t.Fatalf("%s is not what the script says: %+v", l, s)
		}
	}
	want := rarely(runs, at)
	for _, p := range rare {
		if want[p] == nil {
			t.Errorf("%s: compared with nothing", p)
		}
	}
	if len(rare) != len(want) {
		t.Errorf("%d panels are compared, want %d", len(want), len(rare))
	}
	maps.Copy(want, healthily(runs, at, own))
	compare(t, m, at, want)
	panels, _ := servers.Boards(t)
	for i := range panels {
		if w := panels[i].Where(); panels[i].Board == "health" && want[w] == nil {
			t.Errorf("%s: compared with nothing", w)
		}
	}

	// Points of panels lead to traces that were sent.
	leading := 0
	for i := range panels {
		for _, e := range panels[i].Exemplars {
			xs, err := m.Exemplars(t.Context(), servers.Interpolate(e, "5m"))
			if err != nil || len(xs) == 0 {
				t.Errorf("%s: %d exemplars, %v", panels[i].Where(), len(xs), err)
			}
			for _, x := range xs {
				leading++
				if id, err := hex.DecodeString(x.Labels["trace_id"]); err != nil || len(id) != 16 || !bytes.Contains(bodies.Bytes(), id) {
					t.Errorf("%s: no trace %v of %v was sent: %v", panels[i].Where(), x.Labels, x.Series, err)
				}
			}
		}
	}
	t.Logf("%d points of panels lead to traces", leading)

	// The longest bar stands first, and is who the others wait for.
	query := strings.TrimSuffix(strings.TrimPrefix(servers.Interpolate(exprOf(t, "ranks: The late rank", 0), "5m"), "sort_desc("), ")")
	ss, err := m.Query(t.Context(), "topk(1, "+query+")", at)
	if err != nil || len(ss) != 1 || ss[0].Label("rank_tensor") != "1" {
		t.Errorf("the late rank is %+v, %v", ss, err)
	}
}

// leaking has an engine allocate at a steady rate, and never free, until it is told to
// stop.
func leaking(s *scripted) (stop func()) {
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		last := spanring.MonoNS()
		for n := uint64(0); ; n++ {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			now := spanring.MonoNS() // a tick may come late, or not at all
			s.allocate(n, "cache.go:77", uint64(now-last)*(20<<20)/1e9)
			last = now
		}
	}()
	return func() { close(done); <-stopped }
}

// rare are the panels that show what TestBoardsShowWhatIsRare makes happen.
var rare = []string{
	"steps: GPU time known late", "steps: Slow steps", "steps: Steps selected as traces", "steps: Incomplete steps", "steps: Requests open",
	"kernels: Graph time", "kernels: Graph launch duration", "kernels: Queued and starved",
	"memory: Suspected leaks", "memory: Engines with a ledger", "memory: Problems", "memory: Guard bands and arenas",
	"ranks: The late rank", "ranks: Own work in a step", "ranks: In collectives in a step", "ranks: Spread of the mean lane across ranks",
	"ranks: Uncertainty of GPU clocks by rank", "ranks: Engines",
	"device: Uncertainty of the GPU's clock", "device: Age of the clock map", "device: Drift",
	"device: What an event pair measures beyond its kernel", "device: Anchors",
}

// rarely is what those show, of the recordings of the same runs.
func rarely(runs map[string]*surveyed, at time.Time) map[string][]of {
	// by are values by engine, and what else tells them apart.
	by := func(f func(s *surveyed) map[string]float64) map[string]float64 {
		out := make(map[string]float64)
		for l, s := range runs {
			for k, v := range f(s) {
				out[strings.TrimSpace(l+" "+k)] = v
			}
		}
		return out
	}
	each := func(f func(s *surveyed) float64) map[string]float64 {
		return by(func(s *surveyed) map[string]float64 { return map[string]float64{"": f(s)} })
	}
	// all are values of all engines together, of a window.
	all := func(f func(s *surveyed) map[string]float64, reasons ...string) map[string]float64 {
		out := make(map[string]float64)
		for _, r := range reasons {
			out[r] = 0
		}
		for _, s := range runs {
			for k, v := range f(s) {
				out[k] += v / rateWindow
			}
		}
		return out
	}
	device := func(f func(c *spanring.ContextState) (float64, bool)) map[string]float64 {
		return by(func(s *surveyed) map[string]float64 {
			if v, ok := f(&s.contexts[0]); ok {
				return map[string]float64{s.contexts[0].UUIDText(): v}
			}
			return nil
		})
	}
	perArmed := func(s *surveyed) float64 { return s.collective / float64(max(1, s.steps[1])) }
	own := func(s *surveyed) float64 {
		return (sum(s.lanes["admit"])+sum(s.lanes["decode"]))/float64(s.steps[0]) - perArmed(s)
	}
	const tensor0, tensor1 = "stand-in-tp0-gpua0110000", "stand-in-tp1-gpua1220000"
	spread := make(map[string]float64)
	for _, lane := range []string{"admit", "decode"} {
		var means []float64
		for _, s := range runs {
			means = append(means, meanOf(s.lanes[lane]))
		}
		spread[lane] = slices.Max(means) - slices.Min(means)
	}
	graphTime, graphMean, graphP99 := make(map[string]float64), make(map[string]float64), make(map[string]float64)
	launches := make(map[string][]float64)
	for _, s := range runs {
		for g, took := range s.graphs {
			graphTime[g] += sum(took) * float64(s.steps[0]+s.steps[1]) / float64(s.steps[1]) / rateWindow
			launches[g] = append(launches[g], took...)
		}
	}
	for g, took := range launches {
		graphMean[g], graphP99[g] = meanOf(took), quantileOf(0.99, took)
	}
	tracked := func(s *surveyed) bool { return s.scan.State == spanring.AllocsPublished }
	ledgers := by(func(s *surveyed) map[string]float64 {
		if tracked(s) {
			return map[string]float64{"": 1}
		}
		return map[string]float64{"": 0}
	})
	held := func(f func(s *surveyed) uint64) map[string]float64 {
		return by(func(s *surveyed) map[string]float64 {
			if tracked(s) {
				return map[string]float64{"": float64(f(s))}
			}
			return nil
		})
	}
	engines := make(map[string]float64)
	for l, s := range runs {
		rank := ""
		if s.info.Rank.Tensor >= 0 {
			rank = fmt.Sprint(s.info.Rank.Tensor)
		}
		engines[strings.Join([]string{l, s.info.RunID.String(), fmt.Sprint(s.info.PID), s.info.Executable, s.info.Service, s.info.GPUUUID, s.info.GPUName, s.info.Model, rank}, " ")] = 1
	}
	calibrations := map[spanring.Calibration]string{spanring.CalibrationMeasured: "measured", spanring.CalibrationAssumed: "assumed", spanring.CalibrationNone: "none"}
	var queued, starved float64
	for _, s := range runs {
		queued += float64(s.counters[spanring.CtrQueued]) / rateWindow
		starved += float64(s.counters[spanring.CtrStarved]) / rateWindow
	}
	counted := func(c spanring.Counter) map[string]float64 {
		return each(func(s *surveyed) float64 { return float64(s.counters[c]) / rateWindow })
	}
	return map[string][]of{
		"steps: GPU time known late": {{0, "engine", each(func(s *surveyed) float64 { return s.late / rateWindow }), exactly}},
		"steps: Slow steps": {{0, "reason", all(func(s *surveyed) map[string]float64 { return s.slow },
			"asked", "limited", "level", "pending", "stale", "failed", "no_ring", "off"), exactly}},
		"steps: Steps selected as traces": {{0, "reason", all(func(s *surveyed) map[string]float64 { return s.selected },
			"incomplete", "failed", "dropped", "launch_diff", "asked", "slow", "linked", "armed", "one_in_n", "all"), exactly}},
		"steps: Incomplete steps": {{0, "engine,reason", by(func(s *surveyed) map[string]float64 {
			out := map[string]float64{"timeout": 0, "evicted": 0, "engine_ended": 0, "detached": 0}
			for k, v := range s.incomplete {
				out[k] = v / rateWindow
			}
			return out
		}), exactly}},
		"steps: Requests open":           {{0, "engine", each(func(s *surveyed) float64 { return s.open }), exactly}},
		"kernels: Graph time":            {{0, "graph", graphTime, shortly}},
		"kernels: Graph launch duration": {{0, "graph", graphMean, shortly}, {1, "graph", graphP99, coarser}},
		"kernels: Queued and starved":    {one(0, queued, exactly), one(1, starved, exactly)},
		"memory: Suspected leaks": {{0, "engine,site", by(func(s *surveyed) map[string]float64 {
			// Whoever never frees grows by what it allocates.
			out := make(map[string]float64)
			for site, made := range s.made {
				first, last := made[0], made[len(made)-1]
				bytes := 0.0
				for _, a := range made[1:] {
					bytes += float64(a.Bytes)
				}
				out[site] = bytes / float64(last.MonoNS-first.MonoNS) * 1e9
			}
			return out
		}), 1.15}},
		"memory: Engines with a ledger": {{0, "engine", ledgers, exactly}},
		"memory: Problems": {{0, "engine,reason", by(func(s *surveyed) map[string]float64 {
			out := make(map[string]float64)
			for r, c := range map[string]spanring.Counter{
				"allocs_failed": spanring.CtrAllocsFailed, "frees_failed": spanring.CtrFreesFailed, "frees_unknown": spanring.CtrFreesUnknown,
				"allocs_unlisted": spanring.CtrAllocsUnlisted, "allocs_replaced": spanring.CtrAllocsReplaced,
			} {
				out[r] = float64(s.counters[c]) / rateWindow
			}
			return out
		}), exactly}},
		"memory: Guard bands and arenas": {
			{0, "engine", held(func(s *surveyed) uint64 { return s.scan.Totals.GuardBytes }), exactly},
			{1, "engine", held(func(s *surveyed) uint64 { return s.scan.Totals.ArenaBytes }), exactly},
		},
		"ranks: The late rank": {{0, "engine", map[string]float64{
			tensor0: own(runs[tensor0]) - min(own(runs[tensor0]), own(runs[tensor1])), tensor1: own(runs[tensor1]) - min(own(runs[tensor0]), own(runs[tensor1])),
		}, shortly}},
		"ranks: Own work in a step": {{0, "engine", each(own), shortly}},
		"ranks: In collectives in a step": {{0, "engine", by(func(s *surveyed) map[string]float64 {
			if s.info.Level < 3 {
				return nil
			}
			return map[string]float64{"": perArmed(s)}
		}), shortly}},
		"ranks: Spread of the mean lane across ranks": {{0, "lane", spread, shortly}},
		"ranks: Uncertainty of GPU clocks by rank":    {{0, "engine", each(func(s *surveyed) float64 { return float64(s.contexts[0].UncertaintyNS) / 1e9 }), exactly}},
		"ranks: Engines":                         {{0, "engine,run_id,pid,executable,service,gpu,gpu_name,model,rank_tensor", engines, exactly}},
		"device: Uncertainty of the GPU's clock": {{0, "engine,gpu", device(func(c *spanring.ContextState) (float64, bool) { return float64(c.UncertaintyNS) / 1e9, true }), exactly}},
		"device: Age of the clock map": {{0, "engine", by(func(s *surveyed) map[string]float64 {
			if s.info.Clean {
				return nil // its clock stands still
			}
			return map[string]float64{"": float64(at.UnixNano()-s.wallNS-s.contexts[0].UpdatedMonoNS) / 1e9}
		}), 1.1}},
		"device: Drift": {{0, "engine,gpu", device(func(c *spanring.ContextState) (float64, bool) { return float64(c.RatePPB) / 1e9, true }), exactly}},
		"device: What an event pair measures beyond its kernel": {{0, "engine,gpu,calibration", by(func(s *surveyed) map[string]float64 {
			c := &s.contexts[0]
			return map[string]float64{c.UUIDText() + " " + calibrations[c.Calibration]: float64(c.ConstantNS) / 1e9}
		}), exactly}},
		"device: Anchors": {{0, "engine", counted(spanring.CtrAnchors), exactly}, {1, "engine", counted(spanring.CtrAnchorsGivenUp), exactly}},
	}
}

// exprOf is a query of a panel.
func exprOf(t *testing.T, where string, query int) string {
	t.Helper()
	panels, _ := servers.Boards(t)
	for i := range panels {
		if panels[i].Where() == where {
			return panels[i].Exprs[query]
		}
	}
	t.Fatalf("there is no panel %s", where)
	return ""
}

// scrapedAfter waits for a scrape after a time, and returns that scrape's.
func scrapedAfter(t *testing.T, m *servers.Prometheus, after time.Time) (at time.Time) {
	t.Helper()
	servers.Poll(t, "scrapes after the end", func() error {
		v, err := m.Value(t.Context(), "timestamp(lanetrace_engines_live)")
		if at = time.UnixMilli(int64(math.Round(v * 1e3))); err == nil && at.Before(after) {
			err = errors.New("not yet")
		}
		return err
	})
	return at
}

// restAfter is a scrape's time after another one when all rules have been evaluated of
// what was scraped after that. A machine that stands still for seconds has neither
// meanwhile.
func restAfter(t *testing.T, m *servers.Prometheus, after time.Time) (at time.Time) {
	t.Helper()
	scraped := scrapedAfter(t, m, after)
	servers.Poll(t, "rules after the end", func() error {
		rs, err := m.Rules(t.Context())
		for _, r := range rs {
			if r.LastEvaluation.Before(scraped.Add(time.Second)) {
				return fmt.Errorf("%s is of %v", r.Name, r.LastEvaluation)
			}
		}
		return err
	})
	return scrapedAfter(t, m, time.Now())
}
