package sim

import (
	"fmt"
	"time"

	"github.com/lanetrace/lanetrace/cudaevents"
)

// driver is the GPU as telemetry sees it. It counts the calls that the same
// thing takes of a real driver.
type driver struct{ g *GPU }

var _ cudaevents.Driver = driver{}

func (d driver) enter(method string) error {
	d.g.mu.Lock()
	return d.g.fault(method)
}

func (d driver) CreateEvents(dst []cudaevents.Event) error {
	err := d.enter("CreateEvents")
	defer d.g.mu.Unlock()
	if err != nil {
		return fmt.Errorf("sim: create %d events: %w", len(dst), err)
	}
	for i := range dst {
		dst[i] = d.g.newEvent(true)
	}
	return nil
}

func (d driver) DestroyEvents(events []cudaevents.Event) error {
	err := d.enter("DestroyEvents")
	defer d.g.mu.Unlock()
	for _, e := range events {
		if err == nil {
			err = d.g.destroyEvent(e)
		}
	}
	if err != nil {
		return fmt.Errorf("sim: destroy %d events: %w", len(events), err)
	}
	return nil
}

func (d driver) CreateStream() (cudaevents.Stream, error) {
	err := d.enter("CreateStream")
	defer d.g.mu.Unlock()
	if err != nil {
		return 0, fmt.Errorf("sim: create stream: %w", err)
	}
	return d.g.startStream(d.g.streamHandle()).handle, nil
}

func (d driver) DestroyStream(h cudaevents.Stream) error {
	err := d.enter("DestroyStream")
	defer d.g.mu.Unlock()
	var s *stream
	if err == nil {
		s, err = d.g.stream(h)
	}
	if err != nil {
		return fmt.Errorf("sim: destroy stream %#x: %w", h, err)
	}
	d.g.destroyStream(s)
	return nil
}

// StreamID spoils the capture of a stream that is asked while it captures, as the
// CUDA driver does.
func (d driver) StreamID(h cudaevents.Stream) (uint64, error) {
	err := d.enter("StreamID")
	defer d.g.mu.Unlock()
	var s *stream
	if err == nil {
		s, err = d.g.stream(h)
	}
	if err == nil && s.cap != nil {
		s.cap.invalid = true
		err = errCapture
	}
	if err != nil {
		return 0, fmt.Errorf("sim: identify stream %#x: %w", h, err)
	}
	return s.id, nil
}

// RecordExternal records an event of a graph's lane in the capture of h.
func (d driver) RecordExternal(ev cudaevents.Event, h cudaevents.Stream) cudaevents.Result {
	d.g.mu.Lock()
	defer d.g.mu.Unlock()
	if err := d.g.fault("RecordExternal"); err != nil {
		return result(err)
	}
	s, err := d.g.stream(h)
	if err != nil {
		return result(err)
	}
	e, err := d.g.event(ev)
	if err != nil {
		return result(err)
	}
	if s.cap == nil {
		return result(errInvalidValue)
	}
	return result(s.cap.add(s, &node{event: e, durNS: int64(d.g.cfg.RecordCost)}))
}

func (d driver) Record(e cudaevents.Event, h cudaevents.Stream) cudaevents.Recorded {
	r := cudaevents.Recorded{Calls: 1}
	err := d.enter("StreamIsCapturing")
	defer d.g.mu.Unlock()
	var s *stream
	if err == nil {
		s, err = d.g.stream(h)
	}
	if err != nil || s.cap != nil {
		r.Capturing = true
		return r
	}
	r.Calls = 2
	var ev *event
	if err = d.g.fault("Record"); err == nil {
		ev, err = d.g.event(e)
	}
	if err != nil {
		r.Result = result(err)
		return r
	}
	d.g.record(ev, s)
	return r
}

// timing is the event as something that carries a stamp.
func (d driver) timing(h cudaevents.Event) (*event, error) {
	e, err := d.g.event(h)
	if err != nil {
		return nil, err
	}
	if !e.timed || !e.recorded {
		return nil, errInvalidHandle
	}
	done, err := d.g.eventDone(e)
	if err == nil && !done {
		err = errNotReady
	}
	return e, err
}

// since is from a to b on the GPU's clock.
func (d driver) since(a, b cudaevents.Event) (float32, error) {
	from, err := d.timing(a)
	if err != nil && err != errNotReady {
		return 0, err
	}
	to, err2 := d.timing(b)
	if err2 != nil {
		return 0, err2
	}
	if err != nil {
		return 0, err
	}
	return float32(float64(to.stamp-from.stamp) / 1e6), nil
}

