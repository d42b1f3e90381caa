package collector

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// ProcessorOptions say what becomes of a source's steps. The zero value assembles
// steps and exports none.
type ProcessorOptions struct {
	// Label is the engine's name in metrics. Default EngineName of the source.
	Label string
	// Selector decides which steps are exported. Default NewLiveSelector(LiveOptions{}).
	// One that is given and a Watcher sees them without an exporter, too.
	Selector Selector
	// Exporter takes selected steps. Default none: every step is not selected.
	Exporter Exporter
	// Observers see every closed step of which anything came that has a time.
	Observers []Observer
	// Taps see every entry.
	Taps []Tap
	// Instruments take the engine's metrics. Default none.
	Instruments *Instruments

	// StepTimeout closes a step, marked incomplete, this long of the source's own
	// time after something was last received of it. Default 15 s.
	StepTimeout time.Duration
	// MaxOpenSteps is how many steps may be open; the one longest untouched is
	// closed, marked incomplete, when another begins. Default 4,096.
	MaxOpenSteps int
	// MaxSpansPerStep is how many landed spans of a step are kept; the rest are
	// dropped. Default 16,384.
	MaxSpansPerStep int
	// MaxOpenSpans bounds the spans of all open steps together, as MaxOpenSteps
	// does the steps. Default 131,072.
	MaxOpenSpans int

	// MaxOpenRequests is how many requests are gathered at a time, that is, have
	// steps but no summary yet; one longest untouched is forgotten for another.
	// Default 4,096.
	MaxOpenRequests int

	// Resume is where an earlier reader of this run left off; the source must begin at
	// its From. Default nil: nothing of the run was read before.
	Resume *Cursor
	// SaveCursor, when not nil, is told where Run stands, twice a second while entries
	// come, and at the end; steps that are open then are left to the next reader. The
	// source must be a ring.
	SaveCursor func(c Cursor)

	// Growth says which call sites are suspected leaks. Default: ledger.Growth's.
	Growth ledger.GrowthOptions

	// Logger takes what cannot be returned. Default discards.
	Logger *slog.Logger
}

