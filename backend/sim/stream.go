package sim

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lanetrace/lanetrace/backend"
)

// streamHandle is a handle for a new stream: the one that was given back last, as
// drivers do.
func (g *GPU) streamHandle() backend.Stream {
	if n := len(g.freeStreams); n > 0 {
		h := g.freeStreams[n-1]
		g.freeStreams = g.freeStreams[:n-1]
		return h
	}
	g.lastStream += 0x10
	return g.lastStream
}

func (g *GPU) startStream(h backend.Stream) *stream {
	g.lastID++
	s := &stream{handle: h, id: g.lastID, cond: sync.NewCond(&g.mu), timer: time.NewTimer(0), wake: make(chan struct{}, 1)}
	g.byHandle[h] = s
	g.streams = append(g.streams, s)
	g.workers.Go(func() { g.work(s) })
	return s
}

func (g *GPU) stream(h backend.Stream) (*stream, error) {
	if s := g.byHandle[h]; s != nil {
		return s, nil
	}
	return nil, errInvalidHandle
}

// enterStream is enter for a call on a stream.
func (g *GPU) enterStream(method string, h backend.Stream) (*stream, error) {
	if err := g.enter(method); err != nil {
		return nil, err
	}
	return g.stream(h)
}

// DefaultStream is the GPU's own stream, which is not the zero Stream.
func (g *GPU) DefaultStream() backend.Stream { return g.host }

// CreateStream makes a stream and its goroutine.
func (g *GPU) CreateStream() (backend.Stream, error) {
	err := g.enter("CreateStream")
	defer g.mu.Unlock()
	if err != nil {
		return 0, fmt.Errorf("sim: create stream: %w", err)
	}
	return g.startStream(g.streamHandle()).handle, nil
}

// DestroyStream gives a stream's handle back; what is queued still happens. A
// capture that the stream is part of is lost.
func (g *GPU) DestroyStream(h backend.Stream) error {
	defer g.closeLanes()
	s, err := g.enterStream("DestroyStream", h)
	if err == nil && (h == 0 || h == g.host) {
		err = errInvalidHandle
	}
	g.mu.Unlock()
	if err == nil {
		// Before the handle goes, which is another stream's at once. Without the lock,
		// which telemetry takes under its own.
		g.dev.StreamDestroyed(h)
		g.mu.Lock()
		if g.byHandle[h] == s {
			g.destroyStream(s)
		} else { // somebody was faster
			err = errInvalidHandle
		}
		g.mu.Unlock()
	}
	if err != nil {
		return fmt.Errorf("sim: destroy stream %#x: %w", h, err)
	}
	return nil
}

func (g *GPU) destroyStream(s *stream) {
	if s.cap != nil {
		s.cap.invalid = true
		s.cap.streams = slices.DeleteFunc(s.cap.streams, func(o *stream) bool { return o == s })
		if s.cap.origin == s {
			g.endCapture(s.cap)
		}
	}
	delete(g.byHandle, s.handle)
	g.freeStreams = append(g.freeStreams, s.handle)
	s.closing = true
	s.cond.Broadcast()
}

// Synchronize blocks until all work queued on a stream is complete. On a
// capturing stream it is an error and spoils the capture.
func (g *GPU) Synchronize(h backend.Stream) error {
	s, err := g.enterStream("Synchronize", h)
	defer g.mu.Unlock()
	if err == nil {
		err = g.finish(s)
	}
	if err != nil {
		return fmt.Errorf("sim: synchronize stream %#x: %w", h, err)
	}
	return nil
}

// finish waits for what is queued on s.
func (g *GPU) finish(s *stream) error {
	if s.cap != nil {
		s.cap.invalid = true
		return errCapture
	}
	return g.wait(s.tail)
}
