// Package scripted is a cudaevents.Driver for tests: streams, events, captures,
// clocks and faults that do what the test says, on one goroutine and without a
// GPU.
//
// Streams are queues of work and events. Each item begins when the one before it
// has ended and its launch has reached the GPU, and ends when its time has passed
// on the host's clock, which is virtual and moved by Advance unless
// Options.RealTime is set. Nothing runs in the background: what has ended is found
// out when somebody asks. A stalled stream stands still until it is released, or
// until Complete ends items by hand.
//
// The GPU's clock has its own zero and drifts; stamps come in ticks, and times
// between events are 32-bit floats of milliseconds, as the real driver gives them.
//
// What must never be done is written down and found in Violations: making pools or
// anchors while a capture is known to be active, asking a capturing stream its
// identity (which also spoils the capture), touching a destroyed event or stream.
//
// All methods may be called from several goroutines.
package scripted

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/spanring"
)

// Codes that the driver answers by itself.
const (
	InvalidHandle cudaevents.Result = 400 // an event never recorded, or no such object
	CaptureUnsafe cudaevents.Result = 900
	Invalidated   cudaevents.Result = 901
)

// Method is a method of the driver, for counting and for faults.
type Method string

// The driver's methods.
const (
	CreateEvents  Method = "CreateEvents"
	DestroyEvents Method = "DestroyEvents"
	CreateStream  Method = "CreateStream"
	DestroyStream Method = "DestroyStream"
	StreamID      Method = "StreamID"
	Record        Method = "Record"
	Elapsed       Method = "Elapsed" // faults count pairs
	Pending       Method = "Pending"
	Since         Method = "Since"
	Anchor        Method = "Anchor"
	Spin          Method = "Spin"
	SpinPair      Method = "SpinPair"
	Launch        Method = "Launch" // the test's own
)

// Options describe the machine. The zero value of a field takes its default.
type Options struct {
	StartMonoNS int64   // the host's clock at first; default 1,000 s
	GPUStartNS  int64   // the GPU's clock at that moment; default 77 s
	DriftPPM    float64 // how much faster the GPU's clock runs
	TickNS      int64   // step of stamps; default 32
	CallNS      int64   // virtual time that each driver call takes; default 0
	PollNS      int64   // and each Pending beyond that, so that polling gets somewhere; default 0
	// LatencyNS is from enqueue until an idle stream begins; default 2,500.
	LatencyNS int64
	// Jitter, if set, is added to each launch's latency.
	Jitter func() int64
	// RealTime takes the host's clock from spanring.MonoNS; Advance then does
	// nothing.
	RealTime bool

	// EventNS is how long the GPU is busy with an event, so what an empty pair
	// measures (default 1,280). A pair around a kernel measures ConstantNS more than
	// the kernel (default 3,040), a spin kernel takes FixedNS (default 523) and CycleNS a cycle
	// (default 0.5).
	EventNS, ConstantNS, FixedNS int64
	CycleNS                      float64
	NoSpin                       bool

	// Concurrent is for tests whose captures begin on other goroutines than the
	// recorder's calls: what must wait for captures may then still run in one that
	// began after Capturing last said that there is none. By default that is a
	// violation like any other.
	Concurrent bool

	Device cudaevents.Device // default: "scripted", compute capability 0
}

// Mode is the mode of a capture.
type Mode int

// The modes of captures.
const (
	Global Mode = iota
	ThreadLocal
	Relaxed
)

// Driver is the scripted driver.
type Driver struct {
	mu sync.Mutex
	o  Options

	hostNS          int64
	gpuRef, hostRef int64
	driftPPM        float64
	nextEvent       cudaevents.Event
	nextHandle      cudaevents.Stream
	freeHandles     []cudaevents.Stream
	nextID          uint64
	events          map[cudaevents.Event]*event
	streams         map[cudaevents.Stream]*stream
	methods         map[Method]int
	calls           int
	faults          map[Method][]fault
	elapsed         func(cudaevents.Pair, *cudaevents.Times) cudaevents.Result
	hook            func(Method)
	latency         func(own bool) int64
	violations      []string
	toldFree        bool // what Capturing last said
	failPairs       cudaevents.Result
}

