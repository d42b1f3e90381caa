package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/report"
	"github.com/lanetrace/lanetrace/spanring"
)

type levelCmd struct {
	Get levelGetCmd `cmd:"" default:"withargs" help:"Print the level of each live engine, and what it arms, as does level alone."`
	Set levelSetCmd `cmd:"" help:"Change the level of the live engines, or of one."`
}

// controlFlags are shared by the commands that ask something of live engines.
type controlFlags struct {
	Engine engineMatch `help:"Only this engine: a service name, an executable or the beginning of a run id (default: all)." placeholder:"E"`
	dirFlags
}

// waitFlag bounds the wait for an engine's answer.
type waitFlag struct {
	Wait period `help:"Wait so long for an engine to act on it (default ${default})." default:"3s" placeholder:"D"`
}

type levelGetCmd struct{ controlFlags }

// Run prints a line for each live engine.
func (c *levelGetCmd) Run(a *app) (err error) {
	engines, err := c.live(a)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeEngines(engines)) }()
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	for _, e := range engines {
		fmt.Fprintf(w, "%s\t%s\t%s\n", e.name(), collector.LevelText(e.info.Level), armingText(e.info))
	}
	return w.Flush()
}

// armingText says which steps of an engine are armed.
func armingText(i spanring.Info) string {
	var s []string
	if i.KernelEvery > 0 {
		s = append(s, fmt.Sprintf("one step in %d armed", i.KernelEvery))
	}
	if i.ArmedRequested > 0 {
		s = append(s, fmt.Sprintf("%d more to arm on request", i.ArmedRequested))
	}
	if i.LaneEvery > 1 {
		s = append(s, fmt.Sprintf("lanes of one step in %d timed", i.LaneEvery))
	}
	if s == nil {
		return "no steps armed"
	}
	return strings.Join(s, ", ")
}

type levelSetCmd struct {
	Level lanetrace.Level `arg:"" help:"off, basic, lane or kernel." placeholder:"LEVEL"`
	controlFlags
	waitFlag
}

// Run asks each engine and waits until its header shows the level.
func (c *levelSetCmd) Run(a *app) error {
	return c.ask(a, c.Wait, spanring.Control{Level: c.Level.String()}, func(e *liveEngine) string {
		return "level " + collector.LevelText(e.info.Level)
	})
}

type armCmd struct {
	Steps armCount `required:"" help:"How many of the next steps to time kernel by kernel, up to 1000000." placeholder:"N"`
	controlFlags
	waitFlag
}

// Validate implements kong's validation.
func (c *armCmd) Validate() error {
	if c.Steps == 0 {
		return errors.New("--steps: want 1 or more")
	}
	return nil
}

// Run asks each engine. Only at level kernel are steps armed: below it the request
// is kept, which is said.
func (c *armCmd) Run(a *app) error {
	steps := report.Plural(uint64(c.Steps), "step")
	return c.ask(a, c.Wait, spanring.Control{ArmSteps: uint32(c.Steps)}, func(e *liveEngine) string {
		switch {
		case lanetrace.Level(e.info.Level) < lanetrace.LevelKernel:
			return fmt.Sprintf("%s will be armed once its level is kernel; it is %s: lanetrace level set kernel", steps, collector.LevelText(e.info.Level))
		case c.Steps == 1:
			return "the next step is armed"
		}
		return fmt.Sprintf("the next %s are armed", steps)
	})
}

// liveEngine is an engine whose ring is open.
type liveEngine struct {
	r        *spanring.Reader
	info     spanring.Info
	counters spanring.Counters
}

func (e *liveEngine) name() string { return nameOf(e.info) }

// refresh reads the header again.
func (e *liveEngine) refresh() (err error) {
	if e.info, err = e.r.Info(); err == nil {
		e.counters, err = e.r.Counters()
	}
	return err
}

