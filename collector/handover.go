package collector

import "github.com/lanetrace/lanetrace/spanring"

// Exporter takes the steps that were selected. It encodes or copies what it
// needs during the call, because the step is reused afterwards; it neither
// blocks nor fails: what it cannot send is settled with the engine's [Ledger],
// now or later, each unit of the step exactly once.
type Exporter interface {
	Export(s *Step, reason ExportReason)
}

// Observer sees every closed step, selected or not, during the call only.
type Observer interface {
	ObserveStep(s *Step)
}

// Tap sees the entries of a source before anything is made of them, as a
// recording needs them. Its methods are called on the goroutine that polls the
// source and may use the source's other methods.
type Tap interface {
	// Entries is called after each Poll that returned some. The slice is reused.
	Entries(e *Engine, entries []spanring.Entry)
	// Ended is called once when the source has nothing more or is given up.
	Ended(e *Engine)
}

// ObserverFunc makes a function an Observer.
type ObserverFunc func(s *Step)

// ObserveStep calls f.
func (f ObserverFunc) ObserveStep(s *Step) { f(s) }
