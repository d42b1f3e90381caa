package recording

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// Options say how a recording is written.
type Options struct {
	// FlushEntries is how many entries of a run a block holds at most, from 1 to
	// 65,536. Larger blocks compress better. Default 32,768.
	FlushEntries int
	// FlushEvery is how much of a run's own time a block spans at most, and so how
	// much a crash of the recorder can cost. Default 5 s.
	FlushEvery time.Duration
	// Writer names the program and its version, at most 48 bytes; a reader that is
	// too old for the file says it. Default "lanetrace".
	Writer string

	// WallOffsetNS added to CLOCK_MONOTONIC gives Unix time, both in ns: for readings of
	// devices, which no run has a clock for. Default this machine's.
	WallOffsetNS func() int64

	compressor *zstd.Encoder // shared by several writers, which leave it open; nil: one of its own
}

func (o Options) withDefaults() (Options, error) {
	if o.FlushEntries == 0 {
		o.FlushEntries = 32768
	}
	if o.FlushEvery == 0 {
		o.FlushEvery = 5 * time.Second
	}
	if o.Writer == "" {
		o.Writer = "lanetrace"
	}
	if o.WallOffsetNS == nil {
		o.WallOffsetNS = new(wallClock).offsetNS
	}
	if o.FlushEntries < 1 || o.FlushEntries > maxBlockEntries || o.FlushEvery < 0 {
		return o, fmt.Errorf("recording with blocks of %d entries and %v: want from 1 to %d entries and no negative time", o.FlushEntries, o.FlushEvery, maxBlockEntries)
	}
	return o, nil
}

// Writer writes a recording of one or several runs. It is a [collector.Tap]: given
// to a Processor or Collector it records every engine that they read. Its methods
// may be called from any goroutine. After a failed write it records nothing more,
// and Err and Close return the failure: a full disk costs the recording, not the
// collector.
type Writer struct {
	o Options

	mu     sync.Mutex // guards what follows; taken after a run's
	out    io.Writer
	closer io.Closer
	enc    *zstd.Encoder
	packed []byte
	nRuns  int
	stats  Stats
	err    error
	lost   error // why a run is not recorded, the first time
	closed bool

	readingsMu  sync.Mutex // taken before mu
	readings    readingLog
	readingsRaw []byte

	runsMu sync.Mutex // taken before mu
	runs   map[*collector.Engine]*Run
	order  []*Run
}

// Stats are what a Writer has written.
type Stats struct {
	Runs    int
	Entries uint64 // in blocks that were written, those of readings not counted
	// Readings of devices, in blocks that were written.
	Readings uint64
	Bytes    int64
}

// Create makes the file at path, which must not exist, and begins a recording in
// it.
func Create(path string, o Options) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, fmt.Errorf("make recording: %w", err)
	}
	w, err := NewWriter(f, o)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	w.closer = f
	return w, nil
}

// NewWriter begins a recording on out: each block is one Write.
func NewWriter(out io.Writer, o Options) (*Writer, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	enc := o.compressor
	if enc == nil {
		if enc, err = newCompressor(zstd.SpeedBetterCompression); err != nil {
			return nil, err
		}
	}
	w := &Writer{o: o, out: out, enc: enc, runs: make(map[*collector.Engine]*Run)}
	if err := w.write(appendFileHeader(nil, Version, o.Writer), 0); err != nil {
		return nil, err
	}
	return w, nil
}

func newCompressor(level zstd.EncoderLevel) (*zstd.Encoder, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(level), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, fmt.Errorf("make compressor: %w", err)
	}
	return enc, nil
}

// Run is one run being recorded.
type Run struct {
	w   *Writer
	src collector.Source
	no  uint16

	mu     sync.Mutex
	enc    encoder
	names  map[spanring.NameID]struct{}
	newIDs []spanring.NameID
	raw    []byte
	st     state
	allocs allocLog
	nStart int64 // source's time of the last flush
	ended  bool
	err    error
}

// Begin begins to record the run that src reads. Entries are given to Append as
// they are received; src is asked for everything else, and must stay open until
// End.
func (w *Writer) Begin(src collector.Source) (*Run, error) {
	r := &Run{w: w, src: src, names: make(map[spanring.NameID]struct{})}
	r.allocs.src, _ = src.(collector.AllocSource)
	r.st.read(src)
	r.nStart = r.st.monoNS
	if err := w.number(r); err != nil {
		return nil, err
	}
	r.lookAtAllocs(true)
	if r.flush(false); r.err != nil {
		return nil, r.err
	}
	w.runsMu.Lock()
	w.order = append(w.order, r)
	w.runsMu.Unlock()
	return r, nil
}

