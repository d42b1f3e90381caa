package recording

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// StoreOptions say what a Store keeps, and where.
type StoreOptions struct {
	// Dir holds the segments. It is made, with mode 0750, when it is missing; its
	// parent must be there. Required.
	Dir string
	// MaxBytes bounds the segments together, those being written included: the
	// oldest go. At least 1 MiB. Default 1 GiB.
	MaxBytes int64
	// MaxAge is how long after its last entry a segment is kept. Default 24 h.
	MaxAge time.Duration
	// SegmentBytes and SegmentAge are when a segment is closed and the next one
	// begun. Defaults: a sixteenth of MaxBytes, at most 64 MiB, and a sixteenth of
	// MaxAge, at most 10 min.
	SegmentBytes int64
	SegmentAge   time.Duration
	// FlushEvery is how often what was received is written, and so how much a crash
	// of this process can cost. Default 1 s.
	FlushEvery time.Duration
	// RetryEvery is how long nothing is tried after a failure. Default 10 s.
	RetryEvery time.Duration
	// QueueBytes bounds what waits for a slow disk. Default 8 MiB.
	QueueBytes int
	// Writer names the program and its version: see Options.
	Writer string
	// Opened is called once the directory is there and this store's alone, for what goes
	// beside the segments. It may block. After an error, which is a warning and keeps
	// nothing from being written, it is called again each RetryEvery. Default none.
	Opened func(dir string) error
	// Logger takes one warning when writing begins to fail and one message when it
	// works again. Default discards.
	Logger *slog.Logger

	flushEntries int // of a block
	// create makes a segment's file; tests have disks of their own.
	create func(name string) (io.WriteCloser, error)
}

