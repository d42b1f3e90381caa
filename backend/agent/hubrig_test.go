package agent

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/internal/testdriver"
	"github.com/lanetrace/lanetrace/spanring"
)

// hubSources are the sources that time spans and need a driver, without what hooks a
// program.
var hubSources = []string{
	"hub.c", "hubsteps.c", "lanes.c", "overhead.c", "spans.c", "streams.c", "pool.c", "harvest.c", "anchor.c",
	"calibrate.c", "clock.c", "close.c", "binding.c", "driver.c", "say.c",
	"ring.c", "ringfile.c", "config.c", "control.c",
}

// hubRig is testdata/hub.c at work: a process that does what it is told.
type hubRig struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	said said
	read *spanring.Reader
	all  []spanring.Entry
	gone bool
}

// said is a file that a process writes its standard error to. What it wrote before it
// answered is there when the answer is; through a pipe it may come later.
type said struct{ path string }

func (s said) String() string {
	b, err := os.ReadFile(s.path)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// complaints are what the process said, but for a calibration on a machine that was
// too busy for it.
func (e *hubRig) complaints() (out []string) {
	for line := range strings.Lines(e.said.String()) {
		if !strings.HasPrefix(line, "lanetrace: kernel times on ") {
			out = append(out, line)
		}
	}
	return out
}

type hubOptions struct {
	level string
	env   []string
	flags []string // of the compiler
	lib   string   // the stand-in, built if ""
	idle  bool     // not started
}

// newHubRig starts an engine, its hub, a context, and stream 0; lanes 1 to 3 are a, b
// and c.
func newHubRig(t *testing.T, o hubOptions) *hubRig {
	t.Helper()
	if o.lib == "" {
		o.lib = testdriver.Build(t)
	}
	folder := filepath.Dir(o.lib)
	program := buildProgram(t, "hub.c",
		slices.Concat(hubSources, []string{"-L" + folder, "-l:" + testdriver.Name, "-Wl,-rpath," + folder}),
		append([]string{"-I../../../internal/testdriver/csrc", "-DLT_STOP_WAIT_MS=60000"}, o.flags...)...)
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	e := &hubRig{t: t, said: said{filepath.Join(t.TempDir(), "stderr")}, cmd: exec.Command(program)}
	e.cmd.Env = append(os.Environ(), "LANETRACE_DIR="+dir, "LANETRACE_LEVEL="+o.level)
	e.cmd.Env = append(e.cmd.Env, o.env...)
	stderr, err := os.Create(e.said.path)
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	e.cmd.Stderr = stderr
	in, err := e.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := e.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	e.in, e.out = in, bufio.NewReader(out)
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.end)
	if o.idle {
		return e
	}
	e.want("start", "0")
	e.want("open", "0")
	e.do("stream 0 0")
	for i, name := range []string{"a", "b", "c"} {
		e.want("lane "+name, fmt.Sprint(i+1))
	}
	if e.read, err = spanring.Open(e.do("path"), spanring.ReaderOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.read.Close() })
	return e
}

// end has the process end and checks that it did well.
func (e *hubRig) end() {
	if e.gone {
		return
	}
	e.gone = true
	_ = e.in.Close()
	late := time.AfterFunc(time.Minute, func() { _ = e.cmd.Process.Kill() })
	defer late.Stop()
	if err := e.cmd.Wait(); err != nil {
		e.t.Errorf("engine: %v\n%s", err, e.said)
	}
}

// do has the engine do something and returns its answer.
func (e *hubRig) do(line string) string {
	e.t.Helper()
	if _, err := io.WriteString(e.in, line+"\n"); err != nil {
		e.t.Fatalf("%s: %v\n%s", line, err, e.said)
	}
	answer, err := e.out.ReadString('\n')
	if err != nil {
		e.t.Fatalf("%s: %v\n%s", line, err, e.said)
	}
	answer = strings.TrimSuffix(answer, "\n")
	if strings.HasPrefix(answer, "!") {
		e.t.Fatalf("%s: %s", line, answer)
	}
	return answer
}

func (e *hubRig) want(line, answer string) {
	e.t.Helper()
	if got := e.do(line); got != answer {
		e.t.Fatalf("%s: %q, want %q\n%s", line, got, answer, e.said)
	}
}

// script does lines, "command = answer" or a command alone, or "command ~ answer" until
// that is the answer.
func (e *hubRig) script(lines string) {
	e.t.Helper()
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if cmd, answer, asked := strings.Cut(line, " = "); asked {
			e.want(cmd, answer)
		} else if cmd, answer, awaited := strings.Cut(line, " ~ "); awaited {
			e.until(cmd, answer)
		} else {
			e.do(cmd)
		}
	}
}

// until asks until the answer comes.
func (e *hubRig) until(line, answer string) {
	e.t.Helper()
	var got string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if got = e.do(line); got == answer {
			return
		}
	}
	e.t.Fatalf("%s: %q to the last, want %q", line, got, answer)
}

// entries are all that the ring has had so far.
func (e *hubRig) entries() []spanring.Entry {
	e.t.Helper()
	buf := make([]spanring.Entry, 1024)
	for {
		n, err := e.read.Poll(buf, time.Now().UnixNano())
		if err != nil {
			e.t.Fatal(err)
		}
		if n == 0 {
			return e.all
		}
		e.all = append(e.all, buf[:n]...)
	}
}

