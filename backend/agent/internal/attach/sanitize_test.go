package attach

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/lanetrace/lanetrace/backend/agent"
	"github.com/lanetrace/lanetrace/internal/testdriver"
	"github.com/lanetrace/lanetrace/spanring"
)

// TestSanitized runs an engine that has the agent's sources linked into it, but for
// the interposed dlsym, under the sanitizers.
func TestSanitized(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: sanitizer builds take a while")
	}
	for _, tc := range []struct {
		name, flag, env string
		what            []string
	}{
		{name: "thread", flag: "-fsanitize=thread", env: testdriver.TSan(t, "exitcode=66"), what: []string{"storm", "all"}},
		{name: "address", flag: "-fsanitize=address,undefined", env: "ASAN_OPTIONS=detect_leaks=0", what: []string{"storm", "all", "forks"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := agent.WriteSources(dir); err != nil {
				t.Fatal(err)
			}
			driver := testdriver.BuildWith(t, tc.flag, "-fno-omit-frame-pointer")
			testdata, err := filepath.Abs("testdata")
			if err != nil {
				t.Fatal(err)
			}
			sources, err := filepath.Glob(filepath.Join(dir, "*.c"))
			if err != nil {
				t.Fatal(err)
			}
			sources = slices.DeleteFunc(sources, func(s string) bool { return filepath.Base(s) == "interpose.c" })
			bin := filepath.Join(dir, "engine")
			args := slices.Concat(
				slices.DeleteFunc(agent.CompileFlags(), func(f string) bool { return f == "-O2" || f == "-fPIC" }),
				[]string{tc.flag, patient, "-O1", "-fno-sanitize-recover=undefined", "-DLINKED", "-rdynamic", "-I", testdriver.IncludeDir(t), "-o", bin},
				sources, []string{filepath.Join(testdata, "plaininterpose.c"), filepath.Join(testdata, "engine.c"), driver, "-ldl"})
			cmd := exec.Command("gcc", args...)
			cmd.Dir = dir
			if said, err := cmd.CombinedOutput(); err != nil {
				t.Skipf("gcc cannot build with %s: %v\n%s", tc.flag, err, said)
			}
			for _, what := range tc.what {
				rings := t.TempDir()
				if err := os.Chmod(rings, 0o700); err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command(bin, "linked", what, "64")
				cmd.Env = []string{
					"LD_LIBRARY_PATH=" + filepath.Dir(driver), tc.env, "UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1",
					"LANETRACE_DIR=" + rings, "LANETRACE_LEVEL=kernel", "LANETRACE_KERNEL_SPAN_EVERY=1", "LANETRACE_KERNEL_BUDGET=1",
					"LANETRACE_STEP=step", "NVTX_SELF=1", "LANETRACE_PAIRS=512",
				}
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s: %v\n%s", what, err, out)
				}
				r := run{dir: rings}
				// What was begun: a program this short may end before anything was read of it.
				if c := r.only(t).Counters; c[spanring.CtrBegun] <= c[spanring.CtrStepsBegun] || c.InFlight() != 0 {
					t.Errorf("%s: begun %d, of them steps %d, in flight %d", what, c[spanring.CtrBegun], c[spanring.CtrStepsBegun], c.InFlight())
				}
			}
		})
	}
}
