package main

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const uuid = "GPU-5e1f0000-0000-4000-8000-000000000000"

// served is what a sidecar says at its scrape n.
func served(n int64) string {
	id := `hw_id="` + uuid + `"`
	other := `hw_id="GPU-0"`
	return strings.Join([]string{
		"# HELP hw_power_watts x", "hw_power_watts{" + other + "} 1", fmt.Sprintf("hw_power_watts{%s,hw_type=\"gpu\"} %d", id, 600+n),
		"lanetrace_device_clock_hertz{clock=\"memory\"," + id + "} 3.201e+09", "lanetrace_device_clock_hertz{clock=\"sm\"," + id + "} 1.98e+09",
		"hw_temperature_celsius{" + id + "} 61 1700000000", "hw_gpu_memory_usage_bytes{" + id + "} 1.048576e+09", "hw_gpu_memory_limit_bytes{" + id + "} 1.50754820096e+11",
		"hw_gpu_utilization_ratio{hw_gpu_task=\"general\"," + id + "} 0.97",
		"hw_errors_total{error_type=\"corrected\"," + id + "} 0", "lanetrace_device_remapped_rows_pending{" + id + "} 1",
		fmt.Sprintf("lanetrace_device_clocks_held_down_time_seconds_total{%s,reason=\"power_cap\"} %d", id, n),
		"lanetrace_device_clocks_held_down_time_seconds_total{" + id + ",reason=\"idle\"} 5",
		fmt.Sprintf("hw_energy_joules_total{%s,hw_type=\"gpu\"} %d", id, 100*n),
	}, "\n")
}

func TestRun(t *testing.T) {
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, served(n.Add(1))) }))
	t.Cleanup(s.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	smi := filepath.Join(t.TempDir(), "nvidia-smi")
	script := `#!/bin/sh
case "$*" in
*remapped_rows.failure*) echo 'Field "remapped_rows.failure" is not a valid field to query.'; exit 2;;
*-lms*) sleep 0.5; while :; do echo "` + uuid + `, 601.00"; sleep 0.02 || exit; done;;
esac
echo "` + uuid + `, 605.5, 1980, 3201, 62, 1000, 143771, 97, 55, 0, [N/A], [N/A], 0, Yes, 0x0000000000000004"
`
	if err := os.WriteFile(smi, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	f := flags{Metrics: s.URL, Command: smi, Phase: "full", Times: 1, Every: time.Second}
	if err := f.run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	var got [][]string
	for l := range strings.Lines(out.String()) {
		if w := strings.Fields(l); len(w) > 6 && w[1] == "1" && w[2] != "nvidia-smi" {
			got = append(got, w[2:min(len(w), 8)])
		}
	}
	want := [][]string{
		{"power.draw.instant", "602", "605.5", "603", "-2.5", "W"},
		{"clocks.sm", "1980", "1980", "1980", "0", "MHz"},
		{"clocks.mem", "3201", "3201", "3201", "0", "MHz"},
		{"temperature.gpu", "61", "62", "61", "-1", "°C"},
		{"memory.used", "1000", "1000", "1000", "0", "MiB"},
		{"memory.total", "143771", "143771", "143771", "0", "MiB"},
		{"utilization.gpu", "97", "97", "97", "0", "%"},
		{"utilization.memory", "absent", "55", "absent", "ONE", "ABSENT"},
		{"ecc.errors.corrected.volatile.total", "0", "0", "0", "0"},
		{"ecc.errors.uncorrected.volatile.total", "absent", "[N/A]", "absent", "both", "absent"},
		{"remapped_rows.correctable", "absent", "[N/A]", "absent", "both", "absent"},
		{"remapped_rows.uncorrectable", "absent", "0", "absent", "ONE", "ABSENT"},
		{"remapped_rows.pending", "1", "Yes", "1", "0"},
		{"remapped_rows.failure", "absent", "absent", "both", "absent"},
		{reasons, "4", "0x0000000000000004", "4", "0", "bits"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s\n%s", d, out.String())
	}
	if !strings.Contains(out.String(), "counter 200.0 J") {
		t.Errorf("no energy:\n%s", out.String())
	}

	// What fails says why, and leaves no process and no goroutine behind.
	gone := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(gone.Close)
	for _, bad := range []struct {
		flags
		want string
	}{
		{flags{Metrics: s.URL, Command: "/no/such", Times: 1, Every: 1}, "run /no/such: "},
		{flags{Metrics: "http://127.0.0.1:1", Command: smi, Times: 1, Every: 1}, "scrape: "},
		{flags{Metrics: gone.URL, Command: smi, Times: 1, Every: 1}, "scrape " + gone.URL + ": 404 Not Found"},
		{flags{Metrics: s.URL, Command: smi, Times: 0, Every: 1}, "compare 0 times every 1ns: want 1 or more"},
		{flags{Metrics: s.URL, Command: smi, Times: 2}, "compare 2 times every 0s: want 1 or more"},
	} {
		if err := bad.run(t.Context(), &out); err == nil || !strings.HasPrefix(err.Error(), bad.want) || strings.Contains(err.Error(), "%!") {
			t.Errorf("%+v: %v, want %s", bad.flags, err, bad.want)
		}
	}
	if _, err := parseFields("GPU-1, 2\n", []string{"a", "b"}); err == nil {
		t.Error("a field too few is none")
	}
}

func TestIntegrate(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * 1e9)) }
	ss := []sample{{at(0), 100}, {at(1), 200}, {at(2), 400}}
	for _, c := range []struct{ from, to, want float64 }{{0, 3, 700}, {0.5, 2.5, 450}, {-1, 1, 200}, {2, 4, 800}, {5, 4, 0}} {
		if got := integrate(ss, at(c.from), at(c.to)); math.Abs(got-c.want) > 1e-6 {
			t.Errorf("from %v to %v: %v J, want %v", c.from, c.to, got, c.want)
		}
	}
}
