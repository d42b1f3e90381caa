package top

import "github.com/lanetrace/lanetrace/internal/loglinear"

// Buckets divide each power of two into 16, so a quantile is right to 3 %: what is
// drawn has three digits. Times of 2^43 ns (two hours) and more share the last.
const (
	scale   = loglinear.Scale(4)
	octaves = 40
	buckets = octaves << scale
)

// histogram is a distribution of whole nanoseconds.
type histogram [buckets]uint32

func bucket(ns uint64) int { return min(scale.Bucket(ns), buckets-1) }

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
	want := loglinear.Rank(q, h.count())
	var seen uint64
	for i, c := range h {
		if seen += uint64(c); seen >= want {
			return scale.Middle(i)
		}
	}
	return 0
}
