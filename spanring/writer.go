package spanring

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Options describe a ring to be made. Info's identity (run id, process, times)
// is filled in by Create; the caller sets Executable only to override it.
type Options struct {
	Geometry Geometry // zero fields take their defaults
	Info     Info
}

// Writer is a producer's side of a ring. All its methods may be called from many
// goroutines at once, and none waits for a reader. Those that are called on hot
// paths take no lock; interning a new name does, and so do context records and the
// table of allocations.
type Writer struct {
	m        memory
	log      int64
	mask     uint64
	head     *uint64
	counters *[NumCounters]uint64

	geo  Geometry
	info Info

	fd   atomic.Int32 // -1 with a heap backing and after Close
	path string

	names  nameTable
	allocs AllocTable

	ctxMu  sync.Mutex
	nCtx   int
	nSlots int

	closeOnce sync.Once
	closeErr  error
}

// Create makes a ring file in dir, which must exist and pass Dir.Check, and
// removes dead rings beyond the newest two. It is slow (it touches every page)
// and belongs at start-up. A full file system is an error here and never a
// SIGBUS later: the whole file is allocated first. (Cutting the file under its
// producer would be one: only its own user and root can.) What fails leaves
// nothing behind.
//
// # The lock
//
// The ring counts as alive while its open file description is locked. That ends
// with Close, or when the kernel has taken down the last descriptor and the last
// mapping of that description, however the process died:
//
//   - A child that has called exec holds neither: the descriptor is CLOEXEC.
//   - A child of fork holds no mapping (MADV_DONTFORK) but a copy of the
//     descriptor, and with it the lock, until it calls exec, ends, or closes it.
//     A program that forks without exec closes Writer.FD() in a child handler of
//     pthread_atfork; a Go program never forks so.
//   - A process that is dumping core, or whose other descriptors take long to
//     close (a GPU driver's), keeps the lock for that time.
//
// Readers ask for the lock without taking one.
func Create(dir Dir, o Options) (*Writer, error) {
	geo := o.Geometry.WithDefaults()
	if err := geo.Check(); err != nil {
		return nil, err
	}
	if err := dir.Check(); err != nil {
		return nil, err
	}
	dir.removeDead(keepDead)

	info, err := identify(o.Info)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir.Path, info.RunID.String()+Suffix)
	tmp := filepath.Join(dir.Path, "."+info.RunID.String()+Suffix+".tmp")
	fd, err := unix.Open(tmp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(dir.fileMode()))
	if err != nil {
		return nil, fmt.Errorf("make ring in %s: %w", dir.Path, err)
	}
	w, err := fill(fd, tmp, path, dir, geo, info)
	if err != nil {
		if uerr := unix.Unlink(tmp); uerr != nil {
			err = fmt.Errorf("%w; %s is left behind: %w", err, tmp, uerr)
		}
		unix.Close(fd)
		return nil, err
	}
	return w, nil
}

func fill(fd int, tmp, path string, dir Dir, geo Geometry, info Info) (*Writer, error) {
	// The lock comes before anything else, so that no other starting producer
	// takes the temporary for a leftover.
	lk := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lk); err != nil {
		return nil, fmt.Errorf("lock ring %s: %w", tmp, err)
	}
	// umask may have taken bits away.
	if err := unix.Fchmod(fd, uint32(dir.fileMode())); err != nil {
		return nil, fmt.Errorf("set mode of ring %s: %w", tmp, err)
	}
	if dir.Group >= 0 {
		if err := unix.Fchown(fd, -1, dir.Group); err != nil {
			return nil, fmt.Errorf("give ring %s to group %d: %w", tmp, dir.Group, err)
		}
	}
	size := geo.FileBytes()
	if err := reserve(fd, size); err != nil {
		return nil, fmt.Errorf("reserve %d bytes for ring in %s: %w", size, dir.Path, err)
	}
	b, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map ring %s: %w", tmp, err)
	}
	// A child of fork (the cgo world has them) must neither keep nor write it.
	if err := unix.Madvise(b, unix.MADV_DONTFORK); err != nil {
		_ = unix.Munmap(b)
		return nil, fmt.Errorf("keep ring %s from children: %w", tmp, err)
	}
	w := newWriter(newMemory(b), geo, info)
	w.path = path
	w.fd.Store(int32(fd))
	if err := unix.Rename(tmp, path); err != nil {
		_ = unix.Munmap(b)
		return nil, fmt.Errorf("put ring in place as %s: %w", path, err)
	}
	return w, nil
}

