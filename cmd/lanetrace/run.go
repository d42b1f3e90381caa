package main

import (
	"context"
	"crypto/rand"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/report"
	"github.com/lanetrace/lanetrace/spanring"
)

type runCmd struct {
	Cmd    []string         `arg:"" passthrough:"" name:"cmd" help:"Program to run, and its arguments; -- before it ends the flags of lanetrace."`
	Agent  string           `help:"The agent library (default: liblanetrace.so beside lanetrace, else in bin/ of the current folder)." placeholder:"FILE"`
	Level  *lanetrace.Level `help:"Level that the program starts at: off, basic, lane or kernel (default lane)." placeholder:"LEVEL"`
	Step   string           `help:"NVTX ranges that are steps, * for any text, separated by commas; or vllm, sglang, graph, window, window:MS, none, auto: see docs/attach.md (default auto)." placeholder:"PATTERNS"`
	Lanes  string           `help:"NVTX ranges that are lanes; RANGE=NAME names one (default: all, or what belongs to the engine)." placeholder:"PATTERNS"`
	Report bool             `help:"Print a report on standard error at the end." default:"true" negatable:""`
	serviceFlags
	deviceFlags
}

// Help says more than the flags do.
func (runCmd) Help() string {
	return `Standard output is the program's; what lanetrace says, and the report, go to standard error. Signals are passed on.

Exit code: the program's; of one that a signal killed 128 and its number, 127 and 126 when it could not be started.

Examples:

    lanetrace run -- python serve.py
    lanetrace run --step 'step*' --lanes '*' -- python serve.py
    VLLM_NVTX_SCOPES_FOR_PROFILING=1 lanetrace run --step vllm -- vllm serve MODEL

While it runs, "lanetrace top" shows its lanes, and "lanetrace arm --steps 8" times the kernels of the next steps.`
}

// agentName is the agent's file.
const agentName = "liblanetrace.so"

// runMark is the variable by which the processes of one run are told from others:
// they inherit it, however they were started.
const runMark = "LANETRACE_RUN_MARK"

// Exit codes of shells for a program that cannot be started, and from where on
// they count signals.
const (
	exitCannotRun = 126
	exitNotFound  = 127
	exitSignal    = 128
)

// Run starts the program with the agent in it, and is its sidecar until it ends.
// Nothing that goes wrong with telemetry keeps the program from running. Standard
// output is the program's; all that lanetrace has to say goes to standard error.
func (c *runCmd) Run(a *app) error {
	if c.Cmd[0] == "--" {
		c.Cmd = c.Cmd[1:]
	}
	if len(c.Cmd) == 0 {
		return usagef("no program to run: want lanetrace run [flags] -- CMD...")
	}
	if strings.HasPrefix(c.Cmd[0], "-") {
		return usagef("unknown flag %s (see lanetrace run --help)", c.Cmd[0])
	}
	cmd := exec.Command(c.Cmd[0], c.Cmd[1:]...)
	if cmd.Err != nil {
		return cannotStart(c.Cmd[0], cmd.Err)
	}
	signals := newForwarder()
	defer signals.stop()

	startMonoNS := spanring.MonoNS()
	mark := newMark()
	cmd.Env = c.environ(a, mark)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, a.stdout, a.stderr
	side := c.sidecar(a, mark, startMonoNS)
	if err := cmd.Start(); err != nil {
		side.end()
		return cannotStart(c.Cmd[0], err)
	}
	signals.to(cmd.Process)
	stopReaping := reapOrphans(cmd.Process.Pid)
	err := cmd.Wait()
	stopReaping()
	signals.stop()
	side.end()
	if c.Report {
		side.report()
	}
	if cmd.ProcessState == nil {
		return fmt.Errorf("run %s: %w", c.Cmd[0], err)
	}
	if code := exitCode(cmd.ProcessState); code != 0 {
		return exitError{code: code}
	}
	return nil
}

