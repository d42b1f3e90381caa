package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	if err := (spanring.Dir{Path: rings, Group: -1}).Make(); err != nil {
		t.Fatal(err)
	}
	over := filepath.Join(base, "over")
	commands := [][]string{
		{"sidecar", "--listen", "127.0.0.1:0", "--dir", rings, "--state-dir", filepath.Join(base, "state")},
		{"run", "--dir", rings, "--listen", "127.0.0.1:0", "--no-report", "--nvml=", "--", "sh", "-c", "until [ -e " + over + " ]; do sleep 0.05; done"},
		{"record", "--dir", rings, "--out", filepath.Join(base, "x.ltrec")}, // which finds no engine
	}
	named := func(c *command) (lines []string) {
		for l := range strings.Lines(strings.ReplaceAll(c.err.String(), base, "")) { // which has the test's name
			if strings.Contains(l, "NVML") || strings.Contains(l, "nvidia-ml") {
				lines = append(lines, l)
			}
		}
		return lines
	}
	noNVML := dl.Probe(nvmlLibrary) != nil
	for _, nvml := range []bool{false, true} {
		if nvml && !noNVML {
			t.Skip("this machine has NVML")
		}
		for _, args := range commands {
			flag := fmt.Sprintf("--nvml=%v", nvml)
			if i := slices.Index(args, "--nvml="); i >= 0 {
				args = slices.Clone(args)
				args[i] = flag
			} else {
				args = append(slices.Clone(args), flag)
			}
			if !nvml && args[0] != "run" {
				args = append(args, "--duration", "300ms")
			}
			c := start(t, args...)
			if nvml {
				eventually(t, args[0]+" says that there is no NVML", func() bool { return len(named(c)) > 0 })
			}
			switch {
			case args[0] == "run":
				if err := os.WriteFile(over, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			case nvml:
				c.stop()
			}
			if code := c.wait(t); code != 0 && args[0] != "record" {
				t.Errorf("%s: exit code %d, stderr %q", args[0], code, c.err.String())
			}
			const warning = "lanetrace: warning: GPUs are not read: NVML is not available: "
			if ls := named(c); nvml != (len(ls) == 1) || nvml && !strings.HasPrefix(ls[0], warning) || !nvml && len(ls) > 0 {
				t.Errorf("%s --nvml=%v: %q", args[0], nvml, ls)
			}
			if err := os.RemoveAll(over); err != nil {
				t.Fatal(err)
			}
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
