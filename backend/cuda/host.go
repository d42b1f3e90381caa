//go:build cgo

package cuda

import (
	"sync"

	"github.com/lanetrace/lanetrace/backend"
)

// hostStreams are the process's default streams: one for each primary context, as
// the driver has one of those. The first GPU of a device makes it, the last to give
// it back destroys it; a GPU that could not be closed keeps it, like its reference
// to the context.
type hostStreams struct {
	mu    sync.Mutex
	byCtx map[uintptr]*hostStream
}

type hostStream struct {
	s     backend.Stream
	users int
}

// defaults are the process's, as the primary contexts are: GPUs that know nothing
// of each other share both.
var defaults = hostStreams{byCtx: make(map[uintptr]*hostStream)}

// join is one more GPU's stream.
func (h *hostStreams) join(ctx primary) (backend.Stream, Result) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.byCtx[ctx.id()]
	if d == nil {
		s, r := ctx.streamCreate()
		if r != Success {
			return 0, r
		}
		d = &hostStream{s: s}
		h.byCtx[ctx.id()] = d
	}
	d.users++
	return d.s, Success
}

// leave takes a GPU's use back, before it releases the context.
func (h *hostStreams) leave(ctx primary) Result {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.byCtx[ctx.id()]
	if d.users--; d.users > 0 {
		return Success
	}
	delete(h.byCtx, ctx.id())
	return ctx.streamDestroy(d.s)
}
