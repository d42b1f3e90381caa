package lanetrace

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// What timing costs a step, measured on an H200 (docs/overhead.md, docs/h200.md): a
// pair around a launch costs the GPU about 3.5 µs, a lane of its own as much at most.
const (
	launchCostNS = 3500
	laneCostNS   = 3500
)

// overhead bounds what telemetry costs. Budgets are shares of step time and are paid
// after the fact: what was spent must be covered by the time of steps before more is
// spent. So nothing has to be known beforehand of a load that changes, and
//
//	in any run of steps, what was spent is at most the budget's share of their time
//	and what the last step that spent cost.
//
// Two things widen that, both by a constant: where steps overlap, all that were open
// when the last one spent count instead of the last; and what of the steps before runs
// on the GPU when the first of the run begins, may be paid for in it.
//
// Where the budget for lanes leaves some out, what a step had on the GPU beyond its
// part on the host is not known, and time between steps stands in: see betweenSteps.
//
// The agent has the same in C (backend/agent/csrc/overhead.c), to the last bit:
// testdata/budgets.txt holds both to it.
type overhead struct {
	time  stepTime
	arms  arming
	lanes laneBudget
}

func (o *overhead) init(every int, kernels, lanes float64) {
	o.arms.init(every, kernels)
	o.lanes.budget.share = lanes
}

// begin says how the step that begins now is timed, at level lane or above; kernel
// tells whether it may be armed.
func (o *overhead) begin(kernel bool) (armed, asked, untimed bool) {
	if kernel {
		armed, asked = o.arms.next()
	}
	return armed, asked, !armed && !o.lanes.budget.clear()
}

// stepCost is what a step's end and its landing say of it for the budgets. The zero
// value is a step that has just begun.
type stepCost struct {
	// hostNS is what of the step's part on the host the GPU's has not been held
	// against yet, less 1; 0 before the end.
	hostNS atomic.Int64
	// gpuNS is the GPU's part that no one has taken in yet; landed, that there is any.
	gpuNS  atomic.Int64
	landed atomic.Bool
	// averaged: its length is in the mean. Of lanes on several GPUs the first to land
	// make it.
	averaged atomic.Bool
}

// reset makes a step's place another's.
func (c *stepCost) reset() {
	if c.hostNS.Load() != 0 {
		c.hostNS.Store(0)
	}
	if c.landed.Load() {
		c.landed.Store(false)
		c.gpuNS.Store(0)
	}
	if c.averaged.Load() {
		c.averaged.Store(false)
	}
}

// endedStep is a step at its end.
type endedStep struct {
	beginNS, endNS        int64
	armed, asked, untimed bool
	lanes, launches       uint32 // timed
}

// ended takes a step in that ended on the host, and returns the time that became known
// by it.
func (o *overhead) ended(c *stepCost, e *endedStep) (knownNS int64) {
	knownNS, gap := advance(&o.time.hostUntilNS, e.beginNS, e.endNS)
	seen := o.lanes.budget.bounds()
	if seen {
		knownNS += o.time.between.busy(gap, &o.time.meanNS)
	}
	launches, lanes := int64(e.launches)*launchCostNS, int64(e.lanes)*laneCostNS
	switch {
	case e.armed && !e.asked && o.lanes.budget.share > 0:
		// Its lanes were timed for its kernels.
		o.arms.spend(launches + lanes)
	case e.armed && !e.asked:
		o.arms.spend(launches)
	case !e.armed && !e.untimed:
		o.lanes.spend(lanes)
	}
	o.pay(knownNS)
	if seen || e.lanes == 0 {
		if !e.armed {
			o.time.meanNS.observe(knownNS)
		}
		return knownNS // more will not be known
	}
	c.hostNS.Store(knownNS + 1)
	if c.landed.Load() {
		knownNS += o.take(c, e.armed)
	}
	return knownNS
}

// landedStep is a step whose outermost lanes, or some of them, have landed.
type landedStep struct {
	armed        bool
	fromNS, toNS int64 // what they ran
	// Its end on the host, and the begin of the step that follows; 0 where it is not
	// known.
	endNS, nextNS int64
}

