package ledger

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"

	"github.com/lanetrace/lanetrace/spanring"
)

// Band is one allocation's guard band.
type Band struct {
	Addr  uint64 // of the band
	Bytes int64
	Fill  byte // what it holds unless somebody wrote into it
	// Allocation is whose it is; the band lies right behind it.
	Allocation Allocation
}

// Change is how a guard band differs from its fill.
type Change struct {
	First, Last int  // offsets in the band of the first and last changed byte
	Changed     int  // how many changed
	Value       byte // what the first one is now
}

// CompareBand compares what was read of a guard band with its fill, byte by byte.
// changed is false for one that is as it was filled.
func CompareBand(band []byte, fill byte) (c Change, changed bool) {
	// A slice all of whose bytes equal the next is of one value; comparing memory
	// with itself, one apart, is faster than a loop.
	if len(band) == 0 || band[0] == fill && bytes.Equal(band[1:], band[:len(band)-1]) {
		return c, false
	}
	for i, b := range band {
		if b == fill {
			continue
		}
		if c.Changed == 0 {
			c.First, c.Value = i, b
		}
		c.Last = i
		c.Changed++
	}
	return c, true
}

// HasBands reports whether allocations get guard bands: without them a scan and a
// poisoning need not be prepared.
func (l *Ledger) HasBands() bool { return l != nil && l.redzone.Bytes > 0 }

// scanBytes bounds what one call of a scan's read is asked for, unless one band
// alone is larger.
const scanBytes = 16 << 20

// ScanBands reads every guard band back and returns how many hold another byte
// than their fill. Each of those is logged as an error, counted, written to the
// ring and filled anew, so that the next scan finds only what was written since.
// Without guard bands it returns 0 and calls nothing.
//
// read copies bands from the device into into, one behind the other in the order
// given: ascending by address, at most 16 MiB a call, so that neighbours can be
// copied at once (Ranges). fill fills one band. Work on the device that may write
// to allocations has to be complete before. While the scan runs frees wait, so
// neither read nor fill may free anything; an error from one ends it.
func (l *Ledger) ScanBands(read func(bands []Band, into []byte) error, fill func(b Band) error) (violated int, err error) {
	if l == nil || l.redzone.Bytes == 0 {
		return 0, nil
	}
	l.bands.Lock()
	defer l.bands.Unlock()
	bands := l.guarded()
	var buf []byte
	for len(bands) > 0 {
		n, size := 1, bands[0].Bytes
		for n < len(bands) && size+bands[n].Bytes <= scanBytes {
			size += bands[n].Bytes
			n++
		}
		if int64(len(buf)) < size {
			buf = make([]byte, size)
		}
		if err := read(bands[:n], buf[:size]); err != nil {
			return violated, fmt.Errorf("ledger: read %s: %w", count(uint64(n), "guard band"), err)
		}
		at := int64(0)
		for _, b := range bands[:n] {
			c, changed := CompareBand(buf[at:at+b.Bytes], b.Fill)
			at += b.Bytes
			if !changed {
				continue
			}
			violated++
			l.violation(&b, c)
			if err := fill(b); err != nil {
				return violated, fmt.Errorf("ledger: fill guard band of allocation %d: %w", b.Allocation.Index, err)
			}
		}
		bands = bands[n:]
	}
	l.mu.Lock()
	l.total.add(spanring.CtrRedzoneScans, 1)
	l.publishTotals()
	l.mu.Unlock()
	return violated, nil
}

// PoisonBands fills the guard bands of the allocations with a creation index from
// lo up to, not including, hi with 0xEE and all others with 0x00: where the output
// changes with the range, narrowing it finds the allocation that is read past its
// end. Nothing is allocated, moved or resized, and later scans expect the new
// fill. Without guard bands it does nothing. While it runs frees wait.
func (l *Ledger) PoisonBands(lo, hi uint64, fill func(b Band) error) error {
	if l == nil || l.redzone.Bytes == 0 {
		return nil
	}
	l.bands.Lock()
	defer l.bands.Unlock()
	for _, b := range l.guarded() {
		if b.Fill = poisonOutside; b.Allocation.Index >= lo && b.Allocation.Index < hi {
			b.Fill = poisonInside
		}
		if err := fill(b); err != nil {
			return fmt.Errorf("ledger: fill guard band of allocation %d: %w", b.Allocation.Index, err)
		}
		l.mu.Lock()
		if i, ok := l.byAddr.get(b.Allocation.Addr); ok && l.entries[i].index == b.Allocation.Index {
			l.entries[i].fill = b.Fill
		}
		l.mu.Unlock()
	}
	return nil
}

// guarded lists the guard bands by address. The caller holds l.bands.
func (l *Ledger) guarded() []Band {
	l.mu.Lock()
	defer l.mu.Unlock()
	var bands []Band
	for i := range l.entries {
		if e := &l.entries[i]; e.addr != 0 && e.guard != 0 {
			bands = append(bands, Band{Addr: e.addr + uint64(e.bytes), Bytes: int64(e.guard), Fill: e.fill, Allocation: l.allocation(e)})
		}
	}
	slices.SortFunc(bands, func(a, b Band) int { return cmp.Compare(a.Addr, b.Addr) })
	return bands
}

// violation logs, counts and publishes a changed band.
func (l *Ledger) violation(b *Band, c Change) {
	a := &b.Allocation
	l.log.LogAttrs(context.Background(), slog.LevelError, "lanetrace: guard band was written to",
		slog.Uint64("index", a.Index), slog.String("site", a.Site), slog.Int64("bytes", a.Bytes), slog.String("address", hex(a.Addr)),
		slog.Int64("band_bytes", b.Bytes), slog.Int("first_offset", c.First), slog.Int("last_offset", c.Last),
		slog.Int("changed", c.Changed), slog.String("first_value", fmt.Sprintf("%#02x", c.Value)), slog.String("fill", fmt.Sprintf("%#02x", b.Fill)))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total.add(spanring.CtrViolations, 1)
	if !l.on {
		return
	}
	l.publishTotals()
	v := spanring.Violation{
		Context: l.context, Addr: a.Addr, Bytes: uint64(a.Bytes), GuardBytes: uint32(b.Bytes), Index: a.Index, MonoNS: spanring.MonoNS(),
		First: uint32(c.First), Last: uint32(c.Last), Changed: uint32(min(c.Changed, math.MaxUint32)), Fill: b.Fill, Value: c.Value,
	}
	if n, ok := l.siteByText[a.Site]; ok {
		v.Site = l.siteName(n)
	}
	w := v.Words()
	l.ring.Append(&w)
}

// Range is a stretch of device memory that holds guard bands.
type Range struct {
	Addr  uint64
	Bytes int64
	Bands int // so many of the bands, in their order, lie in it
}

// Ranges joins bands, which ascend by address, into as few stretches as one copy
// each can read: neighbours whose allocations lie in one chunk of the driver's,
// with all that lies between. Between them is memory that the driver has mapped;
// beyond a chunk's border there may be none.
func (l *Ledger) Ranges(bands []Band) []Range {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	shift := l.chunkShift
	l.mu.Unlock()
	var out []Range
	for _, b := range bands {
		if n := len(out); n > 0 {
			r := &out[n-1]
			end := b.Addr + uint64(b.Bytes)
			if r.Addr>>shift == (end-1)>>shift {
				r.Bytes = int64(end - r.Addr)
				r.Bands++
				continue
			}
		}
		out = append(out, Range{Addr: b.Addr, Bytes: b.Bytes, Bands: 1})
	}
	return out
}