// number gives a run its number and writes that it begins. Runs begin in the order of
// their numbers, also when several do at once: readers take another for damage.
func (w *Writer) number(r *Run) error {
	w.runsMu.Lock()
	defer w.runsMu.Unlock()
	w.mu.Lock()
	if w.nRuns == maxRuns {
		w.mu.Unlock()
		return fmt.Errorf("recording holds %d runs: begin another", maxRuns)
	}
	w.nRuns++
	r.no = uint16(w.nRuns)
	w.stats.Runs++
	w.mu.Unlock()
	return w.block(blockRun, r.no, r.st.append(r.raw[:0]), 0)
}

// Append records entries that were received now, on the source's clock.
func (r *Run) Append(entries []spanring.Entry) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || r.err != nil {
		return r.err
	}
	now := r.src.NowMonoNS()
	for i := range entries {
		e := entries[i]
		r.needName(nameOf(&e.Words))
		r.enc.add(&e, now)
		if r.enc.n >= r.w.o.FlushEntries {
			r.flush(false)
		}
	}
	if now-r.nStart >= int64(r.w.o.FlushEvery) {
		r.flush(true)
	}
	return r.err
}

// needName has a name written before what refers to it.
func (r *Run) needName(id spanring.NameID) {
	if id == 0 {
		return
	}
	if _, ok := r.names[id]; !ok {
		r.names[id] = struct{}{}
		r.newIDs = append(r.newIDs, id)
	}
}

// lookAtAllocs has the table of allocations written by the next flush, if it is
// due.
func (r *Run) lookAtAllocs(force bool) {
	if r.allocs.look(r.st.monoNS, force) {
		for i := range r.allocs.now.list {
			r.needName(r.allocs.now.list[i].Site)
		}
	}
}

// flush writes the run's names, entries, its table of allocations if that is due
// and, if asked for, state. A state stands where everything received up to it
// stands before it.
func (r *Run) flush(withState bool) {
	if r.err != nil {
		return
	}
	if withState {
		r.st.read(r.src)
		r.nStart = r.st.monoNS
		r.lookAtAllocs(false)
	}
	if len(r.newIDs) > 0 {
		r.raw = r.raw[:0]
		for _, id := range r.newIDs {
			if n, ok := r.src.Name(id); ok {
				r.raw = appendName(r.raw, id, &n)
			}
			if len(r.raw) > maxRaw/4 {
				r.fail(r.w.block(blockNames, r.no, r.raw, 0))
				r.raw = r.raw[:0]
			}
		}
		r.fail(r.w.block(blockNames, r.no, r.raw, 0))
		r.newIDs = r.newIDs[:0]
	}
	if r.enc.n > 0 {
		r.raw = r.enc.payload(r.raw[:0])
		r.fail(r.w.block(blockEntries, r.no, r.raw, r.enc.n))
		r.enc.reset()
	}
	if r.allocs.due {
		r.raw = r.allocs.now.blocks(r.raw, func(p []byte) { r.fail(r.w.optional(blockAllocs, r.no, p)) })
		r.allocs.wrote()
	}
	if withState {
		r.raw = r.st.append(r.raw[:0])
		r.fail(r.w.block(blockState, r.no, r.raw, 0))
	}
}

func (r *Run) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// Flush writes what is buffered, so that a crash costs nothing received so far.
func (r *Run) Flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended {
		r.flush(true)
	}
	return r.err
}

// End writes the run's last entries and its end: who was in flight, the counters,
// the account. Only the first call does something.
func (r *Run) End() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return r.err
	}
	r.st.read(r.src)
	if busy, err := r.src.Busy(); err == nil {
		r.st.busy = busy
		for i := range busy {
			r.needName(busy[i].Slot.Name)
		}
	}
	r.lookAtAllocs(true)
	r.flush(false)
	r.ended = true
	if r.err == nil {
		r.fail(r.w.block(blockEnd, r.no, r.st.append(r.raw[:0]), 0))
	}
	r.names, r.raw, r.enc, r.allocs = nil, nil, encoder{}, allocLog{}
	return r.err
}

// Entries implements [collector.Tap].
func (w *Writer) Entries(e *collector.Engine, entries []spanring.Entry) {
	if r := w.runOf(e); r != nil {
		w.lose(r.Append(entries))
	}
}

// lose keeps for Err why a run, or the rest of it, is not recorded.
func (w *Writer) lose(err error) {
	if err == nil {
		return
	}
	w.mu.Lock()
	if w.lost == nil {
		w.lost = err
	}
	w.mu.Unlock()
}

