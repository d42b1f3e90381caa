package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

const testUUID = "GPU-5e1f0000-1234-5678-9abc-def012345678"

// scripted is a device that answers as it is told.
type scripted struct {
	uuid           string // "": testUUID
	reads, healths atomic.Int64
	r              func(n int64, r *collector.DeviceReading, failed *failures)
	h              func(h *collector.DeviceHealth)
}

func (g *scripted) id() (string, string) {
	if g.uuid == "" {
		return testUUID, "NVIDIA H200"
	}
	return g.uuid, "NVIDIA H200"
}

func (g *scripted) read(r *collector.DeviceReading, failed *failures) {
	n := g.reads.Add(1)
	if g.r != nil {
		g.r(n, r, failed)
	}
}

func (g *scripted) readHealth(h *collector.DeviceHealth, _ *failures) {
	g.healths.Add(1)
	if g.h != nil {
		g.h(h)
	}
}

// rig is a sampler and what is known from it.
type rig struct {
	*Readings
	read  sync.Mutex
	words [][]spanring.Words
}

// DeviceReading keeps what a tap gets.
func (r *rig) DeviceReading(d *collector.Device, entries []spanring.Words) {
	r.read.Lock()
	defer r.read.Unlock()
	r.words = append(r.words, slices.Clone(entries))
}

// run runs a sampler of g until the test's bubble is left.
func run(t *testing.T, o Options, g gpu) *rig {
	t.Helper()
	return runOpened(t, o, func(*slog.Logger) ([]gpu, func(), error) { return []gpu{g}, func() {}, nil })
}

// runOpened is run with what open finds.
func runOpened(t *testing.T, o Options, open func(*slog.Logger) ([]gpu, func(), error)) *rig {
	t.Helper()
	closed, began := false, time.Now()
	o.NowMonoNS = func() int64 { return 1 + int64(time.Since(began)) }
	r := &rig{Readings: NewReadings(ReadingsOptions{NowMonoNS: o.NowMonoNS})}
	o.Found, o.Taps = r.Found, []collector.DeviceTap{r.Readings, r}
	s, err := newSampler(o, func(log *slog.Logger) ([]gpu, func(), error) {
		gpus, shut, err := open(log)
		return gpus, func() { closed = true; shut() }, err
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		if <-done; !closed {
			t.Error("the library is open still")
		}
		if n := r.Refused(); n != [collector.NumDeviceRefusals]uint64{} {
			t.Errorf("readings refused: %v", n)
		}
	})
	return r
}

// after is d later, in the middle between two readings at 10 Hz.
func after(d time.Duration) {
	time.Sleep(d + 50*time.Millisecond)
	synctest.Wait()
}

func TestIntervals(t *testing.T) {
	for _, c := range []struct {
		interval time.Duration
		ok       bool
	}{{0, true}, {MinInterval, true}, {MaxInterval, true}, {MinInterval - 1, false}, {MaxInterval + 1, false}, {-1, false}} {
		if _, err := New(Options{Interval: c.interval}); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "want 10ms to 10s") {
			t.Errorf("%v: %v", c.interval, err)
		}
	}
}

// Readings come at 10 Hz, traffic and errors every five seconds, on a goroutine of its
// own: while it blocks readings go on. What was read of health is shown for 15 s.
func TestReadsInItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		blocked, again := make(chan struct{}), make(chan struct{})
		g := &scripted{}
		g.h = func(h *collector.DeviceHealth) {
			h.PCIeReceive = collector.Some(5.)
			switch g.healths.Load() {
			case 1:
				<-blocked
			case 5:
				<-again
			}
		}
		s := run(t, Options{}, g)
		after(3 * time.Second)
		if r, h := g.reads.Load(), g.healths.Load(); r != 31 || h != 1 {
			t.Errorf("%d readings in 3 s, and %d of traffic, which blocks", r, h)
		}
		if st := s.Stats()[0]; st.PCIeReceive.Known || st.Readings != 31 || st.ID != testUUID || st.Name != "NVIDIA H200" {
			t.Errorf("%+v", st)
		}
		close(blocked)
		after(12 * time.Second) // at 5, 10 and 15 s
		if h := g.healths.Load(); h != 4 {
			t.Errorf("traffic was read %d times in 15 s", h)
		}
		if st := s.Stats()[0]; st.PCIeReceive != collector.Some(5.) {
			t.Errorf("%+v", st)
		}
		after(14 * time.Second)
		if st := s.Stats()[0]; !st.PCIeReceive.Known || g.healths.Load() != 5 {
			t.Errorf("gone before two readings were missed: %+v", st)
		}
		after(time.Second)
		if st := s.Stats()[0]; st.PCIeReceive.Known || st.Readings < 300 {
			t.Errorf("three readings late: %+v", st)
		}
		close(again)
	})
}

