package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/internal/dl"
)

func TestMeasureEachLevel(t *testing.T) {
	var out, errs bytes.Buffer
	args := []string{"--backend", "sim", "--json", "--no-verify", "--max-batch", "1", "--ab", "25", "--ab-steps", "4", "--dir", ringDir(t)}
	if status := run(t.Context(), args, &out, &errs, func(string) string { return "" }); status != exitOK {
		t.Fatalf("status %d: %s", status, &errs)
	}
	var r abReport
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if r.Backend != "sim" || r.Batch != 1 || r.Lanes != 1 || r.Launches != 4+9*shapes["tiny"].layers || r.Rounds != 25 || r.Graph {
		t.Errorf("%+v", r)
	}
	if len(r.Modes) != 2 || r.Modes[0].Async || !r.Modes[1].Async {
		t.Fatalf("modes %+v", r.Modes)
	}
	if r.Dropped != 0 || r.Failed != 0 {
		t.Errorf("%d spans dropped, %d failed", r.Dropped, r.Failed)
	}
	for _, m := range r.Modes {
		if m.Steps != 4 || m.Stride < 64 || m.LaneStride != 1 || m.Profiled {
			t.Errorf("%d steps a round, one in %d armed, lanes of one in %d, profiled %v", m.Steps, m.Stride, m.LaneStride, m.Profiled)
		}
		var levels, differences []string
		for i, l := range m.Levels {
			levels = append(levels, l.Level)
			if len(l.RoundsNS) != 25 || !(l.LowerNS <= l.MedianNS && l.MedianNS <= l.UpperNS) || l.LowerNS <= 0 {
				t.Errorf("level %+v", l)
			}
			// One in so many at level kernel, which may be none of these, and each of
			// them, those that warm up too, where every one is asked for.
			if l.Armed > 0 != (i >= 4) && i != 4 || i == 5 && l.Armed != 25*(4+fixedWarm) {
				t.Errorf("level %s armed %d steps", l.Level, l.Armed)
			}
		}
		for _, d := range m.Differences {
			differences = append(differences, d.Of+"-"+d.Over)
			if !(d.LowNS <= d.MedianNS && d.MedianNS <= d.HighNS && d.LowerNS <= d.UpperNS) {
				t.Errorf("difference %+v", d)
			}
		}
		if diff := cmp.Diff([]string{"off", "off again", "basic", "lane", "kernel", "armed"}, levels); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"off again-off", "basic-off", "lane-basic", "kernel-lane", "armed-lane", "lane-off", "kernel-off"}, differences); diff != "" {
			t.Error(diff)
		}
	}
	var text bytes.Buffer
	if err := r.print(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"synchronous step", "asynchronous step", "kernel - lane", "steps armed"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in:\n%s", want, &text)
		}
	}
}

// TestMeasureAProfiler: a library that says how many kernels it saw stands in for
// CUPTI. It is on in every other round only, and a round has as many steps as take
// the time.
func TestMeasureAProfiler(t *testing.T) {
	lib := filepath.Join(t.TempDir(), "profiler.so")
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", lib, "testdata/profiler.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: %s", err, out)
	}
	if err := dl.Probe(lib); errors.Is(err, dl.ErrNoCgo) {
		t.Skip(err)
	}
	args := func(lib string) []string {
		return []string{"--backend", "sim", "--json", "--no-verify", "--max-batch", "1", "--graph", "--ab", "25", "--ab-time", "100us", "--ab-profiler", lib, "--dir", ringDir(t)}
	}
	var out, errs bytes.Buffer
	if status := run(t.Context(), args(lib), &out, &errs, func(string) string { return "" }); status != exitOK {
		t.Fatalf("status %d: %s", status, &errs)
	}
	var r abReport
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Modes) != 4 || !r.Graph || r.Launches != 1 {
		t.Fatalf("%d modes, graph %v, %d launches a step", len(r.Modes), r.Graph, r.Launches)
	}
	for i, m := range r.Modes {
		if m.Steps < minRoundSteps || m.Profiled != (i >= 2) || m.Async != (i%2 == 1) {
			t.Errorf("mode %d: %d steps a round, profiled %v, async %v", i, m.Steps, m.Profiled, m.Async)
		}
		if !m.Profiled {
			continue
		}
		if len(m.Levels) != 2 || m.Levels[1].Level != "profiler" || len(m.Differences) != 1 || m.Differences[0].Of != "profiler" {
			t.Errorf("levels %+v, differences %+v", m.Levels, m.Differences)
		}
		// The library says 100 kernels each time that it is switched off.
		if want := 100 / float64(m.Steps+fixedWarm); m.Kernels != want {
			t.Errorf("%v kernels a profiled step, want %v", m.Kernels, want)
		}
	}
	got := decode(t, t.Context(), args(lib+".not")...)
	if got.status != exitFailed || !strings.Contains(got.stderr, "decode: profiler: ") {
		t.Errorf("status %d: %s", got.status, got.stderr)
	}
}

