package spanring

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Errors of readers, told apart with errors.Is.
var (
	// ErrNotRing: the file has no ring's magic (yet, or at all).
	ErrNotRing = errors.New("not a ring file")
	// ErrVersion: a ring of a layout that this reader does not know.
	ErrVersion = errors.New("ring layout version not supported")
	// ErrCorrupt: sizes or offsets that cannot be.
	ErrCorrupt = errors.New("corrupt ring file")
	// ErrTruncated: the file lost pages under the reader.
	ErrTruncated = errors.New("ring file truncated while it was read")
	// ErrClosed: the reader was closed.
	ErrClosed = errors.New("ring reader closed")
)

// VersionError says which layout a file has. It is ErrVersion.
type VersionError struct {
	Path    string
	Version uint32
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("ring %s has layout version %d, this reader knows %d: use the lanetrace release of the engine", e.Path, e.Version, LayoutVersion)
}

// Is reports whether target is ErrVersion.
func (e *VersionError) Is(target error) bool { return target == ErrVersion }

// holeWait is how long a reader waits for a sequence number that was handed out
// but not published, before it counts it lost.
const holeWait = time.Second

// ReaderOptions say where a reader begins.
type ReaderOptions struct {
	// FromSeq is the first sequence number to read. What lies before it, and what
	// had already been overwritten, counts as missed before attach. 0 reads all
	// that the ring still holds.
	FromSeq uint64
	// FromNow starts behind what is already in the log; FromSeq is ignored.
	FromNow bool
}

// Account is a reader's side of the loss account, in sequence numbers. Whenever
// nothing is moving and holes have had their second:
//
//	published = received + lost + missed before attach
type Account struct {
	Published uint64 // handed out, as of the last Poll
	Received  uint64
	Lost      uint64 // Overwritten + Holes
	Missed    uint64 // before attach
	Pending   uint64 // holes still waited for, and entries not yet read

	Overwritten uint64 // their place showed a later one
	Holes       uint64 // never published: given up, or the producer died writing
}

// Reader reads one ring. Its methods may be called from several goroutines; they
// take a lock. It never writes to the ring, and a truncated or hostile file costs
// an error, never a crash.
type Reader struct {
	mu   sync.Mutex
	m    memory
	fd   int
	path string
	geo  Geometry
	info Info

	base, mask uint64 // first sequence number ever wanted, log mask
	next       uint64 // next sequence number to look at
	holes      []hole // in order of sequence
	acc        Account
	dead       bool
	closed     bool
	heap       bool
	broken     error
}

type hole struct {
	seq   uint64
	since int64 // the caller's clock, ns
}

// Open maps the ring at path read-only. It fails with ErrNotRing, ErrVersion or
// ErrCorrupt for a file that is no ring, has another layout, or cannot be right.
func Open(path string, o ReaderOptions) (*Reader, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open ring %s: %w", path, err)
	}
	r, err := openFD(fd, path, o)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return r, nil
}

func openFD(fd int, path string, o ReaderOptions) (*Reader, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat ring %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%w: %s is no regular file", ErrNotRing, path)
	}
	if st.Size < HeaderSize {
		return nil, fmt.Errorf("%w: %s has %d bytes", ErrNotRing, path, st.Size)
	}
	if st.Size > MaxFileBytes {
		return nil, fmt.Errorf("%w: %s has %d bytes, at most %d are read", ErrCorrupt, path, st.Size, MaxFileBytes)
	}
	b, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map ring %s: %w", path, err)
	}
	r := &Reader{fd: fd, path: path, m: newMemory(b)}
	if err := r.attach(o); err != nil {
		unix.Munmap(b)
		return nil, err
	}
	return r, nil
}

// NewHeapReader reads a ring made with NewHeap.
func NewHeapReader(w *Writer, o ReaderOptions) (*Reader, error) {
	return newMemoryReader(w.m, o)
}

