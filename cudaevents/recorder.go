package cudaevents

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// Errors told apart with errors.Is.
var (
	// ErrCapturing: something in the context is being captured, and what was asked
	// for has to wait until it is not.
	ErrCapturing = errors.New("a stream capture is active")
	// ErrClosed: the recorder was closed.
	ErrClosed = errors.New("recorder closed")
	// ErrNotClosed: a recorder can be replaced only once it is closed.
	ErrNotClosed = errors.New("recorder not closed")
)

// Options configure a Recorder. The zero value of a field takes its default.
type Options struct {
	// Pairs is the size of the pool. Default 4,096, at most the ring's slots.
	Pairs int
	// Abandon is how long after its step's end a lane that was never ended is
	// given up. Default 10 s.
	Abandon time.Duration
	// MaxAnchorAge is the age at which the clock gets a new anchor while spans are
	// in flight. Default 500 ms; beyond a second or two positions lose to the
	// driver's 32-bit milliseconds.
	MaxAnchorAge time.Duration
	// AnchorBound is how long one try to anchor the clock may spin. Default 200 µs.
	AnchorBound time.Duration
	// Calibrate measures the machine's constant with spin kernels when the pool is
	// made, which takes some milliseconds of the GPU. Default: the constant is
	// assumed where it is known for the device, and none is taken off otherwise.
	Calibrate bool
	// Logger gets what goes wrong, each thing once. Default: nothing is logged.
	Logger *slog.Logger
	// StepEnded reports when a step ended on the host, in ns of CLOCK_MONOTONIC;
	// ended is false while it is open. Only Harvest and what calls it ask, holding
	// a lock: it must not call the recorder. Default: no lane is ever abandoned.
	StepEnded func(step uint64) (endedMonoNS int64, ended bool)
	// Landed sees every span that lands, just after it was written to the log. Only
	// Harvest calls it, holding a lock: it must not call the recorder or keep s.
	// Default: nobody.
	Landed func(s *spanring.Span)
	// Now is the host's clock. Default spanring.MonoNS.
	Now func() int64
}

func (o Options) withDefaults() Options {
	if o.Pairs <= 0 {
		o.Pairs = 4096
	}
	if o.Abandon <= 0 {
		o.Abandon = 10 * time.Second
	}
	if o.MaxAnchorAge <= 0 {
		o.MaxAnchorAge = 500 * time.Millisecond
	}
	if o.AnchorBound <= 0 {
		o.AnchorBound = 200 * time.Microsecond
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = spanring.MonoNS
	}
	return o
}

// Recorder records spans of one GPU context. Begin, End, Switch, Reserve and
// Launched may be called from any goroutine; they do not block or allocate, and
// make the driver calls that their comments name. Everything they leave behind is
// the work of Harvest.
type Recorder struct {
	drv    Driver
	w      *spanring.Writer
	o      Options
	log    *slog.Logger
	now    func() int64
	device Device
	slots  spanring.Slots
	index  uint8

	pool    atomic.Pointer[pool] // nil until the pool is made
	streams atomic.Pointer[streamSet]

	_        [64]byte     // servers and harvester write inFlight all the time
	inFlight atomic.Int64 // spans begun, neither landed nor failed
	_        [56]byte

	wanted  atomic.Bool // EnsurePool was asked for and had to wait
	closing sync.Mutex  // held by Close from beginning to end

	// mu is held by whoever harvests, makes the pool or closes; it guards what
	// follows.
	mu        sync.Mutex
	poolErr   error // why there will be no pool
	closed    bool
	nextSweep int64
	state     spanring.ContextState
	shallowNS uint32 // of the calibration, as in state
	// CLOCK_MONOTONIC: the latest end of a span so far, and before this harvest, which
	// lands streams one after the other.
	lastEndNS, endedNS int64
	clock              clock
	anchors            anchors
	batch              [batchPairs]Pair
	times              [batchPairs]Times
	span               spanring.Span // the one being landed

	identMu   sync.Mutex // serialises changes of streams; guards what follows
	streamNum uint16
	loggedID  bool

	graphMu sync.Mutex // taken after mu
	graphs  []*GraphLanes

	snapMu sync.Mutex
	snap   ClockState
}

// New makes a recorder for the context behind drv and reserves its context record
// and pair slots in w. It makes no driver call; EnsurePool does.
func New(drv Driver, w *spanring.Writer, o Options) (*Recorder, error) {
	o = o.withDefaults()
	o.Pairs = min(o.Pairs, w.Geometry().Slots)
	r := newRecorder(drv, w, o)
	slots, err := w.NewContext(&r.state, o.Pairs)
	if err != nil {
		return nil, fmt.Errorf("reserve %d pair slots for %s: %w", o.Pairs, r.device.Name, err)
	}
	r.slots, r.index = slots, r.state.Index
	return r, nil
}

// NewReplacing makes a recorder that takes the place of old, which must be
// closed: it has old's context record, slots and ring. Generations go on, so an
// end with a handle of old's is found stale. At most as many pairs as old had
// slots are used.
func NewReplacing(old *Recorder, drv Driver, o Options) (*Recorder, error) {
	old.mu.Lock()
	closed := old.closed
	old.mu.Unlock()
	if !closed {
		return nil, fmt.Errorf("replace the recorder of context %d: %w", old.index, ErrNotClosed)
	}
	o = o.withDefaults()
	o.Pairs = min(o.Pairs, old.slots.Len())
	r := newRecorder(drv, old.w, o)
	r.slots, r.index = old.slots, old.index
	r.state.Index, r.state.FirstSlot, r.state.Slots = old.state.Index, old.state.FirstSlot, old.state.Slots
	r.streamNum = old.streamNum
	r.w.SetContext(&r.state)
	return r, nil
}

func newRecorder(drv Driver, w *spanring.Writer, o Options) *Recorder {
	r := &Recorder{drv: drv, w: w, o: o, log: o.Logger, now: o.Now, device: drv.Device()}
	r.state.UUID, r.state.MIG = r.device.UUID, r.device.MIG
	r.state.Device, r.state.Capability = int32(r.device.Ordinal), uint16(r.device.Capability)
	r.streams.Store(newStreamSet())
	r.nextSweep = r.now() + int64(o.Abandon)/sweepsPerAbandon
	return r
}

// ContextIndex is the index of the context's record in the ring.
func (r *Recorder) ContextIndex() uint8 { return r.index }

// Device describes the context's device.
func (r *Recorder) Device() Device { return r.device }

// InFlight is how many spans have begun and neither landed nor failed.
func (r *Recorder) InFlight() int { return int(r.inFlight.Load()) }

// Drain harvests until nothing is in flight or ctx ends, whose error it returns.
// A lane that is never ended stays in flight until it is abandoned.
func (r *Recorder) Drain(ctx context.Context) error {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		r.Harvest()
		n := r.InFlight()
		if n == 0 {
			return nil
		}
		t.Reset(drainPoll)
		select {
		case <-ctx.Done():
			return fmt.Errorf("drain context %d, %d spans in flight: %w", r.index, n, ctx.Err())
		case <-t.C:
		}
	}
}

const drainPoll = 200 * time.Microsecond

// count adds n driver calls to the account.
func (r *Recorder) count(n int) { r.w.Add(spanring.CtrDriverCalls, uint64(n)) }
