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

// Modules is a handle on a GPU's loaded modules.
type Modules interface {
	// Names are the modules' names, sorted.
	Names() []string
	// Function is the driver's handle of a function (CUfunction).
	Function(module, function string) (uintptr, error)
	// Close gives the handle back. Closing twice does nothing.
	Close() error
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
	// Kernel looks up a kernel. It allocates; keep the handle. A failure is in the
	// audit of FailedLookups, a HasModule that says no is not.
	Kernel(module, function string) (Kernel, error)
	// FailedLookups are the kernels that were looked up in vain.
	FailedLookups() (failed []FailedLookup, more int)
	// KernelNTile is the width of a kernel's tile of output columns, which its module
	// publishes as the 32-bit global FUNCTION_n_tile; it was read at look-up. None,
	// or 0, is an error.
	KernelNTile(k Kernel) (uint32, error)
	// KernelCastsAToE4M3 reports whether a kernel casts its operand A to E4M3 without
	// a scale, as its module says with a 32-bit global FUNCTION_a_e4m3 that is not 0.
	KernelCastsAToE4M3(k Kernel) bool
	// Modules is a handle on the loaded modules, for callers that need the driver's
	// own. They are unloaded when it and the GPU are closed, whichever comes last.
	// Only CUDA has one; elsewhere, ErrNotSupported.
	Modules() (Modules, error)
	// OpCache is the GPU's own cache of kernels and scratch memory. Close empties it.
	OpCache() *OpCache

	// Launch enqueues a kernel. On armed steps it is timed. It does not allocate.
	Launch(k Kernel, l *Launch) error
	// LaunchUntyped is Launch with the addresses of the parameters in place of
	// l.Args, which must be empty. Their sizes are the driver's; where it does not
	// know them they have to point to Go memory, and the launch trace says that the
	// arguments are unknown. It allocates.
	LaunchUntyped(k Kernel, l *Launch, params []Param) error
	// DebugSyncKernels reports whether the backend waits after every launch that is
	// not captured, so that a kernel's fault is its own launch's error. It is read
	// once, from LANETRACE_DEBUG_SYNC_KERNELS, when the GPU is opened.
	DebugSyncKernels() bool

	// DefaultStream is a non-blocking stream of the backend's own. On CUDA the GPUs
	// that a process has opened on one device share it, as they share the context.
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
	// CopyHtoDAsyncRetained enqueues a copy of src, which must stay unchanged until
	// the next Synchronize of s, or blocking copy on it. Until then the backend keeps
	// src where it is, whoever else forgets it. In a capture src must be from
	// AllocHostPinned and live as long as the graph.
	CopyHtoDAsyncRetained(dst DevicePtr, src []byte, s Stream) error
	// CopyDtoHAsync enqueues a copy to dst, which must not be touched until the next
	// Synchronize of s, or blocking copy on it. Otherwise like CopyHtoDAsyncRetained.
	CopyDtoHAsync(dst []byte, src DevicePtr, s Stream) error
	// CopyDtoD2DAsync enqueues a copy of height rows of width bytes, which lie a
	// pitch apart, width or more.
	CopyDtoD2DAsync(dst DevicePtr, dstPitch int, src DevicePtr, srcPitch, width, height int, s Stream) error
	// CopyDtoHOnStream is ordered after the work on s and returns when done.
	CopyDtoHOnStream(dst []byte, src DevicePtr, s Stream) error
	CopyDtoDAsync(dst, src DevicePtr, bytes int, s Stream) error
	Memset(p DevicePtr, value byte, bytes int) error
	MemsetAsync(p DevicePtr, value byte, bytes int, s Stream) error

	// AllocHostPinned allocates host memory for copies: page-locked where there is
	// such a thing, and on a border of 64 bytes. It is not on the ledger, which is
	// the device's. FreeHostPinned takes it back, whole: another length is an error.
	AllocHostPinned(bytes int) ([]byte, error)
	FreeHostPinned(b []byte) error
	// HostPtrToDevice is the address under which kernels see memory of
	// AllocHostPinned, or a part of it. Only CUDA has one; elsewhere, ErrNotSupported.
	HostPtrToDevice(b []byte) (DevicePtr, error)
	// BindThread makes the GPU's context the calling thread's, for calls of another
	// library's into the driver: lock the goroutine to its thread first. Calls of
	// this interface do not need it.
	BindThread() error

	// TotalMemory is the device's memory in bytes, DeviceFreeMemory what the driver
	// says is free of it. FreeMemory is what can be allocated: the same, or on an
	// integrated GPU the host's available memory where that is more.
	TotalMemory() (int64, error)
	FreeMemory() (int64, error)
	DeviceFreeMemory() (int64, error)
	// SMCount is the number of streaming multiprocessors.
	SMCount() (int, error)
	// Name is the device's name.
	Name() string

	// Close drains telemetry, unloads modules and releases the context. Live
	// handles are invalid afterwards.
	Close() error
}
