package collector

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/lanetrace/lanetrace/spanring"
)

// A ring that was copied from elsewhere, or is of an earlier boot, has times of a
// monotonic clock that is not this machine's.
func TestWallClockOfARingOfThePast(t *testing.T) {
	d := spanring.Dir{Path: filepath.Join(t.TempDir(), "rings"), Group: -1}
	if err := d.Make(); err != nil {
		t.Fatal(err)
	}
	w, err := spanring.Create(d, spanring.Options{Geometry: spanring.Geometry{LogEntries: 64, Slots: 1, NameBytes: 4096, Allocs: 1}})
	if err != nil {
		t.Fatal(err)
	}
	path := w.Path()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The times of its making: words at 0x80 and 0x88.
	const unixNS, monoNS = 1_700_000_000_000_000_000, 7_000_000_000
	binary.LittleEndian.PutUint64(b[0x80:], unixNS)
	binary.LittleEndian.PutUint64(b[0x88:], monoNS)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := spanring.Open(path, spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := NewRingSource(r)
	defer s.Close()
	for range 2 {
		if got := s.WallOffsetNS(); got != unixNS-monoNS {
			t.Errorf("offset %d, want %d", got, int64(unixNS-monoNS))
		}
		if _, _, err := s.Poll(nil); err != nil {
			t.Fatal(err)
		}
	}
}
