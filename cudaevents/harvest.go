package cudaevents

import (
	"math"

	"github.com/lanetrace/lanetrace/spanring"
)

// batchPairs is how many pairs one crossing into the driver reads at most.
const batchPairs = 64

// sweepsPerAbandon is how often within Abandon the open slots are looked through.
const sweepsPerAbandon = 4

// HarvestStats say what one harvest did.
type HarvestStats struct {
	Landed   int // spans written to the log
	Failed   int // spans that turned out unreadable, refused or abandoned
	Calls    int // driver calls made
	InFlight int // spans left in flight
}

// Harvest lands every span whose pair has completed: for each stream the oldest
// first, until one that has not. It makes one driver call a pair and one a stream
// that still has work in flight, one more a pair for its position, and now and
// then a few for the clock's anchor, and it allocates nothing. It never waits for
// the GPU but for an anchor: Options.AnchorBound a try and three times that in all,
// once more should a span contradict the clock. One goroutine harvests at a time: a
// second call returns at once.
func (r *Recorder) Harvest() HarvestStats {
	var h HarvestStats
	if !r.mu.TryLock() {
		h.InFlight = r.InFlight()
		return h
	}
	defer r.mu.Unlock()
	r.harvest(&h)
	h.InFlight = r.InFlight()
	return h
}

func (r *Recorder) harvest(h *HarvestStats) {
	p := r.pool.Load()
	if p == nil {
		if r.wanted.Load() && r.poolErr == nil && !r.closed {
			_ = r.ensurePool(0) // what failed for good is logged, the rest comes again
		}
		return
	}
	if r.closed {
		return
	}
	begin := r.now()
	if r.keepAnchor(p, h) {
		r.endedNS = r.lastEndNS
		for _, st := range r.streams.Load().all {
			r.harvestStream(p, st, h)
		}
		r.harvestGraphs(p, h)
		r.refit()
	}
	end := r.now()
	if end >= r.nextSweep {
		r.sweep(p, end, h)
	}
	r.count(h.Calls)
	r.w.Add(spanring.CtrHarvests, 1)
	r.w.Add(spanring.CtrHarvestCalls, uint64(h.Calls))
	r.w.Add(spanring.CtrHarvestNS, uint64(max(0, r.now()-begin)))
}

// harvestStream lands what has completed on one stream.
func (r *Recorder) harvestStream(p *pool, st *stream, h *HarvestStats) {
	st.collect(p)
	for st.head != 0 {
		if c := &p.cells[st.head-1]; p.slots.Word(int(st.head-1)).State() != spanring.SlotClosed {
			h.Calls++
			if r.drv.Pending(c.wait) == NotReady {
				return
			}
			p.finish(st.pop(p))
			continue
		}
		n := 0
		for i := st.head; i != 0 && n < batchPairs && p.slots.Word(int(i-1)).State() == spanring.SlotClosed; i = p.cells[i-1].next {
			r.batch[n] = Pair{p.startEvent(i - 1), p.cells[i-1].pair.End}
			n++
		}
		by := r.anchors.latest()
		got, res, calls := r.drv.Elapsed(by.event, r.batch[:n], r.times[:n])
		h.Calls += calls
		seen := r.now()
		if got > 0 {
			st.collect(p) // all that was enqueued before these ended
		}
		for k := range got {
			i := st.pop(p)
			r.land(p, i, st, &r.times[k], by, seen, h)
			p.finish(i)
		}
		switch {
		case got == n:
		case res == NotReady:
			return
		default:
			i := st.head - 1
			v := p.slots.Get(int(i))
			r.failed(&v, spanring.FailUnreadable)
			h.Failed++
			// Nothing is known of an unreadable pair but what its end event says
			// itself: only a plain not-ready keeps the slot.
			p.drain(i, p.slots.Word(int(i)).Generation(), p.cells[i].pair.End)
		}
	}
}

// land judges and writes one complete pair, read against the anchor by and seen
// complete at seenMonoNS. It is off the list of its stream st.
func (r *Recorder) land(p *pool, i uint32, st *stream, t *Times, by *anchor, seenMonoNS int64, h *HarvestStats) {
	v := p.slots.Get(int(i))
	r.landSlot(p, &v, p.startEvent(i), st, t, by, seenMonoNS, h)
}