func TestMeasuringNeedsARing(t *testing.T) {
	got := decode(t, t.Context(), "--no-verify", "--ab", "25", "--dir", t.TempDir()+"/no")
	if got.status != exitFailed || !strings.Contains(got.stderr, "decode: nothing to measure, telemetry is off: ") {
		t.Errorf("status %d: %s", got.status, got.stderr)
	}
}

func TestMedianInterval(t *testing.T) {
	for _, c := range []struct{ n, lo, hi int }{
		// P(at most 7 of 25 fair coins) is 0.0216, at most 8 is 0.0539.
		{25, 7, 17},
		// At most 9 of 30: 0.0214; at most 10: 0.0494.
		{30, 9, 20},
		// None of 6: 0.0156; at most one: 0.109.
		{6, 0, 5},
		{1, 0, 0},
	} {
		if lo, hi := medianInterval(c.n); lo != c.lo || hi != c.hi {
			t.Errorf("%d values: %d to %d, want %d to %d", c.n, lo, hi, c.lo, c.hi)
		}
	}
}

func TestDifferenceIsTakenWithinRounds(t *testing.T) {
	// The machine slows down from round to round, which must not show.
	a, b := make([]float64, 25), make([]float64, 25)
	for i := range a {
		b[i] = 1000 + 100*float64(i)
		a[i] = b[i] + 3
	}
	d := difference("lane", "basic", a, b)
	want := abDifference{Of: "lane", Over: "basic", MedianNS: 3, LowerNS: 3, UpperNS: 3, LowNS: 3, HighNS: 3, Share: 3 / 2200.0}
	if diff := cmp.Diff(want, d); diff != "" {
		t.Error(diff)
	}
}

func TestQuantile(t *testing.T) {
	v := []float64{1, 2, 3, 4}
	for q, want := range map[float64]float64{0: 1, 0.25: 1.75, 0.5: 2.5, 1: 4} {
		if got := quantile(v, q); got != want {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
}

func TestDurations(t *testing.T) {
	var d durations
	if d.quantile(0.5) != 0 {
		t.Error("a quantile of nothing")
	}
	for i := 1; i <= 1000; i++ {
		d.observe(time.Duration(i) * 10 * time.Microsecond)
	}
	for q, want := range map[float64]time.Duration{0.5: 5 * time.Millisecond, 0.99: 9900 * time.Microsecond, 1: 10 * time.Millisecond} {
		if got := d.quantile(q); math.Abs(float64(got-want)) > 0.02*float64(want) {
			t.Errorf("quantile %v is %v, want %v within 2 %%", q, got, want)
		}
	}
	d.observe(time.Hour * 1000)
	d.observe(0)
	if d.quantile(1) != time.Hour*1000 && d.quantile(1) > d.longest {
		t.Errorf("longest %v", d.quantile(1))
	}
}

func TestShort(t *testing.T) {
	for ns, want := range map[int64]string{0: "0s", 999: "999ns", 1234567: "1.235ms", 45_678_901: "45.68ms"} {
		if got := short(ns).String(); got != want {
			t.Errorf("%d: %s, want %s", ns, got, want)
		}
	}
}
