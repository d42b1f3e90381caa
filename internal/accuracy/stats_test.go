package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDistOf(t *testing.T) {
	hundred := make([]int64, 101)
	for i := range hundred {
		hundred[i] = int64(100-i) - 50 // 50 down to -50
	}
	for _, tc := range []struct {
		name  string
		in    []int64
		limit int64
		want  dist
	}{
		{"none", nil, 10, dist{}},
		{"one", []int64{-7}, 10, dist{N: 1, P1: -7, P10: -7, P50: -7, P90: -7, P99: -7, Min: -7, Max: -7, MaxAbs: 7, Inner: 1}},
		{"between two", []int64{10, 0}, 0, dist{N: 2, P1: 0.1, P10: 1, P50: 5, P90: 9, P99: 9.9, Min: 0, Max: 10, MaxAbs: 10, Inner: 0.5}},
		{"many, backwards", hundred, 25, dist{N: 101, P1: -49, P10: -40, P50: 0, P90: 40, P99: 49, Min: -50, Max: 50, MaxAbs: 50, Inner: 51.0 / 101}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := append([]int64(nil), tc.in...)
			got := distOf(tc.in, tc.limit)
			if d := cmp.Diff(tc.want, got, cmp.Comparer(func(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 })); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(before, tc.in); d != "" {
				t.Errorf("the values were changed: %s", d)
			}
			if m := median(tc.in); m != tc.want.P50 {
				t.Errorf("median %v", m)
			}
		})
	}
}

func TestFigures(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{us(3040), "3.04"}, {us(-3040), "-3.04"}, {us(123_456), "123.5"}, {us(0), "0.00"},
		{signed(200), "+0.20"}, {signed(-200), "-0.20"}, {signed(0.2), "0.00"},
		{percent(0.5), "50.0 %"}, {percent(1), "100.0 %"}, {percent(0.99996), "99.99 %"}, {percent(0.9912), "99.12 %"},
		{size(4096), "4 KiB"}, {size(16 << 20), "16 MiB"},
	} {
		if tc.got != tc.want {
			t.Errorf("%q, want %q", tc.got, tc.want)
		}
	}
}

func TestLine(t *testing.T) {
	a, b := line([]float64{0, 10, 20}, []float64{3, 9, 12}) // 3.5 + 0.45 x
	if a < 3.4999 || a > 3.5001 || b < 0.44999 || b > 0.45001 {
		t.Errorf("%v + %v x", a, b)
	}
}
