package collector

import (
	"cmp"
	"slices"

	"github.com/lanetrace/lanetrace/spanring"
)

// deviceLane is a time at which a lane of a step was on a device.
type deviceLane struct {
	context uint8
	interval
}

// deviceLanes appends the times at which a lane of s was on the GPU, in order and
// those of one device merged.
func deviceLanes(dst []deviceLane, s *Step) []deviceLane {
	for i := range s.Spans {
		if sp := &s.Spans[i]; sp.Kind == spanring.KindLane {
			dst = append(dst, deviceLane{sp.Context, interval{sp.StartMonoNS, sp.StartMonoNS + int64(sp.DurationNS())}})
		}
	}
	slices.SortFunc(dst, func(x, y deviceLane) int {
		return cmp.Or(cmp.Compare(x.context, y.context), cmp.Compare(x.a, y.a))
	})
	n := 0
	for _, l := range dst {
		if n > 0 && l.context == dst[n-1].context && l.a <= dst[n-1].b {
			dst[n-1].b = max(dst[n-1].b, l.b)
			continue
		}
		dst[n] = l
		n++
	}
	return dst[:n]
}

// openIntervals is how many pieces of a request's lane time can still grow.
const openIntervals = 16

// laneTime is the length of a union of intervals that come roughly in order. The
// latest pieces are kept apart; what lies before them is a sum, to which nothing
// is added any more. So the union is exact unless a step closes after some
// sixteen that began later than it, and then too short by no more than that
// step.
type laneTime struct {
	context uint8
	sumNS   int64 // of what lies before untilNS
	untilNS int64
	n       int
	pieces  [openIntervals + 1]interval // apart from one another, in order
}

// ns is the length of the union.
func (t *laneTime) ns() int64 {
	sum := t.sumNS
	for _, p := range t.pieces[:t.n] {
		sum += p.b - p.a
	}
	return sum
}

// add takes an interval in.
func (t *laneTime) add(iv interval) {
	iv.a = max(iv.a, t.untilNS)
	if iv.a >= iv.b {
		return
	}
	// Pieces i to j-1 touch it.
	i := t.n
	for i > 0 && t.pieces[i-1].b >= iv.a {
		i--
	}
	j := i
	for j < t.n && t.pieces[j].a <= iv.b {
		iv.a, iv.b = min(iv.a, t.pieces[j].a), max(iv.b, t.pieces[j].b)
		j++
	}
	if i == j {
		copy(t.pieces[i+1:t.n+1], t.pieces[i:t.n])
		t.n++
	} else {
		copy(t.pieces[i+1:], t.pieces[j:t.n])
		t.n -= j - i - 1
	}
	t.pieces[i] = iv
	if t.n > openIntervals {
		t.sumNS += t.pieces[0].b - t.pieces[0].a
		t.untilNS = t.pieces[0].b
		copy(t.pieces[:], t.pieces[1:t.n])
		t.n--
	}
}
