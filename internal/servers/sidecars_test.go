//go:build servers

package servers_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/servers"
)

// Two sidecars whose engines have the same label push through one Collector into
// one Prometheus. Their series stay apart; no counter is ever seen to fall, also
// when an engine is followed by another of the same name; and the last values are
// those that each sidecar serves.
func TestTwoSidecarsOneCollector(t *testing.T) {
	m := servers.StartPrometheus(t, servers.PrometheusOptions{})
	c := servers.StartCollector(t, servers.CollectorOptions{MetricsTo: m.OTLPHTTP})
	var sides [2]*servers.Service
	var dirs [2]string
	for i := range sides {
		dirs[i] = servers.RingDir(t)
		sides[i] = built.Sidecar(t, dirs[i], []string{"OTEL_TRACES_EXPORTER=none"}, "--otlp-endpoint", c.OTLP)
	}
	start := func(i int) *servers.Process {
		return built.Engine(t, dirs[i], []string{"LANETRACE_KERNEL_SPAN_EVERY=16"}, "--level", "kernel", "--duration", "3s", "--seed", fmt.Sprint(i+1))
	}
	a, b := start(0), start(1)
	first, other := sides[0].SettledRun(servers.EngineRunID(a)), sides[1].SettledRun(servers.EngineRunID(b))
	second := sides[0].SettledRun(servers.EngineRunID(start(0)))
	if first.Engine != other.Engine || first.Engine != second.Engine {
		t.Fatalf("engines are %s, %s and %s: the test wants one name", first.Engine, second.Engine, other.Engine)
	}

	for _, e := range []struct {
		side *servers.Service
		a    collector.Account
	}{{sides[0], second}, {sides[1], other}} {
		_, served, err := e.side.Scrape(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		stored := func() (servers.Series, error) {
			ss, err := m.Query(t.Context(), fmt.Sprintf(`{instance=%q,__name__!="target_info"}`, e.a.RunID), time.Time{})
			out := make(servers.Series)
			for _, s := range ss {
				if s.Label("job") != "decode" {
					t.Errorf("%v is of job %q", s.Labels, s.Label("job"))
				}
				out[servers.SeriesKey(s.Label("__name__"), s.Labels, "job", "instance")] = s.Value
			}
			return out, err
		}
		begun := servers.SeriesKey("lanetrace_spans_begun_total", map[string]string{"engine": e.a.Engine})
		servers.Poll(t, "the last values of run "+e.a.RunID+" in Prometheus", func() error {
			got, err := stored()
			if err != nil {
				return err
			}
			if got[begun] != float64(e.a.Producer.Begun) {
				return fmt.Errorf("%s is %v, the account says %d", begun, got[begun], e.a.Producer.Begun)
			}
			compared := 0
			for k, v := range got {
				want, ok := served[k]
				if !ok || !strings.Contains(k, "_total{") && !strings.Contains(k, "_count{") && !strings.Contains(k, "_sum{") {
					continue
				}
				compared++
				if !near(v, want) {
					return fmt.Errorf("%s is %v in Prometheus, served as %v", k, v, want)
				}
			}
			if compared < 60 {
				return fmt.Errorf("only %d counters are in both", compared)
			}
			return nil
		})
	}

	// The sidecars themselves are two instances.
	ss, err := m.Query(t.Context(), "lanetrace_build_info", time.Time{})
	if err != nil || len(ss) != 2 || ss[0].Label("instance") == ss[1].Label("instance") || ss[0].Label("instance") == "" {
		t.Errorf("the sidecars' own series: %+v, %v", ss, err)
	}
	// So are their engines, the one that came again besides.
	ss, err = m.Query(t.Context(), fmt.Sprintf("last_over_time(lanetrace_spans_begun_total{engine=%q}[10m])", first.Engine), time.Time{})
	if err != nil || len(ss) != 3 {
		t.Errorf("series of engines: %+v, %v", ss, err)
	}
	names, err := m.Names(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	counters := 0
	for _, n := range names {
		// What OpenTelemetry's conventions call a count need not be a counter.
		if !strings.HasSuffix(n, "_total") && (!strings.HasPrefix(n, "lanetrace_") || !strings.HasSuffix(n, "_count") && !strings.HasSuffix(n, "_bucket")) {
			continue
		}
		ss, err := m.Query(t.Context(), fmt.Sprintf("resets(%s[10m])", n), time.Time{})
		if err != nil {
			t.Error(err)
		}
		for _, s := range ss {
			counters++
			if s.Value != 0 {
				t.Errorf("%s%v fell %v times", n, s.Labels, s.Value)
			}
		}
	}
	if counters < 200 {
		t.Errorf("only %d counters in Prometheus", counters)
	}
}