// NewBytesReader reads a copy of a ring file's bytes, as a recording or a fuzzer
// holds it. The producer counts as dead.
func NewBytesReader(b []byte, o ReaderOptions) (*Reader, error) {
	if len(b) < HeaderSize {
		return nil, fmt.Errorf("%w: %d bytes", ErrNotRing, len(b))
	}
	m := heapMemory(int64(len(b)))
	copy(m.b, b)
	r, err := newMemoryReader(m, o)
	if err != nil {
		return nil, err
	}
	r.dead = true
	return r, nil
}

func newMemoryReader(m memory, o ReaderOptions) (*Reader, error) {
	r := &Reader{fd: -1, path: "memory", m: m, heap: true}
	if err := r.attach(o); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *Reader) attach(o ReaderOptions) error {
	return r.guard(func() error {
		geo, err := parseHeader(r.m, r.path)
		if err != nil {
			return err
		}
		r.geo, r.mask = geo, uint64(geo.LogEntries)-1
		r.info = parseInfo(r.m)
		head := r.m.load(offHead)
		from := o.FromSeq
		if o.FromNow || from > head {
			from = head
		}
		oldest := uint64(0)
		if head > uint64(geo.LogEntries) {
			oldest = head - uint64(geo.LogEntries)
		}
		r.next = max(from, oldest)
		r.base = r.next
		r.acc.Missed = r.next
		r.acc.Published = head
		return nil
	})
}

// guard runs f with faults in the mapping turned into an error. A file that was
// cut under the mapping answers reads beyond its end with SIGBUS. The caller
// holds no lock that f takes.
func (r *Reader) guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			e, ok := p.(interface{ Addr() uintptr })
			if !ok {
				panic(p)
			}
			_ = e.Addr()
			err = fmt.Errorf("%w: %s", ErrTruncated, r.path)
			r.broken = err
		}
	}()
	return f()
}

// parseHeader checks the header and every size in it against the backing.
func parseHeader(m memory, path string) (Geometry, error) {
	if m.load(offMagic) != magic {
		return Geometry{}, fmt.Errorf("%w: %s", ErrNotRing, path)
	}
	if v := m.half(offVersion, 0); v != LayoutVersion {
		return Geometry{}, &VersionError{Path: path, Version: v}
	}
	geo := Geometry{}
	for _, f := range []struct {
		off int64
		dst *int
	}{{offLogEntries, &geo.LogEntries}, {offSlotCount, &geo.Slots}, {offNameBytes, &geo.NameBytes}, {offAllocCount, &geo.Allocs}} {
		v := m.load(f.off)
		if v > MaxFileBytes {
			return Geometry{}, fmt.Errorf("%w: %s: size %d", ErrCorrupt, path, v)
		}
		*f.dst = int(v)
	}
	if err := geo.Check(); err != nil {
		return Geometry{}, fmt.Errorf("%w: %s: %w", ErrCorrupt, path, err)
	}
	if m.half(offVersion, 1) != HeaderSize || m.load(offFileBytes) != uint64(geo.FileBytes()) || int64(len(m.b)) < geo.FileBytes() ||
		m.load(offLogOff) != uint64(geo.logOff()) || m.load(offSlotOff) != uint64(geo.slotOff()) ||
		m.load(offNameOff) != uint64(geo.nameOff()) || m.load(offAllocOff) != uint64(geo.allocOff()) {
		return Geometry{}, fmt.Errorf("%w: %s: offsets and sizes contradict each other (file has %d bytes)", ErrCorrupt, path, len(m.b))
	}
	return geo, nil
}

func parseInfo(m memory) Info {
	var i Info
	copy(i.RunID[:], m.loadBytes(nil, offRunID, 16))
	i.PID = m.half(offPID, 0)
	i.PIDNamespace = m.load(offPIDNS)
	i.StartTicks = m.load(offStartTicks)
	i.CreatedUnixNS = int64(m.load(offMadeUnixNS))
	i.CreatedMonoNS = int64(m.load(offMadeMonoNS))
	i.Executable = m.text(offExe, 64)
	i.Service = m.text(offService, 128)
	i.Rank = Rank{
		int32(m.half(offRank, 0)), int32(m.half(offRank, 1)),
		int32(m.half(offRank+8, 0)), int32(m.half(offRank+8, 1)),
	}
	i.Producer = m.text(offProducer, 32)
	refreshInfo(m, &i)
	return i
}

