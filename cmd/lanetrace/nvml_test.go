//go:build cgo

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/player"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// standInNVML is a directory with a library in the place of the driver's.
func standInNVML(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("gcc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", filepath.Join(dir, nvmlLibrary), "testdata/nvml/nvml.c")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return dir
}

// withNVML is a command line that finds that library.
func withNVML(t *testing.T, dir string, args ...string) (*exec.Cmd, *output) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "lanetrace", args...)
	cmd.Env = append(os.Environ(), "LANETRACE_NVML=true", "LANETRACE_NVML_INTERVAL=10ms", "LD_LIBRARY_PATH="+dir)
	stderr := new(output)
	cmd.Stderr = stderr
	return cmd, stderr
}

// record and sidecar --keep read GPUs, and what they wrote plays to the same figures.
func TestReadingsFromNVML(t *testing.T) {
	lib, base := standInNVML(t), t.TempDir()
	dir := spanring.Dir{Path: filepath.Join(base, "rings"), Group: -1}
	if err := dir.Make(); err != nil {
		t.Fatal(err)
	}
	f, err := recording.Open(testRecording(t, synth.Options{Duration: 3 * time.Second, StepEvery: 10 * time.Millisecond}))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	src, err := f.Source(0)
	if err != nil {
		t.Fatal(err)
	}
	kept, file := filepath.Join(base, "kept"), filepath.Join(base, "x.ltrec")
	record, recordErr := withNVML(t, lib, "record", "--dir", dir.Path, "--out", file)
	sidecar, sidecarErr := withNVML(t, lib, "sidecar", "--dir", dir.Path, "--listen", "127.0.0.1:0", "--keep", kept)
	asked := func(c *exec.Cmd, times int64) {
		t.Helper()
		eventually(t, fmt.Sprintf("%s asks for energy %d times", c.Args[1], times), func() bool {
			st, err := os.Stat(filepath.Join(base, c.Args[1]))
			return err == nil && st.Size() >= times
		})
	}
	for _, c := range []*exec.Cmd{record, sidecar} {
		c.Env = append(c.Env, "STANDIN_COUNT="+filepath.Join(base, c.Args[1]))
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
	}
	asked(record, 1)
	asked(sidecar, 1)
	_, perr := player.Play(t.Context(), dir, src, player.Options{})
	asked(record, 150)
	asked(sidecar, 150)
	for _, c := range []*exec.Cmd{record, sidecar} {
		if err := c.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := c.Wait(); err != nil {
			t.Errorf("%v: %v\n%s%s", c.Args, err, recordErr.String(), sidecarErr.String())
		}
	}
	if err := src.Close(); err != nil || perr != nil {
		t.Fatal(err, perr)
	}
	if !strings.Contains(recordErr.String(), " readings of GPUs, ") {
		t.Errorf("record says %q", recordErr.String())
	}
	for _, path := range []string{file, kept} {
		text, stderr := runs(t, 0, "replay", path, "--metrics", "-", "--speed", "max")
		if stderr != "" {
			t.Errorf("%s: %q", path, stderr)
		}
		between := func(a, b float64) func(float64) bool { return func(v float64) bool { return v >= a && v <= b } }
		for _, want := range []series{
			{"lanetrace_device_info", []string{`hw_name="stand-in GPU"`}, between(1, 1)},
			{"lanetrace_device_readings_total", nil, between(100, 1e6)},
			{"lanetrace_device_readings_failed_total", []string{`query="utilization"`}, isZero},
			{"hw_power_watts", nil, between(123.456, 123.456)},
			{"hw_energy_joules_total", nil, between(500, 1e6)},
			{"hw_temperature_celsius", nil, isZero},
			{"hw_errors_total", []string{`error_type="corrected"`}, between(7, 7)},
			{"hw_gpu_memory_usage_bytes", nil, between(400, 400)},
			{"lanetrace_device_clocks_held_down_time_seconds_total", []string{`reason="hardware_thermal"`}, between(1, 3600)},
			{"lanetrace_device_clocks_held_down_time_seconds_total", []string{`reason="power_cap"`}, isZero},
			{"lanetrace_device_energy_per_token_joules", []string{`kind="generated"`}, between(0.01, 1000)},
		} {
			if want.line(text) == "" {
				all := series{want.name, nil, func(float64) bool { return true }}
				t.Errorf("%s: %s %v: %q", path, want.name, want.labels, all.line(text))
			}
		}
		if strings.Contains(text, "hw_gpu_utilization") || strings.Contains(text, "pcie_throughput") || strings.Contains(text, "remapped_rows{") {
			t.Errorf("%s: what is not supported has series", path)
		}
	}
}

