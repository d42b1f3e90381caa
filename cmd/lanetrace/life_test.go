package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/collector"
)

// sidecarProcess is a sidecar in a process of its own.
type sidecarProcess struct {
	cmd *exec.Cmd
	err output
	url string
}

// process is a command line in a process of its own.
func process(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Under that name the test binary is the command.
	link := filepath.Join(t.TempDir(), "lanetrace")
	if err := os.Symlink(self, link); err != nil {
		t.Fatal(err)
	}
	return exec.Command(link, args...)
}

func startSidecar(t *testing.T, args ...string) *sidecarProcess {
	t.Helper()
	p := &sidecarProcess{cmd: process(t, append([]string{"sidecar", "--listen", "127.0.0.1:0"}, args...)...)}
	p.cmd.Stderr = &p.err
	p.cmd.Env = append(os.Environ(), "OTEL_METRICS_EXPORTER=none")
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			p.signal(t, unix.SIGKILL)
			_ = p.cmd.Wait()
		}
	})
	p.url = urlIn(t, &p.err)
	return p
}

func (p *sidecarProcess) signal(t *testing.T, s unix.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// wait is its exit code, -1 when a signal ended it.
func (p *sidecarProcess) wait(t *testing.T) int {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait() }()
	select {
	case err := <-done:
		var ee *exec.ExitError
		if err != nil && !errors.As(err, &ee) {
			t.Fatal(err)
		}
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		t.Fatalf("sidecar does not end; stderr:\n%s", p.err.String())
		return -1
	}
}

// read waits until the sidecar has read everything that the engine published.
func (p *sidecarProcess) read(t *testing.T, hub *lanetrace.Hub) (a collector.Account) {
	t.Helper()
	eventually(t, "everything is read", func() bool {
		as := accountsOf(t, p.url)
		if len(as) != 1 {
			return false
		}
		a = as[0]
		return a.Reader.Published == hub.Ring().Published() && a.Reader.Pending == 0
	})
	if u := a.Unbalanced(); len(u) > 0 {
		t.Errorf("unbalanced %v: %+v", u, a)
	}
	return a
}

// fastEngine is an engine of steps alone: two entries each.
func fastEngine(t *testing.T, dir string) *lanetrace.Hub {
	t.Helper()
	hub, err := lanetrace.Open(lanetrace.Config{Dir: dir, Service: "fast", Level: "basic", RingBytes: 256 << 10, Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		err = hub.Disabled()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hub.Close(context.Background()) })
	return hub
}

func runSteps(hub *lanetrace.Hub, n int) {
	for range n {
		s := hub.StepBegin()
		s.End()
	}
}

// stopTime is how long a reader is stopped: LANETRACE_TEST_STOP, in CI shorter.
func stopTime(t *testing.T) time.Duration {
	t.Helper()
	s := os.Getenv("LANETRACE_TEST_STOP")
	if s == "" {
		return 500 * time.Millisecond
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestStoppedReader: a sidecar that stands still under load loses what was overwritten
// meanwhile, to the entry; the engine does not notice.
func TestStoppedReader(t *testing.T) {
	rings := privateDir(t)
	hub := fastEngine(t, rings)
	p := startSidecar(t, "--dir", rings, "--state-dir", filepath.Join(t.TempDir(), "state"))
	runSteps(hub, 100)
	before := p.read(t, hub)
	if before.Reader.Lost != 0 || before.Reader.Received != 200 {
		t.Fatalf("before: %+v", before.Reader)
	}

	p.signal(t, unix.SIGSTOP)
	held := uint64(hub.Ring().Geometry().LogEntries)
	for end := time.Now().Add(stopTime(t)); time.Now().Before(end) || hub.Ring().Published() < before.Reader.Published+2*held; {
		runSteps(hub, 1000)
	}
	published := hub.Ring().Published()
	p.signal(t, unix.SIGCONT)
	after := p.read(t, hub)
	if want := published - before.Reader.Published - held; after.Reader.Lost != want || after.Reader.LostBy["overwritten"] != want {
		t.Errorf("lost %+v, want %d overwritten of %d", after.Reader, want, published)
	}
	t.Logf("stopped for %v: %d entries published, %d received, %d lost", stopTime(t), after.Reader.Published, after.Reader.Received, after.Reader.Lost)

	// The same while the load goes on: how much is lost is a race, that it is named is
	// not.
	var stop atomic.Bool
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		for !stop.Load() {
			runSteps(hub, 100)
		}
	}()
	p.signal(t, unix.SIGSTOP)
	eventually(t, "the ring comes round", func() bool { return hub.Ring().Published() > published+2*held })
	p.signal(t, unix.SIGCONT)
	eventually(t, "the sidecar reads again", func() bool {
		as := accountsOf(t, p.url)
		return len(as) == 1 && as[0].Reader.Received > after.Reader.Received
	})
	stop.Store(true)
	<-loaded
	last := p.read(t, hub)
	if last.Reader.Lost <= after.Reader.Lost || last.Reader.LostBy["hole"] != 0 {
		t.Errorf("under load: %+v", last.Reader)
	}
	p.signal(t, unix.SIGTERM)
	if code := p.wait(t); code != 0 {
		t.Errorf("exit code %d, stderr %s", code, p.err.String())
	}
}

// TestKilledSidecarReadsOn: after a SIGKILL a sidecar reads on from the cursor that was
// stored last; what it hands on again are the same spans.
func TestKilledSidecarReadsOn(t *testing.T) {
	rings, state := privateDir(t), filepath.Join(t.TempDir(), "state")
	hub := fastEngine(t, rings)
	rcv, endpoint := serveReceiver(t)
	args := []string{"--dir", rings, "--state-dir", state, "--otlp-endpoint", endpoint, "--every", "1", "--budget", "0"}
	first := startSidecar(t, args...)
	runSteps(hub, 100)
	first.read(t, hub)
	sent := func(steps int) func() bool {
		return func() bool {
			rcv.mu.Lock()
			defer rcv.mu.Unlock()
			return len(rcv.traces) == steps
		}
	}
	eventually(t, "the first hundred are sent", sent(100))
	eventually(t, "their cursor is stored", func() bool {
		b, err := os.ReadFile(filepath.Join(state, "cursors", hub.Ring().Info().RunID.String()+".cursor"))
		return err == nil && strings.Contains(string(b), `"from":200,"next":200,"closed":[[1,100]]`)
	})
	// What the next life finds: all that came since, sent already or not.
	runSteps(hub, 20)
	first.signal(t, unix.SIGKILL)
	if code := first.wait(t); code != -1 {
		t.Fatalf("exit code %d", code)
	}
	runSteps(hub, 30)
	second := startSidecar(t, args...)
	a := second.read(t, hub)
	eventually(t, "all are sent", sent(150))
	if a.Reader.Lost != 0 || a.Reader.MissedBeforeAttach < 200 || a.Reader.Received+a.Reader.MissedBeforeAttach != 300 {
		t.Errorf("account %+v", a)
	}
	second.signal(t, unix.SIGTERM)
	if code := second.wait(t); code != 0 {
		t.Errorf("exit code %d, stderr %s", code, second.err.String())
	}
	rcv.mu.Lock()
	defer rcv.mu.Unlock()
	twice := 0
	for id, n := range rcv.traces {
		switch n {
		case 2: // the step and its part on the host
		case 4:
			twice++
		default:
			t.Errorf("trace %s came with %d spans", id, n)
		}
	}
	if twice > 20 || len(rcv.spans) != 2*150 {
		t.Errorf("%d steps came twice, %d spans are different", twice, len(rcv.spans))
	}
}