// refreshInfo reads what a producer changes while it runs.
func refreshInfo(m memory, i *Info) {
	i.GPUUUID = m.text(offGPUUUID, 48)
	i.GPUName = m.text(offGPUName, 64)
	st := m.load(offState)
	i.Level = uint8(st)
	i.Clean = st&stateClean != 0
	i.KernelEvery, i.ArmedRequested = m.half(offArming, 0), m.half(offArming, 1)
}

// locked runs f under the reader's lock and guard, unless the reader is closed
// or its file broke before.
func (r *Reader) locked(f func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	if r.broken != nil {
		return r.broken
	}
	return r.guard(f)
}

// Path is the ring's file.
func (r *Reader) Path() string { return r.path }

// Geometry is the ring's.
func (r *Reader) Geometry() Geometry { return r.geo }

// Info says who produces the ring, with what has changed since it was made.
func (r *Reader) Info() (Info, error) {
	var i Info
	err := r.locked(func() error {
		refreshInfo(r.m, &r.info)
		i = r.info
		return nil
	})
	return i, err
}

// Alive reports whether the producer still holds the ring's lock. It also takes
// back what a dead producer left half-written: from then on no hole is waited
// for. A heap ring is alive until MarkDead.
func (r *Reader) Alive() (bool, error) {
	alive := false
	err := r.locked(func() error {
		if r.dead || r.heap {
			alive = !r.dead
			return nil
		}
		var err error
		alive, err = fdLocked(r.fd)
		return err
	})
	return alive, err
}

// MarkDead tells the reader that nothing more will be written: the next Poll
// counts every unpublished sequence number as lost.
func (r *Reader) MarkDead() {
	r.mu.Lock()
	r.dead = true
	r.mu.Unlock()
}

// Poll copies published entries into dst, in order of sequence except that a
// hole filled late comes when it is filled, and returns how many. now is any
// clock in ns that the caller keeps to; holes are given holeWait of it. 0 entries
// mean that there is nothing to read now. It does not wait and does not allocate
// unless holes grow.
func (r *Reader) Poll(dst []Entry, now int64) (n int, err error) {
	err = r.locked(func() error {
		n = r.poll(dst, now)
		return nil
	})
	return n, err
}

func (r *Reader) poll(dst []Entry, now int64) int {
	head := r.m.load(offHead)
	if head < r.acc.Published { // no producer counts backwards
		head = r.acc.Published
	}
	r.acc.Published = head
	size := uint64(r.geo.LogEntries)
	n := r.pollHoles(dst, head, now)
	if head > r.next && head-r.next > size {
		skip := head - size - r.next
		r.acc.Overwritten += skip
		r.next += skip
	}
	for r.next < head && n < len(dst) {
		seq := r.next
		switch r.take(seq, &dst[n]) {
		case taken:
			n++
			r.acc.Received++
		case overtaken:
			r.acc.Overwritten++
		case absent:
			if r.dead {
				r.acc.Holes++
			} else {
				r.holes = append(r.holes, hole{seq, now})
			}
		}
		r.next++
	}
	r.acc.Pending = uint64(len(r.holes)) + (head - r.next)
	r.acc.Lost = r.acc.Overwritten + r.acc.Holes
	return n
}

// pollHoles looks at the holes again, oldest first.
func (r *Reader) pollHoles(dst []Entry, head uint64, now int64) int {
	if len(r.holes) == 0 {
		return 0
	}
	n, kept := 0, r.holes[:0]
	for i, h := range r.holes {
		if n == len(dst) {
			kept = append(kept, r.holes[i:]...)
			break
		}
		switch r.take(h.seq, &dst[n]) {
		case taken:
			n++
			r.acc.Received++
		case overtaken:
			r.acc.Overwritten++
		case absent:
			if r.dead || now-h.since >= int64(holeWait) {
				r.acc.Holes++
			} else {
				kept = append(kept, h)
			}
		}
	}
	r.holes = kept
	return n
}

