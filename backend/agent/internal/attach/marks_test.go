package attach

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

// numbered writes "1: a", "1: b" for step 1's lanes, and so on.
func numbered(steps ...[]string) []string {
	var out []string
	for i, s := range steps {
		for _, l := range s {
			out = append(out, string(rune('1'+i))+": "+l)
		}
	}
	return out
}

// chain is n names, each inside of the one before, and those that follow.
func chain(format string, n int, more ...string) []string {
	var out []string
	for i := range n {
		name := fmt.Sprintf(format, i)
		if i > 0 {
			name += " < " + fmt.Sprintf(format, i-1)
		}
		out = append(out, name)
	}
	return append(out, more...)
}

// TestNVTX pushes, pops, starts and ends ranges through every function of NVTX that
// begins one, in the order of testdata/ranges.c.
func TestNVTX(t *testing.T) {
	program := compileEngine(t, "ranges.c", false)
	pass := []string{"preprocess", "forward", "postprocess", "sample"}
	vllm := numbered(pass, append(pass[:4:4], "draft"), []string{"preprocess", "forward"})
	for _, tc := range []struct {
		name, scenario string
		env            []string
		lanes          []string
		steps          uint64
		source         spanring.StepSource
		stderr         string
		misuse         uint64
		capturing      uint64
	}{
		{
			// Every way to begin a range: one lane each, in one step.
			name: "functions", scenario: "functions", env: []string{"LANETRACE_STEP=step", "LANETRACE_LANES=*"},
			steps: 1,
			lanes: numbered([]string{
				"step", "push a < step", "push w é€ < step", "push ex < step", "push ex wide < step", "registered < step",
				"domain of python < step", "start a < step", "start w < step", "start ex < step",
			}),
		},
		{
			// A range that pops out of order with another domain's keeps its own lane.
			name: "domains", scenario: "domains", env: []string{"LANETRACE_STEP=step", "LANETRACE_LANES=*,other//*=other"},
			steps: 1,
			lanes: numbered([]string{"step", "a < step", "other < a", "b < a"}),
		},
		{
			name: "domains left alone", scenario: "domains", env: []string{"LANETRACE_STEP=step"}, steps: 1,
			lanes: numbered([]string{"step", "a < step", "b < a"}),
		},
		{
			name: "names", scenario: "functions", env: []string{"LANETRACE_STEP=st*", "LANETRACE_LANES=push *=p-*-p, start w"},
			steps: 1,
			lanes: numbered([]string{"p-a-p", "p-w é€-p", "p-ex-p", "p-ex wide-p", "start w"}),
		},
		{
			// Without settings: the outermost range is the step.
			name: "outermost", scenario: "nested", steps: 2,
			lanes: numbered([]string{"outer 0", "inner < outer 0"}, []string{"outer 1", "inner < outer 1"}),
		},
		{
			// The last pass has nothing to do: a step on the host alone.
			name: "vllm by name", scenario: "vllm", steps: 4, lanes: vllm,
		},
		{name: "vllm by setting", scenario: "vllm", env: []string{"LANETRACE_STEP=vllm"}, steps: 4, lanes: vllm},
		{
			name: "vllm of 2025", scenario: "vllm of 2025", env: []string{"LANETRACE_LANES=vllm"}, steps: 1,
			lanes: numbered([]string{"preprocess", "forward", "postprocess", "sample", "bookkeep", "draft"}),
		},
		{
			// The event loop is a range around everything, and no step.
			name: "sglang by name", scenario: "sglang", steps: 2,
			lanes: numbered([]string{"run_batch", "replay < run_batch"}, []string{"run_batch", "replay < run_batch"}),
		},
		{
			name: "sglang by setting", scenario: "sglang", env: []string{"LANETRACE_STEP=sglang"}, steps: 2,
			lanes: numbered([]string{"run_batch", "replay < run_batch"}, []string{"run_batch", "replay < run_batch"}),
		},
		{
			name: "graphs", scenario: "unmarked", env: []string{"LANETRACE_STEP=graph"}, steps: 3, source: spanring.StepGraph,
			lanes:  numbered([]string{"graph"}, []string{"graph"}, []string{"graph"}),
			stderr: "each graph launch stands in for one",
		},
		{name: "windows", scenario: "unmarked", env: []string{"LANETRACE_STEP=window:3600000"}, steps: 1, source: spanring.StepWindow, stderr: "windows of 3600000 ms stand in"},
		{name: "none", scenario: "unmarked", env: []string{"LANETRACE_STEP=none"}},
		{
			// 32 streams are followed; that there are more is counted, once a range.
			name: "streams", scenario: "streams", env: []string{"LANETRACE_STEP=step"}, steps: 1, misuse: 1,
			lanes: numbered(slices.Repeat([]string{"step"}, 32)), stderr: "on more than 32 streams",
		},
		{
			name: "too deep", scenario: "deep", env: []string{"LANETRACE_STEP=step", "LANETRACE_LANES=level 1,level 59,level 99"},
			steps: 1, misuse: 1, lanes: numbered([]string{"level 1", "level 59 < level 1"}), stderr: "nested deeper than 64",
		},
		{
			name: "started by one thread", scenario: "started by one", env: []string{"LANETRACE_STEP=step", "LANETRACE_LANES=r *"},
			steps: 1, misuse: 6, lanes: numbered(chain("r %d", 64, "r 70")), stderr: "a thread has started more than 64 ranges",
		},
		{
			name: "started apart", scenario: "started apart", env: []string{"LANETRACE_STEP=step", "LANETRACE_LANES=kept,meanwhile"},
			steps: 1, lanes: numbered([]string{"kept"}),
		},
		{
			// A step without a place does not begin, rather than end at once.
			name: "started by all", scenario: "started by all", env: []string{"LANETRACE_STEP=step", "LANETRACE_LANES=step"},
			steps: 70, misuse: 1, lanes: []string{"70: step"}, stderr: "more than 1024 ranges are started",
		},
		{
			// Counted as capturing once each, and opened behind the capture.
			name: "captured", scenario: "captured", env: []string{"LANETRACE_STEP=step"}, steps: 1, capturing: 3,
			lanes: numbered([]string{"step", "work < step"}),
		},
		{
			name: "strings", scenario: "strings", env: []string{"LANETRACE_STEP=step"}, steps: 1, misuse: 11,
			lanes: numbered([]string{"step", "s 0 < step", "(other) < step"}), stderr: "more than 65536 NVTX strings",
		},
		{
			name: "deep domains", scenario: "deep domains", env: []string{"LANETRACE_STEP=step", "LANETRACE_LANES=other//*=*"},
			steps: 1, lanes: numbered([]string{"mine", "again"}),
		},
		{name: "deep", scenario: "deep", env: []string{"LANETRACE_STEP=step", "LANETRACE_LANES=level 1"}, steps: 1, lanes: numbered([]string{"level 1"})},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := start(t, runOptions{level: "lane", settle: true, env: tc.env}, program, tc.scenario)
			if r.code != 0 || (tc.stderr == "") != (r.stderr == "") || !strings.Contains(r.stderr, tc.stderr) || strings.Count(r.stderr, "\n") > 1 {
				t.Fatalf("exit code %d, standard error %q, want %q\n%s", r.code, r.stderr, tc.stderr, r.stdout)
			}
			got := r.only(t)
			if diff := cmp.Diff(tc.lanes, got.Lanes); diff != "" {
				t.Errorf("lanes (-want +got):\n%s", diff)
			}
			if n := got.Counters[spanring.CtrStepsBegun]; n != tc.steps {
				t.Errorf("%d steps, want %d", n, tc.steps)
			}
			if n := got.Sources[tc.source]; n != tc.steps {
				t.Errorf("%d steps by %v, want %d: %v", n, tc.source, tc.steps, got.Sources)
			}
			if n := got.Counters[spanring.CtrMisuse]; n != tc.misuse {
				t.Errorf("misuse is %d, want %d", n, tc.misuse)
			}
			if n := got.Counters[spanring.CtrCapturing]; n != tc.capturing {
				t.Errorf("capturing is %d, want %d", n, tc.capturing)
			}
			got.Counters[spanring.CtrMisuse] = 0
			if tc.scenario != "unmarked" {
				got.balanced(t)
			}
		})
	}
}

