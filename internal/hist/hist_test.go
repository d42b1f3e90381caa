package hist

import (
	"math"
	"math/big"
	"slices"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

func TestEmpty(t *testing.T) {
	var h Hist
	if h.Count() != 0 || h.Sum() != 0 || h.Min() != 0 || h.Max() != 0 || h.Mean() != 0 || h.Quantile(0.5) != 0 {
		t.Error("an empty histogram is not 0 everywhere")
	}
	var o Hist
	h.Merge(&o)
	h.AddN(5, 0)
	if h.Count() != 0 {
		t.Error("nothing added counts")
	}
}

func TestPlaces(t *testing.T) {
	last := -1
	for _, v := range []int64{0, 1, 63, 64, 65, 127, 128, 129, 130, 255, 256, 1 << 20, 1<<20 + 1<<14, 1<<40 - 1, 1 << 40, 1<<62 - 1, 1 << 62, math.MaxInt64} {
		o, i := place(v)
		if o < 0 || o >= octaves || i < 0 || i >= sub {
			t.Fatalf("%d is at %d, %d", v, o, i)
		}
		if n := o*sub + i; n < last {
			t.Errorf("%d lies before a smaller value", v)
		} else {
			last = n
		}
		if m := middle(o, i); math.Abs(float64(m)-float64(v)) > MaxError*float64(v)+0.5 {
			t.Errorf("%d stands for %d", m, v)
		}
	}
}

// TestAgainstSorted compares with all values kept: exact what must be, and every
// quantile within the error.
func TestAgainstSorted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.OneOf(rapid.Int64Range(-100, 1000), rapid.Int64Range(0, 1e10), rapid.Int64())
		vs := rapid.SliceOfN(value, 1, 300).Draw(t, "values")
		split := rapid.IntRange(0, len(vs)).Draw(t, "split")
		var h, o Hist
		sum := new(big.Int)
		for i, v := range vs {
			sum.Add(sum, big.NewInt(v))
			if i < split {
				h.Add(v)
			} else {
				o.Add(v)
			}
		}
		h.Merge(&o)
		slices.Sort(vs)
		if h.Count() != uint64(len(vs)) || h.Min() != vs[0] || h.Max() != vs[len(vs)-1] {
			t.Fatalf("count %d, from %d to %d", h.Count(), h.Min(), h.Max())
		}
		want := sum
		if !sum.IsInt64() {
			want = big.NewInt(math.MaxInt64)
			if sum.Sign() < 0 {
				want = big.NewInt(math.MinInt64)
			}
		}
		if h.Sum() != want.Int64() {
			t.Fatalf("sum %d, want %v", h.Sum(), want)
		}
		mean, _ := new(big.Float).Quo(new(big.Float).SetInt(sum), big.NewFloat(float64(len(vs)))).Float64()
		if d := math.Abs(h.Mean() - mean); d > 1e-9*math.Abs(mean)+1e-6 {
			t.Fatalf("mean %v, want %v", h.Mean(), mean)
		}
		for _, q := range []float64{-1, 0, 0.001, 0.25, 0.5, 0.9, 0.99, 0.999, 1, 2, math.NaN()} {
			i := 0
			if q > 0 {
				i = min(max(int(math.Ceil(q*float64(len(vs)))), 1), len(vs)) - 1
			}
			exact := max(vs[i], min(0, vs[len(vs)-1]))
			if q == 0 || !(q > 0) {
				exact = vs[0]
			}
			got := h.Quantile(q)
			if math.Abs(float64(got)-float64(exact)) > 0.01*math.Abs(float64(exact)) {
				t.Fatalf("quantile %v is %d, want %d", q, got, exact)
			}
		}
		h.Reset()
		if h.Count() != 0 || h.Quantile(0.5) != 0 || h.Sum() != 0 {
			t.Fatal("not empty after Reset")
		}
	})
}

func TestAddN(t *testing.T) {
	var a, b Hist
	for range 1000 {
		a.Add(12_345)
		a.Add(-7)
	}
	b.AddN(12_345, 1000)
	b.AddN(-7, 1000)
	if a.Sum() != b.Sum() || a.Count() != b.Count() || a.Quantile(0.7) != b.Quantile(0.7) || a.Sum() != 1000*(12_345-7) {
		t.Errorf("one by one %d, %d; at once %d, %d", a.Sum(), a.Count(), b.Sum(), b.Count())
	}
}

func TestMemoryIsBounded(t *testing.T) {
	var h Hist
	for v := int64(1); v > 0; v <<= 1 {
		h.Add(v)
	}
	n := int(unsafe.Sizeof(h))
	for _, p := range h.octaves {
		if p != nil {
			n += int(unsafe.Sizeof(*p))
		}
	}
	if n > 31<<10 {
		t.Errorf("%d bytes", n)
	}
	if a := testing.AllocsPerRun(100, func() { h.Add(123_456); h.Add(7) }); a > 0 {
		t.Errorf("%v allocations in octaves that are there", a)
	}
}

func BenchmarkAdd(b *testing.B) {
	var h Hist
	b.ReportAllocs()
	v := int64(1)
	for b.Loop() {
		h.Add(v)
		v = (v*5 + 1) & 0xffffff
	}
}
