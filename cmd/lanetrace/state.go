package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/flight"
	"github.com/lanetrace/lanetrace/spanring"
)

// stateFlags say what is kept beyond this process, and when an engine hangs.
type stateFlags struct {
	StateDir string `help:"Directory for what outlives this process and the rings: flight records of engines that died or hung, and, of a sidecar, how far rings were read (default XDG_STATE_HOME/lanetrace or ~/.local/state/lanetrace)." placeholder:"DIR"`
	hangFlag
}

// hangFlag says when an engine hangs.
type hangFlag struct {
	HangAfter period `help:"How long a span of a live engine may be in flight before the engine counts as hung (default ${default})." default:"30s" placeholder:"D"`
}

// state is what is kept beyond this process, as far as there is a place for it.
type state struct {
	keeper  *flight.Keeper     // nil for none
	cursors *collector.Cursors // nil for none
	watch   *flight.Watcher
	lock    *os.File // of the cursors; nil for none

	removeDead bool                         // dead rings that were read and recorded
	only       func(*collector.Engine) bool // whose flight records are made; nil for all
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

// open makes the state directory and what a sidecar keeps there. Without one
// everything else works: that is a warning.
func (f *stateFlags) open(a *app, rings spanring.Dir, ins *collector.Instruments, log *slog.Logger) *state {
	s := &state{removeDead: true}
	dir, err := f.keep(a, s, log)
	if err == nil {
		err = s.openCursors(a, filepath.Join(dir, "cursors"), rings, log)
	}
	switch {
	case err == nil:
	case s.keeper == nil:
		a.say("warning: no state directory: %s; there are no flight records, and a restart reads the rings anew; give one with --state-dir", oneLine(err.Error()))
	default:
		a.say("warning: no cursors: %s; a restart reads the rings anew", oneLine(err.Error()))
	}
	f.observe(s, ins, log)
	return s
}

// openRecords makes the state directory for the flight records of some engines alone:
// what ends with them has nothing to read on, and the rings are not its to remove.
func (f *stateFlags) openRecords(a *app, only func(*collector.Engine) bool, ins *collector.Instruments, log *slog.Logger) *state {
	s := &state{only: only}
	if _, err := f.keep(a, s, log); err != nil {
		a.say("warning: no state directory: %s; there are no flight records; give one with --state-dir", oneLine(err.Error()))
	}
	f.observe(s, ins, log)
	return s
}

// keep makes the state directory and the keeper of its flight records.
func (f *stateFlags) keep(a *app, s *state, log *slog.Logger) (dir string, err error) {
	if dir, err = f.stateDir(a.getenv); err == nil {
		err = writableDir(dir)
	}
	if err != nil {
		return "", err
	}
	s.keeper, err = flight.New(flight.Options{Dir: filepath.Join(dir, "flight"), Writer: program, Logger: log})
	return dir, err
}

// observe makes the watcher.
func (f *stateFlags) observe(s *state, ins *collector.Instruments, log *slog.Logger) {
	s.watch = flight.NewWatcher(flight.WatchOptions{
		Keeper: s.keeper, HangAfter: time.Duration(f.HangAfter), Every: min(time.Second, time.Duration(f.HangAfter)/4),
		Instruments: ins, Logger: log,
	})
}

// openCursors makes the cursors, unless another sidecar of the same rings keeps them
// already: each would skip what the other has read.
func (s *state) openCursors(a *app, dir string, rings spanring.Dir, log *slog.Logger) error {
	k, err := collector.NewCursors(dir, log)
	if err != nil {
		return err
	}
	path, err := filepath.Abs(rings.Path)
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(path))
	name := filepath.Join(dir, fmt.Sprintf("%x.lock", sum[:8]))
	lock, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return bareOpen(name, err)
	}
	switch err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		a.say("warning: another sidecar of %s keeps its cursors in %s: a restart of this one reads the rings anew; give it a --state-dir of its own", rings.Path, dir)
		return lock.Close()
	case err != nil:
		return errors.Join(fmt.Errorf("lock %s: %w", name, err), lock.Close())
	}
	s.cursors, s.lock = k, lock
	return nil
}

// close lets another sidecar have the cursors; s may be nil.
func (s *state) close() error {
	if s == nil || s.lock == nil {
		return nil
	}
	return s.lock.Close()
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
	o.RemoveDead = s.removeDead
	o.OnEnd = func(e *collector.Engine) {
		if s.only == nil || s.only(e) {
			s.watch.Ended(e)
		}
	}
	o.Cursors = s.cursors
}

// run watches the collector's engines until ctx ends; s may be nil.
func (s *state) run(ctx context.Context, c *collector.Collector, g *sync.WaitGroup) {
	if s == nil {
		return
	}
	engines := c.Engines
	if s.only != nil {
		engines = func() []*collector.Engine {
			return slices.DeleteFunc(c.Engines(), func(e *collector.Engine) bool { return !s.only(e) })
		}
	}
	g.Go(func() { s.watch.Run(ctx, engines) })
}
