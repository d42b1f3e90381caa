package ledger

import (
	"errors"
	"testing"

	"github.com/lanetrace/lanetrace/spanring"
)

// TestNil: a backend without a ledger calls the same methods, and is told that
// memory is not tracked, not that there is none.
func TestNil(t *testing.T) {
	var l *Ledger
	p := l.Begin(device, 100)
	if off, n, _ := p.Guard(); p.AskBytes() != 100 || off != 0 || n != 0 {
		t.Errorf("%+v", p)
	}
	p.Done(4096)
	p.Failed()
	l.Arena(1, 2)
	tk := l.Take(4096)
	tk.Done(errors.New("no"))
	if tk.Known() {
		t.Error("known")
	}
	l.Attach(nil, 0, true)
	l.SetPublishing(true)
	l.Detach()
	for what, f := range map[string]func() (int64, bool){
		"live bytes": l.LiveBytes, "live count": l.LiveCount, "peak": l.PeakBytes,
		"chunk slack": l.ChunkSlackBytes, "rounding slack": l.RoundingSlackBytes, "arenas": l.ArenaBytes,
	} {
		if n, tracked := f(); n != 0 || tracked {
			t.Errorf("%s: %d, tracked %v", what, n, tracked)
		}
	}
	if as, tracked := l.LiveAllocations(); as != nil || tracked {
		t.Error(as, tracked)
	}
	if _, tracked := l.Totals(); tracked {
		t.Error("tracked")
	}
	if m := l.Memory(); m.State != spanring.AllocsNotTracked || l.AllocReport(5, 1) != "device memory: not tracked\n" {
		t.Errorf("%+v", m)
	}
	for _, pr := range []Probe{{}, l.Probe()} {
		if _, tracked := pr.Totals(); tracked || pr.Memory().State != spanring.AllocsNotTracked {
			t.Error("a probe on nothing is tracked")
		}
		if as, tracked := pr.LiveAllocations(); as != nil || tracked {
			t.Error(as, tracked)
		}
	}
	if n, err := l.Sweep(func(uint64) error { t.Error("frees"); return nil }); n != 0 || err != nil {
		t.Error(n, err)
	}
	if left := l.Drain(); left.Allocations != nil || l.DrainArenas() != nil {
		t.Error(left)
	}
	if n, err := l.ScanBands(nil, nil); n != 0 || err != nil {
		t.Error(n, err)
	}
	if err := l.PoisonBands(0, 9, nil); err != nil {
		t.Error(err)
	}
	if err := l.SetChunkBytes(4096); err == nil {
		t.Error("no error")
	}
	if r := l.Ranges([]Band{{Addr: 1, Bytes: 2}}); r != nil {
		t.Error(r)
	}
	// The zero Taken, of freeing null on a ledger that is there.
	l = newLedger(t, Options{})
	free(l, 0, errFake)
	l.Arena(0, 5)
	p = l.Begin(device, 5)
	p.Done(0)
	if tt, tracked := l.Totals(); !tracked || tt != (spanring.MemoryTotals{ChunkBytes: 2 << 20}) {
		t.Errorf("null changes %+v", tt)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, o := range []Options{
		{ChunkBytes: -1}, {ChunkBytes: 2048}, {ChunkBytes: 3 << 20}, {ChunkBytes: 2 << 30},
		{Redzone: Redzone{Bytes: -1}}, {Redzone: Redzone{Bytes: 1<<30 + 1}},
	} {
		if l, err := New(o); err == nil || l != nil {
			t.Errorf("%+v: %v, %v", o, l, err)
		}
	}
	l := newLedger(t, Options{ChunkBytes: 1 << 30})
	if err := l.SetChunkBytes(5000); err == nil {
		t.Error("chunks of 5,000 bytes")
	}
}
