package collector

import (
	"math"
	"slices"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// GPUTime is how an engine's devices spent their time, in ns summed over devices,
// and what limited its steps. All of it only grows. Steps that overlap, and that
// close in another order than they ran in, are accounted for exactly; of each
// device
//
//	LaneNS + WithinNS + BetweenNS + UntimedNS = the time from its first lane on
//
// up to the begin of the oldest step that is still open: what can still change is
// not counted yet. Of a time whose entries were lost nothing is known; it counts
// as between steps.
type GPUTime struct {
	// LaneNS: some lane ran, on whichever stream.
	LaneNS uint64
	// WithinNS: no lane ran, and it was within the extent of a step.
	WithinNS uint64
	// BetweenNS: no lane ran, between the extents of steps.
	BetweenNS uint64
	// UntimedNS: no lane ran, and none could be seen: the level was below lane, or
	// lanes were left out to stay within the engine's budget for them.
	UntimedNS uint64
	// LateNS is how much came after its time had been counted, or before its device's
	// first: the four above may be off by so much. It is 0 unless steps are open for
	// long while thousands of others run.
	LateNS uint64

	// Of armed steps: lanes, kernels, launch gaps in lanes and kernels outside lanes,
	// as in Derived.
	ArmedLaneNS, ArmedBusyNS, ArmedLaneIdleNS, ArmedBusyOutsideNS uint64

	// Bound counts complete steps by what limited them.
	Bound [NumBounds]uint64
}

// GPUTime is how the engine's devices spent their time.
func (e *Engine) GPUTime() GPUTime {
	e.sum.mu.Lock()
	defer e.sum.mu.Unlock()
	return e.gpu.total
}

// maxPendingIntervals bounds what of a device is not counted yet.
const maxPendingIntervals = 1024

// beginSlackNS is how much earlier than its step's begin a lane is taken to start
// at most: the positions of lanes are uncertain by microseconds.
const beginSlackNS = 1_000_000

// gpuTime adds up GPUTime. The engine's summary lock guards it.
type gpuTime struct {
	total   GPUTime
	devices [spanring.MaxContexts]deviceTime
	scratch []interval

	// Lanes have been left out from here on, 0 while they are timed; the first step and
	// the last one of which they were.
	untimedNS                   int64
	untimedFirst, untimedLatest uint64

	beganNS    int64 // the latest begin of any closed step
	lookedNS   int64 // when the level was looked at last
	wasUntimed bool  // it was below lane
}

// deviceTime is the part of one device's time that is not counted yet.
type deviceTime struct {
	used  bool
	upTo  int64 // counted up to here, once begun
	begun bool
	// Sorted, disjoint and not touching; what ends before upTo is gone. Every lane
	// lies in an extent.
	lanes, extents, untimed []interval
}

// add takes in a step that has closed and been derived.
func (g *gpuTime) add(s *Step) {
	d := &s.Derived
	if s.Incomplete == Complete {
		g.total.Bound[d.Bound]++
	}
	if d.HasBusy && s.Armed {
		g.total.ArmedLaneNS += uint64(d.LaneNS)
		g.total.ArmedBusyNS += uint64(d.BusyNS)
		g.total.ArmedLaneIdleNS += uint64(d.LaneIdleNS)
		g.total.ArmedBusyOutsideNS += uint64(d.BusyOutsideNS)
	}
	if s.HasBegin {
		g.beganNS = max(g.beganNS, s.BeginMonoNS)
		g.watchUntimed(s)
	}
	var extents [spanring.MaxContexts]interval
	var used [spanring.MaxContexts]bool
	for i := range s.Spans {
		sp := &s.Spans[i]
		if int(sp.Context) >= len(g.devices) {
			continue
		}
		iv := interval{sp.StartMonoNS, sp.StartMonoNS + int64(sp.DurationNS())}
		x := &extents[sp.Context]
		if !used[sp.Context] {
			used[sp.Context], *x = true, iv
		} else {
			*x = interval{min(x.a, iv.a), max(x.b, iv.b)}
		}
	}
	for c := range g.devices {
		if !used[c] {
			continue
		}
		t := &g.devices[c]
		t.used = true
		g.put(t, &t.extents, extents[c])
		for i := range s.Spans {
			sp := &s.Spans[i]
			if sp.Kind == spanring.KindLane && int(sp.Context) == c {
				g.put(t, &t.lanes, interval{sp.StartMonoNS, sp.StartMonoNS + int64(sp.DurationNS())})
			}
		}
	}
}

// watchUntimed keeps the time apart in which steps ran whose lanes were left out: from
// the first one's begin to where the next step that was timed first shows on the GPU.
// Of an asynchronous engine they run long after their end on the host, and close
// before a timed step that began earlier, whose lanes are yet to be read.
func (g *gpuTime) watchUntimed(s *Step) {
	switch {
	case s.Untimed && g.untimedNS == 0:
		g.untimedNS, g.untimedFirst, g.untimedLatest = s.BeginMonoNS, s.Number, s.Number
	case s.Untimed:
		g.untimedLatest = max(g.untimedLatest, s.Number)
	case g.untimedNS != 0 && s.Number > g.untimedFirst:
		upTo := s.BeginMonoNS
		for i := range s.Spans {
			if a := s.Spans[i].StartMonoNS; i == 0 || a < upTo {
				upTo = max(a, s.BeginMonoNS)
			}
		}
		g.blind(g.untimedNS, upTo)
		g.untimedNS, g.untimedFirst = max(g.untimedNS, upTo), s.Number
		if s.Number > g.untimedLatest {
			g.untimedNS = 0
		}
	}
}

// oldestBegin is a time before which no lane will start that has not been read:
// the begin of the oldest open step, or of the last one when none is open.
func (a *assembler) oldestBegin() int64 {
	ns := int64(math.MaxInt64)
	for st := a.touched.oldest; st != nil; st = st.newer {
		if st.HasBegin {
			ns = min(ns, st.BeginMonoNS)
		} else if len(st.Spans) > 0 {
			ns = min(ns, st.Spans[0].StartMonoNS)
		}
	}
	if ns == math.MaxInt64 {
		ns = a.engine.gpu.beganNS
	}
	return ns - beginSlackNS
}

// levelEvery is how often the level is looked at.
const levelEvery = 100 * time.Millisecond

// watchLevel keeps time in which no lane could be timed apart from idle time. It
// is called on the goroutine that polls.
func (e *Engine) watchLevel(nowNS int64) {
	g := &e.gpu
	if nowNS >= g.lookedNS && nowNS-g.lookedNS < int64(levelEvery) {
		return
	}
	untimed := e.Info().Level < levelLane
	if untimed && g.wasUntimed {
		e.sum.mu.Lock()
		g.blind(g.lookedNS, nowNS)
		e.sum.mu.Unlock()
	}
	g.lookedNS, g.wasUntimed = nowNS, untimed
}

// blind says that nothing could be seen of any device from a to b.
func (g *gpuTime) blind(a, b int64) {
	for c := range g.devices {
		if t := &g.devices[c]; t.used {
			g.put(t, &t.untimed, interval{a, b})
		}
	}
}

// put adds an interval to a set of t. What lies in time that has been counted is
// left out, and late.
func (g *gpuTime) put(t *deviceTime, set *[]interval, iv interval) {
	if t.begun && iv.a < t.upTo {
		if set == &t.extents { // lanes lie in them
			g.total.LateNS += uint64(min(iv.b, t.upTo) - iv.a)
		}
		iv.a = t.upTo
	}
	if iv.b <= iv.a {
		return
	}
	*set = addInterval(*set, iv)
	if len(*set) > maxPendingIntervals {
		g.settleDevice(t, (*set)[len(*set)/2].a)
	}
}

// settle counts all time before ns: no span will come that starts before it.
func (g *gpuTime) settle(ns int64) {
	if g.untimedNS != 0 && g.untimedNS < ns {
		g.blind(g.untimedNS, ns)
		g.untimedNS = ns
	}
	for c := range g.devices {
		if t := &g.devices[c]; t.used {
			g.settleDevice(t, ns)
		}
	}
}

func (g *gpuTime) settleDevice(t *deviceTime, ns int64) {
	if !t.begun {
		if len(t.extents) == 0 || t.extents[0].a >= ns {
			return
		}
		t.begun, t.upTo = true, t.extents[0].a
		t.untimed, _ = cutBefore(t.untimed, t.upTo)
	}
	if ns <= t.upTo {
		return
	}
	var laneNS, extentNS, coveredNS int64
	g.scratch = mergeIntervals(g.scratch[:0], t.extents, t.untimed)
	for i, iv := range g.scratch {
		g.scratch[i] = interval{min(iv.a, ns), min(iv.b, ns)}
	}
	coveredNS = unionNS(g.scratch)
	t.lanes, laneNS = cutBefore(t.lanes, ns)
	t.extents, extentNS = cutBefore(t.extents, ns)
	t.untimed, _ = cutBefore(t.untimed, ns)
	g.total.LaneNS += uint64(laneNS)
	g.total.WithinNS += uint64(extentNS - laneNS)
	g.total.UntimedNS += uint64(coveredNS - extentNS)
	g.total.BetweenNS += uint64(ns - t.upTo - coveredNS)
	t.upTo = ns
}

// finish counts all that is known.
func (g *gpuTime) finish() {
	for c := range g.devices {
		t := &g.devices[c]
		if n := len(t.extents); n > 0 {
			g.settleDevice(t, t.extents[n-1].b)
		}
	}
}

// addInterval adds iv to a sorted set of disjoint intervals.
func addInterval(set []interval, iv interval) []interval {
	// What is added is mostly the newest.
	hi := len(set)
	for hi > 0 && set[hi-1].a > iv.b {
		hi--
	}
	lo := hi
	for lo > 0 && set[lo-1].b >= iv.a {
		lo--
		iv = interval{min(iv.a, set[lo].a), max(iv.b, set[lo].b)}
	}
	if lo == hi {
		return slices.Insert(set, lo, iv)
	}
	set[lo] = iv
	return slices.Delete(set, lo+1, hi)
}

// cutBefore removes what lies before ns from a set and says how much that was.
func cutBefore(set []interval, ns int64) (rest []interval, cutNS int64) {
	gone := 0
	for i := range set {
		if set[i].a >= ns {
			break
		}
		cutNS += min(set[i].b, ns) - set[i].a
		if set[i].b > ns {
			set[i].a = ns
			break
		}
		gone++
	}
	return slices.Delete(set, 0, gone), cutNS
}
