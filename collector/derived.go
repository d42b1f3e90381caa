package collector

import (
	"cmp"
	"slices"

	"github.com/lanetrace/lanetrace/spanring"
)

// Derived are times of a step that no event stamped: they follow from its spans
// and are computed once, when the step closes. Of a step that is faulty they are
// those of what landed.
//
// Intervals are united across all streams of a device, so that a stream that idles
// while another works is no idle time. A step that used several devices has the
// sum over them: two devices that each worked for 1 ms make 2 ms.
type Derived struct {
	// ExtentNS is from the start of the first span to the end of the last, of each
	// device. It is LaneNS + OutsideNS.
	ExtentNS int64
	// LaneNS is the union of the lanes.
	LaneNS int64
	// OutsideNS is what of the extent lay in no lane of this step. Lanes of other
	// steps may lie there: Engine.GPUTime tells the device's own account.
	OutsideNS int64

	// HasBusy: the step is armed and has kernels or graph launches. Without it the
	// following are 0.
	HasBusy bool
	// BusyNS is the union of kernels and graph launches, corrected. A gap between
	// two launches is not busy, also inside a lane.
	BusyNS int64
	// LaneIdleNS is what of LaneNS no kernel covered: launch gaps, and about 3 µs a
	// kernel that the timing itself takes.
	LaneIdleNS int64
	// BusyOutsideNS is what of BusyNS lay in no lane.
	BusyOutsideNS int64

	// QueueNS is from the host's enqueue to the start of the span that started
	// first, if HasQueue; within the clock's uncertainty it can be negative.
	QueueNS  int64
	HasQueue bool

	// Kernels are the timed launches of which it is known whether the stream had run
	// dry before them, Starved those for which it had. A graph counts as many as it
	// has nodes, of which only the first can be starved.
	Kernels, Starved uint64

	// Bound is what limited the step.
	Bound Bound
}

// Bound says what limited a step: the host's launches or the GPU's work.
type Bound uint8

// What limits a step. See Derived.bound for the criterion.
const (
	// BoundUnknown: nothing says. A synchronous engine's step with one lane and
	// without kernels is one.
	BoundUnknown Bound = iota
	// BoundLaunch: the GPU waited for the host.
	BoundLaunch
	// BoundGPU: the host was ahead of the GPU.
	BoundGPU

	numBounds
)

// NumBounds is the number of values of Bound.
const NumBounds = int(numBounds)

var boundText = [NumBounds]string{"unknown", "launch", "gpu"}

// String is the value of the attribute lanetrace.step.bound and of the label
// bound.
func (b Bound) String() string {
	if int(b) < NumBounds {
		return boundText[b]
	}
	return "unknown"
}

const (
	// minBoundKernels is how many kernels it takes to say what limited a step.
	minBoundKernels = 4
	// dryNS is the longest lead that a launch on an idle stream explains: 5 to 7 µs
	// on an H200, up to three times as much on slower hosts.
	dryNS = 20_000
	// maxDeriveStreams is how many streams of a step the criterion tells apart.
	maxDeriveStreams = 64
)

// deriver computes Derived. It keeps only scratch, and allocates only while that
// grows.
type deriver struct {
	lanes, kernels, both []interval
	last                 []laneOnStream
}

// laneOnStream is the last lane seen on a stream.
type laneOnStream struct {
	context uint8
	stream  uint16
	at      int // in Spans
}

// derive fills in s.Derived from its spans, which are in order of Ordinal.
func (v *deriver) derive(s *Step) {
	s.Derived = Derived{}
	d := &s.Derived
	var contexts uint64
	var firstNS int64
	for i := range s.Spans {
		sp := &s.Spans[i]
		contexts |= 1 << (sp.Context & 63)
		if !d.HasQueue || sp.StartMonoNS < firstNS {
			firstNS, d.QueueNS, d.HasQueue = sp.StartMonoNS, sp.LeadNS, true
		}
		if sp.Kind != spanring.KindLane {
			d.HasBusy = true
			d.countGap(sp)
		}
	}
	for c := uint8(0); contexts>>c != 0 && c < 64; c++ {
		if contexts>>c&1 != 0 {
			v.device(s, c)
		}
	}
	d.OutsideNS = d.ExtentNS - d.LaneNS
	d.Bound = v.bound(s)
}

func (d *Derived) countGap(sp *Span) {
	if sp.Gap == spanring.GapUnknown {
		return
	}
	n := uint64(1)
	if sp.Kind == spanring.KindGraph && sp.Text != nil {
		n = max(1, uint64(sp.Text.GraphNodes))
	}
	d.Kernels += n
	if sp.Gap == spanring.GapStarved {
		d.Starved++
	}
}

