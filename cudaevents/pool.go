package cudaevents

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// pool is the event pairs of a recorder and what the process knows of each slot
// beyond the ring's slot table.
type pool struct {
	cells  []cell
	events []Event // all of them: two a cell, then the anchors'
	slots  spanring.Slots
	own    Stream // ours, for anchors and calibration
	closed atomic.Bool

	_      [64]byte // every taker writes the cursor
	cursor atomic.Uint64
	_      [56]byte
}

// cell is a slot's part in Go memory, a cache line. It belongs to the slot's
// owner; only started is read by others.
type cell struct {
	pair   Pair    // the slot's own events, fixed
	stream *stream // where the span was begun
	wait   Event   // DRAIN: the last event recorded

	// started is the generation whose start the driver has accepted. Until then a
	// slot is in the hands of a caller inside the driver, and nobody else may
	// abandon it: its events are about to be recorded.
	started atomic.Uint32
	next    uint32 // queue link: slot + 1, 0 at the end
	// shared is the slot + 1 whose end event is this span's start; that slot stays
	// taken as long as this one is. held says that this slot's end is shared so,
	// done that its own span is accounted for.
	shared uint32
	held   bool
	done   bool

	_ [16]byte
}

// captureWait bounds how long EnsurePool waits for captures to end.
const (
	captureWait = 50 * time.Millisecond
	capturePoll = time.Millisecond
)

// EnsurePool makes the event pairs and the recorder's own stream, and finds the
// machine's constant; from then on spans are recorded. Once it has succeeded it
// does nothing. It blocks: a millisecond a thousand pairs, and some ten more for
// Options.Calibrate, a second at the worst. While a capture is active it waits 50 ms at most and then returns
// ErrCapturing: the pool is made by a later Harvest or call. When the driver
// refuses, spans stay off for good: that is counted and logged once, and the same
// error comes back from every later call.
func (r *Recorder) EnsurePool() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wanted.Store(true)
	return r.ensurePool(captureWait)
}

// ensurePool is EnsurePool under mu, waiting for captures at most wait.
func (r *Recorder) ensurePool(wait time.Duration) error {
	switch {
	case r.closed:
		return fmt.Errorf("make the pool of context %d: %w", r.index, ErrClosed)
	case r.pool.Load() != nil:
		return nil
	case r.poolErr != nil:
		return r.poolErr
	}
	for end := time.Now().Add(wait); r.drv.Capturing(); time.Sleep(capturePoll) {
		if !time.Now().Before(end) {
			return fmt.Errorf("make the pool of context %d: %w", r.index, ErrCapturing)
		}
	}
	p, err := r.makePool()
	if err != nil {
		r.poolErr = fmt.Errorf("make %d event pairs on %s: %w", r.o.Pairs, r.device.Name, err)
		r.w.Add(spanring.CtrPoolsFailed, 1)
		r.log.Warn("GPU spans are off: no pool of event pairs", "context", r.index, "error", r.poolErr)
		return r.poolErr
	}
	c := r.constant(p.own)
	r.state.Calibration, r.state.ConstantNS, r.state.SpreadNS = c.state, c.constantNS, c.spreadNS
	r.shallowNS = c.shallowNS
	r.state.UpdatedMonoNS = r.now()
	r.w.SetContext(&r.state)
	r.publishClock()
	r.wanted.Store(false)
	r.pool.Store(p)
	return nil
}

// makePool makes all that needs the driver, or nothing.
func (r *Recorder) makePool() (*pool, error) {
	own, err := r.drv.CreateStream()
	r.count(1)
	if err != nil {
		return nil, fmt.Errorf("create a stream: %w", err)
	}
	n := r.o.Pairs
	events := make([]Event, 2*n+anchorEvents)
	err = r.drv.CreateEvents(events)
	r.count(len(events))
	if err != nil {
		derr := r.drv.DestroyStream(own)
		r.count(1)
		return nil, errors.Join(fmt.Errorf("create %d events: %w", len(events), err), derr)
	}
	p := &pool{cells: make([]cell, n), events: events, slots: r.slots, own: own}
	for i := range p.cells {
		p.cells[i].pair = Pair{events[2*i], events[2*i+1]}
	}
	r.anchors.init(events[2*n:])
	return p, nil
}

