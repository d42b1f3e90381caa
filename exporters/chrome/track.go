package chrome

import "slices"

// maxTaken is how many stretches of a track are remembered. The steps that are in
// flight at the same time are few; an hour of neighbours is one stretch.
const maxTaken = 256

// track is a thread of the trace. It remembers where the complete events of
// earlier steps lie, so that those of later ones do not overlap them.
type track struct {
	tid    int
	name   string
	shared bool     // of several streams: nothing on it nests
	more   []*track // further rows of the same stream

	// taken are the stretches that complete events lie in, apart and in order.
	taken []interval
	// floorNS is where memory begins: before it, all counts as taken.
	floorNS int64
	floored bool

	// open are the events around the one at hand, fresh the outermost ones, both of
	// the step at hand.
	open, fresh []interval
}

// begin begins a step on the track and its further rows, end ends it.
func (t *track) begin() {
	t.open, t.fresh = t.open[:0], t.fresh[:0]
	for _, r := range t.more {
		r.begin()
	}
}

func (t *track) end() {
	for _, f := range t.fresh {
		t.take(f.startNS, f.endNS)
	}
	for _, r := range t.more {
		r.end()
	}
}

type interval struct{ startNS, endNS int64 }

// nests reports whether a span of the step at hand lies inside the ones around it,
// or apart from all that was written, and notes it if so. Spans come in order of
// their start, longer ones first.
func (t *track) nests(startNS, endNS int64) bool {
	if t.shared {
		return false
	}
	for len(t.open) > 0 && t.open[len(t.open)-1].endNS <= startNS && t.open[len(t.open)-1].startNS < startNS {
		t.open = t.open[:len(t.open)-1]
	}
	if n := len(t.open); n > 0 {
		if endNS > t.open[n-1].endNS {
			return false
		}
	} else {
		if !t.free(startNS, endNS) {
			return false
		}
		t.fresh = append(t.fresh, interval{startNS, endNS})
	}
	t.open = append(t.open, interval{startNS, endNS})
	return true
}

// free reports whether nothing that was taken lies between the two times.
func (t *track) free(startNS, endNS int64) bool {
	if t.floored && startNS < t.floorNS {
		return false
	}
	i := t.after(startNS)
	return i == len(t.taken) || t.taken[i].startNS >= endNS
}

// after is the index of the first stretch that ends after ns.
func (t *track) after(ns int64) int {
	i, _ := slices.BinarySearchFunc(t.taken, ns, func(v interval, ns int64) int {
		if v.endNS <= ns {
			return -1
		}
		return 1
	})
	return i
}

// take notes a stretch that is free.
func (t *track) take(startNS, endNS int64) {
	i := t.after(startNS)
	switch {
	case i > 0 && t.taken[i-1].endNS == startNS:
		t.taken[i-1].endNS = endNS
		if i < len(t.taken) && t.taken[i].startNS == endNS {
			t.taken[i-1].endNS = t.taken[i].endNS
			t.taken = slices.Delete(t.taken, i, i+1)
		}
	case i < len(t.taken) && t.taken[i].startNS == endNS:
		t.taken[i].startNS = startNS
	default:
		t.taken = slices.Insert(t.taken, i, interval{startNS, endNS})
	}
	if len(t.taken) > maxTaken {
		t.floorNS, t.floored = t.taken[0].endNS, true
		t.taken = slices.Delete(t.taken, 0, 1)
	}
}
