//go:build cgo

package cuda

import (
	"sync"

	"github.com/lanetrace/lanetrace/backend"
)

// stager is page-locked memory that copies to the device go through, so that
// their source may be used again at once and never has to be the driver's: whether
// the driver itself copies pageable memory before it returns depends on the
// system. It is a ring; the copies that still need their part of it stand in order
// with an event behind each.
type stager struct {
	g  *GPU
	mu sync.Mutex

	buf        []byte // made when first needed
	head, tail uint64 // bytes ever handed out, and given back
	copies     []staged
	events     []backend.Event // to use again
}

type staged struct {
	end  uint64 // head behind it
	done backend.Event
}

// stageAlign keeps copies on cache lines of their own.
const stageAlign = 64

func (st *stager) init(g *GPU) { st.g = g }

// copy enqueues copies of src in pieces that leave room for others. It waits, for
// the oldest copy in the ring, when the ring is full.
func (st *stager) copy(dst backend.DevicePtr, src []byte, s backend.Stream) Result {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.buf == nil {
		b, r := st.g.ctx.hostAlloc(st.g.cfg.StagingBytes)
		if r != Success {
			return r
		}
		st.buf = b
	}
	piece := len(st.buf) / 4
	for len(src) > 0 {
		n := min(len(src), piece)
		if r := st.put(dst, src[:n], s); r != Success {
			return r
		}
		dst, src = dst+backend.DevicePtr(n), src[n:]
	}
	return Success
}

func (st *stager) put(dst backend.DevicePtr, src []byte, s backend.Stream) Result {
	size := uint64(len(st.buf))
	need := uint64(len(src)+stageAlign-1) &^ (stageAlign - 1)
	at := st.head % size
	if at+need > size { // a piece is never split: what is left there is skipped
		need += size - at
		at = 0
	}
	for st.head+need-st.tail > size {
		if r := st.reclaim(true); r != Success {
			return r
		}
	}
	e, r := st.event()
	if r != Success {
		return r
	}
	part := st.buf[at:][:len(src)]
	copy(part, src)
	if r := st.g.ctx.copyHtoDStaged(dst, part, s, e); r != Success {
		st.events = append(st.events, e)
		return r
	}
	st.head += need
	st.copies = append(st.copies, staged{st.head, e})
	return Success
}

// reclaim takes back the oldest copy's part, with block once it is complete.
func (st *stager) reclaim(block bool) Result {
	c := st.copies[0]
	r := st.g.ctx.stagedDone(c.done, block)
	if r != Success {
		return r
	}
	st.tail = c.end
	st.copies = st.copies[:copy(st.copies, st.copies[1:])]
	st.events = append(st.events, c.done)
	return Success
}

// event is an event to record behind a copy: one that was used before, if the
// oldest copy is complete.
func (st *stager) event() (backend.Event, Result) {
	if len(st.events) == 0 && len(st.copies) > 0 {
		if r := st.reclaim(false); r != Success && r != ErrNotReady {
			return 0, r
		}
	}
	if n := len(st.events); n > 0 {
		e := st.events[n-1]
		st.events = st.events[:n-1]
		return e, Success
	}
	return st.g.ctx.eventCreate()
}

// free frees everything. No copy is in flight.
func (st *stager) free(check func(r Result, op string, args ...any)) {
	for _, c := range st.copies {
		st.events = append(st.events, c.done)
	}
	for _, e := range st.events {
		check(st.g.ctx.eventDestroy(e), "destroy a staging event")
	}
	if st.buf != nil {
		check(st.g.ctx.hostFree(st.buf), "free %d bytes of staging memory", len(st.buf))
	}
	st.buf, st.copies, st.events = nil, nil, nil
}

// CopyHtoDAsync enqueues a copy of what src holds now; src may be reused as soon
// as it returns. It waits for earlier such copies when Config.StagingBytes of them
// are in flight. In a capture the graph keeps a copy of src of its own.
func (g *GPU) CopyHtoDAsync(dst backend.DevicePtr, src []byte, s backend.Stream) error {
	if len(src) == 0 {
		return nil
	}
	if r := g.onStream(s, func() Result {
		r := g.stage.copy(dst, src, s)
		if r == capturing {
			r = g.copyCaptured(dst, src, s)
		}
		return r
	}); r != Success {
		return g.fail(r, "copy %d bytes to %#x on stream %#x", len(src), dst, s)
	}
	return nil
}

// copyCaptured copies from memory that lives as long as the graph.
func (g *GPU) copyCaptured(dst backend.DevicePtr, src []byte, s backend.Stream) Result {
	b, r := g.ctx.hostAlloc(len(src))
	if r != Success {
		return r
	}
	copy(b, src)
	g.mu.Lock()
	defer g.mu.Unlock()
	if r = g.ctx.copyHtoDCaptured(dst, b, s); r != Success {
		_ = g.ctx.hostFree(b)
		return r
	}
	c := g.captures[s]
	if c == nil && len(g.captures) == 1 {
		// A stream that joined the only capture there is.
		for _, c = range g.captures {
		}
	}
	if c == nil {
		g.orphans = append(g.orphans, b) // freed when the GPU is closed
	} else {
		c.held = append(c.held, b)
	}
	return Success
}
