package cudaevents

import "github.com/lanetrace/lanetrace/spanring"

// Meta says what a span is. Ordinals are the caller's: from 1, in order of begin
// within the step.
type Meta struct {
	Kind    spanring.Kind // KindLane, KindKernel or KindGraph
	Armed   bool          // the step's kernels are timed
	Lane    uint16        // the engine's lane index
	Step    uint64
	Name    spanring.NameID
	Ordinal uint32
	Parent  uint32 // ordinal of the lane around it, 0 for the step itself
}

func (m *Meta) slot(context uint8, st *stream, enqueueMonoNS int64, shared bool) spanring.Slot {
	v := spanring.Slot{
		Kind: m.Kind, Armed: m.Armed, Context: context, Lane: m.Lane, Step: m.Step,
		EnqueueMonoNS: enqueueMonoNS, Name: m.Name, Ordinal: m.Ordinal, Parent: m.Parent, SharedStart: shared,
	}
	if st != nil {
		v.Stream = st.num
	}
	return v
}

// Handle is an open span. The zero Handle is none; ending it does nothing.
type Handle struct {
	slot, gen uint32
	stream    Stream
	num       uint16 // of the stream: its handle may become another's
}

// Stream is the stream that the span was opened on.
func (h Handle) Stream() Stream { return h.stream }

// Outcome says what became of a request to open a span.
type Outcome uint8

// The outcomes.
const (
	// BeginOK: the span is open.
	BeginOK Outcome = iota
	// BeginOff: there is no pool (yet, or any more). Nothing was counted.
	BeginOff
	// BeginFull: the pool's next slot is in flight. Counted as begun and dropped.
	BeginFull
	// BeginCapturing: the stream is being captured, or may be. Counted as
	// capturing, not as begun.
	BeginCapturing
	// BeginFailed: the driver refused the record. Counted as begun and failed, and
	// a failed span was written to the log.
	BeginFailed
)

func (o Outcome) String() string {
	switch o {
	case BeginOK:
		return "ok"
	case BeginOff:
		return "off"
	case BeginFull:
		return "full"
	case BeginCapturing:
		return "capturing"
	case BeginFailed:
		return "failed"
	}
	return "unknown"
}

// Begin opens a span on s and records its start there: one Driver.Record, and one
// Driver.StreamID when s is seen for the first time. It does not block or
// allocate after that. The handle is for one End or Switch, on any goroutine.
func (r *Recorder) Begin(s Stream, m *Meta) (Handle, Outcome) {
	p := r.pool.Load()
	if p == nil || p.closed.Load() {
		return Handle{}, BeginOff
	}
	i, gen, o := r.take(p)
	if o != BeginOK {
		return Handle{}, o
	}
	st := r.lookup(s)
	v := m.slot(r.index, st, r.now(), false)
	p.open(i, gen, &v)
	c := &p.cells[i]
	rec := r.drv.Record(c.pair.Start, s)
	r.count(rec.Calls)
	switch {
	case rec.Capturing:
		p.release(i, gen)
		r.w.Add(spanring.CtrCapturing, 1)
		return Handle{}, BeginCapturing
	case rec.Result != Success:
		r.begun()
		r.failed(&v, spanring.FailRecord)
		p.release(i, gen)
		return Handle{}, BeginFailed
	}
	r.started(p, i, gen, s, st, &v)
	return Handle{i, gen, s, v.Stream}, BeginOK
}

// begun counts a span. It is in flight until landed or failed says otherwise.
func (r *Recorder) begun() {
	r.inFlight.Add(1)
	r.w.Add(spanring.CtrBegun, 1)
}

// started completes the begin of an open slot whose start is recorded, asking the
// stream's identity if need be: it was just seen not to capture.
func (r *Recorder) started(p *pool, i, gen uint32, s Stream, st *stream, v *spanring.Slot) {
	if st == nil {
		st = r.identify(s)
		v.Stream = st.num
		p.slots.Put(int(i), v)
	}
	r.begun()
	c := &p.cells[i]
	c.stream = st
	c.started.Store(gen)
	if p.closed.Load() {
		r.startedLate(p, i, gen, v)
	}
}

// failed accounts for a span that will not land.
func (r *Recorder) failed(v *spanring.Slot, why spanring.Reason) {
	f := spanring.SpanFailed{
		SpanKind: v.Kind, Reason: why, Context: v.Context, Lane: v.Lane, Stream: v.Stream, Step: v.Step,
		EnqueueMonoNS: v.EnqueueMonoNS, Name: v.Name, Ordinal: v.Ordinal, Parent: v.Parent,
	}
	e := f.Words()
	r.w.Append(&e)
	r.w.Add(why.Counter(), 1)
	r.inFlight.Add(-1)
}

