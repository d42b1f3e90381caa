package recording

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// A run's table of live allocations is written when the recording begins, when it
// ends, and in between after it has changed; what happens from one to the next the
// entries tell.
const (
	// allocsEvery is how much of the run's time lies between two tables at least,
	// and largeAllocsEvery so for tables of more than largeAllocs allocations.
	allocsEvery      = 10 * time.Second
	largeAllocsEvery = 60 * time.Second
	largeAllocs      = 4096

	// partAllocs is how many allocations one block holds: a larger table takes
	// several.
	partAllocs = 1 << 15
	maxAllocs  = 1 << 20
)

// allocTable is a run's live allocations at one moment.
type allocTable struct {
	monoNS int64
	scan   spanring.AllocScan
	list   []spanring.Alloc
}

// allocLog decides which tables of a run are written.
type allocLog struct {
	src     collector.AllocSource // nil: the source knows none
	now     allocTable
	due     bool // now is to be written
	written bool // some table was
	last    allocTable
}

// look takes the table and reports whether it is to be written: at once if force
// says so, unless it is as it was.
func (l *allocLog) look(nowNS int64, force bool) bool {
	if l.src == nil {
		return false
	}
	every := allocsEvery
	if len(l.now.list) > largeAllocs {
		every = largeAllocsEvery
	}
	if l.written && !force && nowNS-l.last.monoNS < int64(every) {
		return false
	}
	list, scan, err := l.src.Allocs(l.now.list[:0])
	if err != nil {
		return false
	}
	l.now = allocTable{monoNS: nowNS, scan: scan, list: list}
	// Whatever is allocated or freed moves a total.
	l.due = l.written && scan != l.last.scan || !l.written && scan.State != spanring.AllocsNotTracked
	return l.due
}

// wrote notes that the table was written.
func (l *allocLog) wrote() {
	l.due, l.written = false, true
	l.last = allocTable{monoNS: l.now.monoNS, scan: l.now.scan}
}

const (
	allocsMore        = 1 << 0 // another part follows
	allocsApproximate = 1 << 1
)

// blocks calls f with each part of t as a payload, appended to b[:0].
func (t *allocTable) blocks(b []byte, f func(payload []byte)) []byte {
	for from := 0; ; from += partAllocs {
		part := t.list[from:min(from+partAllocs, len(t.list))]
		more := from+partAllocs < len(t.list)
		b = t.append(b[:0], part, more)
		if f(b); !more {
			return b
		}
	}
}

func (t *allocTable) append(b []byte, part []spanring.Alloc, more bool) []byte {
	var fl uint64
	if more {
		fl |= allocsMore
	}
	if t.scan.Approximate {
		fl |= allocsApproximate
	}
	b = binary.AppendUvarint(b, fl)
	b = appendInt(b, t.monoNS)
	b = binary.AppendUvarint(b, uint64(t.scan.State))
	var c spanring.Counters
	t.scan.Totals.Put(&c)
	n := uint64(0)
	for _, v := range c {
		if v != 0 {
			n++
		}
	}
	b = binary.AppendUvarint(b, n)
	for k, v := range c {
		if v != 0 {
			b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(k)), v)
		}
	}
	b = binary.AppendUvarint(b, uint64(len(part)))
	var last spanring.Alloc
	for i := range part {
		a := &part[i]
		for _, d := range [...]uint64{a.Addr - last.Addr, a.Bytes - last.Bytes, a.Index - last.Index, uint64(a.MonoNS) - uint64(last.MonoNS)} {
			b = appendInt(b, int64(d))
		}
		for _, v := range [...]uint64{uint64(a.GuardBytes), uint64(a.Site), uint64(a.Kind), uint64(a.Context)} {
			b = binary.AppendUvarint(b, v)
		}
		last = *a
	}
	return b
}

// parse appends one part to t; the first part sets everything else. It reports
// whether more follow, and whether b can be a part.
func (t *allocTable) parse(b []byte) (more, ok bool) {
	f := fields{b: b}
	fl := f.uint()
	t.monoNS = f.int()
	t.scan.Approximate = fl&allocsApproximate != 0
	t.scan.State = spanring.AllocState(min(f.uint(), 255))
	n := f.uint()
	if n > 1<<16 {
		return false, false
	}
	var c spanring.Counters
	for range n {
		if k, v := f.uint(), f.uint(); k < uint64(spanring.NumCounters) {
			c[k] = v
		}
	}
	t.scan.Totals = c.Memory()
	n = f.uint()
	// Each takes eight bytes at least.
	if f.bad || t.scan.State > spanring.AllocsStale || t.monoNS < 0 || n > partAllocs || n > uint64(len(f.b))/8 || len(t.list)+int(n) > maxAllocs {
		return false, false
	}
	t.list = slices.Grow(t.list, int(n))
	var a spanring.Alloc
	for range n {
		a.Addr += uint64(f.int())
		a.Bytes += uint64(f.int())
		a.Index += uint64(f.int())
		a.MonoNS = int64(uint64(a.MonoNS) + uint64(f.int()))
		a.GuardBytes, a.Site = uint32(f.uint()), spanring.NameID(f.uint())
		a.Kind, a.Context = spanring.AllocKind(f.uint()), uint8(f.uint())
		if f.bad || a.Check() != nil {
			return false, false
		}
		t.list = append(t.list, a)
	}
	return fl&allocsMore != 0, !f.bad
}
