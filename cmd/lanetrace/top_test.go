package main

import (
	"bytes"
	"context"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestTopOnce(t *testing.T) {
	d := ringDir(t)
	h := engine(t, d.Path, "alpha", "basic")
	for range 20 {
		s := h.StepBegin()
		s.End()
	}
	out, errs := runs(t, 0, "top", "--once", "--dir", d.Path)
	if errs != "" || strings.Contains(out, "\x1b") {
		t.Errorf("%q, on standard error %q", out, errs)
	}
	if !regexp.MustCompile(`(?m)^lanetrace top   1 engine   \d\d:\d\d:\d\d\n\nENGINE .*DROPPED\nalpha +live +basic +\d+\.\d +- +- +0\n\nalpha .*LANES/S\nno lane has landed yet\n$`).MatchString(out) {
		t.Errorf("%s", out)
	}
	if out, _ := runs(t, 0, "top", "--once", "--dir", d.Path, "--engine", "beta"); !strings.Contains(out, "No engine \"beta\" here; engines that have a ring: 1.") {
		t.Errorf("an engine that is not there: %s", out)
	}
}

// TestTopOnATerminal draws on a pseudo-terminal of 80x24 and ends on a signal's
// context.
func TestTopOnATerminal(t *testing.T) {
	d := ringDir(t)
	engine(t, d.Path, "alpha", "basic")
	master, tty := openTerminal(t)
	setSize(t, tty, 24, 80)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"top", "--interval", "10ms", "--dir", d.Path}, tty, io.Discard) }()
	var got bytes.Buffer
	b := make([]byte, 4096)
	for strings.Count(got.String(), home) < 3 {
		n, err := master.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		got.Write(b[:n])
	}
	cancel()
	for !strings.Contains(got.String(), leaveScreen) {
		n, err := master.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		got.Write(b[:n])
	}
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d", code)
	}
	text := got.String()
	if !strings.HasPrefix(text, enterScreen+home) || !strings.HasSuffix(text, leaveScreen) {
		t.Errorf("%q", text)
	}
	for _, frame := range strings.Split(strings.TrimSuffix(text, leaveScreen), home)[1:] {
		if n := strings.Count(frame, "\n"); n > 23 {
			t.Errorf("a frame scrolls: %d lines", n+1)
		}
	}
}
