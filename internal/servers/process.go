package servers

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Process is a program that a test runs. Its output goes to files; the
// end of its standard error is shown when the test fails.
type Process struct {
	Name string

	tb     testing.TB
	argv   []string
	env    []string
	out    string // file of its standard output
	errOut string // and of its standard error

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	err  error         // what Wait said, once done is closed
}

// stopTime is how long a process has between SIGTERM and SIGKILL.
const stopTime = Patience

// newProcess makes a process that is not started. env is added to the test's own,
// without its OTEL_ and LANETRACE_ variables.
func newProcess(tb testing.TB, dir, name string, env, argv []string) *Process {
	p := &Process{Name: name, tb: tb, argv: argv, env: append(cleanEnv(), env...)}
	p.out, p.errOut = filepath.Join(dir, name+".stdout"), filepath.Join(dir, name+".stderr")
	tb.Cleanup(func() {
		if err := p.Stop(); err != nil {
			tb.Error(err)
		}
		if tb.Failed() {
			tb.Logf("the end of what %s said on standard error:\n%s", name, tail(p.Stderr(), 60))
		}
	})
	return p
}

// cleanEnv is the environment without what would steer the programs under test.
func cleanEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if b := []byte(kv); !bytes.HasPrefix(b, []byte("OTEL_")) && !bytes.HasPrefix(b, []byte("LANETRACE_")) {
			env = append(env, kv)
		}
	}
	return env
}

// Start starts the process, again if it has ended. Output is appended.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running() {
		return fmt.Errorf("start %s: it runs already", p.Name)
	}
	files := make([]*os.File, 0, 2)
	defer func() {
		for _, f := range files {
			_ = f.Close() // the process has its own
		}
	}()
	for _, name := range []string{p.out, p.errOut} {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("start %s: %w", p.Name, err)
		}
		files = append(files, f)
	}
	cmd := exec.Command(p.argv[0], p.argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = p.env, files[0], files[1]
	// A test binary that is killed cleans nothing up.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	done := make(chan struct{})
	p.cmd, p.done, p.err = cmd, done, nil
	go func() {
		err := cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(done)
	}()
	return nil
}

// running reports whether the process runs. The caller holds mu.
func (p *Process) running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Ended reports whether the process was started and has ended.
func (p *Process) Ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd != nil && !p.running()
}

// Wait returns the process's exit code when it has ended by itself, and fails the
// test when it has not within Patience. A process that a signal ended has -1.
func (p *Process) Wait() int {
	p.tb.Helper()
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	if done == nil {
		p.tb.Fatalf("%s was not started", p.Name)
	}
	select {
	case <-done:
	case <-time.After(Patience):
		p.tb.Fatalf("%s does not end within %v", p.Name, Patience)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.ProcessState.ExitCode()
}

// PID is the number of the process that was started last.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Stop ends the process with SIGTERM and waits for its end; nil if it does not
// run. It is an error if it had to be killed or said that something failed.
func (p *Process) Stop() error {
	if done := p.signal(syscall.SIGTERM); done != nil {
		select {
		case <-done:
		case <-time.After(stopTime):
			p.Kill()
			return fmt.Errorf("stop %s: still there %v after SIGTERM", p.Name, stopTime)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.err != nil && !endedBy(p.err, syscall.SIGTERM) {
			return fmt.Errorf("stop %s: %w", p.Name, p.err)
		}
	}
	return nil
}

// Kill ends the process with SIGKILL and waits for its end.
func (p *Process) Kill() {
	if done := p.signal(syscall.SIGKILL); done != nil {
		<-done
	}
}

// signal signals a running process and returns what is closed at its end; nil if
// it does not run.
func (p *Process) signal(s syscall.Signal) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return nil
	}
	_ = p.cmd.Process.Signal(s) // it may have ended just now
	return p.done
}

func endedBy(err error, s syscall.Signal) bool {
	var x *exec.ExitError
	if !errors.As(err, &x) {
		return false
	}
	ws, ok := x.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == s
}

// Stdout is what the process has written to its standard output.
func (p *Process) Stdout() string { return read(p.out) }

// Stderr is what it has written to its standard error.
func (p *Process) Stderr() string { return read(p.errOut) }

func read(name string) string {
	b, _ := os.ReadFile(name) // not there: it said nothing
	return string(b)
}

// tail is the last n lines of s.
func tail(s string, n int) string {
	for i := len(s) - 2; i >= 0; i-- {
		if s[i] == '\n' {
			if n--; n == 0 {
				return s[i+1:]
			}
		}
	}
	return s
}
