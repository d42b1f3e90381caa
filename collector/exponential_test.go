package collector

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"pgregory.net/rapid"
)

// TestExponentialIndex: upper bounds belong to their bucket, as OpenTelemetry says.
func TestExponentialIndex(t *testing.T) {
	for ns, want := range map[int64]int{
		1_000_000_000: -1, 1_000_000_001: 0, 2_000_000_000: 7, 2_000_000_001: 8, 500_000_000: -9, 500_000_001: -8,
		1_090_507_732: 0, 1_090_507_733: 1, // 2^(1/8) s is 1.0905077326 s
		1: -240, math.MaxInt64: 264,
	} {
		if got := exponentialIndex(ns); got != want {
			t.Errorf("%d ns is in bucket %d, want %d", ns, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		ns := rapid.Int64Range(1, math.MaxInt64).Draw(t, "ns")
		i := exponentialIndex(ns)
		lo, hi := math.Exp2(float64(i)/8), math.Exp2(float64(i+1)/8)
		if s := float64(ns) / 1e9; s <= lo*(1-1e-12) || s > hi*(1+1e-12) || i < exponentialMin || i > exponentialMax {
			t.Fatalf("%v s is in bucket %d, from %v to %v", s, i, lo, hi)
		}
	})
}

// TestExponentialCountsEverything: what is observed is in one bucket each, whatever
// the order, and nothing else is.
func TestExponentialCountsEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistogram(stepBounds, HistogramsExponential)
		want, zero := map[int]uint64{}, uint64(0)
		values := rapid.SliceOf(rapid.OneOf(rapid.Int64(), rapid.Int64Range(-5, 2e9))).Draw(t, "values")
		for _, v := range values {
			h.observe(v)
			if v <= 0 {
				zero++
			} else {
				want[exponentialIndex(v)]++
			}
		}
		p := h.exponential(attribute.Set{}, time.Time{}, time.Now())
		got := map[int]uint64{}
		for i, c := range p.PositiveBucket.Counts {
			if c > 0 {
				got[int(p.PositiveBucket.Offset)+i] = c
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatal(d)
		}
		if p.ZeroCount != zero || p.Count != uint64(len(values)) || p.Scale != 3 {
			t.Fatalf("zero %d, count %d, scale %d", p.ZeroCount, p.Count, p.Scale)
		}
		if c := p.PositiveBucket.Counts; len(c) > 0 && (c[0] == 0 || c[len(c)-1] == 0) {
			t.Fatalf("empty buckets at the ends: %v", c)
		}
	})
}

func TestExponentialDoesNotAllocate(t *testing.T) {
	h := newHistogram(stepBounds, HistogramsExponential)
	n := int64(0)
	h.observe(1_000_000)
	if a := testing.AllocsPerRun(100, func() { n++; h.observe(1_000_000 + n*1000) }); a != 0 {
		t.Errorf("%v allocations a value", a)
	}
}

// TestProducerForms: OTLP readers get one form of each histogram, and kernels
// explicit ones always.
func TestProducerForms(t *testing.T) {
	kinds := func(f HistogramForm, all bool) map[string][]string {
		i := NewInstruments(InstrumentOptions{Histograms: f})
		e := &Engine{label: "e"}
		e.sum.init("e", 5)
		i.add(e)
		p := i.Producer()
		if all {
			p = i.AllForms()
		}
		sms, err := p.Produce(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		out := map[string][]string{}
		for _, m := range sms[0].Metrics {
			kind := "?"
			switch m.Data.(type) {
			case metricdata.Histogram[float64]:
				kind = "explicit"
			case metricdata.ExponentialHistogram[float64]:
				kind = "exponential"
			}
			out[m.Name] = append(out[m.Name], kind)
		}
		return out
	}
	steps := []string{"lanetrace.step.duration", "lanetrace.step.armed.duration", "lanetrace.step.host.duration"}
	for _, tt := range []struct {
		form HistogramForm
		all  bool
		want []string
	}{
		{HistogramsExplicit, false, []string{"explicit"}},
		{HistogramsExplicit, true, []string{"explicit"}},
		{HistogramsExponential, false, []string{"exponential"}},
		{HistogramsExponential, true, []string{"explicit", "exponential"}},
	} {
		got := kinds(tt.form, tt.all)
		for _, s := range steps {
			if d := cmp.Diff(tt.want, got[s]); d != "" {
				t.Errorf("%v, all %v, %s:\n%s", tt.form, tt.all, s, d)
			}
		}
		if d := cmp.Diff([]string{"explicit"}, got[mKernelArmedDuration.Name]); d != "" {
			t.Errorf("kernels: %s", d)
		}
	}
}
