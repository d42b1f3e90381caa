package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/examples/faulty"
	"github.com/lanetrace/lanetrace/internal/report"
	"github.com/lanetrace/lanetrace/spanring"
)

// faultFlags have the demo show a fault in place of the recording.
type faultFlags struct {
	Fault       faulty.Fault `help:"Show what an operator sees of a fault: crash, hang, leak, overrun, perturb or drop. A small engine on a simulated GPU has it." placeholder:"FAULT"`
	HangAfter   period       `help:"With --fault hang: how long a span may be in flight before the engine counts as hung (default ${default}; of a sidecar 30s)." default:"2s" placeholder:"D"`
	LeakWindow  leakWindow   `help:"With --fault leak: how long a call site has to do nothing but grow to be a suspected leak (default ${default}; of a sidecar 10m)." default:"5s" placeholder:"D"`
	KeepRunning bool         `help:"With --fault: go on after it was shown, until Ctrl-C or --duration, so that other commands and a browser can look."`

	FaultEngine string `help:"Be the engine of --fault, in this ring directory." placeholder:"DIR" hidden:"" env:"-"`
}

// Help is what demo --help says besides the flags.
func (c *demoCmd) Help() string {
	return `With --fault an engine on a simulated GPU and a sidecar run for some seconds, the engine does one thing wrong, and what an operator sees of it is printed: metrics, log lines, the report, the flight record.

  --fault crash    the engine is killed within a step: flight record
  --fault hang     the GPU completes nothing any more: age of what is in flight, log line, flight record
  --fault leak     a call site never frees: the suspect with its line and rate
  --fault overrun  a kernel writes past a buffer's end: the guard band with its call site and offsets
  --fault perturb  one step passes a kernel another argument: the launch diff that names it
  --fault drop     more lanes in flight than event pairs: the counter and the loss account

Nothing needs a GPU, and nothing is left behind.`
}

// Validate implements kong's validation.
func (c *demoCmd) Validate() error {
	if c.Fault == "" && c.KeepRunning {
		return errors.New("--keep-running goes with --fault: without one the demo runs until Ctrl-C anyway")
	}
	if c.Fault != "" && c.Duration != 0 && !c.KeepRunning {
		return errors.New("--duration: a fault ends by itself, unless it is given with --keep-running")
	}
	return nil
}

// faultWait is how long something of a fault is waited for.
const faultWait = 60 * time.Second

// stage is a fault that is being shown.
type stage struct {
	a       *app
	c       *demoCmd
	service *service
	sideLog *linesKept // what the sidecar logs
	dir     spanring.Dir
	flights string
	engine  *faultEngine
	began   time.Time
	faulted time.Time
}

// show shows the fault that was asked for.
func (c *demoCmd) show(a *app) (err error) {
	ctx, cancel := c.Duration.bound(a.ctx)
	defer cancel()
	base, err := a.freshDir(3 * spanring.DefaultGeometry.FileBytes())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeAll(base)) }()
	s := &stage{a: a, c: c, dir: spanring.Dir{Path: filepath.Join(base, "rings"), Group: -1}, sideLog: new(linesKept), began: time.Now()}
	if err := s.dir.Make(); err != nil {
		return err
	}
	log := newLogger(s.sideLog).slog(true)
	if s.service, err = c.faultService(a, s.dir); err != nil {
		return err
	}
	s.service.log = log
	defer func() { err = errors.Join(err, s.service.close(), s.service.state.close()) }()
	state := stateFlags{StateDir: filepath.Join(base, "state"), hangFlag: hangFlag{c.HangAfter}}
	s.service.state = state.open(a, s.dir, s.service.ins, log)
	s.flights = filepath.Join(state.StateDir, "flight")
	s.service.serve()

	// The sidecar outlives the engine, so that it sees its end.
	reading, stopReading := context.WithCancel(context.WithoutCancel(ctx))
	read := make(chan error, 1)
	go func() { read <- s.service.read(reading, s.dir, c.selection(nil), nil) }()
	defer func() {
		stopReading()
		err = errors.Join(err, <-read)
	}()

	story := storyOf(c.Fault)
	s.say("%s: %s", c.Fault, story.what)
	s.step("a sidecar reads the rings, an engine starts: 100 steps a second on a simulated GPU")
	if s.engine, err = startFaultEngine(c.Fault, s.dir.Path); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.engine.stop()) }()
	steps, err := s.engine.wait(ctx, eventServing)
	if err != nil {
		return s.ended(ctx, err)
	}
	s.step("process %d has served %s steps; metrics: %s/metrics", s.engine.pid(), steps, s.service.url())
	what, err := s.engine.wait(ctx, eventFaulted)
	if err != nil {
		return s.ended(ctx, err)
	}
	s.faulted = time.Now()
	s.step("the fault: %s", what)
	if err := story.show(ctx, s); err != nil {
		return s.ended(ctx, err)
	}
	if !c.KeepRunning {
		return nil
	}
	s.say("\nEverything runs on until Ctrl-C. Look at %s, or try\n  %s top --dir %s\n  %s report --dir %s",
		s.service.url(), os.Args[0], s.dir.Path, os.Args[0], s.dir.Path)
	<-ctx.Done()
	return nil
}

