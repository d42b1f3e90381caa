package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/report"
	"github.com/lanetrace/lanetrace/spanring"
)

// past writes what the rings still hold of the time just past: every step that
// ended in it, and those that are under way.
func (c *recordCmd) past(a *app, dir spanring.Dir) (err error) {
	discard, name := func() error { return os.Remove(c.Out) }, c.Out
	if c.Out == standardOutput {
		discard, name = func() error { return nil }, "standard output"
	} else if _, err := os.Lstat(c.Out); err == nil {
		return fmt.Errorf("%s exists: give another --out, or --force to write over it", c.Out)
	}
	rings, err := openRings(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		rings = func(func(foundRing) bool) {}
	case err != nil:
		return err
	}
	sink, err := a.fileSink(cmp.Or(c.Format, formatChrome), c.Out)
	if err != nil {
		return err
	}
	since := time.Now().Add(-time.Duration(c.Last)).UnixNano()
	w := &counting{window: window{next: sink.exporter, sinceUnixNS: since, left: new(leftOut)}}
	var seen []spanring.Info
	engines := uint64(0)
	for r := range rings {
		var ok bool
		var i spanring.Info
		i, ok, err = c.pastOf(a, r, w)
		if err != nil {
			break
		}
		if i != (spanring.Info{}) {
			seen = append(seen, i)
		}
		if ok {
			engines++
		}
	}
	err = errors.Join(err, sink.close())
	switch {
	case err != nil:
		return err
	case engines == 0 && c.Engine == "" && len(seen) > 0:
		return errors.Join(fmt.Errorf("no live engine in %s: --engine takes one that ended: %s", dir.Path, namesOf(seen)), discard())
	case engines == 0:
		return errors.Join(c.Engine.none(dir.Path, seen), discard())
	case w.steps == 0:
		a.say("wrote %s: the rings hold no step of the last %v", name, time.Duration(c.Last))
		return nil
	}
	reach := time.Duration(time.Now().UnixNano() - w.firstUnixNS).Round(time.Second)
	a.say("wrote %s: %s of %s, the oldest of %v ago", name, report.Plural(w.steps, "step"), report.Plural(engines, "engine"), reach)
	return nil
}

// pastOf writes what one ring holds, if its engine is picked. ok is false when it
// is not.
func (c *recordCmd) pastOf(a *app, r foundRing, w *counting) (info spanring.Info, ok bool, err error) {
	if r.err != nil {
		a.say("warning: cannot read ring %s: %s", r.path, oneLine(r.err.Error()))
		return info, false, nil
	}
	info = r.info
	src := collector.NewRingSource(r.Reader)
	alive, err := src.Alive()
	if !c.Engine.picks(info) || c.Engine == "" && (err != nil || !alive) {
		return info, false, src.Close()
	}
	p, err := collector.NewProcessor(src, collector.ProcessorOptions{Exporter: w, Selector: collector.SelectAll{}, Logger: a.log.slog(true)})
	if err != nil {
		return info, false, errors.Join(err, src.Close())
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	err = collector.PollToNow(src, func() (int, bool, error) {
		if err := a.ctx.Err(); err != nil {
			return 0, false, err
		}
		return p.Poll()
	})
	return info, a.ctx.Err() == nil, err
}

// counting counts the steps that a window lets through.
type counting struct {
	window
	steps       uint64
	firstUnixNS int64
}

// Export implements collector.Exporter.
func (w *counting) Export(s *collector.Step, reason collector.ExportReason) {
	if start, end := s.Bounds(); w.holds(s.UnixNS(start), s.UnixNS(end)) {
		if at := s.UnixNS(start); w.steps == 0 || at < w.firstUnixNS {
			w.firstUnixNS = at
		}
		w.steps++
	}
	w.window.Export(s, reason)
}
