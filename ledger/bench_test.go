package ledger

import (
	"os"
	"runtime"
	"testing"

	"github.com/lanetrace/lanetrace/spanring"
)

// benchLedger has a thousand allocations live.
func benchLedger(b *testing.B, publish bool, o Options) *Ledger {
	w, _ := heapRing(b, spanring.Geometry{})
	l := newLedger(b, o)
	l.Attach(w, 0, publish)
	for i := range uint64(1000) {
		alloc(l, 1<<40+i*4096, 1000)
	}
	return l
}

// BenchmarkAllocFree is one allocation and one free through the ledger, without a
// driver, written to table and log.
func BenchmarkAllocFree(b *testing.B) {
	l := benchLedger(b, true, Options{})
	b.ReportAllocs()
	next := uint64(1000)
	for b.Loop() {
		p := l.Begin(device, 1000)
		p.Done(1<<40 + next*4096)
		t := l.Take(1<<40 + (next-1000)*4096)
		t.Done(nil)
		next++
	}
}

// BenchmarkAllocFreeOff is the same at level off.
func BenchmarkAllocFreeOff(b *testing.B) {
	l := benchLedger(b, false, Options{})
	b.ReportAllocs()
	next := uint64(1000)
	for b.Loop() {
		p := l.Begin(device, 1000)
		p.Done(1<<40 + next*4096)
		t := l.Take(1<<40 + (next-1000)*4096)
		t.Done(nil)
		next++
	}
}

// BenchmarkAllocFreeGuarded is the same with guard bands.
func BenchmarkAllocFreeGuarded(b *testing.B) {
	l := benchLedger(b, true, Options{Redzone: Redzone{Bytes: 64}})
	b.ReportAllocs()
	for b.Loop() {
		p := l.Begin(device, 1000)
		p.Done(1 << 50)
		t := l.Take(1 << 50)
		t.Done(nil)
	}
}

// BenchmarkCallSite is finding the call site alone.
func BenchmarkCallSite(b *testing.B) {
	l := newLedger(b, Options{})
	b.ReportAllocs()
	for b.Loop() {
		var pcs [firstFrames]uintptr
		l.callSite(&pcs, runtime.Callers(2, pcs[:]))
	}
}

// BenchmarkSlack is one figure.
func BenchmarkSlack(b *testing.B) {
	l := benchLedger(b, true, Options{})
	b.ReportAllocs()
	var sum int64
	for b.Loop() {
		n, _ := l.ChunkSlackBytes()
		sum += n
	}
	if sum == 0 {
		b.Error("no slack")
	}
}

// BenchmarkFullTable reads a full table of the default size from a mapping of its
// own, as another process does, down to the sites.
func BenchmarkFullTable(b *testing.B) {
	dir := b.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		b.Fatal(err)
	}
	w, err := spanring.Create(spanring.Dir{Path: dir, Group: -1}, spanring.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	l := newLedger(b, Options{})
	l.Attach(w, 0, true)
	for i := range uint64(spanring.DefaultGeometry.Allocs) {
		alloc(l, 1<<40+i*4096, 1000)
	}
	r, err := spanring.Open(w.Path(), spanring.ReaderOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	var as []spanring.Alloc
	b.ReportAllocs()
	for b.Loop() {
		var s spanring.AllocScan
		if as, s, err = r.Allocs(as[:0]); err != nil || len(as) != spanring.DefaultGeometry.Allocs {
			b.Fatal(len(as), err)
		}
		if m := FromRing(as, s, r.Name); len(m.Sites) != 1 {
			b.Fatal(m.Sites)
		}
	}
}

// BenchmarkCompareBand compares an untouched band of 4 KiB.
func BenchmarkCompareBand(b *testing.B) {
	band := make([]byte, 4096)
	b.SetBytes(4096)
	for b.Loop() {
		if _, changed := CompareBand(band, 0); changed {
			b.Fatal("changed")
		}
	}
}
