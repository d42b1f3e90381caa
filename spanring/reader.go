package spanring

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Errors of readers, told apart with errors.Is.
var (
	// ErrNotRing: the file has no ring's magic (yet, or at all).
	ErrNotRing = errors.New("not a ring file")
	// ErrVersion: a ring of a layout that this reader does not know.
	ErrVersion = errors.New("ring layout version not supported")
	// ErrCorrupt: sizes, offsets or a head that cannot be.
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

// ReaderOptions say where a reader begins.
type ReaderOptions struct {
	// FromSeq is the first sequence number to read. What lies before it, and what
	// had already been overwritten, counts as missed before attach. 0 reads all
	// that the ring still holds.
	FromSeq uint64
	// FromNow starts behind what is already in the log; FromSeq is ignored.
	FromNow bool
}

// Reader reads one ring. Its methods may be called from several goroutines; they
// take a lock. It never writes to the ring, and a truncated or hostile file costs
// an error, never a crash: once one was found, every method returns it. Memory
// and the work of each call are bounded by the file's size.
type Reader struct {
	mu   sync.Mutex
	m    memory
	fd   int
	path string
	geo  Geometry
	mask uint64 // LogEntries - 1
	heap bool   // no file behind it

	info   Info
	next   uint64 // next sequence number to look at
	holes  []hole // before next, in order of sequence, at most maxHoles
	acc    Account
	dead   bool // nothing more will be published
	closed bool
	broken error // what the file was found to be
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
		_ = unix.Munmap(b)
		return nil, err
	}
	return r, nil
}

// NewHeapReader reads a ring made with NewHeap, in place.
func NewHeapReader(w *Writer, o ReaderOptions) (*Reader, error) {
	return newMemoryReader(w.m, o)
}

// NewBytesReader reads a copy of a ring file's bytes, such as Snapshot gives. The
// producer counts as dead.
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
		r.info = parseInfo(r.m, r.geo)
		head, err := r.loadHead()
		if err != nil {
			return err
		}
		from := o.FromSeq
		if o.FromNow || from > head {
			from = head
		}
		oldest := uint64(0)
		if head > uint64(geo.LogEntries) {
			oldest = head - uint64(geo.LogEntries)
		}
		r.next = max(from, oldest)
		r.acc.Missed = r.next
		r.acc.Published = head
		return nil
	})
}

// guard runs f with faults in the mapping turned into ErrTruncated: a file that
// was cut under the mapping answers reads beyond its end with SIGBUS. Faults
// elsewhere are not the file's and go on.
func (r *Reader) guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case outside:
			err = r.fail(fmt.Errorf("%w: %s: %w", ErrCorrupt, r.path, p))
		case interface{ Addr() uintptr }:
			if !r.m.holds(p.Addr()) {
				panic(p)
			}
			err = r.fail(fmt.Errorf("%w: %s", ErrTruncated, r.path))
		default:
			panic(p)
		}
	}()
	return f()
}

// fail keeps what the file was found to be, and counts what was pending as lost.
func (r *Reader) fail(err error) error {
	r.broken = err
	r.holes, r.next = nil, r.acc.Published
	a := &r.acc
	a.Unreadable = a.Published - a.Missed - a.Received - a.Overwritten - a.Holes
	return err
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

func parseInfo(m memory, geo Geometry) Info {
	var i Info
	copy(i.RunID[:], m.loadBytes(nil, offRunID, 16))
	i.PID = m.half(offPID, 0)
	i.PIDNamespace = m.load(offPIDNS)
	i.StartTicks = m.load(offStartTicks)
	i.CreatedUnixNS = int64(m.load(offMadeUnixNS))
	i.CreatedMonoNS = int64(m.load(offMadeMonoNS))
	i.Executable = m.text(offExe, exeBytes)
	i.Service = m.text(offService, serviceBytes)
	i.Rank = Rank{
		int32(m.half(offRank, 0)), int32(m.half(offRank, 1)),
		int32(m.half(offRank+8, 0)), int32(m.half(offRank+8, 1)),
	}
	i.Producer = m.text(offProducer, producerBytes)
	refreshInfo(m, geo, &i)
	return i
}

// refreshInfo reads what a producer changes while it runs.
func refreshInfo(m memory, geo Geometry, i *Info) {
	i.GPUUUID = m.text(offGPUUUID, gpuUUIDBytes)
	i.GPUName = m.text(offGPUName, gpuNameBytes)
	n, _ := readName(m, geo.nameOff(), int64(geo.NameBytes), NameID(m.half(offModel, 0)))
	i.Model = n.Text
	st := m.load(offState)
	i.Level = uint8(st)
	i.Clean = st&stateClean != 0
	i.KernelEvery, i.ArmedRequested = m.half(offArming, 0), m.half(offArming, 1)
	i.LaneEvery = m.half(offLanes, 0)
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
		refreshInfo(r.m, r.geo, &r.info)
		i = r.info
		return nil
	})
	return i, err
}