// answered is how many requests the engine has acted on or refused.
func (e *liveEngine) answered() uint64 {
	return e.counters[spanring.CtrControlApplied] + e.counters[spanring.CtrControlRejected]
}

// live opens the rings of the engines that live and were asked for. None is an
// error.
func (f *controlFlags) live(a *app) (out []*liveEngine, err error) {
	dir, err := f.readable()
	if err != nil {
		return nil, err
	}
	rings, err := openRings(dir)
	if err != nil {
		return nil, err
	}
	var there []spanring.Info
	for ring := range rings {
		if ring.err != nil {
			a.say("warning: %s", oneLine(ring.err.Error()))
			continue
		}
		e := &liveEngine{r: ring.Reader}
		alive, err := e.r.Alive()
		if err == nil && alive {
			err = e.refresh()
		}
		if err == nil && alive {
			there = append(there, e.info)
		}
		if err != nil || !alive || !f.Engine.picks(e.info) {
			err = errors.Join(err, e.r.Close())
		} else {
			out = append(out, e)
		}
		if err != nil {
			a.say("warning: %s", oneLine(err.Error()))
		}
	}
	if len(out) == 0 {
		if len(there) == 0 {
			return nil, fmt.Errorf("no live engines in %s", dir.Path)
		}
		return nil, f.Engine.none(dir.Path, there)
	}
	return out, nil
}

func closeEngines(es []*liveEngine) (err error) {
	for _, e := range es {
		err = errors.Join(err, e.r.Close())
	}
	return err
}

// controlPoll is how often an answer is looked for; engines look for requests four
// times a second.
const controlPoll = 20 * time.Millisecond

// ask writes the request for each engine, waits for the answers together, and
// prints one line for each; what says in words what an engine did. An engine that
// cannot be asked, refuses or does not answer makes the command fail, after the
// others were served.
func (f *controlFlags) ask(a *app, wait period, c spanring.Control, what func(*liveEngine) string) (err error) {
	engines, err := f.live(a)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeEngines(engines)) }()
	c.ID = rand.Text()
	failed := 0
	fail := func(e *liveEngine, format string, args ...any) {
		a.say("%s: %s", e.name(), fmt.Sprintf(format, args...))
		failed++
	}
	type request struct {
		*liveEngine
		before, refused uint64
	}
	var open []request
	for _, e := range engines {
		q := request{e, e.answered(), e.counters[spanring.CtrControlRejected]}
		if err := spanring.WriteControl(e.r.Path(), c); errors.Is(err, os.ErrPermission) {
			fail(e, "not permitted to write into its ring directory: run as its user, or as a member of the directory's group")
		} else if err != nil {
			fail(e, "%s", err)
		} else {
			open = append(open, q)
		}
	}
	deadline := time.NewTimer(time.Duration(wait))
	defer deadline.Stop()
	t := time.NewTicker(controlPoll)
	defer t.Stop()
	for late := false; len(open) > 0; {
		var left []request
		for _, q := range open {
			err := q.refresh()
			alive, aerr := q.r.Alive()
			switch err = errors.Join(err, aerr); {
			case err != nil:
				fail(q.liveEngine, "%s", err)
			case q.answered() > q.before && q.counters[spanring.CtrControlRejected] > q.refused:
				fail(q.liveEngine, "refused the request; its log says why")
			case q.answered() > q.before:
				fmt.Fprintf(a.stdout, "%s: %s\n", q.name(), what(q.liveEngine))
			case !alive:
				fail(q.liveEngine, "ended before it acted on the request")
			case late:
				fail(q.liveEngine, "has not acted on the request for %s; it will if it runs on, but not if it is the demo's, which is a recording", time.Duration(wait))
			default:
				left = append(left, q)
			}
		}
		if open = left; len(open) == 0 {
			break
		}
		select {
		case <-t.C:
		case <-deadline.C:
			late = true
		case <-a.ctx.Done():
			late = true
		}
	}
	if failed > 0 {
		return exitError{code: exitFailed}
	}
	return nil
}
