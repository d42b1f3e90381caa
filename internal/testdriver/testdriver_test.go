// SPDX-License-Identifier: Apache-2.0

package testdriver

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func compile(t *testing.T, out string, args ...string) {
	t.Helper()
	gcc, err := findCompiler()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(gcc.path, append([]string{"-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", out}, args...)...)
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gcc %s: %v\n%s", strings.Join(args, " "), err, msg)
	}
}

// haveSanitizer says whether gcc can link a program with the sanitizer.
func haveSanitizer(t *testing.T, flag string) bool {
	t.Helper()
	gcc, err := findCompiler()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	src := filepath.Join(dir, "empty.c")
	if err := os.WriteFile(src, []byte("int main(void) { return 0; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return exec.Command(gcc.path, flag, "-o", filepath.Join(dir, "empty"), src).Run() == nil
}

func TestSelf(t *testing.T) {
	for _, tc := range []struct {
		name, flag string
		env        []string
	}{
		{name: "plain"},
		{name: "address", flag: "-fsanitize=address,undefined", env: []string{
			"ASAN_OPTIONS=abort_on_error=0:detect_stack_use_after_return=1",
			"UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1",
		}},
		{name: "thread", flag: "-fsanitize=thread", env: []string{TSan(t, "halt_on_error=0 exitcode=66")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var flags []string
			if tc.flag != "" {
				if testing.Short() {
					t.Skip("-short: sanitizer builds take a while")
				}
				if !haveSanitizer(t, tc.flag) {
					t.Skipf("gcc cannot link with %s; install the sanitizer runtimes", tc.flag)
				}
				flags = []string{tc.flag, "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined"}
			}
			lib := BuildWith(t, flags...)
			dir := t.TempDir()
			bin := filepath.Join(dir, "selftest")
			compile(t, bin, slices.Concat(flags, []string{"-I", IncludeDir(t), "testdata/selftest.c", "-lm"})...)
			cmd := exec.Command(bin, lib)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "LANETRACE_TESTDRIVER_DEVICES=3")
			cmd.Env = append(cmd.Env, tc.env...)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("selftest: %v\n%s", err, out)
			}
			t.Logf("%s", out)
		})
	}
}

// TestTSan: what glibc does at the end of threads is no race, and what is one still is.
func TestTSan(t *testing.T) {
	const flag = "-fsanitize=thread"
	if testing.Short() {
		t.Skip("-short: sanitizer builds take a while")
	}
	if !haveSanitizer(t, flag) {
		t.Skipf("gcc cannot link with %s; install the sanitizer runtimes", flag)
	}
	dir := filepath.Join(t.TempDir(), "with a blank")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	lib, bin := filepath.Join(dir, "stacks.so"), filepath.Join(dir, "stacks")
	compile(t, lib, flag, "-shared", "-fPIC", "-DLIBRARY", "testdata/stacks.c")
	compile(t, bin, flag, "testdata/stacks.c", "-ldl", "-pthread")
	for _, c := range []struct {
		name string
		args []string
		want int
	}{
		{"no race", []string{lib}, 0},
		{"a race", []string{lib, "race"}, 66},
	} {
		cmd := exec.Command(bin, c.args...)
		cmd.Env = append(os.Environ(), TSan(t, "exitcode=66"))
		out, _ := cmd.CombinedOutput() // the exit code says how it ended
		if got := cmd.ProcessState.ExitCode(); got != c.want {
			t.Errorf("%s: exit code %d, want %d:\n%s", c.name, got, c.want, out)
		}
	}
}

// TestConformance holds the stand-in's answers against those of a real driver,
// written down on an H200 with driver 580.159 by the same program.
func TestConformance(t *testing.T) {
	golden, err := os.ReadFile("testdata/conformance_h200.txt")
	if err != nil {
		t.Fatal(err)
	}
	// Where the stand-in is stricter on purpose: the next event has the handle
	// of the last one destroyed, so that whoever keys by handle finds out.
	stricter := map[string]string{
		"events: handle of an event destroyed while pending reused = 1": "events: handle of an event destroyed while pending reused = 0",
		"events: handle of a complete event reused = 1":                 "events: handle of a complete event reused = 0",
		"events: handle of an event never recorded reused = 1":          "events: handle of an event never recorded reused = 0",
	}
	lib := Build(t)
	bin := filepath.Join(t.TempDir(), "conformance")
	compile(t, bin, "-I", IncludeDir(t), "testdata/conformance.c")
	want := strings.Split(string(golden), "\n")
	// Whether a call waits is told by the clock, which a busy machine can fool.
	for try := 1; ; try++ {
		out, err := exec.Command(bin, lib).Output()
		if err != nil {
			t.Fatalf("conformance: %v\n%s", err, out)
		}
		got := strings.Split(string(out), "\n")
		for i, line := range got {
			if real, ok := stricter[line]; ok {
				got[i] = real
			}
		}
		diff := cmp.Diff(want, got)
		if diff == "" {
			return
		}
		if try == 3 {
			t.Fatalf("the stand-in and the real driver differ (-real +stand-in):\n%s", diff)
		}
	}
}

