package report

import (
	"math"

	"github.com/lanetrace/lanetrace/internal/loglinear"
)

// subBits is how finely a power of two is divided: values within a bucket differ by
// less than 0.2 %.
const (
	subBits = 9
	fine    = loglinear.Scale(subBits)
)

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
	b := fine.Bucket(v)
	o, i := b>>subBits, b&(1<<subBits-1)
	if s.oct[o] == nil {
		s.oct[o] = new([1 << subBits]uint32)
	}
	if c := &s.oct[o][i]; *c < math.MaxUint32 {
		*c++
	}
}

// quantile is the smallest value that at least the share q of all do not exceed.
func (s *sketch) quantile(q float64) float64 {
	if s.n == 0 {
		return 0
	}
	want := loglinear.Rank(q, s.n)
	var seen uint64
	for o, p := range s.oct {
		if p == nil {
			continue
		}
		for i, c := range p {
			if seen += uint64(c); seen >= want {
				return min(fine.Middle(o<<subBits|i), float64(s.most))
			}
		}
	}
	return float64(s.most)
}
