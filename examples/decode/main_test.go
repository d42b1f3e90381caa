package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lanetrace/lanetrace/spanring"
)

// asCommand in the environment makes the test binary the command.
const asCommand = "DECODE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// ringDir is a private directory for one test's rings.
func ringDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "rings")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

type ran struct {
	status         int
	stdout, stderr string
	sum            summary
}

// decode runs the command, with --json, on the sim.
func decode(t *testing.T, ctx context.Context, args ...string) ran {
	t.Helper()
	var out, errs bytes.Buffer
	args = append([]string{"--backend", "sim", "--json"}, args...)
	r := ran{status: run(ctx, args, &out, &errs, func(string) string { return "" })}
	r.stdout, r.stderr = out.String(), errs.String()
	if r.status == exitOK {
		if err := json.Unmarshal(out.Bytes(), &r.sum); err != nil {
			t.Fatalf("summary %q: %v", r.stdout, err)
		}
	}
	return r
}

// readRing reads everything in the directory's one ring.
func readRing(t *testing.T, dir string) (*spanring.Reader, []spanring.Entry) {
	t.Helper()
	paths, err := spanring.Dir{Path: dir, Group: -1}.List()
	if err != nil || len(paths) != 1 {
		t.Fatalf("rings in %s: %v, %v", dir, paths, err)
	}
	r, err := spanring.Open(paths[0], spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	var all []spanring.Entry
	buf := make([]spanring.Entry, 1024)
	for {
		n, err := r.Poll(buf, spanring.MonoNS())
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return r, all
		}
		all = append(all, buf[:n]...)
	}
}

func TestAccountBalancesAndLanesAreNamed(t *testing.T) {
	for _, mode := range [][]string{{"--level", "lane"}, {"--async"}, {"--level", "kernel"}, {"--level", "kernel", "--async"}} {
		t.Run(strings.Join(mode, " "), func(t *testing.T) {
			dir := ringDir(t)
			got := decode(t, t.Context(), append([]string{"--requests", "40", "--rate", "2000", "--dir", dir, "--no-verify"}, mode...)...)
			if got.status != exitOK {
				t.Fatalf("status %d: %s", got.status, got.stderr)
			}
			s := &got.sum
			if s.Requests.Came != 40 || s.Requests.Served != 40 || s.Tokens.Generated < 40 || s.Steps.Count == 0 {
				t.Errorf("served %+v with %+v in %+v", s.Requests, s.Tokens, s.Steps)
			}
			r, entries := readRing(t, dir)
			c, err := r.Counters()
			if err != nil {
				t.Fatal(err)
			}
			if c[spanring.CtrBegun] != c[spanring.CtrLanded]+c.Failed()+c[spanring.CtrDropped] || c[spanring.CtrBegun] == 0 {
				t.Errorf("begun %d, landed %d, failed %d, dropped %d", c[spanring.CtrBegun], c[spanring.CtrLanded], c.Failed(), c[spanring.CtrDropped])
			}
			tel := &s.Telemetry
			if tel.Begun != c[spanring.CtrBegun] || tel.Landed != c[spanring.CtrLanded] || tel.InFlight != 0 || tel.Failed != 0 {
				t.Errorf("summary says %+v", tel)
			}
			if tel.StepTimeNS != c[spanring.CtrStepTimeNS] || tel.StepTimeNS == 0 || tel.Untimed != 0 ||
				tel.LaneShare != float64(c[spanring.CtrLaneCostNS])/float64(tel.StepTimeNS) {
				t.Errorf("summary says of overhead %+v", tel)
			}
			if tel.Ring != r.Path() {
				t.Errorf("summary's ring %s, want %s", tel.Ring, r.Path())
			}
			lanes := map[string]int{}
			kernels := map[string]int{}
			steps, decodes := 0, 0
			for i := range entries {
				w := &entries[i].Words
				switch w.Kind() {
				case spanring.KindLane, spanring.KindKernel:
					span, err := w.Span()
					if err != nil {
						t.Fatal(err)
					}
					name, ok := r.Name(span.Name)
					if !ok {
						t.Fatalf("span %+v has no name", span)
					}
					if w.Kind() == spanring.KindLane {
						lanes[name.Text]++
					} else {
						kernels[name.Text]++
					}
				case spanring.KindStepAttrs:
					a, err := w.StepAttrs()
					if err != nil {
						t.Fatal(err)
					}
					steps++
					if a.GraphMode != spanring.GraphEager {
						t.Errorf("step %d: graph mode %v", a.Step, a.GraphMode)
					}
					decodes += int(a.DecodeTokens)
				}
			}
			if diff := cmp.Diff([]string{"admit", "decode", "prefill"}, slices.Sorted(maps.Keys(lanes))); diff != "" {
				t.Errorf("lanes (-want +got):\n%s", diff)
			}
			if steps != s.Steps.Count || decodes != s.Tokens.Generated+s.Tokens.Stale {
				t.Errorf("ring tells of %d steps and %d tokens, summary of %d, %d and %d stale", steps, decodes,
					s.Steps.Count, s.Tokens.Generated, s.Tokens.Stale)
			}
			if armed := tel.Armed > 0; armed != (len(kernels) > 0) {
				t.Errorf("%d steps armed, kernels %v", tel.Armed, kernels)
			}
			if slices.Contains(mode, "kernel") && tel.Armed == 0 {
				t.Errorf("no step armed in %d at level kernel", s.Steps.Count)
			}
		})
	}
}

