package cudaevents

import (
	"errors"
	"fmt"
)

// ErrNoSpin is returned by a driver without a spin kernel: nothing is calibrated.
var ErrNoSpin = errors.New("driver has no spin kernel")

// Event is a driver's event handle (CUevent).
type Event uintptr

// Stream is a driver's stream handle (CUstream); 0 is the context's default
// stream. The driver may hand a destroyed stream's handle out again.
type Stream uintptr

// Result is a driver's result code (CUresult). 0 is success.
type Result int32

// Results that this package tells apart; every other code is a failure. Values
// from the CUDA driver API.
const (
	Success  Result = 0
	NotReady Result = 600 // CUDA_ERROR_NOT_READY
)

// Error makes a Result an error; its text names no driver's constant, which the
// driver's own binding does.
func (r Result) Error() string { return fmt.Sprintf("driver result %d", int32(r)) }

// Recorded says what a request to record an event came to.
type Recorded struct {
	// Capturing: the stream is being captured, or its status could not be had;
	// nothing was recorded.
	Capturing bool
	// Result of the record; Success when Capturing.
	Result Result
	// Calls is how many driver calls were made.
	Calls int
}

// Pair is the two events of a span.
type Pair struct{ Start, End Event }

// Times are the values read of one complete pair.
type Times struct {
	// DurationMS is from start to end in milliseconds, as the driver gives it.
	DurationMS float32
	// SinceAnchorMS is from the anchor to start; it is negative when the start
	// came first. SinceResult tells whether it could be read.
	SinceAnchorMS float32
	SinceResult   Result
}

// AnchorTry is one try to observe the GPU's clock from the host.
type AnchorTry struct {
	// BeforeMonoNS is read just before the record, AfterMonoNS just after the
	// event was first seen complete; both CLOCK_MONOTONIC. The stamp lies between.
	BeforeMonoNS, AfterMonoNS int64
	// Result is Success, NotReady when the bound passed first (the event is then
	// still pending), or the code of the failure.
	Result Result
	Calls  int
}

// Driver is what recording event pairs needs of one GPU context. Each method is
// at most one crossing into C, binds its context itself whatever thread it is
// called on, and may be called from several goroutines. Except for capture
// status, record and elapsed, a method exchanges its thread's capture mode to
// RELAXED and restores it.
//
// Two implementations exist beside the scripted one in tests: backend/cuda and
// backend/sim.
type Driver interface {
	// CreateEvents fills dst with timing events, all or none.
	CreateEvents(dst []Event) error
	// DestroyEvents destroys events; a pending one is destroyed when it completes.
	DestroyEvents(events []Event) error
	// CreateStream makes a non-blocking stream for anchors and calibration.
	CreateStream() (Stream, error)
	// DestroyStream destroys a stream made by CreateStream.
	DestroyStream(s Stream) error
	// StreamID is the stream's identity, never given twice within a context. It
	// must not be called while the stream captures.
	StreamID(s Stream) (uint64, error)
	// Record asks whether s is capturing and, if not, records e on it.
	Record(e Event, s Stream) Recorded
	// Elapsed reads pairs in order until the first that is not complete. It
	// returns how many were read and the result that stopped it: Success when all
	// were read, NotReady, or the failure of pairs[n]. anchor 0 leaves
	// SinceAnchorMS unread. calls counts driver calls.
	Elapsed(anchor Event, pairs []Pair, out []Times) (n int, r Result, calls int)
	// Pending asks about one event: NotReady while pending, Success when complete,
	// another code when it was never recorded or cannot be asked about.
	Pending(e Event) Result
	// Since is from event a to event b in milliseconds, negative when b came first.
	Since(a, b Event) (ms float32, r Result)
	// Anchor records e on s and spins until it is complete, boundNS at the most.
	Anchor(e Event, s Stream, boundNS int64) AnchorTry
	// Capturing reports whether anything that the driver's binding knows of is
	// being captured in the context now.
	Capturing() bool
	// Spin enqueues a kernel that spins for cycles of the GPU's clock on s, for
	// calibration. A driver that has none returns ErrNoSpin.
	Spin(s Stream, cycles uint64) error
	// SpinPair records start, enqueues Spin and records end, in one crossing.
	SpinPair(s Stream, cycles uint64, p Pair) error
	// Device describes the context's device.
	Device() Device
}

// Device describes a context's device.
type Device struct {
	Name       string
	UUID       [16]byte
	MIG        bool
	Ordinal    int
	Capability int // compute capability, major*10 + minor
}
