package launchtrace

import (
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/lanetrace/lanetrace/spanring"
)

// Options say how a recorder records. The zero value of a field takes its default.
type Options struct {
	// Ring takes an entry for each execution, and counts. Default: none.
	Ring *spanring.Writer
	// Publish reports whether the ring is told of executions, and counts, now, as the
	// level says. It is asked each time. Default: always.
	Publish func() bool
	// Logger gets a line for an execution that differs from the one before, at most
	// one a second for each region; a line says how many were left out before it.
	// Default: none.
	Logger *slog.Logger
	// Resolve finds the allocations that arguments lie in. Default: none, and
	// addresses are numbers.
	Resolve Resolver
	// BySite makes the same place in another allocation of the same site no
	// difference.
	BySite bool
	// MaxBytes bounds what recorded operations take, of all regions together, from
	// 256 KiB to 32 GiB, in steps of 64 KiB. An operation takes 48 bytes and 8 for
	// each argument; a region keeps up to three executions. Default 64 MiB.
	MaxBytes int64
	// MaxRegions bounds the regions. Default 64.
	MaxRegions int
}

const (
	defaultMaxBytes   = 64 << 20
	minMaxBytes       = 256 << 10
	maxMaxBytes       = 8 << 32 // an operation's place in a trace is 32 bits of words
	defaultMaxRegions = 64
)

// Recorder records the operations of one GPU. Its methods may be called from any
// goroutine; a nil Recorder does nothing.
type Recorder struct {
	// on is how many regions record: what every launch loads.
	on atomic.Uint32

	o       Options
	dropped atomic.Uint64

	mu      sync.Mutex
	open    []*Region // those that record
	names   nameTable
	regions map[string]*Region
	free    [][]uint64 // chunks that nobody uses
	made    int        // chunks there are
	most    int
}

// New makes a recorder that records nothing yet.
func New(o Options) *Recorder {
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultMaxBytes
	}
	o.MaxBytes = min(max(o.MaxBytes, minMaxBytes), maxMaxBytes)
	if o.MaxRegions <= 0 {
		o.MaxRegions = defaultMaxRegions
	}
	return &Recorder{o: o, names: newNameTable(), regions: make(map[string]*Region), most: int(o.MaxBytes / chunkBytes)}
}

// On reports whether something is being recorded: one relaxed load. What a caller
// must do to have the arguments as words, it does only then.
func (r *Recorder) On() bool { return r != nil && r.on.Load() != 0 }

// Name says what a function's handle is called from now on, "" for nothing. A
// backend calls it when a kernel was looked up. A name over 1 KiB is cut. What
// was recorded before keeps its name. It takes a lock, and allocates for a new
// handle or name; beyond 65,536 of either, which is counted, a handle has no name.
func (r *Recorder) Name(handle uint64, name string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	ok := r.names.set(handle, name)
	r.mu.Unlock()
	if !ok {
		r.count(spanring.CtrNamesFull, 1)
	}
}

// Kernel records a kernel launch on a stream, for each region that covers it. The
// arguments are copied. It takes a lock and does not allocate, but for memory that
// the recorder does not have yet.
func (r *Recorder) Kernel(stream, fn uint64, grid, block [3]uint32, sharedBytes uint32, args []uint64) {
	if r.On() {
		h := headOf(KindKernel, fn, grid, block, sharedBytes)
		if len(args) > MaxArgs {
			h[0], args = h[0]|flagArgsUnknown, nil
		}
		r.record(stream, &h, args)
	}
}

// KernelArgsUnknown records a launch whose arguments' sizes cannot be had.
func (r *Recorder) KernelArgsUnknown(stream, fn uint64, grid, block [3]uint32, sharedBytes uint32) {
	if r.On() {
		h := headOf(KindKernel, fn, grid, block, sharedBytes)
		h[0] |= flagArgsUnknown
		r.record(stream, &h, nil)
	}
}

// Memset records an asynchronous memset of bytes bytes.
func (r *Recorder) Memset(stream, dst uint64, value byte, bytes uint64) {
	if r.On() {
		h := headOf(KindMemset, 0, [3]uint32{}, [3]uint32{}, 0)
		a := [...]uint64{dst, uint64(value), bytes}
		r.record(stream, &h, a[:])
	}
}

// Copy records a copy of bytes bytes within the device.
func (r *Recorder) Copy(stream, dst, src, bytes uint64) {
	if r.On() {
		h := headOf(KindCopy, 0, [3]uint32{}, [3]uint32{}, 0)
		a := [...]uint64{dst, src, bytes}
		r.record(stream, &h, a[:])
	}
}

// CopyRows records a copy within the device of rows of width bytes, which lie a
// pitch apart.
func (r *Recorder) CopyRows(stream, dst, dstPitch, src, srcPitch, width, height uint64) {
	if r.On() {
		h := headOf(KindCopy, 0, [3]uint32{}, [3]uint32{}, 0)
		a := [...]uint64{dst, src, width * height, dstPitch, srcPitch, width, height}
		r.record(stream, &h, a[:])
	}
}

func (r *Recorder) record(stream uint64, h *opHead, args []uint64) {
	lost := uint64(0)
	r.mu.Lock()
	named := false
	for _, g := range r.open {
		if !g.covers(stream) {
			continue
		}
		if !named && h[2] != 0 {
			h[1] |= uint64(r.names.byHandle[h[2]])
			named = true
		}
		// Behind an operation that found no room none is taken: what there is stays
		// the beginning.
		if g.cur.dropped > 0 || !g.cur.put(h, args, r.take) {
			g.cur.dropped++
			lost++
		}
	}
	r.mu.Unlock()
	if lost > 0 {
		r.dropped.Add(lost)
		r.count(spanring.CtrLaunchOpsDropped, lost)
	}
}

// take is a chunk that nobody uses, nil when there are as many as may be. The
// caller holds mu.
func (r *Recorder) take() []uint64 {
	if n := len(r.free); n > 0 {
		c := r.free[n-1]
		r.free = r.free[:n-1]
		return c
	}
	if r.made == r.most {
		return nil
	}
	r.made++
	return takeChunk()
}

// release takes back an execution's chunks. The caller holds mu.
func (r *Recorder) release(t *Trace) {
	if t != nil {
		r.free = append(r.free, t.chunks...)
		t.reset()
	}
}

// publishes reports whether the ring is written to now.
func (r *Recorder) publishes() bool {
	return r.o.Ring != nil && (r.o.Publish == nil || r.o.Publish())
}

func (r *Recorder) count(c spanring.Counter, n uint64) {
	if r.publishes() {
		r.o.Ring.Add(c, n)
	}
}

// Dropped is how many operations were not recorded for want of memory.
func (r *Recorder) Dropped() uint64 {
	if r == nil {
		return 0
	}
	return r.dropped.Load()
}

// MemoryBytes is what the recorder holds for operations, used or not.
func (r *Recorder) MemoryBytes() int64 {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return int64(r.made) * chunkBytes
}
