package collector

import (
	"os"
	"testing"

	"github.com/lanetrace/lanetrace/spanring"
)

// TestEndWhileAway: the end of an engine that the sidecar before left alive is counted
// by the one that finds it dead, once; of a ring that nobody read before it is no news.
func TestEndWhileAway(t *testing.T) {
	die := func(t *testing.T, w *spanring.Writer) {
		// A copy that nobody holds is what a crash leaves.
		b, err := os.ReadFile(w.Path())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(w.Path()+".copy", b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(w.Path()+".copy", w.Path()); err != nil {
			t.Fatal(err)
		}
	}
	end := func(t *testing.T, w *spanring.Writer) {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	type lives [2]uint64 // ended, died
	for _, c := range []struct {
		name    string
		readYet bool // by a sidecar that left it alive
		end     func(*testing.T, *spanring.Writer)
		first   lives // of the sidecar that finds it dead
	}{
		{"died", true, die, lives{0, 1}},
		{"ended", true, end, lives{1, 0}},
		{"died unread", false, die, lives{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := ringDir(t)
			w := newRing(t, d, spanring.Info{Service: "s"})
			k, err := NewCursors(t.TempDir(), nil)
			if err != nil {
				t.Fatal(err)
			}
			live := func(until func(e *Engine) bool) lives {
				ins := NewInstruments(InstrumentOptions{})
				col, stop := start(t, Options{Dir: d, Cursors: k, Processor: ProcessorOptions{Instruments: ins}})
				eventually(t, "the engine is seen", func() bool { es := col.Engines(); return len(es) == 1 && until(es[0]) })
				stop()
				return lives{ins.ended[0].Load(), ins.ended[1].Load()}
			}
			writeStep(w, 1, 0)
			if c.readYet {
				if got := live(func(e *Engine) bool { return e.ReaderAccount().Received > 0 }); got != (lives{}) {
					t.Errorf("while it lived: %v", got)
				}
			}
			writeStep(w, 2, 0)
			c.end(t, w)
			gone := func(e *Engine) bool { return e.State() != EngineLive }
			if got := live(gone); got != c.first {
				t.Errorf("found dead: %v, want %v", got, c.first)
			}
			if got := live(gone); got != (lives{}) {
				t.Errorf("found dead again: %v", got)
			}
		})
	}
}
