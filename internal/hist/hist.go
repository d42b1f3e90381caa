// Package hist is a histogram of durations or sizes for reports and live views:
// any value is kept to within 1 %, and count, sum, least and greatest value are
// exact.
//
// It is log-linear: each power of two is divided into 64 buckets of equal width,
// so that a bucket's middle is at most 1/128 of the value away from it. Values
// under 64 are exact. Memory is bounded, 30 KiB should values spread over the
// whole range of an int64, and 512 bytes for each power of two that occurs.
package hist

import (
	"math"
	"math/bits"
)

const (
	subBits = 6
	sub     = 1 << subBits
	octaves = 63 - subBits + 1 // the first holds 0 to 63, each one more power of two
)

// MaxError is the greatest relative error of a quantile.
const MaxError = 1.0 / (2 * sub)

// Hist is a histogram. Its zero value is empty and ready for use. It must not be
// used by several goroutines at once.
type Hist struct {
	count        uint64
	sumHi        int64
	sumLo        uint64
	least, great int64
	octaves      [octaves]*[sub]uint64
}

// place is the bucket of v, which must not be negative.
func place(v int64) (octave, i int) {
	if v < sub {
		return 0, int(v)
	}
	o := bits.Len64(uint64(v)) - subBits // at least 1
	return o, int(v>>(o-1)) & (sub - 1)
}

// middle is the value that stands for a bucket.
func middle(octave, i int) int64 {
	if octave == 0 {
		return int64(i)
	}
	width := int64(1) << (octave - 1)
	return (sub+int64(i))*width + width/2
}

// Add counts v. A negative value counts with its own amount in sum and least
// value, and as 0 in quantiles. It allocates when v's power of two is new.
func (h *Hist) Add(v int64) { h.AddN(v, 1) }

// AddN counts v n times.
func (h *Hist) AddN(v int64, n uint64) {
	if n == 0 {
		return
	}
	if h.count == 0 {
		h.least, h.great = v, v
	}
	h.least, h.great = min(h.least, v), max(h.great, v)
	h.count += n
	// v*n in 128 bits, signed.
	hi, lo := bits.Mul64(uint64(v), n)
	if v < 0 {
		hi -= n
	}
	var carry uint64
	h.sumLo, carry = bits.Add64(h.sumLo, lo, 0)
	h.sumHi += int64(hi) + int64(carry)

	o, i := place(max(v, 0))
	if h.octaves[o] == nil {
		h.octaves[o] = new([sub]uint64)
	}
	h.octaves[o][i] += n
}

// Merge adds everything in o to h. o is not changed.
func (h *Hist) Merge(o *Hist) {
	if o.count == 0 {
		return
	}
	if h.count == 0 {
		h.least, h.great = o.least, o.great
	}
	h.least, h.great = min(h.least, o.least), max(h.great, o.great)
	h.count += o.count
	var carry uint64
	h.sumLo, carry = bits.Add64(h.sumLo, o.sumLo, 0)
	h.sumHi += o.sumHi + int64(carry)
	for i, p := range o.octaves {
		if p == nil {
			continue
		}
		if h.octaves[i] == nil {
			h.octaves[i] = new([sub]uint64)
		}
		for j, n := range p {
			h.octaves[i][j] += n
		}
	}
}

// Reset empties h and keeps its memory.
func (h *Hist) Reset() {
	for _, p := range h.octaves {
		if p != nil {
			clear(p[:])
		}
	}
	*h = Hist{octaves: h.octaves}
}

// Count is how many values were added.
func (h *Hist) Count() uint64 { return h.count }

// Min is the least value, 0 when there is none.
func (h *Hist) Min() int64 { return h.least }

// Max is the greatest value, 0 when there is none.
func (h *Hist) Max() int64 { return h.great }

// Sum is the exact sum, cut to the range of an int64.
func (h *Hist) Sum() int64 {
	switch {
	case h.fits():
		return int64(h.sumLo)
	case h.sumHi < 0:
		return math.MinInt64
	}
	return math.MaxInt64
}

// fits reports whether the sum is an int64.
func (h *Hist) fits() bool { return h.sumHi == int64(h.sumLo)>>63 }

// Mean is the average, 0 when there is no value.
func (h *Hist) Mean() float64 {
	if h.count == 0 {
		return 0
	}
	if h.fits() {
		return float64(int64(h.sumLo)) / float64(h.count)
	}
	return (float64(h.sumHi)*(1<<64) + float64(h.sumLo)) / float64(h.count)
}

// Quantile is the value at q, from 0 (the least) to 1 (the greatest): of n values
// in order the one numbered q*n, rounded up. It is off by at most MaxError of the
// value, and exact at both ends. It is 0 when there is no value.
func (h *Hist) Quantile(q float64) int64 {
	if h.count == 0 {
		return 0
	}
	if !(q > 0) {
		return h.least
	}
	rank := uint64(math.Ceil(q * float64(h.count)))
	if rank >= h.count {
		return h.great
	}
	rank = max(rank, 1)
	for o, p := range h.octaves {
		if p == nil {
			continue
		}
		for i, n := range p {
			if rank <= n {
				return min(max(middle(o, i), h.least), h.great)
			}
			rank -= n
		}
	}
	return h.great
}
