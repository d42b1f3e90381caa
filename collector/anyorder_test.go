package collector

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/lanetrace/lanetrace/spanring"
)

// anyStep is a step of a random engine: its entries, and what must come of it when
// all of them arrive.
type anyStep struct {
	entries []wordser
	want    brief
}

func drawStep(t *rapid.T, n uint64) anyStep {
	at := int64(n) * 1000
	s := anyStep{
		entries: []wordser{begin(n, at), &spanring.StepAttrs{Step: n, BatchSize: uint32(n)}, link(n, int(n)%3)},
		want:    brief{Number: n, Start: at, End: at + 500, Units: 1},
	}
	spans := rapid.IntRange(0, 4).Draw(t, "spans")
	for o := uint32(1); o <= uint32(spans); o++ {
		if rapid.IntRange(0, 4).Draw(t, "fails") == 0 {
			s.entries = append(s.entries, failed(n, o, spanring.FailRecord, at+10))
			s.want.Failed++
			continue
		}
		start, ns := at+rapid.Int64Range(0, 5000).Draw(t, "start"), uint64(rapid.Int64Range(1, 3000).Draw(t, "ns"))
		s.entries = append(s.entries, lane(n, o, 1, start, ns))
		s.want.End = max(s.want.End, start+int64(ns))
		s.want.Units++
	}
	s.entries = append(s.entries, linkedEnd(n, at, at+500, uint32(spans), 1))
	return s
}

// TestAnyOrderAnyLoss: the entries of several engines with steps of the same
// numbers, shuffled across steps, in pieces, and some of them lost. What is whole
// is complete and right, what is not says so, no step has anything of another, and
// the account is exact.
func TestAnyOrderAnyLoss(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type engine struct {
			src     *memSource
			p       *Processor
			k       *keepRequests
			entries []spanring.Words
			steps   []anyStep
			lost    map[uint64]bool // steps of which an entry that matters was lost
			units   int
		}
		loss := rapid.SampledFrom([]int{0, 0, 5, 30}).Draw(t, "per cent lost")
		engines := make([]*engine, rapid.IntRange(1, 3).Draw(t, "engines"))
		for i := range engines {
			e := &engine{src: newMemSource("a"), lost: make(map[uint64]bool)}
			engines[i] = e
			e.src.info.RunID[0] = byte(i)
			roots := map[uint64]bool{}
			for n := uint64(1); n <= uint64(rapid.IntRange(1, 6).Draw(t, "steps")); n++ {
				s := drawStep(t, n)
				e.steps = append(e.steps, s)
				for _, x := range s.entries {
					w := x.Words()
					if rapid.IntRange(0, 99).Draw(t, "lost") < loss {
						switch w.Kind() {
						case spanring.KindStepAttrs, spanring.KindTraceContext, spanring.KindStepBegin: // its end knows the begin
						default:
							e.lost[n] = true
						}
						continue
					}
					switch w.Kind() {
					case spanring.KindStepBegin, spanring.KindStepEnd:
						roots[n] = true
					case spanring.KindLane:
						e.units++
					}
					e.entries = append(e.entries, w)
				}
			}
			e.units += len(roots)
			e.entries = rapid.Permutation(e.entries).Draw(t, "order")
			e.k = &keepRequests{keep: keep{settle: true}}
			p, err := NewProcessor(e.src, ProcessorOptions{Exporter: e.k, Selector: SelectAll{}})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			e.p = p
		}
		for left := true; left; {
			left = false
			for _, e := range engines {
				n := min(len(e.entries), rapid.IntRange(0, 7).Draw(t, "piece"))
				e.src.queue = append(e.src.queue, e.entries[:n]...)
				e.entries = e.entries[n:]
				left = left || len(e.entries) > 0
				if _, _, err := e.p.Poll(); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i, e := range engines {
			e.src.nowNS += int64(15 * time.Second)
			if _, _, err := e.p.Poll(); err != nil {
				t.Fatal(err)
			}
			got := map[uint64]*Step{}
			for _, s := range e.k.steps {
				if got[s.Number] != nil || s.Engine.RunID()[0] != byte(i) {
					t.Fatalf("engine %d: step %d of run %v closed again", i, s.Number, s.Engine.RunID())
				}
				got[s.Number] = s
			}
			for _, want := range e.steps {
				n := want.want.Number
				s := got[n]
				switch {
				case s == nil && !e.lost[n]:
					t.Fatalf("engine %d: step %d never closed", i, n)
				case s == nil: // nothing but what makes no step arrived
				case e.lost[n]:
					if s.Incomplete != IncompleteTimeout && s.Incomplete != Complete {
						t.Fatalf("engine %d: step %d is incomplete for %v", i, n, s.Incomplete)
					}
					if s.HasEnd && s.Incomplete == Complete {
						t.Fatalf("engine %d: step %d is complete without what was lost", i, n)
					}
				default:
					b := briefly(s)
					b.Spans = nil
					if d := cmp.Diff(want.want, b, cmpopts.EquateEmpty()); d != "" {
						t.Fatalf("engine %d: step %d (-want +got):\n%s", i, n, d)
					}
				}
				if s != nil {
					if s.HasAttrs && s.Attrs.BatchSize != uint32(n) {
						t.Fatalf("engine %d: step %d has the attributes of %d", i, n, s.Attrs.BatchSize)
					}
					for _, sp := range s.Spans {
						if sp.Step != n {
							t.Fatalf("engine %d: step %d has a span of %d", i, n, sp.Step)
						}
					}
					for _, l := range s.Links {
						if l.TraceContext != requestContext(int(n)%3) {
							t.Fatalf("engine %d: step %d has a link of another", i, n)
						}
					}
				}
			}
			c := e.p.Engine().Ledger().Counts()
			if c.Received != uint64(e.units) || c.Exported != c.Received || c.Pending != 0 {
				t.Fatalf("engine %d: %d units, ledger %+v", i, e.units, c)
			}
		}
	})
}

// TestRequestOfSeveralEngines: ranks of a parallel group that work for one request
// tell of it each for itself.
func TestRequestOfSeveralEngines(t *testing.T) {
	ids := map[SpanID]bool{}
	for i := range 3 {
		src := newMemSource("a")
		src.info.RunID[0] = byte(i)
		p, k := exporting(t, src, ProcessorOptions{Selector: SelectAll{}})
		src.push(begin(1, 100), link(1, 1), lane(1, 1, 1, 200, uint64(50+i)), linkedEnd(1, 100, 300, 1, 1), requestEnd(1, 90, 330))
		pollAll(t, p)
		if len(k.requests) != 1 || k.requests[0].GPULaneNS != int64(50+i) || k.requests[0].Steps != 1 {
			t.Fatalf("engine %d: %+v", i, briefRequests(k.requests))
		}
		r := k.requests[0]
		ids[r.SummaryID()] = true
	}
	if len(ids) != 3 {
		t.Errorf("%d ids of three engines' summaries", len(ids))
	}
}
