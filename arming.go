package lanetrace

import (
	"math"
	"sync/atomic"
)

// maxArmRequest bounds one request for armed steps.
const maxArmRequest = 1_000_000

// arming decides which steps are armed: one in every, as far as the budget allows,
// and those asked for, which come on top.
type arming struct {
	every  uint32
	budget budget

	until  atomic.Int64 // steps until the next armed one is due
	asked  atomic.Int64 // steps asked for and not armed yet
	costNS mean         // of armed steps
}

func (a *arming) init(every int, share float64) {
	a.every = uint32(min(every, math.MaxInt32))
	a.budget.share = share
	a.until.Store(int64(a.every))
}

func (a *arming) request(n uint32)  { a.asked.Add(int64(n)) }
func (a *arming) requested() uint32 { return uint32(max(0, min(a.asked.Load(), math.MaxUint32))) }

// next reports whether the step that begins now is armed, and whether because it
// was asked for. A step that is due while one is asked for, or while the budget is
// owed something, remains due.
func (a *arming) next() (armed, asked bool) {
	until := a.until.Add(-1)
	for n := a.asked.Load(); n > 0; n = a.asked.Load() {
		if a.asked.CompareAndSwap(n, n-1) {
			return true, true
		}
	}
	// Of steps that begin at once, one takes it.
	return until <= 0 && a.budget.clear() && a.until.CompareAndSwap(until, int64(a.every)), false
}

// spend has an armed step's cost covered.
func (a *arming) spend(costNS int64) {
	a.costNS.observe(float64(costNS))
	a.budget.spend(costNS)
}

// stride is how many steps of that length it takes from one armed step to the next.
func (a *arming) stride(stepNS float64) uint32 {
	return max(a.every, a.budget.stride(a.costNS.load(), stepNS))
}
