package collector

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lanetrace/lanetrace/spanring"
)

// brief is what most tests compare of a step.
type brief struct {
	Number     uint64
	Start, End int64
	Spans      []string
	Failed     int
	Missing    int
	LeftOut    int
	Dropped    uint32
	Incomplete IncompleteReason
	Units      int
}

func briefly(s *Step) brief {
	b := brief{
		Number: s.Number, Failed: s.FailedCount, Missing: s.Missing(), LeftOut: s.LeftOut, Dropped: s.Dropped,
		Incomplete: s.Incomplete, Units: s.Units(),
	}
	b.Start, b.End = s.Bounds()
	for i := range s.Spans {
		sp := &s.Spans[i]
		parent := "step"
		if p := s.ParentOf(i); p >= 0 {
			parent = s.Spans[p].Text.Text
		}
		in := ""
		if sp.LaneText != nil {
			in = " lane " + sp.LaneText.Text
		}
		b.Spans = append(b.Spans, fmt.Sprintf("%s in %s%s %d+%d", sp.Text, parent, in, sp.StartMonoNS, sp.DurationNS()))
	}
	return b
}

func run(t *testing.T, src Source, o ProcessorOptions) (*Processor, *keep) {
	t.Helper()
	k := &keep{}
	o.Observers = append(o.Observers, k)
	p, err := NewProcessor(src, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p, k
}

// pollAll polls until nothing is there.
func pollAll(t *testing.T, p *Processor) {
	t.Helper()
	for {
		n, done, err := p.Poll()
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 || done {
			return
		}
	}
}

// armedStep is a step with two lanes, a kernel in each, one in the step itself
// and a failed lane.
func armedStep() []wordser {
	return []wordser{
		begin(7, 1000),
		kernel(7, 2, 1, 1, 3, 5000, 10_000),
		lane(7, 1, 1, 4000, 20_000),
		kernel(7, 4, 3, 2, 4, 31_000, 20_000),
		lane(7, 3, 2, 30_000, 30_000),
		kernel(7, 5, 0, 0, 5, 70_000, 5000),
		failed(7, 6, spanring.FailCapture, 71_000),
		&spanring.StepAttrs{Step: 7, BatchSize: 3, DecodeTokens: 2, PrefillTokens: 40, GraphMode: spanring.GraphEager},
		&spanring.StepEnd{Step: 7, BeginNS: 1000, MonoNS: 50_000, Armed: true, Opened: 6, Dropped: 2},
	}
}

func TestStepFromEntriesInAnyOrder(t *testing.T) {
	want := brief{
		Number: 7, Start: 1000, End: 75_000, Failed: 1, Dropped: 2, Units: 6,
		Spans: []string{
			"prefill in step lane prefill 4000+20000",
			"gemm in prefill lane prefill 5000+6960",
			"decode in step lane decode 30000+30000",
			"softmax in decode lane decode 31000+16960",
			"sample in step 70000+1960",
		},
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 200 {
		es := armedStep()
		if i > 0 {
			rnd.Shuffle(len(es), func(a, b int) { es[a], es[b] = es[b], es[a] })
		}
		src := newMemSource("prefill", "decode", "gemm", "softmax", "sample")
		// The step closes with its last span or its end; attributes that come after
		// it can no longer belong.
		p, k := run(t, src, ProcessorOptions{})
		src.push(es...)
		pollAll(t, p)
		if len(k.steps) != 1 {
			t.Fatalf("order %d: %d steps closed, want 1", i, len(k.steps))
		}
		if d := cmp.Diff(want, briefly(k.steps[0])); d != "" {
			t.Fatalf("order %d (-want +got):\n%s", i, d)
		}
		if i == 0 {
			s := k.steps[0]
			if !s.HasAttrs || s.Attrs.PrefillTokens != 40 || !s.Armed || s.Level != 2 || s.WallOffsetNS != testWallOffset {
				t.Errorf("attributes not kept: %+v", s)
			}
		}
		if c := p.Engine().Ledger().Counts(); c.Pending != 0 || c.Received != 6 {
			t.Fatalf("order %d: ledger %+v", i, c)
		}
	}
}

// TestHostAStepAhead is an asynchronous engine: the host ends step n before the
// GPU begins it.
func TestHostAStepAhead(t *testing.T) {
	src := newMemSource("decode")
	p, k := run(t, src, ProcessorOptions{})
	const steps = 50
	for n := uint64(1); n <= steps; n++ {
		host := int64(n) * 1_000_000
		src.push(begin(n, host), end(n, host, host+100_000, 1))
		if n > 1 {
			src.push(lane(n-1, 1, 1, int64(n)*1_000_000+200_000, 900_000))
		}
	}
	src.push(lane(steps, 1, 1, (steps+1)*1_000_000+200_000, 900_000))
	pollAll(t, p)
	if len(k.steps) != steps {
		t.Fatalf("%d steps closed, want %d", len(k.steps), steps)
	}
	for i, s := range k.steps {
		n := int64(i + 1)
		want := brief{
			Number: uint64(n), Start: n * 1_000_000, End: (n+1)*1_000_000 + 1_100_000, Units: 2,
			Spans: []string{fmt.Sprintf("decode in step lane decode %d+900000", (n+1)*1_000_000+200_000)},
		}
		if d := cmp.Diff(want, briefly(s)); d != "" {
			t.Fatalf("step %d (-want +got):\n%s", n, d)
		}
	}
}

func TestStepsThatDoNotCloseByThemselves(t *testing.T) {
	tests := []struct {
		name    string
		o       ProcessorOptions
		es      []wordser
		then    func(p *Processor, src *memSource)
		want    []brief
		ledger  SidecarCounts
		ignored uint64
	}{
		{
			name: "a span is lost: time-out",
			es:   []wordser{begin(1, 100), lane(1, 1, 1, 200, 50), end(1, 100, 300, 2)},
			then: func(p *Processor, src *memSource) { src.nowNS += int64(15 * time.Second) },
			want: []brief{{Number: 1, Start: 100, End: 300, Missing: 1, Incomplete: IncompleteTimeout, Units: 2,
				Spans: []string{"a in step lane a 200+50"}}},
			ledger: SidecarCounts{Received: 2},
		},
		{
			name: "not yet: just under the time-out",
			es:   []wordser{begin(1, 100), lane(1, 1, 1, 200, 50), end(1, 100, 300, 2)},
			then: func(p *Processor, src *memSource) { src.nowNS += int64(15*time.Second) - 1 },
			want: nil, ledger: SidecarCounts{Received: 2, Pending: 2},
		},
		{
			name: "the time-out runs from what came last",
			es:   []wordser{begin(1, 100), begin(2, 200)},
			then: func(p *Processor, src *memSource) {
				src.nowNS += int64(10 * time.Second)
				src.push(lane(1, 1, 1, 150, 10))
				p.Poll()
				src.nowNS += int64(10 * time.Second)
			},
			want:   []brief{{Number: 2, Start: 200, End: 200, Incomplete: IncompleteTimeout, Units: 1}},
			ledger: SidecarCounts{Received: 3, Pending: 2},
		},
		{
			name:   "the end is lost",
			es:     []wordser{begin(1, 100), lane(1, 1, 1, 200, 50)},
			then:   func(p *Processor, src *memSource) { src.nowNS += int64(15 * time.Second) },
			want:   []brief{{Number: 1, Start: 100, End: 250, Incomplete: IncompleteTimeout, Units: 2, Spans: []string{"a in step lane a 200+50"}}},
			ledger: SidecarCounts{Received: 2},
		},
		{
			name:   "the begin is lost: its end knows it",
			es:     []wordser{lane(1, 1, 1, 200, 50), end(1, 100, 300, 1)},
			want:   []brief{{Number: 1, Start: 100, End: 300, Units: 2, Spans: []string{"a in step lane a 200+50"}}},
			ledger: SidecarCounts{Received: 2},
		},
		{
			name:   "begin and end are lost: the step itself was never received",
			es:     []wordser{lane(1, 1, 1, 200, 50)},
			then:   func(p *Processor, src *memSource) { p.Finish() },
			want:   []brief{{Number: 1, Start: 200, End: 250, Incomplete: IncompleteDetach, Units: 1, Spans: []string{"a in step lane a 200+50"}}},
			ledger: SidecarCounts{Received: 1},
		},
		{
			name:   "all but the attributes are lost: nothing says when the step was",
			es:     []wordser{&spanring.StepAttrs{Step: 1, BatchSize: 4}, begin(2, 200), end(2, 200, 300, 0)},
			then:   func(p *Processor, src *memSource) { p.Finish() },
			want:   []brief{{Number: 2, Start: 200, End: 300, Units: 1}},
			ledger: SidecarCounts{Received: 1},
		},
		{
			name: "all but a launch diff is lost",
			es:   []wordser{&spanring.LaunchDiff{Step: 1, MonoNS: 150, Before: 2, After: 3, Inserted: 1}},
			then: func(p *Processor, src *memSource) { p.Finish() },
			want: []brief{{Number: 1, Start: 150, End: 150, Incomplete: IncompleteDetach}},
		},
		{
			name: "the parent is lost",
			es:   []wordser{begin(1, 100), kernel(1, 2, 1, 9, 2, 210, 4000), end(1, 100, 300, 2)},
			then: func(p *Processor, src *memSource) { src.done = true; p.Poll() },
			want: []brief{{Number: 1, Start: 100, End: 4210, Missing: 1, Incomplete: IncompleteEnded, Units: 2,
				Spans: []string{"b in step 210+960"}}},
			ledger: SidecarCounts{Received: 2},
		},
		{
			name: "more steps open than are kept",
			o:    ProcessorOptions{MaxOpenSteps: 2},
			es:   []wordser{begin(1, 100), begin(2, 200), lane(1, 1, 1, 150, 10), begin(3, 300)},
			want: []brief{{Number: 2, Start: 200, End: 200, Incomplete: IncompleteEvicted, Units: 1}},
			// Step 1 was touched last.
			ledger: SidecarCounts{Received: 4, Pending: 3},
		},
		{
			name: "more spans open than are kept",
			o:    ProcessorOptions{MaxOpenSpans: 2},
			es: []wordser{begin(1, 100), lane(1, 1, 1, 110, 10), begin(2, 200), lane(2, 1, 1, 210, 10),
				lane(2, 2, 1, 220, 10)},
			want:   []brief{{Number: 1, Start: 100, End: 120, Incomplete: IncompleteEvicted, Units: 2, Spans: []string{"a in step lane a 110+10"}}},
			ledger: SidecarCounts{Received: 5, Pending: 3},
		},
		{
			name: "more spans in a step than are kept",
			o:    ProcessorOptions{MaxSpansPerStep: 2},
			es: []wordser{begin(1, 100), lane(1, 1, 1, 110, 10), lane(1, 2, 1, 120, 10), lane(1, 3, 1, 130, 10),
				end(1, 100, 200, 3)},
			want: []brief{{Number: 1, Start: 100, End: 200, LeftOut: 1, Units: 3,
				Spans: []string{"a in step lane a 110+10", "a in step lane a 120+10"}}},
			ledger: SidecarCounts{Received: 4, Dropped: [NumDropReasons]uint64{DropStepFull: 1}},
		},
		{
			name: "late: span, failure, begin and end of a closed step",
			es: []wordser{begin(1, 100), end(1, 100, 200, 0), lane(1, 1, 1, 110, 10), failed(1, 2, spanring.FailZero, 5), begin(1, 100), end(1, 100, 200, 0),
				&spanring.StepAttrs{Step: 1, BatchSize: 9}},
			want:    []brief{{Number: 1, Start: 100, End: 200, Units: 1}},
			ledger:  SidecarCounts{Received: 2, Dropped: [NumDropReasons]uint64{DropLate: 1}},
			ignored: 4,
		},
		{
			name: "late: the end after an eviction that only a span had opened",
			o:    ProcessorOptions{MaxOpenSteps: 1},
			es:   []wordser{lane(1, 1, 1, 110, 10), begin(2, 200), begin(1, 100), end(1, 100, 190, 1)},
			want: []brief{{Number: 1, Start: 110, End: 120, Incomplete: IncompleteEvicted, Units: 1, Spans: []string{"a in step lane a 110+10"}}},
			// Span 1, step 2, and step 1 itself, late, once.
			ledger:  SidecarCounts{Received: 3, Pending: 1, Dropped: [NumDropReasons]uint64{DropLate: 1}},
			ignored: 1,
		},
		{
			name: "malformed: no step, an ordinal twice, two ends",
			es: []wordser{lane(0, 1, 1, 110, 10), begin(1, 100), lane(1, 1, 1, 110, 10), end(1, 100, 200, 2), end(1, 100, 250, 2),
				lane(1, 1, 1, 130, 10)},
			want:    []brief{{Number: 1, Start: 100, End: 200, Units: 2, Spans: []string{"a in step lane a 110+10"}}},
			ledger:  SidecarCounts{Received: 4, Dropped: [NumDropReasons]uint64{DropMalformed: 2}},
			ignored: 1,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			src := newMemSource("a", "b")
			src.push(tt.es...)
			p, k := run(t, src, tt.o)
			pollAll(t, p)
			if tt.then != nil {
				tt.then(p, src)
				pollAll(t, p)
			}
			var got []brief
			for _, s := range k.steps {
				got = append(got, briefly(s))
			}
			if d := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("steps (-want +got):\n%s", d)
			}
			// Nothing is exported here: what is neither dropped nor pending was not wanted.
			want := tt.ledger
			want.NotSelected[NotWanted] = want.Received - want.Pending
			for _, d := range want.Dropped {
				want.NotSelected[NotWanted] -= d
			}
			if d := cmp.Diff(want, p.Engine().Ledger().Counts()); d != "" {
				t.Errorf("ledger (-want +got):\n%s", d)
			}
			s := &p.Engine().sum
			if got := s.malformed + s.lateEntries + s.otherEntries; got != tt.ignored {
				t.Errorf("%d entries ignored, want %d", got, tt.ignored)
			}
		})
	}
}

