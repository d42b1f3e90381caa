package sim

import (
	"fmt"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// Alloc allocates device memory, which reads 0.
func (g *GPU) Alloc(bytes int) (backend.DevicePtr, error) {
	p := g.led.Begin(spanring.AllocDevice, int64(bytes))
	at, err := g.alloc("Alloc", p, bytes)
	if err == nil {
		p.Done(uint64(at)) // here, one call from the engine: the ledger looks for it
		g.allocating.Done()
	}
	return at, err
}

// AllocManaged allocates plain device memory: the sim has no other.
func (g *GPU) AllocManaged(bytes int) (backend.DevicePtr, error) {
	p := g.led.Begin(spanring.AllocDevice, int64(bytes))
	at, err := g.alloc("AllocManaged", p, bytes)
	if err == nil {
		p.Done(uint64(at))
		g.allocating.Done()
	}
	return at, err
}

// alloc takes the memory for what is pending and fills its guard band. On success the
// caller puts it on the ledger and says so to allocating.
func (g *GPU) alloc(method string, p ledger.Pending, bytes int) (backend.DevicePtr, error) {
	at, err := g.take(method, bytes, p.AskBytes()-int64(bytes))
	if err == nil {
		if offset, n, fill := p.Guard(); n > 0 {
			if err = g.set(uint64(at)+uint64(offset), n, fill); err != nil {
				g.allocating.Done()
			}
		}
	}
	if err != nil {
		p.Failed()
		return 0, fmt.Errorf("sim: allocate %d bytes: %w", bytes, err)
	}
	return at, nil
}

// take takes bytes and what comes on top from the device's memory. On success Close
// does not sweep until allocating is told that it is on the ledger.
func (g *GPU) take(method string, bytes int, more int64) (backend.DevicePtr, error) {
	err := g.enter(method)
	if err == nil {
		g.allocating.Add(1)
	}
	g.mu.Unlock()
	if err != nil {
		return 0, err
	}
	var at backend.DevicePtr
	if err = errInvalidValue; bytes > 0 {
		at, err = g.mem.alloc(bytes + int(more))
	}
	if err != nil {
		g.allocating.Done()
	}
	return at, err
}

// AllocArena allocates device memory off the ledger.
func (g *GPU) AllocArena(bytes int) (backend.DevicePtr, error) {
	p, err := g.take("AllocArena", bytes, 0)
	if err != nil {
		return 0, fmt.Errorf("sim: allocate an arena of %d bytes: %w", bytes, err)
	}
	g.led.Arena(uint64(p), int64(bytes))
	g.allocating.Done()
	return p, nil
}

// Free frees device memory at once; work in flight that uses it works on memory
// that is nobody's.
func (g *GPU) Free(p backend.DevicePtr) error { return g.release("Free", p) }

// FreeArena frees an arena, likewise.
func (g *GPU) FreeArena(p backend.DevicePtr) error { return g.release("FreeArena", p) }

func (g *GPU) release(method string, p backend.DevicePtr) error {
	if p == 0 {
		return nil
	}
	err := g.enter(method)
	g.mu.Unlock()
	if err == nil {
		err = g.freeTaken(p)
	}
	if err != nil {
		return fmt.Errorf("sim: free %#x: %w", p, err)
	}
	return nil
}

// freeTaken takes memory off the ledger and frees it.
func (g *GPU) freeTaken(p backend.DevicePtr) error {
	t := g.led.Take(uint64(p))
	err := g.mem.release(p)
	t.Done(err)
	return err
}

// SweepUnreleased frees what is on the ledger.
func (g *GPU) SweepUnreleased() (int, error) {
	err := g.enter("")
	g.mu.Unlock()
	if err != nil {
		return 0, fmt.Errorf("sim: sweep device memory: %w", err)
	}
	return g.sweep()
}

func (g *GPU) sweep() (int, error) {
	return g.led.Sweep(func(addr uint64) error { return g.mem.release(backend.DevicePtr(addr)) })
}

func (g *GPU) freeArenas() {
	for _, a := range g.led.DrainArenas() {
		_ = g.mem.release(backend.DevicePtr(a.Addr)) // it was there a moment ago
	}
}

// ScanRedzones reads every guard band, behind the work on all streams that are not
// being captured.
func (g *GPU) ScanRedzones() (int, error) {
	if !g.led.HasBands() {
		return 0, nil
	}
	if err := g.settleStreams(); err != nil {
		return 0, fmt.Errorf("sim: scan guard bands: %w", err)
	}
	return g.led.ScanBands(func(bands []ledger.Band, into []byte) error {
		for i := range bands {
			b, err := g.mem.bytes(backend.DevicePtr(bands[i].Addr), int(bands[i].Bytes))
			if err != nil {
				return err
			}
			into = into[copy(into, b):]
		}
		return nil
	}, g.fillBand)
}

// PoisonRedzones fills the guard bands of a range of allocations with 0xEE and all
// others with 0x00.
func (g *GPU) PoisonRedzones(lo, hi uint64) error {
	if !g.led.HasBands() {
		return nil
	}
	if err := g.settleStreams(); err != nil {
		return fmt.Errorf("sim: fill guard bands: %w", err)
	}
	return g.led.PoisonBands(lo, hi, g.fillBand)
}

func (g *GPU) fillBand(b ledger.Band) error { return g.set(b.Addr, b.Bytes, b.Fill) }

func (g *GPU) set(addr uint64, bytes int64, value byte) error {
	d, err := g.mem.bytes(backend.DevicePtr(addr), int(bytes))
	for i := range d {
		d[i] = value
	}
	return err
}

// settleStreams waits for the work on every stream that is not being captured.
func (g *GPU) settleStreams() error {
	err := g.enter("")
	var all []backend.Stream
	for h, s := range g.byHandle {
		if s.cap == nil {
			all = append(all, h)
		}
	}
	g.mu.Unlock()
	for _, h := range all {
		if err != nil {
			return err
		}
		err = g.Synchronize(h)
	}
	return err
}
