// Package backend is the interface through which an engine uses a GPU, with
// telemetry built in: launches made through it are timed on armed steps, and
// streams are known by identity.
//
// backend/cuda is the CUDA driver, backend/sim a GPU in pure Go for machines
// that have none. Engines written against GPU run on either.
package backend

import (
	"errors"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/launchtrace"
	"github.com/lanetrace/lanetrace/ledger"
)

// Handles of the backend. The zero Stream is the driver's own default stream,
// which the streams made here do not wait for; every other zero handle is none.
type (
	Stream    = cudaevents.Stream
	Event     = cudaevents.Event
	DevicePtr uint64
	Kernel    uint64
	Graph     uint64
)

// Dim3 is a grid's or block's extent in x, y and z.
type Dim3 [3]uint32

// ErrNotSupported is wrapped by what a backend cannot do.
var ErrNotSupported = errors.New("not supported by this backend")

// Launch is one kernel launch. Args may be reused by the caller as soon as
// GPU.Launch has returned.
type Launch struct {
	Grid, Block Dim3
	SharedBytes uint32
	Stream      Stream
	Args        []Arg
}

// Arg is one kernel argument: a value of 1 to 8 bytes.
type Arg struct {
	Bits uint64 // little-endian value
	Size uint8  // 1, 2, 4 or 8
}

// GPU is one device as an engine sees it. Its methods may be called from any
// goroutine; each binds the right context itself. Methods whose name ends in
// Async, Launch, LaunchGraph, RecordEvent and StreamWaitEvent only enqueue.
// Errors say what was tried and carry the driver's code.
type GPU interface {
	// Telemetry is the device's side of the hub; nil when there is none, which
	// every method of lanetrace.Device accepts.
	Telemetry() *lanetrace.Device

	// LoadModule loads PTX or a cubin under a name, once. The sim looks name up
	// among the modules that were registered with it and ignores image.
	LoadModule(name string, image []byte) error
	// HasModule reports whether a module of that name is loaded.
	HasModule(name string) bool
	// Kernel looks up a kernel. It allocates; keep the handle.
	Kernel(module, function string) (Kernel, error)

	// Launch enqueues a kernel. On armed steps it is timed. It does not allocate.
	Launch(k Kernel, l *Launch) error

	// DefaultStream is a non-blocking stream of the backend's own.
	DefaultStream() Stream
	CreateStream() (Stream, error)
	DestroyStream(s Stream) error
	// Synchronize blocks until all work queued on s is complete.
	Synchronize(s Stream) error

	// CreateEvent makes an event for ordering; it carries no time stamp.
	CreateEvent() (Event, error)
	DestroyEvent(e Event) error
	RecordEvent(e Event, s Stream) error
	StreamWaitEvent(s Stream, e Event) error
	// EventQuery reports whether the work before e is complete. It never blocks.
	EventQuery(e Event) (bool, error)
	EventSynchronize(e Event) error

	// StreamIsCapturing reports whether s is being captured into a graph; a status
	// that cannot be had counts as capturing.
	StreamIsCapturing(s Stream) bool
	BeginCapture(s Stream) error
	// EndCapture ends the capture and returns the instantiated graph.
	EndCapture(s Stream) (Graph, error)
	// AbortCapture ends a capture, if there is one, and discards it.
	AbortCapture(s Stream)
	LaunchGraph(g Graph, s Stream) error
	DestroyGraph(g Graph) error

	// LaunchTrace records what regions of the engine enqueue: kernels, asynchronous
	// memsets and copies within the device, in captures too.
	LaunchTrace() *launchtrace.Recorder

	// Alloc allocates device memory and puts it on the ledger, under the first
	// caller outside the library. 0 bytes is an error.
	Alloc(bytes int) (DevicePtr, error)
	// AllocManaged is Alloc for memory that migrates between host and device; where
	// there is no such thing it is plain memory.
	AllocManaged(bytes int) (DevicePtr, error)
	// Free frees what Alloc and AllocManaged gave; freeing 0 does nothing. What is
	// not on the ledger is the driver's error, and counted.
	Free(p DevicePtr) error
	// AllocArena allocates memory that the engine divides up itself: off the ledger,
	// with a total of its own. FreeArena frees it.
	AllocArena(bytes int) (DevicePtr, error)
	FreeArena(p DevicePtr) error

	// The ledger's figures, in bytes and numbers of allocations. Not tracked is not
	// 0. They make no driver call.
	LiveBytes() (bytes int64, tracked bool)
	LiveCount() (n int64, tracked bool)
	PeakBytes() (bytes int64, tracked bool)
	ArenaBytes() (bytes int64, tracked bool)
	LiveAllocations() (live []ledger.Allocation, tracked bool)
	ChunkSlackBytes() (bytes int64, tracked bool)
	RoundingSlackBytes() (bytes int64, tracked bool)
	// AllocReport is the total, both slacks, then up to topN call sites that hold at
	// least minMiB, largest first, the rest in one line, and up to topN files.
	AllocReport(topN, minMiB int) string
	LedgerProbe() ledger.Probe
	// SweepUnreleased frees all that is on the ledger, warns once if there was
	// anything, and returns how many allocations that were. Close sweeps.
	SweepUnreleased() (n int, err error)

	// ScanRedzones waits for the work on every stream that is not being captured,
	// reads every guard band back and returns how many hold another byte than their
	// fill. Each is logged, counted and filled anew. Without guard bands it is 0 and
	// does nothing.
	ScanRedzones() (violated int, err error)
	// PoisonRedzones fills the guard bands of the allocations with an index from lo
	// up to, not including, hi with 0xEE and all others with 0x00: where output
	// changes with the range, narrowing it finds the allocation that is read past
	// its end. Without guard bands it does nothing.
	PoisonRedzones(lo, hi uint64) error

	// Copies and memsets without a stream are ordered behind the work on
	// DefaultStream alone, and are done when they return. On a capturing stream
	// what has to wait is refused and the capture unharmed. Of 0 bytes they do
	// nothing.
	CopyHtoD(dst DevicePtr, src []byte) error
	CopyDtoH(dst []byte, src DevicePtr) error
	CopyDtoD(dst, src DevicePtr, bytes int) error
	// CopyHtoDAsync enqueues a copy; src may be reused as soon as it returns. It
	// may wait for earlier ones where much is staged.
	CopyHtoDAsync(dst DevicePtr, src []byte, s Stream) error
	// CopyDtoHOnStream is ordered after the work on s and returns when done.
	CopyDtoHOnStream(dst []byte, src DevicePtr, s Stream) error
	CopyDtoDAsync(dst, src DevicePtr, bytes int, s Stream) error
	Memset(p DevicePtr, value byte, bytes int) error
	MemsetAsync(p DevicePtr, value byte, bytes int, s Stream) error

	// TotalMemory and FreeMemory are the driver's figures in bytes.
	TotalMemory() (int64, error)
	FreeMemory() (int64, error)
	// SMCount is the number of streaming multiprocessors.
	SMCount() (int, error)
	// Name is the device's name.
	Name() string

	// Close drains telemetry, unloads modules and releases the context. Live
	// handles are invalid afterwards.
	Close() error
}
