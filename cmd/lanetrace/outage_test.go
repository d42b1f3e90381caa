package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/player"
	"github.com/lanetrace/lanetrace/internal/report"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// playInto plays a recording of the engine through a ring in dir, at its own pace.
func playInto(t *testing.T, dir string, o synth.Options) {
	t.Helper()
	f, err := recording.Open(testRecording(t, o))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	src, err := f.Source(0)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	if _, err := player.Play(t.Context(), spanring.Dir{Path: dir, Group: -1}, src, player.Options{}); err != nil {
		t.Fatal(err)
	}
}

// accountsOf are the loss accounts that a sidecar serves.
func accountsOf(t *testing.T, url string) (as []collector.Account) {
	t.Helper()
	_, _, text := fetch(t, "GET", url+"/debug/account")
	if err := json.Unmarshal([]byte(text), &as); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return as
}

// TestOutage: a receiver that takes nothing for a while costs spans, which the
// account names to the span; what was kept on disk brings exactly them back, and
// what the receiver had already comes again as the same spans, byte for byte.
func TestOutage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "rings")
	if err := (spanring.Dir{Path: dir, Group: -1}).Make(); err != nil {
		t.Fatal(err)
	}
	keep := filepath.Join(t.TempDir(), "keep")
	r, url := serveReceiver(t)
	c := start(t, "sidecar", "--dir", dir, "--listen", "127.0.0.1:0", "--otlp-endpoint", url, "--every", "1", "--budget", "0", "--keep", keep)
	web := urlIn(t, &c.err)

	playInto(t, dir, synth.Options{Duration: 500 * time.Millisecond})
	eventually(t, "the first engine's traces", func() bool {
		as := accountsOf(t, web)
		return len(as) == 1 && as[0].State == "ended" && as[0].Sidecar.Pending == 0 && as[0].Sidecar.Exported > 1000
	})
	down := time.Now().Add(-time.Second) // what is played begins a little before it is
	r.refuse.Store(true)
	playInto(t, dir, synth.Options{Duration: 500 * time.Millisecond, Seed: 1, Service: "second", FailEvery: 40})
	var as []collector.Account // in order of name
	eventually(t, "spans are refused", func() bool {
		as = accountsOf(t, web)
		return len(as) == 2 && as[0].State == "ended" && as[0].Sidecar.Dropped["refused"] > 1000 && as[0].Sidecar.Pending+as[1].Sidecar.Pending == 0
	})
	for _, a := range as {
		if u := a.Unbalanced(); len(u) > 0 {
			t.Errorf("unbalanced %v: %+v", u, a)
		}
	}
	lost := as[0].Sidecar.Dropped["refused"]
	if n := as[1].Sidecar.Dropped["refused"]; n > 0 {
		t.Fatalf("%d spans of the first engine were refused", n)
	}
	c.stop()
	if code := c.wait(t); code != 0 {
		t.Fatalf("exit code %d, stderr %s", code, c.err.String())
	}
	had := r.take()
	r.refuse.Store(false)

	// Everything that was kept, to a receiver that had a part of it.
	all := start(t, "replay", keep, "--since", "1h", "--every", "1", "--budget", "0", "--otlp-endpoint", url)
	if code := all.wait(t); code != 0 {
		t.Fatalf("exit code %d, stderr %s", code, all.err.String())
	}
	again := r.take()
	units := uint64(0)
	for id, b := range again {
		if !strings.HasSuffix(id, " host") {
			units++
		}
		if first, ok := had[id]; ok && first != b {
			t.Errorf("span %s differs from the one that was sent first:\n%q\n%q", id, first, b)
		}
	}
	for id := range had {
		if _, ok := again[id]; !ok {
			t.Errorf("span %s was not sent again", id)
		}
	}
	if got := as[0].Sidecar.Received + as[1].Sidecar.Received; units != got {
		t.Errorf("%d spans from the recordings, %d were received", units, got)
	}

	// What the outage cost, and nothing else.
	only := start(t, "replay", keep, "--since", down.Format(time.RFC3339Nano), "--until", time.Now().Format(time.RFC3339Nano), "--every", "1", "--budget", "0", "--otlp-endpoint", url, "--engine", "second")
	if code := only.wait(t); code != 0 {
		t.Fatalf("exit code %d, stderr %s", code, only.err.String())
	}
	back := r.take()
	units = 0
	for id, b := range back {
		if !strings.HasSuffix(id, " host") {
			units++
		}
		if again[id] != b {
			t.Errorf("span %s differs", id)
		}
	}
	if units != lost {
		t.Errorf("%d spans came back, the account says that %d were refused", units, lost)
	}
	if want := fmt.Sprintf("lanetrace: sending traces to %s\nlanetrace: sent %s spans\n", url, report.Count(lost)); only.err.String() != want {
		t.Errorf("stderr %q, want %q", only.err.String(), want)
	}

	// Steps of which none is selected, and a time after the last one.
	few := testRecording(t, synth.Options{Duration: 20 * time.Millisecond, KernelEvery: -1})
	none := start(t, "replay", few, "--every", "1000000", "--otlp-endpoint", url)
	if code := none.wait(t); code != 0 || !strings.Contains(none.err.String(), "no step was selected: --every 1") || !strings.Contains(none.err.String(), "sent 0 spans") {
		t.Errorf("exit code %d, stderr %s", code, none.err.String())
	}
	none = start(t, "replay", keep, "--since", time.Now().Format(time.RFC3339Nano), "--format", "text")
	if code := none.wait(t); code != 0 || none.out.String() != "" || none.err.String() != "lanetrace: no step lies in that time\n" {
		t.Errorf("exit code %d, stdout %q, stderr %s", code, none.out.String(), none.err.String())
	}

	// At a time when nothing was.
	none = start(t, "replay", keep, "--until", "2020-01-01", "--otlp-endpoint", url)
	if code := none.wait(t); code != 1 || !strings.Contains(none.err.String(), "nothing was recorded") {
		t.Errorf("exit code %d, stderr %s", code, none.err.String())
	}
}

