package collector

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

func TestLiveSelector(t *testing.T) {
	sampled := []Link{{TraceContext: spanring.TraceContext{Flags: 1}}}
	for _, tt := range []struct {
		name string
		o    LiveOptions
		s    Step
		want ExportReason
	}{
		{"ordinary", LiveOptions{}, Step{Number: 999}, ExportNone},
		{"one in 1,000", LiveOptions{}, Step{Number: 2000}, ExportOneInN},
		{"one in 3", LiveOptions{OneInN: 3}, Step{Number: 9}, ExportOneInN},
		{"none in N", LiveOptions{OneInN: -1}, Step{Number: 1000}, ExportNone},
		{"armed", LiveOptions{OneInN: -1}, Step{Number: 1, Armed: true}, ExportArmed},
		{"linked before armed", LiveOptions{}, Step{Number: 1, Armed: true, Links: sampled}, ExportLinked},
		{"a request that is not recorded", LiveOptions{}, Step{Number: 1, Links: []Link{{}}}, ExportNone},
		{"asked before linked", LiveOptions{}, Step{Number: 1, Armed: true, Asked: true, Links: sampled}, ExportAsked},
		{"launch diff before asked", LiveOptions{OneInN: -1}, Step{Number: 1, Armed: true, Asked: true, LaunchDiffCount: 1}, ExportLaunchDiff},
		{"failed before launch diff", LiveOptions{}, Step{Number: 1, LaunchDiffCount: 1, FailedCount: 1}, ExportFailed},
		{"dropped", LiveOptions{}, Step{Number: 1, Dropped: 1}, ExportDropped},
		{"left out", LiveOptions{}, Step{Number: 1, LeftOut: 1}, ExportDropped},
		{"incomplete before all", LiveOptions{}, Step{Number: 1000, FailedCount: 1, Incomplete: IncompleteTimeout}, ExportIncomplete},
	} {
		got, not := NewLiveSelector(tt.o).Select(&tt.s)
		if got != tt.want || (got == ExportNone && not != NotOneInN) {
			t.Errorf("%s: %v (%v), want %v", tt.name, got, not, tt.want)
		}
	}
	if got, _ := (SelectAll{}).Select(&Step{Number: 3}); got != ExportAll {
		t.Errorf("all: %v", got)
	}
}

func TestSelectionReachesExporterAndLedger(t *testing.T) {
	src := newMemSource("a")
	k := &keep{settle: true}
	p, _ := run(t, src, ProcessorOptions{Exporter: k, Selector: NewLiveSelector(LiveOptions{OneInN: 4})})
	for n := uint64(1); n <= 10; n++ {
		src.push(begin(n, 100), lane(n, 1, 1, 110, 10), end(n, 100, 200, 1))
	}
	pollAll(t, p)
	if len(k.steps) != 2 || k.steps[0].Number != 4 || k.steps[1].Number != 8 || k.reasons[0] != ExportOneInN {
		t.Errorf("exported %v", k.steps)
	}
	want := SidecarCounts{Received: 20, Exported: 4, NotSelected: [NumNotSelected]uint64{NotOneInN: 16}}
	if got := p.Engine().Ledger().Counts(); got != want {
		t.Errorf("ledger %+v, want %+v", got, want)
	}
}

// TestSecondReasonPays: a step that the first reason's part of the budget refuses
// is exported out of another's, and called by the first.
func TestSecondReasonPays(t *testing.T) {
	size := func(*Step) int { return 1000 }
	l := NewLiveSelector(LiveOptions{OneInN: 1, BudgetBytes: 1000, BurstBytes: 3200, Size: size})
	var got []ExportReason
	var refused int
	for n := range uint64(12) {
		r, not := l.Select(&Step{Number: n + 1, FailedCount: 1})
		if got = append(got, r); r == ExportNone {
			refused++
			if not != NotBudget {
				t.Errorf("step %d is not selected: %v", n+1, not)
			}
		} else if r != ExportFailed {
			t.Errorf("step %d is exported for %v", n+1, r)
		}
	}
	// The common half of the burst is 1,600 bytes, the faults' part 300 and the part
	// of one in N 100.
	if refused == 0 || refused == 12 {
		t.Errorf("%d of 12 refused: %v", refused, got)
	}
	if r, _ := l.Select(&Step{Number: 13, Armed: true, Asked: true}); r != ExportAsked {
		t.Errorf("asked for after a flood of failures: %v", r)
	}
}