// End records the end of h on its stream, one Driver.Record, and leaves the span
// to Harvest. It reports whether h was open; an end of what was already ended or
// abandoned is counted as stale. An open span whose end cannot be recorded,
// because its stream is being captured, was destroyed, or the driver refuses, has
// failed. End does not block or allocate.
func (r *Recorder) End(h Handle) bool {
	p, ok := r.claim(h)
	if !ok {
		return false
	}
	closedMonoNS := r.now()
	p.slots.SetClosed(int(h.slot), closedMonoNS, spanring.GapUnknown)
	rec := r.recordEnd(p, h)
	if rec.Capturing || rec.Result != Success {
		r.endFailed(p, h, rec)
		return true
	}
	r.push(p, p.cells[h.slot].stream, h.slot)
	return true
}

// claim takes an open slot for its end, or counts a stale one.
func (r *Recorder) claim(h Handle) (*pool, bool) {
	if h.gen == 0 {
		return nil, false
	}
	p := r.pool.Load()
	if p == nil || !p.close(h.slot, h.gen) {
		r.w.Add(spanring.CtrStaleEnds, 1)
		return nil, false
	}
	return p, true
}

// recordEnd records the end event of a claimed slot. The handle of a destroyed
// stream may be another stream's by now: nothing is recorded there.
func (r *Recorder) recordEnd(p *pool, h Handle) Recorded {
	c := &p.cells[h.slot]
	if c.stream.gone.Load() {
		return Recorded{Result: streamGone}
	}
	rec := r.drv.Record(c.pair.End, h.stream)
	r.count(rec.Calls)
	return rec
}

// streamGone stands for a record that was not tried. No driver has it.
const streamGone Result = -1

// endFailed accounts for a claimed span whose end was not recorded; its slot
// drains until the start is complete.
func (r *Recorder) endFailed(p *pool, h Handle, rec Recorded) {
	why := spanring.FailRecord
	if rec.Capturing {
		why = spanring.FailCapture
	}
	v := p.slots.Get(int(h.slot))
	r.failed(&v, why)
	p.drain(h.slot, h.gen, p.startEvent(h.slot))
	r.push(p, p.cells[h.slot].stream, h.slot)
}

// Switch ends h and opens the next span on the same stream with one event between
// them, which is the end of the one and the start of the other: one Driver.Record
// in place of two. It is End in what becomes of h, and Begin in what it returns.
// If h turns out stale, that is counted and the next span begins by itself, unless
// h's stream was destroyed meanwhile. The outcome then is BeginOff, as it is for
// the zero Handle, which has no stream. h's slot stays taken until the next span
// has landed or failed.
func (r *Recorder) Switch(h Handle, m *Meta) (Handle, Outcome) {
	if h.gen == 0 {
		return Handle{}, BeginOff
	}
	p, ok := r.claim(h)
	if !ok {
		if st := r.lookup(h.stream); st == nil || st.num != h.num {
			return Handle{}, BeginOff
		}
		return r.Begin(h.stream, m)
	}
	st := p.cells[h.slot].stream
	at := r.now()
	p.slots.SetClosed(int(h.slot), at, spanring.GapUnknown)

	i, gen, o := r.take(p)
	var v spanring.Slot
	if o == BeginOK {
		v = m.slot(r.index, st, at, true)
		p.cells[i].shared = h.slot + 1
		p.open(i, gen, &v)
	}
	rec := r.recordEnd(p, h)
	if rec.Capturing || rec.Result != Success {
		r.endFailed(p, h, rec)
		if o != BeginOK {
			return Handle{}, o
		}
		p.cells[i].shared = 0
		if rec.Capturing {
			p.release(i, gen)
			r.w.Add(spanring.CtrCapturing, 1)
			return Handle{}, BeginCapturing
		}
		r.begun()
		r.failed(&v, spanring.FailRecord)
		p.release(i, gen)
		return Handle{}, BeginFailed
	}
	if o == BeginOK {
		p.cells[h.slot].held = true
		r.started(p, i, gen, h.stream, st, &v)
	}
	r.push(p, st, h.slot)
	if o != BeginOK {
		return Handle{}, o
	}
	return Handle{i, gen, h.stream, h.num}, BeginOK
}