// TestAutoStandIn leaves a program without marks alone for a while, and then takes
// what it has for steps.
func TestAutoStandIn(t *testing.T) {
	program := compileEngine(t, "ranges.c", false)
	sources := map[string]spanring.StepSource{"unmarked for long": spanring.StepGraph, "eager for long": spanring.StepWindow}
	for scenario, want := range map[string]string{"unmarked for long": "each graph launch", "eager for long": "windows of 100 ms"} {
		t.Run(scenario, func(t *testing.T) {
			r := start(t, runOptions{level: "lane", env: []string{"LANETRACE_STEP=auto:500"}}, program, scenario)
			if r.code != 0 || !strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") != 1 {
				t.Fatalf("exit code %d, standard error %q, want one line with %q", r.code, r.stderr, want)
			}
			if got := r.only(t); got.Counters[spanring.CtrStepsBegun] == 0 || got.Sources[sources[scenario]] != got.Counters[spanring.CtrStepsBegun] {
				t.Errorf("%d steps, by source %v", got.Counters[spanring.CtrStepsBegun], got.Sources)
			}
		})
	}
}

// TestEngineWithoutScopes runs programs that say that they are vLLM or SGLang and, as not
// every version does, mark nothing: once graphs have been launched for a while, each stands
// in for a step. What is launched while such an engine loads is none.
func TestEngineWithoutScopes(t *testing.T) {
	program := compileEngine(t, "ranges.c", false)
	for _, v := range []string{"VLLM_NVTX_SCOPES_FOR_PROFILING=1", "SGLANG_ENABLE_NVTX_SCHEDULER=yes"} {
		r := start(t, runOptions{level: "lane", env: []string{v, "LANETRACE_STEP=auto:500"}}, program, "replays for long")
		if want := "each graph launch"; r.code != 0 || !strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") != 1 {
			t.Fatalf("%s: exit code %d, standard error %q, want one line with %q", v, r.code, r.stderr, want)
		}
		got := r.only(t)
		if n := got.Counters[spanring.CtrStepsBegun]; n == 0 || got.Sources[spanring.StepGraph] != n {
			t.Errorf("%s: %d steps, by source %v", v, n, got.Sources)
		}
	}
	for _, v := range []string{"VLLM_NVTX_SCOPES_FOR_PROFILING=1", "SGLANG_ENABLE_NVTX_SCHEDULER=Y"} {
		r := start(t, runOptions{level: "lane", env: []string{v, "LANETRACE_STEP=auto:100"}}, program, "eager for long")
		if n := r.only(t).Counters[spanring.CtrStepsBegun]; r.code != 0 || r.stderr != "" || n != 0 {
			t.Errorf("%s: exit code %d, standard error %q, %d steps", v, r.code, r.stderr, n)
		}
	}
}

