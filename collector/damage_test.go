package collector

import (
	"os"
	"testing"

	"github.com/lanetrace/lanetrace/spanring"
)

// TestRingDamagedWhileRead: it is counted as what it would be had it been so when it
// was opened.
func TestRingDamagedWhileRead(t *testing.T) {
	d := ringDir(t)
	w := newRing(t, d, spanring.Info{Service: "s"})
	var n counter
	ins := NewInstruments(InstrumentOptions{})
	start(t, Options{Dir: d, Processor: ProcessorOptions{Instruments: ins, Observers: []Observer{&n}}})
	writeStep(w, 1, 0)
	eventually(t, "step 1", func() bool { return n.of("s") == 1 })
	f, err := os.OpenFile(w.Path(), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const head = 0x300 // the next sequence number, which never goes back
	if _, err := f.WriteAt(make([]byte, 8), head); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the ring is given up", func() bool { return ins.rings[ringCorrupt].Load()+ins.rings[ringUnreadable].Load() > 0 })
	if ins.rings[ringCorrupt].Load() != 1 {
		t.Error("not counted as corrupt")
	}
}