// exitCode is a program's exit code, of one that a signal ended 128 and its number.
func exitCode(s *os.ProcessState) int {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return exitSignal + int(ws.Signal())
	}
	return s.ExitCode()
}

func cannotStart(name string, err error) error {
	code := exitCannotRun
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = exitNotFound
	}
	var ee *exec.Error
	if errors.As(err, &ee) {
		err = ee.Err
	} else {
		err = bareOpen(name, err)
		return exitError{code, fmt.Errorf("cannot run: %w", err)}
	}
	return exitError{code, fmt.Errorf("cannot run %s: %w", name, err)}
}

func newMark() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// The environment ---------------------------------------------------------------

// environ is the program's environment: ours, with the agent and our settings, so
// that whatever the program starts has them too. An agent that cannot be had is a
// warning.
func (c *runCmd) environ(a *app, mark string) []string {
	env := environment(os.Environ())
	env.set(runMark, mark)
	if c.Dir != "" {
		env.set("LANETRACE_DIR", absolute(c.Dir))
	}
	if c.Group != "" {
		env.set("LANETRACE_GROUP", c.Group)
	}
	if c.Level != nil {
		env.set("LANETRACE_LEVEL", c.Level.String())
	}
	if c.Step != "" {
		env.set("LANETRACE_STEP", c.Step)
	}
	if c.Lanes != "" {
		env.set("LANETRACE_LANES", c.Lanes)
	}
	agent, err := c.findAgent()
	if err != nil {
		a.say("warning: %s; the program runs without it", oneLine(err.Error()))
		return env
	}
	env.set("LANETRACE_AGENT", agent)
	// Both separate the libraries in LD_PRELOAD; ours comes first, so that it sees
	// look-ups before other interposers.
	preload := strings.FieldsFunc(env.get("LD_PRELOAD"), func(r rune) bool { return r == ':' || r == ' ' })
	preload = slices.DeleteFunc(preload, func(s string) bool { return s == agent })
	env.set("LD_PRELOAD", strings.Join(append([]string{agent}, preload...), ":"))
	if other := env.get("NVTX_INJECTION64_PATH"); other != "" && other != agent {
		a.say("warning: NVTX_INJECTION64_PATH names %s: NVTX ranges go there, and steps cannot be told by them", other)
	} else {
		env.set("NVTX_INJECTION64_PATH", agent)
	}
	return env
}

// findAgent is the agent library's absolute path.
func (c *runCmd) findAgent() (string, error) {
	var tries []string
	if c.Agent != "" {
		tries = []string{c.Agent}
	} else {
		if exe, err := os.Executable(); err == nil {
			// Beside the file itself, should this be a link to it.
			if real, err := filepath.EvalSymlinks(exe); err == nil {
				exe = real
			}
			tries = append(tries, filepath.Join(filepath.Dir(exe), agentName))
		}
		tries = append(tries, filepath.Join("bin", agentName))
	}
	for _, t := range tries {
		if st, err := os.Stat(t); err != nil || !st.Mode().IsRegular() {
			continue
		}
		p := absolute(t)
		if strings.ContainsAny(p, ": ") {
			return "", fmt.Errorf("agent library %q: a path with a blank or a colon cannot be preloaded", p)
		}
		if err := loadable(p); err != nil {
			return "", fmt.Errorf("agent library %s: %w", p, err)
		}
		return p, nil
	}
	return "", fmt.Errorf("no agent library at %s (make agent builds it, --agent names it)", strings.Join(tries, " or "))
}

// loadable refuses a file that is no shared library of this machine's kind: the
// loader would say so again in each process that the program starts.
func loadable(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return errors.New("not a shared library")
	}
	defer f.Close() //nolint:errcheck // read only
	if f.Type != elf.ET_DYN {
		return errors.New("not a shared library")
	}
	own, err := elf.Open("/proc/self/exe")
	if err != nil {
		return nil // not to be told, so left to the loader
	}
	defer own.Close() //nolint:errcheck // read only
	if f.Machine != own.Machine {
		return fmt.Errorf("made for %v, this is %v", f.Machine, own.Machine)
	}
	return nil
}

