package cudaevents

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// Close drains the recorder until ctx ends, fails what is then left in flight as
// closed, and frees the events and the stream. From its call on nothing begins
// (BeginOff); ends are taken until the drain is over and are stale after it. If
// ctx ended first its error is returned beside any of the driver's; the recorder
// is closed all the same and can be replaced. Events that a caller is inside the
// driver with are left alive; their spans fail when it comes back. A second Close waits
// for the first and does nothing.
func (r *Recorder) Close(ctx context.Context) error {
	r.closing.Lock()
	defer r.closing.Unlock()
	p := r.pool.Load()
	var errs []error
	if p != nil && !p.closed.Swap(true) {
		if err := r.Drain(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	r.failGraphs()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	p = r.pool.Load()
	if p == nil {
		return nil
	}
	p.closed.Store(true)
	errs = append(errs, r.shut(p))
	return errors.Join(errs...)
}

// shutWait bounds how long closing waits for callers to come back from the driver.
const (
	shutWait = 100 * time.Millisecond
	shutPoll = 100 * time.Microsecond
)

// shut takes every slot out of use, fails what is in flight and frees what the
// driver holds. The caller holds mu.
func (r *Recorder) shut(p *pool) error {
	shut := make([]bool, len(p.cells))
	left := len(p.cells)
	for end := time.Now().Add(shutWait); ; time.Sleep(shutPoll) {
		left -= r.shutQueued(p, shut)
		for i := range p.cells {
			if !shut[i] && r.shutSlot(p, uint32(i)) {
				shut[i] = true
				left--
			}
		}
		if left == 0 || !time.Now().Before(end) {
			break
		}
	}
	var free []Event
	for i, ok := range shut {
		if ok {
			free = append(free, p.cells[i].pair.Start, p.cells[i].pair.End)
		}
	}
	free = append(free, p.events[2*len(p.cells):]...)
	var errs []error
	if left > 0 {
		errs = append(errs, fmt.Errorf("close context %d: %d pairs still in use and left alive", r.index, left))
	}
	r.count(len(free) + 1)
	if err := r.drv.DestroyEvents(free); err != nil {
		errs = append(errs, fmt.Errorf("close context %d: destroy %d events: %w", r.index, len(free), err))
	}
	if err := r.drv.DestroyStream(p.own); err != nil {
		errs = append(errs, fmt.Errorf("close context %d: destroy the recorder's stream: %w", r.index, err))
	}
	// Only now may a recorder that replaces this one take the slots.
	for i, ok := range shut {
		if ok {
			p.free(uint32(i))
		}
	}
	return errors.Join(errs...)
}

// shutQueued fails what closers have pushed and takes it out of use.
func (r *Recorder) shutQueued(p *pool, shut []bool) (n int) {
	for _, st := range r.streams.Load().all {
		st.collect(p)
		for st.head != 0 {
			i := st.pop(p)
			w := p.slots.Word(int(i))
			if w.State() == spanring.SlotClosed {
				v := p.slots.Get(int(i))
				r.failed(&v, spanring.FailClosed)
				p.slots.Store(int(i), spanring.MakeSlotWord(w.Generation(), spanring.SlotDrain))
			}
			if !shut[i] {
				shut[i] = true
				n++
			}
		}
	}
	return n
}

// shutSlot takes one slot that is in no queue out of use, and reports whether it
// could: not while a caller has it.
func (r *Recorder) shutSlot(p *pool, i uint32) bool {
	w := p.slots.Word(int(i))
	c := &p.cells[i]
	switch w.State() {
	case spanring.SlotFree:
		return p.slots.CompareAndSwap(int(i), w, spanring.MakeSlotWord(w.Generation(), spanring.SlotDrain))
	case spanring.SlotOpen:
		if c.started.Load() != w.Generation() || !p.close(i, w.Generation()) {
			return false
		}
		v := p.slots.Get(int(i))
		r.failed(&v, spanring.FailClosed)
		p.slots.Store(int(i), spanring.MakeSlotWord(w.Generation(), spanring.SlotDrain))
		return true
	case spanring.SlotDrain:
		return c.done // landed, and held for one that shares its event
	}
	return false
}

// startedLate accounts for an open slot whose caller came back from the driver when the
// closing no longer waited for it.
func (r *Recorder) startedLate(p *pool, i, gen uint32, v *spanring.Slot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed || !p.close(i, gen) {
		return // the closing finds it, or its closer pushes it
	}
	r.failed(v, spanring.FailClosed)
	p.release(i, gen)
}

// pushedLate accounts for a slot that its closer pushed on a closed recorder.
func (r *Recorder) pushedLate(p *pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		return // the drain is going on, and finds it
	}
	for _, st := range r.streams.Load().all {
		st.collect(p)
		for st.head != 0 {
			i := st.pop(p)
			if w := p.slots.Word(int(i)); w.State() == spanring.SlotClosed {
				v := p.slots.Get(int(i))
				r.failed(&v, spanring.FailClosed)
			}
			p.free(i)
		}
	}
}
