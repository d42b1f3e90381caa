package cupti

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/lanetrace/lanetrace/internal/dl"
)

// Build compiles a library that uses CUPTI into dir, with gcc, and loads it to see that
// it can be. root is the CUDA toolkit; if that is "", the first with CUPTI of CUDA_HOME,
// /usr/local/cuda*, /opt/cuda and /usr, where distributions have theirs.
func Build(ctx context.Context, dir, root, source string) (library string, err error) {
	roots := []string{root}
	if root == "" {
		found, _ := filepath.Glob("/usr/local/cuda*")
		roots = append([]string{os.Getenv("CUDA_HOME")}, append(found, "/opt/cuda", "/usr")...)
	}
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return "", errors.New("no gcc")
	}
	c := filepath.Join(dir, "cupti.c")
	if err := os.WriteFile(c, []byte(source), 0o600); err != nil {
		return "", err
	}
	for _, r := range roots {
		if r == "" {
			continue
		}
		headers, libraries := existing(r, "include", "cupti.h"), existing(r, "lib", "libcupti.so*")
		if len(headers) == 0 || len(libraries) == 0 {
			continue
		}
		library = filepath.Join(dir, "libcupti-records.so")
		args := []string{"-O2", "-shared", "-fPIC", "-o", library, c, "-I", filepath.Dir(headers[0])}
		for _, h := range existing(r, "include", "cuda.h") {
			args = append(args, "-I", filepath.Dir(h))
		}
		args = append(args, libraries[0], "-Wl,-rpath,"+filepath.Dir(libraries[0]), "-lpthread")
		cmd := exec.CommandContext(ctx, gcc, args...)
		cmd.Env = append(os.Environ(), "LC_ALL=C") // what it says is looked through
		if said, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("gcc, for the CUDA toolkit in %s: %w: %s", r, err, complaint(string(said)))
		}
		return library, dl.Probe(library)
	}
	if root == "" {
		root = "CUDA_HOME, /usr/local/cuda*, /opt/cuda or /usr"
	}
	return "", fmt.Errorf("no cupti.h with a libcupti.so below %s", root)
}

// existing are the files of that name, a pattern, in the folders of a toolkit that may
// hold them: kind is include or lib.
func existing(root, kind, name string) (out []string) {
	for _, where := range []string{"extras/CUPTI/" + kind + "*", "targets/*/" + kind + "*", kind + "*", kind + "/*-linux-gnu"} {
		found, _ := filepath.Glob(filepath.Join(root, where, name))
		out = append(out, found...)
	}
	return out
}

// complaint is the compiler's first error, else its last line.
func complaint(said string) string {
	last := ""
	for line := range strings.Lines(said) {
		if last = strings.TrimSpace(line); strings.Contains(line, "error:") {
			break
		}
	}
	return last
}