type fault struct {
	after int // calls that still pass; -1: every call fails
	code  cudaevents.Result
}

type event struct {
	recorded, done bool
	gen            int
	stampGPU       int64 // ns, whole ticks
	doneHostNS     int64
}

type item struct {
	ev    *event // nil: work
	gen   int
	durNS int64
	enqNS int64
}

type stream struct {
	id       uint64
	items    []item
	stalled  bool
	freeAtNS int64
	capture  bool
	mode     Mode
	known    bool
	spoilt   bool
	own      bool // made through CreateStream
}

var _ cudaevents.Driver = (*Driver)(nil)

// New makes a driver. Stream 0 exists from the start.
func New(o Options) *Driver {
	if o.StartMonoNS == 0 {
		o.StartMonoNS = 1_000e9
	}
	if o.GPUStartNS == 0 {
		o.GPUStartNS = 77e9
	}
	if o.TickNS == 0 {
		o.TickNS = 32
	}
	if o.LatencyNS == 0 {
		o.LatencyNS = 2500
	}
	if o.EventNS == 0 {
		o.EventNS = 1280
	}
	if o.ConstantNS == 0 {
		o.ConstantNS = 3040
	}
	if o.FixedNS == 0 {
		o.FixedNS = 523
	}
	if o.CycleNS == 0 {
		o.CycleNS = 0.5
	}
	if o.Device.Name == "" {
		o.Device.Name = "scripted"
	}
	d := &Driver{
		o: o, hostNS: o.StartMonoNS, gpuRef: o.GPUStartNS, driftPPM: o.DriftPPM,
		events: map[cudaevents.Event]*event{}, streams: map[cudaevents.Stream]*stream{},
		methods: map[Method]int{}, faults: map[Method][]fault{}, nextHandle: 0x5000, nextEvent: 0x100, nextID: 1,
	}
	if o.RealTime {
		d.hostNS = spanring.MonoNS()
	}
	d.hostRef = d.hostNS
	d.streams[0] = &stream{id: d.nextID, freeAtNS: d.hostNS}
	return d
}

