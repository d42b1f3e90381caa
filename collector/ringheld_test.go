package collector

import (
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// TestEntryRate: before there is a window the rate is the run's, then that of the
// last half minute to minute.
func TestEntryRate(t *testing.T) {
	var r entryRate
	start := look{monoNS: 5e9}
	n := uint64(0)
	for _, tt := range []struct {
		after time.Duration // after the one before
		more  uint64
		want  float64
	}{
		{10 * time.Second, 1000, 100},
		{20 * time.Second, 2000, 100},    // at 30 s, the first look that is kept
		{10 * time.Second, 10_000, 325},  // 13,000 in 40 s
		{20 * time.Second, 20_000, 1000}, // at 60 s: since 30 s
		{40 * time.Second, 0, 0},         // at 100 s: since 60 s
		{0, 0, 0},
		{10 * time.Second, 1000, 20}, // at 110 s: since 60 s
	} {
		start2 := start
		n += tt.more
		start.monoNS += int64(tt.after)
		if got := r.perSecond(look{start.monoNS, n}, start2); got != tt.want {
			t.Errorf("at %d s with %d: %v entries a second, want %v", start.monoNS/1e9-5, n, got, tt.want)
		}
	}
	// A counter that falls, as a hostile ring's may, has no rate.
	if got := r.perSecond(look{start.monoNS + 1e9, 0}, start); got != 0 {
		t.Errorf("rate %v", got)
	}
}

// TestRingHeld: a ring of 4,096 entries at 2,048 a second holds two seconds.
func TestRingHeld(t *testing.T) {
	w, err := spanring.NewHeap(spanring.Options{Geometry: smallRing})
	if err != nil {
		t.Fatal(err)
	}
	r, err := spanring.NewHeapReader(w, spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewProcessor(NewRingSource(r), ProcessorOptions{Label: "e"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	e := p.Engine()
	now := e.NowMonoNS()
	e.sum.rate.older = look{now - 10e9, 0}
	e.sum.rate.newer = e.sum.rate.older
	entries := float64(w.Geometry().LogEntries)
	got, ok := e.ringHeld(uint64(10 * entries))
	if want := 1.0; !ok || got < want || got > want*1.2 {
		t.Errorf("held %v s, %v, want %v", got, ok, want)
	}
	if got, _ := e.ringHeld(0); got != maxHeld.Seconds() {
		t.Errorf("a ring to which nothing is written holds %v s", got)
	}
	p.finish(IncompleteEnded, EngineDied)
	if _, ok := e.ringHeld(0); ok {
		t.Error("a dead engine's ring has a rate")
	}
}