func absolute(path string) string {
	if p, err := filepath.Abs(path); err == nil {
		return p
	}
	return path
}

// environment is a list of NAME=VALUE.
type environment []string

func (e environment) get(name string) string {
	for _, kv := range slices.Backward(e) {
		if k, v, _ := strings.Cut(kv, "="); k == name {
			return v
		}
	}
	return ""
}

func (e *environment) set(name, value string) {
	*e = slices.DeleteFunc(*e, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	*e = append(*e, name+"="+value)
}

// Signals -------------------------------------------------------------------------

// forwarder passes signals on to a program.
type forwarder struct {
	c    chan os.Signal
	done chan struct{}
	wait sync.WaitGroup
	once sync.Once
}

// newForwarder catches the signals that end or steer a server. Those that were
// ignored when we began, as nohup has them, stay so, for the program too. What
// comes before there is a program waits for it.
func newForwarder() *forwarder {
	f := &forwarder{c: make(chan os.Signal, 32), done: make(chan struct{})}
	for _, s := range []os.Signal{
		unix.SIGTERM, unix.SIGINT, unix.SIGQUIT, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH,
	} {
		if !signal.Ignored(s) {
			signal.Notify(f.c, s)
		}
	}
	return f
}

// to begins to pass signals on to p.
func (f *forwarder) to(p *os.Process) {
	f.wait.Go(func() {
		for {
			select {
			case s := <-f.c:
				if !fromTerminal(s) {
					_ = p.Signal(s) // one that has ended needs none
				}
			case <-f.done:
				return
			}
		}
	})
}

func (f *forwarder) stop() {
	f.once.Do(func() { close(f.done) })
	f.wait.Wait()
	signal.Stop(f.c)
}

// fromTerminal says whether the terminal sends s to the whole foreground group: the
// program, which is in ours, has it already, and twice means something else to many.
// One of these that somebody sends to us alone while we are in the foreground cannot
// be told from that; SIGTERM can.
func fromTerminal(s os.Signal) bool {
	switch s {
	case unix.SIGINT, unix.SIGQUIT, unix.SIGWINCH:
	default:
		return false
	}
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	fg, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && fg == unix.Getpgrp()
}

// reapOrphans takes what orphans leave behind while we are the first process of a
// container, to which they fall, until it is told to stop. The program itself is
// left to who waits for it.
func reapOrphans(program int) (stop func()) {
	if os.Getpid() != 1 {
		return func() {}
	}
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGCHLD)
	done := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			reap("/proc/self/task", program)
			select {
			case <-c:
			case <-done:
				return
			}
		}
	})
	return func() {
		signal.Stop(c)
		close(done)
		wait.Wait()
	}
}

// reap waits for each child that has ended, but for program.
func reap(tasks string, program int) {
	lists, _ := filepath.Glob(filepath.Join(tasks, "*", "children"))
	for _, l := range lists {
		b, err := os.ReadFile(l)
		if err != nil {
			continue // the thread has ended
		}
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil && pid != program {
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // one that runs on is left
			}
		}
	}
}

// The sidecar ---------------------------------------------------------------------

// runSide is the sidecar of a run, as far as it could be had.
type runSide struct {
	c           *runCmd
	a           *app
	dir         spanring.Dir
	dirOK       bool
	mark        string
	startMonoNS int64
	cancel      context.CancelFunc
	done        sync.WaitGroup

	mu      sync.Mutex
	engines map[string]bool // ring paths of engines that were seen alive: this run's or not

	service *service // nil when there is none
	gpus    *devices // nil when none are read
}