// TestReplayIsRefused: spans that a receiver does not take cost the exit code.
func TestReplayIsRefused(t *testing.T) {
	path := testRecording(t, synth.Options{Duration: 100 * time.Millisecond})
	r, url := serveReceiver(t)
	r.refuse.Store(true)
	c := start(t, "replay", path, "--speed", "max", "--otlp-endpoint", url)
	if code := c.wait(t); code != 1 || !strings.Contains(c.err.String(), "spans were not taken") || !strings.Contains(c.err.String(), "in requests that were refused") {
		t.Errorf("exit code %d, stderr %q", code, c.err.String())
	}
}

// TestReplayGivesUp on a receiver that takes nothing, and says what was not sent.
func TestReplayGivesUp(t *testing.T) {
	r, url := serveReceiver(t)
	r.away.Store(true)
	var errs output
	a := &app{ctx: t.Context(), stdout: new(output), stderr: &errs, getenv: func(string) string { return "" }, log: newLogger(&errs)}
	c := &replayCmd{Path: testRecording(t, synth.Options{Duration: 100 * time.Millisecond}), stuckAfter: 300 * time.Millisecond}
	every := positive(1)
	c.OTLPEndpoint, c.Every = endpoint(url), &every
	began := time.Now()
	code := a.fail(c.Run(a))
	last := errs.String()[strings.LastIndex(strings.TrimSpace(errs.String()), "\n")+1:]
	if code != 1 || !strings.Contains(last, "the receiver took nothing for 300ms: the replay was given up") || !strings.Contains(last, "not sent in time") {
		t.Errorf("exit code %d, stderr %s", code, errs.String())
	}
	if took := time.Since(began); took > patience/2 {
		t.Errorf("took %v", took)
	}
}

// TestKeepUnwritable: a directory that cannot be made costs a warning, not the
// sidecar.
func TestKeepUnwritable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "rings")
	if err := (spanring.Dir{Path: dir, Group: -1}).Make(); err != nil {
		t.Fatal(err)
	}
	c := start(t, "sidecar", "--dir", dir, "--listen", "127.0.0.1:0", "--keep", "/proc/nowhere/keep")
	web := urlIn(t, &c.err)
	playInto(t, dir, synth.Options{Duration: 100 * time.Millisecond})
	eventually(t, "entries are read, and lost to the recordings", func() bool {
		as := accountsOf(t, web)
		_, _, text := fetch(t, "GET", web+"/metrics")
		return len(as) == 1 && as[0].Reader.Received > 100 && as[0].State == "ended" &&
			strings.Contains(text, fmt.Sprintf("lanetrace_keep_entries_total{reason=\"lost\"} %d\n", as[0].Reader.Received)) &&
			strings.Contains(text, "lanetrace_keep_entries_total{reason=\"written\"} 0\n")
	})
	c.stop()
	if code := c.wait(t); code != 0 || strings.Count(c.err.String(), "warning:") != 1 {
		t.Errorf("exit code %d, stderr %s", code, c.err.String())
	}
}

func TestMoment(t *testing.T) {
	local := func(y int, mo time.Month, d, h, mi, s int) time.Time {
		return time.Date(y, mo, d, h, mi, s, 0, time.Local)
	}
	for text, want := range map[string]time.Time{
		"2026-01-31T15:04:05":       local(2026, 1, 31, 15, 4, 5),
		"2026-01-31 15:04":          local(2026, 1, 31, 15, 4, 0),
		"2026-01-31":                local(2026, 1, 31, 0, 0, 0),
		"2026-01-31T15:04:05Z":      time.Date(2026, 1, 31, 15, 4, 5, 0, time.UTC),
		"2026-01-31T15:04:05+01:00": time.Date(2026, 1, 31, 14, 4, 5, 0, time.UTC),
	} {
		var m moment
		if err := m.UnmarshalText([]byte(text)); err != nil || m.unixNS() != want.UnixNano() {
			t.Errorf("%s: %v, %v", text, time.Time(m), err)
		}
	}
	var m moment
	before := time.Now().Add(-90 * time.Second)
	if err := m.UnmarshalText([]byte("90s")); err != nil || m.unixNS() < before.UnixNano() || time.Since(time.Time(m)) < 90*time.Second {
		t.Errorf("90s: %v, %v", time.Time(m), err)
	}
	for _, text := range []string{"", "yesterday", "-5s", "0s", "15:04"} {
		if err := m.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func TestByteCount(t *testing.T) {
	for text, want := range map[string]byteCount{"1": 1, "1048576": 1 << 20, "500MiB": 500 << 20, "2 GiB": 2 << 30, "3KiB": 3072, "1TiB": 1 << 40} {
		var c byteCount
		if err := c.UnmarshalText([]byte(text)); err != nil || c != want {
			t.Errorf("%s: %d, %v", text, c, err)
		}
	}
	for _, text := range []string{"", "0", "-1MiB", "1MB", "1.5GiB", "9999999999TiB", "x"} {
		var c byteCount
		if err := c.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: %d, no error", text, c)
		}
	}
}
