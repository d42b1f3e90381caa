package lanetrace

import (
	"math"
	"sync/atomic"
	"time"
)

// maxArmRequest bounds one request for armed steps.
const maxArmRequest = 1_000_000

// armedKernelCostNS is what a pair around a launch costs a step: bracketing every
// kernel cost the GPU about 3.5 µs a kernel on an H200 (docs/h200.md).
const armedKernelCostNS = 3500

// stepTimeWeight is the weight of the newest step in the running mean of step
// time.
const stepTimeWeight = 1.0 / 32

// arming decides which steps are armed: one in stride, and those asked for.
type arming struct {
	every  uint32
	budget float64

	current atomic.Uint32 // stride in force
	until   atomic.Int64  // steps until the next armed one
	asked   atomic.Int64  // steps asked for and not armed yet

	hostNS  runningMean   // the host's part of unarmed steps
	laneNS  runningMean   // the outermost lanes of unarmed steps, added up
	perStep atomic.Uint32 // launches timed in the last armed step
}

func (a *arming) init(every int, budget float64) {
	a.every, a.budget = uint32(min(every, math.MaxInt32)), budget
	a.current.Store(a.every)
	a.until.Store(int64(a.every))
}

func (a *arming) request(n uint32)  { a.asked.Add(int64(n)) }
func (a *arming) stride() uint32    { return a.current.Load() }
func (a *arming) requested() uint32 { return uint32(max(0, min(a.asked.Load(), math.MaxUint32))) }

// next reports whether the step that begins now is armed, and whether because it
// was asked for.
func (a *arming) next() (armed, asked bool) {
	due := false
	if a.until.Add(-1) <= 0 {
		a.until.Store(int64(a.current.Load()))
		due = true
	}
	for {
		n := a.asked.Load()
		if n <= 0 {
			return due, false
		}
		if a.asked.CompareAndSwap(n, n-1) {
			return true, true
		}
	}
}

// ended takes in the length of a step's host part and, of an armed one, how many
// launches were timed, and sets the stride so that armed work stays within the
// budget:
//
//	launches × cost ≤ budget × stride × step time
func (a *arming) ended(hostNS int64, armed bool, timed uint32) {
	if armed {
		a.perStep.Store(timed)
	} else {
		a.hostNS.observe(hostNS)
	}
	mean := a.meanNS()
	n := a.perStep.Load()
	if mean <= 0 || n == 0 {
		return
	}
	want := math.Ceil(float64(n) * armedKernelCostNS / (a.budget * mean))
	a.current.Store(max(a.every, uint32(min(want, math.MaxInt32))))
}

// meanNS is the step time: the longer of the host's part and the lanes', since
// the host of an asynchronous engine is done long before the GPU. Idle time
// between steps is not step time.
func (a *arming) meanNS() float64 { return max(a.hostNS.load(), a.laneNS.load()) }

// share is the part of step time that armed work is reckoned to cost now.
func (a *arming) share() float64 {
	mean := a.meanNS()
	if mean <= 0 {
		return 0
	}
	return float64(a.perStep.Load()) * armedKernelCostNS / (float64(a.current.Load()) * mean)
}

// runningMean is an exponentially weighted mean, as float64 bits. Concurrent
// observations may overwrite each other: one lost sample of many does no harm.
type runningMean struct{ bits atomic.Uint64 }

func (m *runningMean) load() float64 { return math.Float64frombits(m.bits.Load()) }

// observe takes one length in ns in. It counts for at most ten times the mean, so
// that one stall does not open the gate.
func (m *runningMean) observe(ns int64) {
	if ns <= 0 {
		return
	}
	v := float64(ns)
	if mean := m.load(); mean > 0 {
		v = mean + stepTimeWeight*(min(v, 10*mean)-mean)
	}
	m.bits.Store(math.Float64bits(v))
}

// Overhead is what telemetry is reckoned to cost the engine, and what was chosen to
// bound it.
type Overhead struct {
	// StepTime is the running mean of the length of unarmed steps, 0 before the
	// first.
	StepTime time.Duration
	// KernelStride: one step in so many is armed, 0 below level kernel.
	KernelStride uint32
	// KernelShare is the share of step time that armed work takes at that stride.
	KernelShare float64
}

// Overhead is what telemetry is reckoned to cost now. It is zero for a hub that is
// off for good.
func (h *Hub) Overhead() (o Overhead) {
	if h == nil || h.ring == nil {
		return o
	}
	o.StepTime = time.Duration(h.arms.meanNS())
	if h.Level() >= LevelKernel {
		o.KernelStride, o.KernelShare = h.arms.stride(), h.arms.share()
	}
	return o
}
