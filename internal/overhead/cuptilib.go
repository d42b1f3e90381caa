package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/lanetrace/lanetrace/internal/cubench/cupti"
	"github.com/lanetrace/lanetrace/internal/dl"
)

// buildCUPTI compiles the library that switches CUPTI's records into dir, for the
// toolkit in root or, if that is "", the first one found.
func buildCUPTI(ctx context.Context, dir, root string) (string, error) {
	roots := []string{root}
	if root == "" {
		found, _ := filepath.Glob("/usr/local/cuda*")
		roots = append([]string{os.Getenv("CUDA_HOME")}, found...)
	}
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return "", errors.New("no gcc")
	}
	source := filepath.Join(dir, "inject.c")
	if err := os.WriteFile(source, []byte(cupti.Source), 0o600); err != nil {
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
		out := filepath.Join(dir, "libinject.so")
		args := []string{"-O2", "-shared", "-fPIC", "-o", out, source, "-I", filepath.Dir(headers[0])}
		for _, h := range existing(r, "include", "cuda.h") {
			args = append(args, "-I", filepath.Dir(h))
		}
		args = append(args, libraries[0], "-Wl,-rpath,"+filepath.Dir(libraries[0]))
		if said, err := exec.CommandContext(ctx, gcc, args...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("gcc: %w: %s", err, lastLine(string(said)))
		}
		return out, dl.Probe(out)
	}
	return "", errors.New("no cupti.h below /usr/local/cuda* or CUDA_HOME")
}

// existing are the files of that name, a pattern, in the folders of a toolkit that
// may hold them: kind is include or lib.
func existing(root, kind, name string) (out []string) {
	for _, where := range []string{"extras/CUPTI/" + kind + "*", "targets/*/" + kind + "*", kind + "*"} {
		found, _ := filepath.Glob(filepath.Join(root, where, name))
		out = append(out, found...)
	}
	return out
}
