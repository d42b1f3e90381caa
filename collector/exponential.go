package collector

import (
	"fmt"
	"math"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// HistogramForm is how histograms of lanes, steps and queue delays are kept.
type HistogramForm uint8

// The forms of histograms.
const (
	// HistogramsExplicit have fixed buckets.
	HistogramsExplicit HistogramForm = iota
	// HistogramsExponential have exponential buckets besides: OTLP readers get these,
	// Prometheus gets both, as a native histogram with classic buckets.
	HistogramsExponential
)

var formText = [...]string{"explicit", "exponential"}

// String is the form as a setting spells it.
func (f HistogramForm) String() string {
	if int(f) < len(formText) {
		return formText[f]
	}
	return "unknown"
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *HistogramForm) UnmarshalText(b []byte) error {
	i := slices.Index(formText[:], string(b))
	if i < 0 {
		return fmt.Errorf("want explicit or exponential, got %q", b)
	}
	*f = HistogramForm(i)
	return nil
}

const (
	// exponentialScale is fixed: eight buckets a doubling, each 9 % wide, so that a
	// value read off them is right to 4.5 %. A scale that followed the values would
	// make every reader merge what came before.
	exponentialScale = 3
	perDoubling      = 1 << exponentialScale

	// The values are whole nanoseconds in an int64: 1 ns is over 2^-30 s, the
	// largest under 2^34 s. That bounds the buckets.
	exponentialMin = -30 * perDoubling
	exponentialMax = 34*perDoubling - 1
)

// octave are the lower bounds of the buckets from 1 to 2; 1 itself still belongs
// to the bucket below, as all upper bounds do.
var octave = func() (o [perDoubling]float64) {
	for j := range o {
		o[j] = math.Exp2(float64(j) / perDoubling)
	}
	return o
}()

// exponentialIndex is the bucket of ns, which is over 0: the i for which it is,
// in seconds, over 2^(i/8) and at most 2^((i+1)/8).
func exponentialIndex(ns int64) int {
	frac, exp := math.Frexp(float64(ns) / 1e9)
	m := 2 * frac // from 1 to below 2
	j := 0
	for step := perDoubling / 2; step > 0; step /= 2 {
		if octave[j+step] < m {
			j += step
		}
	}
	if j == 0 && m <= octave[0] {
		j = -1
	}
	return min(max((exp-1)*perDoubling+j, exponentialMin), exponentialMax)
}

// exponential is a histogram over exponential buckets. Zeroes are counted apart.
type exponential struct {
	zero   uint64
	first  int // index of counts[0]
	counts []uint64
}

// observe counts one value in ns. It allocates only when a value lies outside of
// all that came before.
func (e *exponential) observe(ns int64) {
	if ns <= 0 {
		e.zero++
		return
	}
	i := exponentialIndex(ns)
	if i < e.first || i >= e.first+len(e.counts) {
		e.reach(i)
	}
	e.counts[i-e.first]++
}

// reach extends counts to bucket i and to the whole doublings around it, so that
// few values extend it again.
func (e *exponential) reach(i int) {
	lo := max((i>>exponentialScale-1)<<exponentialScale, exponentialMin)
	hi := min((i>>exponentialScale+2)<<exponentialScale, exponentialMax+1)
	if len(e.counts) > 0 {
		lo, hi = min(lo, e.first), max(hi, e.first+len(e.counts))
	}
	grown := make([]uint64, hi-lo)
	if len(e.counts) > 0 {
		copy(grown[e.first-lo:], e.counts)
	}
	e.first, e.counts = lo, grown
}

// bucket is what a reader gets: without the empty buckets at both ends.
func (e *exponential) bucket() metricdata.ExponentialBucket {
	lo, hi := 0, len(e.counts)
	for lo < hi && e.counts[lo] == 0 {
		lo++
	}
	for lo < hi && e.counts[hi-1] == 0 {
		hi--
	}
	if lo == hi {
		return metricdata.ExponentialBucket{}
	}
	return metricdata.ExponentialBucket{Offset: int32(e.first + lo), Counts: slices.Clone(e.counts[lo:hi])}
}

// histogram is a histogram over explicit buckets, over exponential ones too if
// asked for, with traces that stand for some of its values.
type histogram struct {
	buckets
	exp *exponential // nil unless asked for
	exemplars
}

func newHistogram(bounds []int64, f HistogramForm) histogram {
	h := histogram{buckets: newBuckets(bounds)}
	if f == HistogramsExponential {
		h.exp = new(exponential)
	}
	return h
}

// observe counts one value in ns; what is below 0 is taken for 0.
func (h *histogram) observe(ns int64) {
	h.buckets.observe(ns)
	if h.exp != nil {
		h.exp.observe(ns)
	}
}

// explicit is the histogram over explicit buckets as a reader gets it.
func (h *histogram) explicit(attrs attribute.Set, seconds []float64, start, now time.Time) metricdata.HistogramDataPoint[float64] {
	p := h.point(attrs, seconds, start, now)
	p.Exemplars = h.exemplars.list(now)
	return p
}

// exponential is the histogram over exponential buckets, which must be kept, as a
// reader gets it.
func (h *histogram) exponential(attrs attribute.Set, start, now time.Time) metricdata.ExponentialHistogramDataPoint[float64] {
	return metricdata.ExponentialHistogramDataPoint[float64]{
		Attributes: attrs, StartTime: start, Time: now, Count: h.count, Sum: h.sumNS / 1e9,
		Scale: exponentialScale, ZeroCount: h.exp.zero, PositiveBucket: h.exp.bucket(),
		Exemplars: h.exemplars.list(now),
	}
}
