package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/player"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// leakChecked looks for goroutines that tests left behind.
type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	// What sidecars of tests keep is not the user's.
	state, err := os.MkdirTemp("", "lanetrace-test-state-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(state)
	os.Setenv("LANETRACE_STATE_DIR", state)
	code := l.m.Run()
	for _, d := range builtDirs {
		os.RemoveAll(d)
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// TestMain leaves the machine's GPUs alone, and the line where there are none; a test
// of them says so.
func TestMain(m *testing.M) {
	if os.Getenv("LANETRACE_NVML") == "" {
		if err := os.Setenv("LANETRACE_NVML", "false"); err != nil {
			panic(err)
		}
	}
	testscript.Main(leakChecked{m}, map[string]func(){"lanetrace": main})
}

func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:   "testdata/script",
		Setup: setup,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"attachable": attachableCmd,
			"code":       exitsWith,
			"differs":    differs,
			"exits":      exits,
			"fails":      differs,
			"freeport":   freePort,
			"get":        get,
			"hang":       hang,
			"patch":      patch,
			"match":      match,
			"receiver":   otlpReceiver,
		},
		UpdateScripts: os.Getenv("LANETRACE_TEST_UPDATE") != "",
	})
}

// setup puts recordings and rings into a script's directory:
//
//	one.ltrec   one engine, 200 ms, with failed and dropped spans
//	two.ltrec   two engines
//	mem.ltrec   one engine whose memory is tracked, with a leak and an overrun
//	dead.ring   the ring of an engine that died
//	ended.ring  the ring of an engine that ended
//	rings/      a ring directory with ended.ring
//	mem…        the same of mem.ltrec: memdead.ring, memended.ring, memrings/
//	empty/      a ring directory without rings
//	a.ltops     a launch trace
//	b.ltops     the next execution: an argument and an allocation differ
//	c.ltops     the one after: the same but for the allocation
func setup(env *testscript.Env) error {
	env.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	env.Setenv("COLUMNS", "")
	env.Setenv("LANETRACE_STATE_DIR", filepath.Join(env.WorkDir, "state"))
	at := func(name string) string { return filepath.Join(env.WorkDir, name) }
	if err := makeRecording(at("one.ltrec"), synth.Options{Duration: 200 * time.Millisecond, FailEvery: 70, DropEvery: 90}); err != nil {
		return err
	}
	if err := makeRecording(at("two.ltrec"), synth.Options{Duration: 50 * time.Millisecond}, synth.Options{Duration: 50 * time.Millisecond, Seed: 1, Service: "other"}); err != nil {
		return err
	}
	if err := makeRecording(at("mem.ltrec"), synth.Options{
		Duration: 2 * time.Second, Seed: 5, Memory: true, LeakEvery: 30, ViolateAt: 900, Layers: 2,
	}); err != nil {
		return err
	}
	if err := os.Mkdir(at("empty"), 0o700); err != nil {
		return err
	}
	if err := makeTraces(env.WorkDir); err != nil {
		return err
	}
	if err := makeRings(at("mem.ltrec"), at("memrings"), at("memdead.ring"), at("memended.ring")); err != nil {
		return err
	}
	return makeRings(at("two.ltrec"), at("rings"), at("dead.ring"), at("ended.ring"))
}

func makeRecording(path string, engines ...synth.Options) error {
	w, err := recording.Create(path, recording.Options{Writer: program, FlushEvery: 100 * time.Millisecond})
	if err != nil {
		return err
	}
	for _, o := range engines {
		p, err := collector.NewProcessor(synth.New(o), collector.ProcessorOptions{Taps: []collector.Tap{w}})
		if err != nil {
			return err
		}
		if err := errors.Join(p.Drain(), p.Close()); err != nil {
			return err
		}
	}
	return w.Close()
}

