package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/spanring"
)

// engine is a hub of this process with a ring in dir.
func engine(t *testing.T, dir, service, level string) *lanetrace.Hub {
	t.Helper()
	h, err := lanetrace.Open(lanetrace.Config{
		Dir: dir, Service: service, Level: level, RingBytes: 64 << 10, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return h
}

// runs runs a command line and returns what it printed, the run ids in it left
// out.
func runs(t *testing.T, want int, args ...string) (stdout, stderr string) {
	t.Helper()
	var o, e bytes.Buffer
	if code := run(context.Background(), args, &o, &e); code != want {
		t.Fatalf("lanetrace %v: exit code %d, want %d\n%s%s", args, code, want, &o, &e)
	}
	return o.String(), e.String()
}

func TestLevelAndArm(t *testing.T) {
	d := spanring.Dir{Path: filepath.Join(t.TempDir(), "rings"), Group: -1}
	if err := d.Make(); err != nil {
		t.Fatal(err)
	}
	dir := d.Path
	a, b := engine(t, dir, "alpha", "lane"), engine(t, dir, "beta", "off")
	id := func(h *lanetrace.Hub) string { return h.Ring().Info().RunID.String() }
	name := func(h *lanetrace.Hub, s string) string { return fmt.Sprintf("%s (run %s)", s, id(h)[:8]) }

	out, _ := runs(t, 0, "level", "get", "--dir", dir)
	for _, want := range []string{name(a, "alpha") + "  lane  ", name(b, "beta") + "   off   no steps armed\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("level get: no %q in\n%s", want, out)
		}
	}

	out, _ = runs(t, 0, "arm", "--steps", "7", "--engine", "alpha", "--dir", dir)
	if want := name(a, "alpha") + ": 7 steps will be armed once its level is kernel; it is lane: lanetrace level set kernel\n"; out != want {
		t.Errorf("arm below kernel: %q, want %q", out, want)
	}
	if out, _ = runs(t, 0, "arm", "--steps", "1", "--engine", "alpha", "--dir", dir); !strings.Contains(out, ": 1 step will be armed ") {
		t.Errorf("arm one below kernel: %q", out)
	}
	out, _ = runs(t, 0, "level", "set", "kernel", "--engine", id(a)[:6], "--dir", dir)
	if want := name(a, "alpha") + ": level kernel\n"; out != want || a.Level() != lanetrace.LevelKernel || b.Level() != lanetrace.LevelOff {
		t.Errorf("level set for one: %q, want %q; levels %v, %v", out, want, a.Level(), b.Level())
	}
	out, _ = runs(t, 0, "level", "set", "kernel", "--dir", dir)
	if strings.Count(out, ": level kernel\n") != 2 || b.Level() != lanetrace.LevelKernel {
		t.Errorf("level set for all: %q; level of beta %v", out, b.Level())
	}
	if out, _ = runs(t, 0, "arm", "--steps", "1", "--engine", "alpha", "--dir", dir); !strings.HasSuffix(out, ": the next step is armed\n") {
		t.Errorf("arm one: %q", out)
	}
	out, _ = runs(t, 0, "arm", "--steps", "3", "--engine", "beta", "--dir", dir)
	if want := name(b, "beta") + ": the next 3 steps are armed\n"; out != want {
		t.Errorf("arm: %q, want %q", out, want)
	}
	for i := range 4 {
		s := b.StepBegin()
		if s.Armed() != (i < 3) {
			t.Errorf("step %d after arming 3: armed %v", i+1, s.Armed())
		}
		s.End()
	}

	// What an engine refuses fails, and is said; here what no command line asks for.
	var said bytes.Buffer
	other := &app{ctx: t.Context(), stdout: io.Discard, log: newLogger(&said)}
	f := controlFlags{Engine: "beta", dirFlags: dirFlags{Dir: dir}}
	var x exitError
	if err := f.ask(other, period(patience), spanring.Control{ArmSteps: maxArmCount + 1}, nil); !errors.As(err, &x) || x.code != exitFailed {
		t.Errorf("too many steps: %v", err)
	}
	if want := "lanetrace: " + name(b, "beta") + ": refused the request; its log says why\n"; said.String() != want {
		t.Errorf("too many steps: %q, want %q", said.String(), want)
	}
	_, errs := runs(t, exitFailed, "level", "set", "off", "--engine", "gamma", "--dir", dir)
	if !strings.Contains(errs, `no engine "gamma" in `+dir+": there is ") {
		t.Errorf("unknown engine: %q", errs)
	}
	_, errs = runs(t, exitUsage, "level", "set", "loud", "--dir", dir)
	if !strings.Contains(errs, `unknown level "loud": want one of off, basic, lane, kernel`) || strings.Count(errs, "\n") != 1 {
		t.Errorf("unknown level: %q", errs)
	}
	_, errs = runs(t, exitUsage, "arm", "--dir", dir)
	if !strings.Contains(errs, "--steps") || strings.Count(errs, "\n") != 1 {
		t.Errorf("arm without steps: %q", errs)
	}
}

func TestLevelWithoutEngines(t *testing.T) {
	d := spanring.Dir{Path: filepath.Join(t.TempDir(), "rings"), Group: -1}
	if err := d.Make(); err != nil {
		t.Fatal(err)
	}
	_, errs := runs(t, exitFailed, "level", "get", "--dir", d.Path)
	if want := "lanetrace: no live engines in " + d.Path + "\n"; errs != want {
		t.Errorf("%q, want %q", errs, want)
	}
	// An engine whose poller stands still is one that does not answer.
	w, err := spanring.Create(d, spanring.Options{Geometry: spanring.Geometry{LogEntries: 64, Slots: 1, NameBytes: 4096, Allocs: 1}, Info: spanring.Info{Service: "deaf"}})
	if err != nil {
		t.Fatal(err)
	}
	_, errs = runs(t, exitFailed, "level", "set", "off", "--wait", "30ms", "--dir", d.Path)
	if !strings.Contains(errs, "has not acted on the request for 30ms") {
		t.Errorf("deaf engine: %q", errs)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