func TestLevelOffLeavesTheRingEmpty(t *testing.T) {
	dir := ringDir(t)
	got := decode(t, t.Context(), "--level", "off", "--requests", "3", "--rate", "500", "--dir", dir)
	if got.status != exitOK || got.sum.Requests.Served != 3 {
		t.Fatalf("status %d: %s", got.status, got.stderr)
	}
	r, entries := readRing(t, dir)
	if a := r.Account(); len(entries) != 0 || a.Published != 0 {
		t.Errorf("%d entries, %d published", len(entries), a.Published)
	}
	c, err := r.Counters()
	if err != nil || c != (spanring.Counters{}) {
		t.Errorf("counters %v, %v", c, err)
	}
}

// A ring that cannot be made costs one warning and nothing else.
func TestRingThatCannotBeMade(t *testing.T) {
	open := filepath.Join(t.TempDir(), "open")
	if err := errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o755)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{"missing": filepath.Join(t.TempDir(), "no"), "open to others": open, "a file": file} {
		t.Run(name, func(t *testing.T) {
			got := decode(t, t.Context(), "--requests", "2", "--rate", "500", "--dir", dir, "--no-verify")
			if got.status != exitOK || got.sum.Requests.Served != 2 {
				t.Fatalf("status %d: %s", got.status, got.stderr)
			}
			if n := strings.Count(got.stderr, "level=WARN"); n != 1 {
				t.Errorf("%d warnings:\n%s", n, got.stderr)
			}
			if got.sum.Telemetry.Off == "" || got.sum.Telemetry.Begun != 0 {
				t.Errorf("telemetry %+v", got.sum.Telemetry)
			}
		})
	}
}

func TestEnds(t *testing.T) {
	t.Run("duration", func(t *testing.T) {
		got := decode(t, t.Context(), "--duration", "150ms", "--rate", "100", "--dir", ringDir(t), "--no-verify")
		s := &got.sum
		if got.status != exitOK || s.Seconds < 0.15 || s.Requests.Served != s.Requests.Came || s.Requests.Came == 0 || s.Interrupted {
			t.Errorf("status %d, %+v", got.status, s)
		}
	})
	t.Run("requests first", func(t *testing.T) {
		got := decode(t, t.Context(), "--duration", "1h", "--requests", "2", "--rate", "500", "--dir", ringDir(t), "--no-verify")
		if got.status != exitOK || got.sum.Requests.Served != 2 {
			t.Errorf("status %d, %+v", got.status, got.sum)
		}
	})
	t.Run("duration first", func(t *testing.T) {
		got := decode(t, t.Context(), "--duration", "50ms", "--requests", "1000000", "--rate", "100", "--dir", ringDir(t), "--no-verify")
		if got.status != exitOK || got.sum.Requests.Came >= 1000000 || got.sum.Requests.Served != got.sum.Requests.Came {
			t.Errorf("status %d, %+v", got.status, got.sum)
		}
	})
	t.Run("interrupt", func(t *testing.T) {
		for _, mode := range []string{"--async", "--no-verify"} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			dir := ringDir(t)
			go func() {
				for tick := time.Tick(5 * time.Millisecond); ctx.Err() == nil; <-tick {
					if ended, err := stepEnded(dir); ended || err != nil {
						cancel()
					}
				}
			}()
			got := decode(t, ctx, "--duration", "1h", "--rate", "1000", "--dir", dir, "--no-verify", mode)
			cancel()
			s := &got.sum
			if got.status != exitOK || !s.Interrupted || s.Requests.Cut != s.Requests.Came-s.Requests.Served {
				t.Errorf("status %d, %+v, %s", got.status, s, got.stderr)
			}
			if s.Telemetry.InFlight != 0 || s.Telemetry.Begun != s.Telemetry.Landed {
				t.Errorf("telemetry %+v", s.Telemetry)
			}
		}
	})
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--level", "all"}, `unknown level "all": want one of off, basic, lane, kernel`},
		{[]string{"--backend", "rocm"}, `unknown backend "rocm": want cuda or sim`},
		{[]string{"--model", "huge"}, `unknown model "huge": want tiny or small`},
		{[]string{"--ab", "3"}, "--ab 3: want at least 25 rounds"},
		{[]string{"--requests=-1"}, "--requests -1"},
		{[]string{"--duration=-1s"}, "--duration -1s"},
		{[]string{"--rate=-2"}, "--rate -2"},
		{[]string{"--trace=1.1"}, "--trace 1.1: want a share from 0 to 1"},
		{[]string{"--trace=NaN"}, "--trace NaN"},
		{[]string{"--max-batch=999"}, "--max-batch 999: want from 1 to 256"},
		{[]string{"--frobnicate"}, "--frobnicate"},
		{[]string{"extra"}, "extra"},
	} {
		var out, errs bytes.Buffer
		status := run(t.Context(), c.args, &out, &errs, func(string) string { return "" })
		if status != exitUsage || !strings.Contains(errs.String(), c.want) || strings.Count(errs.String(), "\n") != 1 || out.Len() > 0 {
			t.Errorf("%v: status %d, stdout %q, stderr %q", c.args, status, &out, &errs)
		}
	}
	var out, errs bytes.Buffer
	if status := run(t.Context(), []string{"--help"}, &out, &errs, os.Getenv); status != exitOK || !strings.Contains(out.String(), "--ab=ROUNDS") {
		t.Errorf("help: status %d, %q %q", status, &out, &errs)
	}
}