// onGPU takes in what ran of a step on the GPU, and returns the time that became known
// by it. It may be called again for the same step.
func (o *overhead) onGPU(c *stepCost, l *landedStep) (knownNS int64) {
	if o.lanes.budget.bounds() {
		o.time.between.saw(l, &o.time.meanNS)
		return 0
	}
	gpu, _ := advance(&o.time.gpuUntilNS, l.fromNS, l.toNS)
	c.gpuNS.Add(gpu)
	c.landed.Store(true)
	if c.hostNS.Load() == 0 {
		return 0 // its end takes it
	}
	return o.take(c, l.armed)
}

// take holds the GPU's part of a step against its host's, and pays by what it has
// beyond.
func (o *overhead) take(c *stepCost, armed bool) (beyondNS int64) {
	if !c.landed.Swap(false) {
		return 0
	}
	gpu, host := c.gpuNS.Swap(0), c.hostNS.Load()-1
	beyondNS = gpu - min(host, gpu)
	c.hostNS.Add(beyondNS - gpu)
	if !armed && !c.averaged.Swap(true) {
		o.time.meanNS.observe(host + beyondNS)
	}
	o.pay(beyondNS)
	return beyondNS
}

// pay pays both budgets.
func (o *overhead) pay(ns int64) {
	o.arms.budget.pay(ns)
	o.lanes.budget.pay(ns)
}

// stepTime is what steps take: each the longer of its part on the host and on the
// GPU, the latter from the first outermost lane's start to the last one's end. Of
// parts that overlap no moment counts twice. An asynchronous engine's host is done
// long before the GPU, and idling between steps is not step time.
type stepTime struct {
	hostUntilNS, gpuUntilNS atomic.Int64 // up to here it has been counted
	between                 betweenSteps
	meanNS                  runningMean // of unarmed steps
}

// advance moves until to toNS. It returns what of the time from fromNS on lies behind
// it, and the gap that it leaves before.
func advance(until *atomic.Int64, fromNS, toNS int64) (newNS, gapNS int64) {
	for {
		old := until.Load()
		if toNS <= old {
			return 0, 0
		}
		if until.CompareAndSwap(old, toNS) {
			if old != 0 {
				gapNS = max(0, fromNS-old)
			}
			return toNS - min(toNS, max(fromNS, old)), gapNS
		}
	}
}

// betweenSteps says how much of the time in which the host is between two steps is step
// time: as large a share of it as the GPU was busy after steps whose lanes were timed.
// It is busy from a step's end to that of its lanes, since what they may have waited for
// are the steps before.
//
// That is all of it in an engine that waits for nothing but the GPU, however much its
// steps differ and whichever are timed.
type betweenSteps struct {
	gapNS, busyNS mean // of the time after timed steps
}

// busy is what of a gap between steps is step time.
func (b *betweenSteps) busy(gapNS int64, step *runningMean) int64 {
	gaps := b.gapNS.load()
	if gapNS <= 0 || !(gaps > 0) {
		return 0
	}
	return int64(step.atMost(gapNS) * min(1, b.busyNS.load()/gaps))
}

// saw takes in what the GPU did after a step.
func (b *betweenSteps) saw(l *landedStep, step *runningMean) {
	if l.endNS == 0 || l.nextNS <= l.endNS {
		return
	}
	gap := step.atMost(l.nextNS - l.endNS)
	if !(gap > 0) {
		return
	}
	b.gapNS.observe(gap)
	b.busyNS.observe(max(0, min(float64(l.toNS-l.endNS), gap)))
}

// maxOwedNS bounds what a budget is owed: 36 years.
const maxOwedNS = 1 << 60

// budget is a share of step time. 0 is without bound, and so is 1: all of a step's
// time may go for it.
type budget struct {
	share float64
	// owedNS is the step time that has to pass before more may be spent. What is under 0
	// was paid beyond that and covers nothing that is spent later.
	owedNS atomic.Int64
}

func (b *budget) bounds() bool { return b.share > 0 && b.share < 1 }

func (b *budget) clear() bool { return b.owedNS.Load() <= 0 }

// spend has costNS covered by step time.
func (b *budget) spend(costNS int64) {
	if !b.bounds() || costNS <= 0 {
		return
	}
	owed := int64(min(math.Ceil(float64(costNS)/b.share), maxOwedNS))
	for {
		old := b.owedNS.Load()
		if b.owedNS.CompareAndSwap(old, min(max(old, 0)+owed, maxOwedNS)) {
			return
		}
	}
}