// Ended implements [collector.Tap].
func (w *Writer) Ended(e *collector.Engine) {
	r := w.runOf(e)
	if r != nil {
		w.lose(r.End())
	}
	w.runsMu.Lock()
	delete(w.runs, e)
	w.order = slices.DeleteFunc(w.order, func(x *Run) bool { return x == r })
	w.runsMu.Unlock()
}

func (w *Writer) runOf(e *collector.Engine) *Run {
	w.runsMu.Lock()
	r, ok := w.runs[e]
	w.runsMu.Unlock()
	if ok {
		return r
	}
	r, err := w.Begin(e.Source())
	if err != nil {
		w.lose(err)
		r = nil
	}
	w.runsMu.Lock()
	w.runs[e] = r
	w.runsMu.Unlock()
	return r
}

// Flush writes what is buffered of every run.
func (w *Writer) Flush() error {
	w.runsMu.Lock()
	runs := slices.Clone(w.order)
	w.runsMu.Unlock()
	for _, r := range runs {
		w.lose(r.Flush())
	}
	w.readingsMu.Lock()
	defer w.readingsMu.Unlock()
	return w.flushReadings()
}

// Err is the failure that ended the recording or, while there is none, why a run is
// not recorded. It is nil while all is.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return cmp.Or(w.err, w.lost)
}

// Stats are what has been written so far.
func (w *Writer) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats
}

// ErrClosed is returned by what is written after Close.
var ErrClosed = errors.New("recording is closed")

// Close ends the runs that have not ended, marks the file complete and closes
// it. The first error of the whole recording is returned, by every call.
func (w *Writer) Close() error {
	w.runsMu.Lock()
	runs := slices.Clone(w.order)
	w.runsMu.Unlock()
	for _, r := range runs {
		w.lose(r.End())
	}
	w.readingsMu.Lock()
	_ = w.flushReadings() // kept for Err
	w.readingsMu.Unlock()
	w.mu.Lock()
	entries := w.stats.Entries
	done := w.closed
	w.mu.Unlock()
	if done {
		return w.closeError()
	}
	_ = w.block(blockFileEnd, 0, binary.AppendUvarint(nil, entries), 0)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.o.compressor == nil {
		_ = w.enc.Close() // holds no stream
	}
	if w.closer != nil {
		if err := w.closer.Close(); err != nil && w.err == nil {
			w.err = fmt.Errorf("close recording: %w", err)
		}
	}
	return cmp.Or(w.err, w.lost)
}

func (w *Writer) closeError() error {
	if err := w.Err(); err != nil && !errors.Is(err, ErrClosed) {
		return err
	}
	return nil
}

// block writes one block with one Write.
func (w *Writer) block(t blockType, run uint16, payload []byte, entries int) error {
	return w.put(blockHeader{typ: t, run: run}, payload, entries)
}

// optional writes a block that readers which do not know its type skip.
func (w *Writer) optional(t blockType, run uint16, payload []byte) error {
	return w.put(blockHeader{typ: t, run: run, flags: flagOptional}, payload, 0)
}

func (w *Writer) put(h blockHeader, payload []byte, entries int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return ErrClosed
	}
	if len(payload) > maxRaw {
		return fmt.Errorf("recording's %v block has %d bytes, at most %d", h.typ, len(payload), maxRaw)
	}
	w.packed = append(w.packed[:0], make([]byte, blockHeaderSize)...)
	w.packed = w.enc.EncodeAll(payload, w.packed)
	if len(w.packed)-blockHeaderSize < len(payload) {
		h.flags |= flagZstd
	} else {
		w.packed = append(w.packed[:blockHeaderSize], payload...)
	}
	stored := w.packed[blockHeaderSize:]
	if len(stored) > maxStored {
		return fmt.Errorf("recording's %v block has %d bytes, at most %d", h.typ, len(stored), maxStored)
	}
	h.length, h.sum = uint32(len(stored)), checksum(stored)
	h.append(w.packed[:0])
	if err := w.write(w.packed, entries); err != nil {
		return err
	}
	if h.ofRun() {
		w.stats.Entries += uint64(entries)
	}
	return nil
}

// blockWriter is an output that is told how many entries a block holds.
type blockWriter interface {
	writeBlock(b []byte, entries int) (int, error)
}

// write writes b whole, or makes the writer fail for good. The caller holds mu,
// or nobody else has the writer yet.
func (w *Writer) write(b []byte, entries int) (err error) {
	if w.err != nil {
		return w.err
	}
	var n int
	if bw, ok := w.out.(blockWriter); ok {
		n, err = bw.writeBlock(b, entries)
	} else {
		n, err = w.out.Write(b)
	}
	w.stats.Bytes += int64(n)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		w.err = fmt.Errorf("write recording: %w", err)
	}
	return w.err
}

var _ collector.Tap = (*Writer)(nil)
