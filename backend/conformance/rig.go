package conformance

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/spanring"
)

// patience bounds every wait of the suite.
const patience = time.Minute

// rig is one GPU under test with the suite's kernels.
type rig struct {
	*suite
	t   *testing.T
	gpu backend.GPU
	k   map[string]backend.Kernel
}

// rig opens a GPU that is closed at the end of the test, which must succeed.
func (s *suite) rig(t *testing.T, hub *lanetrace.Hub) *rig {
	t.Helper()
	return s.rigOn(t, s.open(t, hub))
}

func (s *suite) rigOn(t *testing.T, gpu backend.GPU) *rig {
	t.Helper()
	r := &rig{s, t, gpu, make(map[string]backend.Kernel)}
	t.Cleanup(func() {
		if err := gpu.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	r.ok(gpu.LoadModule(Module, Image))
	for _, name := range []string{kFill, kAdd, kScale, kCopy8, kStore, kArgs, kSpin} {
		k, err := gpu.Kernel(Module, name)
		r.ok(err)
		r.k[name] = k
	}
	return r
}

func (r *rig) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// refused wants an error, and the code if it is not 0.
func (r *rig) refused(what string, code cudaevents.Result, err error) {
	r.t.Helper()
	if err == nil {
		r.t.Errorf("%s: no error", what)
	} else if code != 0 && !errors.Is(err, code) {
		r.t.Errorf("%s: %v, want code %d", what, err, code)
	}
}

const (
	invalidValue  cudaevents.Result = 1
	outOfMemory   cudaevents.Result = 2
	invalidHandle cudaevents.Result = 400
	illegalState  cudaevents.Result = 401
	notFound      cudaevents.Result = 500
	captureUnsup  cudaevents.Result = 900
	captureBroken cudaevents.Result = 901
	unjoined      cudaevents.Result = 904
)

func (r *rig) stream() backend.Stream {
	r.t.Helper()
	s, err := r.gpu.CreateStream()
	r.ok(err)
	return s
}

func (r *rig) event() backend.Event {
	r.t.Helper()
	e, err := r.gpu.CreateEvent()
	r.ok(err)
	return e
}

func (r *rig) alloc(bytes int) backend.DevicePtr {
	r.t.Helper()
	p, err := r.gpu.Alloc(bytes)
	r.ok(err)
	return p
}

// words allocates n words of device memory, each v.
func (r *rig) words(n int, v uint32) backend.DevicePtr {
	r.t.Helper()
	p := r.alloc(4 * n)
	r.ok(r.gpu.CopyHtoD(p, le(slices.Repeat([]uint32{v}, n))))
	return p
}

// launch launches a kernel of the suite on 64 threads or one.
func (r *rig) launch(s backend.Stream, name string, args ...backend.Arg) {
	r.t.Helper()
	r.ok(r.tryLaunch(s, name, args...))
}

func (r *rig) tryLaunch(s backend.Stream, name string, args ...backend.Arg) error {
	l := backend.Launch{Grid: backend.Dim3{2, 1, 1}, Block: backend.Dim3{32, 1, 1}, Stream: s, Args: args}
	if name == kSpin {
		l.Grid, l.Block = backend.Dim3{1, 1, 1}, backend.Dim3{1, 1, 1}
	}
	return r.gpu.Launch(r.k[name], &l)
}

func (r *rig) fill(s backend.Stream, p backend.DevicePtr, v, n int) {
	r.t.Helper()
	r.launch(s, kFill, backend.Ptr(p), backend.U32(uint32(v)), backend.U32(uint32(n)))
}

func (r *rig) scale(s backend.Stream, p backend.DevicePtr, f, n int) {
	r.t.Helper()
	r.launch(s, kScale, backend.Ptr(p), backend.U32(uint32(f)), backend.U32(uint32(n)))
}

// cycles is how many cycles take at least d at the highest rate.
func (s *suite) cycles(d time.Duration) uint64 {
	return uint64(float64(d) / 1e3 * s.caps.MaxCyclesPerUS)
}

// atMost is how long so many cycles can take at the lowest rate, a kernel's fixed
// part and a launch's latency included.
func (s *suite) atMost(cycles uint64) time.Duration {
	return time.Duration(float64(cycles)/s.caps.MinCyclesPerUS*1e3) + 100*time.Microsecond
}

// spin keeps a stream busy for at least d.
func (r *rig) spin(s backend.Stream, d time.Duration) {
	r.t.Helper()
	r.launch(s, kSpin, backend.U64(r.cycles(d)))
}

func (r *rig) sync(s backend.Stream) {
	r.t.Helper()
	r.ok(r.gpu.Synchronize(s))
}

// wantWords compares n words of device memory, read behind the work on s.
func (r *rig) wantWords(what string, s backend.Stream, p backend.DevicePtr, want []uint32) {
	r.t.Helper()
	got := make([]byte, 4*len(want))
	r.ok(r.gpu.CopyDtoHOnStream(got, p, s))
	if d := cmp.Diff(want, unle(got)); d != "" {
		r.t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func (r *rig) wantAll(what string, s backend.Stream, p backend.DevicePtr, v, n int) {
	r.t.Helper()
	r.wantWords(what, s, p, slices.Repeat([]uint32{uint32(v)}, n))
}

func le(w []uint32) []byte {
	var b []byte
	for _, v := range w {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

func unle(b []byte) []uint32 {
	w := make([]uint32, len(b)/4)
	for i := range w {
		w[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return w
}

// pattern is bytes that differ from place to place and from seed to seed.
func pattern(n int, seed uint32) []byte {
	b := make([]byte, n)
	x := seed*2654435761 + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

func wantBytes(t *testing.T, what string, want, got []byte) {
	t.Helper()
	if bytes.Equal(want, got) {
		return
	}
	for i := range want {
		if i >= len(got) || want[i] != got[i] {
			t.Errorf("%s: %d bytes differ from byte %d on", what, len(want), i)
			return
		}
	}
}

// until polls ok until it holds.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(200 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain until %s", patience, what)
		}
	}
}

// attempts is for what a host that was stopped at the wrong moment can miss, as a busy
// one often is.
const attempts = 50

// seen runs f until it reports that it saw what it was to see.
func seen(t *testing.T, what string, f func() bool) {
	t.Helper()
	for range attempts {
		if f() {
			return
		}
	}
	t.Errorf("%s: not once in %d attempts", what, attempts)
}

// driver is the GPU as telemetry sees it.
func (r *rig) driver() cudaevents.Driver {
	r.t.Helper()
	d, ok := r.gpu.(interface{ Driver() cudaevents.Driver })
	if !ok {
		r.t.Fatalf("%T has no Driver", r.gpu)
	}
	return d.Driver()
}

// telemetry is a rig with a hub on a heap ring, harvested by the test.
type telemetry struct {
	*rig
	hub *lanetrace.Hub
	dev *lanetrace.Device
	rd  *spanring.Reader
}

func newHub(t *testing.T, level string) *lanetrace.Hub {
	t.Helper()
	hub, err := lanetrace.OpenHeap(lanetrace.Config{
		Level: level, Pairs: 256, HarvestEvery: -1, NoCalibration: true, KernelSpanEvery: 1 << 30,
		Logger: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := hub.Close(ctx); err != nil {
			t.Errorf("close hub: %v", err)
		}
		if c := hub.Ring().Counters(); c.InFlight() != 0 {
			t.Errorf("the account does not balance: %s", counters(c))
		}
	})
	return hub
}

func (s *suite) telemetry(t *testing.T, level string) *telemetry {
	t.Helper()
	return s.telemetryOn(t, newHub(t, level), s.open)
}

func (s *suite) telemetryOn(t *testing.T, hub *lanetrace.Hub, open Open) *telemetry {
	t.Helper()
	r := s.rigOn(t, open(t, hub))
	rd, err := spanring.NewHeapReader(hub.Ring(), spanring.ReaderOptions{})
	r.ok(err)
	t.Cleanup(func() { _ = rd.Close() })
	return &telemetry{rig: r, hub: hub, dev: r.gpu.Telemetry(), rd: rd}
}

// testWriter sends a log to the test's.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("log: %s", bytes.TrimSpace(b))
	return len(b), nil
}

// drain harvests until nothing is in flight and returns the spans that landed
// since the last time.
func (x *telemetry) drain() []spanring.Span {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := x.dev.Recorder().Drain(ctx); err != nil {
		x.t.Fatalf("drain: %v (%s)", err, counters(x.hub.Ring().Counters()))
	}
	return x.spans()
}

// spans are those that landed since the last time.
func (x *telemetry) spans() []spanring.Span {
	x.t.Helper()
	var out []spanring.Span
	var buf [64]spanring.Entry
	for {
		n, err := x.rd.Poll(buf[:], spanring.MonoNS())
		x.ok(err)
		if n == 0 {
			return out
		}
		for i := range buf[:n] {
			if w := &buf[i].Words; w.Kind().IsSpan() {
				s, err := w.Span()
				x.ok(err)
				out = append(out, s)
			}
		}
	}
}

func (x *telemetry) counter(c spanring.Counter) uint64 { return x.hub.Ring().Counter(c) }

// wantCounter compares how far a counter has come since before.
func (x *telemetry) wantCounter(c spanring.Counter, before, want uint64) {
	x.t.Helper()
	if got := x.counter(c) - before; got != want {
		x.t.Errorf("%s went up by %d, want %d (%s)", c, got, want, counters(x.hub.Ring().Counters()))
	}
}

// armed begins an armed step.
func (x *telemetry) armed() lanetrace.Step {
	x.t.Helper()
	x.hub.Arm(1)
	st := x.hub.StepBegin()
	if !st.Armed() {
		x.t.Fatal("step is not armed")
	}
	return st
}

// name is the text of a span's name.
func (x *telemetry) name(s spanring.Span) string {
	n, ok := x.rd.Name(s.Name)
	if !ok {
		return fmt.Sprintf("name %d", s.Name)
	}
	return n.Text
}

func counters(c spanring.Counters) string {
	var parts []string
	for i, n := range c {
		if n != 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", spanring.Counter(i), n))
		}
	}
	return strings.Join(parts, " ")
}

// ok2 is ok for another goroutine than the test's.
func (r *rig) ok2(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Error(err)
	}
}

// elsewhere runs f on a thread of its own, which ends with it.
func elsewhere(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f()
	}()
	<-done
}
