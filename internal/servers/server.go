package servers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// server is a process of tools/servers.
type server struct {
	*Process
	// Dir holds its configuration and its data.
	Dir   string
	ready string // URL that answers 200 when it is ready
}

// plan says how a server is started on given ports.
type plan struct {
	name  string // of the program
	ports int    // how many it needs
	// make writes the server's files to dir, and returns its arguments and the URL
	// that answers 200 when it is ready.
	make func(dir string, ports []int) (args []string, ready string, err error)
}

// startTries is how often other ports are tried when one was taken meanwhile.
const startTries = 3

// start starts a server and waits until it is ready.
func start(tb testing.TB, p plan) *server {
	tb.Helper()
	root := Root(tb)
	for try := 1; ; try++ {
		dir := tb.TempDir()
		args, ready, err := p.make(dir, freePorts(tb, p.ports))
		if err != nil {
			tb.Fatalf("configure %s: %v", p.name, err)
		}
		argv := append([]string{filepath.Join(root, "tools", "servers"), "start", p.name}, args...)
		s := &server{Process: newProcess(tb, dir, p.name, nil, argv), Dir: dir, ready: ready}
		if err := s.Start(); err != nil {
			tb.Fatal(err)
		}
		if s.await() {
			return s
		}
		if said := s.Stderr() + s.Stdout(); try == startTries || !strings.Contains(said, "address already in use") {
			tb.Fatalf("%s ended before it was ready: %s", p.name, strings.TrimSpace(tail(said, 20)))
		}
	}
}

// await waits until the server is ready; false if it ended first.
func (s *server) await() bool {
	s.tb.Helper()
	up := true
	Poll(s.tb, s.Name+" ready", func() error {
		if up = !s.Ended(); !up {
			return nil
		}
		return GetJSON(s.tb.Context(), s.ready, nil)
	})
	return up
}

// Restart starts a server that was stopped or killed again, on its old ports and
// with its old data, and waits until it is ready.
func (s *server) Restart() {
	s.tb.Helper()
	if err := s.Start(); err != nil {
		s.tb.Fatal(err)
	}
	if !s.await() {
		s.tb.Fatalf("%s ended before it was ready again", s.Name)
	}
}

// write writes a file of a server's configuration.
func write(dir, name, text string) (string, error) {
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("write configuration: %w", err)
	}
	return path, nil
}
