package collector

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lanetrace/lanetrace/spanring"
)

// TestMoreRingsThanAreRead: it is said once that some wait, and they are read when
// there is room.
func TestMoreRingsThanAreRead(t *testing.T) {
	d := ringDir(t)
	none := func(n int) string { return filepath.Join(d.Path, fmt.Sprintf("none%d.ring", n)) }
	for n := range maxRings {
		if err := os.WriteFile(none(n), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log syncBuffer
	ins := NewInstruments(InstrumentOptions{})
	c, stop := start(t, Options{Dir: d, Logger: slog.New(slog.NewTextHandler(&log, nil)), Processor: ProcessorOptions{Instruments: ins}})
	eventually(t, "all are refused", func() bool { return ins.rings[ringCorrupt].Load() == maxRings })
	writeStep(newRing(t, d, spanring.Info{Service: "s"}), 1, 0)
	eventually(t, "a warning", func() bool { return strings.Contains(log.String(), "too many rings") })
	if es := c.Engines(); len(es) != 0 {
		t.Errorf("%d engines", len(es))
	}
	if err := os.Remove(none(7)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the engine", func() bool { return len(c.Engines()) == 1 })
	stop()
	if n := strings.Count(log.String(), "too many rings"); n != 1 {
		t.Errorf("warned %d times", n)
	}
}