// TestBudgetReachesTheLedger: what the budget refuses is not selected, with the
// reason, and no loss.
func TestBudgetReachesTheLedger(t *testing.T) {
	src := newMemSource("a")
	k := &keep{settle: true}
	l := NewLiveSelector(LiveOptions{OneInN: 1, BudgetBytes: 100, BurstBytes: 1, Size: func(*Step) int { return 1 << 20 }})
	p, _ := run(t, src, ProcessorOptions{Exporter: k, Selector: l})
	for n := uint64(1); n <= 10; n++ {
		src.push(begin(n, 100), lane(n, 1, 1, 110, 10), end(n, 100, 200, 1))
	}
	pollAll(t, p)
	want := SidecarCounts{Received: 20, Exported: 2, NotSelected: [NumNotSelected]uint64{NotBudget: 18}}
	if d := cmp.Diff(want, p.Engine().Ledger().Counts()); d != "" {
		t.Errorf("ledger (-want +got):\n%s", d)
	}
	a := p.Engine().Account()
	if a.Sidecar.NotSelected["budget"] != 18 || len(a.Unbalanced()) > 0 && a.Unbalanced()[0] == "sidecar" {
		t.Errorf("account %+v", a.Sidecar)
	}
}

func TestSelectDoesNotAllocate(t *testing.T) {
	l := NewLiveSelector(LiveOptions{})
	rnd := rand.New(rand.NewPCG(1, 1))
	s := &Step{HasBegin: true, HasEnd: true, HasAttrs: true, Spans: []Span{laneOn(1, 0, 10, 900_000, 5)}}
	l.Select(s)
	if a := testing.AllocsPerRun(1000, func() {
		s.Number++
		s.EndMonoNS = int64(900_000 + rnd.IntN(100_000))
		s.ClosedMonoNS += 1_000_000
		l.Select(s)
	}); a > 0 {
		t.Errorf("%v allocations a step", a)
	}
}

func BenchmarkSelect(b *testing.B) {
	l := NewLiveSelector(LiveOptions{})
	rnd := rand.New(rand.NewPCG(1, 1))
	s := &Step{HasBegin: true, HasEnd: true, HasAttrs: true, Spans: []Span{laneOn(1, 0, 10, 900_000, 5)}}
	b.ReportAllocs()
	for b.Loop() {
		s.Number++
		s.EndMonoNS = int64(900_000 + rnd.IntN(100_000))
		s.ClosedMonoNS += 1_000_000
		l.Select(s)
	}
}

// TestBudgetBoundsRequestSummaries: a flood of requests takes its part of the budget
// and no more, which is told in the account.
func TestBudgetBoundsRequestSummaries(t *testing.T) {
	src := newMemSource("a")
	p, k := exporting(t, src, ProcessorOptions{Selector: NewLiveSelector(LiveOptions{OneInN: -1, BudgetBytes: 1000, BurstBytes: 10 * requestBytes})})
	const requests = 100
	for n := range requests {
		src.push(requestEnd(n+1, int64(n), int64(n)+10))
	}
	pollAll(t, p)
	if n := len(k.requests); n < 5 || n > 12 {
		t.Errorf("%d summaries exported of a burst of 10", n)
	}
	want := SidecarCounts{Received: requests, Exported: uint64(len(k.requests)), NotSelected: [NumNotSelected]uint64{NotBudget: requests - uint64(len(k.requests))}}
	if d := cmp.Diff(want, p.Engine().Ledger().Counts()); d != "" {
		t.Errorf("ledger (-want +got):\n%s", d)
	}
}