// A driver that fails is counted and asked again; what it did not answer is absent.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, Options{}, &scripted{r: func(n int64, r *collector.DeviceReading, failed *failures) {
			if n%2 == 0 {
				failed[collector.QueryPower]++
				return
			}
			r.PowerMilliwatts = collector.Some(uint32(700_000))
		}})
		after(0)
		if st := s.Stats()[0]; !st.PowerMilliwatts.Known || st.Failed[collector.QueryPower] != 0 {
			t.Errorf("%+v", st)
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if st := s.Stats()[0]; st.PowerMilliwatts.Known || st.Failed[collector.QueryPower] != 1 {
			t.Errorf("failed: %+v", st)
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if st := s.Stats()[0]; !st.PowerMilliwatts.Known || st.Failed[collector.QueryPower] != 1 || st.Readings != 3 {
			t.Errorf("again: %+v", st)
		}
	})
}

// A reading that a hanging driver does not renew is shown for a while only.
func TestHangingDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		s := run(t, Options{}, &scripted{r: func(n int64, r *collector.DeviceReading, _ *failures) {
			if r.TemperatureC = collector.Some(int32(60)); n == 3 {
				<-hang
			}
		}})
		after(4 * time.Second)
		if st := s.Stats()[0]; !st.TemperatureC.Known {
			t.Error("gone at once")
		}
		after(2 * time.Second)
		if st := s.Stats()[0]; st.TemperatureC.Known || st.Readings != 2 {
			t.Errorf("%+v", st)
		}
		close(hang)
		after(time.Second)
		if st := s.Stats()[0]; !st.TemperatureC.Known || st.Readings < 10 {
			t.Errorf("%+v", st)
		}
	})
}

// Time of clocks held down is by reason; what nobody saw is not counted.
func TestHeldDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const powerCap, hwThermal = 2, 6
		s := run(t, Options{}, &scripted{r: func(n int64, r *collector.DeviceReading, _ *failures) {
			bits := uint64(1<<powerCap | 1<<40) // and one without a name
			if n > 6 {
				bits |= 1 << hwThermal
			}
			r.HeldDown = collector.Some(bits)
			if n == 11 {
				time.Sleep(time.Minute)
			}
		}})
		after(900 * time.Millisecond) // ten readings
		want := [collector.NumHeldDownReasons]uint64{powerCap: 900e6, hwThermal: 400e6}
		if d := cmp.Diff(collector.Some(want), s.Stats()[0].HeldDownNS); d != "" {
			t.Errorf("-want +got:\n%s", d)
		}
		time.Sleep(time.Minute + 50*time.Millisecond)
		synctest.Wait()
		if got := s.Stats()[0].HeldDownNS.Value[powerCap]; got < 1900e6 || got > 2200e6 {
			t.Errorf("after a minute without a reading %d ns", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := run(t, Options{}, &scripted{})
		after(time.Second)
		if st := s.Stats()[0]; st.HeldDownNS.Known || st.Joules.Known {
			t.Errorf("a device that does not tell: %+v", st)
		}
	})
}

