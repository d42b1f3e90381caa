//go:build servers

package servers_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/internal/servers"
)

// engineRun is an engine that ran under a sidecar and a recorder, all of it read by
// both.
type engineRun struct {
	side   *servers.Service
	report report
}

// report is what is used of `lanetrace report --json`.
type report struct {
	Engines []struct {
		Engine string `json:"engine"`
		Steps  struct {
			Unarmed, Armed, Host durations
		} `json:"steps"`
		Lanes []struct {
			Lane           string
			Unarmed, Armed durations
		} `json:"lanes"`
		Kernels []struct {
			Kernel string
			durations
		} `json:"kernels"`
	} `json:"engines"`
}

type durations struct {
	Count uint64  `json:"count"`
	SumNS float64 `json:"sum_ns"`
	P99NS float64 `json:"p99_ns"`
	MaxNS float64 `json:"max_ns"`
}

// runEngine lets the example engine serve some requests.
func runEngine(t *testing.T, env []string, sidecar ...string) engineRun {
	t.Helper()
	dir := servers.RingDir(t)
	rec := filepath.Join(t.TempDir(), "run.ltrec")
	r := engineRun{side: built.Sidecar(t, dir, env, sidecar...)}
	recorder := built.Start(t, nil, "record", "--dir", dir, "--out", rec)
	e := built.Engine(t, dir, []string{"LANETRACE_KERNEL_SPAN_EVERY=8", "LANETRACE_KERNEL_BUDGET=1"}, "--level", "kernel", "--requests", "300")
	if code := e.Wait(); code != 0 {
		t.Fatalf("engine: exit code %d", code)
	}
	r.side.Settled(1)
	if err := recorder.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(built.Run(t, nil, "report", "--json", rec)), &r.report); err != nil {
		t.Fatal(err)
	}
	if n := len(r.report.Engines); n != 1 {
		t.Fatalf("the recording has %d engines", n)
	}
	return r
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b)) }