// reserve allocates size bytes of the file. A signal makes tmpfs undo the whole
// of the call that it meets, so that under a profiler's signals one call for a
// large file might never end: each call asks for little.
func reserve(fd int, size int64) error {
	const step = 1 << 20
	for off := int64(0); off < size; {
		n := min(step, size-off)
		switch err := unix.Fallocate(fd, 0, off, n); {
		case err == nil:
			off += n
		case !errors.Is(err, unix.EINTR):
			return err
		}
	}
	return nil
}

// NewHeap makes a ring that no file backs, for tests and benchmarks. Its reader
// is NewHeapReader.
func NewHeap(o Options) (*Writer, error) {
	geo := o.Geometry.WithDefaults()
	if err := geo.Check(); err != nil {
		return nil, err
	}
	info, err := identify(o.Info)
	if err != nil {
		return nil, err
	}
	return newWriter(heapMemory(geo.FileBytes()), geo, info), nil
}

// identify completes info with who and when we are.
func identify(info Info) (Info, error) {
	if _, err := rand.Read(info.RunID[:]); err != nil {
		return info, fmt.Errorf("make a run id: %w", err)
	}
	info.PID = uint32(os.Getpid())
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/pid", &st) == nil {
		info.PIDNamespace = st.Ino
	}
	info.StartTicks = startTicks()
	info.CreatedMonoNS = MonoNS()
	info.CreatedUnixNS = time.Now().UnixNano()
	if info.Executable == "" {
		if p, err := os.Executable(); err == nil {
			info.Executable = filepath.Base(p)
		}
	}
	return info, nil
}

// startTicks is field 22 of /proc/self/stat, 0 where there is none. The second
// field, the command's name in parentheses, may itself hold blanks and ")".
func startTicks() uint64 {
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0
	}
	s := string(b)
	if i := strings.LastIndexByte(s, ')'); i >= 0 {
		if f := strings.Fields(s[i+1:]); len(f) > 19 {
			n, _ := strconv.ParseUint(f[19], 10, 64)
			return n
		}
	}
	return 0
}

// newWriter writes the header, the magic last, over zeroed memory.
func newWriter(m memory, geo Geometry, info Info) *Writer {
	w := &Writer{m: m, geo: geo, info: info, log: geo.logOff(), mask: uint64(geo.LogEntries) - 1}
	w.head, w.counters = m.word(offHead), m.counters(offCounters)
	w.fd.Store(-1)
	m.store(offVersion, LayoutVersion|uint64(HeaderSize)<<32)
	m.store(offFileBytes, uint64(geo.FileBytes()))
	m.store(offLogOff, uint64(geo.logOff()))
	m.store(offLogEntries, uint64(geo.LogEntries))
	m.store(offSlotOff, uint64(geo.slotOff()))
	m.store(offSlotCount, uint64(geo.Slots))
	m.store(offNameOff, uint64(geo.nameOff()))
	m.store(offNameBytes, uint64(geo.NameBytes))
	m.store(offAllocOff, uint64(geo.allocOff()))
	m.store(offAllocCount, uint64(geo.Allocs))
	m.storeBytes(offRunID, 16, info.RunID[:])
	m.store(offPID, uint64(info.PID))
	m.store(offPIDNS, info.PIDNamespace)
	m.store(offStartTicks, info.StartTicks)
	m.store(offMadeUnixNS, uint64(info.CreatedUnixNS))
	m.store(offMadeMonoNS, uint64(info.CreatedMonoNS))
	m.storeBytes(offExe, exeBytes, clip(info.Executable, exeBytes))
	m.storeBytes(offService, serviceBytes, clip(info.Service, serviceBytes))
	w.SetGPU(info.GPUUUID, info.GPUName)
	r := info.Rank
	m.store(offRank, uint64(uint32(r.Data))|uint64(uint32(r.Tensor))<<32)
	m.store(offRank+8, uint64(uint32(r.Pipeline))|uint64(uint32(r.Expert))<<32)
	m.storeBytes(offProducer, producerBytes, clip(info.Producer, producerBytes))
	m.store(offState, uint64(info.Level))
	w.SetArming(info.KernelEvery, info.ArmedRequested)
	w.SetLanes(info.LaneEvery)
	w.names.init(m, geo.nameOff(), geo.NameBytes)
	w.SetModel(info.Model)
	w.allocs.init(w)
	m.store(offMagic, magic)
	return w
}