// TestMarksComeLate lets windows stand in until the program's first range.
func TestMarksComeLate(t *testing.T) {
	program := compileEngine(t, "ranges.c", false)
	r := start(t, runOptions{level: "lane", settle: true, env: []string{"LANETRACE_STEP=auto:200"}}, program, "marked late")
	if r.code != 0 || strings.Count(r.stderr, "\n") != 1 {
		t.Fatalf("exit code %d, standard error %q", r.code, r.stderr)
	}
	got := r.only(t)
	got.balanced(t)
	if n := got.Counters[spanring.CtrStepsBegun]; n < 3 || len(got.Lanes) != 2 || !strings.HasSuffix(got.Lanes[1], "inner < outer") {
		t.Errorf("%d steps, lanes %q", n, got.Lanes)
	}
}

// TestMarksOnlyAtTheStart marks what a program does before its passes, and one thing
// between them: windows stand in for the rest.
func TestMarksOnlyAtTheStart(t *testing.T) {
	program := compileEngine(t, "ranges.c", false)
	r := start(t, runOptions{level: "lane", env: []string{"LANETRACE_STEP=auto:300"}}, program, "marked at the start")
	if want := "no steps are marked any more: windows"; r.code != 0 || !strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") != 1 {
		t.Fatalf("exit code %d, standard error %q, want one line with %q", r.code, r.stderr, want)
	}
	got := r.only(t)
	// Of 1.2 s of launches each time the first 0.3 s are waited for.
	if m, w := got.Sources[spanring.StepMarked], got.Sources[spanring.StepWindow]; m != 3 || w < 4 {
		t.Errorf("%d steps marked, %d windows; want 3, and 4 or more", m, w)
	}
	if n := got.Counters[spanring.CtrMisuse]; n != 0 {
		t.Errorf("misuse is %d", n)
	}
}

