package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

// Without a CUDA driver the engine says so and runs on the sim, or, when CUDA was
// asked for, fails.
func TestWithoutACUDADriver(t *testing.T) {
	t.Setenv("LANETRACE_LIBCUDA", filepath.Join(t.TempDir(), "libcuda.so.1"))
	none := func(string) string { return "" }
	var out, errs bytes.Buffer
	status := run(t.Context(), []string{"--backend", "cuda", "--dir", ringDir(t)}, &out, &errs, none)
	if status != exitFailed || !strings.HasPrefix(errs.String(), "decode: cuda: ") || strings.Count(errs.String(), "\n") != 1 || out.Len() > 0 {
		t.Errorf("status %d, stdout %q, stderr %q", status, &out, &errs)
	}
	errs.Reset()
	status = run(t.Context(), []string{"--requests", "1", "--dir", ringDir(t), "--no-verify"}, &out, &errs, none)
	if status != exitOK || strings.Count(errs.String(), "running on the simulated GPU") != 1 || !strings.Contains(out.String(), "(sim)") {
		t.Errorf("status %d, stdout %q, stderr %q", status, &out, &errs)
	}
}
