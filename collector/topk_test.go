package collector

import (
	"fmt"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"pgregory.net/rapid"
)

func testTopK(k int) *topK {
	return newTopK(k, time.Unix(0, 0), func(l string) attribute.Set { return attribute.NewSet(attribute.String("kernel", l)) })
}

func TestTopKKeepsTheLargest(t *testing.T) {
	now := time.Unix(0, 0)
	k := testTopK(2)
	clock := func() time.Time { return now }
	obs := func(l string, ns int64) { k.observe(k.find(l, clock), ns) }
	obs("small", 10)
	obs("middle", 20)
	obs("large", 1000) // no room yet: counts as other
	if k.other.h.count != 1 || k.find("large", clock).member {
		t.Fatalf("other has %d, large is member %v", k.other.h.count, k.find("large", clock).member)
	}
	now = now.Add(rankEvery)
	k.rank(now)
	if !k.find("large", clock).member || k.find("small", clock).member || !k.find("middle", clock).member {
		t.Fatal("large did not take small's place")
	}
	obs("large", 1000)
	obs("small", 10)
	if l := k.find("large", clock); l.h.count != 1 {
		t.Errorf("large has %d, want what it saw as a member", l.h.count)
	}
	if k.other.h.count != 2 {
		t.Errorf("other has %d, want 2", k.other.h.count)
	}
	// Two alike do not take turns.
	for range 20 {
		now = now.Add(rankEvery)
		obs("large", 1000)
		obs("middle", 100)
		obs("small", 120)
		k.rank(now)
		if k.find("small", clock).member {
			t.Fatal("small took over by less than the margin")
		}
	}
	// A label called other is the other.
	if k.find(other, clock) != &k.other {
		t.Error("a kernel named other has a series of its own")
	}
}

// TestTopKNeverGoesBackwards: whatever comes, no series of a label falls, the
// members stay at k, and every observation is counted once.
func TestTopKNeverGoesBackwards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(0, 0)
		k := testTopK(3)
		k.max = 12 // so that labels are forgotten
		last := map[string]uint64{}
		lastSeen := map[string]time.Time{}
		total, forgotten := uint64(0), uint64(0)
		for range rapid.IntRange(1, 60).Draw(t, "rounds") {
			for range rapid.IntRange(0, 20).Draw(t, "spans") {
				l := fmt.Sprint(rapid.IntRange(0, 20).Draw(t, "kernel"))
				r := k.find(l, func() time.Time { return now })
				k.observe(r, rapid.Int64Range(0, 1e6).Draw(t, "ns"))
				if r != &k.other {
					lastSeen[l] = now
				}
				total++
			}
			now = now.Add(time.Duration(rapid.IntRange(0, 1200).Draw(t, "seconds")) * time.Second)
			k.rank(now)
			if len(k.members) > 3 {
				t.Fatalf("%d members", len(k.members))
			}
			sum := k.other.h.count
			for l, n := range last {
				r := k.byLabel[l]
				if r == nil && n > 0 {
					if now.Sub(lastSeen[l]) < time.Hour {
						t.Fatalf("%s was forgotten %v after it was seen, with %d counted", l, now.Sub(lastSeen[l]), n)
					}
					forgotten += n
					delete(last, l)
				}
			}
			for l, r := range k.byLabel {
				sum += r.h.count
				if r.h.count < last[l] {
					t.Fatalf("%s fell from %d to %d", l, last[l], r.h.count)
				}
				last[l] = r.h.count
			}
			if sum+forgotten != total {
				t.Fatalf("%d counted of %d, %d of them forgotten", sum, total, forgotten)
			}
		}
	})
}

func TestTopKIsBounded(t *testing.T) {
	now := time.Unix(0, 0)
	k := testTopK(5)
	for i := range 3 * maxRanked {
		k.observe(k.find(fmt.Sprint(i), func() time.Time { return now }), 100)
		if i%1000 == 0 {
			now = now.Add(rankEvery)
			k.rank(now)
		}
	}
	if len(k.byLabel) > maxRanked || len(k.members) != 5 {
		t.Errorf("%d labels, %d members", len(k.byLabel), len(k.members))
	}
}

func TestBuckets(t *testing.T) {
	if f, l := stepBounds[0], stepBounds[len(stepBounds)-1]; f != 10_000 || l != 10_000_000_000 || len(stepBounds) != 37 {
		t.Errorf("step bounds %d to %d, %d of them", f, l, len(stepBounds))
	}
	if f, l := kernelBounds[0], kernelBounds[len(kernelBounds)-1]; f != 1000 || l != 1_000_000_000 || len(kernelBounds) != 19 {
		t.Errorf("kernel bounds %d to %d, %d of them", f, l, len(kernelBounds))
	}
	for i := 1; i < len(stepBounds); i++ {
		if stepBounds[i] <= stepBounds[i-1] {
			t.Fatalf("bounds out of order at %d: %v", i, stepBounds)
		}
	}
	b := newBuckets(kernelBounds)
	for _, v := range []int64{-5, 0, 1000, 1001, 2000, 1e9, 1e9 + 1, 1e12} {
		b.observe(v)
	}
	want := map[int]uint64{0: 3, 1: 2, len(kernelBounds) - 1: 1, len(kernelBounds): 2}
	for i, n := range b.counts {
		if n != want[i] {
			t.Errorf("bucket %d has %d, want %d", i, n, want[i])
		}
	}
	if b.count != 8 || b.sumNS != 1000+1001+2000+1e9+1e9+1+1e12 {
		t.Errorf("count %d, sum %v", b.count, b.sumNS)
	}
}
