package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// TestReplaySelectsAsTheSidecar: without flags a replay of what two sidecars kept sends
// the traces that they sent, and the same spans, also where the second one selected
// otherwise.
func TestReplaySelectsAsTheSidecar(t *testing.T) {
	rings := filepath.Join(t.TempDir(), "rings")
	if err := (spanring.Dir{Path: rings, Group: -1}).Make(); err != nil {
		t.Fatal(err)
	}
	keep := filepath.Join(t.TempDir(), "keep")
	r, url := serveReceiver(t)
	live := map[string]string{}
	sidecar := func(engine synth.Options, flags ...string) {
		c := start(t, append([]string{"sidecar", "--dir", rings, "--listen", "127.0.0.1:0", "--otlp-endpoint", url, "--keep", keep}, flags...)...)
		web := urlIn(t, &c.err)
		playInto(t, rings, engine)
		eventually(t, "the engine's traces", func() bool {
			as := accountsOf(t, web)
			return slices.ContainsFunc(as, func(a collector.Account) bool {
				return strings.HasPrefix(a.Engine, engine.Service) && a.State == "ended" && a.Sidecar.Pending == 0 && a.Sidecar.Exported > 0
			})
		})
		c.stop()
		if code := c.wait(t); code != 0 {
			t.Fatalf("exit code %d, stderr %s", code, c.err.String())
		}
		maps.Copy(live, r.take())
	}
	sidecar(synth.Options{Duration: 300 * time.Millisecond, Service: "first", KernelEvery: -1}, "--every", "7", "--budget", "0")
	sevens := len(live)
	sidecar(synth.Options{Duration: 300 * time.Millisecond, Service: "second", Seed: 1, KernelEvery: -1}, "--every", "11", "--budget", "100000")
	if sevens == 0 || len(live) == sevens {
		t.Fatalf("%d and %d spans were sent", sevens, len(live)-sevens)
	}

	again := start(t, "replay", keep, "--otlp-endpoint", url)
	if code := again.wait(t); code != 0 {
		t.Fatalf("exit code %d, stderr %s", code, again.err.String())
	}
	got := r.take()
	if d := cmp.Diff(live, got); d != "" {
		t.Errorf("spans, as the sidecars sent them and as the replay did: %s", d)
	}
	want := regexp.MustCompile(`(?m)^lanetrace: selecting as the sidecar did: one step in 7, without a budget; from \d{4}-\S+ \S+ on one step in 11, within 100000 KiB/s$`)
	if !want.MatchString(again.err.String()) {
		t.Errorf("stderr %s, want %s", again.err.String(), want)
	}

	// A flag counts for all of it; so does one file of the directory.
	again = start(t, "replay", keep, "--otlp-endpoint", url, "--every", "1000000")
	if code := again.wait(t); code != 0 || !strings.Contains(again.err.String(), "lanetrace: selecting one step in 1000000, without a budget; from ") {
		t.Errorf("exit code %d, stderr %s", code, again.err.String())
	}
	if got := r.take(); len(got) > 0 {
		t.Errorf("%d spans were sent", len(got))
	}
	segments, err := filepath.Glob(filepath.Join(keep, "*.ltrec"))
	if err != nil || len(segments) != 2 {
		t.Fatalf("%v, %v", segments, err)
	}
	one := start(t, "replay", segments[0], "--speed", "max", "--select")
	if code := one.wait(t); code != 0 || !strings.Contains(one.err.String(), "lanetrace: selecting as the sidecar did: one step in 7") {
		t.Errorf("exit code %d, stderr %s", code, one.err.String())
	}

	// What cannot be read costs a warning.
	if err := os.WriteFile(filepath.Join(keep, selectionFile), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	again = start(t, "replay", keep, "--format", "text", "--select")
	if code := again.wait(t); code != 0 || !strings.Contains(again.err.String(), "selection.json: version 0, want 1; selecting one step in 1000, within 32 KiB/s") {
		t.Errorf("exit code %d, stderr %s", code, again.err.String())
	}
}

func TestNoteSelection(t *testing.T) {
	dir := t.TempDir()
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	day := 24 * time.Hour
	a, b, c := selection{10, 32}, selection{10, 0}, selection{1000, 32}
	for _, tt := range []struct {
		what  string
		after time.Duration
		s     selection
		want  []selectionSince
	}{
		{"the first", 0, a, []selectionSince{{at, a}}},
		{"the same again", time.Hour, a, []selectionSince{{at, a}}},
		{"another", 2 * time.Hour, b, []selectionSince{{at, a}, {at.Add(2 * time.Hour), b}}},
		{"back", 3 * time.Hour, a, []selectionSince{{at, a}, {at.Add(2 * time.Hour), b}, {at.Add(3 * time.Hour), a}}},
		{"a clock that was set back", time.Hour, c, []selectionSince{{at, a}, {at.Add(time.Hour), c}}},
		{"when the first holds for nothing any more", 26 * time.Hour, b, []selectionSince{{at.Add(time.Hour), c}, {at.Add(26 * time.Hour), b}}},
		{"after a long time", 100 * day, c, []selectionSince{{at.Add(26 * time.Hour), b}, {at.Add(100 * day), c}}},
	} {
		if err := noteSelection(dir, tt.s, at.Add(tt.after), day); err != nil {
			t.Fatal(err)
		}
		got, err := readKeptSelection(dir)
		if d := cmp.Diff(tt.want, got, cmp.AllowUnexported(selectionSince{})); d != "" || err != nil {
			t.Errorf("%s: %v, -want +got:\n%s", tt.what, err, d)
		}
	}
	full := keptSelection{Version: keptSelectionVersion}
	for i := range maxKeptSelections {
		full.Selections = append(full.Selections, selectionSince{at.Add(200 * day), selection{i + 1, 0}})
	}
	text, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, selectionFile), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := noteSelection(dir, c, at.Add(200*day), 1000*day); err != nil {
		t.Fatal(err)
	}
	if got, err := readKeptSelection(dir); err != nil || len(got) != maxKeptSelections || got[0].Every != 2 || got[len(got)-1].selection != c {
		t.Errorf("%d selections, %v", len(got), err)
	}
	if es, err := os.ReadDir(dir); err != nil || len(es) != 1 {
		t.Errorf("%v, %v", es, err)
	}
	if err := noteSelection(filepath.Join(dir, "none"), a, at, day); err == nil || !strings.Contains(err.Error(), "note the selection: ") {
		t.Errorf("a directory that is not there: %v", err)
	}
	// What cannot be read is written anew.
	if err := os.WriteFile(filepath.Join(dir, selectionFile), []byte("no"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := noteSelection(dir, a, at, day); err != nil {
		t.Error(err)
	}
	if got, err := readKeptSelection(dir); err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestReadKeptSelection(t *testing.T) {
	dir := t.TempDir()
	if got, err := readKeptSelection(dir); got != nil || err != nil {
		t.Errorf("none: %v, %v", got, err)
	}
	entry := `{"since":"2026-01-31T12:00:00Z","every":10,"budget_kib":0}`
	for text, want := range map[string]string{
		"":              "unexpected end of JSON input",
		`[]`:            "cannot unmarshal",
		`{"version":2}`: "version 2, want 1",
		`{"version":1}`: "0 selections",
		`{"version":1,"selections":[{"since":"2026-01-31T12:00:00Z","every":0}]}`:                   "selection 1: one step in 0",
		`{"version":1,"selections":[{"every":1,"budget_kib":-1}]}`:                                  "within -1 KiB",
		`{"version":1,"selections":[{"every":1,"budget_kib":4294967296}]}`:                          "within 4294967296 KiB",
		`{"version":1,"selections":[{"since":"2027-01-31T12:00:00Z","every":1},` + entry + `]}`:     "selection 2",
		`{"version":1,"selections":[` + strings.Repeat(entry+",", maxKeptSelections) + entry + `]}`: "1001 selections",
		`{"version":1,"selections":[` + entry + `]}` + strings.Repeat(" ", maxKeptSelectionBytes):   "not a file of a sidecar's",
	} {
		if err := os.WriteFile(filepath.Join(dir, selectionFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readKeptSelection(dir); got != nil || err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), dir) {
			t.Errorf("%.80s: %v, %v, want %s", text, got, err, want)
		}
	}
}

// TestSelectorOverTime: each step is selected as was said of its time.
func TestSelectorOverTime(t *testing.T) {
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	s := newSelectorOverTime([]selectionSince{
		{at, selection{2, 0}}, {at.Add(time.Minute), selection{3, 0}}, {at.Add(2 * time.Minute), selection{1000, 0}}, {at.Add(3 * time.Minute), selection{5, 0}},
	})
	got := map[string][]int64{}
	for _, when := range []time.Duration{-time.Hour, time.Minute, 90 * time.Second, time.Hour} {
		for n := int64(1); n <= 12; n++ {
			x := &collector.Step{Number: uint64(n), ClosedMonoNS: at.Add(when).UnixNano(), HasBegin: true, HasEnd: true}
			if why, _ := s.Select(x); why != collector.ExportNone {
				got[fmt.Sprint(when)] = append(got[fmt.Sprint(when)], n)
			}
		}
	}
	want := map[string][]int64{"-1h0m0s": {2, 4, 6, 8, 10, 12}, "1m0s": {3, 6, 9, 12}, "1m30s": {3, 6, 9, 12}, "1h0m0s": {5, 10}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}
