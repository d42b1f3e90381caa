package collector

import (
	"bytes"
	stdcmp "cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

// syncBuffer is a log that may be read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// counter counts steps by engine label.
type counter struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counter) ObserveStep(s *Step) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[s.Engine.Label()]++
}

func (c *counter) of(label string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[label]
}

// start runs a collector until the test ends.
func start(t *testing.T, o Options) (c *Collector, stop func()) {
	t.Helper()
	o.Rescan = stdcmp.Or(o.Rescan, 5*time.Millisecond)
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return c, stop
}

func labels(c *Collector) (l []string) {
	for _, e := range c.Engines() {
		l = append(l, e.Label()+" "+e.State().String())
	}
	return l
}

func TestCollectorReadsEveryRing(t *testing.T) {
	d := ringDir(t)
	before := newRing(t, d, spanring.Info{Service: "early"})
	writeStep(before, 1, 0)
	var n counter
	var taps []string
	tap := &tapLog{ended: func(e *Engine) { taps = append(taps, e.Label()) }}
	c, stop := start(t, Options{Dir: d, Processor: ProcessorOptions{Observers: []Observer{&n}, Taps: []Tap{tap}}})
	eventually(t, "the first ring's step", func() bool { return n.of("early") == 1 })

	after := newRing(t, d, spanring.Info{Service: "late"})
	writeStep(after, 1, 0)
	writeStep(after, 2, 0)
	eventually(t, "the second ring's steps", func() bool { return n.of("late") == 2 })

	// Once more while the collector stops: what is there is still read.
	writeStep(before, 2, 0)
	words := begin(3, 50).Words()
	before.Append(&words)
	stop()
	if got := n.of("early"); got != 3 {
		t.Errorf("%d steps of early, want 3, the open one among them", got)
	}
	if d := cmp.Diff([]string{"early live", "late live"}, labels(c)); d != "" {
		t.Errorf("engines (-want +got):\n%s", d)
	}
	for _, a := range c.Accounts() {
		if u := a.Unbalanced(); len(u) > 0 || a.Sidecar.Pending != 0 || a.Reader.Pending != 0 {
			t.Errorf("account of %s: %+v, unbalanced %v", a.Engine, a, u)
		}
	}
	slices.Sort(taps)
	if d := cmp.Diff([]string{"early", "late"}, taps); d != "" {
		t.Errorf("taps ended (-want +got):\n%s", d)
	}
	if tap.entries != 3+3+1+6 {
		t.Errorf("%d entries tapped", tap.entries)
	}
}

type tapLog struct {
	mu      sync.Mutex
	entries int
	ended   func(*Engine)
}

func (t *tapLog) Entries(_ *Engine, es []spanring.Entry) {
	t.mu.Lock()
	t.entries += len(es)
	t.mu.Unlock()
}

func (t *tapLog) Ended(e *Engine) {
	t.mu.Lock()
	t.ended(e)
	t.mu.Unlock()
}

// TestLastScan: an engine that came and went since the directory was last looked at
// is read all the same.
func TestLastScan(t *testing.T) {
	d := ringDir(t)
	early := newRing(t, d, spanring.Info{Service: "early"})
	writeStep(early, 1, 0)
	var n counter
	c, stop := start(t, Options{Dir: d, Rescan: time.Hour, Processor: ProcessorOptions{Observers: []Observer{&n}}})
	eventually(t, "the first look at the directory", func() bool { return n.of("early") == 1 })
	late := newRing(t, d, spanring.Info{Service: "late"})
	writeStep(late, 1, 0)
	if err := late.Close(); err != nil {
		t.Fatal(err)
	}
	stop()
	if n.of("late") != 1 {
		t.Errorf("%d steps of the late engine, want 1: %v", n.of("late"), labels(c))
	}
}

func TestEqualLabelsGetNumbersAndFreeThem(t *testing.T) {
	d := ringDir(t)
	var rings []*spanring.Writer
	for range 3 {
		w := newRing(t, d, spanring.Info{Service: "chat"})
		writeStep(w, 1, 0)
		rings = append(rings, w)
	}
	c, _ := start(t, Options{Dir: d})
	eventually(t, "three engines", func() bool { return len(c.Engines()) == 3 })
	if d := cmp.Diff([]string{"chat live", "chat-2 live", "chat-3 live"}, labels(c)); d != "" {
		t.Fatalf("engines (-want +got):\n%s", d)
	}
	// By start.
	for i, e := range c.Engines() {
		if e.RunID() != rings[i].Info().RunID {
			t.Errorf("%s is not the engine that started as number %d", e.Label(), i+1)
		}
	}
	second := rings[1].Info().RunID
	rings[1].Close()
	eventually(t, "the second's end is seen", func() bool { return slices.Contains(labels(c), "chat-2 ended") })
	w := newRing(t, d, spanring.Info{Service: "chat"})
	writeStep(w, 1, 0)
	eventually(t, "the number is taken over", func() bool {
		es := c.Engines()
		return len(es) == 3 && es[1].Label() == "chat-2" && es[1].RunID() != second
	})
}

