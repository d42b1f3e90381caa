package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/dashboards/web"
	"github.com/lanetrace/lanetrace/exporters/chrome"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/spanring"
)

// downloads writes steps that the live page shows. They are read from the ring anew:
// what is read for a download must not be counted as exported in the account of the
// engine.
func downloads(dir spanring.Dir) func(io.Writer, web.Download) error {
	return func(w io.Writer, d web.Download) error {
		src, err := openRun(dir, d.Run)
		if err != nil {
			return err
		}
		if d.Format == web.FormatRecording {
			return errors.Join(recordSteps(w, src, d.Steps), src.Close())
		}
		return chromeSteps(w, src, d.Steps)
	}
}

// openRun opens the ring of a run from its oldest entry.
func openRun(dir spanring.Dir, run string) (collector.Source, error) {
	rings, err := openRings(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, web.ErrNoRun
	}
	if err != nil {
		return nil, err
	}
	for r := range rings {
		if r.err != nil {
			continue // another engine's trouble
		}
		if r.info.RunID.String() == run {
			return collector.NewRingSource(r.Reader), nil
		}
		if err := r.Close(); err != nil {
			return nil, fmt.Errorf("close ring: %w", err)
		}
	}
	return nil, web.ErrNoRun
}

// chromeSteps writes steps as trace events, and closes src.
func chromeSteps(w io.Writer, src collector.Source, steps web.Steps) error {
	c := chrome.NewWriter(w)
	p, err := collector.NewProcessor(src, collector.ProcessorOptions{Exporter: stepFilter{c, steps}, Selector: collector.SelectAll{}})
	if err != nil {
		return errors.Join(err, src.Close())
	}
	err = collector.PollToNow(src, p.Poll)
	err = errors.Join(err, p.Close())
	return errors.Join(err, c.Close())
}

// stepFilter lets some steps through.
type stepFilter struct {
	next  collector.Exporter
	steps web.Steps
}

// Export implements collector.Exporter.
func (f stepFilter) Export(s *collector.Step, reason collector.ExportReason) {
	if f.steps.Has(s.Number) {
		f.next.Export(s, reason)
		return
	}
	s.Engine.Ledger().NotSelect(collector.NotWanted, s.Units())
}

// recordSteps writes the entries of steps as a recording.
func recordSteps(w io.Writer, src collector.Source, steps web.Steps) error {
	rec, err := recording.NewWriter(w, recording.Options{Writer: program})
	if err != nil {
		return err
	}
	run, err := rec.Begin(src)
	if err != nil {
		return errors.Join(err, rec.Close())
	}
	batch := make([]spanring.Entry, 256)
	err = collector.PollToNow(src, func() (int, bool, error) {
		n, done, err := src.Poll(batch)
		kept := batch[:0]
		for i := range batch[:n] {
			if step := batch[i].Words.Step(); step != 0 && steps.Has(step) {
				kept = append(kept, batch[i])
			}
		}
		if len(kept) > 0 {
			err = errors.Join(err, run.Append(kept))
		}
		return n, done, err
	})
	return errors.Join(err, run.End(), rec.Close())
}
