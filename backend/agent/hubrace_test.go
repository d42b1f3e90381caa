package agent

import (
	"strings"
	"testing"

	"github.com/lanetrace/lanetrace/internal/testdriver"
)

// Threads begin and end steps and lanes and launch, on shared streams and their own,
// streams come and go, levels change; then the context ends. The account balances.
func storm(t *testing.T, e *hubRig, threads, rounds string) {
	t.Helper()
	e.script("storm " + threads + " " + rounds + "\n close = 0\n inflight = 0")
	e.balanced(0)
	// Each entry decodes, and each step's end promises what there is.
	begun := map[string]bool{}
	for _, line := range e.log() {
		kind, rest, _ := strings.Cut(line, " ")
		step, _, _ := strings.Cut(rest, " ")
		switch kind {
		case "begin":
			begun[step] = true
		case "end":
			if !begun[step] {
				t.Errorf("%s ended before it began", step)
			}
		}
	}
	c := e.counters()
	t.Logf("%d begun, %d landed, %d failed, %d dropped", c[0], c[16], c.Failed(), c[1])
}

func TestHubStorm(t *testing.T) {
	e := newHubRig(t, hubOptions{level: "kernel", env: []string{
		"LANETRACE_KERNEL_SPAN_EVERY=2", "LANETRACE_KERNEL_BUDGET=1", "LANETRACE_PAIRS=256",
	}})
	storm(t, e, "8", "400")
}

// The same under the thread sanitizer, the stand-in too.
func TestHubStormSanitized(t *testing.T) {
	if testing.Short() {
		t.Skip("builds everything with -fsanitize=thread")
	}
	e := newHubRig(t, hubOptions{
		level: "kernel", flags: []string{"-fsanitize=thread"}, lib: testdriver.BuildWith(t, "-fsanitize=thread"),
		env: []string{
			"LANETRACE_KERNEL_SPAN_EVERY=2", "LANETRACE_KERNEL_BUDGET=1", "LANETRACE_PAIRS=64",
			"TSAN_OPTIONS=halt_on_error=0 exitcode=66",
		},
	})
	storm(t, e, "4", "60")
	e.end()
	if s := e.said.String(); strings.Contains(s, "WARNING: ThreadSanitizer") {
		t.Errorf("data races:\n%.8000s", s)
	}
}
