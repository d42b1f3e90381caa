package sim

import (
	"fmt"
	"slices"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/cudaevents"
)

// event is where a stream was when it was recorded last.
type event struct {
	timed    bool
	recorded bool
	op       *op   // the record, nil before the first and when it is known complete
	stamp    int64 // then: the GPU's clock at the record
	before   int64 // of a graph's event: by so much its record comes before op's end

	cap     *capture // recorded in this capture, at these nodes
	capLast []*node
}

func (g *GPU) newEvent(timed bool) cudaevents.Event {
	var h cudaevents.Event
	if n := len(g.freeEvents); n > 0 {
		h, g.freeEvents = g.freeEvents[n-1], g.freeEvents[:n-1]
	} else {
		g.lastEvent += 0x10
		h = g.lastEvent
	}
	g.events[h] = &event{timed: timed}
	return h
}

func (g *GPU) event(h cudaevents.Event) (*event, error) {
	if e := g.events[h]; e != nil {
		return e, nil
	}
	return nil, errInvalidHandle
}

func (g *GPU) destroyEvent(h cudaevents.Event) error {
	e, err := g.event(h)
	if err != nil {
		return err
	}
	e.set(g, nil)
	delete(g.events, h)
	g.freeEvents = append(g.freeEvents, h)
	return nil
}

// set makes o the event's last record.
func (e *event) set(g *GPU, o *op) {
	if o != nil {
		o.refs++
	}
	if e.op != nil {
		g.unref(e.op)
	}
	e.op, e.recorded, e.before, e.cap, e.capLast = o, o != nil, 0, nil, nil
}

// record records e on s, or in its capture.
func (g *GPU) record(e *event, s *stream) {
	if s.cap != nil {
		e.set(g, nil)
		e.cap, e.capLast = s.cap, slices.Clone(s.capLast)
		return
	}
	kind, cost := opMarker, int64(0)
	if e.timed {
		kind, cost = opRecord, int64(g.cfg.RecordCost)
	}
	o := g.newOp(kind)
	o.durNS = cost
	g.enqueue(s, o)
	e.set(g, o)
}

// eventDone reports whether the work before e is done. A complete record's
// operation goes back: a pool's events would keep thousands of them.
func (g *GPU) eventDone(e *event) (bool, error) {
	switch {
	case e.cap != nil:
		e.cap.invalid = true
		return false, errCaptured
	case e.op == nil:
		return true, nil
	case !e.op.done:
		g.advance(e.op.s)
	}
	if g.sticky != 0 {
		return false, g.sticky
	}
	if !e.op.done {
		return false, nil
	}
	e.stamp = e.op.stamp
	if e.before > 0 {
		e.stamp = g.stamp(e.op.endNS - e.before)
	}
	g.unref(e.op)
	e.op = nil
	return true, nil
}

// enterEvent is enter for a call on an event.
func (g *GPU) enterEvent(method string, h backend.Event) (*event, error) {
	if err := g.enter(method); err != nil {
		return nil, err
	}
	return g.event(h)
}

// CreateEvent makes an event for ordering.
func (g *GPU) CreateEvent() (backend.Event, error) {
	err := g.enter("CreateEvent")
	defer g.mu.Unlock()
	if err != nil {
		return 0, fmt.Errorf("sim: create event: %w", err)
	}
	return g.newEvent(false), nil
}

// DestroyEvent destroys an event; what waits for it still does.
func (g *GPU) DestroyEvent(h backend.Event) error {
	err := g.enter("DestroyEvent")
	defer g.mu.Unlock()
	if err == nil {
		err = g.destroyEvent(h)
	}
	if err != nil {
		return fmt.Errorf("sim: destroy event %#x: %w", h, err)
	}
	return nil
}

// RecordEvent records an event at the current end of a stream's work.
func (g *GPU) RecordEvent(h backend.Event, on backend.Stream) error {
	e, err := g.enterEvent("RecordEvent", h)
	defer g.mu.Unlock()
	var s *stream
	if err == nil {
		s, err = g.stream(on)
	}
	if err != nil {
		return fmt.Errorf("sim: record event %#x on stream %#x: %w", h, on, err)
	}
	g.record(e, s)
	return nil
}

// StreamWaitEvent makes what is enqueued on a stream from now on wait for the
// event's last record. An event recorded in a capture takes the stream into it.
func (g *GPU) StreamWaitEvent(on backend.Stream, h backend.Event) error {
	e, err := g.enterEvent("StreamWaitEvent", h)
	defer g.mu.Unlock()
	var s *stream
	if err == nil {
		s, err = g.stream(on)
	}
	if err == nil {
		err = g.waitEvent(s, e)
	}
	if err != nil {
		return fmt.Errorf("sim: make stream %#x wait for event %#x: %w", on, h, err)
	}
	return nil
}

func (g *GPU) waitEvent(s *stream, e *event) error {
	if e.cap != nil || s.cap != nil {
		return g.captureWait(s, e)
	}
	if e.op == nil || e.op.done {
		return nil
	}
	o := g.newOp(opMarker)
	o.depend(e.op)
	g.enqueue(s, o)
	return nil
}

// EventQuery reports whether the work before an event is complete.
func (g *GPU) EventQuery(h backend.Event) (bool, error) {
	e, err := g.enterEvent("EventQuery", h)
	defer g.mu.Unlock()
	var done bool
	if err == nil {
		done, err = g.eventDone(e)
	}
	if err != nil {
		return false, fmt.Errorf("sim: query event %#x: %w", h, err)
	}
	return done, nil
}

// EventSynchronize blocks until the work before an event is complete.
func (g *GPU) EventSynchronize(h backend.Event) error {
	e, err := g.enterEvent("EventSynchronize", h)
	defer g.mu.Unlock()
	if err == nil {
		if _, err = g.eventDone(e); err == nil {
			err = g.wait(e.op)
		}
	}
	if err != nil {
		return fmt.Errorf("sim: wait for event %#x: %w", h, err)
	}
	return nil
}
