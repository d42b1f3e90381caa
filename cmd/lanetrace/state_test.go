package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

func TestStateDir(t *testing.T) {
	for _, tc := range []struct {
		flag string
		env  map[string]string
		want string
	}{
		{"/a", map[string]string{"XDG_STATE_HOME": "/b"}, "/a"},
		{"", map[string]string{"XDG_STATE_HOME": "/b", "HOME": "/c"}, "/b/lanetrace"},
		{"", map[string]string{"XDG_STATE_HOME": "b", "HOME": "/c"}, "/c/.local/state/lanetrace"},
		{"", map[string]string{"HOME": "/c"}, "/c/.local/state/lanetrace"},
		{"", map[string]string{"HOME": "c"}, ""},
		{"", nil, ""},
	} {
		f := stateFlags{StateDir: tc.flag}
		got, err := f.stateDir(func(k string) string { return tc.env[k] })
		if got != tc.want || (err != nil) != (tc.want == "") {
			t.Errorf("--state-dir %q, %v: %q, %v; want %q", tc.flag, tc.env, got, err, tc.want)
		}
	}
}

// TestFlightRecords: a sidecar finds an engine that died and sees another one hang; of
// both there is a record, a line that names it, and a count.
func TestFlightRecords(t *testing.T) {
	base := t.TempDir()
	rec, rings, state := filepath.Join(base, "a.ltrec"), privateDir(t), filepath.Join(base, "state")
	if err := makeRecording(rec, synth.Options{Duration: 50 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if err := makeRings(rec, filepath.Join(base, "unused"), filepath.Join(base, "dead.ring"), filepath.Join(base, "ended.ring")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(base, "dead.ring"), filepath.Join(rings, strings.Repeat("d", 32)+spanring.Suffix)); err != nil {
		t.Fatal(err)
	}
	hub, err := lanetrace.Open(lanetrace.Config{Dir: rings, Service: "stuck", RingBytes: 256 << 10, HarvestEvery: -1, NoCalibration: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = hub.Close(ctx) // the GPU stands still, which Close says
	}()
	drv := scripted.New(scripted.Options{RealTime: true})
	dev, err := hub.Attach(drv)
	if err != nil {
		t.Fatal(err)
	}
	drv.StallAll()
	stream := drv.NewStream()
	drv.Stall(stream)
	step := hub.StepBegin()
	dev.LaneBegin(step, hub.Lane("decode"), stream).End()

	c := start(t, "sidecar", "--listen", "127.0.0.1:0", "--dir", rings, "--state-dir", state, "--hang-after", "100ms")
	url := urlIn(t, &c.err)
	for _, want := range []string{
		`(?m)^lanetrace: warning: flight record of an engine that died .*flight_record=` + state + `/flight/\S+-died\.txt$`,
		`(?m)^lanetrace: warning: engine hangs: a span is in flight for too long engine=stuck-gpu\S* run_id=` + hub.Ring().Info().RunID.String() +
			` lane=decode stream=\d+ step=1 age=".*" flight_record=` + state + `/flight/\S+-hung\.txt$`,
	} {
		eventually(t, "line "+want, func() bool { return regexp.MustCompile(want).MatchString(c.err.String()) })
	}
	for _, want := range []string{
		`lanetrace_flight_records_total\{reason="died"\} 1`, `lanetrace_flight_records_total\{reason="hung"\} 1`,
		`lanetrace_flight_failed_total\{reason="hung"\} 0`, `lanetrace_spans_in_flight_age_seconds\{engine="stuck-gpu\w*"\} (0\.[1-9]|[1-9])`,
	} {
		eventually(t, "metric "+want, func() bool {
			_, _, text := fetch(t, "GET", url+"/metrics")
			return regexp.MustCompile(want).MatchString(text)
		})
	}
	c.stop()
	if code := c.wait(t); code != 0 {
		t.Errorf("exit code %d, stderr %s", code, c.err.String())
	}
	for _, glob := range []string{"*-died.txt", "*-died.ltrec", "*-hung.txt", "*-hung.ltrec"} {
		if m, err := filepath.Glob(filepath.Join(state, "flight", glob)); err != nil || len(m) != 1 {
			t.Errorf("%s: %v, %v", glob, m, err)
		}
	}
}

// TestNoState: without a place for state there is one warning, and everything else.
func TestNoState(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := start(t, "sidecar", "--listen", "127.0.0.1:0", "--dir", privateDir(t), "--state-dir", filepath.Join(file, "state"))
	url := urlIn(t, &c.err)
	eventually(t, "it is ready", func() bool { code, _, _ := fetch(t, "GET", url+"/readyz"); return code == 200 })
	c.stop()
	if code := c.wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	want := regexp.MustCompile(`(?m)^lanetrace: warning: no state directory: make ` + file + `.*: not a directory; .* --state-dir$`)
	if text := c.err.String(); strings.Count(text, "warning") != 1 || !want.MatchString(text) {
		t.Errorf("stderr:\n%s", text)
	}
}

// TestSidecarRestarts: three lives of a sidecar send each step of an engine once and
// whole, those too that were open at a stop.
func TestSidecarRestarts(t *testing.T) {
	rings, state := privateDir(t), filepath.Join(t.TempDir(), "state")
	rcv, endpoint := serveReceiver(t)
	t.Setenv("OTEL_METRICS_EXPORTER", "none")
	hub, err := lanetrace.Open(lanetrace.Config{Dir: rings, Service: "s", RingBytes: 256 << 10, HarvestEvery: -1, NoCalibration: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer hub.Close(context.Background())
	drv := scripted.New(scripted.Options{RealTime: true})
	dev, err := hub.Attach(drv)
	if err != nil {
		t.Fatal(err)
	}
	stream, lane := drv.NewStream(), hub.Lane("decode")
	steps := 0
	step := func() {
		s := hub.StepBegin()
		dev.LaneBegin(s, lane, stream).End()
		s.End()
		steps++
	}
	land := func() {
		eventually(t, "the pairs land", func() bool {
			hub.Harvest()
			c := hub.Ring().Counters()
			return c[spanring.CtrStepsBegun] == c[spanring.CtrStepsEnded] && c.InFlight() == 0
		})
	}
	for life := range 3 {
		c := start(t, "sidecar", "--listen", "127.0.0.1:0", "--dir", rings, "--state-dir", state, "--otlp-endpoint", endpoint, "--every", "1", "--budget", "0")
		url := urlIn(t, &c.err)
		for range 20 {
			step()
		}
		land()
		// Open at the stop: its end has come, its lane has not.
		drv.Stall(stream)
		step()
		eventually(t, "all is read", func() bool {
			as := accountsOf(t, url)
			return len(as) == 1 && as[0].Reader.Published == hub.Ring().Published() && as[0].Reader.Pending == 0
		})
		a := accountsOf(t, url)[0]
		if (a.Reader.MissedBeforeAttach > 0) != (life > 0) || len(a.Unbalanced()) > 0 || a.Sidecar.Dropped["late"] > 0 {
			t.Errorf("life %d: %+v", life, a)
		}
		c.stop()
		if code := c.wait(t); code != 0 || strings.Contains(c.err.String(), "warning") {
			t.Errorf("life %d: exit code %d, stderr %s", life, code, c.err.String())
		}
		drv.Release(stream)
		land()
	}
	rcv.mu.Lock()
	defer rcv.mu.Unlock()
	// The last step is left to a life that does not come.
	if len(rcv.traces) != steps-1 {
		t.Errorf("%d traces of %d steps", len(rcv.traces), steps)
	}
	for id, n := range rcv.traces {
		if n != 3 { // the step, its part on the host, its lane
			t.Errorf("trace %s has %d spans, want 3", id, n)
		}
	}
}

// TestTwoSidecarsOfOneDirectory: the second says that it keeps no cursors, and works.
func TestTwoSidecarsOfOneDirectory(t *testing.T) {
	rings, state := privateDir(t), filepath.Join(t.TempDir(), "state")
	args := []string{"sidecar", "--listen", "127.0.0.1:0", "--dir", rings, "--state-dir", state}
	first := start(t, args...)
	urlIn(t, &first.err)
	second := start(t, args...)
	url := urlIn(t, &second.err)
	eventually(t, "the second is ready", func() bool { code, _, _ := fetch(t, "GET", url+"/readyz"); return code == 200 })
	if !strings.Contains(second.err.String(), "another sidecar of "+rings) || strings.Contains(first.err.String(), "warning") {
		t.Errorf("first:\n%s\nsecond:\n%s", first.err.String(), second.err.String())
	}
	for _, c := range []*command{first, second} {
		c.stop()
		if code := c.wait(t); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
	// Both are gone: the next one keeps them.
	third := start(t, args...)
	urlIn(t, &third.err)
	third.stop()
	if code := third.wait(t); code != 0 || strings.Contains(third.err.String(), "warning") {
		t.Errorf("exit code %d, stderr %s", code, third.err.String())
	}
}
