package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// engineProc is an engine as a process, and its ring as this one sees it.
type engineProc struct {
	service string
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	out     *json.Decoder

	mu   sync.Mutex
	ring *spanring.Reader
}

// final is what an engine left behind.
type final struct {
	run       string
	service   string
	killed    bool
	counters  spanring.Counters
	published uint64
	busy      int // event pairs in flight
}

// startEngine starts an engine and opens its ring.
func startEngine(service, dir string, rate int) (*engineProc, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start engine %s: %w", service, err)
	}
	e := &engineProc{service: service, cmd: exec.Command(self, "-engine", service, "-dir", dir, "-rate", strconv.Itoa(rate))}
	e.cmd.Stderr = os.Stderr
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this process to answer
	if e.stdin, err = e.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start engine %s: %w", service, err)
	}
	out, err := e.cmd.StdoutPipe()
	if err == nil {
		err = e.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start engine %s: %w", service, err)
	}
	e.out = json.NewDecoder(bufio.NewReader(out))
	var h hello
	if err = e.out.Decode(&h); err == nil {
		e.ring, err = spanring.Open(h.Ring, spanring.ReaderOptions{FromNow: true})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start engine %s: %w", service, err), e.cmd.Process.Kill(), e.cmd.Wait())
	}
	return e, nil
}

// begun is how many spans the engine has begun.
func (e *engineProc) begun() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ring == nil {
		return 0
	}
	c, err := e.ring.Counters()
	if err != nil {
		return 0
	}
	return c[spanring.CtrBegun]
}

// ask asks what the calls took since it was asked last.
func (e *engineProc) ask() (w window, err error) {
	if _, err = io.WriteString(e.stdin, "\n"); err == nil {
		err = e.out.Decode(&w)
	}
	if err != nil {
		return w, fmt.Errorf("ask engine %s what its calls took: %w", e.service, err)
	}
	return w, nil
}

func (e *engineProc) signal(s os.Signal) error {
	if err := e.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("signal engine %s: %w", e.service, err)
	}
	return nil
}

// end ends the engine, by SIGKILL or as engines end, and returns what it left.
func (e *engineProc) end(kill bool) (f final, err error) {
	if kill {
		err = e.cmd.Process.Kill()
	} else {
		err = e.stdin.Close()
	}
	if err != nil {
		return f, fmt.Errorf("end engine %s: %w", e.service, err)
	}
	late := time.AfterFunc(hung, func() { _ = e.cmd.Process.Kill() }) // it may have ended just now
	defer late.Stop()
	if werr := e.cmd.Wait(); werr != nil && !kill {
		return f, fmt.Errorf("engine %s: %w", e.service, werr)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() { err = errors.Join(err, e.ring.Close()); e.ring = nil }()
	return leftBehind(e.ring, e.service, kill)
}

func leftBehind(r *spanring.Reader, service string, killed bool) (f final, err error) {
	f = final{service: service, killed: killed}
	i, err := r.Info()
	if err != nil {
		return f, fmt.Errorf("read the ring of engine %s: %w", service, err)
	}
	f.run = i.RunID.String()
	if f.counters, err = r.Counters(); err != nil {
		return f, fmt.Errorf("read the ring of engine %s: %w", service, err)
	}
	busy, err := r.Busy()
	if err != nil {
		return f, fmt.Errorf("read the ring of engine %s: %w", service, err)
	}
	f.busy = len(busy)
	if _, err := r.Poll(nil, spanring.MonoNS()); err != nil {
		return f, fmt.Errorf("read the ring of engine %s: %w", service, err)
	}
	f.published = r.Account().Published
	return f, nil
}
