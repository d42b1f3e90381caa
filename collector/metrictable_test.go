package collector

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
)

//go:generate go test -run ^TestMetricsDocIsCurrent$ . -args -update

var update = flag.Bool("update", false, "write generated files instead of comparing them")

func TestMetricsDocIsCurrent(t *testing.T) {
	const path = "../docs/metrics.md"
	want := MetricsDoc()
	if *update {
		if err := os.MkdirAll("../docs", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: run go generate ./collector", err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the table says: run go generate ./collector", path)
	}
}

func TestMetricTable(t *testing.T) {
	names, prom := map[string]bool{}, map[string]bool{}
	for _, m := range Metrics() {
		if names[m.Name] || prom[m.PrometheusName()] {
			t.Errorf("%s is there twice", m.Name)
		}
		names[m.Name], prom[m.PrometheusName()] = true, true
		standard := strings.HasPrefix(m.Name, "process.") || strings.HasPrefix(m.Name, "go.") || strings.HasPrefix(m.Name, "hw.")
		if !strings.HasPrefix(m.Name, "lanetrace.") && !standard || m.Name != strings.ToLower(m.Name) ||
			strings.HasSuffix(m.Name, "total") || strings.HasSuffix(m.Name, "seconds") || strings.HasSuffix(m.Name, "bytes") {
			t.Errorf("%s is no OpenTelemetry name", m.Name)
		}
		if m.Help == "" || !strings.HasSuffix(m.Help, ".") || strings.Contains(m.Help, "|") {
			t.Errorf("%s: help %q", m.Name, m.Help)
		}
		for _, l := range m.Labels {
			if slices.Contains([]string{labelReason, labelState, labelBound, labelKind, labelArmed, labelCPUMode}, l) && len(m.LabelValues(l)) == 0 {
				t.Errorf("%s: the values of %s are not known from the start", m.Name, l)
			}
		}
	}
	for _, want := range []string{
		"lanetrace_gpu_lane_duration_seconds", "lanetrace_step_duration_seconds", "lanetrace_gpu_kernel_armed_duration_seconds",
		"lanetrace_spans_begun_total", "lanetrace_spans_landed_total", "lanetrace_spans_failed_total",
		"lanetrace_spans_dropped_total", "lanetrace_spans_in_flight", "lanetrace_entries_lost_total",
		"lanetrace_entries_published_total", "lanetrace_steps_total", "lanetrace_engine_info",
	} {
		if !prom[want] {
			t.Errorf("no %s", want)
		}
	}
}
