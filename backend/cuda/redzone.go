//go:build cgo

package cuda

import (
	"sync"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/ledger"
)

// bands fills and reads guard bands, on a stream of its own and in relaxed capture
// mode, so that it neither waits for the engine's work nor harms its captures.
type bands struct {
	mu     sync.Mutex
	stream backend.Stream // 0: not made yet
	buf    []byte         // page-locked; made by the first scan
	reads  []bandRead

	// apart: the driver refuses to copy over the borders of allocations, so that
	// each band takes a copy of its own.
	apart bool
}

const (
	// bandBuffer is how much is read back before the host waits for it.
	bandBuffer = 16 << 20
	// gapBytes is how much memory between two bands is rather copied than left out: a
	// copy of its own takes the driver as long as 32 KiB more in another.
	gapBytes = 32 << 10
)

// ready makes the stream. The caller holds mu.
func (b *bands) ready(g *GPU) Result {
	if b.stream != 0 {
		return Success
	}
	s, r := g.ctx.telStreamCreate()
	b.stream = s
	return r
}

// fill sets a band and, with wait, waits until it and all before it are set.
func (b *bands) fill(g *GPU, addr uint64, bytes int64, value byte, wait bool) Result {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.ready(g); r != Success {
		return r
	}
	return g.ctx.bandFill(backend.DevicePtr(addr), value, int(bytes), b.stream, wait)
}

// settle waits until all bands are set.
func (b *bands) settle(g *GPU) Result {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stream == 0 {
		return Success
	}
	return g.ctx.streamSettle(b.stream)
}

// read copies bands, which ascend by address, into into.
func (b *bands) read(g *GPU, list []ledger.Band, into []byte) Result {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.ready(g); r != Success {
		return r
	}
	if b.buf == nil {
		buf, r := g.ctx.hostAlloc(bandBuffer)
		if r != Success {
			return r
		}
		b.buf = buf
	}
	for len(list) > 0 {
		n, r := b.some(g, list, into)
		if r == ErrInvalidValue && !b.apart {
			b.apart = true
			continue
		}
		if r != Success {
			return r
		}
		for _, x := range list[:n] {
			into = into[x.Bytes:]
		}
		list = list[n:]
	}
	return Success
}

// some reads as many bands as fit the buffer, neighbours at once, and returns how
// many that were.
func (b *bands) some(g *GPU, list []ledger.Band, into []byte) (n int, r Result) {
	if list[0].Bytes > int64(len(b.buf)) {
		return b.large(g, &list[0], into)
	}
	b.reads, n = planReads(b.reads[:0], list, g.led.Ranges(list), int64(len(b.buf)), b.apart)
	if r := g.ctx.bandRead(b.buf, b.reads, b.stream); r != Success {
		return 0, r
	}
	takeBands(list, b.reads, b.buf, into)
	return n, Success
}

// planReads says which stretches of memory to read to where in a buffer of so many
// bytes, for the first n bands. ranges are the stretches that hold neighbours; one
// is read whole where that is less work than its bands.
func planReads(reads []bandRead, list []ledger.Band, ranges []ledger.Range, room int64, apart bool) (_ []bandRead, n int) {
	used := int64(0)
	put := func(addr uint64, bytes int64, bands int) bool {
		if bytes > room-used {
			return false
		}
		reads = append(reads, bandRead{addr: addr, at: int(used), bytes: int(bytes), bands: bands})
		used += bytes
		n += bands
		return true
	}
	for _, x := range ranges {
		if x.Bands == 1 || !apart && x.Bytes <= int64(x.Bands)*gapBytes && x.Bytes <= room-used {
			if !put(x.Addr, x.Bytes, x.Bands) {
				return reads, n
			}
			continue
		}
		for _, one := range list[n : n+x.Bands] {
			if !put(one.Addr, one.Bytes, 1) {
				return reads, n
			}
		}
	}
	return reads, n
}

// takeBands copies the bands, one behind the other, out of what was read.
func takeBands(list []ledger.Band, reads []bandRead, buf, into []byte) {
	for _, x := range reads {
		for ; x.bands > 0; x.bands-- {
			off := x.at + int(list[0].Addr-x.addr)
			copied := copy(into, buf[off:off+int(list[0].Bytes)])
			into, list = into[copied:], list[1:]
		}
	}
}

// large reads one band that is larger than the buffer.
func (b *bands) large(g *GPU, x *ledger.Band, into []byte) (int, Result) {
	for at := 0; at < int(x.Bytes); {
		n := min(int(x.Bytes)-at, len(b.buf))
		b.reads = append(b.reads[:0], bandRead{addr: x.Addr + uint64(at), bytes: n, bands: 1})
		if r := g.ctx.bandRead(b.buf, b.reads, b.stream); r != Success {
			return 0, r
		}
		at += copy(into[at:], b.buf[:n])
	}
	return 1, Success
}

// free frees everything. Nobody else is in the driver.
func (b *bands) free(g *GPU, check func(r Result, op string, args ...any)) {
	if b.buf != nil {
		check(g.ctx.hostFree(b.buf), "free the buffer of guard bands")
	}
	if b.stream != 0 {
		check(g.ctx.telStreamDestroy(b.stream), "destroy the stream of guard bands")
	}
	b.buf, b.stream = nil, 0
}

// ScanRedzones reads every guard band back, behind the work on all streams that
// are not being captured.
func (g *GPU) ScanRedzones() (violated int, err error) {
	if r := g.call(func() Result {
		if !g.led.HasBands() {
			return Success
		}
		if r := g.settleStreams(); r != Success {
			return r
		}
		violated, err = g.led.ScanBands(
			func(list []ledger.Band, into []byte) error { return g.band.read(g, list, into).orNil() },
			g.fillBand)
		return g.band.settle(g)
	}); r != Success {
		err = g.fail(r, "scan guard bands")
	}
	return violated, err
}

// PoisonRedzones fills the guard bands of a range of allocations with 0xEE and all
// others with 0x00.
func (g *GPU) PoisonRedzones(lo, hi uint64) (err error) {
	if r := g.call(func() Result {
		if !g.led.HasBands() {
			return Success
		}
		if r := g.settleStreams(); r != Success {
			return r
		}
		err = g.led.PoisonBands(lo, hi, g.fillBand)
		return g.band.settle(g)
	}); r != Success {
		err = g.fail(r, "fill guard bands")
	}
	return err
}

// fillBand does not wait: its callers do, once for all bands.
func (g *GPU) fillBand(b ledger.Band) error {
	return g.band.fill(g, b.Addr, b.Bytes, b.Fill, false).orNil()
}

// settleStreams waits for the work on all streams that are not being captured.
func (g *GPU) settleStreams() Result {
	for s := range *g.streams.Load() {
		if g.ctx.streamCapturing(s) {
			continue
		}
		if r := g.ctx.streamSettle(s); r != Success && r != capturing {
			return r
		}
	}
	return Success
}