// ended is nil for what failed because the demo was told to end.
func (s *stage) ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// faultService is the sidecar's service; an address in use is no reason to show
// nothing.
func (c *demoCmd) faultService(a *app, dir spanring.Dir) (*service, error) {
	web, err := c.loadWeb()
	if err != nil {
		return nil, err
	}
	o := serviceOptions{listen: c.Listen, web: web, ins: c.instruments(a.getenv), endpoint: c.OTLPEndpoint, dir: dir, log: a.log.slog(true), growth: c.LeakWindow.growth()}
	s, err := a.newService(o)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return s, err
	}
	a.say("%s is in use; a free port serves this demo", c.Listen)
	o.listen, o.ins = "127.0.0.1:0", c.instruments(a.getenv)
	return a.newService(o)
}

// say prints lines; there is nobody to tell that they cannot be printed.
func (s *stage) say(format string, args ...any) { fmt.Fprintf(s.a.stdout, format+"\n", args...) }

// step says what happens, and when.
func (s *stage) step(format string, args ...any) {
	s.say("%5.1f s  %s", time.Since(s.began).Seconds(), strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "\n         "))
}

// section is a heading and what stands below it.
func (s *stage) section(head, text string) { s.say("\n%s\n%s", head, strings.TrimRight(text, "\n")) }

// until polls get until it gives something, and says after how long it did.
func (s *stage) until(ctx context.Context, what string, get func() (string, error)) (string, error) {
	late := time.NewTimer(faultWait)
	defer late.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		text, err := get()
		if err != nil {
			return "", fmt.Errorf("%s: %w", what, err)
		}
		if text != "" {
			return text, nil
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-late.C:
			return "", fmt.Errorf("%s: not within %v", what, faultWait)
		case <-tick.C:
		}
	}
}

// report is the report of the engine's ring as far as it goes now.
func (s *stage) report() (string, error) {
	paths, err := s.dir.List()
	if err != nil || len(paths) != 1 {
		return "", errors.Join(err, fmt.Errorf("%d rings in %s, want 1", len(paths), s.dir.Path))
	}
	r, err := spanring.Open(paths[0], spanring.ReaderOptions{})
	if err != nil {
		return "", err
	}
	text, _, err := new(reportCmd).reportOn(s.a, reportSource{src: collector.NewRingSource(r)}, report.Options{Width: s.a.widthOf(s.a.stdout)}, nil)
	return text, err
}

// part is the table of a report that begins with head, "" where there is none.
func part(text, head string) string {
	_, after, ok := strings.Cut(text, "\n"+head)
	if !ok {
		return ""
	}
	body, _, _ := strings.Cut(after, "\n\n")
	return head + body
}
