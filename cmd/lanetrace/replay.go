package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	Path    string      `arg:"" help:"Recording to play (.ltrec), or a directory of them, such as sidecar --keep keeps." placeholder:"FILE|DIR"`
	Speed   *speed      `help:"How fast: real, max, or a factor (default: real for a file, max for a directory)." placeholder:"real|max|N"`
	Since   moment      `help:"Only steps that ended at this time or later: how long ago, such as 90s or 2h, or a time, such as 2026-01-31T15:04:05." placeholder:"TIME"`
	Until   moment      `help:"Only steps that began at this time or before." placeholder:"TIME"`
	Format  format      `help:"What to write to standard output: text, otlp-json or chrome (trace events, which https://ui.perfetto.dev opens). Default: text, unless there is an OTLP endpoint." placeholder:"text|otlp-json|chrome"`
	Out     string      `short:"o" help:"Write to this file instead of standard output, which - is too." placeholder:"FILE"`
	Select  bool        `help:"Write only the steps that a live engine's would be chosen from, not every step."`
	Metrics string      `help:"Write to this file, - for standard output, what /metrics would have said where playing ends, readings of GPUs included. Steps are written only if --format, --out or --otlp-endpoint says so, too." placeholder:"FILE"`
	Engine  engineMatch `help:"Play only this engine: a service name, an executable or the beginning of a run id." placeholder:"E"`

	OTLPEndpoint endpoint `name:"otlp-endpoint" help:"Send the steps as traces to this OTLP receiver, such as http://127.0.0.1:4317 (default: the OTEL_EXPORTER_OTLP_* variables, as for a sidecar). Metrics are sent nowhere: --metrics writes them." placeholder:"URL"`
	replaySelectFlags

	stuckAfter time.Duration // default queueStuck
}

// Validate implements kong's validation.
func (c *replayCmd) Validate() error {
	if c.OTLPEndpoint != "" && (c.Format != "" || c.Out != "") {
		return errors.New("--otlp-endpoint sends spans, --format and --out write them: give one of them")
	}
	if c.Metrics != "" && c.Metrics == c.Out {
		return errors.New("--metrics and --out name the same file")
	}
	if since, until := c.Since.unixNS(), c.Until.unixNS(); since != 0 && until != 0 && until < since {
		return errors.New("--until lies before --since")
	}
	return nil
}

// Run plays the recording through the pipeline of a live ring, on the recording's
// own time.
func (c *replayCmd) Run(a *app) (err error) {
	runs, err := c.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, runs.close()) }()
	if runs.readings != nil {
		defer runs.readings.Close()
	}

	sink, err := c.sink(a)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sink.close()) }()
	metrics, err := c.metrics(a, runs.readings)
	if err != nil {
		return err
	}
	left := new(leftOut)
	win := window{next: sink.exporter, sinceUnixNS: c.Since.unixNS(), untilUnixNS: c.Until.unixNS(), ends: runs.dir, left: left}
	po := collector.ProcessorOptions{Logger: a.log.slog(true), Selector: collector.SelectAll{}}
	var selected []selectionSince // nil: everything is
	if sink.live || c.Select {
		selected = c.selected(a, runs.dir)
	}
	var there []spanring.Info
	po.Instruments = metrics.instruments()
	p := playing{clock: player.SystemClock{}, factor: 1, readings: metrics.played()}
	if runs.dir {
		p.factor = 0
	}
	if c.Speed != nil {
		p.factor = float64(*c.Speed)
	}
	for _, r := range runs.list {
		there = append(there, r.info)
		if c.Engine.picks(r.info) {
			w := win
			if runs.dir {
				w.startUnixNS = r.startUnixNS
			}
			po.Exporter = &w
			if selected != nil {
				po.Selector = newSelectorOverTime(selected)
			}
			p.waiting = append(p.waiting, &replayRun{playable: r, options: po})
		}
	}
	// Readings alone have metrics.
	alone := len(there) == 0 && runs.readings != nil && metrics != nil
	if len(p.waiting) == 0 && runs.damage == nil && !alone {
		if runs.dir && len(there) == 0 {
			return fmt.Errorf("nothing was recorded in %s at that time", c.Path)
		}
		return c.Engine.none(c.Path, there)
	}
	if until := c.Until.unixNS(); until != 0 {
		p.endUnixNS = until + int64(recording.Straddle)
	}
	shown := a.replayProgress(sink, runs.list)
	p.each = func(unixNS int64) error {
		shown(unixNS)
		return sink.wait(a.ctx)
	}
	if err = p.play(a.ctx); errors.Is(err, errWriteFailed) {
		return nil // the sink says why
	}
	err = errors.Join(err, metrics.write(a))
	left.say(a)
	if err == nil {
		err = runs.damage
	}
	if err == nil && left.passed == 0 && !alone {
		if selected != nil {
			a.say("no step was selected: --every 1 --budget 0 selects all of them")
		} else {
			a.say("no step lies in that time")
		}
	}
	return err
}

