//go:build cgo

package cuda

import (
	"maps"
	"runtime/cgo"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lanetrace/lanetrace/backend"
)

// hasStream reports whether s can be passed to the driver, which does not look
// before it reads what a handle points to.
func (g *GPU) hasStream(s backend.Stream) bool {
	_, ok := (*g.streams.Load())[s]
	return ok
}

func (g *GPU) hasEvent(e backend.Event) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.events[e]
	return ok
}

// onStream is call for an operation on a stream.
func (g *GPU) onStream(s backend.Stream, f func() Result) Result {
	if !g.acquire() {
		return ErrDeinitialized
	}
	defer g.release()
	if !g.hasStream(s) {
		return ErrInvalidHandle
	}
	return f()
}

// changeStreams replaces the set of streams. The caller holds mu.
func (g *GPU) changeStreams(f func(streamSet)) { change(&g.streams, f) }

// changeOwn replaces the set of telemetry's streams.
func (g *GPU) changeOwn(f func(streamSet)) {
	g.mu.Lock()
	change(&g.own, f)
	g.mu.Unlock()
}

func change(p *atomic.Pointer[streamSet], f func(streamSet)) {
	next := maps.Clone(*p.Load())
	f(next)
	p.Store(&next)
}

// DefaultStream is a non-blocking stream, the same one for every GPU that this
// process has opened on the device.
func (g *GPU) DefaultStream() backend.Stream { return g.host }

// CreateStream makes a non-blocking stream.
func (g *GPU) CreateStream() (s backend.Stream, err error) {
	if r := g.call(func() Result {
		g.mu.Lock()
		defer g.mu.Unlock()
		h, r := g.ctx.streamCreate()
		if r != Success {
			return r
		}
		s = h
		g.lastSerial++
		g.changeStreams(func(m streamSet) { m[s] = g.lastSerial })
		return Success
	}); r != Success {
		err = g.fail(r, "create stream")
	}
	return s, err
}

