package collector

// Defaults of the byte budget.
const (
	// DefaultBudgetBytes is how many bytes of traces a second are exported of one
	// engine: 2.6 GiB a day at most, before compression.
	DefaultBudgetBytes = 32 << 10
	// DefaultBurstSeconds is how many seconds' worth may be exported at once after
	// a quiet time.
	DefaultBurstSeconds = 10
)

// budgetGroup are reasons that share a part of the budget.
type budgetGroup uint8

const (
	groupFault budgetGroup = iota
	groupAsked
	groupSlow
	groupLinked
	groupRequest
	groupArmed
	groupOneInN

	numBudgetGroups
)

// budgetShare is the part of the budget that each group always has, of 16. What
// they do not use is open to all. So nothing starves: neither what an operator
// asked for behind an engine that arms every step, nor the ordinary behind one of
// which every step fails.
var budgetShare = [numBudgetGroups]float64{
	groupFault: 3, groupAsked: 3, groupSlow: 3, groupLinked: 2, groupRequest: 2, groupArmed: 2, groupOneInN: 1,
}

const budgetShares = 16

// budget is a token bucket for each group and one for what they leave. Half of the
// burst is the groups', half is the common one's.
//
// A step is let through when its group or the common bucket has anything left, and
// what it takes beyond that is owed: so the largest trace gets through a small
// budget, and the average holds nevertheless. In any time t no more is let through than rate × t +
// burst + one trace a group and one for the common bucket.
//
// Time is the steps' own. It does not block or allocate.
type budget struct {
	rate    float64 // bytes a ns; 0 is without bound
	burst   float64
	own     [numBudgetGroups]float64
	spare   float64
	lastNS  int64
	started bool
}

func newBudget(bytesPerSecond, burstBytes int) budget {
	b := budget{rate: float64(bytesPerSecond) / 1e9, burst: float64(burstBytes)}
	for g := range b.own {
		b.own[g] = b.cap(budgetGroup(g))
	}
	b.spare = b.burst / 2
	return b
}

func (b *budget) cap(g budgetGroup) float64 { return b.burst / 2 * budgetShare[g] / budgetShares }

// refill brings the buckets up to the time.
func (b *budget) refill(nowNS int64) {
	dt := float64(nowNS - b.lastNS)
	if !b.started || dt < 0 {
		dt = 0
	}
	b.lastNS, b.started = nowNS, true
	for g := range b.own {
		n := b.own[g] + dt*b.rate*budgetShare[g]/budgetShares
		most := b.cap(budgetGroup(g))
		b.own[g] = min(n, most)
		b.spare += max(0, n-most)
	}
	b.spare = min(b.spare, b.burst/2)
}

// take lets cost bytes through for a group, or refuses.
func (b *budget) take(g budgetGroup, cost int, nowNS int64) bool {
	if b.rate == 0 {
		return true
	}
	b.refill(nowNS)
	c := float64(cost)
	switch {
	case b.own[g] > 0:
		// What its own does not cover the common bucket does as far as it can; the rest
		// is owed.
		more := min(max(0, c-b.own[g]), max(0, b.spare))
		b.spare -= more
		b.own[g] -= c - more
	case b.spare > 0:
		b.spare -= c
	default:
		return false
	}
	return true
}