// sidecar starts it. What it cannot do is a warning.
func (c *runCmd) sidecar(a *app, mark string, startMonoNS int64) *runSide {
	s := &runSide{c: c, a: a, mark: mark, startMonoNS: startMonoNS, cancel: func() {}, engines: map[string]bool{}}
	dir, named, err := c.ringDir()
	if err == nil && !named {
		// The program's engines would make it; so nobody has to wait for it.
		err = dir.Make()
	}
	if err == nil {
		err = dir.CheckReadable()
	}
	if err != nil {
		a.say("warning: %s; there is no telemetry of this run", oneLine(err.Error()))
		return s
	}
	s.dir, s.dirOK = dir, true
	serv, gpus, err := c.service(a, dir)
	if err != nil {
		a.say("warning: %s; this run has no metrics and no traces", oneLine(err.Error()))
		return s
	}
	serv.state = c.openRecords(a, s.ours, serv.ins, serv.log)
	s.service, s.gpus = serv, gpus
	serv.serve()
	a.say("serving %s/metrics; OTLP is %s", serv.url(), a.otlpText(c.OTLPEndpoint))
	// Signals are the program's: its sidecar ends after it.
	ctx, cancel := context.WithCancel(context.WithoutCancel(a.ctx))
	s.cancel = cancel
	gpus.start(ctx)
	s.done.Go(func() {
		err := serv.read(ctx, dir, c.selection(c.arms(a)), s.attached)
		gpus.stop() // before what they are kept in ends
		if err = errors.Join(err, serv.close()); err != nil {
			a.say("warning: %s", oneLine(err.Error()))
		}
	})
	return s
}

// service is the sidecar's service, with the GPUs that it reads. Should its address be
// in use, by another sidecar most likely, it takes a free port and says so.
func (c *runCmd) service(a *app, dir spanring.Dir) (*service, *devices, error) {
	web, err := c.loadWeb()
	if err != nil {
		return nil, nil, err
	}
	on := func(listen listenAddr) (s *service, gpus *devices, err error) {
		keep, err := c.store(a)
		if err != nil {
			return nil, nil, err
		}
		if gpus, err = c.devices(a, a.log.slog(true), func() []*collector.Engine { return s.engines() }, keepTap(keep)...); err != nil {
			return nil, nil, err
		}
		s, err = a.newService(serviceOptions{
			listen: listen, web: web, ins: c.instruments(a.getenv), endpoint: c.OTLPEndpoint, dir: dir, log: a.log.slog(true),
			keep: keep, keepBytes: uint64(c.KeepBytes), devices: gpus, growth: c.LeakWindow.growth(),
		})
		return s, gpus, err
	}
	s, gpus, err := on(c.Listen)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return s, gpus, err
	}
	a.say("warning: %s is in use; a free port serves this run", c.Listen)
	return on("127.0.0.1:0")
}

// attached notes whose engine it is while its process is there to be looked at.
func (s *runSide) attached(e *collector.Engine) {
	path := filepath.Join(s.dir.Path, e.RunID().String()+spanring.Suffix)
	if ours, known := s.marked(e.Info()); known {
		s.mu.Lock()
		s.engines[path] = ours
		s.mu.Unlock()
	}
}

// marked looks for the run's mark in the environment of an engine's process; known
// is false for one that cannot be looked at.
func (s *runSide) marked(i spanring.Info) (ours, known bool) {
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/pid", &st) != nil || st.Ino != i.PIDNamespace {
		return false, false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", i.PID))
	if err != nil || len(b) == 0 {
		return false, false
	}
	return slices.Contains(strings.Split(string(b), "\x00"), runMark+"="+s.mark), true
}

// ours says whether an engine is one of this run's.
func (s *runSide) ours(e *collector.Engine) bool {
	path := filepath.Join(s.dir.Path, e.RunID().String()+spanring.Suffix)
	s.mu.Lock()
	ours, known := s.engines[path]
	s.mu.Unlock()
	if known {
		return ours
	}
	return e.Info().CreatedMonoNS >= s.startMonoNS
}