// Now is the host's clock, for cudaevents.Options.Now.
func (d *Driver) Now() int64 {
	if d.o.RealTime {
		return spanring.MonoNS()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hostNS
}

// Advance moves the virtual clock.
func (d *Driver) Advance(ns int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hostNS += ns
}

// SetDrift changes the GPU clock's drift from now on.
func (d *Driver) SetDrift(ppm float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.now()
	d.gpuRef, d.hostRef, d.driftPPM = d.gpuAt(h), h, ppm
}

// JumpHost moves the host's clock against the GPU's, as no real clock does.
func (d *Driver) JumpHost(ns int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.now()
	d.gpuRef, d.hostRef = d.gpuAt(h), h+ns
	d.hostNS += ns
}

func (d *Driver) now() int64 {
	if d.o.RealTime {
		d.hostNS = spanring.MonoNS()
	}
	return d.hostNS
}

func (d *Driver) gpuAt(hostNS int64) int64 {
	h := hostNS - d.hostRef
	return d.gpuRef + h + int64(float64(h)*d.driftPPM/1e6)
}

// enter begins a call of a method: it counts it and its driver calls, lets time
// pass and returns the fault that is due.
func (d *Driver) enter(m Method, calls int) cudaevents.Result {
	d.mu.Lock()
	hook := d.hook
	d.mu.Unlock()
	if hook != nil {
		hook(m)
	}
	d.mu.Lock()
	d.methods[m]++
	d.spend(calls)
	if m == Elapsed {
		return cudaevents.Success
	}
	return d.fault(m)
}

func (d *Driver) spend(calls int) {
	d.calls += calls
	d.hostNS += d.o.CallNS * int64(calls)
}

func (d *Driver) fault(m Method) cudaevents.Result {
	fs := d.faults[m]
	code := cudaevents.Success
	kept := fs[:0]
	for _, f := range fs {
		switch {
		case f.after < 0:
			code = f.code
			kept = append(kept, f)
		case f.after == 0:
			code = f.code
		default:
			f.after--
			kept = append(kept, f)
		}
	}
	if len(fs) > 0 {
		d.faults[m] = kept
	}
	return code
}

func (d *Driver) violate(format string, args ...any) {
	d.violations = append(d.violations, fmt.Sprintf(format, args...))
}

func (d *Driver) mustNotCapture(m Method) {
	if d.capturing() && !(d.o.Concurrent && d.toldFree) {
		d.violate("%s while a capture is known to be active", m)
	}
}

func (d *Driver) capturing() bool {
	for _, s := range d.streams {
		if s.capture && s.known {
			return true
		}
	}
	return false
}

func asError(m Method, r cudaevents.Result) error {
	if r == cudaevents.Success {
		return nil
	}
	return fmt.Errorf("scripted %s: %w", m, r)
}

// settle ends what has ended on s by now.
func (d *Driver) settle(s *stream) {
	now := d.now()
	n := 0
	for ; n < len(s.items) && !s.stalled; n++ {
		it := &s.items[n]
		end := max(it.enqNS, s.freeAtNS) + it.durNS
		if end > now {
			break
		}
		d.finish(s, it, end)
	}
	s.items = slices.Delete(s.items, 0, n)
}

func (d *Driver) finish(s *stream, it *item, endNS int64) {
	s.freeAtNS = endNS
	if e := it.ev; e != nil && e.gen == it.gen {
		e.done = true
		e.doneHostNS = endNS
		g := d.gpuAt(endNS)
		e.stampGPU = g - g%d.o.TickNS
	}
}

func (d *Driver) settleAll() {
	for _, s := range d.streams {
		d.settle(s)
	}
}

func (d *Driver) enqueue(s *stream, ev *event, durNS int64) {
	d.settle(s)
	at := d.now() + d.o.LatencyNS
	if d.latency != nil {
		at = d.now() + d.latency(s.own)
	}
	if d.o.Jitter != nil {
		at += d.o.Jitter()
	}
	it := item{ev: ev, durNS: durNS, enqNS: at}
	if ev != nil {
		ev.recorded, ev.done = true, false
		ev.gen++
		it.gen = ev.gen
	}
	s.items = append(s.items, it)
}

// event finds an event, or notes that it is not there.
func (d *Driver) event(m Method, e cudaevents.Event) *event {
	ev := d.events[e]
	if ev == nil {
		d.violate("%s of event %#x, which does not exist", m, uintptr(e))
	}
	return ev
}

func (d *Driver) stream(m Method, s cudaevents.Stream) *stream {
	st := d.streams[s]
	if st == nil {
		d.violate("%s on stream %#x, which does not exist", m, uintptr(s))
	}
	return st
}

// CreateEvents implements cudaevents.Driver.
func (d *Driver) CreateEvents(dst []cudaevents.Event) error {
	r := d.enter(CreateEvents, len(dst))
	defer d.mu.Unlock()
	d.mustNotCapture(CreateEvents)
	if r != cudaevents.Success {
		return asError(CreateEvents, r)
	}
	for i := range dst {
		d.nextEvent++
		dst[i] = d.nextEvent
		d.events[d.nextEvent] = &event{}
	}
	return nil
}

// DestroyEvents implements cudaevents.Driver.
func (d *Driver) DestroyEvents(events []cudaevents.Event) error {
	r := d.enter(DestroyEvents, len(events))
	defer d.mu.Unlock()
	for _, e := range events {
		d.event(DestroyEvents, e)
		delete(d.events, e)
	}
	return asError(DestroyEvents, r)
}

// CreateStream implements cudaevents.Driver. Handles of destroyed streams are
// handed out again, the last first.
func (d *Driver) CreateStream() (cudaevents.Stream, error) {
	r := d.enter(CreateStream, 1)
	defer d.mu.Unlock()
	d.mustNotCapture(CreateStream)
	if r != cudaevents.Success {
		return 0, asError(CreateStream, r)
	}
	h := d.newStream()
	d.streams[h].own = true
	return h, nil
}

// NewStream makes a stream of the engine's, which no count sees.
func (d *Driver) NewStream() cudaevents.Stream {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.newStream()
}

func (d *Driver) newStream() cudaevents.Stream {
	var h cudaevents.Stream
	if n := len(d.freeHandles); n > 0 {
		h, d.freeHandles = d.freeHandles[n-1], d.freeHandles[:n-1]
	} else {
		d.nextHandle += 0x10
		h = d.nextHandle
	}
	d.nextID++
	d.streams[h] = &stream{id: d.nextID, freeAtNS: d.now()}
	return h
}

// Alias is another handle of the same stream.
func (d *Driver) Alias(s cudaevents.Stream) cudaevents.Stream {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nextHandle += 0x10
	d.streams[d.nextHandle] = d.stream("Alias", s)
	return d.nextHandle
}

// DestroyStream implements cudaevents.Driver. What is queued on the stream still
// runs.
func (d *Driver) DestroyStream(s cudaevents.Stream) error {
	r := d.enter(DestroyStream, 1)
	defer d.mu.Unlock()
	d.dropStream(s)
	return asError(DestroyStream, r)
}

// DropStream destroys a stream of the engine's, which no count sees.
func (d *Driver) DropStream(s cudaevents.Stream) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dropStream(s)
}

