// Package loglinear numbers the buckets of log-linear histograms: each power of two is
// divided into equally wide ones, so that a value is known to a share of itself however
// large it is. It says which bucket a value falls into, what values a bucket holds and
// which of them a quantile is. The counts are the caller's, who knows how many buckets
// are needed, how they add up and how large they grow.
//
// Nothing here allocates or keeps state.
package loglinear

import (
	"math"
	"math/bits"
)

// Scale is how finely powers of two are divided: each into 1<<Scale buckets, so that
// values in one differ by less than 1/(1<<Scale) of themselves. Whole numbers under
// 1<<Scale have a bucket each. It is from 0 to 16.
type Scale uint

// Bucket is the number of v's bucket, from 0. Buckets are in the order of their values.
func (s Scale) Bucket(v uint64) int {
	n := uint(bits.Len64(v))
	if n <= uint(s) {
		return int(v)
	}
	shift := n - uint(s) - 1
	return int(shift+1)<<s + int(v>>shift)&(1<<s-1)
}

// Floor is the least value of a bucket.
func (s Scale) Floor(bucket int) uint64 {
	octave, low := bucket>>s, uint64(bucket&(1<<s-1))
	if octave == 0 {
		return low
	}
	return (low | 1<<s) << (octave - 1)
}

// Middle is the middle of a bucket's values.
func (s Scale) Middle(bucket int) float64 {
	octave := bucket >> s
	if octave <= 1 {
		return float64(s.Floor(bucket)) // one value each
	}
	return float64(s.Floor(bucket)) + float64(uint64(1)<<(octave-1)-1)/2
}

// Rank is the place, from 1, of the quantile q among n values in rising order: of the
// smallest that at least the share q of them do not exceed. It is 0 when n is.
func Rank(q float64, n uint64) uint64 {
	switch {
	case n == 0:
		return 0
	case !(q > 0):
		return 1
	case q >= 1:
		return n
	}
	return max(1, min(n, uint64(math.Ceil(q*float64(n)))))
}