// TestPausesBetweenMarks launches outside of steps before and behind pauses: nothing
// stands in.
func TestPausesBetweenMarks(t *testing.T) {
	program := compileEngine(t, "ranges.c", false)
	r := start(t, runOptions{level: "lane", settle: true, env: []string{"LANETRACE_STEP=auto:300"}}, program, "pauses")
	got := r.only(t)
	got.balanced(t)
	if r.code != 0 || r.stderr != "" || got.Sources[spanring.StepMarked] != 3 || got.Counters[spanring.CtrStepsBegun] != 3 {
		t.Errorf("exit code %d, standard error %q, steps %v", r.code, r.stderr, got.Sources)
	}
}

// TestLevelChangesInARange raises and lowers the level while ranges are open.
func TestLevelChangesInARange(t *testing.T) {
	program := compileEngine(t, "ranges.c", false)
	r := start(t, runOptions{level: "off", settle: true, env: []string{"LANETRACE_STEP=step"}}, program, "levels")
	if r.code != 0 || r.stderr != "" {
		t.Fatalf("exit code %d, standard error %q\n%s", r.code, r.stderr, r.stdout)
	}
	got := r.only(t)
	// Of what began at off nothing is known; what began after the rise is whole; what
	// was open at the fall has ended.
	if diff := cmp.Diff(numbered([]string{"step", "in < step"}, []string{"step"}, []string{"step", "in < step"}), got.Lanes); diff != "" {
		t.Errorf("lanes (-want +got):\n%s", diff)
	}
	if n := got.Counters.InFlight(); n != 0 {
		t.Errorf("%d spans in flight", n)
	}
}

// TestLaneBudget leaves the lanes of every step but the first out, in programs that are
// not changed: the others are steps that say so, and nothing is taken for misuse.
func TestLaneBudget(t *testing.T) {
	program := compileEngine(t, "ranges.c", false)
	for _, tc := range []struct {
		scenario, setting string
		lanes             []string
		steps             uint64
	}{
		{"vllm", "vllm", numbered([]string{"preprocess", "forward", "postprocess", "sample"}), 4},
		{"sglang", "sglang", numbered([]string{"run_batch", "replay < run_batch"}), 2},
		{"unmarked", "graph", numbered([]string{"graph"}), 3},
	} {
		r := start(t, runOptions{level: "lane", settle: true, env: []string{"LANETRACE_STEP=" + tc.setting, "LANETRACE_LANE_BUDGET=1e-12"}}, program, tc.scenario)
		if r.code != 0 {
			t.Fatalf("%s: exit code %d, standard error %q\n%s", tc.scenario, r.code, r.stderr, r.stdout)
		}
		got := r.only(t)
		if diff := cmp.Diff(tc.lanes, got.Lanes); diff != "" {
			t.Errorf("%s: lanes (-want +got):\n%s", tc.scenario, diff)
		}
		c := got.Counters
		if c[spanring.CtrStepsUntimed] != tc.steps-1 || c[spanring.CtrStepsEnded] != tc.steps || c[spanring.CtrMisuse] != 0 || c.InFlight() != 0 {
			t.Errorf("%s: %d of %d steps untimed, misuse %d, %d in flight, want all but the first of %d", tc.scenario,
				c[spanring.CtrStepsUntimed], c[spanring.CtrStepsEnded], c[spanring.CtrMisuse], c.InFlight(), tc.steps)
		}
	}
}