type outcome uint8

const (
	taken outcome = iota
	overtaken
	absent
)

// take copies the entry seq if it is there: the reader's side of the protocol in
// the package comment.
func (r *Reader) take(seq uint64, e *Entry) outcome {
	p := r.m.words8(r.geo.logOff() + int64(seq&r.mask)*EntrySize)
	want := published(seq)
	w := atomic.LoadUint64(&p[0])
	if w != want {
		if w > want|wordClaimed {
			return overtaken
		}
		return absent
	}
	e.Seq = seq
	for i := range e.Words {
		e.Words[i] = atomic.LoadUint64(&p[i+1])
	}
	if atomic.LoadUint64(&p[0]) != want {
		return overtaken
	}
	return taken
}

// Account is the reader's account as of the last Poll.
func (r *Reader) Account() Account {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.acc
}

// NextSeq is the first sequence number not looked at yet: what a restarted
// reader passes as FromSeq. Holes still waited for lie before it.
func (r *Reader) NextSeq() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next
}

// Name looks up a name; ok is false for 0 and for what cannot be a name.
func (r *Reader) Name(id NameID) (n Name, ok bool) {
	_ = r.locked(func() error {
		n, ok = readName(r.m, r.geo.nameOff(), int64(r.geo.NameBytes), id)
		return nil
	})
	return n, ok
}

// Counters copies the producer's counters.
func (r *Reader) Counters() (c Counters, err error) {
	err = r.locked(func() error {
		c = loadCounters(r.m)
		return nil
	})
	return c, err
}

// Contexts returns the context records in use. A record that its writer keeps
// changing is left out this time.
func (r *Reader) Contexts() (cs []ContextState, err error) {
	err = r.locked(func() error {
		for i := range MaxContexts {
			off := int64(offContexts + i*contextSize)
			for range 8 {
				seq := r.m.load(off)
				if seq == 0 {
					break
				}
				var w [contextSize/8 - 1]uint64
				for j := range w {
					w[j] = r.m.load(off + 8 + int64(j)*8)
				}
				if seq&1 != 0 || r.m.load(off) != seq {
					continue
				}
				if c, ok := parseContext(i, &w); ok {
					cs = append(cs, c)
				}
				break
			}
		}
		return nil
	})
	return cs, err
}

// SlotEntry is a slot that is not free.
type SlotEntry struct {
	Index int
	State SlotState
	Slot  Slot
}

// Busy returns the slots that are not free: what is in flight, in an engine that
// runs, hangs or is dead. A slot that changes while it is read is left out.
func (r *Reader) Busy() (out []SlotEntry, err error) {
	err = r.locked(func() error {
		for i := range r.geo.Slots {
			p := r.m.words8(r.geo.slotOff() + int64(i)*SlotSize)
			w := SlotWord(atomic.LoadUint64(&p[0]))
			if w.State() == SlotFree {
				continue
			}
			s := parseSlot(p)
			if SlotWord(atomic.LoadUint64(&p[0])) == w {
				out = append(out, SlotEntry{i, w.State(), s})
			}
		}
		return nil
	})
	return out, err
}

// Snapshot copies the whole ring file, as a flight record keeps it.
func (r *Reader) Snapshot() (b []byte, err error) {
	err = r.locked(func() error {
		b = r.m.loadBytes(make([]byte, 0, len(r.m.b)), 0, len(r.m.b)&^7)
		return nil
	})
	return b, err
}

// Close unmaps the ring. Methods called afterwards return ErrClosed. Closing
// twice does nothing.
func (r *Reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	if r.heap {
		return nil
	}
	if err := errors.Join(unix.Munmap(r.m.b), unix.Close(r.fd)); err != nil {
		return fmt.Errorf("close ring %s: %w", r.path, err)
	}
	return nil
}

// Exists reports whether the reader's file still has its name.
func (r *Reader) Exists() bool {
	if r.heap {
		return true
	}
	_, err := os.Lstat(r.path)
	return err == nil
}
