package collector

import (
	"cmp"
	"slices"

	"github.com/lanetrace/lanetrace/spanring"
)

// assembler puts entries, in any order, into steps. It is used from one
// goroutine.
//
// A step closes when its end has come and as many of its spans have landed or
// failed as its end says were opened; or when nothing has come of it for the
// time-out; or when more steps or spans are open than are kept, the one longest
// untouched first; or when the source ends.
type assembler struct {
	engine *Engine
	o      *ProcessorOptions
	names  *names
	lanes  map[uint16]*Name // names of the lane indices, as lanes land

	open      map[uint64]*Step
	touched   ageList[Step, *Step] // the open steps, the one longest untouched first
	openSpans int

	// closed remembers the steps that closed last, at their number modulo its
	// length, so that what comes late opens no second step of the same number.
	closed [closedMemory]closedStep

	requests requests
	gaps     gaps

	derive deriver

	ready []*Step // closed, not handed over yet
	free  []*Step

	// The entry at hand: its sequence number, and whether an earlier life of the
	// collector has read it too, and counted it.
	seq   uint64
	again bool
	// What that life had read: everything before resumeNext but the holes.
	resumeNext  uint64
	resumeHoles []uint64

	received int // units of this batch, for the ledger

	// The source's time and its place on the wall clock, read once a batch.
	nowNS, wallOffsetNS int64
}

const (
	closedMemory = 4096
	freeSteps    = 64
	// keepSpans is the capacity above which a freed step's spans are let go.
	keepSpans = 1024
)

type closedStep struct {
	number      uint64
	rootCounted bool
}

func newAssembler(e *Engine, o *ProcessorOptions) *assembler {
	return &assembler{
		engine: e, o: o, names: newNames(e.src),
		lanes: make(map[uint16]*Name), open: make(map[uint64]*Step), requests: newRequests(o),
	}
}

// add takes one entry.
func (a *assembler) add(w *spanring.Words) {
	switch w.Kind() {
	case spanring.KindLane, spanring.KindKernel, spanring.KindGraph:
		a.span(w)
	case spanring.KindStepBegin:
		a.stepBegin(w)
	case spanring.KindStepEnd:
		a.stepEnd(w)
	case spanring.KindSpanFailed:
		a.failed(w)
	case spanring.KindStepAttrs:
		at, err := w.StepAttrs()
		if err != nil {
			a.engine.sum.malformed++
			return
		}
		st := a.step(at.Step)
		if st == nil {
			a.engine.sum.lateEntries++
			return
		}
		st.Attrs, st.HasAttrs = at, true
	case spanring.KindTraceContext:
		a.addLink(w)
	case spanring.KindRequestEnd:
		a.requestEnd(w)
	case spanring.KindLaunchDiff:
		a.launchDiff(w)
	case spanring.KindAlloc, spanring.KindFree:
		a.memEvent(w)
	case spanring.KindViolation:
		a.violation(w)
	default:
		// Kinds that belong to other readers of the same source, and kinds of a
		// later release.
		a.engine.sum.otherEntries++
	}
}

func (a *assembler) span(w *spanring.Words) {
	a.received++
	sp, err := w.Span()
	if err != nil || sp.Step == 0 {
		a.drop(DropMalformed)
		return
	}
	name := a.names.get(sp.Name)
	if sp.Kind == spanring.KindLane && a.lanes[sp.Lane] != name {
		a.lanes[sp.Lane] = name
	}
	if !a.again {
		a.engine.sum.span(&sp, name)
	}
	st := a.step(sp.Step)
	if st == nil {
		a.drop(DropLate)
		return
	}
	st.landed++
	if len(st.Spans) >= a.o.MaxSpansPerStep {
		st.LeftOut++
		a.drop(DropStepFull)
	} else {
		st.Spans = append(st.Spans, Span{Span: sp, Text: name})
		a.openSpans++
	}
	a.closeIfWhole(st)
	for a.openSpans > a.o.MaxOpenSpans && a.touched.oldest != nil {
		a.close(a.touched.oldest, IncompleteEvicted)
	}
}

func (a *assembler) failed(w *spanring.Words) {
	f, err := w.SpanFailed()
	if err != nil || f.Step == 0 {
		a.engine.sum.malformed++
		return
	}
	st := a.step(f.Step)
	if st == nil {
		a.engine.sum.lateEntries++
		return
	}
	st.FailedCount++
	if len(st.Failed) < MaxFailedSpans {
		st.Failed = append(st.Failed, FailedSpan{SpanFailed: f, Text: a.names.get(f.Name)})
	}
	a.closeIfWhole(st)
}

func (a *assembler) stepBegin(w *spanring.Words) {
	b, err := w.StepBegin()
	if err != nil {
		a.received++
		a.drop(DropMalformed)
		return
	}
	st := a.step(b.Step)
	if st == nil {
		a.lateRoot(b.Step, true)
		return
	}
	a.countRoot(st)
	a.gaps.step(b.MonoNS)
	st.Level, st.Asked = b.Level, b.Asked
	if b.Source != spanring.StepMarked {
		st.StandIn = b.Source.String()
	}
	if !st.HasBegin {
		st.HasBegin, st.BeginMonoNS, st.Armed, st.Untimed = true, b.MonoNS, b.Armed, b.Untimed
	}
}