// DestroyStream gives a stream back to the driver, which may hand its handle out
// again; what is queued on it still happens. A capture of it is lost.
func (g *GPU) DestroyStream(s backend.Stream) error {
	if r := g.onStream(s, func() Result {
		if s == 0 || s == g.host {
			return ErrInvalidHandle
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		if !g.hasStream(s) { // somebody was faster
			return ErrInvalidHandle
		}
		if _, ok := g.captures[s]; ok {
			g.ctx.captureAbort(s)
			g.giveUp(g.dropCapture(s))
		}
		g.leave(s)
		// From here on launches are refused, before the handle goes.
		g.changeStreams(func(m streamSet) { delete(m, s) })
		r := g.ctx.streamDestroy(s)
		g.dev.StreamDestroyed(s)
		return r
	}); r != Success {
		return g.fail(r, "destroy stream %#x", s)
	}
	return nil
}

// leaving is a destroyed stream.
type leaving struct {
	stream backend.Stream // its handle may be another's by now
	end    backend.Event  // behind its work, 0 where none could be recorded
	kept   []cgo.Handle   // of pinned memory that its copies need
}

// leave remembers the end of a stream's work and the memory that it needs, for when
// the stream is gone. The caller holds mu.
func (g *GPU) leave(s backend.Stream) {
	g.sweepLeaving()
	l := leaving{stream: s, kept: g.kept[s]}
	delete(g.kept, s)
	if !g.ctx.streamCapturing(s) {
		if e, r := g.ctx.eventCreate(); r == Success {
			if g.ctx.eventRecord(e, s) == Success {
				l.end = e
			} else {
				_ = g.ctx.eventDestroy(e)
			}
		}
	}
	// Without an end the memory stays until Close.
	if l.end != 0 || len(l.kept) > 0 {
		g.leaving = append(g.leaving, l)
	}
}

// sweepLeaving forgets the destroyed streams whose work is done. The caller holds mu.
func (g *GPU) sweepLeaving() {
	g.leaving = slices.DeleteFunc(g.leaving, func(l leaving) bool {
		if l.end == 0 || g.ctx.stagedDone(l.end, false) != Success {
			return false
		}
		_ = g.ctx.eventDestroy(l.end)
		g.letGo(l.kept)
		return true
	})
}

// awaitLeaving waits for the work of destroyed streams that had the handle s, or until
// the context has failed.
func (g *GPU) awaitLeaving(s backend.Stream) {
	for gone := false; !gone; {
		g.mu.Lock()
		g.sweepLeaving()
		gone = !slices.ContainsFunc(g.leaving, func(l leaving) bool {
			return l.stream == s && l.end != 0 && g.ctx.stagedDone(l.end, false) == ErrNotReady
		})
		g.mu.Unlock()
		if !gone {
			time.Sleep(closePoll)
		}
	}
}

// Synchronize blocks until all work queued on a stream is complete. On a
// capturing stream the driver refuses and spoils the capture.
func (g *GPU) Synchronize(s backend.Stream) error {
	if r := g.onStream(s, func() Result {
		kept := g.takeKept(s)
		r := g.ctx.streamSync(s)
		g.waitedFor(s, kept, r)
		return r
	}); r != Success {
		return g.fail(r, "synchronize stream %#x", s)
	}
	return nil
}

// CreateEvent makes an event for ordering, which carries no time stamp.
func (g *GPU) CreateEvent() (e backend.Event, err error) {
	if r := g.call(func() Result {
		h, r := g.ctx.eventCreate()
		if r != Success {
			return r
		}
		e = h
		g.mu.Lock()
		g.events[e] = struct{}{}
		g.mu.Unlock()
		return Success
	}); r != Success {
		err = g.fail(r, "create event")
	}
	return e, err
}

// DestroyEvent destroys an event; what waits for it still does.
func (g *GPU) DestroyEvent(e backend.Event) error {
	if r := g.call(func() Result {
		g.mu.Lock()
		_, ok := g.events[e]
		delete(g.events, e)
		g.mu.Unlock()
		if !ok {
			return ErrInvalidHandle
		}
		return g.ctx.eventDestroy(e)
	}); r != Success {
		return g.fail(r, "destroy event %#x", e)
	}
	return nil
}

// RecordEvent records an event at the current end of a stream's work.
func (g *GPU) RecordEvent(e backend.Event, s backend.Stream) error {
	if r := g.onStream(s, func() Result {
		if !g.hasEvent(e) {
			return ErrInvalidHandle
		}
		return g.ctx.eventRecord(e, s)
	}); r != Success {
		return g.fail(r, "record event %#x on stream %#x", e, s)
	}
	return nil
}

// StreamWaitEvent makes what is enqueued on a stream from now on wait for the
// event's last record.
func (g *GPU) StreamWaitEvent(s backend.Stream, e backend.Event) error {
	if r := g.onStream(s, func() Result {
		if !g.hasEvent(e) {
			return ErrInvalidHandle
		}
		return g.ctx.streamWait(s, e)
	}); r != Success {
		return g.fail(r, "make stream %#x wait for event %#x", s, e)
	}
	return nil
}

// EventQuery reports whether the work before an event is complete. It never
// blocks. While somebody captures in mode GLOBAL the driver refuses it and spoils
// the capture.
func (g *GPU) EventQuery(e backend.Event) (bool, error) {
	done := false
	var err error
	if r := g.call(func() Result {
		if !g.hasEvent(e) {
			return ErrInvalidHandle
		}
		r := g.ctx.eventQuery(e)
		done = r == Success
		if r == ErrNotReady {
			return Success
		}
		return r
	}); r != Success {
		err = g.fail(r, "query event %#x", e)
	}
	return done, err
}

// EventSynchronize blocks until the work before an event is complete.
func (g *GPU) EventSynchronize(e backend.Event) error {
	if r := g.call(func() Result {
		if !g.hasEvent(e) {
			return ErrInvalidHandle
		}
		return g.ctx.eventSync(e)
	}); r != Success {
		return g.fail(r, "wait for event %#x", e)
	}
	return nil
}
