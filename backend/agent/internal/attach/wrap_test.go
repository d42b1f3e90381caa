package attach

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lanetrace/lanetrace/backend/agent"
)

// TestTrampolines hands out trampolines until none is left.
func TestTrampolines(t *testing.T) {
	dir := t.TempDir()
	if err := agent.WriteSources(dir); err != nil {
		t.Fatal(err)
	}
	source, err := filepath.Abs("testdata/wrap.c")
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "wrap")
	cmd := exec.Command("gcc", slices.Concat(agent.CompileFlags(), []string{
		"-Wl,--version-script=versions.map", "-o", bin, source, "interpose.c", "say.c", "-ldl",
	})...)
	cmd.Dir = dir
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, said)
	}
	cmd = exec.Command(bin)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if out, err := cmd.Output(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := "lanetrace: this driver has a variant of cuCall later than CUDA 13.0: calls through it are not seen\n" +
		"lanetrace: more than 2 variants of call: calls through further ones are not seen\n"
	if stderr.String() != want {
		t.Errorf("standard error:\n%s\nwant:\n%s", stderr.String(), want)
	}
}
