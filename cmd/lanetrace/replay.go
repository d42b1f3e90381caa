package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/chrome"
	"github.com/lanetrace/lanetrace/exporters/otlp"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/player"
	"github.com/lanetrace/lanetrace/internal/report"
	"github.com/lanetrace/lanetrace/spanring"
)

type replayCmd struct {
	File   string      `arg:"" help:"Recording to play (.ltrec)." placeholder:"FILE"`
	Speed  speed       `help:"How fast: real, max, or a factor (default ${default})." default:"real" placeholder:"real|max|N"`
	Format format      `help:"What to write to standard output: text, otlp-json or chrome (trace events, which https://ui.perfetto.dev opens). Default: text, unless there is an OTLP endpoint." placeholder:"text|otlp-json|chrome"`
	Out    string      `help:"Write to this file instead of standard output." placeholder:"FILE"`
	Select bool        `help:"Write only the steps that a live engine's would be chosen from, not every step."`
	Engine engineMatch `help:"Play only this engine: a service name, an executable or the beginning of a run id." placeholder:"E"`
	otlpFlags
	everyFlag
}

// Validate implements kong's validation.
func (c *replayCmd) Validate() error {
	if c.OTLPEndpoint != "" && (c.Format != "" || c.Out != "") {
		return errors.New("--otlp-endpoint sends spans, --format and --out write them: give one of them")
	}
	return nil
}

// Run plays the recording through the pipeline of a live ring, on the recording's
// own time.
func (c *replayCmd) Run(a *app) (err error) {
	f, err := recording.Open(c.File)
	if err != nil {
		return bareOpen(c.File, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()

	sink, err := c.sink(a)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sink.close()) }()
	po := collector.ProcessorOptions{Exporter: sink.exporter, Logger: a.log.slog(true), Selector: collector.SelectAll{}}
	if sink.live || c.Select {
		po.Selector = collector.LiveSelector{OneInN: int(c.Every)}
	}
	var runs []*replayRun
	defer func() {
		for _, r := range runs {
			err = errors.Join(err, r.proc.Close())
		}
	}()
	var there []spanring.Info
	labels := make(map[string]int)
	for i, ri := range f.Runs() {
		there = append(there, ri.Info)
		if !c.Engine.picks(ri.Info) {
			continue
		}
		src, err := f.Source(i)
		if err != nil {
			return err
		}
		r := &replayRun{src: src}
		// Runs of one file that have the same name are told apart as live engines
		// are.
		po.Label = collector.EngineName(ri.Info)
		if labels[po.Label]++; labels[po.Label] > 1 {
			po.Label = fmt.Sprintf("%s-%d", po.Label, labels[po.Label])
		}
		if r.proc, err = collector.NewProcessor(r, po); err != nil {
			return errors.Join(err, src.Close())
		}
		runs = append(runs, r)
	}
	if len(runs) == 0 && f.Damage() == nil {
		return c.Engine.none(c.File, there)
	}
	err = play(a.ctx, runs, float64(c.Speed), player.SystemClock{}, sink.wait)
	if err == nil {
		err = f.Damage()
	}
	return err
}

// bareOpen is the error of a file that could not be opened, in one short line.
func bareOpen(path string, err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return fmt.Errorf("%s: %w", path, pe.Err)
	}
	return err
}

// replayRun is one run being played. It is the source that its processor reads:
// what was received up to limitNS, and no further.
type replayRun struct {
	src     *recording.Source
	proc    *collector.Processor
	limitNS int64
	done    bool
}