// Every value that the sidecar serves is in Prometheus, and the values are those
// of a recording of the same engine.
func TestPrometheusValues(t *testing.T) {
	r := runEngine(t, nil)
	m := servers.StartPrometheus(t, servers.PrometheusOptions{Targets: []string{r.side.URL}})
	text, before, err := r.side.Scrape(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m.AwaitTargets(1)
	at := scrapedAfter(t, m, time.Now())
	_, after, err := r.side.Scrape(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	// What did not move between two looks at it had this value for Prometheus too.
	ss, err := m.Query(t.Context(), `{job="lanetrace",__name__=~"lanetrace_.*"}`, at)
	if err != nil {
		t.Fatal(err)
	}
	stored := make(servers.Series)
	for _, s := range ss {
		stored[servers.SeriesKey(s.Label("__name__"), s.Labels, "job", "instance")] = s.Value
	}
	compared := 0
	for k, v := range before {
		if after[k] != v || !strings.HasPrefix(k, "lanetrace_") {
			continue
		}
		compared++
		if got, ok := stored[k]; !ok || !near(got, v) {
			t.Errorf("%s is %v in Prometheus (there: %v), served as %v", k, got, ok, v)
		}
	}
	if compared < 300 || compared < len(before)*8/10 {
		t.Errorf("only %d of %d series did not move", compared, len(before))
	}

	value := func(query string) float64 {
		t.Helper()
		ss, err := m.Query(t.Context(), query, at)
		if err != nil || len(ss) != 1 {
			t.Errorf("%s: %d series, %v", query, len(ss), err)
			return math.NaN()
		}
		return ss[0].Value
	}
	same := func(query string, want float64) {
		t.Helper()
		if got := value(query); !near(got, want) {
			t.Errorf("%s is %v, the recording says %v", query, got, want)
		}
	}
	e := &r.report.Engines[0]
	same("lanetrace_step_duration_seconds_count", float64(e.Steps.Unarmed.Count))
	same("lanetrace_step_duration_seconds_sum", e.Steps.Unarmed.SumNS/1e9)
	same("lanetrace_step_armed_duration_seconds_count", float64(e.Steps.Armed.Count))
	same("lanetrace_step_host_duration_seconds_sum", e.Steps.Host.SumNS/1e9)
	if len(e.Lanes) < 3 || e.Steps.Armed.Count == 0 {
		t.Fatalf("the recording has %d lanes and %d armed steps", len(e.Lanes), e.Steps.Armed.Count)
	}
	for _, l := range e.Lanes {
		sel := fmt.Sprintf("{lane=%q}", l.Lane)
		same("lanetrace_gpu_lane_duration_seconds_count"+sel, float64(l.Unarmed.Count))
		same("lanetrace_gpu_lane_duration_seconds_sum"+sel, l.Unarmed.SumNS/1e9)
		same("lanetrace_gpu_lane_armed_duration_seconds_count"+sel, float64(l.Armed.Count))
		// The quantile lies in the bucket that holds the recording's, give or take that
		// bucket.
		q := value(fmt.Sprintf(`histogram_quantile(0.99, sum by (le) (lanetrace_gpu_lane_duration_seconds_bucket%s))`, sel)) * 1e9
		if l.Unarmed.Count >= 100 && (q < l.Unarmed.P99NS/3 || q > l.Unarmed.P99NS*3) {
			t.Errorf("p99 of lane %s is %v ns, the recording says %v", l.Lane, q, l.Unarmed.P99NS)
		}
	}

	out, err := servers.Promtool(t, text, "check", "metrics")
	for line := range strings.Lines(out) {
		// OpenTelemetry's conventions name a few gauges of processes as counts, which
		// Prometheus's reserve for histograms.
		if !strings.Contains(line, `should not have "_count" suffix`) || strings.HasPrefix(line, "lanetrace_") {
			t.Errorf("promtool check metrics: %v: %s", err, line)
		}
	}
}

// A malformed exposition is what promtool complains about: the check can fail.
func TestPromtoolComplains(t *testing.T) {
	if out, err := servers.Promtool(t, "# TYPE x counter\nx 1\n", "check", "metrics"); err == nil {
		t.Errorf("a counter without _total passes: %q", out)
	}
}

// Exponential histograms, when asked for, are native ones in Prometheus: count and
// sum are the recording's, and a quantile is as near as their buckets are narrow.
func TestPrometheusNativeHistograms(t *testing.T) {
	r := runEngine(t, nil, "--histograms", "exponential")
	m := servers.StartPrometheus(t, servers.PrometheusOptions{Targets: []string{r.side.URL}, NativeHistograms: true})
	m.AwaitTargets(1)
	at := scrapedAfter(t, m, time.Now())
	compared := 0
	for _, l := range r.report.Engines[0].Lanes {
		query := fmt.Sprintf("lanetrace_gpu_lane_duration_seconds{lane=%q}", l.Lane)
		ss, err := m.Query(t.Context(), query, at)
		if err != nil || len(ss) != 1 || ss[0].Histogram == nil {
			t.Fatalf("%s: %d series, of which the first is not native: %+v, %v", query, len(ss), ss, err)
		}
		h := ss[0].Histogram
		if h.Count != float64(l.Unarmed.Count) || !near(h.Sum, l.Unarmed.SumNS/1e9) {
			t.Errorf("%s has count %v, sum %v; the recording %d, %v", query, h.Count, h.Sum, l.Unarmed.Count, l.Unarmed.SumNS/1e9)
		}
		var inBuckets float64
		for _, b := range h.Buckets {
			inBuckets += b.Count
		}
		if inBuckets != h.Count {
			t.Errorf("%s has %v in its buckets, count %v", query, inBuckets, h.Count)
		}
		if l.Unarmed.Count < 200 {
			continue
		}
		compared++
		ss, err = m.Query(t.Context(), fmt.Sprintf("histogram_quantile(0.99, sum(%s))", query), at)
		if err != nil || len(ss) != 1 {
			t.Fatalf("the quantile of %s: %d series, %v", query, len(ss), err)
		}
		if q := ss[0].Value; math.Abs(q*1e9-l.Unarmed.P99NS) > 0.15*l.Unarmed.P99NS {
			t.Errorf("p99 of %s is %v ns, the recording says %v", query, q*1e9, l.Unarmed.P99NS)
		}
	}
	if compared == 0 {
		t.Errorf("no lane has enough spans: %+v", r.report.Engines[0].Lanes)
	}
}

// Metrics pushed straight to Prometheus's OTLP receiver have the same names and
// values as those it scrapes; exponential histograms are native ones.
func TestPrometheusOTLP(t *testing.T) {
	for _, form := range []string{"explicit", "exponential"} {
		t.Run(form, func(t *testing.T) {
			m := servers.StartPrometheus(t, servers.PrometheusOptions{})
			r := runEngine(t, []string{
				"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=http/protobuf", "OTEL_TRACES_EXPORTER=none",
				"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=" + m.OTLPHTTP + "/v1/metrics",
			}, "--histograms", form)
			run := r.side.Settled(1)[0].RunID
			for _, l := range r.report.Engines[0].Lanes {
				query := fmt.Sprintf("lanetrace_gpu_lane_duration_seconds_count{job=\"decode\",instance=%q,lane=%q}", run, l.Lane)
				if form == "exponential" {
					query = fmt.Sprintf("histogram_count(lanetrace_gpu_lane_duration_seconds{job=\"decode\",instance=%q,lane=%q})", run, l.Lane)
				}
				servers.Poll(t, query, func() error {
					v, err := m.Value(t.Context(), query)
					if err == nil && v != float64(l.Unarmed.Count) {
						err = fmt.Errorf("%v, the recording says %d", v, l.Unarmed.Count)
					}
					return err
				})
			}
			info, err := m.Query(t.Context(), fmt.Sprintf("target_info{job=\"decode\",instance=%q}", run), time.Time{})
			if err != nil || len(info) != 1 || info[0].Label("host_name") == "" || info[0].Label("process_pid") == "" {
				t.Errorf("the engine's resource: %+v, %v", info, err)
			}
		})
	}
}

// Exemplars are stored by Prometheus and lead to traces that Jaeger has: to the
// very span whose length they show.
func TestExemplars(t *testing.T) {
	j := servers.StartJaeger(t)
	t.Run("explicit", func(t *testing.T) { exemplars(t, j, false) })
	t.Run("exponential", func(t *testing.T) { exemplars(t, j, true) })
}

func exemplars(t *testing.T, j *servers.Jaeger, native bool) {
	form, suffix := "explicit", "_bucket"
	if native {
		form, suffix = "exponential", ""
	}
	dir := servers.RingDir(t)
	side := built.Sidecar(t, dir, []string{"OTEL_METRICS_EXPORTER=none"}, "--every", "20", "--budget", "0", "--histograms", form, "--otlp-endpoint", j.OTLP)
	m := servers.StartPrometheus(t, servers.PrometheusOptions{Targets: []string{side.URL}, NativeHistograms: native})
	e := built.Engine(t, dir, []string{"LANETRACE_KERNEL_SPAN_EVERY=50", "LANETRACE_KERNEL_BUDGET=1"}, "--level", "kernel", "--duration", "10m")
	found := map[string]int{}
	defer func() { t.Logf("exemplars by metric: %v", found) }()
	var xs []servers.Exemplar
	servers.Poll(t, "exemplars of steps and of lanes", func() error {
		clear(found)
		var err error
		if xs, err = m.Exemplars(t.Context(), `{job="lanetrace"}`); err != nil {
			return err
		}
		for _, x := range xs {
			found[x.Series["__name__"]]++
		}
		if found["lanetrace_step_duration_seconds"+suffix] < 3 || found["lanetrace_gpu_lane_duration_seconds"+suffix] < 3 {
			return fmt.Errorf("stored: %v", found)
		}
		return nil
	})
	if err := e.Stop(); err != nil {
		t.Error(err)
	}
	for _, x := range xs {
		var tr servers.JaegerTrace
		servers.Poll(t, fmt.Sprintf("the trace of exemplar %v of %v in Jaeger", x.Labels, x.Series), func() error {
			var ok bool
			var err error
			if tr, ok, err = j.Trace(t.Context(), x.Labels["trace_id"]); err == nil && !ok {
				err = errors.New("not there")
			}
			return err
		})
		var span *servers.JaegerSpan
		for i := range tr.Spans {
			if tr.Spans[i].SpanID == x.Labels["span_id"] {
				span = &tr.Spans[i]
			}
		}
		if span == nil {
			t.Errorf("exemplar %v of %v: its trace has no such span", x.Labels, x.Series)
			continue
		}
		if lane := x.Series["lane"]; lane != "" && lane != span.OperationName {
			t.Errorf("exemplar of lane %s leads to span %s", lane, span.OperationName)
		}
		// Jaeger cuts start and length to whole microseconds.
		if us := x.Value * 1e6; math.Abs(us-float64(span.DurationUS)) > 1.01 {
			t.Errorf("exemplar of %v shows %v us, its span %s is %d us long", x.Series, us, span.OperationName, span.DurationUS)
		}
	}
	if said := m.Stderr(); strings.Contains(said, "xemplar") {
		t.Errorf("prometheus complains: %s", said)
	}
}