func (a *assembler) stepEnd(w *spanring.Words) {
	e, err := w.StepEnd()
	if err != nil {
		a.engine.sum.malformed++
		return
	}
	st := a.step(e.Step)
	if st == nil {
		a.lateRoot(e.Step, false)
		return
	}
	a.countRoot(st)
	if st.HasEnd {
		a.engine.sum.malformed++ // no step ends twice
		return
	}
	st.HasBegin, st.HasEnd = true, true
	st.BeginMonoNS, st.EndMonoNS, st.Armed, st.Untimed = e.BeginNS, e.MonoNS, e.Armed, e.Untimed
	st.Opened, st.Dropped, st.linked = e.Opened, e.Dropped, int(e.Linked)
	a.closeIfWhole(st)
}

// countRoot counts the step itself among the received once, with its begin or,
// should that be lost, with its end.
func (a *assembler) countRoot(st *Step) {
	if !st.rootCounted {
		st.rootCounted = true
		a.received++
	}
}

// lateRoot accounts for a begin or end that came after its step closed. Of a step
// that is no longer remembered only the begin counts.
func (a *assembler) lateRoot(number uint64, begin bool) {
	c := &a.closed[number%closedMemory]
	if c.number == number {
		if c.rootCounted {
			a.engine.sum.lateEntries++
			return
		}
		c.rootCounted = true
	} else if !begin {
		a.engine.sum.lateEntries++
		return
	}
	a.received++
	a.drop(DropLate)
}

// drop accounts for a unit that was just received.
func (a *assembler) drop(r DropReason) {
	a.flush()
	a.engine.ledger.Drop(r, 1)
}

// flush tells the ledger what was received since the last time.
func (a *assembler) flush() {
	if a.received > 0 {
		a.engine.ledger.Receive(a.received)
		a.received = 0
	}
}

// step is the open step of that number, opened if need be and touched; nil when
// it has closed before.
func (a *assembler) step(number uint64) *Step {
	if st, ok := a.open[number]; ok {
		st.touchedNS = a.nowNS
		st.firstSeq = min(st.firstSeq, a.seq)
		if a.touched.newest != st {
			a.touched.remove(st)
			a.touched.add(st)
		}
		return st
	}
	if a.closed[number%closedMemory].number >= number {
		return nil
	}
	for len(a.open) >= a.o.MaxOpenSteps {
		a.close(a.touched.oldest, IncompleteEvicted)
	}
	var st *Step
	if n := len(a.free); n > 0 {
		st, a.free = a.free[n-1], a.free[:n-1]
	} else {
		st = new(Step)
	}
	st.Engine, st.Number, st.touchedNS, st.firstSeq = a.engine, number, a.nowNS, a.seq
	a.open[number] = st
	a.touched.add(st)
	return st
}

func (a *assembler) closeIfWhole(st *Step) {
	if st.HasEnd && st.landed+st.FailedCount >= int(st.Opened) {
		a.close(st, Complete)
	}
}

// close takes st out of the open steps and makes it ready.
func (a *assembler) close(st *Step, r IncompleteReason) {
	delete(a.open, st.Number)
	a.touched.remove(st)
	a.openSpans -= len(st.Spans)
	// The later one stays: an earlier one is told by it too.
	if c := &a.closed[st.Number%closedMemory]; c.number < st.Number {
		*c = closedStep{st.Number, st.rootCounted}
	}

	st.Incomplete = r
	st.ClosedMonoNS = a.nowNS
	st.WallOffsetNS = a.wallOffsetNS
	byOrdinal := func(x, y Span) int { return cmp.Compare(x.Ordinal, y.Ordinal) }
	if !slices.IsSortedFunc(st.Spans, byOrdinal) {
		slices.SortStableFunc(st.Spans, byOrdinal)
	}
	// An ordinal names one span: a second one cannot be.
	kept := slices.CompactFunc(st.Spans, func(x, y Span) bool { return x.Ordinal == y.Ordinal })
	for range len(st.Spans) - len(kept) {
		a.drop(DropMalformed)
	}
	st.Spans = kept
	for i := range st.Spans {
		sp := &st.Spans[i]
		switch {
		case sp.Kind == spanring.KindLane:
			sp.LaneText = sp.Text
		case sp.Parent != 0:
			sp.LaneText = a.lanes[sp.Lane]
		}
	}
	a.derive.derive(st)
	a.ready = append(a.ready, st)
}

// expire closes the steps of which nothing has come for the time-out.
func (a *assembler) expire() {
	limit := a.o.StepTimeout.Nanoseconds()
	for a.touched.oldest != nil && a.nowNS-a.touched.oldest.touchedNS >= limit {
		a.close(a.touched.oldest, IncompleteTimeout)
	}
}

func (a *assembler) closeAll(r IncompleteReason) {
	for a.touched.oldest != nil {
		a.close(a.touched.oldest, r)
	}
}

// recycle takes back steps that were handed over.
func (a *assembler) recycle() {
	for i, st := range a.ready {
		if len(a.free) < freeSteps && cap(st.Spans) <= keepSpans {
			st.reset()
			a.free = append(a.free, st)
		}
		a.ready[i] = nil
	}
	a.ready = a.ready[:0]
}
