package otlp

import (
	"cmp"
	"slices"

	"github.com/lanetrace/lanetrace/collector"
)

// maxTraceBytes is how large a step's trace may become, encoded, with what
// surrounds it in requests. Backends limit traces (Tempo by default to 5 MB), and
// people do not read megabytes.
const maxTraceBytes = 1_000_000

// traceParts is in how many requests a trace of that size may go out at most, each
// with the engine's resource.
const traceParts = maxTraceBytes/chunkBytes + 2

// spanBytes is more than a span takes but for its names (TestSpanBytes).
const spanBytes = 640

// fitter chooses which spans of a step are written when not all are.
type fitter struct {
	keep  []bool // by index in Step.Spans; valid when choose left some out
	sizes []int
	order []int
	tmp   []byte
}

// choose marks in keep what of s goes into max bytes, beside the root span, and
// returns how many spans do not, 0 without looking closer when all do. Lanes are
// kept, from the first begun, so that a parent comes before its children, and only
// if all are, kernels and graph launches, from the longest.
func (f *fitter) choose(s *collector.Step, trace collector.TraceID, max int) (left int) {
	max -= spanBytes + 64 // the host's part, and the attribute that says how many
	most := 0
	for i := range s.Spans {
		sp := &s.Spans[i]
		most += spanBytes + 2*len(sp.Text.String()) + len(sp.LaneText.String())
	}
	if most <= max {
		return 0
	}
	f.sizes, f.order, f.keep = f.sizes[:0], f.order[:0], f.keep[:0]
	sum := 0
	for i := range s.Spans {
		f.tmp = appendSpan(f.tmp[:0], s, i, trace)
		f.sizes = append(f.sizes, len(f.tmp))
		f.order = append(f.order, i)
		f.keep = append(f.keep, false)
		sum += len(f.tmp)
	}
	if sum <= max {
		return 0
	}
	slices.SortFunc(f.order, func(i, j int) int {
		a, b := &s.Spans[i], &s.Spans[j]
		la, lb := a.Kind == collector.KindLane, b.Kind == collector.KindLane
		switch {
		case la && lb:
			return cmp.Compare(i, j)
		case la:
			return -1
		case lb:
			return 1
		}
		return cmp.Or(cmp.Compare(b.DurationNS(), a.DurationNS()), cmp.Compare(i, j))
	})
	sum = 0
	for n, i := range f.order {
		if sum += f.sizes[i]; sum > max {
			return len(f.order) - n
		}
		f.keep[i] = true
	}
	return 0
}
