//go:build cgo

package cuda

import (
	"github.com/lanetrace/lanetrace/cudaevents"
)

// driver is the context as telemetry sees it. Its calls are counted all, those
// that bind the context included, except for a timed launch, which binds it
// anyway.
type driver struct{ g *GPU }

// gone is what calls on a released context give.
const gone = cudaevents.Result(ErrDeinitialized)

func (d driver) call(f func() Result, op string, args ...any) error {
	r := ErrDeinitialized
	if !d.g.released.Load() {
		r = f()
	}
	if r == Success {
		return nil
	}
	return d.g.fail(r, op, args...)
}

func (d driver) CreateEvents(dst []cudaevents.Event) error {
	return d.call(func() Result { return d.g.ctx.telEventsCreate(dst) }, "create %d timing events", len(dst))
}

func (d driver) DestroyEvents(events []cudaevents.Event) error {
	return d.call(func() Result { return d.g.ctx.telEventsDestroy(events) }, "destroy %d timing events", len(events))
}

func (d driver) CreateStream() (s cudaevents.Stream, err error) {
	err = d.call(func() Result {
		h, r := d.g.ctx.telStreamCreate()
		if r == Success {
			s = h
			d.g.changeOwn(func(m streamSet) { m[s] = 0 })
		}
		return r
	}, "create telemetry's stream")
	return s, err
}

func (d driver) DestroyStream(s cudaevents.Stream) error {
	return d.call(func() Result {
		if _, ok := (*d.g.own.Load())[s]; !ok {
			return ErrInvalidHandle
		}
		d.g.changeOwn(func(m streamSet) { delete(m, s) })
		return d.g.ctx.telStreamDestroy(s)
	}, "destroy telemetry's stream %#x", s)
}

// knows reports whether s can be passed to the driver: a lane begun on a stale
// handle must not take the process down.
func (d driver) knows(s cudaevents.Stream) bool {
	if d.g.hasStream(s) {
		return true
	}
	_, ok := (*d.g.own.Load())[s]
	return ok
}

const unknownStream = cudaevents.Result(ErrInvalidHandle)

// StreamID asks the driver, or where it cannot say numbers the streams made by
// this backend.
func (d driver) StreamID(s cudaevents.Stream) (id uint64, err error) {
	err = d.call(func() (r Result) {
		if !d.knows(s) {
			return ErrInvalidHandle
		}
		if d.g.lib.features()&hasStreamID != 0 {
			id, r = d.g.ctx.telStreamID(s)
			return r
		}
		id = (*d.g.streams.Load())[s]
		if id == 0 {
			return ErrInvalidHandle
		}
		return Success
	}, "identify stream %#x", s)
	return id, err
}

func (d driver) Record(e cudaevents.Event, s cudaevents.Stream) cudaevents.Recorded {
	if d.g.released.Load() {
		return cudaevents.Recorded{Result: gone}
	}
	if !d.knows(s) {
		return cudaevents.Recorded{Result: unknownStream}
	}
	return d.g.ctx.telRecord(e, s)
}

// RecordExternal records an event of a graph's lane.
func (d driver) RecordExternal(e cudaevents.Event, s cudaevents.Stream) cudaevents.Result {
	if d.g.released.Load() {
		return gone
	}
	if !d.knows(s) {
		return unknownStream
	}
	return d.g.ctx.telRecordExternal(e, s)
}

func (d driver) Elapsed(anchor cudaevents.Event, pairs []cudaevents.Pair, out []cudaevents.Times) (n int, r cudaevents.Result, calls int) {
	if d.g.released.Load() {
		return 0, gone, 0
	}
	if len(out) < len(pairs) {
		pairs = pairs[:len(out)]
	}
	return d.g.ctx.telElapsed(anchor, pairs, out)
}

func (d driver) Pending(e cudaevents.Event) cudaevents.Result {
	if d.g.released.Load() {
		return gone
	}
	return d.g.ctx.telPending(e)
}

func (d driver) Since(a, b cudaevents.Event) (float32, cudaevents.Result) {
	if d.g.released.Load() {
		return 0, gone
	}
	return d.g.ctx.telSince(a, b)
}

func (d driver) Anchor(e cudaevents.Event, s cudaevents.Stream, boundNS int64) cudaevents.AnchorTry {
	if d.g.released.Load() {
		return cudaevents.AnchorTry{Result: gone}
	}
	if !d.knows(s) {
		return cudaevents.AnchorTry{Result: unknownStream}
	}
	return d.g.ctx.telAnchor(e, s, boundNS)
}

// Capturing knows of captures begun through the backend.
func (d driver) Capturing() bool { return d.g.active.Load() > 0 }

// spinKernel is the calibration's kernel, loaded when it is first needed.
type spinKernel struct{ module, fn uintptr }

func (d driver) Spin(s cudaevents.Stream, cycles uint64) error {
	return d.SpinPair(s, cycles, cudaevents.Pair{})
}

func (d driver) SpinPair(s cudaevents.Stream, cycles uint64, p cudaevents.Pair) error {
	return d.call(func() Result {
		if !d.knows(s) {
			return ErrInvalidHandle
		}
		sp, r := d.spinKernel()
		if r != Success {
			return r
		}
		return d.g.ctx.telSpin(sp.fn, s, cycles, p)
	}, "spin for %d cycles on stream %#x", cycles, s)
}

func (d driver) spinKernel() (*spinKernel, Result) {
	if sp := d.g.spin.Load(); sp != nil {
		return sp, Success
	}
	d.g.spinMu.Lock()
	defer d.g.spinMu.Unlock()
	if sp := d.g.spin.Load(); sp != nil {
		return sp, Success
	}
	m, fn, r := d.g.ctx.telSpinLoad()
	if r != Success {
		return nil, r
	}
	sp := &spinKernel{m, fn}
	d.g.spin.Store(sp)
	return sp, Success
}

func (d driver) Device() cudaevents.Device {
	i := &d.g.info
	return cudaevents.Device{Name: i.name, UUID: i.uuid, MIG: i.mig, Ordinal: d.g.cfg.Ordinal, Capability: i.capability}
}
