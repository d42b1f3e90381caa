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
// when the last one spent count instead of the last; and the time of a step that runs
// on the GPU beyond its part on the host is estimated until its lanes have landed.
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
	// bookedNS was paid for the GPU's part before it was known.
	bookedNS atomic.Int64
	// gpuNS is the GPU's part that no one has taken in yet; landed, that there is any.
	gpuNS  atomic.Int64
	landed atomic.Bool
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
}

// endedStep is a step at its end.
type endedStep struct {
	beginNS, endNS        int64
	armed, asked, untimed bool
	lanes, launches       uint32 // timed
}

// ended takes a step in that ended on the host, and returns the time that is known of
// it.
func (o *overhead) ended(c *stepCost, e *endedStep) (knownNS int64) {
	host := advance(&o.time.hostUntilNS, e.beginNS, e.endNS)
	booked := int64(0)
	if e.untimed || e.lanes > 0 {
		booked = o.time.beyondHost()
	}
	if !e.armed {
		o.time.meanNS.observe(host + booked)
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
	o.pay(host + booked)
	if e.untimed || e.lanes == 0 {
		return host + booked // more will not be known
	}
	c.bookedNS.Store(booked)
	c.hostNS.Store(host + 1)
	if knownNS = host; c.landed.Load() {
		knownNS += o.take(c, e.armed)
	}
	return knownNS
}

// onGPU takes in that the outermost lanes of a step, or some of them, ran from fromNS
// to toNS, and returns the time that became known by it. It may be called again for
// the same step.
func (o *overhead) onGPU(c *stepCost, armed bool, fromNS, toNS int64) (knownNS int64) {
	c.gpuNS.Add(advance(&o.time.gpuUntilNS, fromNS, toNS))
	c.landed.Store(true)
	if c.hostNS.Load() == 0 {
		return 0 // its end takes it
	}
	return o.take(c, armed)
}

// take holds the GPU's part of a step against its host's, and corrects what was paid.
func (o *overhead) take(c *stepCost, armed bool) (knownNS int64) {
	if !c.landed.Swap(false) {
		return 0
	}
	gpu, booked := c.gpuNS.Swap(0), c.bookedNS.Swap(0)
	host := c.hostNS.Load() - 1
	used := min(host, gpu)
	c.hostNS.Add(-used)
	beyond := gpu - used
	if !armed {
		o.time.observeBeyond(beyond)
	}
	o.pay(beyond - booked)
	return beyond
}

// pay pays both budgets; ns under 0 takes back.
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

	// What the GPU's part of unarmed steps had beyond the host's: of the last that
	// landed, and on average.
	lastBeyondNS, meanBeyondNS atomic.Int64

	meanNS runningMean // of unarmed steps
}

// advance moves until to toNS and returns what of the time from fromNS on lies behind
// it.
func advance(until *atomic.Int64, fromNS, toNS int64) int64 {
	for {
		old := until.Load()
		if toNS <= old {
			return 0
		}
		if until.CompareAndSwap(old, toNS) {
			return toNS - min(toNS, max(fromNS, old))
		}
	}
}

// stepTimeWeight is how many steps a running mean of step time is over.
const stepTimeWeight = 32

// beyondHost estimates what a step's part on the GPU will have beyond the host's: no
// more than the last one had, so that a load that shrinks is seen at once.
func (t *stepTime) beyondHost() int64 { return min(t.lastBeyondNS.Load(), t.meanBeyondNS.Load()) }

func (t *stepTime) observeBeyond(ns int64) {
	t.lastBeyondNS.Store(ns)
	mean := t.meanBeyondNS.Load()
	t.meanBeyondNS.Store(mean + (ns-mean)/stepTimeWeight)
}

// maxOwedNS bounds what a budget is owed: 36 years.
const maxOwedNS = 1 << 60

// budget is a share of step time. 0 is without bound, and so is 1: all of a step's
// time may go for it.
type budget struct {
	share float64
	// owedNS is the step time that has to pass before more may be spent. What is under 0
	// was paid beyond that, and may still be taken back; it covers nothing that is spent
	// later.
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
	if !b.bounds() || stepNS == 0 {
		return
	}
	for {
		old := b.owedNS.Load()
		if b.owedNS.CompareAndSwap(old, max(-maxOwedNS, min(old-stepNS, maxOwedNS))) {
			return
		}
	}
}

// stride is in how many steps of that length costNS is within the budget.
func (b *budget) stride(costNS int64, stepNS float64) uint32 {
	if !b.bounds() || costNS <= 0 || !(stepNS > 0) {
		return 1
	}
	return uint32(max(1, min(math.Ceil(float64(costNS)/(b.share*stepNS)), math.MaxInt32)))
}

// laneBudget decides which steps' lanes are timed.
type laneBudget struct {
	budget    budget
	costNS    atomic.Int64  // of the last step that it was spent on
	published atomic.Uint32 // stride
}

func (l *laneBudget) spend(costNS int64) {
	if costNS > 0 {
		l.costNS.Store(costNS)
		l.budget.spend(costNS)
	}
}

// runningMean is an exponentially weighted mean, as float64 bits. Concurrent
// observations may overwrite each other: one lost sample of many does no harm.
type runningMean struct{ bits atomic.Uint64 }

func (m *runningMean) load() float64 { return math.Float64frombits(m.bits.Load()) }

// observe takes one length in ns in. It counts for at most ten times the mean, so
// that one stall does not say much.
func (m *runningMean) observe(ns int64) {
	if ns <= 0 {
		return
	}
	v := float64(ns)
	if mean := m.load(); mean > 0 {
		v = mean + (min(v, 10*mean)-mean)/stepTimeWeight
	}
	m.bits.Store(math.Float64bits(v))
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
		lanes = o.lanes.budget.stride(o.lanes.costNS.Load(), o.time.meanNS.load())
	}
	return kernels, lanes
}

// publishLanes publishes the lanes' stride where it has changed.
func (h *Hub) publishLanes() {
	if _, lanes := h.strides(); h.over.lanes.published.Swap(lanes) != lanes {
		h.ring.SetLanes(lanes)
	}
}