// run reads GPUs too: for its /metrics, for what it keeps and for its report.
func TestRunReadsGPUs(t *testing.T) {
	at, err := makeAttachable()
	if err != nil {
		t.Fatal(err)
	}
	lib, base := standInNVML(t), t.TempDir()
	kept := filepath.Join(base, "kept")
	c, stderr := withNVML(t, lib+":"+filepath.Dir(at.driver), "run", "--dir", filepath.Join(base, "rings"), "--listen", "127.0.0.1:0", "--keep", kept,
		"--state-dir", filepath.Join(base, "state"), "--agent", at.agent, "--", at.engine, "50", "wait")
	if err := (spanring.Dir{Path: filepath.Join(base, "rings"), Group: -1}).Make(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "power and energy in /metrics", func() bool {
		text := scraped(stderr)
		power := series{"hw_power_watts", nil, func(v float64) bool { return v == 123.456 }}
		energy := series{"hw_energy_joules_total", nil, isPositive}
		lanes := series{"lanetrace_gpu_lane_duration_seconds_count", nil, isPositive}
		return power.line(text) != "" && energy.line(text) != "" && lanes.line(text) != ""
	})
	http.DefaultClient.CloseIdleConnections()
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); c.ProcessState.ExitCode() != 3 {
		t.Errorf("%v\n%s", err, stderr.String())
	}
	_, gpus, _ := strings.Cut(stderr.String(), "\nGPUS\n  stand-in GPU  GPU-5e1f0000-0000-4000-8000-000000000000\n    power   123 W mean, 123 W largest, of ")
	if !strings.Contains(gpus, "    energy  ") || !strings.Contains(gpus, "held down: hardware_slowdown ") || strings.Contains(stderr.String(), "warning") {
		t.Errorf("says\n%s", stderr.String())
	}
	text, _ := runs(t, 0, "replay", kept, "--metrics", "-", "--speed", "max")
	if energy := (series{"hw_energy_joules_total", nil, isPositive}); energy.line(text) == "" {
		t.Errorf("kept are\n%s", text)
	}
}

// scraped is what a process serves that has said where, "" while there is nothing.
func scraped(stderr *output) string {
	_, url, ok := strings.Cut(stderr.String(), "serving ")
	url, _, _ = strings.Cut(url, "/metrics")
	if !ok {
		return ""
	}
	res, err := http.Get(url + "/metrics")
	if err != nil {
		return ""
	}
	defer res.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(res.Body); err != nil {
		return ""
	}
	return b.String()
}

// A driver that hangs holds up no scrape and no end.
func TestHangingNVML(t *testing.T) {
	lib, base := standInNVML(t), t.TempDir()
	dir := spanring.Dir{Path: filepath.Join(base, "rings"), Group: -1}
	if err := dir.Make(); err != nil {
		t.Fatal(err)
	}
	c, stderr := withNVML(t, lib, "sidecar", "--dir", dir.Path, "--listen", "127.0.0.1:0")
	c.Env = append(c.Env, "STANDIN_HANG=1")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the device's health", func() bool {
		text := scraped(stderr)
		errors := series{"hw_errors_total", []string{`error_type="corrected"`}, isPositive}
		return errors.line(text) != "" && !strings.Contains(text, "hw_power_watts{")
	})
	http.DefaultClient.CloseIdleConnections()
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(patience, func() { _ = c.Process.Kill() })
	defer kill.Stop()
	if err := c.Wait(); err != nil {
		t.Errorf("ended with %v\n%s", err, stderr.String())
	}
}