// clip cuts s to at most n bytes without splitting a rune.
func clip(s string, n int) []byte {
	if len(s) <= n {
		return []byte(s)
	}
	for i := n; i >= max(0, n-utf8.UTFMax+1); i-- {
		if utf8.RuneStart(s[i]) {
			return []byte(s[:i])
		}
	}
	return []byte(s[:n]) // not UTF-8 anyway
}

const (
	wordClaimed = 1
	wordShift   = 1
)

// published is the word of a published entry: never 0, even, growing with the
// sequence number. claimed is the same with the lowest bit set.
func published(seq uint64) uint64 { return (seq + 1) << wordShift }

// Append writes one entry and reports whether it did. It gives up, and counts
// it, when the entry's place is still being written by an older writer or has
// been overtaken by a newer one. It does not block, allocate or read a clock.
func (w *Writer) Append(e *Words) bool {
	seq := atomic.AddUint64(w.head, 1) - 1
	p := w.claim(seq)
	if p == nil {
		return false
	}
	putWords(p, e)
	atomic.StoreUint64(&p[0], published(seq))
	return true
}

// claim makes the place of seq its writer's own, or gives seq up and returns nil.
// A writer that stalls or dies behind it costs its place alone: writers of later
// laps give up there, and everywhere else go on.
func (w *Writer) claim(seq uint64) *[8]uint64 {
	p := w.m.words8(w.log + int64(seq&w.mask)*EntrySize)
	mine := published(seq)
	// Mostly the place shows the sequence number of one lap before. Trying that
	// first, without a load, takes its cache line from the core that wrote it once
	// instead of twice.
	if atomic.CompareAndSwapUint64(&p[0], mine-min(mine, (w.mask+1)<<wordShift), mine|wordClaimed) {
		return p
	}
	for {
		old := atomic.LoadUint64(&p[0])
		if old&wordClaimed != 0 || old >= mine {
			w.Add(CtrGivenUp, 1)
			return nil
		}
		if atomic.CompareAndSwapUint64(&p[0], old, mine|wordClaimed) {
			return p
		}
	}
}

// Published is how many sequence numbers have been handed out.
func (w *Writer) Published() uint64 { return atomic.LoadUint64(w.head) }

// Add adds n to a counter; one from NumCounters on is ignored. It does not block
// or allocate.
func (w *Writer) Add(c Counter, n uint64) {
	if c < NumCounters {
		atomic.AddUint64(&w.counters[c], n)
	}
}

// Counter reads one counter, 0 from NumCounters on.
func (w *Writer) Counter(c Counter) uint64 {
	if c >= NumCounters {
		return 0
	}
	return atomic.LoadUint64(&w.counters[c])
}

// Counters copies all counters, one after the other.
func (w *Writer) Counters() Counters { return loadCounters(w.m) }

func loadCounters(m memory) (c Counters) {
	for i := range c {
		c[i] = m.load(offCounters + int64(i)*8)
	}
	return c
}

// Info is what the ring was made with.
func (w *Writer) Info() Info { return w.info }

// Geometry is the ring's.
func (w *Writer) Geometry() Geometry { return w.geo }

// Path is the ring's file, "" with a heap backing.
func (w *Writer) Path() string { return w.path }

// FD is the descriptor that holds the lock, -1 with a heap backing and after
// Close. A child handler of fork closes it so that the lock falls with the
// parent; nobody else may.
func (w *Writer) FD() int { return int(w.fd.Load()) }

// SetLevel publishes the level in force.
func (w *Writer) SetLevel(level uint8) {
	w.setState(func(v uint64) uint64 { return v&^0xff | uint64(level) })
}

func (w *Writer) setState(f func(uint64) uint64) {
	p := w.m.word(offState)
	for {
		old := atomic.LoadUint64(p)
		if atomic.CompareAndSwapUint64(p, old, f(old)) {
			return
		}
	}
}