// deathWait bounds the wait until engines that are gone were seen dead, which takes half
// a second.
const deathWait = 3 * time.Second

// end lets the sidecar see this run's engines end, read what is left, send it and end.
func (s *runSide) end() {
	unseen := func(e *collector.Engine) bool {
		if e.State() != collector.EngineLive || !s.ours(e) {
			return false
		}
		alive, err := e.Source().Alive()
		return err == nil && !alive
	}
	if s.service != nil {
		t := time.NewTicker(20 * time.Millisecond)
		for late := time.Now().Add(deathWait); slices.ContainsFunc(s.service.engines(), unseen) && time.Now().Before(late); {
			<-t.C
		}
		t.Stop()
	}
	s.cancel()
	s.done.Wait()
}

// rings are the run's rings that are still there. Of one whose process was never
// seen, its time says whether it is one.
func (s *runSide) rings() (out []string) {
	rings, err := openRings(s.dir)
	if err != nil {
		return nil
	}
	for r := range rings {
		if r.err == nil {
			_ = r.Close() // it was read
		}
		s.mu.Lock()
		ours, known := s.engines[r.path]
		s.mu.Unlock()
		if !known {
			if r.err != nil || r.info.CreatedMonoNS < s.startMonoNS {
				continue
			}
			if ours, known = s.marked(r.info); !known {
				ours = true
			}
		}
		if ours {
			out = append(out, r.path)
		}
	}
	return out
}

// report prints a report of each engine of the run.
func (s *runSide) report() {
	if !s.dirOK {
		return
	}
	rings := s.rings()
	if len(rings) == 0 {
		s.a.say("no engine was seen: the program used no GPU, or no agent was in it")
		return
	}
	var c reportCmd
	o := report.Options{Top: reportTop, Width: s.a.widthOf(s.a.stderr)}
	for _, p := range rings {
		src, _, err := c.ring(p)
		var text string
		if err == nil {
			for _, r := range src {
				text, _, err = c.reportOn(s.a, r, o, nil)
			}
		}
		if err != nil {
			s.a.say("warning: %s", oneLine(err.Error()))
		}
		if text != "" {
			fmt.Fprintf(s.a.stderr, "\n%s", text)
		}
		if who, ok := stepless(p); ok && noSteps(s.c.Step) != "" {
			s.a.say("%s: no steps: %s", who, noSteps(s.c.Step))
		}
	}
	if text := report.DevicesText(reportedDevices(s.gpus.stats(), c.on), o.Width); text != "" {
		fmt.Fprintf(s.a.stderr, "\n%s", text)
	}
}

// stepless says whether a ring's engine had telemetry on and began no step, and
// which process it was.
func stepless(path string) (who string, ok bool) {
	r, err := spanring.Open(path, spanring.ReaderOptions{})
	if err != nil {
		return "", false
	}
	defer r.Close()
	i, err := r.Info()
	if err != nil {
		return "", false
	}
	n, err := r.Counters()
	if err != nil || n[spanring.CtrStepsBegun] > 0 || lanetrace.Level(i.Level) == lanetrace.LevelOff {
		return "", false
	}
	return fmt.Sprintf("%s, pid %d", oneLine(i.Executable), i.PID), true
}

// noSteps is why a program had no steps under a setting of --step; empty where it
// was to have none.
func noSteps(setting string) string {
	switch word, _, _ := strings.Cut(setting, ":"); {
	case setting == "none":
		return ""
	case setting == "", word == "auto":
		return "it marked none, and ended before something stood in for them; --step graph or window does so from the first launch"
	case setting == "graph":
		return "it launched no graph"
	case word == "window":
		return "it launched nothing"
	default:
		return fmt.Sprintf("no NVTX range of its matched --step %s; docs/attach.md has what to type", setting)
	}
}

// reportTop is how many kernels a run's report lists.
const reportTop = 10
