package top

import (
	"math"
	"math/bits"
)

// Buckets divide each power of two into 16, so a quantile is right to 3 %: what is
// drawn has three digits. Times of 2^40 ns (18 minutes) and more share the last.
const (
	subBits = 4
	octaves = 40
	buckets = octaves << subBits
)

// histogram is a distribution of whole nanoseconds.
type histogram [buckets]uint32

func bucket(ns uint64) int {
	n := bits.Len64(ns)
	if n <= subBits {
		return int(ns)
	}
	return min((n-subBits)<<subBits+int(ns>>(n-subBits-1))&(1<<subBits-1), buckets-1)
}

// middle is the middle of a bucket in ns.
func middle(i int) float64 {
	o := i >> subBits
	if o == 0 {
		return float64(i)
	}
	low := uint64(i&(1<<subBits-1)|1<<subBits) << (o - 1)
	return float64(low) + float64(uint64(1)<<(o-1)-1)/2
}

func (h *histogram) merge(o *histogram) {
	for i, n := range o {
		h[i] += n
	}
}

func (h *histogram) count() (n uint64) {
	for _, c := range h {
		n += uint64(c)
	}
	return n
}

// quantile is the smallest value that at least the share q does not exceed, 0 of
// an empty histogram.
func (h *histogram) quantile(q float64) float64 {
	n := h.count()
	if n == 0 {
		return 0
	}
	want := max(1, uint64(math.Ceil(q*float64(n))))
	var seen uint64
	for i, c := range h {
		if seen += uint64(c); seen >= want {
			return middle(i)
		}
	}
	return middle(buckets - 1)
}