// makeRings plays the first run of a recording into dir, and copies the ring as it
// is just before and just after its end.
func makeRings(rec, dir, dead, ended string) error {
	f, err := recording.Open(rec)
	if err != nil {
		return err
	}
	defer f.Close()
	src, err := f.Source(0)
	if err != nil {
		return err
	}
	defer src.Close()
	d := spanring.Dir{Path: dir, Group: -1}
	if err := d.Make(); err != nil {
		return err
	}
	w, err := player.Play(context.Background(), d, src, player.Options{
		Geometry: spanring.Geometry{LogEntries: 4096, Slots: 64, NameBytes: 8192, Allocs: 1024},
		Clock:    hurried{}, StartMonoNS: 1, StartAtNS: 1,
	})
	if err != nil {
		return err
	}
	b, err := os.ReadFile(w.Path())
	if err != nil {
		return err
	}
	if err := os.WriteFile(ended, b, 0o600); err != nil {
		return err
	}
	// The mark of a clean end is bit 32 of the state word.
	const stateOffset = 0x200
	b[stateOffset+4] &^= 1
	return os.WriteFile(dead, b, 0o600)
}

// exits N CMD ARG... runs CMD and wants it to exit with N. Its output can be
// matched as after exec.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits N CMD ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var ee *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &ee) {
		got = ee.ExitCode()
	} else if err != nil {
		ts.Fatalf("run %s: %v", args[1], err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d\nstdout:\n%s\nstderr:\n%s", got, want, ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
	if text := ts.ReadFile("stderr"); want != 0 && strings.Count(text, "\n") != 1 {
		ts.Fatalf("want one line on standard error, got:\n%s", text)
	}
}

// differs CMD ARG..., or fails, runs CMD and wants it to exit with 1, as diff does and
// doctor, and nothing on standard error.
func differs(ts *testscript.TestScript, neg bool, args []string) {
	var ee *exec.ExitError
	if err := ts.Exec(args[0], args[1:]...); !errors.As(err, &ee) || ee.ExitCode() != exitDifferent {
		ts.Fatalf("%v: %v, want exit code %d\n%s", args, err, exitDifferent, ts.ReadFile("stderr"))
	}
	if text := ts.ReadFile("stderr"); text != "" {
		ts.Fatalf("on standard error:\n%s", text)
	}
}

// freeport NAME puts a port that is free into the variable NAME: one that nobody is
// given who asks for any.
func freePort(ts *testscript.TestScript, neg bool, args []string) {
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(10_000)))
		if err != nil {
			continue
		}
		ts.Setenv(args[0], strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
		ts.Check(l.Close())
		return
	}
	ts.Fatalf("no port is free")
}

// patience is how long a test waits for what must happen.
const patience = time.Minute

// get URL CODE [REGEXP...] asks until the answer has that code and matches.
func get(ts *testscript.TestScript, neg bool, args []string) {
	code, err := strconv.Atoi(args[1])
	ts.Check(err)
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	last := ""
	for end := time.Now().Add(patience); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		r, err := client.Get(args[0])
		if err != nil {
			last = err.Error()
			continue
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil {
			last = err.Error()
			continue
		}
		last = fmt.Sprintf("%d\n%s", r.StatusCode, b)
		if r.StatusCode == code && matchesAll(b, args[2:]) {
			return
		}
	}
	ts.Fatalf("GET %s: want %s, got at last: %s", args[0], args[1:], last)
}

func matchesAll(b []byte, res []string) bool {
	for _, re := range res {
		if !regexp.MustCompile("(?m)" + re).Match(b) {
			return false
		}
	}
	return true
}

// patch FILE OFFSET HEX writes bytes over a file's; an offset beyond its end is
// where it is cut.
func patch(ts *testscript.TestScript, neg bool, args []string) {
	path := ts.MkAbs(args[0])
	b, err := os.ReadFile(path)
	ts.Check(err)
	off, err := strconv.Atoi(args[1])
	ts.Check(err)
	if args[2] == "cut" {
		b = b[:off]
	} else {
		var v []byte
		_, err = fmt.Sscanf(args[2], "%x", &v)
		ts.Check(err)
		copy(b[off:], v)
	}
	ts.Check(os.WriteFile(path, b, 0o600))
}

// match FILE TEXT... wants the file to hold each text as it is.
func match(ts *testscript.TestScript, neg bool, args []string) {
	b := []byte(ts.ReadFile(args[0]))
	for _, text := range args[1:] {
		if bytes.Contains(b, []byte(text)) == neg {
			ts.Fatalf("%s: want %q (or, negated, not) in:\n%s", args[0], text, b)
		}
	}
}