// landSlot is land for a pair that need not be the pool's, nor a lane on a stream: st
// may be nil for that.
func (r *Recorder) landSlot(p *pool, v *spanring.Slot, start Event, st *stream, t *Times, by *anchor, seenMonoNS int64, h *HarvestStats) {
	s := &r.span
	if why := r.place(s, p, start, v, t, by, seenMonoNS, h); why != spanring.FailNone {
		r.failed(v, why)
		h.Failed++
		return
	}
	r.correct(s, v, t.DurationMS, p, st)
	e := s.Words()
	r.w.Append(&e)
	r.w.Add(spanring.CtrLanded, 1)
	switch s.Gap {
	case spanring.GapQueued:
		r.w.Add(spanring.CtrQueued, 1)
	case spanring.GapStarved:
		r.w.Add(spanring.CtrStarved, 1)
	}
	r.inFlight.Add(-1)
	h.Landed++
	if r.o.Landed != nil {
		r.o.Landed(s)
	}
}

// place makes a span of a pair's values, or says why it cannot be one.
func (r *Recorder) place(s *spanring.Span, p *pool, start Event, v *spanring.Slot, t *Times, by *anchor, seenMonoNS int64, h *HarvestStats) spanring.Reason {
	*s = spanring.Span{
		Kind: v.Kind, Armed: v.Armed, SharedStart: v.SharedStart, Gap: v.Gap,
		Context: v.Context, Lane: v.Lane, Stream: v.Stream, Step: v.Step,
		Name: v.Name, Ordinal: v.Ordinal, Parent: v.Parent,
	}
	if why := checkDuration(t.DurationMS, seenMonoNS-v.EnqueueMonoNS); why != spanring.FailNone {
		return why
	}
	durNS := int64(math.Round(float64(t.DurationMS) * 1e6))
	s.RawNS = uint64(durNS)

	b := spanBounds{enqueueMonoNS: v.EnqueueMonoNS, closedMonoNS: v.EnqueueMonoNS, seenMonoNS: seenMonoNS, durNS: durNS}
	if v.Kind == spanring.KindLane {
		b.closedMonoNS = v.ClosedMonoNS // read before the end was recorded
	}
	gpuNS, errNS, a, ok := r.locate(start, t, by, h)
	if !ok {
		// No anchor to be had at all: the span's own bounds place it.
		latest := seenMonoNS - durNS
		s.StartMonoNS = b.enqueueMonoNS + (latest-b.enqueueMonoNS)/2
		s.PlaceUncertaintyNS = uint64(max(latest-b.enqueueMonoNS, 0)/2) + tickNS
	} else {
		b.gpuNS, b.errNS = gpuNS, errNS+quantumNS(t.DurationMS)+tickNS
		if !r.anchors.judge(a, gpuNS).allows(&b) &&
			!(r.lookAgain(p, h) && r.anchors.judge(a, gpuNS).allows(&b)) {
			return spanring.FailMisplaced
		}
		if !r.clock.span(&b, a.seg) {
			r.anchors.hurry()
		}
		host, u := r.clock.place(gpuNS, a.seg)
		s.StartMonoNS = host
		s.PlaceUncertaintyNS = u + uint64(math.Ceil(errNS)) + tickNS
	}
	if s.StartMonoNS < 0 {
		return spanring.FailMisplaced
	}
	s.LeadNS = s.StartMonoNS - v.EnqueueMonoNS
	return spanring.FailNone
}

// sweep abandons lanes that were never ended and lets go of destroyed streams. A
// slot that a caller is inside the driver with is never touched.
func (r *Recorder) sweep(p *pool, nowMonoNS int64, h *HarvestStats) {
	r.nextSweep = nowMonoNS + int64(r.o.Abandon)/sweepsPerAbandon
	set := r.streams.Load()
	for _, st := range set.all {
		st.seen = false
	}
	for i := range p.cells {
		w := p.slots.Word(i)
		c := &p.cells[i]
		if w.State() != spanring.SlotOpen || c.started.Load() != w.Generation() {
			continue
		}
		// Nobody but this goroutine frees slots: an open one may close meanwhile,
		// but what it holds does not change.
		c.stream.seen = true
		if r.o.StepEnded == nil {
			continue
		}
		v := p.slots.Get(i)
		ended, ok := r.o.StepEnded(v.Step)
		if !ok || nowMonoNS-ended < int64(r.o.Abandon) || !p.close(uint32(i), w.Generation()) {
			continue
		}
		r.failed(&v, spanring.FailAbandoned)
		h.Failed++
		p.drain(uint32(i), w.Generation(), p.startEvent(uint32(i)))
		c.stream.append(p, uint32(i))
	}
	r.retire()
}
