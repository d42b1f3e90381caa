package main

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// structure checks what every reader of spans takes for granted: children lie
// inside their parents, and what ran on one stream ran in order, one after the
// other. It is an observer of closed steps.
type structure struct {
	spans, children int
	// found are the violations, worst first; more is how many beyond maxFound.
	found   []violation
	more    int
	streams map[streamOf][]placed
}

type streamOf struct {
	context uint8
	stream  uint16
}

// placed is a kernel or graph launch on its stream.
type placed struct {
	enqueueNS, startNS, endNS int64
	step                      uint64
	ordinal                   uint32
}

// violation is one thing that cannot be.
type violation struct {
	What     string
	Step     uint64
	Ordinal  uint32
	BeyondNS int64
}

func (v violation) String() string {
	return fmt.Sprintf("step %d, span %d: %s by %d ns", v.Step, v.Ordinal, v.What, v.BeyondNS)
}

const maxFound = 1000

// slackNS is by how much the positions of two spans of one timeline can contradict
// the duration of the first without a fault. A position is read as a 32-bit float of
// milliseconds, up to a second from its anchor, which steps by 61 ns, and stamps step
// by 32 ns. Besides, the map to the host's clock slews when more is learnt of it, by
// much less than a thousandth unless the host could not look for a long time; a
// duration knows nothing of that.
func slackNS(durNS int64) int64 { return 64 + 32 + durNS/1000 }

func (s *structure) add(v violation) {
	if len(s.found) == maxFound {
		s.more++
		return
	}
	s.found = append(s.found, v)
}

// ObserveStep implements collector.Observer.
func (s *structure) ObserveStep(st *collector.Step) {
	if s.streams == nil {
		s.streams = make(map[streamOf][]placed)
	}
	from, to := st.Bounds()
	for i := range st.Spans {
		sp := &st.Spans[i]
		s.spans++
		if sp.StartMonoNS < from || sp.EndMonoNS() > to {
			s.add(violation{"outside its step", st.Number, sp.Ordinal, max(from-sp.StartMonoNS, sp.EndMonoNS()-to)})
		}
		if j := st.ParentOf(i); j >= 0 {
			s.children++
			p := &st.Spans[j]
			if p.Context == sp.Context && p.Stream == sp.Stream {
				if d := p.StartMonoNS - sp.StartMonoNS; d > slackNS(0) {
					s.add(violation{"begins before its lane", st.Number, sp.Ordinal, d})
				}
				if d := sp.EndMonoNS() - p.EndMonoNS(); d > slackNS(int64(p.RawNS)) {
					s.add(violation{"ends after its lane", st.Number, sp.Ordinal, d})
				}
			}
		}
		if sp.Kind != spanring.KindLane && !sp.InGraph {
			k := streamOf{sp.Context, sp.Stream}
			s.streams[k] = append(s.streams[k], placed{sp.EnqueueMonoNS(), sp.StartMonoNS, sp.EndMonoNS(), st.Number, sp.Ordinal})
		}
	}
}

// finish looks at each stream's kernels in the order of their enqueueing.
func (s *structure) finish() {
	for _, on := range s.streams {
		slices.SortStableFunc(on, func(a, b placed) int {
			return cmp.Or(cmp.Compare(a.enqueueNS, b.enqueueNS), cmp.Compare(a.step, b.step), cmp.Compare(a.ordinal, b.ordinal))
		})
		for i := 1; i < len(on); i++ {
			if d := on[i-1].endNS - on[i].startNS; d > slackNS(on[i-1].endNS-on[i-1].startNS) {
				s.add(violation{"begins before the one before it on its stream has ended", on[i].step, on[i].ordinal, d})
			}
		}
	}
	s.streams = nil
	slices.SortStableFunc(s.found, func(a, b violation) int { return cmp.Compare(b.BeyondNS, a.BeyondNS) })
}
