package ledger

import (
	"fmt"
	"math/bits"

	"github.com/lanetrace/lanetrace/spanring"
)

// The driver packs allocations smaller than a chunk into chunks, and gives larger
// ones whole chunks. So it keeps more than was asked for, in two ways:
//
//	chunk slack     the chunks that hold a live small allocation, less those
//	                allocations; one across a border counts in both
//	rounding slack  what larger allocations are rounded up by
//
// Both are sums over live device allocations as the driver was asked for them,
// guard bands included, and change in constant time. Managed memory is paged as it
// is touched and has neither.

// slack adds e to both (sign 1) or takes it out (-1). The caller holds the lock.
func (l *Ledger) slack(e *entry, sign int64) {
	if e.kind != spanring.AllocDevice {
		return
	}
	chunk := int64(1) << l.chunkShift
	size := e.bytes + int64(e.guard)
	if size >= chunk {
		l.total.add(spanring.CtrMemRoundingSlackBytes, sign*(-size&(chunk-1)))
		return
	}
	first := e.addr >> l.chunkShift
	l.countChunk(first, sign)
	if last := (e.addr + uint64(size) - 1) >> l.chunkShift; last != first {
		l.countChunk(last, sign)
	}
	l.smallBytes += sign * size
	l.total.set(spanring.CtrMemChunkSlackBytes, int64(l.chunks.used)<<l.chunkShift-l.smallBytes)
}

func (l *Ledger) countChunk(number uint64, sign int64) {
	at, ok := l.chunks.find(number + 1)
	if !ok {
		l.chunks.put(number+1, 1)
		return
	}
	c := &l.chunks.cells[at]
	if c.val += uint32(sign); c.val == 0 {
		l.chunks.deleteAt(at)
	}
}

// SetChunkBytes changes the chunk size, as MeasureChunk found it, and reckons both
// slacks anew: a pass over all live allocations.
func (l *Ledger) SetChunkBytes(n int64) error {
	if l == nil {
		return errNotTracked
	}
	if err := checkChunk(n); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.chunkShift = uint(bits.TrailingZeros64(uint64(n)))
	l.chunks, l.smallBytes = addrMap{}, 0
	for _, c := range []spanring.Counter{spanring.CtrMemChunkSlackBytes, spanring.CtrMemRoundingSlackBytes} {
		l.total.set(c, 0)
	}
	l.total.set(spanring.CtrMemChunkBytes, n)
	for i := range l.entries {
		if e := &l.entries[i]; e.addr != 0 {
			l.slack(e, 1)
		}
	}
	l.publishTotals()
	return nil
}

// MeasureChunk finds the driver's chunk size by making small allocations until
// the free memory falls, three times; the falls must agree, or it fails, as it
// does on a device that others allocate on meanwhile. freeBytes is the driver's
// figure of free memory. What it allocates it frees; none of it belongs on a
// ledger. It makes some hundred driver calls, once, at start-up.
func MeasureChunk(freeBytes func() (int64, error), alloc func(bytes int64) (uint64, error), free func(addr uint64) error) (chunk int64, err error) {
	const (
		piece = 64 << 10
		falls = 3
		// Pieces that fill the largest chunk that is looked for, three times, and
		// what the driver may still have in hand.
		most = 4 * falls * 64
	)
	var made []uint64
	defer func() {
		for _, a := range made {
			if e := free(a); e != nil && err == nil {
				chunk, err = 0, fmt.Errorf("measure the driver's chunk: free: %w", e)
			}
		}
	}()
	before, err := freeBytes()
	if err != nil {
		return 0, fmt.Errorf("measure the driver's chunk: free memory: %w", err)
	}
	seen := 0
	for range most {
		a, err := alloc(piece)
		if err != nil {
			return 0, fmt.Errorf("measure the driver's chunk: allocate %d bytes: %w", piece, err)
		}
		made = append(made, a)
		now, err := freeBytes()
		if err != nil {
			return 0, fmt.Errorf("measure the driver's chunk: free memory: %w", err)
		}
		if now == before {
			continue
		}
		fall := before - now
		before = now
		if seen > 0 && fall != chunk || fall < piece {
			return 0, fmt.Errorf("measure the driver's chunk: free memory fell by %d bytes, then by %d", chunk, fall)
		}
		chunk = fall
		if seen++; seen == falls {
			if err := checkChunk(chunk); err != nil {
				return 0, fmt.Errorf("measure the driver's chunk: %w", err)
			}
			return chunk, nil
		}
	}
	return 0, fmt.Errorf("measure the driver's chunk: %d allocations of %d bytes made free memory fall %d times", most, piece, seen)
}