func TestBuildIsShared(t *testing.T) {
	a, b := Build(t), Build(t)
	if a != b {
		t.Errorf("two builds of the same sources: %s and %s", a, b)
	}
	if filepath.Base(a) != Name {
		t.Errorf("built %s, want a file called %s", a, Name)
	}
}

// symbols returns the functions that a library exports.
func symbols(t *testing.T, lib string) []string {
	t.Helper()
	f, err := elf.Open(lib)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	syms, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range syms {
		if s.Section != elf.SHN_UNDEF {
			names = append(names, s.Name)
		}
	}
	soname, err := f.DynString(elf.DT_SONAME)
	if err != nil || len(soname) != 1 || soname[0] != Name {
		t.Errorf("soname is %q (%v), want %s", soname, err, Name)
	}
	return names
}

func TestExportsNothingElse(t *testing.T) {
	for _, name := range symbols(t, Build(t)) {
		if !strings.HasPrefix(name, "cu") && !strings.HasPrefix(name, "lt_testdriver_") {
			t.Errorf("exports %s", name)
		}
	}
}

func TestBuildWithout(t *testing.T) {
	lib := BuildWithout(t, "cuStreamGetId", "cuEventElapsedTime_v2")
	names := symbols(t, lib)
	for _, gone := range []string{"cuStreamGetId", "cuEventElapsedTime_v2"} {
		if slices.Contains(names, gone) {
			t.Errorf("%s is still exported", gone)
		}
	}
	for _, there := range []string{"cuStreamGetId_ptsz", "cuEventElapsedTime", "lt_testdriver_fail"} {
		if !slices.Contains(names, there) {
			t.Errorf("%s is not exported", there)
		}
	}
	if lib == Build(t) {
		t.Error("took the place of the full build")
	}
}

func TestBuildTo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "renamed.so")
	if err := BuildTo(path); err != nil {
		t.Fatal(err)
	}
	if names := symbols(t, path); !slices.Contains(names, "cuLaunchKernel") {
		t.Errorf("no cuLaunchKernel among %d symbols", len(names))
	}
	if err := BuildTo(filepath.Join(t.TempDir(), "no", "such", "directory")); err == nil {
		t.Error("building into a missing directory went well")
	}
}

// A program's settings come from its environment, and what it preloads must
// not end up inside the driver.
func TestEnvironmentAndPreload(t *testing.T) {
	lib := Build(t)
	dir := t.TempDir()
	bin := filepath.Join(dir, "program")
	compile(t, bin, "-I", IncludeDir(t), "testdata/program.c")
	preload := filepath.Join(dir, "preload.so")
	compile(t, preload, "-shared", "-fPIC", "testdata/preload.c")
	log := filepath.Join(dir, "log")
	cmd := exec.Command(bin)
	cmd.Env = append(os.Environ(),
		"LD_LIBRARY_PATH="+filepath.Dir(lib),
		"LD_PRELOAD="+preload,
		"LANETRACE_TESTDRIVER_DEVICES=2",
		"LANETRACE_TESTDRIVER_TOTAL_MEMORY=67108864",
		"LANETRACE_TESTDRIVER_INTEGRATED=1",
		"LANETRACE_TESTDRIVER_CLOCK_OFFSET_NS=1000000000000",
		"LANETRACE_TESTDRIVER_HIDE=cuStreamGetId,cuEventElapsedTime_v2",
		"LANETRACE_TESTDRIVER_FAIL=cuMemAlloc_v2:2:1:1,cuCtxSynchronize:700,nonsense:1",
		"LANETRACE_TESTDRIVER_LOG="+log,
	)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("program: %v\n%s", err, out)
	}
	if want := `cannot use "nonsense:1"`; !strings.Contains(string(out), want) {
		t.Errorf("output %q does not say %q", out, want)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "cuMemAlloc_v2 bytes=100 ") {
		t.Errorf("log: %q", text)
	}
}

func TestNoCompiler(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("linux only")
	}
	t.Setenv("PATH", t.TempDir())
	if err := BuildTo(filepath.Join(t.TempDir(), Name)); err != ErrNoCompiler {
		t.Errorf("without gcc: %v, want %v", err, ErrNoCompiler)
	}
}
