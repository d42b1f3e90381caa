package collector

import (
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// Upper bounds of histogram buckets in ns. Lanes, steps and queue delays go from
// 10 µs to 10 s with six buckets a decade, so that a quantile read off them is
// right to about a fifth. Kernels go from 1 µs to 1 s with three: there are many
// of them, and each costs a series a bucket.
var (
	stepBounds   = decades(10_000, 10_000_000_000, 10, 15, 20, 30, 50, 70)
	kernelBounds = decades(1_000, 1_000_000_000, 10, 20, 50)

	stepSeconds   = inSeconds(stepBounds)
	kernelSeconds = inSeconds(kernelBounds)
)

// decades lists first, and tenths of it times each power of ten, up to last.
func decades(first, last int64, tenths ...int64) []int64 {
	var b []int64
	for d := first; ; d *= 10 {
		for _, t := range tenths {
			v := d / 10 * t
			b = append(b, v)
			if v >= last {
				return b
			}
		}
	}
}

func inSeconds(ns []int64) []float64 {
	s := make([]float64, len(ns))
	for i, v := range ns {
		s[i] = float64(v) / 1e9
	}
	return s
}

// buckets is a histogram over fixed bounds.
type buckets struct {
	bounds []int64
	counts []uint64 // one more than bounds
	count  uint64
	sumNS  float64
}

func newBuckets(bounds []int64) buckets {
	return buckets{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

// observe counts one value in ns. What is below 0 (a queue delay within the
// clock's uncertainty) is taken for 0.
func (b *buckets) observe(ns int64) {
	ns = max(ns, 0)
	b.counts[b.index(ns)]++
	b.count++
	b.sumNS += float64(ns)
}

// index is the bucket of ns.
func (b *buckets) index(ns int64) int {
	lo, hi := 0, len(b.bounds)
	for lo < hi {
		m := int(uint(lo+hi) >> 1)
		if b.bounds[m] < ns {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo
}

// point is the histogram as a reader gets it.
func (b *buckets) point(attrs attribute.Set, seconds []float64, start, now time.Time) metricdata.HistogramDataPoint[float64] {
	return metricdata.HistogramDataPoint[float64]{
		Attributes: attrs, StartTime: start, Time: now,
		Count: b.count, Bounds: seconds, BucketCounts: slices.Clone(b.counts), Sum: b.sumNS / 1e9,
	}
}
