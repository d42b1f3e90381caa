package attach

import (
	"debug/elf"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/backend/agent"
)

// TestLibrary reads what the library asks of a system: nothing but libc, libdl and
// pthreads, and of them nothing that glibc 2.28 has not.
func TestLibrary(t *testing.T) {
	lib := agentLibrary(t)
	f, err := elf.Open(lib)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	needed, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	// The loader is in every program; thread-locals may name it.
	needed = slices.DeleteFunc(needed, func(l string) bool { return strings.HasPrefix(l, "ld-linux") })
	slices.Sort(needed)
	if diff := cmp.Diff([]string{"libc.so.6", "libdl.so.2", "libpthread.so.0"}, needed); diff != "" {
		t.Errorf("needed libraries (-want +got):\n%s", diff)
	}
	imported, err := f.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	versions := 0
	for _, s := range imported {
		number, ok := strings.CutPrefix(s.Version, "GLIBC_2.")
		if !ok {
			continue // weak ones of the compiler's
		}
		versions++
		minor, err := strconv.Atoi(strings.Split(number, ".")[0])
		if err != nil || minor > 28 {
			t.Errorf("%s is of %s, later than GLIBC_2.28", s.Name, s.Version)
		}
	}
	if versions < 20 {
		t.Errorf("only %d symbols with a version", versions)
	}
	// The same from readelf's mouth.
	out, err := exec.Command("readelf", "-V", lib).Output()
	if err != nil {
		t.Fatalf("readelf (Debian: binutils, which gcc needs too): %v", err)
	}
	_, needs, ok := strings.Cut(string(out), "'.gnu.version_r'")
	versionsNeeded := regexp.MustCompile(`GLIBC_2\.(\d+)`).FindAllStringSubmatch(needs, -1)
	for _, m := range versionsNeeded {
		if minor, err := strconv.Atoi(m[1]); err != nil || minor > 28 {
			t.Errorf("needs %s", m[0])
		}
	}
	if !ok || len(versionsNeeded) == 0 {
		t.Errorf("version needs:\n%s", needs)
	}
}

// TestExports holds the names that a program can see to those it is meant to see.
func TestExports(t *testing.T) {
	f, err := elf.Open(agentLibrary(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	driver := 0
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF || s.Section == elf.SHN_ABS {
			continue
		}
		switch {
		case strings.HasPrefix(s.Name, "cu"):
			driver++
		case strings.HasPrefix(s.Name, "lanetrace_"), s.Name == "dlsym", s.Name == "InitializeInjectionNvtx2":
		default:
			t.Errorf("%s is exported", s.Name)
		}
	}
	if driver < 50 {
		t.Errorf("%d of the driver's names exported", driver)
	}
}

// TestLaterCUDA runs a program that asks for variants later than the agent knows:
// what it cannot know the meaning of goes by unseen, and is said once.
func TestLaterCUDA(t *testing.T) {
	dir := t.TempDir()
	lib := filepath.Join(dir, agent.Name)
	// An agent of the days of CUDA 11.0.
	if err := agent.BuildTo(lib, "-DLT_KNOWN_CUDA=11000"); err != nil {
		t.Fatal(err)
	}
	engine := compileEngine(t, "engine.c", false)
	want := start(t, runOptions{without: true}, engine, "proc", "all")
	r := start(t, runOptions{settle: true, env: []string{"LD_PRELOAD=" + lib, "NVTX_INJECTION64_PATH=" + lib, "LANETRACE_STEP=step"}}, engine, "proc", "steps", "2")
	if r.code != 0 || want.code != 0 || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, "later than CUDA 11.0") {
		t.Fatalf("exit code %d, standard error %q", r.code, r.stderr)
	}
	r.only(t).balanced(t)
}
