package attach

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/backend/agent"
)

// TestPassThrough calls every hooked function of the agent's own table, in every
// variant and through every way to the driver, also those that the stand-in lacks:
// the driver must be called as often, with the same arguments, and what it returns
// must arrive.
func TestPassThrough(t *testing.T) {
	dir, sources := t.TempDir(), t.TempDir()
	if err := agent.WriteSources(sources); err != nil {
		t.Fatal(err)
	}
	driver := filepath.Join(dir, "libcuda.so.1")
	program := filepath.Join(dir, "passthrough")
	for _, args := range [][]string{
		{"-fPIC", "-shared", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", "-o", driver, "testdata/fakedriver.c"},
		{"-o", program, "testdata/passthrough.c", "-ldl"},
		{"-DLINKED", "-o", program + "-linked", "testdata/passthrough.c", driver, "-ldl"},
	} {
		args = append([]string{"-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-I", sources, "-I", "testdata"}, args...)
		if said, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, said)
		}
	}
	for _, way := range []struct{ name, program, how string }{
		{"linked", program + "-linked", "linked"}, {"dlsym", program, "dlsym"}, {"cuGetProcAddress", program, "proc"},
	} {
		for _, level := range []string{"off", "basic"} {
			t.Run(way.name+"/"+level, func(t *testing.T) {
				want := start(t, runOptions{without: true, driver: driver}, way.program, way.how)
				if n := strings.Count(want.stdout, "  = "); want.code != 0 || n < 110 {
					t.Fatalf("without: exit code %d, %d calls\n%s", want.code, n, want.stderr)
				}
				got := start(t, runOptions{level: level, driver: driver, env: []string{"LANETRACE_STEP=none"}}, way.program, way.how)
				if diff := cmp.Diff(want.stdout, got.stdout); diff != "" || got.code != 0 || got.stderr != "" {
					t.Errorf("exit code %d, standard error %q; calls (-without +with the agent):\n%s", got.code, got.stderr, diff)
				}
			})
		}
	}
}
