package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lanetrace/lanetrace/examples/faulty"
)

// The engine of a fault is this program once more. It tells on its standard output
// what it is at, a JSON object a line, and ends when its standard input does: it
// cannot outlive the demo.

// engineEvent is one line of it.
type engineEvent struct {
	Event string `json:"event"`
	Text  string `json:"text"`
}

// The events, in their order.
const (
	eventServing = "serving" // text: how many steps were served
	eventFaulted = "faulted" // text: what was done
)

// beFaultEngine is the engine's side.
func (c *demoCmd) beFaultEngine(a *app, stdin io.Reader) error {
	ctx, stop := context.WithCancel(context.WithoutCancel(a.ctx)) // Ctrl-C reaches both; the demo ends the engine
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, stdin) // whatever ends it
		stop()
	}()
	enc := json.NewEncoder(a.stdout)
	var told error
	tell := func(event, text string) { told = errors.Join(told, enc.Encode(engineEvent{event, text})) }
	err := faulty.Serve(ctx, faulty.Options{
		Fault: c.Fault, Dir: c.FaultEngine, Logger: slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Serving: func(n int) { tell(eventServing, strconv.Itoa(n)) },
		Faulted: func(what string) { tell(eventFaulted, what) },
	})
	return errors.Join(err, told)
}

// faultEngine is the demo's side.
type faultEngine struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	events chan engineEvent
	log    linesKept
	killed bool
}

// startFaultEngine starts the engine in a ring directory.
func startFaultEngine(f faulty.Fault, dir string) (*faultEngine, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start an engine: %w", err)
	}
	e := &faultEngine{cmd: exec.Command(self), events: make(chan engineEvent, 2)}
	e.cmd.Args = []string{os.Args[0], "demo", "--fault", string(f), "--fault-engine", dir}
	e.cmd.Stderr = &e.log
	// Not the terminal's: Ctrl-C is the demo's to answer.
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if e.stdin, err = e.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start an engine: %w", err)
	}
	out, err := e.cmd.StdoutPipe()
	if err == nil {
		err = e.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start an engine: %w", err)
	}
	go func() {
		defer close(e.events)
		for dec := json.NewDecoder(out); ; {
			var ev engineEvent
			if dec.Decode(&ev) != nil {
				return
			}
			e.events <- ev
		}
	}()
	return e, nil
}

func (e *faultEngine) pid() int { return e.cmd.Process.Pid }

// wait waits for an event and returns its text.
func (e *faultEngine) wait(ctx context.Context, event string) (string, error) {
	late := time.NewTimer(faultWait)
	defer late.Stop()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case <-late.C:
		return "", fmt.Errorf("the engine is not %s within %v", event, faultWait)
	case ev, ok := <-e.events:
		if !ok || ev.Event != event {
			return "", fmt.Errorf("the engine failed: %s", oneLine(strings.TrimSpace(e.log.all())))
		}
		return ev.Text, nil
	}
}

// kill ends the process with SIGKILL.
func (e *faultEngine) kill() error {
	e.killed = true
	if err := e.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill the engine: %w", err)
	}
	return nil
}

// engineEndWait is how long an engine may take to end.
const engineEndWait = 10 * time.Second

// stop has the engine end, and waits for it.
func (e *faultEngine) stop() error {
	e.stdin.Close()
	late := time.AfterFunc(engineEndWait, func() { _ = e.cmd.Process.Kill() }) // it may have ended just now
	defer late.Stop()
	for range e.events { // its output is read to the end before it is waited for
	}
	if err := e.cmd.Wait(); err != nil && !e.killed {
		return fmt.Errorf("the engine: %w: %s", err, oneLine(strings.TrimSpace(e.log.all())))
	}
	return nil
}
