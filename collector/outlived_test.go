package collector

import "testing"

// outlived is a source that ends while its producer runs on, as a recording of a
// live engine does.
type outlived struct{ *memSource }

func (outlived) Alive() (bool, error) { return true, nil }

func TestSourceEndsBeforeEngine(t *testing.T) {
	for _, tc := range []struct {
		name  string
		src   func(*memSource) Source
		clean bool
		state EngineState
		why   IncompleteReason
	}{
		{"outlived", func(s *memSource) Source { return outlived{s} }, false, EngineLive, IncompleteDetach},
		{"died", func(s *memSource) Source { return s }, false, EngineDied, IncompleteEnded},
		{"ended", func(s *memSource) Source { return s }, true, EngineEnded, IncompleteEnded},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newMemSource("decode").push(begin(1, 1_000_000_000))
			s.done, s.info.Clean = true, tc.clean
			var k keep
			p, err := NewProcessor(tc.src(s), ProcessorOptions{Observers: []Observer{&k}})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if err := p.Drain(); err != nil {
				t.Fatal(err)
			}
			if got := p.Engine().State(); got != tc.state {
				t.Errorf("state %v, want %v", got, tc.state)
			}
			if len(k.steps) != 1 || k.steps[0].Incomplete != tc.why {
				t.Errorf("steps %+v, want one that is incomplete: %v", k.steps, tc.why)
			}
		})
	}
}
