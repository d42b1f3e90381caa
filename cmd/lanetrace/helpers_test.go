package main

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"
)

// hurried is a clock on which everything is due at once.
type hurried struct{}

func (hurried) MonoNS() int64                                    { return 1 << 62 }
func (hurried) Sleep(ctx context.Context, d time.Duration) error { return ctx.Err() }

// output is a writer that can be read while it is written to.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// eventually polls cond until it holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("%s: not within %v", what, patience)
}

// command runs a command line in this process.
type command struct {
	out, err output
	stop     context.CancelFunc
	code     chan int
}

// start begins a command; stop is its SIGTERM.
func start(t *testing.T, args ...string) *command {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	c := &command{stop: stop, code: make(chan int, 1)}
	go func() { c.code <- run(ctx, args, &c.out, &c.err) }()
	t.Cleanup(func() { stop() })
	return c
}

// wait is the command's exit code.
func (c *command) wait(t *testing.T) int {
	t.Helper()
	select {
	case code := <-c.code:
		return code
	case <-time.After(patience):
		t.Fatalf("command does not end; stderr:\n%s", c.err.String())
		return -1
	}
}
