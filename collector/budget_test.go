package collector

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

const second = 1_000_000_000

// flow offers traces of a group to a budget at a steady rate.
type flow struct {
	group  budgetGroup
	perSec float64
	size   int

	debt    float64
	offered int
	taken   int
	bytes   int
}

// offer runs the flows side by side for so many seconds.
func offer(b *budget, fromNS int64, seconds int, flows ...*flow) (bytes int) {
	const tick = second / 1000
	for i := range int64(seconds) * 1000 {
		now := fromNS + i*tick
		for _, f := range flows {
			for f.debt += f.perSec / 1000; f.debt >= 1; f.debt-- {
				f.offered++
				if b.take(f.group, f.size, now) {
					f.taken++
					f.bytes += f.size
					bytes += f.size
				}
			}
		}
	}
	return bytes
}

func TestBudgetBoundsTheAverage(t *testing.T) {
	const rate = 32 << 10
	for _, f := range []*flow{
		{group: groupArmed, perSec: 20, size: 100_000},
		{group: groupFault, perSec: 1000, size: 900},
		{group: groupOneInN, perSec: 100, size: 1000},
		{group: groupLinked, perSec: 300, size: 700_000},
	} {
		b := newBudget(rate, 10*rate)
		const secs = 3600
		got := offer(&b, 5*second, secs, f)
		most := secs*rate + 10*rate + 2*f.size
		if got > most || float64(got) < 0.97*secs*rate {
			t.Errorf("group %d: %d bytes in an hour, want at most %d and not much less: one kind of trace may have all that others leave", f.group, got, most)
		}
	}
}

// TestNothingStarves: each group has its share whatever the others offer.
func TestNothingStarves(t *testing.T) {
	const rate = 32 << 10
	flood := map[budgetGroup]*flow{
		groupFault: {group: groupFault, perSec: 1000, size: 1200}, groupArmed: {group: groupArmed, perSec: 30, size: 60_000},
		groupLinked: {group: groupLinked, perSec: 1000, size: 1500}, groupSlow: {group: groupSlow, perSec: 100, size: 1000},
		groupOneInN: {group: groupOneInN, perSec: 100, size: 1000},
	}
	for g, f := range flood {
		*f = flow{group: f.group, perSec: f.perSec, size: f.size}
		b := newBudget(rate, 10*rate)
		offer(&b, 0, 60, f)
		// Eight armed steps that were asked for, every ten seconds; a failure, a
		// request's summary and an ordinary step now and then.
		asked := &flow{group: groupAsked, perSec: 0.8, size: 6_000}
		fault := &flow{group: groupFault, perSec: 2, size: 1_300}
		slow := &flow{group: groupSlow, perSec: 0.5, size: 1_000}
		plain := &flow{group: groupOneInN, perSec: 1, size: 1_000}
		quiet := []*flow{asked, fault, slow, plain}
		var others []*flow
		for _, q := range quiet {
			if q.group != g {
				others = append(others, q)
			}
		}
		bytes := offer(&b, 60*second, 600, append([]*flow{f}, others...)...)
		for _, q := range others {
			if q.taken != q.offered {
				t.Errorf("flood of group %d: %d of %d of group %d were let through", g, q.taken, q.offered, q.group)
			}
		}
		if most := 660*rate + 10*rate; bytes > most {
			t.Errorf("flood of group %d: %d bytes", g, bytes)
		}
	}
}

// TestLargestTraceGetsThrough: a trace far larger than the burst is let through
// once and paid for.
func TestLargestTraceGetsThrough(t *testing.T) {
	b := newBudget(1000, 10_000)
	if !b.take(groupArmed, 1_000_000, second) {
		t.Fatal("refused")
	}
	if !b.take(groupFault, 1, second) {
		t.Error("another group pays for it")
	}
	// What the groups leave goes to a flood, so its own part must pay: 125 bytes a
	// second.
	flood := &flow{group: groupFault, perSec: 1000, size: 1000}
	f := &flow{group: groupArmed, perSec: 1, size: 1}
	offer(&b, second, 7900, flood, f)
	if f.taken > 0 {
		t.Errorf("%d more before the debt was paid", f.taken)
	}
	offer(&b, 7901*second, 200, flood, f)
	if f.taken < 100 {
		t.Errorf("%d after it was paid", f.taken)
	}
}

func TestBudgetWithoutBound(t *testing.T) {
	b := newBudget(0, 0)
	for range 1000 {
		if !b.take(groupOneInN, 1<<30, 1) {
			t.Fatal("refused")
		}
	}
}

// TestBudgetBoundHolds offers anything at any time, also backwards.
func TestBudgetBoundHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.IntRange(1, 1<<20).Draw(t, "rate")
		burst := rapid.IntRange(1, 1<<22).Draw(t, "burst")
		size := rapid.IntRange(1, 1<<20).Draw(t, "largest")
		b := newBudget(rate, burst)
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		var now, passed, sum int64
		for range 2000 {
			dt := rnd.Int64N(50_000_000) - 1_000_000
			now += dt
			passed += max(dt, 0)
			c := 1 + rnd.IntN(size)
			if b.take(budgetGroup(rnd.IntN(int(numBudgetGroups))), c, now) {
				sum += int64(c)
			}
			if most := float64(passed)*float64(rate)/1e9 + float64(burst) + float64(size)*float64(numBudgetGroups+1); float64(sum) > most+1 {
				t.Fatalf("%d bytes in %d ns, at most %.0f", sum, passed, most)
			}
		}
	})
}