func TestErrorsAreOneLine(t *testing.T) {
	var b bytes.Buffer
	if status := fail(&b, exitFailed, errors.Join(errors.New("a"), errors.New("b"))); status != exitFailed || b.String() != "decode: a; b\n" {
		t.Errorf("status %d, %q", status, b.String())
	}
}

func TestPlainSummary(t *testing.T) {
	var out, errs bytes.Buffer
	dir := ringDir(t)
	status := run(t.Context(), []string{"--backend", "sim", "--requests", "2", "--rate", "500", "--dir", dir}, &out, &errs, func(string) string { return "" })
	if status != exitOK {
		t.Fatalf("status %d: %s", status, &errs)
	}
	for _, want := range []string{"model tiny, synchronous", "requests   2 served of 2", "0 in flight", "ring       " + dir} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, &out)
		}
	}
	if !strings.Contains(errs.String(), "numbers agree with the CPU reference") {
		t.Errorf("stderr: %s", &errs)
	}
}

// A real signal to a real process, while it serves.
func TestSignalEndsCleanly(t *testing.T) {
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		dir := ringDir(t)
		cmd := exec.CommandContext(t.Context(), os.Args[0], "--backend", "sim", "--duration", "1h", "--rate", "1000", "--async", "--dir", dir, "--json")
		cmd.Env = append(os.Environ(), asCommand+"=1")
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		waitForSteps(t, dir)
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v: %v: %s", sig, err, &errs)
		}
		var s summary
		if err := json.Unmarshal(out.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		if !s.Interrupted || s.Steps.Count == 0 || s.Telemetry.InFlight != 0 || s.Telemetry.Begun != s.Telemetry.Landed {
			t.Errorf("%v: %+v", sig, s)
		}
	}
}

// waitForSteps returns when a step has ended in the ring in dir.
func waitForSteps(t *testing.T, dir string) {
	t.Helper()
	tick := time.Tick(5 * time.Millisecond)
	for end := time.Now().Add(time.Minute); ; <-tick {
		switch ended, err := stepEnded(dir); {
		case err != nil:
			t.Fatal(err)
		case ended:
			return
		case time.Now().After(end):
			t.Fatal("no step in the ring")
		}
	}
}

// stepEnded reports whether a step has ended in a ring in dir.
func stepEnded(dir string) (bool, error) {
	paths, err := spanring.Dir{Path: dir, Group: -1}.List()
	if err != nil {
		return false, err
	}
	for _, p := range paths {
		r, err := spanring.Open(p, spanring.ReaderOptions{})
		if err != nil {
			return false, err
		}
		c, err := r.Counters()
		if err = errors.Join(err, r.Close()); err != nil || c[spanring.CtrStepsEnded] > 0 {
			return err == nil, err
		}
	}
	return false, nil
}