func (e *hubRig) counters() spanring.Counters {
	e.t.Helper()
	c, err := e.read.Counters()
	if err != nil {
		e.t.Fatal(err)
	}
	return c
}

// counted checks counters, and that those of the account that are not named are 0.
func (e *hubRig) counted(want map[string]uint64) {
	e.t.Helper()
	if d := cmp.Diff(want, namedCounters(e.counters(), want)); d != "" {
		e.t.Errorf("counters (-want +got):\n%s", d)
	}
}

func namedCounters(c spanring.Counters, want map[string]uint64) map[string]uint64 {
	got := map[string]uint64{}
	for i, n := range c {
		k := spanring.Counter(i)
		_, named := want[k.String()]
		account := k < spanring.CtrPoolsFailed || k >= spanring.CtrLanded && k < spanring.CtrFailedFirst+spanring.Counter(spanring.NumReasons)-1
		if named || account && n != 0 {
			got[k.String()] = n
		}
	}
	return got
}

// balanced checks the producer's line of the account.
func (e *hubRig) balanced(inFlight int64) {
	e.t.Helper()
	c := e.counters()
	if got := c.InFlight(); got != inFlight {
		e.t.Errorf("begun %d - landed %d - failed %d - dropped %d = %d in flight, want %d", c[spanring.CtrBegun],
			c[spanring.CtrLanded], c.Failed(), c[spanring.CtrDropped], got, inFlight)
	}
}

// log is what the ring says, without what depends on the time.
func (e *hubRig) log() []string {
	e.t.Helper()
	return describeLog(e.t, e.entries(), e.read.Name)
}

// describeLog writes down what a reader sees of steps and spans but their times, and
// but whether a launch was queued and how the constant was had.
func describeLog(t *testing.T, entries []spanring.Entry, name func(spanring.NameID) (spanring.Name, bool)) (out []string) {
	t.Helper()
	text := func(id spanring.NameID) string {
		n, _ := name(id)
		if n.Kind == spanring.NameGraph {
			return fmt.Sprintf("%s/%d/%d", n.Text, n.GraphID, n.GraphNodes)
		}
		return n.Text
	}
	flag := func(on bool, s string) string {
		if on {
			return s
		}
		return ""
	}
	for i := range entries {
		w := &entries[i].Words
		var line string
		var err error
		switch k := w.Kind(); {
		case k.IsSpan():
			s, serr := w.Span()
			err = serr
			line = fmt.Sprintf("%v %s step=%d ordinal=%d parent=%d lane=%d stream=%d context=%d%s%s", s.Kind, text(s.Name), s.Step,
				s.Ordinal, s.Parent, s.Lane, s.Stream, s.Context, flag(s.Armed, " armed"), flag(s.SharedStart, " shared"))
			if gap := s.Gap != spanring.GapUnknown; gap != (s.Kind != spanring.KindLane) {
				t.Errorf("%s: gap %v", line, s.Gap)
			}
			if cal := s.Calibration != spanring.CalibrationNone; cal != (s.Kind == spanring.KindKernel) {
				t.Errorf("%s: calibration %v", line, s.Calibration)
			}
		case k == spanring.KindSpanFailed:
			f, serr := w.SpanFailed()
			err = serr
			line = fmt.Sprintf("failed %v %s step=%d ordinal=%d parent=%d lane=%d stream=%d: %v", f.SpanKind, text(f.Name), f.Step,
				f.Ordinal, f.Parent, f.Lane, f.Stream, f.Reason)
		case k == spanring.KindStepBegin:
			s, serr := w.StepBegin()
			err = serr
			line = fmt.Sprintf("begin step=%d level=%d%s%s%s", s.Step, s.Level, flag(s.Armed, " armed"), flag(s.Asked, " asked"), flag(s.Untimed, " untimed"))
		case k == spanring.KindStepEnd:
			s, serr := w.StepEnd()
			err = serr
			line = fmt.Sprintf("end step=%d opened=%d dropped=%d linked=%d%s%s", s.Step, s.Opened, s.Dropped, s.Linked, flag(s.Armed, " armed"), flag(s.Untimed, " untimed"))
		case k == spanring.KindStepAttrs:
			a, serr := w.StepAttrs()
			err = serr
			line = fmt.Sprintf("attrs step=%d %d %d %d %v", a.Step, a.BatchSize, a.DecodeTokens, a.PrefillTokens, a.GraphMode)
		case k == spanring.KindTraceContext:
			l, serr := w.StepLink()
			err = serr
			line = fmt.Sprintf("link step=%d %x %x %d", l.Step, l.TraceID, l.SpanID, l.Flags)
		case k == spanring.KindRequestEnd:
			r, serr := w.RequestEnd()
			err = serr
			line = fmt.Sprintf("request %x %x %d..%d %d %d", r.TraceID, r.SpanID, r.BeginNS, r.EndNS, r.PromptTokens, r.OutputTokens)
		case k == spanring.KindAnchor:
			_, err = w.Anchor()
		default:
			t.Errorf("unexpected entry: %v", k)
		}
		if err != nil {
			t.Error(err)
		}
		if line != "" {
			out = append(out, line)
		}
	}
	return out
}