func (o StoreOptions) withDefaults() (StoreOptions, error) {
	if o.MaxBytes == 0 {
		o.MaxBytes = 1 << 30
	}
	if o.MaxAge == 0 {
		o.MaxAge = 24 * time.Hour
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = min(o.MaxBytes/16, 64<<20)
	}
	if o.SegmentAge == 0 {
		o.SegmentAge = min(o.MaxAge/16, 10*time.Minute)
	}
	if o.FlushEvery == 0 {
		o.FlushEvery = time.Second
	}
	if o.RetryEvery == 0 {
		o.RetryEvery = 10 * time.Second
	}
	if o.QueueBytes == 0 {
		o.QueueBytes = 8 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Dir == "" {
		return o, errors.New("keep recordings: no directory given")
	}
	if o.MaxBytes < 1<<20 || o.MaxAge < time.Second || o.SegmentBytes < 0 || o.SegmentAge < 0 || o.FlushEvery < 0 {
		return o, fmt.Errorf("keep recordings in %s: %d bytes for %v: want at least 1 MiB and 1 s", o.Dir, o.MaxBytes, o.MaxAge)
	}
	return o, nil
}

// StoreStats are what a Store has done and holds.
type StoreStats struct {
	// Written are entries that are in segments, Lost those that could not be
	// written. Every entry received becomes one of them within FlushEvery.
	Written, Lost uint64
	// Bytes and Segments are what is on disk now.
	Bytes    int64
	Segments int
	// Failing: nothing can be written at the moment.
	Failing bool
}

// Store keeps the latest of what a collector reads on disk, as recordings that
// are bounded by size and age: what an outage of a receiver cost can be sent again
// from them ([OpenDir]). It is a [collector.Tap]. Each engine has segments of
// its own, one after the other, and every segment is a whole recording; a crash of
// this process leaves at most one damaged block at the end of each. Nothing is
// synced: what a crash of the machine leaves is the file system's affair.
//
// The reading goroutines only encode. A goroutine of the store's own writes; when
// it falls behind a slow disk by QueueBytes, or cannot write at all, entries are
// lost to the store and counted, never waited for. Its methods may be called from
// any goroutine.
type Store struct {
	o   StoreOptions
	enc *zstd.Encoder
	dir segmentDir // of the writing goroutine

	// Of the writing goroutine: whether Opened was called and succeeded, and when it is
	// called again if not.
	told   bool
	tellAt time.Time

	wall wallClock // of the devices' readings

	mu       sync.Mutex // taken last
	engines  map[*collector.Engine]*keeping
	jobs     []job
	jobBytes int
	stats    StoreStats
	retryAt  time.Time // nothing is tried before
	closed   bool

	wake  chan struct{}
	stop  chan struct{}
	done  chan struct{}
	close sync.Once
}

// keeping is one engine whose entries are kept, or what devices report.
type keeping struct {
	e *collector.Engine // nil: the devices

	mu    sync.Mutex // taken before a Run's
	seg   *segment   // nil: none is begun
	dirty bool       // it has entries that were not flushed
}

// segment is one file being written.
type segment struct {
	s     *Store
	run   *Run // nil: readings of devices
	w     *Writer
	name  string
	began time.Time

	appended uint64 // entries; guarded by the engine's mutex

	// Guarded by the store's mutex.
	queued uint64 // entries in blocks that were handed to the writing goroutine
	bytes  int64  // on disk
	err    error  // writing failed
	full   error  // no room for another block; what was handed over is still written

	f io.WriteCloser // of the writing goroutine
}

// job is one block to write or, if last, a segment to close.
type job struct {
	seg     *segment
	b       []byte
	entries int
	last    bool
}

// NewStore begins to keep recordings. A directory that cannot be used is no error
// here: it may be usable later, and costs a warning and a counter until then.
func NewStore(o StoreOptions) (*Store, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	// The level that costs least: a second of entries is compressed while a ring
	// waits to be read.
	enc, err := newCompressor(zstd.SpeedFastest)
	if err != nil {
		return nil, err
	}
	s := &Store{
		o: o, enc: enc, dir: segmentDir{path: o.Dir}, engines: make(map[*collector.Engine]*keeping),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	if s.o.create == nil {
		s.o.create = s.dir.create
	}
	go s.write()
	return s, nil
}

// Entries implements [collector.Tap]. It does not wait for the disk.
func (s *Store) Entries(e *collector.Engine, entries []spanring.Entry) {
	s.append(e, len(entries), func(g *segment) error { return g.run.Append(entries) })
}

// DeviceReading implements [collector.DeviceTap]. Readings have segments of their own,
// named after the run id of all zeros.
func (s *Store) DeviceReading(d *collector.Device, entries []spanring.Words) {
	s.append(nil, len(entries), func(g *segment) error { return g.w.appendReading(d, entries) })
}

// append appends n entries to the segment of e, nil for the devices.
func (s *Store) append(e *collector.Engine, n int, add func(*segment) error) {
	k := s.keepingOf(e)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.seg != nil && s.broken(k.seg) {
		s.abandon(k)
	}
	if k.seg == nil && !s.begin(k) {
		s.lose(uint64(n))
		return
	}
	k.seg.appended += uint64(n)
	k.dirty = true
	if add(k.seg) != nil {
		s.abandon(k)
		return
	}
	if k.seg.w.Stats().Bytes >= s.o.SegmentBytes || time.Since(k.seg.began) >= s.o.SegmentAge {
		s.finish(k)
	}
}

// Ended implements [collector.Tap].
func (s *Store) Ended(e *collector.Engine) {
	s.mu.Lock()
	k := s.engines[e]
	delete(s.engines, e)
	s.mu.Unlock()
	if k == nil {
		return
	}
	k.mu.Lock()
	s.finish(k)
	k.mu.Unlock()
}

// Stats are what the store has done and holds.
func (s *Store) Stats() StoreStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Close writes what was received and ends the store. When ctx ends first, the
// rest is lost, which the error says. Only the first call does something.
func (s *Store) Close(ctx context.Context) error {
	s.close.Do(func() {
		for _, k := range s.list() {
			s.Ended(k.e)
		}
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		close(s.stop)
	})
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("recordings in %s were not written to their end: %w", s.o.Dir, ctx.Err())
	}
}

func (s *Store) keepingOf(e *collector.Engine) *keeping {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.engines[e]
	if k == nil {
		k = &keeping{e: e}
		s.engines[e] = k
	}
	return k
}

func (s *Store) list() []*keeping {
	s.mu.Lock()
	defer s.mu.Unlock()
	ks := make([]*keeping, 0, len(s.engines))
	for _, k := range s.engines {
		ks = append(ks, k)
	}
	return ks
}

func (s *Store) broken(seg *segment) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return seg.err != nil || seg.full != nil
}