// take hands out the next slot in turn, in state DRAIN until open. A slot that is
// not free drops the span and counts it.
func (r *Recorder) take(p *pool) (i, gen uint32, o Outcome) {
	i = uint32((p.cursor.Add(1) - 1) % uint64(len(p.cells)))
	w := p.slots.Word(int(i))
	gen = w.Generation() + 1
	if gen == 0 { // 0 is no handle's
		gen = 1
	}
	if w.State() != spanring.SlotFree ||
		!p.slots.CompareAndSwap(int(i), w, spanring.MakeSlotWord(gen, spanring.SlotDrain)) {
		if p.closed.Load() { // close takes every slot first
			return 0, 0, BeginOff
		}
		r.w.Add(spanring.CtrBegun, 1)
		r.w.Add(spanring.CtrDropped, 1)
		return 0, 0, BeginFull
	}
	// A closed pool's slots are free again for the recorder that replaces it: one
	// taken too late goes back. Either close saw this slot taken and waits for it,
	// or it has set closed before.
	if p.closed.Load() {
		p.release(i, gen)
		return 0, 0, BeginOff
	}
	return i, gen, BeginOK
}

// open fills a taken slot and shows it as open.
func (p *pool) open(i, gen uint32, v *spanring.Slot) {
	p.slots.Put(int(i), v)
	p.slots.Store(int(i), spanring.MakeSlotWord(gen, spanring.SlotOpen))
}

// close claims an open slot; of several who try one succeeds.
func (p *pool) close(i, gen uint32) bool {
	return uint(i) < uint(len(p.cells)) && p.slots.CompareAndSwap(int(i),
		spanring.MakeSlotWord(gen, spanring.SlotOpen), spanring.MakeSlotWord(gen, spanring.SlotClosed))
}

// drain marks an owned slot whose span is accounted for while event e of it may
// still be pending.
func (p *pool) drain(i, gen uint32, e Event) {
	p.cells[i].wait = e
	p.slots.Store(int(i), spanring.MakeSlotWord(gen, spanring.SlotDrain))
}

// release gives an owned slot back whose events are complete or were never
// recorded.
func (p *pool) release(i, gen uint32) {
	p.slots.Store(int(i), spanring.MakeSlotWord(gen, spanring.SlotFree))
}

// startEvent is the event that stamps the start of slot i.
func (p *pool) startEvent(i uint32) Event {
	c := &p.cells[i]
	if c.shared != 0 {
		return p.cells[c.shared-1].pair.End
	}
	return c.pair.Start
}

// finish gives up an owned slot whose span is accounted for and whose events are
// complete. A slot whose own end event is somebody's start stays in DRAIN until
// that one finishes too. That is nearly always later: a lane is pushed before the
// one that shares its event can be. Only a successor that is abandoned the moment
// it begins may come first.
func (p *pool) finish(i uint32) {
	c := &p.cells[i]
	c.done = true
	if pred := c.shared; pred != 0 {
		c.shared = 0
		pc := &p.cells[pred-1]
		pc.held = false
		if pc.done {
			p.free(pred - 1)
		}
	}
	if c.held {
		p.slots.Store(int(i), spanring.MakeSlotWord(p.slots.Word(int(i)).Generation(), spanring.SlotDrain))
		return
	}
	p.free(i)
}

func (p *pool) free(i uint32) {
	c := &p.cells[i]
	c.done, c.held, c.shared, c.stream, c.wait = false, false, 0, nil, 0
	p.release(i, p.slots.Word(int(i)).Generation())
}
