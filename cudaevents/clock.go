package cudaevents

import "math"

// What is assumed of the two clocks against each other.
const (
	// maxRatePPB bounds the rate whatever was learnt: 200 ppm. Crystals are
	// specified to 100 ppm at most, and 11.8 ppm were measured on an H200.
	maxRatePPB = 200_000
	// rateWander is how fast the rate itself may change, in ppb a second: 1.2 ppm a
	// minute, more than a crystal does while a machine warms up; in the long run it
	// stays within maxWander. offsetWander, in ns a second, covers what is faster.
	rateWander   = 20
	maxWander    = 5000
	offsetWander = 30
	// slewNS is how long the map takes to move on to a new line: some ppm for the
	// microseconds there usually are, so that neighbours do not overlap by it.
	// Being further behind than jumpNS, it jumps.
	slewNS = 500e6
	jumpNS = 100e3
)

// clock maps a context's GPU timeline to the host's clock.
//
// The estimate is the set of all clocks that no observation contradicts (see
// feasible), around a reference that moves on with each anchor; between anchors
// time only widens what is asked of it. The middle of the set is the line the map
// aims at, the distance to its ends the uncertainty. An observation that
// contradicts all that went before means that the assumptions above did not hold
// (the host's clock was slewed, say): then the newest anchor counts alone, and
// the rate is learnt again. Until the contradiction shows, what is published can be
// wrong by about the width of an anchor.
//
// The map itself is a function of the timeline that never decreases, made of pieces
// that are only ever added at its end, beyond everything mapped so far: so a later
// stamp never maps before an earlier one, whenever the two are asked for and
// whatever was learnt between (as far back as the pieces go that are kept, at best
// half a minute). From one line to the next it slews, or jumps forward.
type clock struct {
	known bool
	cur   epoch
	prev  epoch // of the segment before, for spans placed by an anchor of its

	pieces [64]piece
	npiece int   // pieces ever made; the newest is at (npiece-1) % len
	mapped int64 // greatest GPU time mapped

	residualNS int64
	refits     uint64
	resets     uint64 // contradictions
	segs       uint64 // segments begun; the present one's number
	era        uint64 // anchors that contradicted those before them
}

// epoch is what is known around one reference.
type epoch struct {
	set    feasible // offsets relative to base
	refGPU int64
	base   int64
	// The reference anchor's own bounds on the offset, relative to base.
	lo, hi float64
}

func (e *epoch) x(gpuNS int64) float64 { return float64(gpuNS-e.refGPU) / 1e9 }

// slack is how far the offset may have wandered off its line in x seconds.
func slack(x float64) float64 {
	x = math.Abs(x)
	return (offsetWander + min(rateWander*x/2, maxWander)) * x
}

// wander is how far the rate may have moved in x seconds.
func wander(x float64) float64 { return min(rateWander*x, maxWander) }

// offsets is the range of the offset at a GPU time, relative to base.
func (e *epoch) offsets(gpuNS int64) (lo, hi float64) {
	x := e.x(gpuNS)
	lo, hi = e.set.offsets(x)
	s := slack(x)
	return lo - s, hi + s
}

// piece is the map from gpu0 to the next piece's gpu0: a line, and on top of it
// what is left of the difference to the map before.
type piece struct {
	gpu0    int64
	base    int64
	ref     int64   // where the line was fitted
	off     float64 // offset there, relative to base
	ratePPB float64 // of the offset: how much the host gains on the GPU
	err     float64 // what the map was ahead of the line at gpu0
	slew    float64 // ns until err is gone
}

func (p *piece) line(gpuNS int64) float64 {
	return p.off + p.ratePPB*float64(gpuNS-p.ref)/1e9
}

func (p *piece) host(gpuNS int64) int64 {
	left := min(1, max(0, 1-float64(gpuNS-p.gpu0)/p.slew))
	return gpuNS + p.base + int64(math.Round(p.line(gpuNS)+p.err*left))
}

func (c *clock) newest() *piece { return &c.pieces[(c.npiece-1)%len(c.pieces)] }

// host is the map. The oldest piece kept serves everything before it.
func (c *clock) host(gpuNS int64) int64 {
	n := min(c.npiece, len(c.pieces))
	for k := 1; ; k++ {
		p := &c.pieces[(c.npiece-k)%len(c.pieces)]
		if gpuNS >= p.gpu0 || k == n {
			return p.host(gpuNS)
		}
	}
}

// gpu inverts the map's newest piece.
func (c *clock) gpu(hostNS int64) int64 {
	g := hostNS - c.newest().base
	for range 4 {
		g += hostNS - c.newest().host(g)
	}
	return g
}

// start begins the first segment with an anchor stamped between the host times lo
// and hi and returns its GPU time. The timeline's zero is chosen so that it reads
// like the host's clock at first.
func (c *clock) start(lo, hi int64) int64 {
	g := lo + (hi-lo)/2
	c.known = true
	c.segs++
	c.mapped = g
	c.cur.begin(g, lo, hi, -maxRatePPB, maxRatePPB)
	c.refit()
	return g
}

func (e *epoch) begin(gpuNS, lo, hi int64, rateLo, rateHi float64) {
	e.refGPU, e.base = gpuNS, lo+(hi-lo)/2-gpuNS
	e.lo, e.hi = float64(lo-gpuNS-e.base), float64(hi-gpuNS-e.base)
	e.set.reset(e.lo, e.hi, max(rateLo, -maxRatePPB), min(rateHi, maxRatePPB))
}