func (d *Driver) dropStream(s cudaevents.Stream) {
	st := d.stream(DestroyStream, s)
	if st == nil {
		return
	}
	delete(d.streams, s)
	d.freeHandles = append(d.freeHandles, s)
	// It lives on under a handle that nobody has.
	d.nextHandle += 0x10
	d.streams[d.nextHandle|1] = st
}

// StreamID implements cudaevents.Driver.
func (d *Driver) StreamID(s cudaevents.Stream) (uint64, error) {
	r := d.enter(StreamID, 1)
	defer d.mu.Unlock()
	st := d.stream(StreamID, s)
	switch {
	case r != cudaevents.Success:
		return 0, asError(StreamID, r)
	case st == nil:
		return 0, asError(StreamID, InvalidHandle)
	case st.capture:
		st.spoilt = true
		d.violate("StreamID of stream %#x while it captures", uintptr(s))
		return 0, asError(StreamID, CaptureUnsafe)
	}
	return st.id, nil
}

// Record implements cudaevents.Driver.
func (d *Driver) Record(e cudaevents.Event, s cudaevents.Stream) cudaevents.Recorded {
	r := d.enter(Record, 1)
	defer d.mu.Unlock()
	st, ev := d.stream(Record, s), d.event(Record, e)
	if st == nil || ev == nil {
		return cudaevents.Recorded{Result: InvalidHandle, Calls: 1}
	}
	if st.capture {
		return cudaevents.Recorded{Capturing: true, Calls: 1}
	}
	d.spend(1)
	if r == cudaevents.Success {
		d.enqueue(st, ev, d.o.EventNS)
	}
	return cudaevents.Recorded{Result: r, Calls: 2}
}

// ask says whether an event is complete.
func (d *Driver) ask(m Method, e cudaevents.Event) (*event, cudaevents.Result) {
	ev := d.event(m, e)
	switch {
	case ev == nil || !ev.recorded:
		return ev, InvalidHandle
	case !ev.done:
		return ev, cudaevents.NotReady
	}
	return ev, cudaevents.Success
}

// between is what the driver measures from a to b.
func (d *Driver) between(m Method, a, b cudaevents.Event) (float32, cudaevents.Result) {
	x, r := d.ask(m, a)
	if r == cudaevents.Success || r == cudaevents.NotReady {
		y, ry := d.ask(m, b)
		if ry == cudaevents.Success && r == cudaevents.Success {
			return float32(float64(y.stampGPU-x.stampGPU) / 1e6), r
		}
		if ry != cudaevents.Success {
			r = ry
		}
	}
	return 0, r
}

