package cudaevents

import (
	"cmp"
	"math"
	"slices"
)

// candidate is one way in which the GPU's timeline may lie on the host's clock: at
// the reference the host is off ns ahead of the timeline, and gains rate ns a
// second on it (so rate is in parts per billion).
type candidate struct{ off, rate float64 }

// at is the offset x seconds after the reference.
func (c candidate) at(x float64) float64 { return c.off + c.rate*x }

// feasible is the set of all candidates that contradict no observation: a convex
// polygon in the plane of offset and rate, its corners in counter-clockwise order.
// Each observation bounds the offset at one moment, which is a half-plane, and
// clips the polygon. No corner left means that the observations contradict each
// other.
//
// Corners are few: clipping adds one at the most, and a polygon with more than
// maxCorners is simplified outwards. Nothing is ever cut off that an observation
// did not exclude.
type feasible struct {
	corners, spare []candidate
}

const maxCorners = 24

// reset makes the set all candidates in a rectangle.
func (f *feasible) reset(offLo, offHi, rateLo, rateHi float64) {
	if f.spare == nil {
		f.corners = make([]candidate, 0, 5*maxCorners)
		f.spare = make([]candidate, 0, 5*maxCorners)
	}
	f.corners = append(f.corners[:0],
		candidate{offLo, rateLo}, candidate{offHi, rateLo}, candidate{offHi, rateHi}, candidate{offLo, rateHi})
}

// offsets is the range of offsets x seconds from the reference.
func (f *feasible) offsets(x float64) (lo, hi float64) {
	lo, hi = math.Inf(1), math.Inf(-1)
	for _, c := range f.corners {
		v := c.at(x)
		lo, hi = min(lo, v), max(hi, v)
	}
	return lo, hi
}

// rates is the range of rates.
func (f *feasible) rates() (lo, hi float64) {
	lo, hi = math.Inf(1), math.Inf(-1)
	for _, c := range f.corners {
		lo, hi = min(lo, c.rate), max(hi, c.rate)
	}
	return lo, hi
}

// above keeps the candidates whose offset x seconds from the reference is at least
// bound, and reports whether any are left; if none are, the set stays as it was.
func (f *feasible) above(x, bound float64) bool { return f.clip(-1, -x, -bound) }

// below keeps those whose offset there is at most bound.
func (f *feasible) below(x, bound float64) bool { return f.clip(1, x, bound) }

// clip keeps the candidates with o*off + r*rate <= bound.
func (f *feasible) clip(o, r, bound float64) bool {
	inside := func(c candidate) float64 { return bound - o*c.off - r*c.rate } // >= 0 inside
	cuts := false
	for _, c := range f.corners {
		if inside(c) < 0 {
			cuts = true
			break
		}
	}
	if !cuts {
		return true
	}
	out := f.spare[:0]
	for i, b := range f.corners {
		a := f.corners[(i+len(f.corners)-1)%len(f.corners)]
		da, db := inside(a), inside(b)
		if (da < 0) != (db < 0) {
			t := da / (da - db)
			out = append(out, candidate{a.off + t*(b.off-a.off), a.rate + t*(b.rate-a.rate)})
		}
		if db >= 0 {
			out = append(out, b)
		}
	}
	if len(out) == 0 {
		return false
	}
	f.corners, f.spare = out, f.corners
	if len(f.corners) > maxCorners {
		f.simplify()
	}
	return true
}

// move puts the reference dx seconds later and widens the set by what may have
// changed meanwhile: the offset by ±dOff ns, the rate by ±dRate ppb.
func (f *feasible) move(dx, dOff, dRate float64) {
	out := f.spare[:0]
	for _, c := range f.corners {
		o := c.at(dx)
		out = append(out,
			candidate{o - dOff, c.rate - dRate}, candidate{o + dOff, c.rate - dRate},
			candidate{o + dOff, c.rate + dRate}, candidate{o - dOff, c.rate + dRate})
	}
	f.spare = f.corners
	f.corners = hull(out, f.spare[:0])
	f.spare = out[:0]
	if len(f.corners) > maxCorners {
		f.simplify()
	}
}

// simplify replaces the set by the smallest one around it whose edges lie in the
// directions that matter: the ranges of the rate, of the offset now, and of the
// offset 1, 10 and 60 s back and ahead.
func (f *feasible) simplify() {
	xs := [...]float64{-60, -10, -1, 1, 10, 60}
	var los, his [len(xs)]float64
	for i, x := range xs {
		los[i], his[i] = f.offsets(x)
	}
	lo, hi := f.offsets(0)
	rateLo, rateHi := f.rates()
	f.reset(lo, hi, rateLo, rateHi)
	for i, x := range xs {
		f.above(x, los[i])
		f.below(x, his[i])
	}
}

// hull is the convex hull of pts in counter-clockwise order, appended to dst; pts
// is reordered.
func hull(pts, dst []candidate) []candidate {
	slices.SortFunc(pts, func(a, b candidate) int {
		if c := cmp.Compare(a.off, b.off); c != 0 {
			return c
		}
		return cmp.Compare(a.rate, b.rate)
	})
	pts = slices.Compact(pts)
	if len(pts) < 3 {
		return append(dst, pts...)
	}
	turn := func(a, b, c candidate) float64 {
		return (b.off-a.off)*(c.rate-a.rate) - (b.rate-a.rate)*(c.off-a.off)
	}
	for _, p := range pts { // lower chain
		for len(dst) >= 2 && turn(dst[len(dst)-2], dst[len(dst)-1], p) <= 0 {
			dst = dst[:len(dst)-1]
		}
		dst = append(dst, p)
	}
	low := len(dst) + 1
	for i := len(pts) - 2; i >= 0; i-- { // upper chain
		p := pts[i]
		for len(dst) >= low && turn(dst[len(dst)-2], dst[len(dst)-1], p) <= 0 {
			dst = dst[:len(dst)-1]
		}
		dst = append(dst, p)
	}
	return dst[:len(dst)-1]
}
