package prometheus

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/lanetrace/lanetrace/collector"
)

// TestDeviceSeries: what a device reports is served under the conventions' names and in
// their units; what it does not report has no series.
func TestDeviceSeries(t *testing.T) {
	stats := []collector.DeviceStats{reported, {ID: "GPU-mute", Name: "silent"}}
	p, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	mp := sdkmetric.NewMeterProvider(sdkmetric.WithReader(p.Reader()))
	t.Cleanup(func() { mp.Shutdown(t.Context()) })
	if err := collector.RegisterDevices(mp.Meter(collector.Scope), func() []collector.DeviceStats { return stats }); err != nil {
		t.Fatal(err)
	}
	fs := scrape(t, p.Handler())
	id := func(more ...string) map[string]string {
		l := map[string]string{"hw_id": reported.ID}
		for i := 0; i < len(more); i += 2 {
			l[more[i]] = more[i+1]
		}
		return l
	}
	for _, c := range []struct {
		name   string
		labels map[string]string
		want   float64
	}{
		{"lanetrace_device_info", id("hw_name", "NVIDIA H200"), 1},
		{"hw_power_watts", id("hw_type", "gpu"), 650.5},
		{"hw_energy_joules_total", id("hw_type", "gpu"), 0},
		{"hw_temperature_celsius", id(), 61},
		{"hw_gpu_memory_usage_bytes", id(), 90},
		{"hw_gpu_memory_limit_bytes", id(), 150},
		{"hw_gpu_utilization_ratio", id("hw_gpu_task", "general"), 0.97},
		{"hw_errors_total", id("hw_type", "gpu", "error_type", "corrected"), 0},
		{"lanetrace_device_clock_hertz", id("clock", "sm"), 1980e6},
		{"lanetrace_device_clock_hertz", id("clock", "memory"), 3201e6},
		{"lanetrace_device_memory_busy_ratio", id(), 0},
		{"lanetrace_device_remapped_rows", id("error_type", "uncorrected"), 1},
		{"lanetrace_device_remapped_rows_pending", id(), 1},
		{"lanetrace_device_remapped_rows_failed", id(), 0},
		{"lanetrace_device_pcie_throughput_bytes_per_second", id("network_io_direction", "receive"), 3e4},
		{"lanetrace_device_nvlink_throughput_bytes_per_second", id("network_io_direction", "transmit"), 6e9},
		{"lanetrace_device_energy_per_token_live_joules", id("kind", "generated"), 12.5},
		{"lanetrace_device_energy_per_token_joules", id("kind", "all"), 6},
		{"lanetrace_device_energy_per_step_estimate_joules", id(), 50},
		{"lanetrace_device_clocks_held_down_time_seconds_total", id("reason", "hardware_thermal"), 0},
		{"lanetrace_device_energy_breaks_total", id("reason", "wrap"), 0},
		{"lanetrace_device_readings_failed_total", id("query", "power"), 0},
		{"lanetrace_device_readings_refused_total", id("reason", "malformed"), 0},
	} {
		if got := value(t, fs, c.name, c.labels); got != c.want {
			t.Errorf("%s%v is %v, want %v", c.name, c.labels, got, c.want)
		}
	}
	// The other device is known, read and answers nothing.
	mute := map[string]bool{}
	for name, f := range fs {
		for _, m := range f.Metric {
			if labelsOf(m)["hw_id"] == "GPU-mute" {
				mute[name] = true
			}
		}
	}
	want := []string{"lanetrace_device_info", "lanetrace_device_readings_failed_total", "lanetrace_device_readings_refused_total", "lanetrace_device_readings_total"}
	if d := cmp.Diff(want, slices.Sorted(maps.Keys(mute))); d != "" {
		t.Errorf("a device that reports nothing has series, -want +got:\n%s", d)
	}
	// A value that is gone is not kept.
	stats = []collector.DeviceStats{{ID: reported.ID, Name: reported.Name}}
	for name := range scrape(t, p.Handler()) {
		if strings.HasPrefix(name, "hw_") {
			t.Errorf("%s is still there", name)
		}
	}
}
