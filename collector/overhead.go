package collector

import (
	"math"
	"sync"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// Overhead is what timing is reckoned to have cost an engine's steps since its run
// began, by its own counters, and what was chosen to bound it.
type Overhead struct {
	// StepTime is what Kernels and Lanes are shares of: 0 where a producer does not
	// say.
	StepTime       time.Duration
	Kernels, Lanes time.Duration
	// KernelStride: one step in so many is armed now, 0 is none. LaneStride: the lanes
	// of one in so many are timed; 0 is none, or that the producer does not say.
	KernelStride, LaneStride uint32
	// Untimed steps' lanes were left out.
	Untimed uint64
}

// Overhead is what timing is reckoned to have cost.
func (e *Engine) Overhead() Overhead {
	c, i := e.Counters(), e.Info()
	// What is no time is a ring's that is damaged or hostile: it is not under 0.
	ns := func(ctr spanring.Counter) time.Duration { return time.Duration(min(c[ctr], math.MaxInt64)) }
	return Overhead{
		StepTime: ns(spanring.CtrStepTimeNS), Kernels: ns(spanring.CtrArmedCostNS), Lanes: ns(spanring.CtrLaneCostNS),
		KernelStride: i.KernelEvery, LaneStride: i.LaneEvery, Untimed: c[spanring.CtrStepsUntimed],
	}
}

// Shares are kernels' and lanes' shares of step time, 0 without any.
func (o *Overhead) Shares() (kernels, lanes float64) {
	if o.StepTime <= 0 {
		return 0, 0
	}
	return float64(o.Kernels) / float64(o.StepTime), float64(o.Lanes) / float64(o.StepTime)
}

// overheadWindow is the time over which a share is taken, up to twice as much.
const overheadWindow = 30 * time.Second

// recentOverhead follows an engine's overhead.
type recentOverhead struct {
	mu sync.Mutex
	// Two looks, the older one at least overheadWindow ago once there is such a one.
	older, newer spentUntil
}

type spentUntil struct {
	monoNS int64
	spent  Overhead
}

// shares are kernels' and lanes' shares of the step time since the older look.
func (r *recentOverhead) shares(now spentUntil) [2]float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.monoNS-r.newer.monoNS >= int64(overheadWindow) {
		r.older, r.newer = r.newer, now
	}
	from := &r.older.spent
	o := Overhead{
		StepTime: now.spent.StepTime - from.StepTime, Kernels: now.spent.Kernels - from.Kernels, Lanes: now.spent.Lanes - from.Lanes,
	}
	if o.Kernels < 0 || o.Lanes < 0 {
		return [2]float64{}
	}
	kernels, lanes := o.Shares()
	return [2]float64{kernels, lanes}
}

// overheadLately are kernels' and lanes' shares of step time now.
func (e *Engine) overheadLately() [2]float64 {
	return e.sum.overhead.shares(spentUntil{e.NowMonoNS(), e.Overhead()})
}