// Alive reports whether the producer still holds the ring's lock. Once it does
// not, it never will again, and no hole is waited for any more: entries may still
// be there to be read, but none will be published. A heap ring is alive until
// MarkDead.
func (r *Reader) Alive() (bool, error) {
	alive := false
	err := r.locked(func() error {
		if r.dead || r.heap {
			alive = !r.dead
			return nil
		}
		var err error
		alive, err = fdLocked(r.fd)
		r.dead = err == nil && !alive
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

// Name looks up a name; ok is false for 0 and for what cannot be a name.
func (r *Reader) Name(id NameID) (n Name, ok bool) {
	_ = r.locked(func() error {
		n, ok = readName(r.m, r.geo.nameOff(), int64(r.geo.NameBytes), id)
		return nil
	})
	return n, ok
}

// Counters copies the producer's counters, one after the other.
func (r *Reader) Counters() (c Counters, err error) {
	err = r.locked(func() error {
		c = loadCounters(r.m)
		return nil
	})
	return c, err
}

// Contexts returns the context records in use. A record that its writer keeps
// changing is left out this time; one whose writer died in the middle of a change
// is left out for good.
func (r *Reader) Contexts() (cs []ContextState, err error) {
	err = r.locked(func() error {
		for i := range MaxContexts {
			if _, w, ok := loadContext(r.m, i); ok {
				if c, ok := parseContext(i, &w, r.geo); ok {
					cs = append(cs, c)
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return cs, nil
}

// loadContext reads context record i, in several tries while its writer changes
// it. ok is false for a record that was never written, or keeps changing.
func loadContext(m memory, i int) (seq uint64, w [contextSize/8 - 1]uint64, ok bool) {
	off := int64(offContexts + i*contextSize)
	for range 8 {
		if seq = m.load(off); seq == 0 {
			return 0, w, false
		}
		for j := range w {
			w[j] = m.load(off + 8 + int64(j)*8)
		}
		if seq&1 == 0 && m.load(off) == seq {
			return seq, w, true
		}
	}
	return seq, w, false
}

// SlotEntry is a slot that is not free.
type SlotEntry struct {
	Index int
	State SlotState
	Slot  Slot
}

// Busy returns the slots that are not free: what is in flight, in an engine that
// runs, hangs or is dead. A slot that changes while it is read is left out, and so
// is one whose owner has taken it but not yet written what it holds.
func (r *Reader) Busy() (out []SlotEntry, err error) {
	err = r.locked(func() error {
		for i := range r.geo.Slots {
			p := r.m.words8(r.geo.slotOff() + int64(i)*SlotSize)
			w := SlotWord(atomic.LoadUint64(&p[0]))
			if w.State() == SlotFree {
				continue
			}
			s, gen := parseSlot(p)
			if gen != w.Generation() || !s.Kind.IsSpan() || s.Context >= MaxContexts {
				continue
			}
			if SlotWord(atomic.LoadUint64(&p[0])) == w {
				out = append(out, SlotEntry{i, w.State(), s})
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
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
