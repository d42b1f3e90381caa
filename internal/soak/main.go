package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// options are the command's.
type options struct {
	sidecar string
	spans   uint64
	rate    int
	seed    uint64
	rounds  int
	window  time.Duration
	quiet   time.Duration // between events, at most
	longest time.Duration // of an event
	limit   time.Duration

	shortest time.Duration

	engine, dir string // what an engine is started with
}

func main() {
	var o options
	flag.StringVar(&o.sidecar, "sidecar", "bin/lanetrace", "the lanetrace command")
	flag.Uint64Var(&o.spans, "spans", 25_000_000, "how many spans the engines begin at least, both together")
	flag.IntVar(&o.rate, "rate", 20_000, "spans a second of each engine")
	flag.Uint64Var(&o.seed, "seed", 0, "what goes wrong and when (default: drawn, and printed)")
	flag.IntVar(&o.rounds, "rounds", 8, "how often calls are timed with and without a sidecar")
	flag.DurationVar(&o.window, "window", 5*time.Second, "for how long each time")
	flag.DurationVar(&o.quiet, "quiet", 6*time.Second, "the longest time between two events")
	flag.DurationVar(&o.longest, "longest", 6*time.Second, "the longest event")
	flag.DurationVar(&o.limit, "limit", 2*time.Hour, "give up, and fail, after so long")
	flag.StringVar(&o.engine, "engine", "", "be an engine of this name")
	flag.StringVar(&o.dir, "dir", "", "with -engine: the ring directory")
	flag.Parse()
	if o.engine != "" {
		if err := engine(o.engine, o.dir, o.rate, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "soak: engine", o.engine+":", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := run(ctx, o, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// soak is a run.
type soak struct {
	o     options
	out   io.Writer
	start time.Time
	args  sidecarArgs
	deck  deck

	receiver receiver
	disk     *disk
	engines  [2]*engineProc
	sidecar  *sidecarProc
	all      []*sidecarProc // those before included
	events   [numEvents]int

	ended       []final
	endedBegun  uint64
	takenBefore uint64 // by the receiver, when it came back last

	looking sync.Mutex
	looked  *sidecarProc // whom the watcher looks at, nil for nobody
}

func (s *soak) say(format string, args ...any) {
	fmt.Fprintf(s.out, "%7.1f s  %s\n", time.Since(s.start).Seconds(), fmt.Sprintf(format, args...))
}

// run is the whole soak; ok is whether everything held.
func run(ctx context.Context, o options, out io.Writer) (ok bool, err error) {
	if o.shortest = o.longest / 6; o.longest <= 0 || o.quiet <= 0 || o.rounds < 2 || o.rate < 1000 {
		return false, errors.New("want times over 0, 2 rounds and a rate of 1000 at the least")
	}
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.limit, fmt.Errorf("not done within %v", o.limit))
	defer cancel()
	base, err := os.MkdirTemp("", "lanetrace-soak-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(base)) }()
	// Where rings belong; elsewhere a slow disk would be measured too.
	rings, err := os.MkdirTemp("/dev/shm", "lanetrace-soak-")
	if err != nil {
		rings, err = os.MkdirTemp(base, "rings-")
	}
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(rings)) }()
	s := &soak{o: o, out: out, start: time.Now(), deck: deck{rnd: rand.New(rand.NewPCG(o.seed, 0))}}
	if err := s.receiver.start(ctx); err != nil {
		return false, err
	}
	defer s.receiver.stop()
	if s.disk, err = newDisk(filepath.Join(base, "keep")); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, s.disk.close()) }()
	s.args = sidecarArgs{bin: o.sidecar, dir: rings, state: filepath.Join(base, "state"), keep: s.disk.path, endpoint: s.receiver.addr}
	fmt.Fprintf(out, "soak: at least %d spans by two engines of %d a second, seed %d, %d CPUs; recordings on a %s\n", o.spans, o.rate, o.seed, runtime.NumCPU(), s.disk)

	watching, stopWatching := context.WithCancel(context.WithoutCancel(ctx))
	var watcher sync.WaitGroup
	watcher.Go(func() { s.watcher(watching) })
	defer watcher.Wait()
	defer stopWatching()
	defer s.killAll()
	for i := range s.engines {
		if err := s.runEngine(i); err != nil {
			return false, err
		}
	}
	var rs results
	if err := s.timeCalls(ctx, &rs); err != nil {
		return false, err
	}
	if err := s.goWrong(ctx, &rs); err != nil {
		return false, err
	}
	return rs.ok(), rs.print(out)
}

// killAll ends what is still there, after an error.
func (s *soak) killAll() {
	s.watch(nil)
	for _, e := range s.engines {
		if e != nil {
			_, _ = e.end(true)
		}
	}
	if s.sidecar != nil {
		_ = s.sidecar.end(true)
	}
}

