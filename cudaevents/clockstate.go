package cudaevents

import (
	"math"

	"github.com/lanetrace/lanetrace/spanring"
)

// ClockState is what is known of a context's clock at one moment.
type ClockState struct {
	// Known is false until the first anchor.
	Known bool
	// GPUNS on the context's timeline is MonoNS on CLOCK_MONOTONIC, ± UncertaintyNS.
	GPUNS, MonoNS int64
	UncertaintyNS uint64
	// RatePPB is how much faster the GPU's clock runs than the host's, in parts in
	// 1e9, ± RateUncertaintyPPB.
	RatePPB, RateUncertaintyPPB int64
	// ResidualNS is where the map put the last anchor before it knew it, less where
	// it puts it now.
	ResidualNS int64
	// NarrowestNS is the width of the narrowest anchor so far.
	NarrowestNS int64
	Anchors     uint64 // taken in
	GivenUp     uint64 // tries that outlived their bound
	Refits      uint64 // times the map was fitted anew
	Resets      uint64 // contradictions: times that what was learnt was let go
	Segments    uint64 // 1, and 1 for each gap bridged by the host's clock

	Calibration spanring.Calibration
	ConstantNS  uint32 // what a queued pair measures beyond its kernel
	SpreadNS    uint32
}

// Clock returns the state of the clock and the calibration as of the last anchor.
func (r *Recorder) Clock() ClockState {
	r.snapMu.Lock()
	defer r.snapMu.Unlock()
	return r.snap
}

// publish shows a fit of the clock, at a GPU time, in the ring's context record
// and as a log entry.
func (r *Recorder) publish(gpuNS int64) {
	c := &r.clock
	lo, hi := c.cur.offsets(gpuNS)
	p := c.newest()
	mid := gpuNS + c.cur.base + int64(math.Round((lo+hi)/2))
	u := uint64(math.Ceil((hi - lo) / 2))
	r.state.GPURefNS, r.state.HostRefNS, r.state.UncertaintyNS = gpuNS, mid, u
	r.state.RatePPB = -int64(math.Round(p.ratePPB))
	r.state.UpdatedMonoNS = r.now()
	r.w.SetContext(&r.state)
	a := spanring.Anchor{
		Context: r.index, GPUNS: gpuNS, MonoNS: mid, RatePPB: r.state.RatePPB,
		ResidualNS: c.residualNS, UncertaintyNS: u,
	}
	e := a.Words()
	r.w.Append(&e)
	r.publishClock()
}

// publishClock refreshes what Clock returns.
func (r *Recorder) publishClock() {
	c := &r.clock
	s := ClockState{
		Known: c.known, GPUNS: r.state.GPURefNS, MonoNS: r.state.HostRefNS, UncertaintyNS: r.state.UncertaintyNS,
		RatePPB: r.state.RatePPB, ResidualNS: c.residualNS, NarrowestNS: r.anchors.narrowest,
		Anchors: uint64(r.anchors.n), GivenUp: r.anchors.givenUp,
		Refits: c.refits, Resets: c.resets, Segments: c.segs,
		Calibration: r.state.Calibration, ConstantNS: r.state.ConstantNS, SpreadNS: r.state.SpreadNS,
	}
	if c.known {
		lo, hi := c.cur.set.rates()
		s.RateUncertaintyPPB = int64(math.Ceil((hi - lo) / 2))
	} else {
		s.NarrowestNS = 0
	}
	r.snapMu.Lock()
	r.snap = s
	r.snapMu.Unlock()
}

// refit moves the map on when the spans that just landed have bounded the clock
// much closer than the last anchor had.
func (r *Recorder) refit() {
	if r.clock.known && r.clock.stale() {
		g := max(r.clock.cur.refGPU, r.clock.mapped)
		r.clock.setResidual(g)
		r.clock.refit()
		r.publish(g)
	}
}
