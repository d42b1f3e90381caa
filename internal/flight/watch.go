package flight

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/report"
	"github.com/lanetrace/lanetrace/spanring"
)

// WatchOptions say what a Watcher watches for and what it tells.
type WatchOptions struct {
	// Keeper makes the records; nil makes none, and hangs are told all the same.
	Keeper *Keeper
	// HangAfter is how long a span of an engine that lives may be in flight before the
	// engine counts as hung. Default 30 s.
	HangAfter time.Duration
	// Every is how often engines are looked at for hangs. Default 1 s.
	Every time.Duration
	// Instruments count the records. Default none.
	Instruments *collector.Instruments
	// Logger takes one line for each record, hang and recovery. Default discards.
	Logger *slog.Logger
}

// Watcher makes flight records of engines that die or hang. Its methods may be called
// from any goroutine.
type Watcher struct {
	o WatchOptions

	mu   sync.Mutex
	hung map[spanring.RunID]time.Time // since when, of the engines that hang now
}

// NewWatcher returns a Watcher that has seen nothing.
func NewWatcher(o WatchOptions) *Watcher {
	if o.HangAfter == 0 {
		o.HangAfter = 30 * time.Second
	}
	if o.Every == 0 {
		o.Every = time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Watcher{o: o, hung: make(map[spanring.RunID]time.Time)}
}

// Ended makes the record of an engine that died, if it has none; of engines that ended
// orderly there is nothing to record. It is for collector.Options.OnEnd and blocks some
// tens of milliseconds. Engines that were dead when they were found count too.
func (w *Watcher) Ended(e *collector.Engine) {
	w.mu.Lock()
	delete(w.hung, e.RunID())
	w.mu.Unlock()
	if e.State() != collector.EngineDied {
		return
	}
	// Found dead again, after a restart of this process, it has one.
	if page := w.keep(e, Died, time.Time{}); page != "" {
		w.o.Logger.Warn("flight record of an engine that died", "engine", e.Label(), "run_id", e.RunID().String(), "flight_record", page)
	}
}

// Run looks at the engines for hangs until ctx ends. engines are those that are known
// now.
func (w *Watcher) Run(ctx context.Context, engines func() []*collector.Engine) {
	t := time.NewTicker(w.o.Every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for _, e := range engines() {
			w.look(e)
		}
	}
}

// look looks at one engine. That it hangs is told once, and again only after it moved.
func (w *Watcher) look(e *collector.Engine) {
	if e.State() != collector.EngineLive {
		return
	}
	f, inFlight := Oldest(e)
	stuck := inFlight && f.Age >= w.o.HangAfter
	w.mu.Lock()
	since, was := w.hung[e.RunID()]
	switch {
	case stuck && !was:
		since = time.Now().Add(-f.Age)
		w.hung[e.RunID()] = since
	case !stuck:
		delete(w.hung, e.RunID())
	}
	w.mu.Unlock()
	switch {
	case stuck == was:
		return
	case was:
		w.o.Logger.Info("engine moves again", "engine", e.Label(), "run_id", e.RunID().String(), "after", time.Since(since).Round(time.Second).String())
		return
	}
	// A process that died with a span in flight hangs for nobody.
	if alive, err := e.Source().Alive(); err != nil || !alive {
		w.mu.Lock()
		delete(w.hung, e.RunID())
		w.mu.Unlock()
		return
	}
	// A record made since the span was enqueued is of this hang: this process was
	// restarted meanwhile.
	page := w.keep(e, Hung, since)
	attrs := []any{
		"engine", e.Label(), "run_id", e.RunID().String(), f.Slot.Kind.String(), SpanName(e.Source(), f.Slot), "lane", laneName(e, f.Slot, e.Busy(), nil),
		"stream", int(f.Slot.Stream), "step", f.Slot.Step, "age", report.Duration(float64(f.Age)),
	}
	if f.Slot.Kind == spanring.KindLane {
		attrs = append(attrs[:4], attrs[6:]...)
	}
	if page != "" {
		attrs = append(attrs, "flight_record", page)
	}
	w.o.Logger.Warn("engine hangs: a span is in flight for too long", attrs...)
}

// keep makes a record and counts it; page is "" when there is one already, or none is
// to be made. What goes wrong is told.
func (w *Watcher) keep(e *collector.Engine, why Reason, since time.Time) (page string) {
	ring, isRing := e.Source().(interface{ Path() string })
	if w.o.Keeper == nil || !isRing {
		return ""
	}
	reason := collector.FlightDied
	if why == Hung {
		reason = collector.FlightHung
	}
	page, err := w.o.Keeper.KeepSince(ring.Path(), why, since)
	switch {
	case err != nil:
		w.o.Instruments.CountFlight(reason, false)
		w.o.Logger.Warn("no flight record", "engine", e.Label(), "run_id", e.RunID().String(), "reason", err.Error())
	case page != "":
		w.o.Instruments.CountFlight(reason, true)
	}
	return page
}