// Elapsed implements cudaevents.Driver.
func (d *Driver) Elapsed(anchor cudaevents.Event, pairs []cudaevents.Pair, out []cudaevents.Times) (n int, r cudaevents.Result, calls int) {
	_ = d.enter(Elapsed, 0) // faults count pairs, below
	defer d.mu.Unlock()
	for i, p := range pairs {
		d.spend(1)
		calls++
		d.settleAll()
		var t cudaevents.Times
		t.DurationMS, r = d.between(Elapsed, p.Start, p.End)
		if d.failPairs != cudaevents.Success {
			r = d.failPairs
		}
		if r == cudaevents.Success {
			if f := d.fault(Elapsed); f != cudaevents.Success {
				r = f
			}
		}
		if r == cudaevents.Success && anchor != 0 {
			d.spend(1)
			calls++
			t.SinceAnchorMS, t.SinceResult = d.between(Elapsed, anchor, p.Start)
		}
		if r == cudaevents.Success && d.elapsed != nil {
			r = d.elapsed(p, &t)
		}
		if r != cudaevents.Success {
			return n, r, calls
		}
		out[i] = t
		n++
	}
	return n, cudaevents.Success, calls
}

// Pending implements cudaevents.Driver.
func (d *Driver) Pending(e cudaevents.Event) cudaevents.Result {
	r := d.enter(Pending, 1)
	defer d.mu.Unlock()
	d.hostNS += d.o.PollNS
	if r != cudaevents.Success {
		return r
	}
	d.settleAll()
	_, r = d.ask(Pending, e)
	return r
}

// Since implements cudaevents.Driver.
func (d *Driver) Since(a, b cudaevents.Event) (float32, cudaevents.Result) {
	r := d.enter(Since, 1)
	defer d.mu.Unlock()
	if r != cudaevents.Success {
		return 0, r
	}
	d.settleAll()
	return d.between(Since, a, b)
}

// anchorPollNS is how long one look at an anchor's event takes on the virtual
// clock.
const anchorPollNS = 250

// Anchor implements cudaevents.Driver.
func (d *Driver) Anchor(e cudaevents.Event, s cudaevents.Stream, boundNS int64) cudaevents.AnchorTry {
	r := d.enter(Anchor, 1)
	defer d.mu.Unlock()
	d.mustNotCapture(Anchor)
	st, ev := d.stream(Anchor, s), d.event(Anchor, e)
	t := cudaevents.AnchorTry{BeforeMonoNS: d.now(), Calls: 1}
	if st == nil || ev == nil {
		r = InvalidHandle
	}
	if r != cudaevents.Success {
		t.Result = r
		return t
	}
	d.enqueue(st, ev, d.o.EventNS)
	for {
		if !d.o.RealTime {
			d.hostNS += anchorPollNS
		}
		d.spend(1)
		t.Calls++
		d.settle(st)
		t.AfterMonoNS = d.now()
		if ev.done {
			return t
		}
		if t.AfterMonoNS-t.BeforeMonoNS >= boundNS {
			t.Result = cudaevents.NotReady
			return t
		}
	}
}

// Capturing implements cudaevents.Driver: whether a capture begun with known is
// active. It is no driver call.
func (d *Driver) Capturing() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.capturing()
	d.toldFree = !c
	return c
}

// Spin implements cudaevents.Driver.
func (d *Driver) Spin(s cudaevents.Stream, cycles uint64) error {
	r := d.enter(Spin, 1)
	defer d.mu.Unlock()
	d.mustNotCapture(Spin)
	st := d.stream(Spin, s)
	if d.o.NoSpin || st == nil {
		return cudaevents.ErrNoSpin
	}
	if r == cudaevents.Success {
		d.enqueue(st, nil, d.spinNS(cycles))
	}
	return asError(Spin, r)
}

func (d *Driver) spinNS(cycles uint64) int64 {
	return d.o.FixedNS + int64(float64(cycles)*d.o.CycleNS)
}

