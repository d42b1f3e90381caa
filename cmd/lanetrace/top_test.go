package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	slave, err := unix.Open(ptsName(t, master), unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	tty := os.NewFile(uintptr(slave), "tty")
	defer tty.Close()
	if err := unix.IoctlSetWinsize(slave, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
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

func ptsName(t *testing.T, master *os.File) string {
	t.Helper()
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	return "/dev/pts/" + strconv.Itoa(n)
}
