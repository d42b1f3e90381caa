package main

import "github.com/lanetrace/lanetrace/internal/loglinear"

// histogram counts durations in buckets of at most 3 % width, from 1 ns to an hour.
type histogram struct {
	counts [histBuckets]uint64
	n      uint64
}

const (
	histScale   = loglinear.Scale(5)
	histBuckets = 42 << histScale
)

func (h *histogram) add(ns int64) {
	h.counts[min(histScale.Bucket(uint64(max(ns, 0))), histBuckets-1)]++
	h.n++
}

// quantile is the duration that a share q of all does not exceed, in ns, less at most
// 3 %: the least of its bucket. It is 0 when there is none.
func (h *histogram) quantile(q float64) int64 {
	want := loglinear.Rank(q, h.n)
	var seen uint64
	for b, n := range h.counts {
		if seen += n; seen >= want {
			return int64(histScale.Floor(b))
		}
	}
	return 0
}
