package main

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/collector/device"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/report"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// reportedGPUs are those of report --json.
func reportedGPUs(t *testing.T, args ...string) []report.DeviceReport {
	t.Helper()
	text, stderr := runs(t, 0, append([]string{"report", "--json"}, args...)...)
	var doc report.Document
	if err := json.Unmarshal([]byte(text), &doc); err != nil || stderr != "" {
		t.Fatalf("%v, stderr %q", err, stderr)
	}
	return doc.Devices
}

// A report has of GPUs what /metrics would have said at the recording's end, and power
// by the readings themselves; --engine leaves no tokens out.
func TestReportOnGPUs(t *testing.T) {
	o := synth.Options{Duration: 3 * time.Second, KernelEvery: -1, StepEvery: 10 * time.Millisecond}
	path := gpuRecording(t, o)
	var sum, most, n float64
	var given readingsGiven
	o.Readings(&given)
	for _, r := range given {
		if mw, ok := r.Get(spanring.DevicePowerMilliwatts); ok {
			sum, most, n = sum+float64(mw)/1e3, max(most, float64(mw)/1e3), n+1
		}
	}
	metrics, _ := runs(t, 0, "replay", path, "--metrics", "-", "--speed", "max")
	value := func(name string, labels ...string) float64 {
		t.Helper()
		any := series{name, labels, func(float64) bool { return true }}
		line := any.line(metrics)
		v, err := strconv.ParseFloat(line[strings.LastIndex(line, " ")+1:], 64)
		if err != nil {
			t.Fatalf("%s %v: %q", name, labels, line)
		}
		return v
	}
	want := report.DeviceReport{
		UUID: "GPU-5e1f0000-0000-4000-8000-000000000000", Name: "synthetic (no GPU)", Readings: uint64(value("lanetrace_device_readings_total")),
		Power: &report.PowerReport{Mean: sum / n, Max: most}, EnergyBreaks: map[string]uint64{}, HeldDownSeconds: map[string]float64{},
	}
	j, g, a := value("hw_energy_joules_total"), value("lanetrace_device_energy_per_token_joules", `kind="generated"`), value("lanetrace_device_energy_per_token_joules", `kind="all"`)
	want.EnergyJoules, want.JoulesPerGenerated, want.JoulesPerToken = &j, &g, &a
	for _, r := range []string{"reset", "wrap"} {
		want.EnergyBreaks[r] = uint64(value("lanetrace_device_energy_breaks_total", `reason="`+r+`"`))
	}
	for _, r := range collector.HeldDownReasons {
		want.HeldDownSeconds[r] = value("lanetrace_device_clocks_held_down_time_seconds_total", `reason="`+r+`"`)
	}
	nearly := cmp.Comparer(func(x, y float64) bool { return math.Abs(x-y) <= 1e-9*math.Abs(x) })
	for _, args := range [][]string{{path}, {path, "--engine", "decode"}} {
		if d := cmp.Diff([]report.DeviceReport{want}, reportedGPUs(t, args...), nearly); d != "" {
			t.Errorf("%v, -metrics +report:\n%s", args[1:], d)
		}
	}

	text, stderr := runs(t, 0, "report", path)
	const head = "\n\nGPUS\n  synthetic (no GPU)  GPU-5e1f0000-0000-4000-8000-000000000000\n    power   "
	if stderr != "" || strings.Count(text, head) != 1 || !strings.Contains(text, " by token generated, ") || !strings.Contains(text, "    clocks  held down: power_cap ") {
		t.Errorf("stderr %q, text %s", stderr, text)
	}
	for _, args := range [][]string{{"--memory"}, {"--pprof", filepath.Join(t.TempDir(), "p")}} {
		if text, _ := runs(t, map[string]int{"--memory": 0, "--pprof": 1}[args[0]], append([]string{"report", path}, args...)...); strings.Contains(text, "GPUS") {
			t.Errorf("%v: %s", args, text)
		}
	}
	if ds := reportedGPUs(t, testRecording(t, synth.Options{Duration: 100 * time.Millisecond})); ds == nil || len(ds) > 0 {
		t.Errorf("without readings: %v", ds)
	}
}

