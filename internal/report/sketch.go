package report

import (
	"math"
	"math/bits"
)

// subBits is how fine a power of two is divided: values within a bucket differ by
// less than 0.2 %.
const subBits = 9

// sketch is a distribution of whole nanoseconds. Its quantiles are right to
// 0.1 %; count, sum and maximum are exact. A power of two takes 2 KiB once a value
// falls into it.
type sketch struct {
	n, sum, most uint64
	oct          [64 - subBits + 1]*[1 << subBits]uint32
}

func (s *sketch) add(v uint64) {
	s.n++
	s.sum += v
	s.most = max(s.most, v)
	o, i := place(v)
	if s.oct[o] == nil {
		s.oct[o] = new([1 << subBits]uint32)
	}
	if c := &s.oct[o][i]; *c < math.MaxUint32 {
		*c++
	}
}

// place is the bucket of v: values under 1<<subBits have one each.
func place(v uint64) (octave, index int) {
	n := bits.Len64(v)
	if n <= subBits {
		return 0, int(v)
	}
	shift := n - subBits - 1
	return shift + 1, int(v>>shift) & (1<<subBits - 1)
}

// middle is the middle of a bucket.
func middle(octave, index int) float64 {
	if octave == 0 {
		return float64(index)
	}
	shift := octave - 1
	low := uint64(index|1<<subBits) << shift
	return float64(low) + float64(uint64(1)<<shift-1)/2
}

// quantile is the smallest value that at least the share q of all do not exceed.
func (s *sketch) quantile(q float64) float64 {
	if s.n == 0 {
		return 0
	}
	want := uint64(math.Ceil(q * float64(s.n)))
	want = max(1, min(want, s.n))
	var seen uint64
	for o, p := range s.oct {
		if p == nil {
			continue
		}
		for i, c := range p {
			if seen += uint64(c); seen >= want {
				return min(middle(o, i), float64(s.most))
			}
		}
	}
	return float64(s.most)
}
