package loglinear

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// TestBuckets: buckets follow one another without gaps, each begins where it says, and
// none is wider than its scale allows.
func TestBuckets(t *testing.T) {
	for _, s := range []Scale{0, 1, 4, 5, 9} {
		last := s.Bucket(math.MaxUint64)
		if want := (65-int(s))<<s - 1; last != want {
			t.Errorf("scale %d: the last bucket is %d, want %d", s, last, want)
		}
		for b := range last + 1 {
			low := s.Floor(b)
			if got := s.Bucket(low); got != b {
				t.Fatalf("scale %d: bucket %d begins at %d, which is in bucket %d", s, b, low, got)
			}
			if b > 0 && s.Bucket(low-1) != b-1 {
				t.Fatalf("scale %d: before bucket %d lies bucket %d", s, b, s.Bucket(low-1))
			}
			top := uint64(math.MaxUint64)
			if b < last {
				top = s.Floor(b+1) - 1
			}
			if low > 0 && top-low >= max(1, low>>s) {
				t.Fatalf("scale %d: bucket %d holds %d to %d", s, b, low, top)
			}
			if m := s.Middle(b); m != float64(low)+float64(top-low)/2 {
				t.Fatalf("scale %d: bucket %d, %d to %d, has its middle at %v", s, b, low, top, m)
			}
		}
	}
}

// TestAnyValue: the bucket of a value holds it, at any scale.
func TestAnyValue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Scale(rapid.UintRange(0, 16).Draw(t, "scale"))
		v := rapid.Uint64().Draw(t, "v")
		b := s.Bucket(v)
		if low := s.Floor(b); low > v || b < s.Bucket(math.MaxUint64) && s.Floor(b+1) <= v {
			t.Fatalf("%d falls into bucket %d, which begins at %d", v, b, low)
		}
	})
}

// TestRank against its definition.
func TestRank(t *testing.T) {
	for _, n := range []uint64{1, 2, 3, 10, 100, 1000} {
		for _, q := range []float64{0, 0.001, 0.25, 0.5, 0.9, 0.99, 0.999, 1} {
			least := uint64(1)
			for float64(least) < q*float64(n) {
				least++
			}
			if got := Rank(q, n); got != least {
				t.Errorf("quantile %v of %d values is value %d, want %d", q, n, got, least)
			}
		}
		for q, want := range map[float64]uint64{-1: 1, 2: n, math.Inf(1): n, math.Inf(-1): 1} {
			if got := Rank(q, n); got != want {
				t.Errorf("quantile %v of %d values is value %d, want %d", q, n, got, want)
			}
		}
		if got := Rank(math.NaN(), n); got != 1 {
			t.Errorf("quantile NaN of %d values is value %d", n, got)
		}
	}
	if got := Rank(0.5, 0); got != 0 {
		t.Errorf("the median of nothing is value %d", got)
	}
	if got := Rank(0.5, math.MaxUint64); got < 1<<63-1<<11 || got > 1<<63+1<<11 {
		t.Errorf("the median of as many as there can be is value %d", got)
	}
}