// TestRestartKeepsItsLabel: an engine that comes back at once waits for its dead
// self to be drained instead of taking a number.
func TestRestartKeepsItsLabel(t *testing.T) {
	d := ringDir(t)
	var n counter
	c, _ := start(t, Options{Dir: d, Processor: ProcessorOptions{Observers: []Observer{&n}}})
	for i := range 4 {
		w := newRing(t, d, spanring.Info{Service: "chat"})
		writeStep(w, 1, 0)
		eventually(t, fmt.Sprintf("run %d is read", i), func() bool { return n.of("chat") == i+1 })
		w.Close()
	}
	if d := cmp.Diff(map[string]int{"chat": 4}, n.n); d != "" {
		t.Errorf("steps by label (-want +got):\n%s", d)
	}
	eventually(t, "only the last run is known", func() bool { return cmp.Equal(labels(c), []string{"chat ended"}) })
}

// TestLiveEngineKeepsItsLabel: a collector that starts beside a live engine finds its
// dead selves too, and the live one has the name without a number.
func TestLiveEngineKeepsItsLabel(t *testing.T) {
	d := ringDir(t)
	var w *spanring.Writer
	for i := range 3 {
		w = newRing(t, d, spanring.Info{Service: "chat"})
		writeStep(w, 1, 0)
		if i < 2 {
			w.Close()
		}
	}
	c, _ := start(t, Options{Dir: d})
	eventually(t, "the live engine under its own name", func() bool {
		es := c.Engines()
		return len(es) == 1 && es[0].RunID() == w.Info().RunID && es[0].Label() == "chat" && es[0].State() == EngineLive
	})
}

func TestLabelWaitsForTheGPU(t *testing.T) {
	d := ringDir(t)
	w := newRing(t, d, spanring.Info{Service: "chat"})
	c, _ := start(t, Options{Dir: d, GPUWait: time.Hour})
	other := newRing(t, d, spanring.Info{Service: "other"})
	writeStep(other, 1, 0)
	eventually(t, "the other engine", func() bool { return len(c.Engines()) == 1 })
	w.SetGPU("GPU-8c1f02aa-0000-0000-0000-000000000000", "H200")
	eventually(t, "the engine under its GPU's name", func() bool {
		return cmp.Equal(labels(c), []string{"chat-gpu8c1f02aa live", "other live"})
	})

	d2 := ringDir(t)
	newRing(t, d2, spanring.Info{Service: "idle"})
	c2, _ := start(t, Options{Dir: d2, GPUWait: time.Millisecond})
	eventually(t, "the engine without a GPU", func() bool { return cmp.Equal(labels(c2), []string{"idle live"}) })
}

func TestLingerEnds(t *testing.T) {
	d := ringDir(t)
	ins := NewInstruments(InstrumentOptions{})
	var ends []string
	c, stop := start(t, Options{
		Dir: d, Linger: 20 * time.Millisecond, Processor: ProcessorOptions{Instruments: ins},
		OnEnd: func(e *Engine) { ends = append(ends, e.Label()) },
	})
	w := newRing(t, d, spanring.Info{Service: "chat"})
	writeStep(w, 1, 0)
	eventually(t, "the engine", func() bool { return len(c.Engines()) == 1 })
	w.Close()
	eventually(t, "the engine is forgotten", func() bool { return len(c.Engines()) == 0 && len(ins.Engines()) == 0 })
	// Its file is still there, but it is not read again.
	c.mu.Lock()
	known := len(c.rings)
	c.mu.Unlock()
	if known != 1 {
		t.Errorf("%d rings known, want the dead one", known)
	}
	os.Remove(w.Path())
	eventually(t, "the file is forgotten", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.rings) == 0
	})
	stop()
	if d := cmp.Diff([]string{"chat"}, ends); d != "" {
		t.Errorf("ends (-want +got):\n%s", d)
	}
	if got := ins.ended[0].Load(); got != 1 {
		t.Errorf("%d engines ended, want 1", got)
	}
}