// TestRangesFromBeforeTheStart opens ranges before there is a context, and raises and
// lowers the level within them.
func TestRangesFromBeforeTheStart(t *testing.T) {
	program := compileEngine(t, "ranges.c", false)
	for _, tc := range []struct {
		scenario, level, step string
		want                  []string
	}{
		{"early", "lane", "step", numbered([]string{"step", "load < step", "copy < load"}, []string{"step", "in < step"})},
		{"early", "lane", "auto", numbered([]string{"step", "load < step", "copy < load"}, []string{"step", "in < step"})},
		// Started rather than pushed, and begun in the order in which they were.
		{"early started", "lane", "step", numbered([]string{"step", "copy < step", "load < copy"}, []string{"step", "in < step"})},
		// What began at off has no name; pops find their pushes all the same.
		{"early levels", "off", "step", numbered(
			[]string{"step", "outer < step", "in < outer", "in < outer", "last < outer", "in step < step"}, []string{"step", "in < step"})},
	} {
		t.Run(tc.scenario+" "+tc.step, func(t *testing.T) {
			r := start(t, runOptions{level: tc.level, settle: true, env: []string{"LANETRACE_STEP=" + tc.step}}, program, tc.scenario)
			if r.code != 0 || r.stderr != "" {
				t.Fatalf("exit code %d, standard error %q\n%s", r.code, r.stderr, r.stdout)
			}
			got := r.only(t)
			got.balanced(t)
			if diff := cmp.Diff(tc.want, got.Lanes); diff != "" {
				t.Errorf("lanes (-want +got):\n%s", diff)
			}
			if n := got.Counters[spanring.CtrStepsEnded]; n != 2 {
				t.Errorf("%d steps ended, want 2", n)
			}
		})
	}
}

// TestHeader marks steps through lanetrace.h, in C and in C++, under the agent, with
// the agent off, and without it.
func TestHeader(t *testing.T) {
	program := compileEngine(t, "marks.c", false)
	for _, tc := range []struct {
		name string
		o    runOptions
		want string
	}{
		{name: "under the agent", o: runOptions{settle: true, level: "lane"}, want: "level 2"},
		{name: "off", o: runOptions{level: "off"}, want: "level 0"},
		{name: "without", o: runOptions{without: true}, want: "level 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := start(t, tc.o, program)
			if r.code != 0 || !strings.Contains(r.stdout, tc.want+"\n") || r.stderr != "" {
				t.Fatalf("exit code %d, standard output %q, standard error %q", r.code, r.stdout, r.stderr)
			}
			if tc.o.without {
				return
			}
			got := r.only(t)
			if tc.o.level == "off" {
				if len(got.Spans) != 0 || got.Counters[spanring.CtrBegun] != 0 {
					t.Errorf("at off: %q, %d begun", got.Lanes, got.Counters[spanring.CtrBegun])
				}
				return
			}
			// An end that comes twice, and one of none of ours.
			if n := got.Counters[spanring.CtrStaleEnds]; n != 2 {
				t.Errorf("%d stale ends, want 2", n)
			}
			got.Counters[spanring.CtrStaleEnds] = 0
			got.balanced(t)
			if diff := cmp.Diff(numbered([]string{"prefill", "sample < prefill", "copy"}), got.Lanes); diff != "" {
				t.Errorf("lanes (-want +got):\n%s", diff)
			}
			want := []spanring.StepAttrs{{Step: 1, BatchSize: 3, DecodeTokens: 4, PrefillTokens: 5, GraphMode: spanring.GraphMixed}}
			if diff := cmp.Diff(want, got.Attrs); diff != "" {
				t.Errorf("attributes (-want +got):\n%s", diff)
			}
			if got.Links != 2 || got.Requests != 1 {
				t.Errorf("%d links, %d requests; want 2 and 1", got.Links, got.Requests)
			}
		})
	}
}