// play polls all runs, in the order of the recording's time, until they are done
// or ctx ends. factor 0 is as fast as can be. An error of one run ends that run;
// the first is returned.
func play(ctx context.Context, runs []*replayRun, factor float64, clock player.Clock, wait func(context.Context)) error {
	var first error
	startNS := clock.MonoNS()
	var baseNS int64
	for i, r := range runs {
		if now := r.src.NowMonoNS(); i == 0 || now < baseNS {
			baseNS = now
		}
	}
	for {
		// The next entry of all: nothing is received before it.
		var next int64
		open := false
		for _, r := range runs {
			if r.done {
				continue
			}
			// A run without a next entry is at its end, which is due at once.
			if ns, ok := r.src.NextMonoNS(); !ok {
				next, open = baseNS, true
			} else if !open || ns < next {
				next, open = ns, true
			}
		}
		if !open {
			return first
		}
		if err := ctx.Err(); err != nil {
			return errors.New("interrupted: the recording was not played to its end")
		}
		if now := baseNS + int64(float64(clock.MonoNS()-startNS)*factor); factor > 0 && next > now {
			// An end is seen above.
			_ = clock.Sleep(ctx, time.Duration(max(float64(time.Millisecond), float64(next-now)/factor)))
			continue
		}
		// What was received together is polled together, at every speed: so the
		// outcome is the same, to the order of its lines.
		for _, r := range runs {
			if r.done {
				continue
			}
			r.limitNS = next
			_, done, err := r.proc.Poll()
			if err != nil && first == nil {
				first = bareRecording(err)
			}
			r.done = done || err != nil
		}
		wait(ctx)
	}
}

// bareRecording is what a recording says of its damage, without where it was
// noticed.
func bareRecording(err error) error {
	var re *recording.Error
	if errors.As(err, &re) {
		return re
	}
	return err
}

// sink takes the steps of a replay.
type sink struct {
	exporter collector.Exporter
	live     bool // the live selection applies
	// wait lets a sink that falls behind catch up.
	wait  func(context.Context)
	close func() error
}

func (c *replayCmd) sink(a *app) (*sink, error) {
	if c.Format == "" && c.Out == "" {
		if traces, _ := otlp.Configured(string(c.OTLPEndpoint), a.getenv); traces {
			return c.otlpSink(a)
		}
		if c.OTLPEndpoint != "" {
			return nil, fmt.Errorf("OTLP is %s", a.otlpText(c.OTLPEndpoint))
		}
	}
	out, closeOut := a.stdout, func() error { return nil }
	if c.Out != "" {
		f, err := os.Create(c.Out)
		if err != nil {
			return nil, bareOpen(c.Out, err)
		}
		out, closeOut = f, f.Close
	}
	s := &sink{wait: func(context.Context) {}}
	var end io.Closer
	switch c.Format {
	case formatOTLPJSON:
		j := otlp.NewJSONWriter(bufio.NewWriter(out), otlp.JSONOptions{Version: lanetrace.Version})
		s.exporter, end = j, j
	case formatChrome:
		w := chrome.NewWriter(out)
		s.exporter, end = w, w
	default:
		l := report.NewLines(out)
		s.exporter, end = l, l
	}
	s.close = func() error { return errors.Join(end.Close(), closeOut()) }
	return s, nil
}

// Bounds of waiting for an OTLP receiver: how often its queue is looked at, how
// long one that takes nothing is waited for, and how long the rest is tried at the
// end.
const (
	queuePoll   = 20 * time.Millisecond
	queueStuck  = 10 * time.Second
	replayFlush = 10 * time.Second
)

// otlpSink sends to a receiver. A replay is faster than any receiver, so it waits
// while the queue is half full: what is dropped for want of room would be a
// replay's own fault.
func (c *replayCmd) otlpSink(a *app) (*sink, error) {
	exp, err := otlp.NewExporter(otlp.Options{Endpoint: string(c.OTLPEndpoint), Version: lanetrace.Version, Logger: a.log.slog(true)})
	if err != nil {
		return nil, err
	}
	to := string(c.OTLPEndpoint)
	if to == "" {
		to = "where the OTEL_EXPORTER_OTLP_* variables say"
	}
	a.say("sending traces to %s", to)
	stuck := false
	wait := func(ctx context.Context) {
		last, since := exp.Stats().Requests[0], time.Now()
		for {
			st := exp.Stats()
			if st.QueueBytes <= st.QueueLimit/2 {
				stuck = false
				return
			}
			if ok := st.Requests[0]; ok != last {
				last, since, stuck = ok, time.Now(), false
			}
			// A receiver that is away is not waited for again and again.
			if stuck || time.Since(since) > queueStuck {
				stuck = true
				return
			}
			if (player.SystemClock{}).Sleep(ctx, queuePoll) != nil {
				return
			}
		}
	}
	return &sink{exporter: exp, live: true, wait: wait, close: func() error {
		deadline := replayFlush
		if a.ctx.Err() != nil {
			deadline = flushDeadline
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), deadline)
		defer cancel()
		return exp.Shutdown(ctx)
	}}, nil
}
