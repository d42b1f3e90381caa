//go:build cgo

package cuda

import (
	"runtime"
	"runtime/cgo"

	"github.com/lanetrace/lanetrace/backend"
)

// Host memory that a copy still needs stays where it is until its stream was
// waited for or, of a destroyed stream, its work is done: page-locked memory is
// C's, Go memory is pinned. A pinner that is forgotten would end the process, so
// each is behind a handle, which is never forgotten, until it is let go.

// keep pins b for the work on s. What is not Go memory needs none.
func (g *GPU) keep(b []byte, s backend.Stream) {
	p := new(runtime.Pinner)
	if !pinBytes(p, b) {
		return
	}
	h := cgo.NewHandle(p)
	g.mu.Lock()
	g.kept[s] = append(g.kept[s], h)
	g.mu.Unlock()
}

// takeKept takes what copies on s need so far; what comes later stays.
func (g *GPU) takeKept(s backend.Stream) []cgo.Handle {
	g.mu.Lock()
	defer g.mu.Unlock()
	kept := g.kept[s]
	delete(g.kept, s)
	return kept
}

// waitedFor lets go of what was taken before a wait for s, or keeps it on when the
// wait failed. After an error of the context nothing runs, but nobody knows.
func (g *GPU) waitedFor(s backend.Stream, kept []cgo.Handle, r Result) {
	if len(kept) == 0 {
		return
	}
	if r == Success {
		g.letGo(kept)
		return
	}
	g.mu.Lock()
	g.kept[s] = append(kept, g.kept[s]...)
	g.mu.Unlock()
}

func (g *GPU) letGo(kept []cgo.Handle) {
	for _, h := range kept {
		h.Value().(*runtime.Pinner).Unpin()
		h.Delete()
	}
}

// isPinned reports whether b lies in memory of AllocHostPinned.
func (g *GPU) isPinned(b []byte) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := place(b)
	for p, whole := range g.pinned {
		if at >= p && at+uintptr(len(b)) <= p+uintptr(len(whole)) {
			return true
		}
	}
	return false
}

// CopyHtoDAsyncRetained enqueues a copy from memory that stays unchanged until the
// stream was waited for.
func (g *GPU) CopyHtoDAsyncRetained(dst backend.DevicePtr, src []byte, s backend.Stream) error {
	if len(src) == 0 {
		return nil
	}
	if r := g.onStream(s, func() Result {
		locked := g.isPinned(src)
		if !locked {
			g.keep(src, s)
		}
		return g.ctx.copyHtoDKept(dst, src, s, locked)
	}); r != Success {
		return g.fail(r, "copy %d bytes to %#x on stream %#x", len(src), dst, s)
	}
	return nil
}

// CopyDtoHAsync enqueues a copy to memory that nobody touches until the stream was
// waited for.
func (g *GPU) CopyDtoHAsync(dst []byte, src backend.DevicePtr, s backend.Stream) error {
	if len(dst) == 0 {
		return nil
	}
	if r := g.onStream(s, func() Result {
		locked := g.isPinned(dst)
		if !locked {
			g.keep(dst, s)
		}
		return g.ctx.copyDtoHKept(dst, src, s, locked)
	}); r != Success {
		return g.fail(r, "copy %d bytes from %#x on stream %#x", len(dst), src, s)
	}
	return nil
}

// CopyDtoD2DAsync enqueues a copy of rows within the device: one call of the
// driver's.
func (g *GPU) CopyDtoD2DAsync(dst backend.DevicePtr, dstPitch int, src backend.DevicePtr, srcPitch, width, height int, s backend.Stream) error {
	if width == 0 || height == 0 {
		return nil
	}
	if r := g.onStream(s, func() Result {
		if width < 0 || height < 0 || dstPitch < width || srcPitch < width {
			return ErrInvalidValue
		}
		r := g.ctx.copyDtoD2D(dst, dstPitch, src, srcPitch, width, height, s)
		if r == Success {
			g.trc.CopyRows(uint64(s), uint64(dst), uint64(dstPitch), uint64(src), uint64(srcPitch), uint64(width), uint64(height))
		}
		return r
	}); r != Success {
		return g.fail(r, "copy %d rows of %d bytes from %#x (pitch %d) to %#x (pitch %d) on stream %#x", height, width, src, srcPitch, dst, dstPitch, s)
	}
	return nil
}

