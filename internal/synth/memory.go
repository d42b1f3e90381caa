package synth

import (
	"cmp"
	"slices"

	"github.com/lanetrace/lanetrace/spanring"
)

// chunkBytes is the size of the chunks by which slack is reckoned.
const chunkBytes = 2 << 20

const scratchAddr = 0x7e0000000000

// memory is the engine's device memory: weights and a cache that stay, scratch
// that comes and goes, and what is leaked.
type memory struct {
	live  []spanring.Alloc // in order of creation
	total spanring.MemoryTotals
	next  uint64 // index
	addr  uint64 // where the next one goes
}

// load puts the model into memory, before the first step.
func (e *Engine) load() {
	if !e.o.Memory {
		return
	}
	e.mem.addr = 0x7f0000000000
	at := e.o.StartMonoNS + 1_000
	add := func(site string, bytes uint64) {
		a := e.newAlloc(site, bytes, at)
		e.allocated(&a)
		at += 900
	}
	add("examples/decode/model.go:91", 131072*1024+4096)
	for range e.o.Layers {
		for _, kib := range []uint64{6144, 2048, 11008, 5504} {
			add("examples/decode/model.go:104", kib*1024+512)
		}
		add("examples/decode/model.go:107", 4096)
	}
	add("examples/decode/cache.go:38", 96<<20+1000)
	for _, b := range []uint64{4096, 16384, 98304, 1_000} {
		add("examples/decode/scratch.go:22", b)
	}
}

func (e *Engine) newAlloc(site string, bytes uint64, atNS int64) spanring.Alloc {
	m := &e.mem
	a := spanring.Alloc{
		Addr: m.addr, Bytes: bytes, Site: e.name(spanring.NameSite, site), Index: m.next, MonoNS: atNS, Kind: spanring.AllocDevice,
	}
	m.next++
	// Small ones lie close together, large ones begin a chunk.
	if m.addr += (bytes + 511) &^ 511; bytes >= chunkBytes {
		m.addr = (m.addr + chunkBytes - 1) &^ (chunkBytes - 1)
	}
	return a
}

// stepMemory is what a step allocates and frees.
func (e *Engine) stepMemory(n uint64, atNS int64) {
	if !e.o.Memory {
		return
	}
	publish := func(k spanring.Kind, a spanring.Alloc, atNS int64) {
		ev := spanring.MemEvent{Kind: k, Alloc: a}
		ev.Alloc.MonoNS = atNS
		e.push(atNS, ev.Words(), func(*spanring.Counters) {
			if k == spanring.KindAlloc {
				e.allocated(&ev.Alloc)
			} else {
				e.freed(a.Index)
			}
		})
	}
	if n%16 == 0 {
		a := e.newAlloc("examples/decode/scratch.go:57", 98304, atNS+1_000)
		e.mem.addr, a.Addr = a.Addr, scratchAddr // the same place each time
		publish(spanring.KindAlloc, a, atNS+1_000)
		publish(spanring.KindFree, a, atNS+61_000)
	}
	if l := uint64(max(0, e.o.LeakEvery)); l > 0 && n%l == 0 {
		publish(spanring.KindAlloc, e.newAlloc("examples/decode/cache.go:77", 65536, atNS+2_000), atNS+2_000)
	}
	if n == e.o.ViolateAt {
		v := spanring.Violation{
			Addr: 0x7f0000000000, Bytes: 131072*1024 + 4096, GuardBytes: 256, Site: e.name(spanring.NameSite, "examples/decode/model.go:91"),
			MonoNS: atNS + 3_000, First: 4, Last: 11, Changed: 8, Fill: 0xa5, Value: 0x3c,
		}
		e.push(v.MonoNS, v.Words(), func(*spanring.Counters) {
			e.mem.total.Violations++
			e.mem.total.RedzoneScans++
			e.reckon()
		})
	}
}

func (e *Engine) allocated(a *spanring.Alloc) {
	e.mem.live = append(e.mem.live, *a)
	e.mem.total.Allocs++
	e.reckon()
}

func (e *Engine) freed(index uint64) {
	i, ok := slices.BinarySearchFunc(e.mem.live, index, func(a spanring.Alloc, n uint64) int { return cmp.Compare(a.Index, n) })
	if ok {
		e.mem.live = slices.Delete(e.mem.live, i, i+1)
		e.mem.total.Frees++
		e.reckon()
	}
}

// reckon adds the totals up anew.
func (e *Engine) reckon() {
	t := &e.mem.total
	t.LiveBytes, t.ChunkSlackBytes, t.RoundingSlackBytes = 0, 0, 0
	t.LiveCount, t.ChunkBytes = uint64(len(e.mem.live)), chunkBytes
	chunks := make(map[uint64]bool)
	for i := range e.mem.live {
		a := &e.mem.live[i]
		t.LiveBytes += a.Bytes
		if a.Bytes >= chunkBytes {
			t.RoundingSlackBytes += -a.Bytes % chunkBytes
			continue
		}
		t.ChunkSlackBytes -= a.Bytes
		for c := a.Addr / chunkBytes; c <= (a.Addr+a.Bytes-1)/chunkBytes; c++ {
			if !chunks[c] {
				chunks[c] = true
				t.ChunkSlackBytes += chunkBytes
			}
		}
	}
	t.PeakBytes = max(t.PeakBytes, t.LiveBytes)
	t.Put(&e.ctrs)
}

// Allocs implements collector.AllocSource.
func (e *Engine) Allocs(dst []spanring.Alloc) ([]spanring.Alloc, spanring.AllocScan, error) {
	if !e.o.Memory {
		return dst, spanring.AllocScan{}, nil
	}
	return append(dst, e.mem.live...), spanring.AllocScan{State: spanring.AllocsPublished, Totals: e.mem.total}, nil
}