// selected is how is selected, and says so where the recordings do.
func (c *replayCmd) selected(a *app, isDir bool) []selectionSince {
	dir := c.Path
	if !isDir {
		dir = filepath.Dir(c.Path) // a file of a kept directory
	}
	kept, err := readKeptSelection(dir)
	list := c.selections(kept)
	switch {
	case c.Every != nil && c.Budget != nil:
	case err != nil:
		a.say("warning: %s; selecting %s", oneLine(err.Error()), selectionsText(list))
	case c.Every != nil || c.Budget != nil:
		a.say("selecting %s", selectionsText(list))
	case kept != nil:
		a.say("selecting as the sidecar did: %s", selectionsText(list))
	}
	return list
}

// playables are the runs of a recording or of a directory of them.
type playables struct {
	list   []playable
	dir    bool
	damage error // of what is not among list
	close  func() error

	readings *recording.Readings // of GPUs; nil: there are none
}

// playable is a run that can be played.
type playable struct {
	info                   spanring.Info
	startUnixNS, endUnixNS int64
	source                 func() (replaySource, error)
}

// replaySource is a source that can be read up to a time.
type replaySource interface {
	collector.Source
	collector.AllocSource
	NextMonoNS() (ns int64, ok bool)
	PollUntil(dst []spanring.Entry, monoNS int64) (n int, done bool, err error)
}

// open looks at what there is to play.
func (c *replayCmd) open() (playables, error) {
	ps := playables{close: func() error { return nil }}
	if st, err := os.Stat(c.Path); err == nil && st.IsDir() {
		k, err := recording.OpenDir(c.Path)
		if err != nil {
			return ps, err
		}
		ps.dir, ps.damage = true, k.Damage()
		for _, r := range k.Runs(c.Since.unixNS(), c.Until.unixNS()) {
			ps.list = append(ps.list, playable{r.Info, r.StartUnixNS, r.EndUnixNS, func() (replaySource, error) { return r.Source() }})
		}
		ps.readings, err = k.Readings(c.Since.unixNS(), c.Until.unixNS())
		return ps, err
	}
	f, err := recording.Open(c.Path)
	if err != nil {
		return ps, bareOpen(c.Path, err)
	}
	ps.damage, ps.close = f.Damage(), f.Close
	ps.list = runsOf(f)
	if f.HasReadings() {
		ps.readings, err = f.Readings()
	}
	return ps, err
}

// runsOf are the runs of one recording, in the order in which they begin.
func runsOf(f *recording.File) (list []playable) {
	for i, r := range f.Runs() {
		list = append(list, playable{r.Info, r.StartMonoNS + r.WallOffsetNS, r.EndMonoNS + r.WallOffsetNS, func() (replaySource, error) { return f.Source(i) }})
	}
	slices.SortStableFunc(list, func(a, b playable) int { return cmp.Compare(a.startUnixNS, b.startUnixNS) })
	return list
}

// window passes on the steps, and the requests that ended, of a span of time.
type window struct {
	next                     collector.Exporter
	sinceUnixNS, untilUnixNS int64 // 0: no bound
	// startUnixNS is where playing begins. Of a request that began before it steps
	// are missing.
	startUnixNS int64
	// ends: steps that were under way where the recordings end are left out. Whole
	// ones may come, or have come, from whoever reads on.
	ends bool
	left *leftOut
}

// leftOut is what a replay does not send although it lies within the time.
type leftOut struct {
	steps, requests uint64
	passed          uint64 // what is sent, to tell nothing from all
}

func (l *leftOut) say(a *app) {
	if l.steps > 0 {
		a.say("left out: %s, still under way where the recordings end", report.Plural(l.steps, "step"))
	}
	if l.requests > 0 {
		a.say("left out: %s, which began before what was played", report.Plural(l.requests, "request"))
	}
}

func (w *window) holds(startUnixNS, endUnixNS int64) bool {
	return (w.sinceUnixNS == 0 || endUnixNS >= w.sinceUnixNS) && (w.untilUnixNS == 0 || startUnixNS <= w.untilUnixNS)
}

// Export implements collector.Exporter.
func (w *window) Export(s *collector.Step, reason collector.ExportReason) {
	start, end := s.Bounds()
	in := w.holds(s.UnixNS(start), s.UnixNS(end))
	if in && w.ends && s.Incomplete == collector.IncompleteDetach {
		w.left.steps++
		in = false
	}
	if !in {
		s.Engine.Ledger().NotSelect(collector.NotWanted, s.Units())
		return
	}
	w.left.passed++
	w.next.Export(s, reason)
}

