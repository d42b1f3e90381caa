package collector

import (
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// TestWallOffsetStandsStill: as long as nobody sets the wall clock, a ring's offset
// is one number, near what the clocks say.
func TestWallOffsetStandsStill(t *testing.T) {
	src := openRing(t, newRing(t, ringDir(t), spanring.Info{Service: "s"}))
	first := src.WallOffsetNS()
	for range 50_000 {
		if now := src.WallOffsetNS(); now != first {
			t.Fatalf("%d, then %d", first, now)
		}
	}
	near := false
	for range 1000 {
		d := time.Now().UnixNano() - spanring.MonoNS() - first
		near = near || d > -1_000_000 && d < 1_000_000
	}
	if !near {
		t.Error("the clocks differ by something else")
	}
}
