package cudaevents

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// drawSet draws a set and a candidate in it, and clips it with true observations
// of the candidate.
func drawSet(t *rapid.T) (*feasible, candidate, [][3]float64) {
	truth := candidate{rapid.Float64Range(-5e3, 5e3).Draw(t, "off"), rapid.Float64Range(-1e5, 1e5).Draw(t, "rate")}
	f := new(feasible)
	f.reset(-1e4, 1e4, -maxRatePPB, maxRatePPB)
	var cuts [][3]float64 // x, bound, 1 below or -1 above
	for range rapid.IntRange(0, 60).Draw(t, "cuts") {
		x := rapid.Float64Range(-30, 30).Draw(t, "x")
		by := rapid.Float64Range(0.001, 1e5).Draw(t, "by")
		if rapid.Bool().Draw(t, "below") {
			cuts = append(cuts, [3]float64{x, truth.at(x) + by, 1})
			if !f.below(x, truth.at(x)+by) {
				t.Fatal("nothing left below a bound that the truth keeps")
			}
		} else {
			cuts = append(cuts, [3]float64{x, truth.at(x) - by, -1})
			if !f.above(x, truth.at(x)-by) {
				t.Fatal("nothing left above a bound that the truth keeps")
			}
		}
		if len(f.corners) > maxCorners {
			t.Fatalf("%d corners", len(f.corners))
		}
	}
	return f, truth, cuts
}

// holds reports whether c is inside f, corners counter-clockwise. Edges too short
// to have a direction are left out.
func holds(f *feasible, c candidate) bool {
	const eps = 1e-3 // of the area of a triangle, whose sides are thousands
	for i, b := range f.corners {
		a := f.corners[(i+len(f.corners)-1)%len(f.corners)]
		n := math.Hypot(b.off-a.off, b.rate-a.rate)
		if n > 1e-9 && ((b.off-a.off)*(c.rate-a.rate)-(b.rate-a.rate)*(c.off-a.off))/n < -eps {
			return false
		}
	}
	return true
}

func TestFeasibleKeepsTheTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, truth, cuts := drawSet(t)
		if !holds(f, truth) {
			t.Fatalf("the truth %v was cut off: %v", truth, f.corners)
		}
		for _, x := range []float64{-40, -1, 0, 1, 40} {
			if lo, hi := f.offsets(x); truth.at(x) < lo-1e-3 || truth.at(x) > hi+1e-3 {
				t.Fatalf("offset %f at %f s is not within %f, %f", truth.at(x), x, lo, hi)
			}
		}
		// While no corner was simplified away, nothing that an observation excludes is
		// left.
		if len(cuts) <= maxCorners-4 {
			for _, k := range cuts {
				for _, c := range f.corners {
					if k[2]*(c.at(k[0])-k[1]) > 1e-3*(1+math.Abs(k[1])) {
						t.Fatalf("corner %v breaks bound %v", c, k)
					}
				}
			}
		}
	})
}

func TestFeasibleMoves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, truth, _ := drawSet(t)
		var all []candidate
		dx := rapid.Float64Range(0, 60).Draw(t, "dx")
		dOff := rapid.Float64Range(0, 1e3).Draw(t, "dOff")
		dRate := rapid.Float64Range(0, 1e3).Draw(t, "dRate")
		moved := candidate{
			truth.at(dx) + dOff*rapid.Float64Range(-1, 1).Draw(t, "o"),
			truth.rate + dRate*rapid.Float64Range(-1, 1).Draw(t, "r"),
		}
		all = append(all, f.corners...)
		f.move(dx, dOff, dRate)
		if !holds(f, moved) {
			t.Fatalf("moved truth %v is not in %v", moved, f.corners)
		}
		for _, c := range all {
			if c = (candidate{c.at(dx) + dOff, c.rate - dRate}); !holds(f, c) {
				t.Fatalf("moved corner %v is not in %v", c, f.corners)
			}
		}
		if len(f.corners) > maxCorners {
			t.Fatalf("%d corners", len(f.corners))
		}
	})
}

func TestFeasibleSaysWhenNothingIsLeft(t *testing.T) {
	var f feasible
	f.reset(0, 10, -5, 5)
	before := append([]candidate(nil), f.corners...)
	if f.above(0, 10.5) {
		t.Error("an offset of 10.5 is possible in 0..10")
	}
	if f.clip(0, 1, -6) {
		t.Error("a rate under -6 is possible in -5..5")
	}
	if len(before) != len(f.corners) || before[2] != f.corners[2] {
		t.Errorf("a contradiction changed the set: %v, was %v", f.corners, before)
	}
	if !f.above(0, 10) || !f.below(0, 10) {
		t.Error("the edge itself is not possible")
	}
	if lo, hi := f.offsets(0); lo != 10 || hi != 10 {
		t.Errorf("offsets %f..%f, want the edge", lo, hi)
	}
}

func TestSimplifyGoesOutwards(t *testing.T) {
	// A circle of offsets and rates, cut from many sides.
	var f feasible
	f.reset(-1000, 1000, -1000, 1000)
	inside := []candidate{{0, 0}, {690, 0}, {0, 690}, {-480, -480}, {480, -480}}
	for k := range 360 {
		a := float64(k) * math.Pi / 180
		if !f.clip(math.Cos(a), math.Sin(a), 700) {
			t.Fatal("nothing left")
		}
		if len(f.corners) > maxCorners {
			t.Fatalf("%d corners", len(f.corners))
		}
	}
	for _, c := range inside {
		if !holds(&f, c) {
			t.Errorf("%v was cut off", c)
		}
	}
}