// A driver that is not there is said so once and looked for once a minute.
func TestUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // of the rest
		var said []string
		tries, closed := 0, 0
		found := &scripted{}
		say := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, fmt.Sprintf(format, args...))
		}
		shut := func() {
			mu.Lock()
			defer mu.Unlock()
			closed++
		}
		expect := func(wantTries, wantClosed int, want ...string) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if d := cmp.Diff(want, said); d != "" || tries != wantTries || closed != wantClosed {
				t.Errorf("%d tries, %d closed; said, -want +got:\n%s", tries, closed, d)
			}
		}
		s, err := newSampler(Options{
			Unavailable: func(err error) { say("%v, %v", errors.Is(err, ErrUnavailable), err) }, Logger: slog.New(slog.NewTextHandler(writerFunc(say), nil)),
		}, func(*slog.Logger) ([]gpu, func(), error) {
			mu.Lock()
			defer mu.Unlock()
			switch tries++; {
			case tries < 3:
				return nil, nil, fmt.Errorf("%w: try %d", ErrUnavailable, tries)
			case tries == 3:
				return []gpu{&scripted{uuid: "MIG-" + testUUID[4:]}}, shut, nil
			}
			return []gpu{found}, shut, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.Run(ctx)
		}()
		const warned, mended = "true, NVML is not available: try 1", "GPUs are read from now on"
		after(2 * time.Minute)
		expect(3, 1, warned)
		after(time.Minute)
		expect(4, 1, warned, mended)
		if found.reads.Load() == 0 {
			t.Error("nothing was read")
		}
		after(time.Minute)
		cancel()
		<-done
		expect(4, 2, warned, mended)
	})
}

// writerFunc is told the message of each line that a slog.TextHandler writes.
type writerFunc func(format string, args ...any)

func (f writerFunc) Write(b []byte) (int, error) {
	_, msg, _ := strings.Cut(string(b), `msg="`)
	msg, _, _ = strings.Cut(msg, `"`)
	f("%s", msg)
	return len(b), nil
}

// One that is told to end while it waits for a driver ends.
func TestEndsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := newSampler(Options{}, func(*slog.Logger) ([]gpu, func(), error) { return nil, nil, ErrUnavailable })
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if s.Run(ctx); time.Since(began) != time.Second {
			t.Errorf("ended after %v", time.Since(began))
		}
	})
}

