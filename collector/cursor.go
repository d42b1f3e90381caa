package collector

import (
	"errors"
	"fmt"
	"slices"

	"github.com/lanetrace/lanetrace/spanring"
)

// Cursor is how far a run has been read and handed on. A reader that begins there
// hands on every step that the one before did not, and none that it did: entries that
// both read are told apart by their steps.
type Cursor struct {
	// From is where to read on: the first entry of the oldest step that was open.
	From uint64
	// Next is the first sequence number that had not been looked at.
	Next uint64
	// Holes lie before Next and had not come yet, at most maxCursorHoles.
	Holes []uint64
	// Closed are the steps that closed last, ascending, no more than closedMemory.
	Closed []StepRange
	// Ended says that the engine was seen to have ended.
	Ended bool
}

// StepRange is the steps from number First to number Last, both included.
type StepRange struct{ First, Last uint64 }

const maxCursorHoles = 64

var errCursor = errors.New("cursor that cannot be")

// check refuses what no reader of a run of which so much is published has left.
func (c *Cursor) check(published uint64) error {
	n, last := uint64(0), uint64(0)
	for _, r := range c.Closed {
		if r.First <= last || r.Last < r.First || r.Last-r.First >= closedMemory {
			return fmt.Errorf("%w: steps %d to %d after step %d", errCursor, r.First, r.Last, last)
		}
		if n += r.Last - r.First + 1; n > closedMemory {
			return fmt.Errorf("%w: more than %d closed steps", errCursor, closedMemory)
		}
		last = r.Last
	}
	if c.From > c.Next || c.Next > published {
		return fmt.Errorf("%w: from %d, next %d, and %d are published", errCursor, c.From, c.Next, published)
	}
	if len(c.Holes) > maxCursorHoles || slices.ContainsFunc(c.Holes, func(h uint64) bool { return h < c.From || h >= c.Next }) {
		return fmt.Errorf("%w: %d holes between %d and %d", errCursor, len(c.Holes), c.From, c.Next)
	}
	return nil
}

// resume takes over what an earlier reader knew; c may be nil.
func (a *assembler) resume(c *Cursor) {
	if c == nil {
		return
	}
	a.resumeNext, a.resumeHoles = c.Next, c.Holes
	for _, r := range c.Closed {
		for n := r.First; ; n++ {
			a.closed[n%closedMemory] = closedStep{n, true}
			if n == r.Last {
				break
			}
		}
	}
}

// wasRead reports whether an earlier reader had read the entry of that number.
func (a *assembler) wasRead(seq uint64) bool {
	return seq < a.resumeNext && !slices.Contains(a.resumeHoles, seq)
}

// unread leaves out of a batch what an earlier reader read and is done with: the
// entries of steps that it handed on, and those that belong to no step. Their spans
// are received again, and not selected.
func (a *assembler) unread(batch []spanring.Entry) []spanring.Entry {
	if !slices.ContainsFunc(batch, func(e spanring.Entry) bool { return e.Seq < a.resumeNext }) {
		return batch
	}
	out, spans := batch[:0], 0
	for i := range batch {
		e := &batch[i]
		if step := e.Words.Step(); !a.wasRead(e.Seq) || step != 0 && !a.handedOn(step) {
			out = append(out, *e)
			continue
		}
		switch e.Words.Kind() {
		case spanring.KindRequestEnd:
			if r, err := e.Words.RequestEnd(); err == nil && r.Sampled() {
				a.requests.wasOver(&r)
			}
			spans++
		case spanring.KindLane, spanring.KindKernel, spanring.KindGraph, spanring.KindStepBegin:
			spans++
		}
	}
	a.engine.ledger.readAgain(len(batch) - len(out))
	if spans > 0 {
		a.engine.ledger.Receive(spans)
		a.engine.ledger.NotSelect(NotAgain, spans)
	}
	return out
}

// handedOn reports whether the step of that number has closed.
func (a *assembler) handedOn(number uint64) bool {
	return a.open[number] == nil && a.closed[number%closedMemory].number >= number
}

// resumable reports whether a later reader can take an open step over: it must not
// look like one that closed long ago.
func (a *assembler) resumable(st *Step) bool {
	return a.closed[st.Number%closedMemory].number < st.Number
}

// unsettled is a source that can be read on after a restart.
type unsettled interface {
	Unsettled(dst []uint64) (next uint64, holes []uint64)
}

// cursor is where reading stands after the last Poll; ok is false of a source that
// cannot be read on.
func (p *Processor) cursor() (c Cursor, ok bool) {
	src, ok := p.src.(unsettled)
	if !ok {
		return c, false
	}
	a := p.asm
	c.Next, c.Holes = src.Unsettled(make([]uint64, 0, maxCursorHoles))
	c.From = min(c.Next, p.leftFrom)
	for _, h := range c.Holes {
		c.From = min(c.From, h)
	}
	for _, st := range a.open {
		if a.resumable(st) {
			c.From = min(c.From, st.firstSeq)
		}
	}
	numbers := make([]uint64, 0, closedMemory)
	for i := range a.closed {
		if n := a.closed[i].number; n != 0 {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		if k := len(c.Closed) - 1; k >= 0 && c.Closed[k].Last+1 == n {
			c.Closed[k].Last = n
			continue
		}
		c.Closed = append(c.Closed, StepRange{n, n})
	}
	return c, true
}

// leave takes the open steps that a later reader can take over out of the account:
// closed as incomplete here, they would come to be exported twice.
func (p *Processor) leave() {
	if _, ok := p.src.(unsettled); !ok {
		return
	}
	a := p.asm
	for st := a.touched.oldest; st != nil; {
		next := st.newer
		if a.resumable(st) {
			p.leftFrom = min(p.leftFrom, st.firstSeq)
			delete(a.open, st.Number)
			a.touched.remove(st)
			a.openSpans -= len(st.Spans)
			p.engine.ledger.NotSelect(NotLeft, st.Units())
		}
		st = next
	}
}

// cursorEvery is how often Run tells where it stands, in ns.
const cursorEvery = 500_000_000

// saveCursor tells where reading stands: when it is due and has moved, and at last.
func (p *Processor) saveCursor(last bool) {
	if p.o.SaveCursor == nil || !last && p.asm.nowNS-p.savedNS < cursorEvery {
		return
	}
	c, ok := p.cursor()
	if !ok || !last && p.savedNS != 0 && c.Next == p.savedNext {
		return
	}
	c.Ended = p.engine.State() != EngineLive
	p.savedNS, p.savedNext = p.asm.nowNS, c.Next
	p.o.SaveCursor(c)
}
