package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lanetrace/lanetrace/collector"
)

// Programs are lanetrace's programs, built for the tests.
type Programs struct {
	Lanetrace string // path of the command
	Decode    string // path of the example engine
}

// Build builds the programs from the source at root into dir, with the go command
// of the variable GO, else of the path.
func Build(ctx context.Context, root, dir string) (Programs, error) {
	goCmd := os.Getenv("GO")
	if goCmd == "" {
		goCmd = "go"
	}
	cmd := exec.CommandContext(ctx, goCmd, "build", "-trimpath", "-o", dir+string(filepath.Separator), "./cmd/lanetrace", "./examples/decode")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return Programs{}, fmt.Errorf("build lanetrace: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return Programs{Lanetrace: filepath.Join(dir, "lanetrace"), Decode: filepath.Join(dir, "decode")}, nil
}

// RingDir makes a ring directory that is removed with the test.
func RingDir(tb testing.TB) string {
	tb.Helper()
	d := tb.TempDir()
	if err := os.Chmod(d, 0o700); err != nil {
		tb.Fatal(err)
	}
	return d
}

// Run runs the lanetrace command to its end and returns its standard output. An
// exit code other than 0 fails the test.
func (p Programs) Run(tb testing.TB, env []string, args ...string) string {
	tb.Helper()
	c := p.Start(tb, env, args...)
	if code := c.Wait(); code != 0 {
		tb.Fatalf("lanetrace %s: exit code %d: %s", strings.Join(args, " "), code, strings.TrimSpace(c.Stderr()))
	}
	return c.Stdout()
}

// Start starts the lanetrace command.
func (p Programs) Start(tb testing.TB, env []string, args ...string) *Process {
	tb.Helper()
	c := newProcess(tb, tb.TempDir(), "lanetrace-"+args[0], env, append([]string{p.Lanetrace}, args...))
	if err := c.Start(); err != nil {
		tb.Fatal(err)
	}
	return c
}

// Engine starts the example engine on the simulated GPU, with its rings in
// ringDir. Unless args say otherwise it serves for ten seconds.
func (p Programs) Engine(tb testing.TB, ringDir string, env []string, args ...string) *Process {
	tb.Helper()
	argv := append([]string{p.Decode, "--backend", "sim", "--dir", ringDir, "--no-verify"}, args...)
	e := newProcess(tb, tb.TempDir(), "decode", env, argv)
	if err := e.Start(); err != nil {
		tb.Fatal(err)
	}
	return e
}

// Service is a lanetrace sidecar or demo that serves.
type Service struct {
	*Process
	URL string // of what it serves; /metrics comes after it
}

// Sidecar starts a sidecar of the rings in ringDir and waits until it serves. Its
// OTLP metrics, if args send any, come every 200 ms.
func (p Programs) Sidecar(tb testing.TB, ringDir string, env []string, args ...string) *Service {
	tb.Helper()
	return p.serve(tb, env, append([]string{"sidecar", "--listen", "127.0.0.1:0", "--dir", ringDir}, args...))
}

// Demo starts a demo and waits until it serves. Its OTLP metrics, if args send
// any, come every 200 ms.
func (p Programs) Demo(tb testing.TB, env []string, args ...string) *Service {
	tb.Helper()
	return p.serve(tb, env, append([]string{"demo", "--listen", "127.0.0.1:0", "--dir", RingDir(tb)}, args...))
}

func (p Programs) serve(tb testing.TB, env []string, args []string) *Service {
	tb.Helper()
	// What it keeps is this test's, and not the user's.
	env = append([]string{"OTEL_METRIC_EXPORT_INTERVAL=200", "LANETRACE_STATE_DIR=" + tb.TempDir()}, env...)
	s := &Service{Process: newProcess(tb, tb.TempDir(), "lanetrace-"+args[0], env, append([]string{p.Lanetrace}, args...))}
	if err := s.Start(); err != nil {
		tb.Fatal(err)
	}
	re := regexp.MustCompile(`(http://[0-9.:]+)/metrics\b`)
	Poll(tb, s.Name+" serving", func() error {
		m := re.FindStringSubmatch(s.Stderr() + s.Stdout())
		if m == nil {
			if s.Ended() {
				tb.Fatalf("%s ended before it served: %s", s.Name, strings.TrimSpace(s.Stderr()))
			}
			return errors.New("no address on its output yet")
		}
		s.URL = m[1]
		return nil
	})
	return s
}

// Accounts are the loss accounts at /debug/account, one of each engine.
func (s *Service) Accounts(ctx context.Context) ([]collector.Account, error) {
	var as []collector.Account
	return as, GetJSON(ctx, s.URL+"/debug/account", &as)
}

// Settled waits until the service knows n engines, all ended, nothing is pending
// and the accounts balance, and returns them.
func (s *Service) Settled(n int) []collector.Account {
	s.tb.Helper()
	var as []collector.Account
	Poll(s.tb, "the accounts at rest", func() error {
		var err error
		if as, err = s.Accounts(s.tb.Context()); err != nil {
			return err
		}
		if len(as) != n {
			return fmt.Errorf("%d engines, want %d", len(as), n)
		}
		for i := range as {
			err = errors.Join(err, atRest(&as[i]))
		}
		return err
	})
	return as
}

// SettledRun waits until the engine with that run id has ended, nothing of it is
// pending and its account balances, and returns it.
func (s *Service) SettledRun(id string) collector.Account {
	s.tb.Helper()
	var a collector.Account
	Poll(s.tb, "the account of "+id+" at rest", func() error {
		as, err := s.Accounts(s.tb.Context())
		if err != nil {
			return err
		}
		for i := range as {
			if a = as[i]; a.RunID == id {
				return atRest(&a)
			}
		}
		return fmt.Errorf("not among %d engines", len(as))
	})
	return a
}

// atRest says what still moves in an account, or does not add up.
func atRest(a *collector.Account) error {
	if a.State == "live" || a.Reader.Pending != 0 || a.Sidecar.Pending != 0 {
		return fmt.Errorf("%s is %s, %d entries and %d spans pending", a.Engine, a.State, a.Reader.Pending, a.Sidecar.Pending)
	}
	if bad := a.Unbalanced(); len(bad) > 0 {
		return fmt.Errorf("%s: the lines of %v do not add up: %+v", a.Engine, bad, *a)
	}
	return nil
}

// EngineRunID waits for an engine's end, which must be a good one, and returns its
// run id, as it says it.
func EngineRunID(e *Process) string {
	e.tb.Helper()
	if code := e.Wait(); code != 0 {
		e.tb.Fatalf("engine: exit code %d: %s", code, strings.TrimSpace(e.Stderr()))
	}
	m := regexp.MustCompile(`([0-9a-f]{32})\.ring`).FindStringSubmatch(e.Stdout())
	if m == nil {
		e.tb.Fatalf("engine names no ring: %s", e.Stdout())
	}
	return m[1]
}
