package agent

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestBudgets plays the loads that hold the Go library's budgets to their bounds
// through the agent's: every decision and every sum is the same.
func TestBudgets(t *testing.T) {
	b, err := os.ReadFile("../../testdata/budgets.txt")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for line := range strings.Lines(string(b)) {
		if r, ok := strings.CutPrefix(line, "result "); ok {
			want = append(want, strings.TrimSpace(r))
		}
	}
	cmd := exec.Command(buildProgram(t, "budgets.c", []string{"overhead.c", "clock.c"}))
	cmd.Stdin = bytes.NewReader(b)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSpace(string(out)), "\n")
	if d := cmp.Diff(want, got); d != "" || len(want) < 12 {
		t.Errorf("%d loads (-Go +C):\n%s", len(want), d)
	}
}