// onlyReadings is a recording of devices alone, as a store keeps them.
func onlyReadings(t *testing.T, ids ...byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "readings.ltrec")
	w, err := recording.Create(path, recording.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		d := collector.Device{UUID: [16]byte{id}, Name: "stand-in GPU"}
		r := spanring.DeviceReading{UUID: d.UUID, MonoNS: 1e9}
		r.Set(spanring.DevicePowerMilliwatts, 123_456)
		w.DeviceReading(&d, r.Append(nil))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReportOnGPUsAlone(t *testing.T) {
	text, stderr := runs(t, 0, "report", onlyReadings(t, 1, 2))
	want := "GPUS\n"
	for _, id := range []string{"01", "02"} {
		want += "  stand-in GPU  GPU-" + id + "000000-0000-0000-0000-000000000000\n    power   123 W mean, 123 W largest, of 1 reading\n"
	}
	if d := cmp.Diff(want, text); d != "" || stderr != "" {
		t.Errorf("stderr %q, -want +got:\n%s", stderr, d)
	}
}

// Where no engine ran there are metrics all the same, of a file and of a directory.
func TestReplayGPUsAlone(t *testing.T) {
	path := onlyReadings(t, 1, 2)
	for _, from := range []string{path, filepath.Dir(path)} {
		text, stderr := runs(t, 0, "replay", from, "--metrics", "-")
		power := series{"hw_power_watts", []string{"GPU-02"}, func(v float64) bool { return v == 123.456 }}
		if power.line(text) == "" || stderr != "" {
			t.Errorf("%s: stderr %q\n%s", from, stderr, text)
		}
		runs(t, 1, "replay", from)
	}
}

// What is damaged, or none, is said; what was read is reported.
func TestReportOnBadReadings(t *testing.T) {
	path := badReadings(t)
	text, stderr := runs(t, 0, "report", path)
	if stderr != "lanetrace: warning: left out: 3 readings of GPUs that cannot be\n" || strings.Contains(text, "GPUS") || !strings.Contains(text, "LOSS ACCOUNT") {
		t.Errorf("%q, %s", stderr, text)
	}
	// Any byte behind the file's header.
	whole := onlyReadings(t, 1)
	b, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	var codes []int
	for i := 64; i < len(b); i++ {
		c := append([]byte(nil), b...)
		c[i] ^= 0x20
		if err := os.WriteFile(whole, c, 0o600); err != nil {
			t.Fatal(err)
		}
		var out, errs output
		code := run(t.Context(), []string{"report", whole}, &out, &errs)
		codes = append(codes, code)
		if code == 0 && strings.Contains(errs.String(), "damaged") || code != 0 && (code != 1 || strings.Count(errs.String(), "\n") != 1) {
			t.Errorf("byte %d: exit code %d, %q", i, code, errs.String())
		}
	}
	if len(codes) < 50 {
		t.Errorf("%d bytes were tried", len(codes))
	}
}

// GPUs that no engine reported on ran on are left out, unless there is nothing else.
func TestReportedDevices(t *testing.T) {
	const a, b = "GPU-5e1f0000-0000-4000-8000-000000000000", "GPU-5e1f0000-0000-4000-8000-000000000001"
	ds := []collector.DeviceStats{{ID: a}, {ID: b}}
	for _, c := range []struct{ on, want []string }{
		{nil, []string{a, b}},
		{[]string{b}, []string{b}},
		{[]string{b, b, "GPU-ff"}, []string{b}},
		{[]string{"GPU-5e1f"}, []string{a, b}},
		{[]string{"MIG-5e1f0000-0000-4000-8000-000000000001"}, []string{a, b}},
	} {
		var on []device.UUID
		for _, text := range c.on {
			u, _ := device.ParseUUID(text)
			on = append(on, u)
		}
		var got []string
		for _, d := range reportedDevices(ds, on) {
			got = append(got, d.ID)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("on %q, -want +got:\n%s", c.on, d)
		}
	}
}

// badReadings is a recording of a run and of readings that are none.
func badReadings(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bad.ltrec")
	e := synth.New(synth.Options{Duration: 200 * time.Millisecond})
	w, err := recording.Create(path, recording.Options{WallOffsetNS: e.WallOffsetNS})
	if err != nil {
		t.Fatal(err)
	}
	d := synth.Options{}.Device()
	for i := range 3 {
		w.DeviceReading(&d, []spanring.Words{{14 | 9<<8, 1, 2, uint64(1_000_010_000_000 + i)}})
	}
	p, err := collector.NewProcessor(e, collector.ProcessorOptions{Taps: []collector.Tap{w}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Drain(), p.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}
