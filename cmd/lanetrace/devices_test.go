package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lanetrace/lanetrace/internal/dl"
	"github.com/lanetrace/lanetrace/spanring"
)

// Where there is no NVML one line says so, and nothing else does; where it is turned
// off none does.
func TestNVMLIsNamedOnce(t *testing.T) {
	base := t.TempDir()
	rings := filepath.Join(base, "rings")
	run := func(args ...string) string {
		t.Helper()
		c := start(t, append([]string{"sidecar", "--listen", "127.0.0.1:0", "--dir", rings, "--state-dir", filepath.Join(base, "state"), "--duration", "300ms"}, args...)...)
		if code := c.wait(t); code != 0 {
			t.Errorf("exit code %d, stderr %q", code, c.err.String())
		}
		return c.err.String()
	}
	if err := (spanring.Dir{Path: rings, Group: -1}).Make(); err != nil {
		t.Fatal(err)
	}
	named := func(text string) (lines []string) {
		for l := range strings.Lines(strings.ReplaceAll(text, base, "")) { // which has the test's name
			if strings.Contains(l, "NVML") || strings.Contains(l, "nvidia-ml") {
				lines = append(lines, l)
			}
		}
		return lines
	}
	if ls := named(run("--nvml=false")); len(ls) != 0 {
		t.Errorf("turned off: %q", ls)
	}
	if dl.Probe(nvmlLibrary) == nil {
		t.Skip("this machine has NVML")
	}
	ls := named(run("--nvml=true", "--nvml-interval", "10ms"))
	const warning = "lanetrace: warning: GPUs are not read: NVML is not available: "
	if len(ls) != 1 || !strings.HasPrefix(ls[0], warning) {
		t.Errorf("without NVML: %q", ls)
	}
	for _, nvml := range []bool{false, true} {
		r := start(t, "run", "--dir", rings, "--listen", "127.0.0.1:0", "--no-report", fmt.Sprintf("--nvml=%v", nvml), "--", "sleep", "0.3")
		if code := r.wait(t); code != 0 {
			t.Errorf("run: exit code %d, stderr %q", code, r.err.String())
		}
		if ls := named(r.err.String()); nvml != (len(ls) == 1) || nvml && !strings.HasPrefix(ls[0], warning) {
			t.Errorf("run --nvml=%v: %q", nvml, ls)
		}
		c := start(t, "record", "--dir", rings, "--out", filepath.Join(base, "x.ltrec"), "--duration", "300ms", fmt.Sprintf("--nvml=%v", nvml))
		c.wait(t) // there is no engine, which is an error
		if ls := named(c.err.String()); nvml != (len(ls) == 1) || nvml && !strings.HasPrefix(ls[0], warning) {
			t.Errorf("record --nvml=%v: %q", nvml, ls)
		}
	}
}

func TestNVMLInterval(t *testing.T) {
	for _, v := range []string{"9ms", "11s", "0", "-1s", "fast", ""} {
		_, stderr := runs(t, 2, "sidecar", "--nvml-interval="+v)
		if strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "--nvml-interval: want a duration from 10ms to 10s, got ") {
			t.Errorf("%q: %q", v, stderr)
		}
	}
	for _, v := range []string{"10ms", "10s", "1s"} {
		var i deviceInterval
		if err := i.UnmarshalText([]byte(v)); err != nil {
			t.Errorf("%s: %v", v, err)
		}
	}
}