func (s *Store) lose(n uint64) {
	s.mu.Lock()
	s.stats.Lost += n
	s.mu.Unlock()
}

// begin begins a segment of k and reports whether it could.
func (s *Store) begin(k *keeping) bool {
	now := time.Now()
	s.mu.Lock()
	wait := s.closed || now.Before(s.retryAt)
	s.mu.Unlock()
	if wait {
		return false
	}
	var run spanring.RunID
	if k.e != nil {
		run = k.e.RunID()
	}
	seg := &segment{s: s, began: now, name: segmentName(now, run)}
	k.seg, k.dirty = seg, false
	w, err := NewWriter(seg, Options{Writer: s.o.Writer, FlushEntries: s.o.flushEntries, WallOffsetNS: s.wall.offsetNS, compressor: s.enc})
	if err == nil {
		seg.w = w
		if k.e != nil {
			seg.run, err = w.Begin(k.e.Source())
		}
	}
	if err != nil {
		s.abandon(k)
		return false
	}
	return true
}

// finish ends k's segment, if there is one, as a whole recording. The caller holds
// k.mu.
func (s *Store) finish(k *keeping) {
	if k.seg == nil {
		return
	}
	var err error
	if k.seg.run != nil {
		err = k.seg.run.End()
	}
	if errors.Join(err, k.seg.w.Close()) != nil {
		s.abandon(k)
		return
	}
	s.end(k)
}

// abandon gives k's segment up: what was not handed to the writing goroutine is
// lost. The caller holds k.mu.
func (s *Store) abandon(k *keeping) {
	s.mu.Lock()
	s.stats.Lost += k.seg.appended - k.seg.queued
	s.mu.Unlock()
	s.end(k)
}

func (s *Store) end(k *keeping) {
	s.mu.Lock()
	s.jobs = append(s.jobs, job{seg: k.seg, last: true})
	s.mu.Unlock()
	k.seg, k.dirty = nil, false
	s.signal()
}

func (s *Store) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// flush has what was appended handed to the writing goroutine.
func (g *segment) flush() error {
	if g.run == nil {
		return g.w.Flush()
	}
	return g.run.Flush()
}

// Write implements io.Writer for what is no block.
func (g *segment) Write(b []byte) (int, error) { return g.writeBlock(b, 0) }

// writeBlock hands a block to the writing goroutine.
func (g *segment) writeBlock(b []byte, entries int) (int, error) {
	s := g.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmp.Or(g.err, g.full); err != nil {
		return 0, err
	}
	if s.jobBytes+len(b) > s.o.QueueBytes {
		g.full = fmt.Errorf("the disk is too slow: %d bytes wait for it", s.jobBytes)
		s.fail(g.full)
		return 0, g.full
	}
	g.queued += uint64(entries)
	s.jobBytes += len(b)
	s.jobs = append(s.jobs, job{seg: g, b: append([]byte(nil), b...), entries: entries})
	s.signal()
	return len(b), nil
}

// fail notes that writing fails; the first time it says so. The caller holds mu.
func (s *Store) fail(err error) {
	s.retryAt = time.Now().Add(s.o.RetryEvery)
	if !s.stats.Failing {
		s.stats.Failing = true
		s.o.Logger.Warn("recordings cannot be kept, engines are read on without", "dir", s.o.Dir, "reason", err.Error())
	}
}

// works notes that something could be written. The caller holds mu.
func (s *Store) works() {
	if s.stats.Failing && !time.Now().Before(s.retryAt) {
		s.stats.Failing = false
		s.o.Logger.Info("recordings are kept again", "dir", s.o.Dir, "entries_lost", s.stats.Lost)
	}
}

// write is the writing goroutine. It ends when the store is closed and all that
// was handed to it is written.
func (s *Store) write() {
	defer close(s.done)
	defer s.dir.close()
	t := time.NewTicker(s.o.FlushEvery)
	defer t.Stop()
	s.tidy()
	for {
		select {
		case <-s.wake:
			s.work()
		case <-t.C:
			s.flush()
			s.work()
			s.tidy()
		case <-s.stop:
			s.work()
			s.tidy()
			return
		}
	}
}

