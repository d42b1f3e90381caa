package cupti

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lanetrace/lanetrace/internal/dl"
)

// put writes a file, and the folders that it takes.
func put(t *testing.T, text string, path ...string) string {
	t.Helper()
	name := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestBuild: wherever a toolkit has its headers and its library, they are found.
func TestBuild(t *testing.T) {
	const source = "#include <cuda.h>\n#include <cupti.h>\nint f(void) { return CUDA + cupti(); }\n"
	for _, c := range []struct{ name, cuda, headers, library string }{
		{"a toolkit", "include", "extras/CUPTI/include", "extras/CUPTI/lib64/libcupti.so.12"},
		{"a toolkit of packages", "targets/x86_64-linux/include", "targets/x86_64-linux/include", "targets/x86_64-linux/lib/libcupti.so.13"},
		{"both in one place", "include", "include", "lib64/libcupti.so"},
		{"a distribution's", "include", "include", "lib/x86_64-linux-gnu/libcupti.so.11.8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			put(t, "#define CUDA 40\n", root, c.cuda, "cuda.h")
			put(t, "int cupti(void);\n", root, c.headers, "cupti.h")
			lib := filepath.Join(root, c.library)
			if err := os.MkdirAll(filepath.Dir(lib), 0o755); err != nil {
				t.Fatal(err)
			}
			stub := put(t, "int cupti(void) { return 2; }\n", root, "stub.c")
			if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", lib, stub).CombinedOutput(); err != nil {
				t.Fatalf("gcc: %v\n%s", err, out)
			}
			got, err := Build(t.Context(), t.TempDir(), root, source)
			noCgo := errors.Is(err, dl.ErrNoCgo) // compiled, and not tried
			if err != nil && !noCgo {
				t.Fatal(err)
			}
			built, err := elf.Open(got)
			if err != nil {
				t.Fatal(err)
			}
			defer built.Close()
			if needs, err := built.ImportedLibraries(); err != nil || !slices.Contains(needs, lib) {
				t.Errorf("it needs %q, %v", needs, err)
			}
			if n, err := dl.Call(got, "f"); (err != nil || n != 42) && (!noCgo || !errors.Is(err, dl.ErrNoCgo)) {
				t.Errorf("%d, %v", n, err)
			}
		})
	}
}

// TestBuildRefusals: what is missing is one line.
func TestBuildRefusals(t *testing.T) {
	empty, broken := t.TempDir(), t.TempDir()
	put(t, "#include <missing.h>\n", broken, "include/cupti.h")
	put(t, "", broken, "lib64/libcupti.so")
	refused := func(root, want string) {
		t.Helper()
		if _, err := Build(t.Context(), t.TempDir(), root, "#include <cupti.h>\n"); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	refused(empty, "no cupti.h with a libcupti.so below "+empty)
	refused(broken, "missing.h: No such file")
	t.Setenv("PATH", empty)
	refused(empty, "no gcc")
}