func (d driver) Elapsed(anchor cudaevents.Event, pairs []cudaevents.Pair, out []cudaevents.Times) (n int, r cudaevents.Result, calls int) {
	for i, p := range pairs {
		err := d.enter("Elapsed")
		calls++
		t := cudaevents.Times{}
		if err == nil {
			t.DurationMS, err = d.since(p.Start, p.End)
		}
		if err == nil && anchor != 0 {
			calls++
			var serr error
			t.SinceAnchorMS, serr = d.since(anchor, p.Start)
			t.SinceResult = result(serr)
		}
		d.g.mu.Unlock()
		if err != nil {
			return i, result(err), calls
		}
		out[i] = t
	}
	return len(pairs), cudaevents.Success, calls
}

func (d driver) Pending(e cudaevents.Event) cudaevents.Result {
	err := d.enter("Pending")
	defer d.g.mu.Unlock()
	if err == nil {
		_, err = d.timing(e)
	}
	return result(err)
}

func (d driver) Since(a, b cudaevents.Event) (float32, cudaevents.Result) {
	err := d.enter("Since")
	defer d.g.mu.Unlock()
	var ms float32
	if err == nil {
		ms, err = d.since(a, b)
	}
	return ms, result(err)
}

func (d driver) Anchor(e cudaevents.Event, s cudaevents.Stream, boundNS int64) cudaevents.AnchorTry {
	try := cudaevents.AnchorTry{BeforeMonoNS: d.g.now()}
	err := d.enter("Anchor")
	d.g.mu.Unlock()
	if err != nil {
		try.Result, try.Calls = result(err), 1
		return try
	}
	rec := d.Record(e, s)
	try.Calls, try.Result = rec.Calls, rec.Result
	if rec.Capturing {
		try.Result = cudaevents.Result(errCapture)
	}
	if try.Result != cudaevents.Success {
		return try
	}
	for until := try.BeforeMonoNS + boundNS; ; {
		try.Calls++
		try.Result = d.Pending(e)
		try.AfterMonoNS = d.g.now()
		if try.Result != cudaevents.NotReady || try.AfterMonoNS >= until {
			return try
		}
		if c := d.g.cfg.Clock; c != nil {
			c.Advance(time.Duration(min(d.nextEnd(s, until), until) - try.AfterMonoNS))
		}
	}
}

// nextEnd is when the head of a stream is due, or otherwise if that is not known.
func (d driver) nextEnd(h cudaevents.Stream, otherwise int64) int64 {
	d.g.mu.Lock()
	defer d.g.mu.Unlock()
	s, err := d.g.stream(h)
	if err != nil || d.g.advance(s) != holdTime {
		return otherwise
	}
	return s.head.endNS
}

func (d driver) Capturing() bool {
	d.g.mu.Lock()
	defer d.g.mu.Unlock()
	return d.g.captures > 0
}

func (d driver) Spin(h cudaevents.Stream, cycles uint64) error {
	err := d.enter("Spin")
	defer d.g.mu.Unlock()
	var s *stream
	if err == nil {
		s, err = d.g.stream(h)
	}
	if err == nil {
		err = d.g.putSpin(s, cycles)
	}
	if err != nil {
		return fmt.Errorf("sim: spin on stream %#x: %w", h, err)
	}
	return nil
}

func (g *GPU) putSpin(s *stream, cycles uint64) error {
	if s.cap != nil {
		return errCapture
	}
	o := g.newOp(opKernel)
	o.fn, o.durNS = &noBody, g.scaled(g.spinCost(cycles))
	g.enqueue(s, o)
	return nil
}

var noBody Function

func (d driver) SpinPair(h cudaevents.Stream, cycles uint64, p cudaevents.Pair) error {
	err := d.enter("Spin")
	defer d.g.mu.Unlock()
	var s *stream
	if err == nil {
		s, err = d.g.stream(h)
	}
	var ev [2]*event
	for i, e := range []cudaevents.Event{p.Start, p.End} {
		if err == nil {
			ev[i], err = d.g.event(e)
		}
	}
	if err == nil && s.cap != nil {
		err = errCapture
	}
	if err != nil {
		return fmt.Errorf("sim: time a spin on stream %#x: %w", h, err)
	}
	d.g.record(ev[0], s)
	_ = d.g.putSpin(s, cycles)
	d.g.record(ev[1], s)
	return nil
}

func (d driver) Device() cudaevents.Device {
	c := &d.g.cfg
	return cudaevents.Device{Name: c.Name, UUID: c.UUID, Ordinal: c.Ordinal, Capability: c.Capability}
}