func TestRingsThatCannotBeRead(t *testing.T) {
	d := ringDir(t)
	good := newRing(t, d, spanring.Info{Service: "good"})
	writeStep(good, 1, 0)
	raw, err := os.ReadFile(good.Path())
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, b []byte) {
		if err := os.WriteFile(filepath.Join(d.Path, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("foreign.ring", []byte("hello"))
	write("version.ring", append(append(bytes.Clone(raw[:8]), 99, 0, 0, 0), raw[12:]...))
	write("short.ring", raw[:len(raw)/2])
	if err := os.Symlink(good.Path(), filepath.Join(d.Path, "link.ring")); err != nil {
		t.Fatal(err)
	}
	var log syncBuffer
	ins := NewInstruments(InstrumentOptions{})
	c, stop := start(t, Options{
		Dir: d, Logger: slog.New(slog.NewTextHandler(&log, nil)), Processor: ProcessorOptions{Instruments: ins},
	})
	eventually(t, "the good ring and three refused", func() bool {
		return len(c.Engines()) == 1 && ins.rings[ringVersion].Load() == 1 && ins.rings[ringCorrupt].Load() == 2
	})
	stop()
	for _, want := range []string{"layout version 99", "foreign.ring", "short.ring"} {
		if n := strings.Count(log.String(), want); n < 1 {
			t.Errorf("log does not say %q: %s", want, log.String())
		}
	}
	if n := strings.Count(log.String(), "cannot read ring"); n != 3 {
		t.Errorf("%d warnings, want one for each ring", n)
	}
}

func TestNewRefusesADirectory(t *testing.T) {
	if _, err := New(Options{Dir: spanring.Dir{Path: filepath.Join(t.TempDir(), "none"), Group: -1}}); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("error %v", err)
	}
}

// TestDirectoryGoesAway: the rings that are mapped are read on.
func TestDirectoryGoesAway(t *testing.T) {
	d := ringDir(t)
	w := newRing(t, d, spanring.Info{Service: "s"})
	var n counter
	var log syncBuffer
	start(t, Options{Dir: d, Logger: slog.New(slog.NewTextHandler(&log, nil)), Processor: ProcessorOptions{Observers: []Observer{&n}}})
	writeStep(w, 1, 0)
	eventually(t, "step 1", func() bool { return n.of("s") == 1 })
	if err := os.RemoveAll(d.Path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a warning", func() bool { return strings.Contains(log.String(), "cannot be listed") })
	writeStep(w, 2, 0)
	eventually(t, "step 2", func() bool { return n.of("s") == 2 })
	if c := strings.Count(log.String(), "cannot be listed"); c != 1 {
		t.Errorf("warned %d times", c)
	}
}

func TestPacer(t *testing.T) {
	p := newPacer()
	defer p.stop()
	if d := p.after(256, 256); d != 0 {
		t.Errorf("after a full poll %v", d)
	}
	if d := p.after(10, 256); d != burstPoll {
		t.Errorf("after a burst %v", d)
	}
	if d := p.after(10, 256); d != busyPoll {
		t.Errorf("while busy %v", d)
	}
	sum := time.Duration(0)
	for range 40 {
		sum += p.after(0, 256)
	}
	if d := p.after(0, 256); d != idlePoll || sum < time.Second {
		t.Errorf("idle %v after %v", d, sum)
	}
	if d := p.after(1, 256); d != busyPoll {
		t.Errorf("busy again %v", d)
	}
}

// TestEngineIsKilled: what it had written is read to the end, the step it was in
// is there, incomplete, and its death is told from an orderly end.
func TestEngineIsKilled(t *testing.T) {
	d := ringDir(t)
	ins := NewInstruments(InstrumentOptions{})
	k := &keep{}
	ended := make(chan *Engine, 1)
	_, stop := start(t, Options{
		Dir: d, Processor: ProcessorOptions{Instruments: ins, Observers: []Observer{k}},
		OnEnd: func(e *Engine) { ended <- e },
	})
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "LANETRACE_TEST_VICTIM="+d.Path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var ee *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &ee) || ee.ProcessState.ExitCode() != -1 {
		t.Fatalf("the victim ended with %v", err)
	}
	died := time.Now()
	var e *Engine
	select {
	case e = <-ended:
	case <-time.After(time.Minute):
		t.Fatal("death not seen within a minute")
	}
	t.Logf("death seen after %v", time.Since(died))
	stop()
	if e.State() != EngineDied {
		t.Errorf("state %v", e.State())
	}
	// The victim may have been found alive or dead: only a death that was seen counts.
	if n := ins.ended[1].Load(); n > 1 || ins.ended[0].Load() != 0 {
		t.Errorf("%d died, %d ended", n, ins.ended[0].Load())
	}
	if len(k.steps) != 6 {
		t.Fatalf("%d steps, want 6", len(k.steps))
	}
	last := briefly(k.steps[5])
	if last.Number != 6 || last.Incomplete != IncompleteEnded || last.Units != 2 || len(last.Spans) != 1 {
		t.Errorf("the last step: %+v", last)
	}
	a := e.Account()
	if len(a.Unbalanced()) > 0 || a.Producer.InFlight != 2 || a.Sidecar.Pending != 0 {
		t.Errorf("account %+v, unbalanced %v", a, a.Unbalanced())
	}
}