// inPair is how long a kernel keeps the stream busy between the two events of a
// pair, the second event's own time apart.
func (d *Driver) inPair(durNS int64) int64 { return max(0, durNS+d.o.ConstantNS-d.o.EventNS) }

// SpinPair implements cudaevents.Driver.
func (d *Driver) SpinPair(s cudaevents.Stream, cycles uint64, p cudaevents.Pair) error {
	r := d.enter(SpinPair, 3)
	defer d.mu.Unlock()
	d.mustNotCapture(SpinPair)
	st, a, b := d.stream(SpinPair, s), d.event(SpinPair, p.Start), d.event(SpinPair, p.End)
	if d.o.NoSpin || st == nil || a == nil || b == nil {
		return cudaevents.ErrNoSpin
	}
	if r == cudaevents.Success {
		d.enqueue(st, a, d.o.EventNS)
		d.enqueue(st, nil, d.inPair(d.spinNS(cycles)))
		d.enqueue(st, b, d.o.EventNS)
	}
	return asError(SpinPair, r)
}

// Device implements cudaevents.Driver. It is no driver call.
func (d *Driver) Device() cudaevents.Device { return d.o.Device }

// Work enqueues work of the engine's on s: nothing is recorded or counted.
func (d *Driver) Work(s cudaevents.Stream, durNS int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if st := d.stream(Launch, s); st != nil {
		d.enqueue(st, nil, durNS)
	}
}

// Launch is a timed launch of a kernel of durNS in one crossing, as a backend
// makes it with a reserved pair. A fault at Launch refuses the launch, one at
// Record a record.
func (d *Driver) Launch(p cudaevents.Pair, s cudaevents.Stream, durNS int64) (res cudaevents.LaunchResult) {
	refused := d.enter(Launch, 0)
	defer d.mu.Unlock()
	st, a, b := d.stream(Launch, s), d.event(Launch, p.Start), d.event(Launch, p.End)
	d.spend(1)
	res.Calls = 1
	if st == nil || a == nil || b == nil {
		res.StartResult = InvalidHandle
		return res
	}
	if st.capture {
		res.Capturing = true
		return res
	}
	d.spend(1)
	res.Calls++
	if res.StartResult = d.fault(Record); res.StartResult == cudaevents.Success {
		d.enqueue(st, a, d.o.EventNS)
		res.StartRecorded = true
	}
	if res.LaunchResult = refused; refused != cudaevents.Success {
		return res
	}
	d.enqueue(st, nil, d.inPair(durNS))
	if !res.StartRecorded {
		return res
	}
	d.spend(1)
	res.Calls++
	if res.EndResult = d.fault(Record); res.EndResult == cudaevents.Success {
		d.enqueue(st, b, d.o.EventNS)
		res.EndRecorded = true
	}
	d.spend(1)
	res.Calls++
	d.settle(st)
	res.Pending = !a.done
	return res
}

// SetLatency replaces Options.LatencyNS; own says whether the stream is one of the
// recorder's.
func (d *Driver) SetLatency(f func(own bool) int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.latency = f
}

// Stall makes s stand still: nothing on it ends until Release or Complete.
func (d *Driver) Stall(s cudaevents.Stream) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if st := d.stream("Stall", s); st != nil {
		d.settle(st)
		st.stalled = true
	}
}

// StallAll stalls every stream there is, the recorder's own too.
func (d *Driver) StallAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, st := range d.streams {
		d.settle(st)
		st.stalled = true
	}
}

// Release lets a stalled stream go on from now.
func (d *Driver) Release(s cudaevents.Stream) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if st := d.stream("Release", s); st != nil {
		d.release(st)
	}
}

// ReleaseAll lets every stream go on from now.
func (d *Driver) ReleaseAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, st := range d.streams {
		d.release(st)
	}
}

func (d *Driver) release(st *stream) {
	if st.stalled {
		st.stalled = false
		st.freeAtNS = max(st.freeAtNS, d.now())
	}
}

