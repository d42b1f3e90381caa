package main

import "math/bits"

// histogram counts durations in buckets of at most 3 % width, from 1 ns to an hour.
type histogram struct {
	counts [histBuckets]uint64
	n      uint64
}

const (
	histSub     = 5 // each doubling has 1 << histSub buckets
	histBuckets = 42 << histSub
)

func bucketOf(ns int64) int {
	v := uint64(max(ns, 0))
	if v < 1<<histSub {
		return int(v)
	}
	shift := bits.Len64(v) - histSub - 1
	return min((shift+1)<<histSub+int(v>>shift)-1<<histSub, histBuckets-1)
}

// floorOf is the least duration of a bucket, in ns.
func floorOf(b int) int64 {
	if b < 1<<histSub {
		return int64(b)
	}
	shift := b>>histSub - 1
	return int64(b&(1<<histSub-1)+1<<histSub) << shift
}

func (h *histogram) add(ns int64) {
	h.counts[bucketOf(ns)]++
	h.n++
}

// quantile is the duration that a share q of all does not exceed, in ns, to 3 %; 0
// when there is none.
func (h *histogram) quantile(q float64) int64 {
	if h.n == 0 {
		return 0
	}
	rank := uint64(q * float64(h.n-1))
	for b, n := range h.counts {
		if rank < n {
			return floorOf(b)
		}
		rank -= n
	}
	return floorOf(histBuckets - 1)
}
