package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/flight"
)

// stateFlags say what is kept beyond this process, and when an engine hangs.
type stateFlags struct {
	StateDir  string `help:"Directory for what outlives this process and the rings: flight records of engines that died or hung, and how far rings were read (default XDG_STATE_HOME/lanetrace or ~/.local/state/lanetrace)." placeholder:"DIR"`
	HangAfter period `help:"How long a span of a live engine may be in flight before the engine counts as hung (default ${default})." default:"30s" placeholder:"D"`
}

// state is what is kept beyond this process, as far as there is a place for it.
type state struct {
	keeper *flight.Keeper // nil for none
	watch  *flight.Watcher
}

// errNoState is a machine without a place for state.
var errNoState = errors.New("neither XDG_STATE_HOME nor HOME is set")

// stateDir is where state is kept.
func (f *stateFlags) stateDir(getenv func(string) string) (string, error) {
	if f.StateDir != "" {
		return filepath.Abs(f.StateDir)
	}
	// The convention ignores a path that is not absolute.
	base := getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(base) {
		home := getenv("HOME")
		if !filepath.IsAbs(home) {
			return "", errNoState
		}
		base = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(base, "lanetrace"), nil
}

// open makes the state directory and what is kept there. Without one everything else
// works: that is a warning.
func (f *stateFlags) open(a *app, ins *collector.Instruments, log *slog.Logger) *state {
	s := &state{}
	dir, err := f.stateDir(a.getenv)
	if err == nil {
		err = writableDir(dir)
	}
	if err == nil {
		s.keeper, err = flight.New(flight.Options{Dir: filepath.Join(dir, "flight"), Writer: program, Logger: log})
	}
	if err != nil {
		a.say("warning: no state directory: %s; there are no flight records, and a restart reads the rings anew; give one with --state-dir", oneLine(err.Error()))
	}
	s.watch = flight.NewWatcher(flight.WatchOptions{
		Keeper: s.keeper, HangAfter: time.Duration(f.HangAfter), Every: min(time.Second, time.Duration(f.HangAfter)/4),
		Instruments: ins, Logger: log,
	})
	return s
}

// writableDir makes dir, for this user alone, and refuses one that cannot be written.
func writableDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make %w", bareOpen(dir, err))
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

// observe has a collector tell s of its engines; s may be nil.
func (s *state) observe(o *collector.Options) {
	if s == nil {
		return
	}
	o.RemoveDead = true
	o.OnEnd = s.watch.Ended
}

// run watches the collector's engines until ctx ends; s may be nil.
func (s *state) run(ctx context.Context, c *collector.Collector, g *sync.WaitGroup) {
	if s != nil {
		g.Go(func() { s.watch.Run(ctx, c.Engines) })
	}
}