// resume begins a new segment after a gap over which the events' own distance is
// too coarse: the host's clock and the rate bridge it. It returns the anchor's GPU
// time.
func (c *clock) resume(lo, hi int64) int64 {
	g := max(c.gpu(lo+(hi-lo)/2), c.mapped+1, c.cur.refGPU+1)
	gap := c.cur.x(g)
	rateLo, rateHi := c.cur.set.rates()
	d := wander(gap)
	c.prev, c.cur = c.cur, c.prev
	c.cur.begin(g, lo, hi, rateLo-d, rateHi+d)
	c.segs++
	c.setResidual(g)
	c.refit()
	return g
}

// anchor takes in an anchor at a GPU time that is known to ±errNS against the
// anchor before it. It reports false for one that contradicts what was learnt.
func (c *clock) anchor(gpuNS, lo, hi int64, errNS float64) (ok bool) {
	e := &c.cur
	dx := e.x(gpuNS)
	e.set.move(dx, slack(dx)+errNS, wander(dx))
	e.set.clip(0, 1, maxRatePPB)
	e.set.clip(0, -1, maxRatePPB)
	e.refGPU = gpuNS
	e.lo, e.hi = float64(lo-gpuNS-e.base), float64(hi-gpuNS-e.base)
	ok = e.set.above(0, e.lo) && e.set.below(0, e.hi)
	if !ok {
		c.era++
		c.contradicted()
	}
	c.setResidual(gpuNS)
	c.refit()
	return ok
}

// contradicted lets the reference anchor count alone, at any rate.
func (c *clock) contradicted() {
	c.resets++
	e := &c.cur
	e.set.reset(e.lo, e.hi, -maxRatePPB, maxRatePPB)
}

// setResidual notes where the map so far puts a GPU time, against the middle of
// what is now known.
func (c *clock) setResidual(gpuNS int64) {
	lo, hi := c.cur.offsets(gpuNS)
	c.residualNS = c.host(gpuNS) - (gpuNS + c.cur.base + int64(math.Round((lo+hi)/2)))
}

// refit adds a piece to the map, from just beyond everything mapped on: it slews to
// the middle of the feasible offsets, and then follows the middle.
func (c *clock) refit() {
	e := &c.cur
	p := piece{gpu0: c.mapped + 1, base: e.base, ref: max(e.refGPU, c.mapped), slew: slewNS}
	lo, hi := e.offsets(p.ref)
	lo1, hi1 := e.offsets(p.ref + 1e9)
	p.off = (lo + hi) / 2
	p.ratePPB = (lo1+hi1)/2 - p.off
	if c.npiece > 0 {
		// The new piece meets the old one at gpu0, or lies ahead of it. Slewing takes
		// a quarter of the map's speed at the most.
		p.err = float64(c.host(p.gpu0)-p.gpu0-p.base) - p.line(p.gpu0)
		if p.err < -jumpNS {
			p.err = 0
		}
		p.slew = max(slewNS, 4*math.Abs(p.err))
		if c.newest().gpu0 == p.gpu0 && c.npiece > 1 { // the first also serves what is before it
			c.npiece-- // it never served
		}
	}
	c.pieces[c.npiece%len(c.pieces)] = p
	c.npiece++
	c.refits++
}

// stale reports whether the newest line lies well off the middle of what is
// feasible by now.
func (c *clock) stale() bool {
	e := &c.cur
	g := max(e.refGPU, c.mapped)
	lo, hi := e.offsets(g)
	p := c.newest()
	m := p.line(g) + float64(p.base-e.base)
	return math.Abs(m-(lo+hi)/2) > 1000+(hi-lo)/4
}

// spanBounds is what a span says about the clock: its start lies after its
// enqueue, its end after closedMonoNS and before it was seen complete. GPU times
// are known to ±errNS.
type spanBounds struct {
	gpuNS, durNS                            int64
	errNS                                   float64
	enqueueMonoNS, closedMonoNS, seenMonoNS int64
}

// span clips what is feasible with a span's bounds. It reports false when they
// contradict what was learnt, though not the anchor they were placed with: then
// the learnt was wrong, and less is held true from now on. A span of another
// segment says nothing about this one.
func (c *clock) span(b *spanBounds, seg uint64) bool {
	e := &c.cur
	if seg != c.segs {
		return true
	}
	if e.clipSpan(b) {
		return true
	}
	c.contradicted()
	e.clipSpan(b)
	return false
}

func (e *epoch) clipSpan(b *spanBounds) bool {
	end := b.gpuNS + b.durNS
	xs, xe := e.x(b.gpuNS), e.x(end)
	return e.set.above(xs, float64(b.enqueueMonoNS-b.gpuNS-e.base)-b.errNS-slack(xs)) &&
		e.set.above(xe, float64(b.closedMonoNS-end-e.base)-b.errNS-slack(xe)) &&
		e.set.below(xe, float64(b.seenMonoNS-end-e.base)+b.errNS+slack(xe))
}

// place maps a GPU time that was found in a segment and says how far off that can
// be.
func (c *clock) place(gpuNS int64, seg uint64) (hostNS int64, uncertaintyNS uint64) {
	e := &c.cur
	if seg != c.segs {
		e = &c.prev
	}
	hostNS = c.host(gpuNS)
	c.mapped = max(c.mapped, gpuNS)
	lo, hi := e.offsets(gpuNS)
	m := float64(hostNS - gpuNS - e.base)
	return hostNS, uint64(math.Ceil(max(hi-m, m-lo, 0)))
}
