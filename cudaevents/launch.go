package cudaevents

import "github.com/lanetrace/lanetrace/spanring"

// Launch is a slot reserved for a timed launch: the caller records Pair.Start,
// launches and records Pair.End in one crossing of its own, and reports to
// Launched.
type Launch struct {
	Pair   Pair
	slot   uint32
	gen    uint32
	handle Stream
	stream *stream
}

// LaunchResult is what a timed launch came to.
type LaunchResult struct {
	// Capturing: the stream was capturing, or its status could not be had. Nothing
	// was recorded; the launch itself was made.
	Capturing bool
	// StartRecorded and EndRecorded say which events were recorded.
	StartRecorded, EndRecorded bool
	// Pending: the start event was still pending when the end's record had returned,
	// so no gap of the host's can lie between start and work, or work and end.
	Pending bool
	// The driver's answers; Success for what was not tried.
	StartResult, LaunchResult, EndResult Result
	// Calls is how many driver calls telemetry added to the launch.
	Calls int
}

// Reserve takes a slot for a timed launch on s. It makes no driver call, does not
// block or allocate. With BeginOK, Launched must follow, whatever becomes of the
// launch; begun is counted there.
func (r *Recorder) Reserve(s Stream, m *Meta) (Launch, Outcome) {
	p := r.pool.Load()
	if p == nil || p.closed.Load() {
		return Launch{}, BeginOff
	}
	i, gen, o := r.take(p)
	if o != BeginOK {
		return Launch{}, o
	}
	st := r.lookup(s)
	v := m.slot(r.index, st, r.now(), false)
	p.open(i, gen, &v)
	return Launch{p.cells[i].pair, i, gen, s, st}, BeginOK
}

// Untimed says that a kernel is launched on s that gets no pair while others on s do:
// how many wait behind those is not known. It reads the clock.
func (r *Recorder) Untimed(s Stream) {
	if st := r.lookup(s); st != nil {
		st.untimedNS.Store(r.now())
	}
}

// Launched reports what became of a reserved launch and reports whether its span
// is on its way. A launch on a capturing stream was no span: its slot goes back
// and it is counted as capturing. A launch that the driver refused, or whose
// events it refused, has failed. Launched asks the stream's identity when the
// stream is seen for the first time and makes no driver call otherwise; it does
// not block or allocate.
func (r *Recorder) Launched(l Launch, res LaunchResult) bool {
	r.count(res.Calls)
	h := Handle{slot: l.slot, gen: l.gen, stream: l.handle}
	p, ok := r.claim(h)
	if !ok {
		return false
	}
	if res.Capturing {
		p.release(h.slot, h.gen)
		r.w.Add(spanring.CtrCapturing, 1)
		return false
	}
	v := p.slots.Get(int(h.slot))
	if !res.StartRecorded && !res.EndRecorded {
		r.begun()
		r.failed(&v, launchFailure(res))
		p.release(h.slot, h.gen)
		return false
	}
	r.started(p, h.slot, h.gen, h.stream, l.stream, &v)
	c := &p.cells[h.slot]
	if !res.StartRecorded || !res.EndRecorded || res.LaunchResult != Success {
		r.failed(&v, launchFailure(res))
		last := l.Pair.Start
		if res.EndRecorded {
			last = l.Pair.End
		}
		p.drain(h.slot, h.gen, last)
		r.push(p, c.stream, h.slot)
		return false
	}
	gap := spanring.GapStarved
	if res.Pending {
		gap = spanring.GapQueued
	}
	p.slots.SetClosed(int(h.slot), r.now(), gap)
	r.push(p, c.stream, h.slot)
	return true
}

// launchFailure is why a launch's span cannot land: the launch itself comes
// first.
func launchFailure(res LaunchResult) spanring.Reason {
	if res.LaunchResult != Success {
		return spanring.FailLaunch
	}
	return spanring.FailRecord
}
