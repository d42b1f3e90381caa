package attach

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

// TestCircumstances runs programs that few are like: they see what they see without the
// agent.
func TestCircumstances(t *testing.T) {
	for _, tc := range []struct {
		what  string
		steps uint64
		said  string // by the agent, which is off then
	}{
		{what: "closed", steps: 1},
		{what: "close all", steps: 1},
		{what: "file size", said: "File too large"},
		{what: "cancel", steps: 3},
		{what: "primaries", steps: 12},
	} {
		t.Run(tc.what, func(t *testing.T) {
			guest := compileEngine(t, "guest.c", true)
			files := func(dir string) (out []string) {
				for i := range 16 {
					b, err := os.ReadFile(filepath.Join(dir, fmt.Sprint("file", i)))
					out = append(out, fmt.Sprint(string(b), err))
				}
				return out
			}
			plain, attached := t.TempDir(), t.TempDir()
			// A log of the driver's would be one of the descriptors that are closed.
			unlogged := "LANETRACE_TESTDRIVER_LOG="
			want := start(t, runOptions{without: true, env: []string{unlogged}}, guest, tc.what, filepath.Join(plain, "file"))
			o := runOptions{settle: tc.steps > 0 && tc.what != "closed", env: []string{"LANETRACE_STEP=step", unlogged}}
			got := start(t, o, guest, tc.what, filepath.Join(attached, "file"))
			if diff := cmp.Diff(want.stdout, strings.ReplaceAll(got.stdout, "ready\n", "")); diff != "" || got.code != 0 || want.code != 0 {
				t.Errorf("exit codes %d and %d; the program saw (-without +with the agent):\n%s", want.code, got.code, diff)
			}
			if tc.what == "close all" {
				if diff := cmp.Diff(files(plain), files(attached)); diff != "" {
					t.Errorf("the program wrote (-without +with the agent):\n%s", diff)
				}
			}
			if tc.said != "" {
				if strings.Count(got.stderr, "\n") != 1 || !strings.Contains(got.stderr, tc.said) || len(got.rings(t)) != 0 {
					t.Errorf("standard error %q, %d rings; want a line with %q and none", got.stderr, len(got.rings(t)), tc.said)
				}
				return
			}
			if got.stderr != "" {
				t.Errorf("standard error: %s", got.stderr)
			}
			ring := got.only(t)
			c, m := &ring.Counters, &ring.Memory
			if o.settle {
				ring.balanced(t)
			}
			// Two lanes and two kernels in a step.
			if c[spanring.CtrBegun] != 5*tc.steps || c[spanring.CtrStepsEnded] != tc.steps || c.InFlight() != 0 {
				t.Errorf("begun %d, steps %d, in flight %d; want %d steps", c[spanring.CtrBegun], c[spanring.CtrStepsEnded], c.InFlight(), tc.steps)
			}
			if m.Allocs != tc.steps || m.Frees != tc.steps || m.LiveBytes != 0 {
				t.Errorf("%d allocations, %d frees, %d bytes live; want %d, %d, 0", m.Allocs, m.Frees, m.LiveBytes, tc.steps, tc.steps)
			}
		})
	}
}

// TestContextRefused has a context refused once: that is said, and the next one is timed
// though it has the same handle.
func TestContextRefused(t *testing.T) {
	guest := compileEngine(t, "guest.c", true)
	r := start(t, runOptions{settle: true, env: []string{"LANETRACE_STEP=step"}}, guest, "refused")
	if want := "its device cannot be had"; r.code != 0 || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, want) {
		t.Fatalf("exit code %d, standard error %q, want one line with %q", r.code, r.stderr, want)
	}
	got := r.only(t)
	got.balanced(t)
	if s, l := got.Counters[spanring.CtrStepsEnded], len(got.Lanes); s != 2 || l != 2 {
		t.Errorf("%d steps, lanes %q; want 2 steps, and the second's lanes", s, got.Lanes)
	}
}

// TestNobodyListens runs a program whose standard error nobody reads any more: what the
// agent says must not end it.
func TestNobodyListens(t *testing.T) {
	guest := compileEngine(t, "guest.c", true)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()       //nolint:errcheck // nobody listens
	defer w.Close() //nolint:errcheck // likewise
	cmd := exec.Command(guest, "step")
	cmd.Env = runOptions{}.environment(t, "/nowhere/to/be/found", filepath.Join(t.TempDir(), "log"))
	cmd.Stderr = w
	if out, err := cmd.Output(); err != nil || string(out) != "done\n" {
		t.Errorf("%v, standard output %q", err, out)
	}
}