// device adds the times of one device.
func (v *deriver) device(s *Step, context uint8) {
	d := &s.Derived
	v.lanes, v.kernels = v.lanes[:0], v.kernels[:0]
	for i := range s.Spans {
		sp := &s.Spans[i]
		if sp.Context != context {
			continue
		}
		iv := interval{sp.StartMonoNS, sp.StartMonoNS + int64(sp.DurationNS())}
		if sp.Kind == spanring.KindLane {
			v.lanes = append(v.lanes, iv)
		} else {
			v.kernels = append(v.kernels, iv)
		}
	}
	sortIntervals(v.lanes)
	sortIntervals(v.kernels)
	laneNS, busyNS := unionNS(v.lanes), unionNS(v.kernels)
	v.both = mergeIntervals(v.both[:0], v.lanes, v.kernels)
	bothNS := unionNS(v.both)
	endNS := v.both[0].b
	for _, iv := range v.both {
		endNS = max(endNS, iv.b)
	}
	d.ExtentNS += endNS - v.both[0].a
	d.LaneNS += laneNS
	d.BusyNS += busyNS
	if len(v.kernels) > 0 {
		d.LaneIdleNS += bothNS - busyNS
		d.BusyOutsideNS += bothNS - laneNS
	}
}

// bound says what limited the step.
//
// Where kernels were timed (4 or more whose gap is known): the host's launches when
// the stream had run dry before more than half of the kernels, else the GPU.
//
// Else by the lanes. The GPU, when the lanes at whose end it was behind the host
// hold at least half of all lanes' time: that is so when the next lane on the stream
// had waited longer than an idle stream makes it, or, of the last, when it ended
// that much later than the host's part of the step. The host's launches, when more
// than half of the step's extent lay in no lane. Otherwise nothing says: a lane
// that the host waits for ends alike in both cases.
func (v *deriver) bound(s *Step) Bound {
	d := &s.Derived
	if d.Kernels >= minBoundKernels {
		if 2*d.Starved > d.Kernels {
			return BoundLaunch
		}
		return BoundGPU
	}
	if d.LaneNS == 0 {
		return BoundUnknown
	}
	var allNS, behindNS int64
	v.last = v.last[:0]
	for i := range s.Spans {
		sp := &s.Spans[i]
		if sp.Kind != spanring.KindLane || sp.Parent != 0 {
			continue
		}
		allNS += int64(sp.DurationNS())
		at := slices.IndexFunc(v.last, func(l laneOnStream) bool { return l.context == sp.Context && l.stream == sp.Stream })
		switch {
		case at >= 0:
			if sp.LeadNS > dryNS+int64(sp.PlaceUncertaintyNS) {
				behindNS += int64(s.Spans[v.last[at].at].DurationNS())
			}
			v.last[at].at = i
		case len(v.last) < maxDeriveStreams:
			v.last = append(v.last, laneOnStream{sp.Context, sp.Stream, i})
		}
	}
	if s.HasEnd {
		for _, l := range v.last {
			sp := &s.Spans[l.at]
			if sp.EndMonoNS()-s.EndMonoNS > dryNS+int64(sp.PlaceUncertaintyNS) {
				behindNS += int64(sp.DurationNS())
			}
		}
	}
	switch {
	case allNS > 0 && 2*behindNS >= allNS:
		return BoundGPU
	case 2*d.OutsideNS > d.ExtentNS:
		return BoundLaunch
	}
	return BoundUnknown
}

// interval is from a, and up to b, on CLOCK_MONOTONIC in ns.
type interval struct{ a, b int64 }

func sortIntervals(ivs []interval) {
	byStart := func(x, y interval) int { return cmp.Compare(x.a, y.a) }
	if !slices.IsSortedFunc(ivs, byStart) {
		slices.SortFunc(ivs, byStart)
	}
}

// mergeIntervals appends two sorted lists as one.
func mergeIntervals(dst, x, y []interval) []interval {
	for len(x) > 0 && len(y) > 0 {
		if x[0].a <= y[0].a {
			dst, x = append(dst, x[0]), x[1:]
		} else {
			dst, y = append(dst, y[0]), y[1:]
		}
	}
	return append(append(dst, x...), y...)
}

// unionNS is the length of the union of sorted intervals.
func unionNS(ivs []interval) (ns int64) {
	if len(ivs) == 0 {
		return 0
	}
	upTo := ivs[0].a
	for _, iv := range ivs {
		if iv.b > upTo {
			ns += iv.b - max(iv.a, upTo)
			upTo = iv.b
		}
	}
	return ns
}
