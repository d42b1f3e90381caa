package agent

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// ringSources are the sources that write a ring and need no driver.
var ringSources = []string{"ring.c", "ringfile.c", "config.c", "control.c", "ledger.c"}

var built struct {
	sync.Mutex
	dir string
	by  map[string]string
}

// buildProgram compiles a C program of testdata with the given sources of the
// agent, once for each combination in this process, and returns its path.
func buildProgram(tb testing.TB, program string, sources []string, flags ...string) string {
	tb.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		tb.Fatal(ErrNoCompiler)
	}
	built.Lock()
	defer built.Unlock()
	key := fmt.Sprint(program, sources, flags)
	if p, ok := built.by[key]; ok {
		return p
	}
	if built.dir == "" {
		if built.dir, err = os.MkdirTemp("", "lanetrace-agent-test-"); err != nil {
			tb.Fatal(err)
		}
		built.by = map[string]string{}
	}
	abs, err := filepath.Abs(filepath.Join("testdata", program))
	if err != nil {
		tb.Fatal(err)
	}
	out := filepath.Join(built.dir, fmt.Sprintf("%s-%d", strings.TrimSuffix(program, ".c"), len(built.by)))
	args := slices.Concat(CompileFlags(), flags, []string{"-o", out, abs}, sources, []string{"-ldl"})
	cmd := exec.Command(gcc, args...)
	cmd.Dir = "csrc"
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		tb.Fatalf("gcc: %v\n%s", err, said.Bytes())
	}
	built.by[key] = out
	return out
}

// removeBuilt removes what buildProgram made.
func removeBuilt() {
	built.Lock()
	defer built.Unlock()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
}
