package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lanetrace/lanetrace/collector"
)

// held is a process's RssAnon at an age.
type held struct {
	age time.Duration
	kib int
}

// sidecarProc is a sidecar as a process, and what it said of itself last.
type sidecarProc struct {
	cmd     *exec.Cmd
	started time.Time
	url     string
	client  *http.Client
	drained chan struct{}

	mu       sync.Mutex
	accounts map[string]collector.Account // the last of each run
	held     []held                       // at each look
	log      strings.Builder
}

// sidecarArgs are where things are.
type sidecarArgs struct {
	bin, dir, state, keep, endpoint string
}

// startSidecar starts a sidecar and waits until it serves.
func startSidecar(a sidecarArgs) (*sidecarProc, error) {
	s := &sidecarProc{
		cmd: exec.Command(a.bin, "sidecar", "--dir", a.dir, "--listen", "127.0.0.1:0", "--otlp-endpoint", "http://"+a.endpoint,
			"--every", "20", "--keep", a.keep, "--keep-bytes", "4MiB", "--state-dir", a.state),
		accounts: make(map[string]collector.Account), drained: make(chan struct{}),
		client: &http.Client{Timeout: hung, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	errs, err := s.cmd.StderrPipe()
	if err == nil {
		s.started = time.Now()
		err = s.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start the sidecar: %w", err)
	}
	serves := make(chan string, 1)
	go func() {
		defer close(s.drained)
		defer close(serves)
		for sc := bufio.NewScanner(errs); sc.Scan(); {
			l := sc.Text()
			if _, after, ok := strings.Cut(l, "serving "); ok && s.url == "" {
				s.url, _, _ = strings.Cut(after, "/metrics")
				serves <- s.url
			}
			s.mu.Lock()
			if s.log.Len() < 1<<20 {
				s.log.WriteString(l + "\n")
			}
			s.mu.Unlock()
		}
	}()
	select {
	case _, ok := <-serves:
		if ok {
			return s, nil
		}
	case <-time.After(hung):
	}
	_ = s.cmd.Process.Kill() // it may have ended
	<-s.drained
	return nil, errors.Join(fmt.Errorf("start the sidecar: it does not serve: %s", s.logText()), s.cmd.Wait())
}

func (s *sidecarProc) logText() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

func (s *sidecarProc) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return nil, err
	}
	r, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: HTTP status %d", path, r.StatusCode)
	}
	return io.ReadAll(io.LimitReader(r.Body, 64<<20))
}

// look takes in its accounts and its memory, and returns the accounts of the runs that
// it still shows. It fails while the sidecar is stopped.
func (s *sidecarProc) look(ctx context.Context) (as []collector.Account, err error) {
	b, err := s.get(ctx, "/debug/account")
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &as); err != nil {
		return nil, fmt.Errorf("read the accounts: %w", err)
	}
	kib, err := rssAnonKiB(s.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range as {
		s.accounts[a.RunID] = a
	}
	s.held = append(s.held, held{time.Since(s.started), kib})
	return as, nil
}

// memory is RssAnon at each look.
func (s *sidecarProc) memory() []held {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.held)
}

// known are the last accounts of all runs.
func (s *sidecarProc) known() []collector.Account {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []collector.Account
	for _, a := range s.accounts {
		out = append(out, a)
	}
	return out
}

// resources are what a sidecar holds.
type resources struct {
	goroutines, fds int
}

func (s *sidecarProc) resources(ctx context.Context) (r resources, err error) {
	text, err := s.get(ctx, "/metrics")
	if err != nil {
		return r, err
	}
	n, err := sum(string(text), "go_goroutine_count")
	if err != nil {
		return r, err
	}
	r.goroutines = int(n)
	r.fds, err = countFDs(s.cmd.Process.Pid)
	return r, err
}

// sum adds up all series of a name whose labels hold each of parts.
func sum(exposition, name string, parts ...string) (total float64, err error) {
	found := false
next:
	for l := range strings.Lines(exposition) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(l), name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		for _, p := range parts {
			if !strings.Contains(rest, p) {
				continue next
			}
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", name, err)
		}
		total, found = total+v, true
	}
	if !found {
		return 0, fmt.Errorf("no series %s %v", name, parts)
	}
	return total, nil
}

func (s *sidecarProc) signal(sig os.Signal) error {
	if err := s.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("signal the sidecar: %w", err)
	}
	return nil
}

// end ends the sidecar by SIGKILL, or by SIGTERM, and then wants it to end well.
func (s *sidecarProc) end(kill bool) error {
	sig := syscall.SIGTERM
	if kill {
		sig = syscall.SIGKILL
	}
	if err := s.signal(sig); err != nil {
		return err
	}
	late := time.AfterFunc(hung, func() { _ = s.cmd.Process.Kill() }) // it may have ended just now
	defer late.Stop()
	<-s.drained
	if err := s.cmd.Wait(); err != nil && !kill {
		return fmt.Errorf("the sidecar ended with %w: %s", err, s.logText())
	}
	return nil
}