// pay covers by the time of a step.
func (b *budget) pay(stepNS int64) {
	if !b.bounds() || stepNS <= 0 {
		return
	}
	for {
		old := b.owedNS.Load()
		if b.owedNS.CompareAndSwap(old, max(old-stepNS, -maxOwedNS)) {
			return
		}
	}
}

// stride is in how many steps of that length costNS is within the budget.
func (b *budget) stride(costNS, stepNS float64) uint32 {
	if !b.bounds() || !(costNS > 0) || !(stepNS > 0) {
		return 1
	}
	return uint32(max(1, min(math.Ceil(costNS/(b.share*stepNS)), math.MaxInt32)))
}

// laneBudget decides which steps' lanes are timed.
type laneBudget struct {
	budget    budget
	costNS    mean          // of the steps that it was spent on
	published atomic.Uint32 // stride
}

func (l *laneBudget) spend(costNS int64) {
	if costNS > 0 {
		l.costNS.observe(float64(costNS))
		l.budget.spend(costNS)
	}
}

// atomicFloat is a float64 that goroutines share.
type atomicFloat struct{ bits atomic.Uint64 }

func (f *atomicFloat) load() float64   { return math.Float64frombits(f.bits.Load()) }
func (f *atomicFloat) store(v float64) { f.bits.Store(math.Float64bits(v)) }

// mean is an exponentially weighted mean over some eight. Concurrent observations may
// overwrite each other: one lost sample of many does no harm.
type mean struct {
	atomicFloat
	any atomic.Bool
}

func (m *mean) observe(v float64) {
	if old := m.load(); m.any.Swap(true) {
		v = old + (v-old)/8
	}
	m.store(v)
}

// runningMean is the like of the length of steps in ns, over some 32. One counts for at
// most ten times the mean, so that one stall does not say much.
type runningMean struct{ atomicFloat }

// atMost cuts ns at ten times the mean.
func (m *runningMean) atMost(ns int64) float64 { return min(float64(ns), 10*m.load()) }

func (m *runningMean) observe(ns int64) {
	if ns <= 0 {
		return
	}
	v := float64(ns)
	if old := m.load(); old > 0 {
		v = old + (m.atMost(ns)-old)/32
	}
	m.store(v)
}

// Overhead is what telemetry is reckoned to cost the engine, and what was chosen to
// bound it.
type Overhead struct {
	// StepTime is the running mean of the length of unarmed steps, 0 before the
	// first.
	StepTime time.Duration
	// KernelStride: one step in so many is armed, 0 below level kernel. LaneStride:
	// the lanes of one step in so many are timed, 0 below level lane.
	KernelStride, LaneStride uint32
	// KernelShare and LaneShare are the shares of all step time so far that the timing
	// of launches and of lanes took.
	KernelShare, LaneShare float64
}

// Overhead is what telemetry is reckoned to cost. It is zero for a hub that is off
// for good.
func (h *Hub) Overhead() (o Overhead) {
	if h == nil || h.ring == nil {
		return o
	}
	o.StepTime = time.Duration(h.over.time.meanNS.load())
	o.KernelStride, o.LaneStride = h.strides()
	if all := float64(h.ring.Counter(spanring.CtrStepTimeNS)); all > 0 {
		o.KernelShare = float64(h.ring.Counter(spanring.CtrArmedCostNS)) / all
		o.LaneShare = float64(h.ring.Counter(spanring.CtrLaneCostNS)) / all
	}
	return o
}

// strides are those in force.
func (h *Hub) strides() (kernels, lanes uint32) {
	o := &h.over
	switch l := h.Level(); {
	case l >= LevelKernel:
		kernels = o.arms.stride(o.time.meanNS.load())
		fallthrough
	case l >= LevelLane:
		lanes = o.lanes.budget.stride(o.lanes.costNS.load(), o.time.meanNS.load())
	}
	return kernels, lanes
}

// publishLanes publishes the lanes' stride where it has changed.
func (h *Hub) publishLanes() {
	if _, lanes := h.strides(); h.over.lanes.published.Swap(lanes) != lanes {
		h.ring.SetLanes(lanes)
	}
}
