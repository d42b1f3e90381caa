package collector

import (
	"context"
	"log/slog"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// Options say which rings a Collector reads and what becomes of their steps.
type Options struct {
	// Dir is the ring directory; it must exist. Required.
	Dir spanring.Dir
	// NewSelector makes the selector of one engine. Default LiveSelector{}.
	NewSelector func(e *Engine) Selector
	// Exporter, Observers, Taps, StepTimeout, MaxOpenSteps, MaxSpansPerStep and
	// MaxOpenSpans are as in ProcessorOptions; Label and Selector there are the
	// collector's to set.
	Processor ProcessorOptions

	// Rescan is how often the directory is looked at for new rings. Default 250 ms.
	Rescan time.Duration
	// Linger is how long the metrics of an engine that ended are still shown, so
	// that its last values are scraped. Default 5 min. A new engine that would
	// carry the same label ends it earlier.
	Linger time.Duration
	// FromNow skips what is already in a ring found at the start. Default false.
	FromNow bool
	// OnAttach, when not nil, is told of each engine before its entries are read.
	OnAttach func(e *Engine)

	// Logger takes what happens: engines that come and go, rings that cannot be
	// read. Default discards.
	Logger *slog.Logger
}

// Collector reads every ring of a directory.
type Collector struct{ o Options }

// New checks the directory and returns a Collector that does not run yet.
func New(o Options) (*Collector, error) { return nil, nil }

// Run attaches to every ring, also to those that appear later, and reads them
// until ctx ends. Then it reads what is there, closes open steps as incomplete
// and returns nil. It fails only when the ring directory cannot be read at all.
func (c *Collector) Run(ctx context.Context) error { return nil }

// Engines are the runs known now, those that ended and still linger included, in
// order of label.
func (c *Collector) Engines() []*Engine { return nil }

// Accounts are the loss accounts of Engines.
func (c *Collector) Accounts() []Account { return nil }