// SetArming publishes that one step in every is armed now (0: none), and how
// many steps are still to be armed on request.
func (w *Writer) SetArming(every, requested uint32) {
	w.m.store(offArming, uint64(every)|uint64(requested)<<32)
}

// SetLanes publishes that the lanes of one step in every are timed now (0: none).
func (w *Writer) SetLanes(every uint32) { w.m.store(offLanes, uint64(every)) }

// SetGPU publishes the device behind context 0.
func (w *Writer) SetGPU(uuid, name string) {
	w.m.storeBytes(offGPUUUID, gpuUUIDBytes, clip(uuid, gpuUUIDBytes))
	w.m.storeBytes(offGPUName, gpuNameBytes, clip(name, gpuNameBytes))
}

// SetModel publishes the name of the served model, "" for none. It is a text of
// the table of names: see Name.
func (w *Writer) SetModel(model string) {
	id := NameID(0)
	if model != "" {
		id = w.Name(NameOther, model)
	}
	w.m.store(offModel, uint64(id))
}

// ErrFull is returned when a fixed table has no room.
var ErrFull = errors.New("ring table full")

// NewContext reserves a context record and slots pair slots for it. The index in
// c is set. What is reserved stays so for the ring's life.
func (w *Writer) NewContext(c *ContextState, slots int) (Slots, error) {
	w.ctxMu.Lock()
	defer w.ctxMu.Unlock()
	if w.nCtx == MaxContexts {
		return Slots{}, fmt.Errorf("%w: %d contexts", ErrFull, w.nCtx)
	}
	if slots < 1 || w.nSlots+slots > w.geo.Slots {
		return Slots{}, fmt.Errorf("%w: %d pair slots asked for, %d of %d taken", ErrFull, slots, w.nSlots, w.geo.Slots)
	}
	c.Index = uint8(w.nCtx)
	c.FirstSlot, c.Slots = uint32(w.nSlots), uint32(slots)
	s := Slots{m: w.m, off: w.geo.slotOff() + int64(w.nSlots)*SlotSize, count: slots}
	w.nCtx++
	w.nSlots += slots
	w.publishContext(c)
	return s, nil
}

// SetContext publishes c anew under the index that NewContext gave it; another
// one is ignored.
func (w *Writer) SetContext(c *ContextState) {
	w.ctxMu.Lock()
	defer w.ctxMu.Unlock()
	if int(c.Index) < w.nCtx {
		w.publishContext(c)
	}
}

// publishContext brackets the record's words with an odd and an even sequence.
func (w *Writer) publishContext(c *ContextState) {
	off := int64(offContexts + int(c.Index)*contextSize)
	seq := w.m.load(off)
	w.m.store(off, seq|1)
	for i, v := range c.words() {
		w.m.store(off+8+int64(i)*8, v)
	}
	w.m.store(off, (seq|1)+1)
}

// Close marks the ring as ended cleanly and lets the lock go. The file stays for
// readers to drain; the next producers' starts remove it. Nothing may be written
// after it. Only the first call does anything.
func (w *Writer) Close() error {
	w.closeOnce.Do(func() {
		w.setState(func(v uint64) uint64 { return v | stateClean })
		fd := int(w.fd.Swap(-1))
		if fd < 0 {
			return
		}
		// The mapping is left to the process's end: a late writer on another
		// goroutine must never fault. But it holds the open file description, and
		// with it the lock, so that goes first.
		lk := unix.Flock_t{Type: unix.F_UNLCK}
		err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lk)
		if err = errors.Join(err, unix.Close(fd)); err != nil {
			w.closeErr = fmt.Errorf("close ring %s: %w", w.path, err)
		}
	})
	return w.closeErr
}

// Remove closes the ring and removes its file and control file. Files that are
// gone already are no error.
func (w *Writer) Remove() error {
	errs := []error{w.Close()}
	if w.path == "" {
		return errs[0]
	}
	for _, p := range []string{w.path, w.path + ControlSuffix} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove %s: %w", p, bare(err)))
		}
	}
	return errors.Join(errs...)
}

const stateClean = 1 << 32

var _ io.Closer = (*Writer)(nil)
