package report

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// read runs an engine through the pipeline into observers.
func read(t *testing.T, o synth.Options, obs ...collector.Observer) *collector.Engine {
	t.Helper()
	p, err := collector.NewProcessor(synth.New(o), collector.ProcessorOptions{Observers: obs})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Drain(); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return p.Engine()
}

// What timing cost stands in the report, and what of it was left out.
func TestOverheadIsReported(t *testing.T) {
	var untimed, lanes, kernels, hosts, shown uint64
	r := New(Options{})
	e := read(t, synth.Options{Duration: 2 * time.Second, LaneEvery: 4, KernelEvery: 64}, r, collector.ObserverFunc(func(s *collector.Step) {
		if s.Untimed {
			untimed++
			shown = s.Number
		}
		if !s.Armed {
			hosts++
		}
		for i := range s.Spans {
			if s.Spans[i].Kind == spanring.KindLane {
				lanes++
			} else {
				kernels++
			}
		}
	}))
	d := r.Report(e)
	if untimed == 0 || d.Steps.Untimed != untimed || d.Overhead.Untimed != untimed || d.Steps.Host.Count != hosts || d.Steps.Unarmed.Count != hosts-untimed {
		t.Errorf("%d of %d unarmed steps are untimed, reported %+v, %+v", untimed, hosts, d.Steps, d.Overhead)
	}
	o := d.Overhead
	if o.LanesNS != int64(lanes)*3500 || o.KernelsNS != int64(kernels)*3500 || o.StepTimeNS <= 0 ||
		o.LanesShare != float64(o.LanesNS)/float64(o.StepTimeNS) || o.KernelsShare != float64(o.KernelsNS)/float64(o.StepTimeNS) {
		t.Errorf("%d lanes and %d kernels cost %+v", lanes, kernels, o)
	}
	if d.LaneEvery != 4 || d.KernelEvery != 64 {
		t.Errorf("strides %d and %d", d.LaneEvery, d.KernelEvery)
	}
	text := r.Text(e)
	for _, want := range []string{
		"1 step in 64 armed, lanes of 1 in 4 timed", "OVERHEAD (reckoned)", "of 1 step in 4\n", "1 step in 64 armed\n",
		fmt.Sprintf("%.3f %%", 100*o.LanesShare), fmt.Sprintf("%.3f %%", 100*o.KernelsShare),
		"lanes left out to stay within their budget: " + Count(untimed) + ", in their part on the host alone\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	// A step whose lanes were left out says so where it is shown.
	r = New(Options{Step: shown})
	var lines bytes.Buffer
	l := NewLines(&lines)
	e = read(t, synth.Options{Duration: 2 * time.Second, LaneEvery: 4, KernelEvery: 64}, r, collector.ObserverFunc(func(s *collector.Step) {
		if s.Number == shown {
			if err := l.write(s, collector.ExportAll); err != nil {
				t.Error(err)
			}
		}
	}))
	if d := r.Report(e); d.Step == nil || d.Step.Number != shown || !d.Step.Untimed || !strings.Contains(r.Text(e), "step "+Count(shown)+", lanes not timed") {
		t.Errorf("step %+v in\n%s", d.Step, r.Text(e))
	}
	if err := l.Close(); err != nil || !strings.Contains(lines.String(), ", lanes not timed") {
		t.Errorf("%v in %q", err, lines.String())
	}
	// A producer that does not say has no such table.
	if text := New(Options{}).Text(read(t, synth.Options{Duration: time.Nanosecond})); strings.Contains(text, "OVERHEAD") {
		t.Errorf("overhead of nothing:\n%s", text)
	}
}

// The report's figures are those of the steps, counted anew here.
func TestRunCounts(t *testing.T) {
	var steps, armed int
	lanes, kernels := make(map[string]int), make(map[string]uint64)
	r := New(Options{})
	e := read(t, synth.Options{Duration: 400 * time.Millisecond, FailEvery: 50, DropEvery: 60}, r, collector.ObserverFunc(func(s *collector.Step) {
		if s.Armed {
			armed++
		} else {
			steps++
		}
		for i := range s.Spans {
			sp := &s.Spans[i]
			if sp.Kind == spanring.KindKernel {
				kernels[sp.Text.Text] += sp.DurationNS()
			} else if !s.Armed {
				lanes[sp.Text.Text]++
			}
		}
	}))
	if int(r.steps[0].n) != steps || int(r.steps[1].n) != armed || armed == 0 {
		t.Errorf("%d steps and %d armed, want %d and %d", r.steps[0].n, r.steps[1].n, steps, armed)
	}
	got := make(map[string]int)
	for n, l := range r.lanes {
		got[n] = int(l.d[0].n)
	}
	if d := cmp.Diff(lanes, got); d != "" {
		t.Errorf("lanes (-want +got):\n%s", d)
	}
	sums := make(map[string]uint64)
	for n, k := range r.kernels {
		sums[n] = k.d.sum
	}
	if d := cmp.Diff(kernels, sums); d != "" {
		t.Errorf("kernels (-want +got):\n%s", d)
	}
	text := r.Text(e)
	for _, want := range []string{"LOSS ACCOUNT  it balances", "failed: record 13", "synthetic-decode-gpu5e1f0000\n", "\nstep "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	for _, l := range strings.Split(text, "\n") {
		if width(l) > 80 {
			t.Errorf("line of %d cells: %s", width(l), l)
		}
	}
}

// TestStandIns: a report says that its steps are none of the engine's.
func TestStandIns(t *testing.T) {
	by := map[uint64]string{2: spanring.StepGraph.String(), 3: spanring.StepWindow.String(), 4: spanring.StepWindow.String()}
	r := New(Options{})
	e := read(t, synth.Options{Duration: 200 * time.Millisecond}, collector.ObserverFunc(func(s *collector.Step) { s.StandIn = by[s.Number] }), r)
	text := r.Text(e)
	for _, want := range []string{
		"\n  not marked by the engine, each graph launch stood in: 1 (docs/attach.md)\n",
		"\n  not marked by the engine, windows of time stood in: 2 (docs/attach.md)\n",
	} {
		if strings.Count(text, want) != 1 {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	if d := cmp.Diff(map[string]uint64{"graph": 1, "window": 2}, r.Report(e).Steps.StandIns); d != "" {
		t.Errorf("for machines (-want +got):\n%s", d)
	}
	marked := New(Options{})
	e = read(t, synth.Options{Duration: 200 * time.Millisecond}, marked)
	if text := marked.Text(e); strings.Contains(text, "stood in") {
		t.Errorf("of an engine that marks its steps:\n%s", text)
	}
	if d := cmp.Diff(map[string]uint64{"graph": 0, "window": 0}, marked.Report(e).Steps.StandIns); d != "" {
		t.Errorf("for machines (-want +got):\n%s", d)
	}
}

func TestUnbalanced(t *testing.T) {
	var ctrs spanring.Counters
	ctrs[spanring.CtrBegun], ctrs[spanring.CtrLanded] = 5, 6
	a := collector.NewAccount(&ctrs, spanring.Account{Published: 10, Received: 7, Lost: 1, Overwritten: 1}, collector.SidecarCounts{Received: 3, Exported: 1})
	var b strings.Builder
	accountText(&b, a, 80)
	want := `
LOSS ACCOUNT  DOES NOT BALANCE: producer, reader, sidecar (engine and sidecar count spans, reader ring entries)
  engine   begun   landed   failed   dropped   in flight
               5 =      6 +      0 +       0 +        -1
  reader   published   received   lost   missed before attach   pending
                  10 =        7 +    1 +                    0 +       0
           lost: overwritten 1
  sidecar  received   exported   not selected   rejected   dropped   pending
                  3 =        1 +            0 +        0 +       0 +       0
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// An engine of which nothing came is reported on, too.
func TestEmptyRun(t *testing.T) {
	r := New(Options{Step: 5})
	e := read(t, synth.Options{Duration: 1})
	text := r.Text(e)
	for _, want := range []string{"LANES\n  none\n", "KERNELS\n  none", "step 5 is not among those that were read"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}

// The kept steps are spread over all, and few.
func TestPicker(t *testing.T) {
	var p picker
	for n := range uint64(10_000) {
		s := newStep(n+1, 10).s
		s.Spans = make([]collector.Span, 5)
		p.offer(&s)
	}
	if len(p.kept) < pickSteps/2 || len(p.kept) > pickSteps {
		t.Fatalf("%d steps kept", len(p.kept))
	}
	gap := p.kept[1].Number - p.kept[0].Number
	for i := 1; i < len(p.kept); i++ {
		if p.kept[i].Number-p.kept[i-1].Number != gap {
			t.Errorf("steps %d and %d are kept, others %d apart", p.kept[i-1].Number, p.kept[i].Number, gap)
		}
	}
	// Steps of many spans are few.
	p = picker{}
	for n := range uint64(1000) {
		s := newStep(n+1, 10).s
		s.Spans = make([]collector.Span, 16384)
		p.offer(&s)
		if p.spans > pickSpans || len(p.kept) == 0 {
			t.Fatalf("after %d steps: %d spans in %d steps kept", n+1, p.spans, len(p.kept))
		}
	}
}

func TestManyKernels(t *testing.T) {
	r := New(Options{Top: 2})
	b := newStep(1, 1000)
	b.s.Armed = true
	for i := range maxNames + 50 {
		b.kernel(strings.Repeat("k", i%7+1)+string(rune('0'+i%10))+strings.Repeat("x", i/70), 0, int64(i), int64(i)+10)
	}
	r.ObserveStep(&b.s)
	if len(r.kernels) > maxNames+1 {
		t.Errorf("%d kernels are told apart", len(r.kernels))
	}
	var n uint64
	for _, k := range r.kernels {
		n += k.d.n
	}
	if int(n) != maxNames+50 {
		t.Errorf("%d kernels counted, want %d", n, maxNames+50)
	}
}

func TestLines(t *testing.T) {
	var out bytes.Buffer
	l := NewLines(&out)
	p, err := collector.NewProcessor(synth.New(synth.Options{Duration: 3 * time.Millisecond, KernelEvery: 2, FailEvery: 3}), collector.ProcessorOptions{
		Exporter: l, Selector: collector.SelectAll{},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Drain(), p.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	a := p.Engine().Account().Sidecar
	if a.Exported == 0 || a.Exported != a.Received {
		t.Errorf("%d exported of %d", a.Exported, a.Received)
	}
	// The columns stand where the heading says.
	col := strings.Index(lines[0], "SPAN")
	steps := 0
	for _, s := range lines[1:] {
		if s[col-2:col] != "  " {
			t.Errorf("column does not line up: %q", s)
		}
		if strings.HasPrefix(s[col:], "step ") {
			steps++
		}
	}
	// Units are steps and spans; a host's part has a line, too, and a failed span.
	if want := int(a.Received) + steps + steps/3 + 1; len(lines) != want {
		t.Errorf("%d lines, want %d:\n%s", len(lines), want, out.String())
	}
}

type failing struct{ after int }

func (f *failing) Write(b []byte) (int, error) {
	if f.after -= len(b); f.after < 0 {
		return 0, errors.New("disk full")
	}
	return len(b), nil
}

func TestLinesFail(t *testing.T) {
	l := NewLines(&failing{8000})
	p, err := collector.NewProcessor(synth.New(synth.Options{Duration: 100 * time.Millisecond}), collector.ProcessorOptions{
		Exporter: l, Selector: collector.SelectAll{},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Drain(); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("Close: %v", err)
	}
	a := p.Engine().Account()
	if a.Sidecar.Dropped["refused"] == 0 || len(a.Unbalanced()) > 0 {
		t.Errorf("account %+v", a.Sidecar)
	}
	p.Close()
}
