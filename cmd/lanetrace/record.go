package main

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/report"
	"github.com/lanetrace/lanetrace/spanring"
)

type recordCmd struct {
	Out    string      `short:"o" help:"File to write (recordings end in .ltrec); with --last - is standard output." required:"" placeholder:"FILE"`
	Last   period      `help:"Write what the rings still hold of the time just past, at most so long, and end at once." placeholder:"D"`
	Format format      `help:"With --last: chrome (trace events, which https://ui.perfetto.dev opens), text or otlp-json (default chrome)." placeholder:"text|otlp-json|chrome"`
	Engine engineMatch `help:"Record only this engine: a service name, an executable or the beginning of a run id." placeholder:"E"`
	Force  bool        `help:"Write over a file that is there."`
	dirFlags
	deviceFlags
	Duration period `help:"End after so long (default: on SIGINT or SIGTERM)." placeholder:"D"`
}

// How often a recording is flushed and its progress shown.
const (
	flushEvery    = time.Second
	progressEvery = 10 * time.Second
)

// Validate implements kong's validation.
func (c *recordCmd) Validate() error {
	switch {
	case c.Last != 0 && c.Duration != 0:
		return errors.New("--last writes what is past, --duration what is to come: give one of them")
	case c.Last == 0 && c.Out == standardOutput:
		return errors.New("a recording goes to a file: only --last writes to standard output")
	case c.Last == 0 && c.Format != "":
		return errors.New("--format is for --last; a recording is played in any format by replay")
	}
	return nil
}

// Run records until a signal comes or the duration is over.
func (c *recordCmd) Run(a *app) (err error) {
	dir, named, err := c.ringDir()
	if err != nil {
		return err
	}
	if err := dir.CheckReadable(); err != nil && (named || !errors.Is(err, spanring.ErrDirMissing)) {
		return err
	}
	if c.Force {
		var back func() error
		if back, err = setAside(c.Out); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, back()) }()
	}
	if c.Last != 0 {
		return c.past(a, dir)
	}
	w, err := recording.Create(c.Out, recording.Options{Writer: program})
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists: give another --out, or --force to write over it", c.Out)
	}
	if err != nil {
		return bareOpen(c.Out, err)
	}
	tap := &pickTap{w: w, match: c.Engine, picked: make(map[*collector.Engine]bool)}
	defer func() {
		err = errors.Join(err, w.Close())
		if st := w.Stats(); st.Runs == 0 && err == nil {
			// A recording of nothing is of no use to anybody.
			err = errors.Join(c.Engine.none(dir.Path, tap.seen()), os.Remove(c.Out))
		} else if err == nil {
			a.say("wrote %s: %s", c.Out, progressText(st))
		}
	}()

	ctx, cancel := c.Duration.bound(a.ctx)
	defer cancel()
	if err := a.awaitDir(ctx, dir); err != nil || ctx.Err() != nil {
		return err
	}
	col, err := collector.New(collector.Options{
		Dir: dir, Logger: a.log.slog(true), GPUWait: time.Second,
		Processor: collector.ProcessorOptions{Taps: []collector.Tap{tap}},
	})
	if err != nil {
		return err
	}
	gpus, err := c.devices(a, a.log.slog(true), nil, w)
	if err != nil {
		return err
	}
	gpus.start(ctx)
	defer gpus.stop()
	stop := make(chan struct{})
	var shown sync.WaitGroup
	shown.Go(func() { a.showProgress(w, cancel, stop) })
	err = col.Run(ctx)
	close(stop)
	shown.Wait()
	return err
}

// showProgress flushes the recording and says how far it is, until stop closes. A
// recording that failed is not waited for: give ends it.
func (a *app) showProgress(w *recording.Writer, give func(), stop <-chan struct{}) {
	_, terminal := terminalSize(a.stderr)
	t := time.NewTicker(flushEvery)
	defer t.Stop()
	next := time.Now().Add(progressEvery)
	for {
		select {
		case <-stop:
			return
		case now := <-t.C:
			if err := w.Flush(); err != nil {
				give()
				return
			}
			switch st := w.Stats(); {
			case terminal:
				a.log.progress("recording: " + progressText(st))
			case !now.Before(next):
				a.say("recording: %s", progressText(st))
				next = now.Add(progressEvery)
			}
		}
	}
}

func progressText(s recording.Stats) string {
	gpus := ""
	if s.Readings > 0 {
		gpus = report.Plural(s.Readings, "reading") + " of GPUs, "
	}
	return fmt.Sprintf("%s, %s entries, %s%s bytes", report.Plural(uint64(s.Runs), "run"), report.Count(s.Entries), gpus, report.Count(uint64(s.Bytes)))
}

// pickTap records the engines that are picked: of those that no name was given
// for, the live ones.
type pickTap struct {
	w     *recording.Writer
	match engineMatch

	mu     sync.Mutex
	picked map[*collector.Engine]bool
	infos  []spanring.Info
}

func (t *pickTap) picks(e *collector.Engine) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, ok := t.picked[e]
	if !ok {
		i := e.Info()
		t.infos = append(t.infos, i)
		p = t.match.picks(i)
		if alive, err := e.Source().Alive(); t.match == "" && (err != nil || !alive) {
			p = false
		}
		t.picked[e] = p
	}
	return p
}

func (t *pickTap) seen() []spanring.Info {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.infos
}

// Entries implements collector.Tap.
func (t *pickTap) Entries(e *collector.Engine, entries []spanring.Entry) {
	if t.picks(e) {
		t.w.Entries(e, entries)
	}
}

// Ended implements collector.Tap.
func (t *pickTap) Ended(e *collector.Engine) {
	if t.picks(e) {
		t.w.Ended(e)
	}
	t.mu.Lock()
	delete(t.picked, e)
	t.mu.Unlock()
}