func (o ProcessorOptions) withDefaults() ProcessorOptions {
	if o.Selector == nil {
		o.Selector = NewLiveSelector(LiveOptions{})
	}
	if o.StepTimeout == 0 {
		o.StepTimeout = 15 * time.Second
	}
	if o.MaxOpenSteps == 0 {
		o.MaxOpenSteps = 4096
	}
	if o.MaxSpansPerStep == 0 {
		o.MaxSpansPerStep = 16384
	}
	if o.MaxOpenSpans == 0 {
		o.MaxOpenSpans = 131072
	}
	if o.MaxOpenRequests == 0 {
		o.MaxOpenRequests = 4096
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Processor reads one source: it assembles its entries into steps and hands each,
// once closed, to the observers and, if selected, to the exporter. Its methods
// are called from one goroutine; it starts none.
type Processor struct {
	engine *Engine
	src    Source
	o      ProcessorOptions
	asm    *assembler
	batch  []spanring.Entry
	ended  bool
	watch  Watcher // of steps that no exporter takes; nil for none

	savedNS   int64  // when SaveCursor was told last
	savedNext uint64 // and how far
	leftFrom  uint64 // the first entry of the steps that are left to the next reader
}

// pollBatch is how many entries one Poll reads at most: 16 KiB of them stay in a
// core's cache.
const pollBatch = 256

// NewProcessor begins to read src, which it owns from then on. It fails when src
// cannot say who it is.
func NewProcessor(src Source, o ProcessorOptions) (*Processor, error) {
	info, err := src.Info()
	if err != nil {
		return nil, fmt.Errorf("read who produces the spans: %w", err)
	}
	watch, _ := o.Selector.(Watcher)
	o = o.withDefaults()
	if o.Label == "" {
		o.Label = EngineName(info)
	}
	e := &Engine{label: o.Label, runID: info.RunID, src: src}
	e.known.info = info
	e.sum.init(o.Label, o.Instruments.topKernels())
	e.sum.beganNS = src.NowMonoNS()
	e.mem.init(o.Label, o.Instruments.topSites(), o.Growth)
	p := &Processor{engine: e, src: src, o: o, batch: make([]spanring.Entry, pollBatch), leftFrom: math.MaxUint64, watch: watch}
	p.asm = newAssembler(e, &p.o)
	p.asm.resume(o.Resume)
	o.Instruments.add(e)
	return p, nil
}

// Engine is the run that is read.
func (p *Processor) Engine() *Engine { return p.engine }

// Poll reads what there is now, up to a bounded number of entries, and closes the
// steps that are whole or whose time-out has passed. n is how many entries were
// read; 0 and not done mean that nothing is there now. After done, and after an
// error, every step is closed, the taps have been told, and Poll reads nothing
// more. It does not block and, in the steady state, does not allocate.
func (p *Processor) Poll() (n int, done bool, err error) {
	if p.ended {
		return 0, true, nil
	}
	n, done, err = p.src.Poll(p.batch)
	batch := p.asm.unread(p.batch[:n])
	if len(batch) > 0 {
		for _, t := range p.o.Taps {
			t.Entries(p.engine, batch)
		}
	}
	p.assemble(batch)
	p.handOver()
	p.engine.taken.Store(p.src.Account().Received)
	p.engine.watchMemory(p.asm.nowNS)
	p.engine.watchLevel(p.asm.nowNS)
	if err != nil {
		p.finish(IncompleteEnded, EngineDied)
		return n, true, fmt.Errorf("read engine %s: %w", p.engine.label, err)
	}
	if done {
		st, why := EngineDied, IncompleteEnded
		if p.engine.Info().Clean {
			st = EngineEnded
		} else if alive, err := p.src.Alive(); err == nil && alive {
			// A recording that its engine outlived: reading ended, not the engine.
			st, why = EngineLive, IncompleteDetach
		}
		p.finish(why, st)
	}
	return n, done, nil
}

// Drain polls until the source is done, for sources that do not wait.
func (p *Processor) Drain() error {
	for {
		if _, done, err := p.Poll(); done || err != nil {
			return err
		}
	}
}

// lastPolls bounds what is still read when Run is told to stop, should the
// producer write faster than it can be read: 4 million entries.
const lastPolls = 1 << 14

// Run polls until the source is done or ctx is, pausing up to 100 ms when there
// is nothing to read. When ctx ends, what is there is read, open steps are closed
// as incomplete or, with SaveCursor, left to the next reader, and Run returns nil.
func (p *Processor) Run(ctx context.Context) error {
	w := newPacer()
	defer w.stop()
	for {
		n, done, err := p.Poll()
		p.saveCursor(done || err != nil)
		if done || err != nil {
			return err
		}
		if w.wait(ctx, n, len(p.batch)) == nil {
			continue
		}
		for range lastPolls {
			if n, done, err := p.Poll(); n == 0 || done || err != nil {
				break
			}
		}
		if p.o.SaveCursor != nil && !p.ended {
			p.leave()
		}
		p.Finish()
		p.saveCursor(true)
		return nil
	}
}

// Finish closes every open step, marked incomplete, and reads nothing more. It
// is for a collector that stops while its engine runs on.
func (p *Processor) Finish() {
	if !p.ended {
		p.finish(IncompleteDetach, EngineLive)
	}
}

func (p *Processor) finish(r IncompleteReason, st EngineState) {
	p.ended = true
	p.engine.sum.mu.Lock()
	p.asm.closeAll(r)
	p.countClosed()
	p.engine.gpu.finish()
	p.engine.sum.mu.Unlock()
	p.handOver()
	p.asm.requests.finishAll()
	p.handOverRequests()
	p.engine.state.Store(uint32(st))
	for _, t := range p.o.Taps {
		t.Ended(p.engine)
	}
}

// forgetter is an exporter that keeps something of each engine.
type forgetter interface{ Forget(e *Engine) }

// Close finishes and closes the source. The engine's metrics stay until Forget.
func (p *Processor) Close() error {
	p.Finish()
	if f, ok := p.o.Exporter.(forgetter); ok {
		f.Forget(p.engine)
	}
	return p.engine.close()
}

// Forget ends the engine's series in the instruments.
func (p *Processor) Forget() { p.o.Instruments.remove(p.engine) }

// assemble takes a batch in. The engine's aggregates are locked meanwhile.
func (p *Processor) assemble(batch []spanring.Entry) {
	a := p.asm
	a.nowNS, a.wallOffsetNS = p.src.NowMonoNS(), p.src.WallOffsetNS()
	a.gaps.watch(p.src.Account(), a.nowNS)
	p.engine.sum.mu.Lock()
	for i := range batch {
		a.seq = batch[i].Seq
		a.again = a.wasRead(a.seq)
		a.add(&batch[i].Words)
	}
	a.expire()
	p.countClosed()
	p.engine.sum.mu.Unlock()
	a.flush()
}

// countClosed counts the steps that are about to be handed over.
func (p *Processor) countClosed() {
	for _, s := range p.asm.ready {
		p.engine.sum.step(s)
		p.engine.gpu.add(s)
	}
	p.engine.gpu.settle(p.asm.oldestBegin())
	p.engine.sum.openSteps = len(p.asm.open)
}

// handOver gives the closed steps to whom they concern, in the order in which
// they closed, and reuses them.
func (p *Processor) handOver() {
	for _, s := range p.asm.ready {
		if !s.placed() {
			p.asm.requests.closed(s, false)
			continue
		}
		for _, ob := range p.o.Observers {
			ob.ObserveStep(s)
		}
		units := s.Units()
		if p.o.Exporter == nil {
			if p.watch != nil {
				p.watch.Watch(s)
			}
			p.engine.ledger.NotSelect(NotWanted, units)
			p.asm.requests.closed(s, false)
			continue
		}
		reason, not := p.o.Selector.Select(s)
		p.asm.requests.closed(s, reason != ExportNone)
		if reason == ExportNone {
			p.engine.ledger.NotSelect(not, units)
			continue
		}
		p.engine.sum.selected(reason)
		p.o.Exporter.Export(s, reason)
	}
	p.handOverRequests()
	p.asm.recycle()
}