// TestHeaderBounds begins more lanes than are kept open, which are refused and counted,
// and has a thread end lanes that have ended, again and again, while others end: none
// of those may be missed.
func TestHeaderBounds(t *testing.T) {
	program := compileEngine(t, "marks.c", false)
	for _, tc := range []struct {
		how    string
		lanes  int // 0: any
		misuse uint64
		stderr string
		stale  bool
	}{
		{how: "many", lanes: 1025, misuse: 32, stderr: "more than 1024 lanes"},
		{how: "race", stale: true},
	} {
		t.Run(tc.how, func(t *testing.T) {
			r := start(t, runOptions{settle: true, level: "lane"}, program, tc.how)
			if r.code != 0 || !strings.Contains(r.stderr, tc.stderr) || (r.stderr == "") != (tc.stderr == "") || strings.Count(r.stderr, "\n") > 1 {
				t.Fatalf("exit code %d, standard error %q", r.code, r.stderr)
			}
			got := r.only(t)
			c := &got.Counters
			if c.InFlight() != 0 || c.Failed() != 0 || c[spanring.CtrMisuse] != tc.misuse || (c[spanring.CtrStaleEnds] != 0) != tc.stale {
				t.Errorf("%d in flight, %d failed, misuse %d, %d stale ends", c.InFlight(), c.Failed(), c[spanring.CtrMisuse], c[spanring.CtrStaleEnds])
			}
			if tc.lanes != 0 && len(got.Lanes) != tc.lanes {
				t.Errorf("%d lanes, want %d", len(got.Lanes), tc.lanes)
			}
		})
	}
}

// TestHeaderInCxx compiles the header as C++.
func TestHeaderInCxx(t *testing.T) {
	src := filepath.Join(t.TempDir(), "marks.cc")
	text := "#include <dlfcn.h>\n#include \"lanetrace.h\"\nint main() { lanetrace_step s = lanetrace_step_begin(); return lanetrace_step_end(s); }\n"
	if err := os.WriteFile(src, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cxx, err := exec.LookPath("g++")
	if err != nil {
		t.Skip("no g++")
	}
	bin := filepath.Join(t.TempDir(), "marks")
	if said, err := exec.Command(cxx, "-Wall", "-Wextra", "-Werror", "-I", "../../include", "-o", bin, src, "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("g++: %v\n%s", err, said)
	}
	if err := exec.Command(bin).Run(); err != nil {
		t.Error(err)
	}
}

// TestPython marks from Python, over ctypes, with the module of the examples, and
// runs the driver's functions in the same way.
func TestPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3; install Debian's python3-minimal")
	}
	if real, err := exec.Command(python, "-c", "import sys, ctypes; print(sys.executable)").Output(); err == nil {
		python = strings.TrimSpace(string(real)) // not a wrapper of the shell's
	} else {
		t.Skip("python3 without ctypes")
	}
	examples, err := filepath.Abs("../../../../examples/python")
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"PYTHONPATH=" + examples, "PYTHONDONTWRITEBYTECODE=1"}
	for _, without := range []bool{false, true} {
		r := start(t, runOptions{without: without, settle: !without, level: "kernel", env: env}, python, "testdata/engine.py")
		if r.code != 0 || r.stderr != "" || !strings.Contains(r.stdout, "7 7 7 7") {
			t.Fatalf("without=%v: exit code %d, standard output %q, standard error %q", without, r.code, r.stdout, r.stderr)
		}
		if without {
			continue
		}
		got := r.only(t)
		got.balanced(t)
		if diff := cmp.Diff(numbered([]string{"prefill"}, []string{"prefill"}), got.Lanes); diff != "" {
			t.Errorf("lanes (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(numbered([]string{"lt_test_fill < prefill"}, []string{"lt_test_fill < prefill"}), got.Kernels); diff != "" {
			t.Errorf("kernels (-want +got):\n%s", diff)
		}
		if got.Memory.LiveBytes != 4096 || len(got.Sites) != 1 {
			t.Errorf("%d bytes live at %v", got.Memory.LiveBytes, got.Sites)
		}
		for site := range got.Sites {
			if strings.HasPrefix(site, "libffi") || strings.HasPrefix(site, "_ctypes") {
				t.Errorf("the site is %q, which every call over ctypes has", site)
			}
		}
	}
}
