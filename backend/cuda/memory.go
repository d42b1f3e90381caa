//go:build cgo

package cuda

import "github.com/lanetrace/lanetrace/backend"

// Alloc allocates device memory. What it holds is undefined.
func (g *GPU) Alloc(bytes int) (p backend.DevicePtr, err error) {
	if r := g.call(func() Result {
		if bytes <= 0 {
			return ErrInvalidValue
		}
		q, r := g.ctx.alloc(bytes)
		if r != Success {
			return r
		}
		p = q
		g.mu.Lock()
		g.allocs[p] = struct{}{}
		g.mu.Unlock()
		return Success
	}); r != Success {
		err = g.fail(r, "allocate %d bytes", bytes)
	}
	return p, err
}

// Free frees device memory. The driver waits for work that may use it.
func (g *GPU) Free(p backend.DevicePtr) error {
	if p == 0 {
		return nil
	}
	if r := g.call(func() Result {
		// Off the list before the driver can hand the address out again.
		g.mu.Lock()
		_, ours := g.allocs[p]
		delete(g.allocs, p)
		g.mu.Unlock()
		r := g.ctx.free(p)
		if r != Success && ours {
			g.mu.Lock()
			g.allocs[p] = struct{}{}
			g.mu.Unlock()
		}
		return r
	}); r != Success {
		return g.fail(r, "free %#x", p)
	}
	return nil
}

// CopyHtoD copies to the device on the default stream and waits for it. Pageable
// memory that the driver says is copied may be on its way still, and streams made
// here do not wait for the driver's own default stream: hence ours, and the wait.
func (g *GPU) CopyHtoD(dst backend.DevicePtr, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	if r := g.call(func() Result { return g.ctx.copyHtoD(dst, src, g.host) }); r != Success {
		return g.fail(r, "copy %d bytes to %#x", len(src), dst)
	}
	return nil
}

// CopyDtoH copies from the device on the default stream and waits for it.
func (g *GPU) CopyDtoH(dst []byte, src backend.DevicePtr) error {
	return g.CopyDtoHOnStream(dst, src, g.host)
}

// CopyDtoHOnStream copies from the device behind the work on a stream and waits
// for it. It refuses a stream that is being captured.
func (g *GPU) CopyDtoHOnStream(dst []byte, src backend.DevicePtr, s backend.Stream) error {
	if len(dst) == 0 {
		return nil
	}
	if r := g.onStream(s, func() Result { return g.ctx.copyDtoH(dst, src, s) }); r != Success {
		return g.fail(r, "copy %d bytes from %#x on stream %#x", len(dst), src, s)
	}
	return nil
}

// CopyDtoD copies within the device on the default stream and waits for it.
func (g *GPU) CopyDtoD(dst, src backend.DevicePtr, bytes int) error {
	return g.copyDtoD(dst, src, bytes, g.host, true)
}

// CopyDtoDAsync enqueues a copy within the device.
func (g *GPU) CopyDtoDAsync(dst, src backend.DevicePtr, bytes int, s backend.Stream) error {
	return g.copyDtoD(dst, src, bytes, s, false)
}

func (g *GPU) copyDtoD(dst, src backend.DevicePtr, bytes int, s backend.Stream, block bool) error {
	if bytes == 0 {
		return nil
	}
	if r := g.onStream(s, func() Result {
		if bytes < 0 {
			return ErrInvalidValue
		}
		return g.ctx.copyDtoD(dst, src, bytes, s, block)
	}); r != Success {
		return g.fail(r, "copy %d bytes from %#x to %#x on stream %#x", bytes, src, dst, s)
	}
	return nil
}

// Memset sets device memory on the default stream and waits for it.
func (g *GPU) Memset(p backend.DevicePtr, value byte, bytes int) error {
	return g.memset(p, value, bytes, g.host, true)
}

// MemsetAsync enqueues the setting of device memory.
func (g *GPU) MemsetAsync(p backend.DevicePtr, value byte, bytes int, s backend.Stream) error {
	return g.memset(p, value, bytes, s, false)
}

func (g *GPU) memset(p backend.DevicePtr, value byte, bytes int, s backend.Stream, block bool) error {
	if bytes == 0 {
		return nil
	}
	if r := g.onStream(s, func() Result {
		if bytes < 0 {
			return ErrInvalidValue
		}
		return g.ctx.memset(p, value, bytes, s, block)
	}); r != Success {
		return g.fail(r, "set %d bytes at %#x on stream %#x", bytes, p, s)
	}
	return nil
}
