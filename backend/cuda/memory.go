//go:build cgo

package cuda

import (
	"errors"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// Alloc allocates device memory. What it holds is undefined.
func (g *GPU) Alloc(bytes int) (backend.DevicePtr, error) {
	p := g.led.Begin(spanring.AllocDevice, int64(bytes))
	at, err := g.alloc(p, bytes, "allocate %d bytes", g.ctx.alloc)
	if err == nil {
		p.Done(uint64(at)) // here, one call from the engine: the ledger looks for it
		g.release()
	}
	return at, err
}

// AllocManaged allocates memory that migrates between host and device.
func (g *GPU) AllocManaged(bytes int) (backend.DevicePtr, error) {
	p := g.led.Begin(spanring.AllocManaged, int64(bytes))
	at, err := g.alloc(p, bytes, "allocate %d bytes of managed memory", g.ctx.allocManaged)
	if err == nil {
		p.Done(uint64(at))
		g.release()
	}
	return at, err
}

// alloc asks the driver for what is pending and fills its guard band. On success the
// caller puts it on the ledger and then calls release: until then Close does not
// sweep, or it would miss the allocation.
func (g *GPU) alloc(p ledger.Pending, bytes int, op string, ask func(int) (backend.DevicePtr, Result)) (backend.DevicePtr, error) {
	r := ErrDeinitialized
	if g.acquire() {
		var at backend.DevicePtr
		if at, r = g.ask(p, bytes, ask); r == Success {
			return at, nil
		}
		g.release()
	}
	p.Failed()
	return 0, g.fail(r, op, bytes)
}

func (g *GPU) ask(p ledger.Pending, bytes int, ask func(int) (backend.DevicePtr, Result)) (backend.DevicePtr, Result) {
	if bytes <= 0 {
		return 0, ErrInvalidValue
	}
	at, r := ask(int(p.AskBytes()))
	if r != Success {
		return 0, r
	}
	if offset, n, fill := p.Guard(); n > 0 {
		if r := g.band.fill(g, uint64(at)+uint64(offset), n, fill, true); r != Success {
			_ = g.ctx.free(at)
			return 0, r
		}
	}
	return at, Success
}

// AllocArena allocates device memory off the ledger.
func (g *GPU) AllocArena(bytes int) (p backend.DevicePtr, err error) {
	if r := g.call(func() (r Result) {
		if bytes <= 0 {
			return ErrInvalidValue
		}
		if p, r = g.ctx.alloc(bytes); r == Success {
			g.led.Arena(uint64(p), int64(bytes))
		}
		return r
	}); r != Success {
		return 0, g.fail(r, "allocate an arena of %d bytes", bytes)
	}
	return p, nil
}

// Free frees device memory. The driver waits for work that may use it.
func (g *GPU) Free(p backend.DevicePtr) error { return g.free(p, "free %#x") }

// FreeArena frees an arena. The driver waits for work that may use it.
func (g *GPU) FreeArena(p backend.DevicePtr) error { return g.free(p, "free arena %#x") }

func (g *GPU) free(p backend.DevicePtr, op string) error {
	if p == 0 {
		return nil
	}
	if r := g.call(func() Result { return g.freeTaken(p) }); r != Success {
		return g.fail(r, op, p)
	}
	return nil
}

// freeTaken takes memory off the ledger before the driver can hand its address out
// again, and frees it.
func (g *GPU) freeTaken(p backend.DevicePtr) Result {
	t := g.led.Take(uint64(p))
	r := g.ctx.free(p)
	t.Done(r.orNil())
	return r
}

// SweepUnreleased frees what is on the ledger. The driver waits for work that may
// use it.
func (g *GPU) SweepUnreleased() (n int, err error) {
	if r := g.call(func() Result {
		n, err = g.sweep()
		return Success
	}); r != Success {
		err = g.fail(r, "sweep device memory")
	}
	return n, err
}

func (g *GPU) sweep() (int, error) {
	return g.led.Sweep(func(addr uint64) error { return g.ctx.free(backend.DevicePtr(addr)).orNil() })
}

// sweepAll frees what is on the ledger, and arenas. Nobody else is in the driver.
func (g *GPU) sweepAll() error {
	scratch := g.ops.Release(func(p backend.DevicePtr) error { return g.freeTaken(p).orNil() })
	_, err := g.sweep()
	err = errors.Join(scratch, err)
	for _, a := range g.led.DrainArenas() {
		if r := g.ctx.free(backend.DevicePtr(a.Addr)); r != Success && err == nil {
			err = g.fail(r, "free arena %#x", a.Addr)
		}
	}
	return err
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
	if r := g.onStream(s, func() Result {
		kept := g.takeKept(s)
		r := g.ctx.copyDtoH(dst, src, s)
		g.waitedFor(s, kept, r)
		return r
	}); r != Success {
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
		r := g.ctx.copyDtoD(dst, src, bytes, s, block)
		if r == Success && !block {
			g.trc.Copy(uint64(s), uint64(dst), uint64(src), uint64(bytes))
		}
		return r
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
		r := g.ctx.memset(p, value, bytes, s, block)
		if r == Success && !block {
			g.trc.Memset(uint64(s), uint64(p), value, uint64(bytes))
		}
		return r
	}); r != Success {
		return g.fail(r, "set %d bytes at %#x on stream %#x", bytes, p, s)
	}
	return nil
}
