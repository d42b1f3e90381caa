package otlp

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// estimated compares the bytes that the byte budget reckons a step to have with
// those that it is encoded to.
type estimated struct {
	t     *testing.T
	enc   encoder
	n     int
	worst float64
	sums  map[string][2]int
}

func (e *estimated) Export(s *collector.Step, r collector.ExportReason) {
	got := 0
	e.enc.step(s, s.Engine.RunID(), r, func() []byte { return nil }, func(k chunk) { got += len(k.buf) })
	want := collector.EstimateBytes(s)
	off := math.Abs(float64(want)/float64(got) - 1)
	if off > 0.125 {
		e.t.Errorf("step %d of %d spans: %d bytes, %d foretold", s.Number, len(s.Spans), got, want)
	}
	e.n++
	e.worst = max(e.worst, off)
	kind := fmt.Sprintf("armed %v", s.Armed)
	x := e.sums[kind]
	e.sums[kind] = [2]int{x[0] + got, x[1] + want}
	s.Engine.Ledger().Export(s.Units())
}

// TestEstimatedBytes holds the estimate that the byte budget is kept by against the
// encoder.
func TestEstimatedBytes(t *testing.T) {
	e := &estimated{t: t, enc: encoder{maxBytes: 1 << 20}, sums: make(map[string][2]int)}
	src := synth.New(synth.Options{Seed: 5, Duration: 300 * time.Millisecond, KernelEvery: 8, FailEvery: 13, DropEvery: 17, DiffEvery: 19})
	p, err := collector.NewProcessor(src, collector.ProcessorOptions{Exporter: e, Selector: collector.SelectAll{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Drain(); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if e.n < 200 {
		t.Errorf("only %d steps", e.n)
	}
	t.Logf("%d steps, at worst %.0f %% off; encoded and foretold: %v", e.n, 100*e.worst, e.sums)
}

// TestEstimatedBytesOfLongNames: names count.
func TestEstimatedBytesOfLongNames(t *testing.T) {
	e := &estimated{t: t, enc: encoder{maxBytes: 1 << 20}, sums: make(map[string][2]int)}
	src, p := newEngine(t, e, testInfo)
	long := spanring.NameID(len(src.names) + 1)
	src.names[long] = spanring.Name{Kind: spanring.NameKernel, Text: "void cutlass::Kernel2<" + fmt.Sprintf("%0700d", 7) + ">(Params)"}
	src.push(&spanring.StepBegin{Step: 1, MonoNS: 1000, Armed: true, Level: 3})
	for o := range uint32(40) {
		src.push(&spanring.Span{Kind: spanring.KindKernel, Armed: true, Step: 1, Ordinal: o + 1, Name: long, StartMonoNS: 2000, RawNS: 5000})
	}
	src.push(&spanring.StepEnd{Step: 1, BeginNS: 1000, MonoNS: 9000, Armed: true, Opened: 40})
	poll(t, p)
	if e.n != 1 {
		t.Errorf("%d steps", e.n)
	}
}