// Complete ends the next n items of s, stalled or not, each EventNS after the one
// before it, moves the virtual clock by as much, and returns how many there were.
func (d *Driver) Complete(s cudaevents.Stream, n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.stream("Complete", s)
	if st == nil {
		return 0
	}
	d.settle(st)
	n = min(n, len(st.items))
	for i := range n {
		d.hostNS += d.o.EventNS
		d.finish(st, &st.items[i], max(d.now(), st.freeAtNS))
	}
	st.items = slices.Delete(st.items, 0, n)
	return n
}

// Queued is how many items of s have not ended.
func (d *Driver) Queued(s cudaevents.Stream) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.stream("Queued", s)
	if st == nil {
		return 0
	}
	d.settle(st)
	return len(st.items)
}

// Finish moves the virtual clock to the end of all work on streams that are not
// stalled.
func (d *Driver) Finish() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, st := range d.streams {
		if st.stalled {
			continue
		}
		at := st.freeAtNS
		for _, it := range st.items {
			at = max(at, it.enqNS) + it.durNS
		}
		d.hostNS = max(d.hostNS, at)
	}
	d.settleAll()
}

// BeginCapture begins a capture that the driver's binding knows of.
func (d *Driver) BeginCapture(s cudaevents.Stream, m Mode) { d.beginCapture(s, m, true) }

// BeginForeignCapture begins one that it does not know of, as another library in
// the process does.
func (d *Driver) BeginForeignCapture(s cudaevents.Stream, m Mode) { d.beginCapture(s, m, false) }

func (d *Driver) beginCapture(s cudaevents.Stream, m Mode, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if st := d.stream("BeginCapture", s); st != nil {
		st.capture, st.mode, st.known, st.spoilt = true, m, known, false
	}
}

// EndCapture ends a capture. It fails when something spoilt it.
func (d *Driver) EndCapture(s cudaevents.Stream) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.stream("EndCapture", s)
	if st == nil {
		return asError("EndCapture", InvalidHandle)
	}
	spoilt := st.spoilt
	st.capture, st.spoilt = false, false
	if spoilt {
		return asError("EndCapture", Invalidated)
	}
	return nil
}

// Fail makes the nth call of a method from now on fail with code, once; 1 is the
// next. For Elapsed it is the nth complete pair that is read.
func (d *Driver) Fail(m Method, nth int, code cudaevents.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults[m] = append(d.faults[m], fault{nth - 1, code})
}

// FailAll makes every call of a method fail until Heal.
func (d *Driver) FailAll(m Method, code cudaevents.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults[m] = append(d.faults[m], fault{-1, code})
}

// Heal forgets all faults of a method.
func (d *Driver) Heal(m Method) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.faults, m)
}

// FailPairs makes Elapsed answer code for every pair it is asked about, complete or
// not, until it is set back to Success.
func (d *Driver) FailPairs(code cudaevents.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failPairs = code
}

// OnElapsed lets f see and change what Elapsed read of each complete pair; nil
// ends that. What f returns is the pair's result. f must not call the driver.
func (d *Driver) OnElapsed(f func(cudaevents.Pair, *cudaevents.Times) cudaevents.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.elapsed = f
}

// OnCall lets f run at the beginning of every method, on the caller's goroutine
// and without the driver's lock: it may block.
func (d *Driver) OnCall(f func(Method)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hook = f
}

// Calls is how many driver calls were made in all, as the recorder should have
// counted them.
func (d *Driver) Calls() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls
}

// MethodCalls is how often each method was called.
func (d *Driver) MethodCalls() map[Method]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.methods)
}

// Violations are the things done that must never be.
func (d *Driver) Violations() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.violations)
}

// LiveEvents is how many events exist.
func (d *Driver) LiveEvents() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.events)
}

// HostOf is the true time on the host of a complete event, for comparing with
// where a span was placed.
func (d *Driver) HostOf(e cudaevents.Event) (hostNS int64, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settleAll()
	ev := d.events[e]
	if ev == nil || !ev.done {
		return 0, false
	}
	return ev.doneHostNS, true
}