func (s *soak) runEngine(i int) (err error) {
	s.engines[i], err = startEngine(fmt.Sprintf("soak%d", i), s.args.dir, s.o.rate)
	return err
}

func (s *soak) endEngine(i int, kill bool) error {
	e := s.engines[i]
	s.engines[i] = nil
	f, err := e.end(kill)
	if err != nil {
		return err
	}
	s.ended = append(s.ended, f)
	s.endedBegun += f.counters[spanring.CtrBegun]
	return nil
}

func (s *soak) runSidecar() (err error) {
	if s.sidecar, err = startSidecar(s.args); err != nil {
		return err
	}
	s.all = append(s.all, s.sidecar)
	s.watch(s.sidecar)
	return nil
}

// begun is how many spans were begun so far.
func (s *soak) begun() uint64 {
	n := s.endedBegun
	for _, e := range s.engines {
		if e != nil {
			n += e.begun()
		}
	}
	return n
}

// watch has the watcher look at a sidecar, and waits until it looks at no other.
func (s *soak) watch(p *sidecarProc) {
	s.looking.Lock()
	s.looked = p
	s.looking.Unlock()
}

// watcher looks at the sidecar twice a second until ctx ends. What it cannot see
// while that is stopped, it sees later.
func (s *soak) watcher(ctx context.Context) {
	t := time.NewTicker(500 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		s.looking.Lock()
		if s.looked != nil {
			_, _ = s.looked.look(ctx)
		}
		s.looking.Unlock()
	}
}

// hung is how long things may take that take a second where nobody else wants the CPUs.
const hung = time.Minute

// until polls cond.
func until(ctx context.Context, what string, wait time.Duration, cond func() bool) error {
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for late := time.After(wait); ; {
		if cond() {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, context.Cause(ctx))
		case <-late:
			return fmt.Errorf("%s: not within %v", what, wait)
		case <-t.C:
		}
	}
}

// attached waits until the sidecar reads both engines.
func (s *soak) attached(ctx context.Context) error {
	return until(ctx, "the sidecar reads both engines", hung, func() bool {
		as, err := s.sidecar.look(ctx)
		if err != nil {
			return false
		}
		live := 0
		for _, a := range as {
			if a.State == collector.EngineLive.String() {
				live++
			}
		}
		return live == len(s.engines)
	})
}

// timeCalls times the engines' calls with and without a sidecar, in turns.
func (s *soak) timeCalls(ctx context.Context, rs *results) error {
	var without, with times
	measure := func(t *times) error {
		for _, e := range s.engines {
			if _, err := e.ask(); err != nil {
				return err
			}
		}
		pause(ctx, s.o.window)
		for _, e := range s.engines {
			w, err := e.ask()
			if err != nil {
				return err
			}
			t.add(w)
		}
		return context.Cause(ctx)
	}
	s.say("timing calls: %d windows of %v without and with a sidecar", s.o.rounds, s.o.window)
	pause(ctx, s.o.window/2) // engines that have just started are no measure
	for range s.o.rounds {
		if err := measure(&without); err != nil {
			return err
		}
		if err := s.runSidecar(); err != nil {
			return err
		}
		if err := s.attached(ctx); err != nil {
			return err
		}
		if err := measure(&with); err != nil {
			return err
		}
		s.watch(nil)
		side := s.sidecar
		s.sidecar = nil
		if err := side.end(false); err != nil {
			return err
		}
	}
	latencies(rs, s.o.rounds, &without, &with)
	return nil
}

// goWrong has things go wrong until enough spans were begun, and checks.
func (s *soak) goWrong(ctx context.Context, rs *results) error {
	if err := s.runSidecar(); err != nil {
		return err
	}
	var firstOf *sidecarProc
	var first resources
	for n := 0; n < int(numEvents) || s.begun() < s.o.spans; n++ {
		if s.sidecar != firstOf {
			// What a sidecar holds at first: once it reads both engines and has settled.
			if err := s.attached(ctx); err != nil {
				return err
			}
			pause(ctx, s.o.quiet)
			r, err := s.sidecar.resources(ctx)
			if err != nil {
				return err
			}
			firstOf, first = s.sidecar, r
		}
		pause(ctx, s.deck.between(s.o.quiet/3, s.o.quiet))
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := s.happen(ctx, s.deck.next()); err != nil {
			return err
		}
	}
	if s.sidecar != firstOf {
		first = resources{}
	}
	s.say("%d spans begun; nothing goes wrong any more", s.begun())
	if err := s.attached(ctx); err != nil {
		return err
	}
	pause(ctx, s.o.quiet)
	var routines, fds [2]int
	for i, e := range s.engines {
		w, err := e.ask()
		if err != nil {
			return err
		}
		routines[i], fds[i] = w.Goroutines, w.FDs
	}
	last, err := s.sidecar.resources(ctx)
	if err != nil {
		return err
	}
	if first == (resources{}) {
		first = last
	}
	rs.add(max(routines[0], routines[1]) <= engineGoroutines && max(fds[0], fds[1]) <= engineFDs, "an engine's goroutines and descriptors",
		fmt.Sprintf("at most %d and %d", engineGoroutines, engineFDs), "%v and %v", routines, fds)
	for i := range s.engines {
		if err := s.endEngine(i, false); err != nil {
			return err
		}
	}
	return s.conclude(ctx, rs, first, last)
}

