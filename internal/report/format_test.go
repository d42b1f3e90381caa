package report

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestDuration(t *testing.T) {
	for _, tc := range []struct {
		ns   float64
		want string
	}{
		{0, "0 ns"}, {1, "1 ns"}, {999, "999 ns"}, {999.4, "999 ns"}, {999.5, "1.00 µs"}, {1000, "1.00 µs"}, {4310, "4.31 µs"},
		{9994, "9.99 µs"}, {9996, "10.0 µs"}, {43_120, "43.1 µs"}, {99_949, "99.9 µs"}, {99_951, "100 µs"}, {431_500, "432 µs"},
		{999_600, "1.00 ms"}, {1_554_000, "1.55 ms"}, {20e6, "20.0 ms"}, {999.6e6, "1.00 s"}, {61e9, "61.0 s"}, {3600e9, "3,600 s"},
		{1.5e15, "1,500,000 s"}, {-4310, "-4.31 µs"},
	} {
		if got := Duration(tc.ns); got != tc.want {
			t.Errorf("%v ns: %q, want %q", tc.ns, got, tc.want)
		}
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 999: "999", 1000: "1,000", 34085: "34,085", 1234567: "1,234,567", math.MaxUint64: "18,446,744,073,709,551,615"} {
		if got := Count(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0.000", 1: "0.001", 999_999: "999.999", 1_234_567: "1,234.567"} {
		if got := microseconds(n); got != want {
			t.Errorf("%d ns: %q, want %q", n, got, want)
		}
	}
}

func TestPercent(t *testing.T) {
	for _, tc := range []struct {
		part, whole float64
		want        string
	}{{0, 0, "-"}, {0, 5, "0.0 %"}, {1, 3, "33.3 %"}, {1, 1, "100.0 %"}, {1, 1e6, "<0.1 %"}} {
		if got := percent(tc.part, tc.whole); got != tc.want {
			t.Errorf("%v of %v: %q, want %q", tc.part, tc.whole, got, tc.want)
		}
	}
}

func TestClip(t *testing.T) {
	for _, tc := range []struct {
		s    string
		n    int
		want string
	}{{"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"äöüß", 3, "äö…"}, {"abc", 1, "…"}, {"", 0, ""}} {
		if got := clip(tc.s, tc.n); got != tc.want {
			t.Errorf("%q to %d: %q, want %q", tc.s, tc.n, got, tc.want)
		}
	}
}

func TestTable(t *testing.T) {
	var b strings.Builder
	table(&b, "  ", 60, []string{"HEAD", "n", "time"}, [][]string{{"a", "1,000", "3.10 µs"}, {strings.Repeat("long", 20), "2", ""}})
	want := "" +
		"HEAD                                              n     time\n" +
		"  a                                           1,000  3.10 µs\n" +
		"  longlonglonglonglongl…longlonglonglonglong      2\n"
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Quantiles are within 0.1 % of those of the sorted values; small ones are exact.
func TestSketch(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for name, draw := range map[string]func() uint64{
		"small":     func() uint64 { return rnd.Uint64N(500) },
		"lognormal": func() uint64 { return uint64(4000 * math.Exp(rnd.NormFloat64())) },
		"wide":      func() uint64 { return rnd.Uint64() >> rnd.UintN(63) },
		"one":       func() uint64 { return 123_456_789 },
	} {
		var s sketch
		var all []uint64
		for range 10_000 {
			v := draw()
			all = append(all, v)
			s.add(v)
		}
		slices.Sort(all)
		for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 1} {
			want := float64(all[max(0, int(math.Ceil(q*float64(len(all))))-1)])
			if got := s.quantile(q); math.Abs(got-want) > want/1000 {
				t.Errorf("%s: quantile %v is %v, want %v", name, q, got, want)
			}
		}
		if s.most != all[len(all)-1] || s.n != 10_000 {
			t.Errorf("%s: most %d of %d, want %d of 10000", name, s.most, s.n, all[len(all)-1])
		}
	}
	var none sketch
	if none.quantile(0.5) != 0 {
		t.Error("the median of nothing is not 0")
	}
}

func TestNiceColumn(t *testing.T) {
	for _, tc := range []struct {
		length int64
		n      int
		want   int64
	}{{1, 40, 1}, {40, 40, 1}, {41, 40, 2}, {962_000, 40, 25_000}, {1_000_000, 40, 25_000}, {1_000_001, 40, 30_000}, {50e9, 50, 1e9}, {0, 40, 1}, {math.MaxInt64, 17, 6e17}, {math.MaxInt64, 150, 8e16}} {
		if got := niceColumn(tc.length, tc.n); got != tc.want {
			t.Errorf("%d ns in %d columns: %d ns each, want %d", tc.length, tc.n, got, tc.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		length, n := rapid.Int64Range(0, 1<<62).Draw(t, "length"), rapid.IntRange(10, 150).Draw(t, "n")
		c := niceColumn(length, n)
		if c < length/int64(n) {
			t.Fatalf("%d columns of %d ns do not hold %d ns", n, c, length)
		}
		if c > 100 && c/3*2 > length/int64(n)+1 {
			t.Fatalf("%d columns of %d ns are far more than %d ns", n, c, length)
		}
	})
}