// ExportRequest implements collector.RequestExporter.
func (w *window) ExportRequest(r *collector.Request) {
	in := w.holds(r.UnixNS(r.EndNS), r.UnixNS(r.EndNS))
	if in && (r.UnixNS(r.BeginNS) < w.startUnixNS || w.ends && r.StepsOpen > 0) {
		w.left.requests++
		in = false
	}
	x, ok := w.next.(collector.RequestExporter)
	if !in || !ok {
		r.Engine.Ledger().NotSelect(collector.NotWanted, 1)
		return
	}
	w.left.passed++
	x.ExportRequest(r)
}

// Forget lets the exporter behind it let go of an engine.
func (w *window) Forget(e *collector.Engine) {
	if f, ok := w.next.(interface{ Forget(*collector.Engine) }); ok {
		f.Forget(e)
	}
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
	playable
	options collector.ProcessorOptions

	src      replaySource
	proc     *collector.Processor
	offsetNS int64 // makes Unix time of the run's
	limitNS  int64
}

// begin opens the run. Runs that are played at the same time and have the same name
// are told apart as live engines are.
func (r *replayRun) begin(others []*replayRun) error {
	src, err := r.source()
	if err != nil {
		return bareRecording(err)
	}
	r.src, r.offsetNS = src, src.WallOffsetNS()
	base := collector.EngineName(r.info)
	r.options.Label = base
	for n := 2; slices.ContainsFunc(others, func(o *replayRun) bool { return o.options.Label == r.options.Label }); n++ {
		r.options.Label = fmt.Sprintf("%s-%d", base, n)
	}
	if r.proc, err = collector.NewProcessor(r, r.options); err != nil {
		return errors.Join(err, src.Close())
	}
	return nil
}

// playing plays runs in the order of the recording's time.
type playing struct {
	waiting   []*replayRun // in the order in which they begin
	factor    float64      // of real time; 0 is as fast as can be
	endUnixNS int64        // where playing ends; 0: with the runs
	clock     player.Clock
	// each is called after whatever was received together. An error ends playing.
	each func(unixNS int64) error
	// readings, if not nil, are played beside the runs.
	readings *replayReadings

	runs []*replayRun
}

// play plays all runs until they are done or ctx ends. An error of one run ends
// that run; the first is returned.
func (p *playing) play(ctx context.Context) (first error) {
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	defer func() {
		for _, r := range p.runs {
			note(r.proc.Close())
		}
	}()
	defer func() { p.readings.rest(p.endUnixNS, p.runs) }()
	startNS, baseNS := p.clock.MonoNS(), int64(0)
	if len(p.waiting) > 0 {
		baseNS = p.waiting[0].startUnixNS
	}
	for {
		next, open := p.next(baseNS)
		if !open || p.endUnixNS != 0 && next > p.endUnixNS {
			return first
		}
		if ctx.Err() != nil {
			return errors.New("interrupted: the recording was not played to its end")
		}
		if now := baseNS + int64(float64(p.clock.MonoNS()-startNS)*p.factor); p.factor > 0 && next > now {
			// An end is seen above.
			_ = p.clock.Sleep(ctx, time.Duration(max(float64(time.Millisecond), float64(next-now)/p.factor)))
			continue
		}
		for len(p.waiting) > 0 && p.waiting[0].startUnixNS <= next {
			r := p.waiting[0]
			p.waiting[0] = nil // a run that is over must not stay in memory
			p.waiting = p.waiting[1:]
			if err := r.begin(p.runs); err != nil {
				note(err)
				continue
			}
			p.runs = append(p.runs, r)
		}
		p.readings.upTo(next, p.runs)
		// What was received together is polled together, at every speed: so the
		// outcome is the same, to the order of its lines.
		for i := 0; i < len(p.runs); {
			r := p.runs[i]
			r.limitNS = next - r.offsetNS
			_, done, err := r.proc.Poll()
			if err != nil {
				note(bareRecording(err))
			}
			if !done && err == nil {
				i++
				continue
			}
			p.runs = slices.Delete(p.runs, i, i+1)
			if err := r.proc.Close(); err != nil {
				note(err)
			}
		}
		if err := p.each(next); err != nil {
			return err
		}
	}
}

