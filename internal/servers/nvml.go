package servers

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// StandInNVML compiles a stand-in for the driver's library of device readings, and
// returns the variables with which a sidecar finds it. What ails the first of its two
// GPUs is hot (held down by heat), mute (power cannot be read), or nothing.
func StandInNVML(tb testing.TB, ails string) (env []string) {
	tb.Helper()
	dir := tb.TempDir()
	cmd := exec.CommandContext(tb.Context(), "gcc", "-std=gnu11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror",
		"-o", filepath.Join(dir, "libnvidia-ml.so.1"), filepath.Join(Root(tb), "internal", "servers", "testdata", "nvml.c"))
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("compile the stand-in for NVML: %v: %s", err, strings.TrimSpace(string(out)))
	}
	return []string{"LD_LIBRARY_PATH=" + dir, "NVML_STAND_IN=" + ails}
}
