package attach

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/backend/agent"
	"github.com/lanetrace/lanetrace/internal/testdriver"
	"github.com/lanetrace/lanetrace/spanring"
)

var built struct {
	sync.Mutex
	dir string
}

// agentLibrary builds liblanetrace.so once for the tests of this process.
func agentLibrary(tb testing.TB) string {
	tb.Helper()
	built.Lock()
	defer built.Unlock()
	lib := filepath.Join(builtDir(tb), agent.Name)
	if _, err := os.Stat(lib); err == nil {
		return lib
	}
	if err := agent.BuildTo(lib, patient); err != nil {
		tb.Fatal(err)
	}
	return lib
}

// patient has an exit wait for the agent's thread however busy the machine is.
const patient = "-DLT_STOP_WAIT_MS=60000"

// builtDir is the folder of what this process built. The caller holds the lock.
func builtDir(tb testing.TB) string {
	tb.Helper()
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "lanetrace-attach-test-")
		if err != nil {
			tb.Fatal(err)
		}
		built.dir = dir
	}
	return built.dir
}

// compileEngine compiles a program of testdata against the stand-in's headers.
func compileEngine(tb testing.TB, program string, linked bool) string {
	tb.Helper()
	include := testdriver.IncludeDir(tb)
	driver := testdriver.Build(tb)
	built.Lock()
	defer built.Unlock()
	out := filepath.Join(builtDir(tb), strings.TrimSuffix(program, ".c")+fmt.Sprint("-linked-", linked))
	if _, err := os.Stat(out); err == nil {
		return out
	}
	args := []string{"-std=c11", "-g1", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-rdynamic", "-I", include, "-I", "../../include"}
	if linked {
		args = append(args, "-DLINKED")
	}
	args = append(args, "-o", out, filepath.Join("testdata", program))
	if linked {
		args = append(args, driver)
	}
	args = append(args, "-ldl")
	if said, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		tb.Fatalf("gcc: %v\n%s", err, said)
	}
	return out
}

// A run of a program under the agent, or without it.
type run struct {
	dir            string // of its rings
	stdout, stderr string
	log            []string // what the driver saw
	code           int
}

type runOptions struct {
	without bool     // without the agent
	env     []string // further variables
	level   string   // default kernel
	settle  bool     // the program says when it is done, and ends when all has landed
	driver  string   // default the whole stand-in
}

// environment is what a program is started with.
func (o runOptions) environment(tb testing.TB, dir, log string) []string {
	driver := o.driver
	if driver == "" {
		driver = testdriver.Build(tb)
	}
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"),
		"LD_LIBRARY_PATH=" + filepath.Dir(driver), "LANETRACE_TESTDRIVER_LOG=" + log,
	}
	if !o.without {
		lib := agentLibrary(tb)
		level := o.level
		if level == "" {
			level = "kernel"
		}
		env = append(env, "LD_PRELOAD="+lib, "NVTX_INJECTION64_PATH="+lib, "LANETRACE_DIR="+dir, "LANETRACE_LEVEL="+level,
			"LANETRACE_KERNEL_SPAN_EVERY=1", "LANETRACE_KERNEL_BUDGET=1")
	}
	return append(env, o.env...)
}

// start runs a program to its end.
func start(tb testing.TB, o runOptions, program string, args ...string) run {
	tb.Helper()
	r := run{dir: tb.TempDir()}
	if err := os.Chmod(r.dir, 0o700); err != nil {
		tb.Fatal(err)
	}
	log := filepath.Join(tb.TempDir(), "log")
	env := o.environment(tb, r.dir, log)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // for what hangs
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = env
	var stdout, stderr bytes.Buffer
	cmd.Stderr = &stderr
	var err error
	if o.settle {
		p := startWaiting(tb, cmd)
		if p.ready {
			r.settle(tb)
		}
		p.in.Close() //nolint:errcheck // the program reads the end
		rest, _ := io.ReadAll(p.out)
		stdout.WriteString(p.said + string(rest))
		err = cmd.Wait()
	} else {
		cmd.Stdout = &stdout
		err = cmd.Run()
	}
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		tb.Fatal(err)
	}
	r.stdout, r.code = stdout.String(), cmd.ProcessState.ExitCode()
	for line := range strings.Lines(stderr.String()) {
		if !strings.HasPrefix(line, "lanetrace: kernel times on ") { // a busy machine cannot calibrate
			r.stderr += line
		}
	}
	if text, err := os.ReadFile(log); err == nil {
		r.log = strings.Split(strings.TrimSpace(string(text)), "\n")
	}
	return r
}