// Bounds of what an engine of this command holds, whatever happened to it.
const (
	engineGoroutines = 20
	engineFDs        = 20
)

// conclude waits until nothing moves, and checks the accounts.
func (s *soak) conclude(ctx context.Context, rs *results, first, last resources) error {
	settled := func() bool {
		as, err := s.sidecar.look(ctx)
		if err != nil {
			return false
		}
		for _, a := range as {
			if a.State == collector.EngineLive.String() || a.Sidecar.Pending > 0 || a.Reader.Pending > 0 {
				return false
			}
		}
		return true
	}
	err := until(ctx, "everything is read and sent", hung, settled)
	rs.add(err == nil, "everything is read and sent", "within a minute", "%s", okOr(err))
	s.kept(ctx, rs)
	s.watch(nil)
	side := s.sidecar
	s.sidecar = nil
	err = side.end(false)
	rs.add(err == nil, "the sidecar ends at SIGTERM", "exit code 0", "%s", okOr(err))

	var t tally
	exported := uint64(0)
	for _, p := range s.all {
		for _, a := range p.known() {
			exported += a.Sidecar.Exported
		}
	}
	for i := range s.ended {
		t.check(&s.ended[i], s.accountOf(s.ended[i].run))
	}
	t.print(s.out)
	rs.add(len(t.wrong) == 0, "the account of every run", "balances, and agrees with the ring", "%d runs (%d killed), %d seen to their end, %d violations", t.runs, t.killed, t.compared, len(t.wrong))
	rs.add(true, "being written at a kill", fmt.Sprintf("within ±%d", atKill), "in flight %+d, received %+d at most", t.inFlightOff, t.receivedOff)
	rs.add(true, "entries", "counted", "%d lost, %d missed before attach; %d runs without either", t.lost, t.missed, t.whole)
	taken := s.receiver.spans.Load()
	rs.add(taken >= exported, "spans that the receiver took", "all that were counted exported", "%d of %d", taken, exported)
	rs.add(taken > s.takenBefore, "export after an outage", "goes on", "%d spans since the last", taken-s.takenBefore)
	var lives [][]held
	for _, p := range s.all {
		lives = append(lives, p.memory())
	}
	memory(rs, lives)
	flat(rs, first, last)
	rs.add(s.endedBegun >= s.o.spans, "spans begun", fmt.Sprint(s.o.spans), "%d in %v", s.endedBegun, time.Since(s.start).Round(time.Second))
	for e, n := range s.events {
		rs.add(n > 0, event(e).String(), "at least once", "%d times", n)
	}
	return nil
}

func okOr(err error) string {
	if err == nil {
		return "yes"
	}
	return err.Error()
}

// accountOf is what was said of a run after its end, nil if nothing was.
func (s *soak) accountOf(run string) *collector.Account {
	var last *collector.Account
	for _, p := range s.all {
		for _, a := range p.known() {
			if a.RunID == run && a.State != collector.EngineLive.String() {
				last = &a
			}
		}
	}
	return last
}

// kept compares how many entries the sidecar kept or lost with how many it received.
// What a restarted sidecar reads again it keeps no second time.
func (s *soak) kept(ctx context.Context, rs *results) {
	var want, again uint64
	unseen := 0 // runs whose end came and went between two looks: more was received of them
	for _, a := range s.sidecar.known() {
		if a.State == collector.EngineLive.String() {
			unseen++
		}
		want += a.Reader.Received - a.Reader.ReadAgain
		again += a.Reader.ReadAgain
	}
	var kept, lost uint64
	err := until(ctx, "recordings are written", hung, func() bool {
		text, err := s.sidecar.get(ctx, "/metrics")
		if err != nil {
			return false
		}
		w, err1 := sum(string(text), "lanetrace_keep_entries_total", `reason="written"`)
		l, err2 := sum(string(text), "lanetrace_keep_entries_total", `reason="lost"`)
		kept, lost = uint64(w+l), uint64(l)
		return errors.Join(err1, err2) == nil && (kept == want || unseen > 0 && kept > want)
	})
	rs.add(err == nil, "entries for recordings, written and lost", "as many as were received, less those read again",
		"%d of %d, %d of them lost; %d more were read again, %d runs not seen to their end", kept, want, lost, again, unseen)
}
