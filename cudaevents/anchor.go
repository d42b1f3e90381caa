package cudaevents

import (
	"math"
	"slices"

	"github.com/lanetrace/lanetrace/spanring"
)

const (
	// anchorKeep anchors are remembered: at the default age 24 s of them, so that a
	// long span's start finds one near it.
	anchorKeep = 48
	// A first anchor is the best of firstTries, a later one of laterTries; a try
	// that is about as narrow as the narrowest so far ends the search. On an idle
	// H200 a try takes 6 to 7 µs, 40 to 100 after the GPU has idled.
	firstTries   = 8
	laterTries   = 3
	goodAnchorNS = 8000
	// soonerBy is by how much sooner the next anchor is taken after one that was
	// wide, refused or unexpected.
	soonerBy = 4
	// The first anchors follow each other closer, each twice as far as the one before:
	// until two lie apart, the clock's rate is anybody's guess, and a position half a
	// second from the only one was uncertain by 74 µs on an H200.
	youngAnchors = 6
	// anchorEvents is how many events the anchors need.
	anchorEvents = anchorKeep + 3
	// Two anchors are linked by the events' own distance when that is known to
	// linkNS (up to 4 s), or as well as the later anchor itself is; otherwise the
	// host's clock bridges the gap.
	linkNS = 250
	// nearMS: within a second a position is known to 61 ns.
	nearMS = 1000
	// A position coarser than coarsestNS, months away, says less than the span's own
	// bounds.
	coarsestNS = 1e6
	// anchorPatienceNS is how long landing waits for the very first anchor.
	anchorPatienceNS = 1e9
)

// anchor is a complete event with a place on the GPU's timeline and the host
// times that its stamp lies between.
type anchor struct {
	event  Event
	gpuNS  int64
	lo, hi int64
	seg    uint64 // segment of the timeline
	era    uint64 // anchors of different eras contradict each other
}

// anchors are the recorder's own events. Each event is a remembered anchor's,
// spare, or pending: given up by a try, or recorded during a capture.
type anchors struct {
	ring    [anchorKeep]anchor
	n       int // ever taken in; the newest is at (n-1) % anchorKeep
	spare   []Event
	pending anchor // event 0: none; lo is set

	dueMonoNS   int64 // when the next one is
	againMonoNS int64 // from when on lookAgain may
	narrowest   int64 // width so far
	givenUp     uint64
	loggedFail  bool
}

func (a *anchors) init(events []Event) {
	*a = anchors{spare: slices.Clone(events), narrowest: math.MaxInt64}
}

var noAnchor anchor

// latest is the newest anchor, one without event before there is any.
func (a *anchors) latest() *anchor {
	if a.n == 0 {
		return &noAnchor
	}
	return &a.ring[(a.n-1)%anchorKeep]
}

// nearest is the remembered anchor nearest to a GPU time.
func (a *anchors) nearest(gpuNS int64) *anchor {
	best := a.latest()
	for k := range min(a.n, anchorKeep) {
		if x := &a.ring[k]; abs(x.gpuNS-gpuNS) < abs(best.gpuNS-gpuNS) {
			best = x
		}
	}
	return best
}

// judge is the anchor to hold a span against that was placed by the anchor by:
// that one, unless it is of an era gone by; then the nearest of this one.
func (a *anchors) judge(by *anchor, gpuNS int64) *anchor {
	best := a.latest()
	if by.era == best.era || by.seg != best.seg {
		return by
	}
	for k := range min(a.n, anchorKeep) {
		if x := &a.ring[k]; x.era == best.era && abs(x.gpuNS-gpuNS) < abs(best.gpuNS-gpuNS) {
			best = x
		}
	}
	return best
}

func abs(v int64) int64 { return max(v, -v) }

// hurry asks for an anchor at the next harvest.
func (a *anchors) hurry() { a.dueMonoNS = math.MinInt64 }

// allows reports whether a span's bounds are possible next to this anchor, at any
// rate within maxRatePPB: if not, no state of the clock explains the values.
func (a *anchor) allows(b *spanBounds) bool {
	end := b.gpuNS + b.durNS
	ss := b.errNS + maxRatePPB*math.Abs(float64(b.gpuNS-a.gpuNS))/1e9
	se := b.errNS + maxRatePPB*math.Abs(float64(end-a.gpuNS))/1e9
	lo, hi := float64(a.lo-a.gpuNS), float64(a.hi-a.gpuNS)
	return float64(b.enqueueMonoNS-b.gpuNS) <= hi+ss &&
		float64(b.closedMonoNS-end) <= hi+se &&
		float64(b.seenMonoNS-end) >= lo-se
}

// locate finds a start's place on the GPU's timeline from what Elapsed read
// against an anchor. One far from it is read again against the nearest.
func (r *Recorder) locate(start Event, t *Times, by *anchor, h *HarvestStats) (gpuNS int64, errNS float64, a *anchor, ok bool) {
	a = by
	if a.event == 0 || t.SinceResult != Success {
		return 0, 0, a, false
	}
	ms := t.SinceAnchorMS
	gpuNS = a.gpuNS + msToNS(ms)
	if math.Abs(float64(ms)) > nearMS {
		if b := r.anchors.nearest(gpuNS); b != a {
			m, res := r.drv.Since(b.event, start)
			h.Calls++
			if res == Success {
				a, ms, gpuNS = b, m, b.gpuNS+msToNS(m)
			}
		}
	}
	errNS = quantumNS(ms)
	return gpuNS, errNS, a, errNS <= coarsestNS // false for NaN too
}

