package cudaevents

import (
	"math"

	"github.com/lanetrace/lanetrace/spanring"
)

// deepBehind is how many kernels have to wait behind a pair on its stream for it
// to measure the whole constant. On an H200 a pair behind which 8 or fewer wait,
// and nothing new arrives while it runs, measures 0.7 µs less, whatever its kernel's
// length and shape and whatever else is queued there: event records, memsets and
// graphs do not count, kernels without a pair do. One at which launches arrive
// measures anything between, and up to 0.4 µs more.
const deepBehind = 9

// Single pairs lie within p90 - p10 of their line 88 times in 100, within twice
// that 99.7 times.
const spreads = 2

// A GPU that has done nothing for a while can take longer to begin than the host
// does to launch: one starved pair in 60, after 10 ms to 3 s of idling, held 75 µs
// where the host had taken 12; none held more than 92.
const (
	asleepAfterNS = 20e6
	wakeNS        = 100e3
)

// lookBehind bounds how many spans of a stream are looked through for kernels.
const lookBehind = 64

// depth says what waited behind a pair.
type depth uint8

const (
	unsure  depth = iota // launches arrived while it ran, or it is not known
	deep                 // deepBehind kernels or more, when it began
	shallow              // fewer, and none came until it ended
)

// depthOf finds out what waited behind a placed span that was popped off its
// stream's list, which holds all that was timed and enqueued before the span ended.
// Once the span's step had ended on the host, or when a launch was not timed since,
// there may have been any number of others.
func (r *Recorder) depthOf(p *pool, st *stream, s *spanring.Span, v *spanring.Slot) depth {
	endNS, u := s.EndMonoNS(), int64(s.PlaceUncertaintyNS)
	fewer := shallow
	if v.ClosedMonoNS+u > s.StartMonoNS || // its own launch was still arriving
		st.untimedNS.Load() >= v.EnqueueMonoNS {
		fewer = unsure
	}
	kernels, head := 0, st.head
	for range lookBehind {
		if head == 0 {
			if r.o.StepEnded == nil {
				return unsure
			}
			if stepEndNS, ended := r.o.StepEnded(s.Step); ended && stepEndNS-u < endNS {
				return unsure
			}
			return fewer
		}
		w := p.slots.Get(int(head - 1))
		if w.ClosedMonoNS+u > s.StartMonoNS { // the first that came later
			from := w.EnqueueMonoNS
			if w.Kind == spanring.KindLane {
				from = w.ClosedMonoNS // what came is its end
			}
			if from-u < endNS {
				return unsure
			}
			return fewer
		}
		if w.Kind == spanring.KindKernel {
			if kernels++; kernels == deepBehind {
				return deep
			}
		}
		head = p.cells[head-1].next
	}
	return unsure
}

// correct says what a placed span's raw duration holds beyond its work, and how
// uncertain the rest is. Only kernels are corrected: a lane, a graph or a copy is
// what its pair measures. v is the span's slot, st its stream, nil for a lane inside a graph.
//
// A queued pair holds the constant, less where it was shallow, and what lies between
// where it is not known. A starved one
// also holds what the host took between its first event and its kernel, or between
// the kernel and its second event: at the most all of the time from before the
// launch until after it, and what a GPU that had idled took to wake.
func (r *Recorder) correct(s *spanring.Span, v *spanring.Slot, durationMS float32, p *pool, st *stream) {
	u := quantumNS(durationMS) + tickNS
	if s.Kind == spanring.KindKernel {
		s.Calibration = r.state.Calibration
		if s.Calibration == spanring.CalibrationNone {
			u += unknownExcessNS
		} else {
			take := uint64(r.state.ConstantNS)
			switch r.depthOf(p, st, s, v) {
			case shallow:
				take -= uint64(r.shallowNS)
			case unsure:
				take -= uint64(r.shallowNS / 2)
				u += float64(r.shallowNS)
			}
			s.CorrectionNS = uint16(min(take, s.RawNS, maxConstantNS))
			u += spreads * float64(r.state.SpreadNS)
		}
		if s.Gap != spanring.GapQueued {
			u += float64(max(0, v.ClosedMonoNS-v.EnqueueMonoNS))
			if s.StartMonoNS-max(r.endedNS, st.lastEndNS) > asleepAfterNS {
				u += wakeNS
			}
		}
	}
	end := s.EndMonoNS()
	r.lastEndNS = max(r.lastEndNS, end)
	if st != nil {
		st.lastEndNS = max(st.lastEndNS, end)
	}
	s.DurationUncertaintyNS = uint64(math.Ceil(u))
}
