package main

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

type sidecarCmd struct {
	serviceFlags
	deviceFlags
	Duration period `help:"End after so long (default: on SIGINT or SIGTERM)." placeholder:"D"`
}

// Run serves until a signal comes or the duration is over.
func (c *sidecarCmd) Run(a *app) error {
	dir, named, err := c.ringDir()
	if err != nil {
		return err
	}
	// A directory that was named and is not there is more likely a mistake.
	if err := dir.CheckReadable(); err != nil && (named || !errors.Is(err, spanring.ErrDirMissing)) {
		return err
	}
	web, err := c.loadWeb()
	if err != nil {
		return err
	}
	defer a.saveMemory()()
	ctx, cancel := c.Duration.bound(a.ctx)
	defer cancel()
	keep, err := c.store(a)
	if err != nil {
		return err
	}
	var s *service
	gpus, err := c.devices(a, a.log.slog(false), func() []*collector.Engine { return s.engines() }, keepTap(keep)...)
	if err != nil {
		return err
	}
	s, err = a.newService(serviceOptions{
		listen: c.Listen, web: web, ins: c.instruments(a.getenv), endpoint: c.OTLPEndpoint, dir: dir, log: a.log.slog(false),
		keep: keep, keepBytes: uint64(c.KeepBytes), devices: gpus, growth: c.LeakWindow.growth(),
	})
	if err != nil {
		return err
	}
	s.state = c.stateFlags.open(a, dir, s.ins, s.log)
	s.serve()
	a.say("serving %s/metrics, and the live page at %[1]s/", s.url())
	a.say("OTLP is %s", a.otlpText(c.OTLPEndpoint))
	if keep != nil && !keep.Stats().Failing {
		a.say("recordings go to %s", c.Keep)
	}
	gpus.start(ctx)
	defer gpus.stop()
	if err = a.awaitDir(ctx, dir); err == nil && ctx.Err() == nil {
		err = s.read(ctx, dir, c.selection(c.arms(a)), nil)
	}
	gpus.stop() // before what they are kept in ends
	return errors.Join(err, s.close(), s.state.close())
}

// sidecarGOGC is how much the heap may grow before garbage is collected, in percent of
// what is live. Reading allocates nothing, so collections are rare; with Go's own 100 the
// queues of an outage count twice. docs/soak.md has both measured.
const sidecarGOGC = 50

// saveMemory has garbage collected earlier, unless GOGC says when, until restore is
// called.
func (a *app) saveMemory() (restore func()) {
	if a.getenv("GOGC") != "" {
		return func() {}
	}
	before := debug.SetGCPercent(sidecarGOGC)
	return func() { debug.SetGCPercent(before) }
}

// slowArmFlags say what follows a slow step.
type slowArmFlags struct {
	SlowArms armCount `help:"Have the next so many steps timed kernel by kernel after a slow one, at most once in ten seconds (default ${default}; 0: none)." default:"8" placeholder:"N"`
}

// arms makes what is told of an engine's slow steps.
func (c *slowArmFlags) arms(a *app) func() func(*collector.Step) {
	o := collector.ArmOptions{Steps: int(c.SlowArms), Logger: a.log.slog(false)}
	if o.Steps == 0 {
		o.Steps = -1
	}
	return func() func(*collector.Step) { return collector.NewArmer(o).Slow }
}

// bound is ctx, ended after p if p is set.
func (p period) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if p == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Duration(p))
}

// dirPoll is how often a ring directory that is not there yet is looked for.
const dirPoll = 250 * time.Millisecond

// awaitDir waits for a ring directory that the first engine will make, and says
// so once. It returns nil also when ctx ends first.
func (a *app) awaitDir(ctx context.Context, dir spanring.Dir) error {
	t := time.NewTicker(dirPoll)
	defer t.Stop()
	for said := false; ; said = true {
		err := dir.CheckReadable()
		if !errors.Is(err, spanring.ErrDirMissing) {
			return err
		}
		if !said {
			a.say("waiting for an engine: ring directory %s is not there yet", dir.Path)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}
