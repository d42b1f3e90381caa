package collector

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/lanetrace/lanetrace/spanring"
)

// TestDrainToNow: an engine that lives is read as far as it was, one that is gone to
// its end, whatever a poll holds.
func TestDrainToNow(t *testing.T) {
	d := spanring.Dir{Path: filepath.Join(t.TempDir(), "rings"), Group: -1}
	if err := d.Make(); err != nil {
		t.Fatal(err)
	}
	w, err := spanring.Create(d, spanring.Options{Geometry: spanring.Geometry{LogEntries: 1024, Slots: 1, NameBytes: 4096, Allocs: 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	step := func(n uint64) {
		b := (&spanring.StepBegin{Step: n, MonoNS: int64(n)}).Words()
		e := (&spanring.StepEnd{Step: n, BeginNS: int64(n), MonoNS: int64(n) + 1}).Words()
		w.Append(&b)
		w.Append(&e)
	}
	const before = pollBatch // two entries each: two whole polls
	for n := range uint64(before) {
		step(n + 1)
	}
	open := (&spanring.StepBegin{Step: before + 1, MonoNS: before + 1}).Words()
	w.Append(&open)
	dead := filepath.Join(t.TempDir(), filepath.Base(w.Path()))
	b, err := os.ReadFile(w.Path())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dead, b, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, path string
		steps      int // those that the engine writes while it is read are not waited for
		state      EngineState
		last       IncompleteReason
	}{
		{"live", w.Path(), before + 1, EngineLive, IncompleteDetach},
		{"dead", dead, before + 1, EngineDied, IncompleteEnded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := spanring.Open(tt.path, spanring.ReaderOptions{})
			if err != nil {
				t.Fatal(err)
			}
			steps, reasons, polls := 0, map[IncompleteReason]int{}, 0
			p, err := NewProcessor(NewRingSource(r), ProcessorOptions{Observers: []Observer{ObserverFunc(func(s *Step) {
				steps++
				reasons[s.Incomplete]++
				if tt.state == EngineLive && polls < 100 {
					polls++ // it writes as fast as it is read
					step(before + 1 + uint64(polls))
				}
			})}})
			if err != nil {
				t.Fatal(err)
			}
			if err := p.DrainToNow(); err != nil {
				t.Fatal(err)
			}
			if p.Engine().State() != tt.state || reasons[tt.last] != 1 {
				t.Errorf("state %v, steps by reason %v; want %v and one %v", p.Engine().State(), reasons, tt.state, tt.last)
			}
			if steps < tt.steps || tt.state == EngineDied && steps != tt.steps {
				t.Errorf("%d steps, want %d", steps, tt.steps)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