// A waiting program has done its work and ends when its input does.
type waiting struct {
	in    io.WriteCloser
	out   *bufio.Reader
	said  string
	ready bool // else it has ended
}

// startWaiting starts a program and returns when it says that it has done its work.
func startWaiting(tb testing.TB, cmd *exec.Cmd) (p waiting) {
	tb.Helper()
	cmd.Env = append(cmd.Env, "ENGINE_WAIT=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	p.in, p.out = in, bufio.NewReader(out)
	for err == nil && !p.ready {
		var line string
		line, err = p.out.ReadString('\n')
		p.said += line
		p.ready = line == "ready\n"
	}
	return p
}

// settle waits until all lanes and launches that a program has begun, which begins
// nothing any more, have landed.
func (r run) settle(tb testing.TB) {
	tb.Helper()
	rings := r.rings(tb)
	if len(rings) != 1 {
		tb.Fatalf("%d rings, want 1", len(rings))
	}
	ring, err := spanring.Open(rings[0], spanring.ReaderOptions{FromNow: true})
	if err != nil {
		tb.Fatal(err)
	}
	defer ring.Close() //nolint:errcheck // read only
	for deadline := time.Now().Add(time.Minute); ; {
		c, err := ring.Counters()
		if err != nil {
			tb.Fatal(err)
		}
		openSteps := int64(c[spanring.CtrStepsBegun] - c[spanring.CtrStepsEnded]) // a window may be
		if c.InFlight() == openSteps {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("%d spans in flight after a minute", c.InFlight())
		}
		<-time.After(5 * time.Millisecond)
	}
}

// rings are the ring files that a run left.
func (r run) rings(tb testing.TB) []string {
	tb.Helper()
	rings, err := filepath.Glob(filepath.Join(r.dir, "*"+spanring.Suffix))
	if err != nil {
		tb.Fatal(err)
	}
	return rings
}

// A telemetry is what a ring says, times left out.
type telemetry struct {
	Level    string
	Lanes    []string // step: lane<parent, in order of step and ordinal
	Kernels  []string
	Counters spanring.Counters
	Memory   spanring.MemoryTotals
	Sites    map[string]uint64 // live bytes
	Spans    []spanring.Span
	Attrs    []spanring.StepAttrs
	Links    int
	Requests int
	StepsEnd int
	Sources  map[spanring.StepSource]uint64 // of steps
}

func readRing(tb testing.TB, path string) telemetry {
	tb.Helper()
	r, err := spanring.Open(path, spanring.ReaderOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // read only
	t := telemetry{Sites: map[string]uint64{}, Sources: map[spanring.StepSource]uint64{}}
	entries := make([]spanring.Entry, 1<<16)
	n, err := r.Poll(entries, spanring.MonoNS())
	if err != nil {
		tb.Fatal(err)
	}
	name := func(id spanring.NameID) string {
		n, ok := r.Name(id)
		if !ok {
			return "?"
		}
		if n.Kind == spanring.NameGraph {
			return fmt.Sprintf("graph %d of %d", n.GraphID, n.GraphNodes)
		}
		return n.Text
	}
	var spans []spanring.Span
	for i := range entries[:n] {
		w := &entries[i].Words
		switch w.Kind() {
		case spanring.KindLane, spanring.KindKernel, spanring.KindGraph:
			s, err := w.Span()
			if err != nil {
				tb.Fatal(err)
			}
			spans = append(spans, s)
		case spanring.KindStepBegin:
			s, err := w.StepBegin()
			if err != nil {
				tb.Fatal(err)
			}
			t.Sources[s.Source]++
		case spanring.KindStepEnd:
			t.StepsEnd++
		case spanring.KindStepAttrs:
			a, err := w.StepAttrs()
			if err != nil {
				tb.Fatal(err)
			}
			t.Attrs = append(t.Attrs, a)
		case spanring.KindTraceContext:
			t.Links++
		case spanring.KindRequestEnd:
			t.Requests++
		}
	}
	slices.SortStableFunc(spans, func(a, b spanring.Span) int {
		if a.Step != b.Step {
			return int(a.Step) - int(b.Step)
		}
		return int(a.Ordinal) - int(b.Ordinal)
	})
	t.Spans = spans
	lane := map[string]string{}
	for _, s := range spans {
		if s.Kind == spanring.KindLane {
			lane[fmt.Sprint(s.Step, s.Ordinal)] = name(s.Name)
		}
	}
	for _, s := range spans {
		line := fmt.Sprintf("%d: %s", s.Step, name(s.Name))
		if s.Parent != 0 {
			line += " < " + lane[fmt.Sprint(s.Step, s.Parent)]
		}
		if s.Kind == spanring.KindLane {
			t.Lanes = append(t.Lanes, line)
		} else {
			t.Kernels = append(t.Kernels, line)
		}
	}
	if t.Counters, err = r.Counters(); err != nil {
		tb.Fatal(err)
	}
	allocs, scan, err := r.Allocs(nil)
	if err != nil {
		tb.Fatal(err)
	}
	t.Memory = scan.Totals
	for _, a := range allocs {
		t.Sites[name(a.Site)] += a.Bytes
	}
	return t
}

// only reads the one ring that a run left.
func (r run) only(tb testing.TB) telemetry {
	tb.Helper()
	rings := r.rings(tb)
	if len(rings) != 1 {
		tb.Fatalf("%d rings, want 1; standard error: %s", len(rings), r.stderr)
	}
	return readRing(tb, rings[0])
}

var (
	addresses = regexp.MustCompile(`0x[0-9a-f]{4,}|(stream|ctx)=\d+`)
	params    = regexp.MustCompile(`params=[0-9a-f]+`)
	sequence  = regexp.MustCompile(`^\d+ `)
)

// driverSaw is the driver's log without what two runs never have in common
// (sequence numbers, addresses) and without what is the agent's own: its event
// records and the kernels of its calibration.
func (r run) driverSaw() []string {
	var out []string
	ids := map[string]string{}
	for _, line := range r.log {
		if strings.Contains(line, " cuEventRecord ") || strings.Contains(line, "kernel=lt_spin ") {
			continue
		}
		line = params.ReplaceAllString(sequence.ReplaceAllString(line, ""), "params")
		out = append(out, addresses.ReplaceAllStringFunc(line, func(s string) string {
			if ids[s] == "" {
				ids[s] = fmt.Sprintf("%s#%d", strings.TrimRight(s, "0123456789abcdefx"), len(ids))
			}
			return ids[s]
		}))
	}
	return out
}

var ways = []struct {
	name   string
	linked bool
	how    string
}{
	{name: "linked", linked: true, how: "linked"},
	{name: "dlsym", how: "dlsym"},
	{name: "cuGetProcAddress", how: "proc"},
}

// TestDriverSeesTheSame compares, call by call, what the driver and the program
// see with and without the agent.
func TestDriverSeesTheSame(t *testing.T) {
	for _, way := range ways {
		for _, level := range []string{"off", "lane", "kernel"} {
			t.Run(way.name+"/"+level, func(t *testing.T) {
				engine := compileEngine(t, "engine.c", way.linked)
				want := start(t, runOptions{without: true}, engine, way.how, "all")
				got := start(t, runOptions{level: level}, engine, way.how, "all")
				if want.code != 0 || got.code != 0 {
					t.Fatalf("exit codes %d and %d; %s%s", want.code, got.code, want.stderr, got.stderr)
				}
				if diff := cmp.Diff(want.stdout, got.stdout); diff != "" {
					t.Errorf("the program saw (-without +with the agent):\n%s", diff)
				}
				if got.stderr != "" {
					t.Errorf("standard error: %s", got.stderr)
				}
				if len(want.log) < 50 {
					t.Fatalf("the driver logged %d lines", len(want.log))
				}
				if diff := cmp.Diff(want.driverSaw(), got.driverSaw()); diff != "" {
					t.Errorf("the driver saw (-without +with the agent):\n%s", diff)
				}
			})
		}
	}
}
