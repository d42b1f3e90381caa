package main

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// gpuRecording is a recording of an engine and the device that it runs on.
func gpuRecording(t *testing.T, o synth.Options) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gpu.ltrec")
	e := synth.New(o)
	w, err := recording.Create(path, recording.Options{Writer: program, WallOffsetNS: e.WallOffsetNS})
	if err != nil {
		t.Fatal(err)
	}
	o.Readings(w)
	p, err := collector.NewProcessor(e, collector.ProcessorOptions{Taps: []collector.Tap{w}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Drain(), p.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// readingsGiven keeps what a tap of devices is given, decoded.
type readingsGiven []spanring.DeviceReading

func (g *readingsGiven) DeviceReading(_ *collector.Device, entries []spanring.Words) {
	if r, err := spanring.DecodeDevice(entries); err == nil {
		*g = append(*g, r)
	}
}

// The metrics where a recording ends are those of a sidecar that read the same, GPUs
// included, at every speed, from a file or a directory.
func TestReplayMetrics(t *testing.T) {
	o := synth.Options{Duration: 3 * time.Second, KernelEvery: -1, StepEvery: 10 * time.Millisecond}
	path := gpuRecording(t, o)
	// What they are, by separate code: tokens from the steps' own attributes, between
	// the first reading and the last.
	var given readingsGiven
	o.Readings(&given)
	var often []spanring.DeviceReading
	for _, r := range given {
		if !r.Health {
			often = append(often, r)
		}
	}
	mj := func(r spanring.DeviceReading) float64 {
		v, _ := r.Get(spanring.DeviceEnergyMillijoules)
		return float64(v)
	}
	first, last := often[0], often[len(often)-1]
	joules := (mj(last) - mj(first)) / 1000
	watts, _ := last.Get(spanring.DevicePowerMilliwatts)
	f, err := recording.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	src, err := f.Source(0)
	if err != nil {
		t.Fatal(err)
	}
	var generated float64
	p, err := collector.NewProcessor(src, collector.ProcessorOptions{Observers: []collector.Observer{collector.ObserverFunc(func(s *collector.Step) {
		generated += float64(s.Attrs.DecodeTokens)
	})}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Drain(), p.Close()); err != nil {
		t.Fatal(err)
	}

	dir := filepath.Join(t.TempDir(), "kept")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(path, filepath.Join(dir, "a.ltrec")); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "metrics.txt")
	text, stderr := runs(t, 0, "replay", path, "--metrics", "-", "--speed", "max")
	if stderr != "" {
		t.Errorf("stderr %q", stderr)
	}
	if again, _ := runs(t, 0, "replay", dir, "--metrics", out); again != "" {
		t.Errorf("with a file there is output: %.200q", again)
	}
	fromDir, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for where, text := range map[string]string{"file": text, "directory": string(fromDir)} {
		for _, c := range []struct {
			name   string
			labels []string
			want   float64
			within float64
		}{
			{"lanetrace_device_info", []string{`hw_name="synthetic (no GPU)"`}, 1, 0},
			{"lanetrace_device_readings_total", nil, float64(len(often)), 0},
			{"lanetrace_device_readings_failed_total", []string{`query="utilization"`}, 1, 0},
			{"hw_power_watts", nil, float64(watts) / 1000, 0},
			{"hw_energy_joules_total", nil, joules, 1e-9},
			{"hw_temperature_celsius", nil, 62, 0},
			{"lanetrace_device_clock_hertz", []string{`clock="sm"`}, 1.2e9, 0},
			{"lanetrace_device_clocks_held_down_time_seconds_total", []string{`reason="power_cap"`}, 2.9, 1e-9},
			{"lanetrace_device_clocks_held_down_time_seconds_total", []string{`reason="hardware_thermal"`}, 1.5, 1e-9},
			{"lanetrace_device_nvlink_throughput_bytes_per_second", []string{`direction="transmit"`}, 6e9, 0},
			{"hw_errors_total", []string{`error_type="corrected"`}, 2, 0},
			{"lanetrace_tokens_total", []string{`kind="generated"`}, generated, 0},
			// The steps of before the first reading and behind the last are not in it.
			{"lanetrace_device_energy_per_token_joules", []string{`kind="generated"`}, joules / generated, 0.06 * joules / generated},
		} {
			says := func(v float64) bool { return math.Abs(v-c.want) <= c.within }
			if s := (series{c.name, c.labels, says}); s.line(text) == "" {
				any := series{c.name, c.labels, func(float64) bool { return true }}
				t.Errorf("%s: %s %v is not %v: %q", where, c.name, c.labels, c.want, any.line(text))
			}
		}
		if s := (series{"lanetrace_device_energy_per_token_live_joules", nil, isPositive}); s.line(text) == "" {
			t.Errorf("%s: no live energy by token", where)
		}
	}

	// A recording of before, without readings, has no series of devices.
	text, _ = runs(t, 0, "replay", testRecording(t, synth.Options{Duration: 100 * time.Millisecond}), "--speed", "max", "--metrics=-", "--format=text")
	if strings.Contains(text, "hw_power") || !strings.Contains(text, "\nlanetrace_steps_total{") && !strings.Contains(text, "lanetrace_step_duration_seconds_count") || !strings.HasPrefix(text, "BEGIN (UTC)") {
		t.Errorf("without readings: %.300q", text)
	}
	if _, stderr := runs(t, 1, "replay", path, "--metrics", "/no/such/dir/m"); strings.Count(stderr, "\n") != 1 {
		t.Errorf("%q", stderr)
	}
}

// Readings that cannot be are counted, said once, and cost nothing else.
func TestReplayBadReadings(t *testing.T) {
	path := badReadings(t)
	text, stderr := runs(t, 0, "replay", path, "--speed", "max", "--metrics", "-")
	if stderr != "lanetrace: warning: left out: 3 readings of GPUs that cannot be\n" || strings.Contains(text, "\nhw_") {
		t.Errorf("%q", stderr)
	}
	refused := series{"lanetrace_device_readings_refused_total", []string{`reason="malformed"`}, func(v float64) bool { return v == 3 }}
	if refused.line(text) == "" {
		t.Errorf("they are not counted:\n%s", text)
	}
}
