package main

import (
	"fmt"
	"math"
	"slices"
)

// dist is a distribution of values in ns.
type dist struct {
	N                       int
	P1, P10, P50, P90, P99  float64
	Min, Max, MaxAbs, Inner float64 // Inner is the share within a limit given to distOf
}

// distOf describes values, which it does not change; limit is for Inner.
func distOf(values []int64, limit int64) dist {
	d := dist{N: len(values)}
	if d.N == 0 {
		return d
	}
	s := slices.Clone(values)
	slices.Sort(s)
	d.P1, d.P10, d.P50, d.P90, d.P99 = quantile(s, 0.01), quantile(s, 0.1), quantile(s, 0.5), quantile(s, 0.9), quantile(s, 0.99)
	d.Min, d.Max = float64(s[0]), float64(s[len(s)-1])
	d.MaxAbs = max(math.Abs(d.Min), math.Abs(d.Max))
	in := 0
	for _, v := range s {
		if max(v, -v) <= limit {
			in++
		}
	}
	d.Inner = float64(in) / float64(d.N)
	return d
}

// quantile interpolates in sorted values, of which there is at least one.
func quantile(sorted []int64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return float64(sorted[len(sorted)-1])
	}
	a, b := float64(sorted[i]), float64(sorted[i+1])
	return a + (at-float64(i))*(b-a)
}

// median is the middle of values, which it does not change; 0 of none.
func median(values []int64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Clone(values)
	slices.Sort(s)
	return quantile(s, 0.5)
}

// line is the least-squares line through points.
func line(x, y []float64) (intercept, slope float64) {
	var mx, my, sxx, sxy float64
	n := float64(len(x))
	for i := range x {
		mx += x[i] / n
		my += y[i] / n
	}
	for i := range x {
		sxx += (x[i] - mx) * (x[i] - mx)
		sxy += (x[i] - mx) * (y[i] - my)
	}
	slope = sxy / sxx
	return my - slope*mx, slope
}

// us is a time in ns as µs with the digits that carry something.
func us(ns float64) string {
	switch a := math.Abs(ns); {
	case a >= 1e5:
		return fmt.Sprintf("%.1f", ns/1e3)
	default:
		return fmt.Sprintf("%.2f", ns/1e3)
	}
}

func signed(ns float64) string {
	if math.Round(ns) > 0 {
		return "+" + us(ns)
	}
	return us(ns)
}

func percent(share float64) string {
	if share > 0.99 && share < 1 {
		return fmt.Sprintf("%.2f %%", math.Floor(share*1e4)/100)
	}
	return fmt.Sprintf("%.1f %%", share*100)
}