// Of two devices one has no UUID that can be: the other is read, and one line says so.
func TestNotAUUID(t *testing.T) {
	var log bytes.Buffer
	s, err := newSampler(Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(*slog.Logger) ([]gpu, func(), error) {
		return []gpu{&scripted{uuid: "GPU-5e1f"}, &scripted{}}, func() {}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ds, _, err := s.find()
	if err != nil || len(ds) != 1 || ds[0].device.ID() != testUUID || strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "GPU-5e1f") {
		t.Errorf("%v, %v, log %q", ds, err, log.String())
	}
}

// unread is an engine that has worked some steps, its ring, and what reads the ring once.
func unread(t *testing.T, gpu string, steps uint64) (*collector.Engine, *spanring.Writer, func()) {
	t.Helper()
	w, err := spanring.NewHeap(spanring.Options{Geometry: spanring.Geometry{LogEntries: 4096, Slots: 16, Allocs: 16}, Info: spanring.Info{Service: "e"}})
	if err != nil {
		t.Fatal(err)
	}
	w.SetGPU(gpu, "")
	for n := range steps {
		work(w, 1+n)
	}
	r, err := spanring.NewHeapReader(w, spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := collector.NewProcessor(collector.NewRingSource(r), collector.ProcessorOptions{Label: "e"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p.Engine(), w, func() {
		t.Helper()
		if _, _, err := p.Poll(); err != nil {
			t.Fatal(err)
		}
	}
}

// work writes a step of four tokens, and six of a prompt.
func work(w *spanring.Writer, step uint64) {
	now := spanring.MonoNS() - 1000
	b := spanring.StepBegin{Step: step, MonoNS: now, Level: 2}
	a := spanring.StepAttrs{Step: step, BatchSize: 4, DecodeTokens: 4, PrefillTokens: 6}
	e := spanring.StepEnd{Step: step, MonoNS: now + 1000, BeginNS: now}
	for _, ws := range []spanring.Words{b.Words(), a.Words(), e.Words()} {
		w.Append(&ws)
	}
}

// engine is one that works a step at each call.
func engine(t *testing.T, gpu string) (*collector.Engine, func()) {
	t.Helper()
	e, w, poll := unread(t, gpu, 0)
	step := uint64(0)
	return e, func() {
		t.Helper()
		step++
		work(w, step)
		poll()
	}
}

func TestWork(t *testing.T) {
	const other = "GPU-ffff0000-1234-5678-9abc-def012345678"
	const mig = "MIG-5e1f0000-1234-5678-9abc-def012345678"
	device, _ := ParseUUID(testUUID)
	a, stepA := engine(t, testUUID)
	b, stepB := engine(t, testUUID)
	c, stepC := engine(t, other)
	d, stepD := engine(t, mig)
	var w works
	all := []*collector.Engine{a, b, c, d}
	update := func(es []*collector.Engine, want collector.Work) {
		t.Helper()
		w.update(es)
		if got := w.on(device); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	stepA()
	if got, want := a.Work(), (collector.Work{Steps: 1, DecodeTokens: 4, PrefillTokens: 6}); got != want {
		t.Fatalf("the engine's step came to %+v", got)
	}
	update(all, collector.Work{}) // before it was first seen
	stepA()
	stepB()
	stepB()
	stepC()
	stepD()
	update(all, collector.Work{Steps: 3, DecodeTokens: 12, PrefillTokens: 18})
	update(all, collector.Work{Steps: 3, DecodeTokens: 12, PrefillTokens: 18})
	update([]*collector.Engine{b}, collector.Work{Steps: 3, DecodeTokens: 12, PrefillTokens: 18}) // a is gone
	stepB()
	update([]*collector.Engine{b}, collector.Work{Steps: 4, DecodeTokens: 16, PrefillTokens: 24})
}

// What a ring held when it was found was done before: it does not count, however
// readings and polls of the ring fall.
func TestWorkBefore(t *testing.T) {
	const held = 1000 // steps, of many polls
	e, w, poll := unread(t, testUUID, held)
	device, _ := ParseUUID(testUUID)
	var ws works
	update := func(want uint64) {
		t.Helper()
		ws.update([]*collector.Engine{e})
		if got := ws.on(device); got != (collector.Work{Steps: want, DecodeTokens: 4 * want, PrefillTokens: 6 * want}) {
			t.Fatalf("%+v, want %d steps", got, want)
		}
	}
	for range 100 {
		update(0)
		poll()
	}
	for n := range uint64(5) {
		work(w, held+1+n)
		poll()
		update(1 + n)
	}
}

// From engines' steps and a device's counter to joules by token: of one engine, of a
// second one beside it, of the first one's next run, and of nobody.
func TestEnergyByToken(t *testing.T) {
	a, stepA := engine(t, testUUID)
	b, stepB := engine(t, testUUID)
	again, stepAgain := engine(t, testUUID)
	stepA() // before the first reading
	g := &scripted{r: func(n int64, r *collector.DeviceReading, _ *failures) {
		r.EnergyMillijoules = collector.Some(uint64(1e9 + 50_000*n))
	}}
	var engines []*collector.Engine
	now := int64(0)
	clock := func() int64 { return now }
	rs := NewReadings(ReadingsOptions{Engines: func() []*collector.Engine { return engines }, NowMonoNS: clock})
	s, err := newSampler(Options{NowMonoNS: clock, Taps: []collector.DeviceTap{rs}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	u, _ := ParseUUID(testUUID)
	key, _ := u.bytes()
	d := &sampled{g, collector.Device{UUID: key}}
	for i, c := range []struct {
		engines    []*collector.Engine
		steps      []func()
		generated  float64 // joules by token since the start
		live, both float64 // of the last ten readings
	}{
		{[]*collector.Engine{a}, []func(){stepA}, 12.5, 12.5, 5},                                 // 11 steps of four tokens, 550 J
		{[]*collector.Engine{a, b}, []func(){stepA, stepB}, 1150. / (34 * 4), 6.25, 2.5},         // and 12 and 11
		{[]*collector.Engine{b, again}, []func(){stepB, stepAgain}, 1750. / (57 * 4), 6.25, 2.5}, // and 12 and 11: what one did last that is gone was not seen
		{nil, nil, 2350. / (57 * 4), 0, 0},
	} {
		engines = c.engines
		for range 12 {
			now += int64(DefaultInterval)
			s.read(d)
			for _, step := range c.steps {
				step()
			}
		}
		got := rs.Stats()[0].DeviceEnergy
		live, both := some(c.live), some(c.both)
		if c.live == 0 {
			live, both = opt{}, opt{}
		}
		if math.Abs(got.PerGenerated.Value-c.generated) > 1e-9 || got.LivePerGenerated != live || got.LivePerToken != both {
			t.Errorf("%d: %+v, want %v, %v, %v", i, got, c.generated, live, both)
		}
	}
}