// AllocHostPinned allocates page-locked memory, which is C's.
func (g *GPU) AllocHostPinned(bytes int) (b []byte, err error) {
	if r := g.call(func() (r Result) {
		if bytes <= 0 {
			return ErrInvalidValue
		}
		if b, r = g.ctx.hostAlloc(bytes); r == Success {
			g.mu.Lock()
			g.pinned[place(b)] = b
			g.mu.Unlock()
		}
		return r
	}); r != Success {
		return nil, g.fail(r, "allocate %d bytes of page-locked memory", bytes)
	}
	return b, nil
}

// FreeHostPinned frees page-locked memory. Nothing may need it any more.
func (g *GPU) FreeHostPinned(b []byte) error {
	if r := g.call(func() Result {
		g.mu.Lock()
		whole, ok := g.pinned[place(b)]
		if ok && len(whole) == len(b) {
			delete(g.pinned, place(b))
		}
		g.mu.Unlock()
		if !ok || len(whole) != len(b) {
			return ErrInvalidValue
		}
		return g.ctx.hostFree(whole)
	}); r != Success {
		return g.fail(r, "free %d bytes of page-locked memory", len(b))
	}
	return nil
}

// HostPtrToDevice is where kernels see page-locked memory.
func (g *GPU) HostPtrToDevice(b []byte) (p backend.DevicePtr, err error) {
	if r := g.call(func() (r Result) {
		if len(b) == 0 || !g.isPinned(b) {
			return ErrInvalidValue
		}
		p, r = g.ctx.hostDevicePtr(b)
		return r
	}); r != Success {
		return 0, g.fail(r, "find the device's address of %d bytes of host memory", len(b))
	}
	return p, nil
}

// LaunchUntyped launches a kernel with parameters by address.
func (g *GPU) LaunchUntyped(h backend.Kernel, l *backend.Launch, params []backend.Param) error {
	if !g.acquire() {
		return g.fail(ErrDeinitialized, "launch kernel %d", h)
	}
	defer g.release()
	k := g.kernel(h)
	if k == nil {
		return g.fail(ErrInvalidHandle, "launch kernel %d", h)
	}
	args, words, err := k.untyped(l, params)
	if err != nil {
		return err
	}
	var pinner runtime.Pinner
	defer pinner.Unpin()
	if args.addrs != nil {
		for i, p := range params {
			if !pin(&pinner, p) {
				return &Error{Op: "launch " + k.name, Result: ErrInvalidValue, Detail: paramDetail(i)}
			}
		}
	}
	if !g.hasStream(l.Stream) {
		return g.fail(ErrInvalidHandle, "launch %s on stream %#x", k.name, l.Stream)
	}
	d := kernelDesc(k.fn, l)
	setArgs(&d, len(params))
	r := g.launch(kindKernel, k.id, l.Stream, &d, &args)
	if r == Success && g.debugSync {
		r = g.launched(l.Stream)
	}
	if r != Success {
		return g.fail(r, "launch %s on stream %#x, grid %v, block %v, %d bytes shared", k.name, l.Stream, l.Grid, l.Block, l.SharedBytes)
	}
	if args.addrs != nil {
		g.trc.KernelArgsUnknown(uint64(l.Stream), uint64(k.fn), l.Grid, l.Block, l.SharedBytes)
	} else {
		g.trc.Kernel(uint64(l.Stream), uint64(k.fn), l.Grid, l.Block, l.SharedBytes, words)
	}
	return nil
}