// lookAgain takes an anchor out of turn, for a span that contradicts the last one:
// either its values are wrong, or one of the clocks has jumped since, as they can
// when a virtual machine was paused. It reports whether there is a new anchor, and
// does its work once in a quarter of MaxAnchorAge at the most.
func (r *Recorder) lookAgain(p *pool, h *HarvestStats) bool {
	a := &r.anchors
	now := r.now()
	if now < a.againMonoNS || a.pending.event != 0 || r.drv.Capturing() {
		return false
	}
	a.againMonoNS = now + int64(r.o.MaxAnchorAge)/soonerBy
	n := a.n
	r.tryAnchor(p, now, h)
	return a.n > n
}

func msToNS(ms float32) int64 { return int64(math.Round(float64(ms) * 1e6)) }

// keepAnchor keeps the clock's anchor young while spans are in flight, and
// reports whether spans can land: they wait for the very first anchor while it is
// on its way.
func (r *Recorder) keepAnchor(p *pool, h *HarvestStats) bool {
	a := &r.anchors
	if ev := a.pending.event; ev != 0 {
		h.Calls++
		res := r.drv.Pending(ev)
		now := r.now()
		if res == NotReady {
			return a.n > 0 || now-a.pending.lo > anchorPatienceNS
		}
		a.pending.event = 0
		if res != Success {
			a.spare = append(a.spare, ev)
			r.anchorFailed(res, now)
			return true
		}
		r.adopt(ev, a.pending.lo, now, h)
		a.dueMonoNS = now + int64(r.o.MaxAnchorAge)/soonerBy
		return true
	}
	now := r.now()
	if r.InFlight() == 0 || now < a.dueMonoNS {
		return true
	}
	if r.drv.Capturing() {
		// An event record harms no capture; whether it is complete is asked later.
		ev := a.spare[len(a.spare)-1]
		rec := r.drv.Record(ev, p.own)
		h.Calls += rec.Calls
		if rec.Capturing || rec.Result != Success {
			r.anchorFailed(rec.Result, now)
			return true
		}
		a.spare = a.spare[:len(a.spare)-1]
		a.pending = anchor{event: ev, lo: now}
		return a.n > 0
	}
	return r.tryAnchor(p, now, h)
}

// tryAnchor takes the narrowest of several tries.
func (r *Recorder) tryAnchor(p *pool, now int64, h *HarvestStats) bool {
	a := &r.anchors
	bound := int64(r.o.AnchorBound)
	tries, good := firstTries, int64(goodAnchorNS)
	if a.n > 0 {
		tries, good = laterTries, a.narrowest+a.narrowest/4
	}
	var best anchor
	for range tries {
		ev := a.spare[len(a.spare)-1]
		a.spare = a.spare[:len(a.spare)-1]
		t := r.drv.Anchor(ev, p.own, bound)
		h.Calls += t.Calls
		if t.Result == NotReady {
			a.givenUp++
			r.w.Add(spanring.CtrAnchorsGivenUp, 1)
			a.pending = anchor{event: ev, lo: t.BeforeMonoNS}
			break
		}
		if t.Result != Success {
			a.spare = append(a.spare, ev)
			r.anchorFailed(t.Result, now)
			break
		}
		if best.event == 0 || t.AfterMonoNS-t.BeforeMonoNS < best.hi-best.lo {
			ev, best = best.event, anchor{event: ev, lo: t.BeforeMonoNS, hi: t.AfterMonoNS}
		}
		if ev != 0 {
			a.spare = append(a.spare, ev)
		}
		if best.hi-best.lo <= good || r.now()-now > 2*bound {
			break
		}
	}
	if best.event != 0 {
		age := int64(r.o.MaxAnchorAge) >> max(0, youngAnchors-a.n)
		if !r.adopt(best.event, best.lo, best.hi, h) {
			age /= soonerBy
		}
		a.dueMonoNS = best.hi + age
	}
	return a.n > 0 || a.pending.event == 0
}

func (r *Recorder) anchorFailed(res Result, now int64) {
	r.anchors.dueMonoNS = now + int64(r.o.MaxAnchorAge)/soonerBy
	if !r.anchors.loggedFail {
		r.anchors.loggedFail = true
		r.log.Warn("the clock cannot be anchored; positions are as good as the spans' own bounds", "context", r.index, "error", res)
	}
}

// adopt takes in a complete event stamped between two host times as the newest
// anchor, and fits the clock. It reports false when another anchor is wanted soon:
// this one contradicted what was known, or bridged a gap.
func (r *Recorder) adopt(ev Event, lo, hi int64, h *HarvestStats) bool {
	a := &r.anchors
	lo -= tickNS // a stamp is the tick that had begun
	x, ok := anchor{event: ev, lo: lo, hi: hi}, true
	switch {
	case !r.clock.known:
		x.gpuNS = r.clock.start(lo, hi)
	default:
		last := a.latest()
		ms, res := r.drv.Since(last.event, ev)
		h.Calls++
		if q := quantumNS(ms); res == Success && ms >= 0 && q <= max(linkNS, float64(hi-lo)/2) {
			x.gpuNS = last.gpuNS + msToNS(ms)
			ok = r.clock.anchor(x.gpuNS, lo, hi, q+tickNS)
		} else {
			x.gpuNS = r.clock.resume(lo, hi)
			ok = false
		}
	}
	a.narrowest = min(a.narrowest, hi-lo)
	x.era = r.clock.era
	x.seg = r.clock.segs
	place := &a.ring[a.n%anchorKeep]
	if place.event != 0 {
		a.spare = append(a.spare, place.event)
	}
	*place = x
	a.n++
	r.w.Add(spanring.CtrAnchors, 1)
	r.publish(x.gpuNS)
	return ok
}