// next is when something is received next: nothing is before it. open is false
// when nothing is any more.
func (p *playing) next(baseNS int64) (unixNS int64, open bool) {
	for _, r := range p.runs {
		// A run without a next entry is at its end, which is due at once.
		ns, ok := r.src.NextMonoNS()
		if !ok {
			return baseNS, true
		}
		if ns += r.offsetNS; !open || ns < unixNS {
			unixNS, open = ns, true
		}
	}
	if len(p.waiting) > 0 && (!open || p.waiting[0].startUnixNS < unixNS) {
		return p.waiting[0].startUnixNS, true
	}
	return unixNS, open
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
	// wait lets a sink that falls behind catch up. An error ends the replay.
	wait  func(context.Context) error
	spans func() uint64 // sent so far; nil when nothing is sent
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
	if c.Metrics != "" && c.Format == "" && c.Out == "" {
		return &sink{exporter: unsent{}, wait: func(context.Context) error { return nil }, close: func() error { return nil }}, nil
	}
	return a.fileSink(c.Format, c.Out)
}

// fileSink writes in a format to an output. One that cannot be written to ends the
// replay; what went wrong is the error of close.
func (a *app) fileSink(f format, path string) (*sink, error) {
	file, closeOut, err := a.output(path)
	if err != nil {
		return nil, err
	}
	out := &noting{Writer: file}
	s := &sink{wait: func(context.Context) error { return out.failed }}
	var end io.Closer
	switch f {
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
// long one that takes nothing is waited for, and how long the rest is tried after
// an interrupt or that wait.
const (
	queuePoll   = 20 * time.Millisecond
	queueStuck  = 30 * time.Second
	replayFlush = time.Second
)

// otlpSink sends to a receiver. A replay is faster than any receiver, so it waits
// while the queue is half full: what is dropped for want of room would be a
// replay's own fault. A receiver that takes nothing for long ends it.
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
	stuck, after := false, cmp.Or(c.stuckAfter, queueStuck)
	// below waits until the queue holds no more than that.
	below := func(ctx context.Context, bytes uint64) error {
		last, since := uint64(0), time.Now()
		for {
			st := exp.Stats()
			if st.QueueBytes <= bytes {
				return nil
			}
			if answered := st.Requests[0] + st.Requests[2]; answered != last {
				last, since = answered, time.Now()
			}
			if time.Since(since) > after {
				stuck = true
				return fmt.Errorf("the receiver took nothing for %v: the replay was given up", after)
			}
			if (player.SystemClock{}).Sleep(ctx, queuePoll) != nil {
				return nil // told to stop, which is seen elsewhere
			}
		}
	}
	s := &sink{exporter: exp, live: true, spans: func() uint64 { return exp.Spans().Sent }}
	s.wait = func(ctx context.Context) error { return below(ctx, exp.Stats().QueueLimit/2) }
	s.close = func() error {
		var err error
		if !stuck {
			err = below(a.ctx, 0)
		}
		deadline := flushDeadline
		if stuck || a.ctx.Err() != nil {
			deadline = replayFlush
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), deadline)
		defer cancel()
		if serr := exp.Shutdown(ctx); exp.Spans().Shutdown == 0 {
			err = errors.Join(err, serr) // otherwise it says what the counts do
		}
		n := exp.Spans()
		a.say("sent %s", report.Plural(n.Sent, "span"))
		if n.Missed() > 0 {
			err = errors.Join(err, fmt.Errorf("%s spans were not taken: %s", report.Count(n.Missed()), missedText(n)))
		}
		return err
	}
	return s, nil
}

// missedText says why spans were not taken.
func missedText(n otlp.SpanCounts) string {
	var why []string
	for _, r := range []struct {
		n    uint64
		text string
	}{
		{n.Rejected, "rejected out of requests that were taken"}, {n.Refused, "in requests that were refused"},
		{n.QueueFull, "for want of room"}, {n.Oversize, "too large"}, {n.Shutdown, "not sent in time"},
	} {
		if r.n > 0 {
			why = append(why, report.Count(r.n)+" "+r.text)
		}
	}
	return strings.Join(why, ", ")
}

// shownEvery is how often the progress of a replay is drawn.
const shownEvery = 200 * time.Millisecond

// replayProgress draws on a terminal how far a replay is.
func (a *app) replayProgress(s *sink, runs []playable) func(unixNS int64) {
	if _, terminal := terminalSize(a.stderr); !terminal || s.spans == nil || len(runs) == 0 {
		return func(int64) {}
	}
	first, last := runs[0].startUnixNS, runs[0].endUnixNS
	for _, r := range runs {
		last = max(last, r.endUnixNS)
	}
	var next time.Time
	return func(unixNS int64) {
		now := time.Now()
		if now.Before(next) {
			return
		}
		next = now.Add(shownEvery)
		done := 100 * float64(unixNS-first) / float64(max(1, last-first))
		a.log.progress(fmt.Sprintf("replaying: %s, %.0f %%, %s spans sent", time.Unix(0, unixNS).Format(time.DateTime), min(100, max(0, done)), report.Count(s.spans())))
	}
}