// flush has what was received since the last time encoded and handed over, and
// ends segments that are old enough.
func (s *Store) flush() {
	for _, k := range s.list() {
		k.mu.Lock()
		switch {
		case k.seg == nil:
		case time.Since(k.seg.began) >= s.o.SegmentAge:
			s.finish(k)
		case k.dirty:
			k.dirty = false
			if k.seg.flush() != nil {
				s.abandon(k)
			}
		}
		k.mu.Unlock()
	}
}

// work does the jobs that are there.
func (s *Store) work() {
	for {
		s.mu.Lock()
		if len(s.jobs) == 0 {
			s.jobs = nil
			s.mu.Unlock()
			return
		}
		j := s.jobs[0]
		s.jobs[0] = job{}
		s.jobs = s.jobs[1:]
		s.jobBytes -= len(j.b)
		err := j.seg.err
		s.mu.Unlock()
		if j.last {
			s.closeSegment(j.seg)
			continue
		}
		if err == nil {
			err = s.put(j.seg, j.b)
		}
		s.mu.Lock()
		if err != nil {
			if j.seg.err == nil {
				j.seg.err = err
				s.fail(err)
			}
			s.stats.Lost += uint64(j.entries)
		} else {
			j.seg.bytes += int64(len(j.b))
			s.stats.Written += uint64(j.entries)
			s.works()
		}
		s.mu.Unlock()
	}
}

// put writes a block, opening the segment's file first if need be.
func (s *Store) put(seg *segment, b []byte) error {
	if seg.f == nil {
		f, err := s.o.create(seg.name)
		if err != nil {
			return err
		}
		seg.f = f
	}
	if _, err := seg.f.Write(b); err != nil {
		return fmt.Errorf("write recording: %w", err)
	}
	return nil
}

func (s *Store) closeSegment(seg *segment) {
	if seg.f == nil {
		return
	}
	err := seg.f.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.fail(fmt.Errorf("close recording: %w", err))
	}
	s.dir.add(seg.name)
}

// tidy keeps the directory within its bounds.
func (s *Store) tidy() {
	s.mu.Lock()
	now := time.Now()
	if now.Before(s.retryAt) {
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	err := s.dir.open()
	if err == nil {
		err = s.dir.removeOlder(now.Add(-s.o.MaxAge))
	}
	if err == nil {
		s.tell(now)
	}
	active, segments, largest := s.active()
	if over := active + s.dir.bytes - s.o.MaxBytes; err == nil && over > 0 {
		err = s.dir.remove(over)
		// Should those being written be too much by themselves, the largest can go
		// next time.
		if active > s.o.MaxBytes*3/4 && largest != nil {
			largest.mu.Lock()
			s.finish(largest)
			largest.mu.Unlock()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.fail(err)
	}
	s.stats.Bytes, s.stats.Segments = active+s.dir.bytes, len(s.dir.closed)+segments
}

// tell says that the directory is this store's, until that has been taken.
func (s *Store) tell(now time.Time) {
	if s.told || s.o.Opened == nil || now.Before(s.tellAt) {
		return
	}
	err := s.o.Opened(s.o.Dir)
	if err != nil && s.tellAt.IsZero() {
		s.o.Logger.Warn("beside the recordings something is missing", "dir", s.o.Dir, "reason", err.Error())
	}
	s.told, s.tellAt = err == nil, now.Add(s.o.RetryEvery)
}

// active is how many bytes the segments that are being written have on disk, how
// many they are, and the engine that has the largest.
func (s *Store) active() (bytes int64, segments int, largest *keeping) {
	var most int64
	for _, k := range s.list() {
		k.mu.Lock()
		if k.seg != nil {
			s.mu.Lock()
			n := k.seg.bytes
			s.mu.Unlock()
			segments++
			if bytes += n; n > most {
				most, largest = n, k
			}
		}
		k.mu.Unlock()
	}
	return bytes, segments, largest
}

var _ collector.Tap = (*Store)(nil)