// TestRestartNeverMergesSteps: the same numbers of two runs are two steps.
func TestRestartNeverMergesSteps(t *testing.T) {
	var steps []*Step
	o := ProcessorOptions{Observers: []Observer{ObserverFunc(func(s *Step) { steps = append(steps, s.Clone()) })}}
	for run := range 2 {
		src := newMemSource("a")
		src.info.RunID[0] = byte(run)
		src.push(begin(1, 100), lane(1, 1, 1, 110, 10))
		if run == 1 {
			src.push(end(1, 100, 200, 1))
		}
		src.done = true
		p, err := NewProcessor(src, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Drain(); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(steps) != 2 || steps[0].Incomplete != IncompleteEnded || steps[1].Incomplete != Complete {
		t.Fatalf("got %d steps: %+v", len(steps), steps)
	}
	if a, b := StepTraceID(steps[0].Engine.RunID(), 1), StepTraceID(steps[1].Engine.RunID(), 1); a == b {
		t.Errorf("both runs' steps have trace id %s", a)
	}
}

func TestClosedStepIsForgottenOnlyWhenFarBehind(t *testing.T) {
	src := newMemSource("a")
	p, k := run(t, src, ProcessorOptions{})
	for n := uint64(1); n <= closedMemory+1; n++ {
		src.push(begin(n, 100), end(n, 100, 200, 0))
	}
	// Step 1's place was taken by step 4097, step 2 is still remembered.
	src.push(lane(1, 1, 1, 110, 10), lane(2, 1, 1, 110, 10), begin(1, 100), end(1, 100, 200, 0))
	pollAll(t, p)
	if len(k.steps) != closedMemory+1 {
		t.Fatalf("%d steps closed, want %d", len(k.steps), closedMemory+1)
	}
	c := p.Engine().Ledger().Counts()
	if c.Dropped[DropLate] != 3 || c.Received != closedMemory+1+3 || c.Pending != 0 {
		t.Errorf("ledger %+v", c)
	}
}

func TestPollDoesNotAllocate(t *testing.T) {
	src := newMemSource("decode", "gemm")
	p, err := NewProcessor(src, ProcessorOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var batch []spanring.Entry
	n := uint64(0)
	fill := func() {
		batch = batch[:0]
		for range 16 {
			n++
			at := int64(n) * 1000
			for _, w := range []wordser{
				begin(n, at), lane(n, 1, 1, at+10, 500), kernel(n, 2, 1, 1, 2, at+20, 4000), end(n, at, at+600, 2),
			} {
				batch = append(batch, spanring.Entry{Words: w.Words()})
			}
		}
	}
	for range 10 {
		fill()
		p.assemble(batch)
		p.handOver()
	}
	fill()
	again := batch
	if a := testing.AllocsPerRun(100, func() {
		for i := range again { // the same steps under new numbers
			again[i].Words[1] += 16
		}
		p.assemble(again)
		p.handOver()
	}); a > 0 {
		t.Errorf("%v allocations for 64 entries", a)
	}
	if c := p.Engine().Ledger().Counts(); c.Pending != 0 || c.NotSelected[NotWanted] == 0 {
		t.Errorf("ledger %+v", c)
	}
}
