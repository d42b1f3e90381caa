package agent

import (
	"strings"
	"testing"

	"github.com/lanetrace/lanetrace/internal/testdriver"
	"github.com/lanetrace/lanetrace/spanring"
)

// Threads begin and end steps and lanes and launch, on shared streams and their own,
// streams come and go, levels change; meanwhile the context ends again and again, or the
// hub stops. The account balances.
var storms = []struct {
	name, how string
	stopped   bool
}{{"to its end", "0", false}, {"contexts end", "1", false}, {"the hub stops", "2", true}}

func (e *hubRig) storm(threads, rounds, how string, stopped bool) {
	t := e.t
	t.Helper()
	e.script("storm " + threads + " " + rounds + " " + how + "\n close = 0\n inflight = 0")
	c := e.counters()
	open := int64(0)
	if stopped { // steps that were open stay so
		open = int64(c[spanring.CtrStepsBegun] - c[spanring.CtrStepsEnded])
	}
	e.balanced(open)
	// Each entry decodes, and no step ends that had not begun.
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
	t.Logf("%d begun, %d landed, %d failed, %d dropped", c[spanring.CtrBegun], c[spanring.CtrLanded], c.Failed(), c[spanring.CtrDropped])
}

func TestHubStorm(t *testing.T) {
	for _, s := range storms {
		t.Run(s.name, func(t *testing.T) {
			e := newHubRig(t, hubOptions{level: "kernel", env: []string{
				"LANETRACE_KERNEL_SPAN_EVERY=2", "LANETRACE_KERNEL_BUDGET=1", "LANETRACE_PAIRS=256",
			}})
			e.storm("8", "400", s.how, s.stopped)
		})
	}
}

// The same under the sanitizers; the stand-in too under that for threads, which has to
// see how they synchronise.
func TestHubStormSanitized(t *testing.T) {
	if testing.Short() {
		t.Skip("builds everything with -fsanitize")
	}
	env := []string{
		"LANETRACE_KERNEL_SPAN_EVERY=2", "LANETRACE_KERNEL_BUDGET=1", "LANETRACE_PAIRS=64",
		testdriver.TSan(t, "exitcode=66"), "ASAN_OPTIONS=detect_leaks=0:exitcode=66", "UBSAN_OPTIONS=print_stacktrace=1",
	}
	for _, c := range []struct {
		name  string
		flags []string
		lib   string
	}{
		{"threads", []string{"-fsanitize=thread"}, testdriver.BuildWith(t, "-fsanitize=thread")},
		{"memory", []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"}, testdriver.Build(t)},
	} {
		for _, s := range storms {
			t.Run(c.name+"/"+s.name, func(t *testing.T) {
				e := newHubRig(t, hubOptions{level: "kernel", flags: c.flags, lib: c.lib, env: env})
				e.storm("4", "100", s.how, s.stopped)
				e.end()
				if said := e.complaints(); said != nil {
					t.Errorf("said:\n%.8000s", strings.Join(said, ""))
				}
			})
		}
	}
}
