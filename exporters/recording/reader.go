package recording

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// File is a recording open for reading. Its methods may be called from any
// goroutine.
type File struct {
	path   string
	r      io.ReaderAt
	size   int64
	closer io.Closer
	writer string
	runs   []RunInfo
	damage *Error

	readings []int64 // offsets of the blocks of readings
}

// RunInfo is what a recording holds of one run.
type RunInfo struct {
	Info spanring.Info // at the recording's end, or as far as it can be read
	// StartMonoNS and EndMonoNS are the first and last state of the run on its own
	// clock.
	StartMonoNS, EndMonoNS int64
	// WallOffsetNS makes Unix time of them, as of the last state.
	WallOffsetNS int64
	// Complete: the recording holds the run's end.
	Complete bool

	no     uint16
	offset int64 // of its first block
}

// Open opens the recording at path and reads the headers of its blocks. It fails
// for a file of which nothing can be read; damage further on is left to [File.Damage],
// and the runs are readable up to it.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open recording: %w", err)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		what := "no regular file"
		if st.IsDir() {
			what = "a directory"
		}
		err = &Error{Path: path, Kind: ErrNotRecording, Detail: "not a recording: it is " + what}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r, err := NewReader(f, st.Size(), path)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r.closer = f
	return r, nil
}

// NewReader reads a recording of size bytes from r; path is only for messages.
func NewReader(r io.ReaderAt, size int64, path string) (*File, error) {
	f := &File{path: path, r: r, size: size}
	var h [fileHeaderSize]byte
	n, err := io.ReadFull(io.NewSectionReader(r, 0, size), h[:])
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("read recording %s: %w", path, err)
	}
	var bad *Error
	if f.writer, bad = parseFileHeader(&h, n); bad != nil {
		bad.Path = path
		return nil, bad
	}
	if err := f.scan(); err != nil {
		return nil, err
	}
	if len(f.runs) == 0 && len(f.readings) == 0 && f.damage != nil {
		return nil, f.damage
	}
	return f, nil
}

// scan walks the block headers once: which runs there are, where the first damage
// shows, and what the runs' last states say.
func (f *File) scan() error {
	b := blocks{f: f, offset: fileHeaderSize}
	last := make(map[uint16]int) // index in runs
	lastState := make(map[uint16]int64)
	ended := false
	for !ended {
		at := b.offset
		h, err := b.header()
		if err == nil && h.typ == blockRun {
			if _, ok := last[h.run]; ok || int(h.run) != len(f.runs)+1 {
				err = f.errorAt(at, ErrDamaged, fmt.Sprintf("damaged block at byte %d: run %d begins out of turn", at, h.run))
			} else {
				last[h.run] = len(f.runs)
				f.runs = append(f.runs, RunInfo{no: h.run, offset: at})
			}
		}
		if err == nil && h.typ == blockReadings {
			f.readings = append(f.readings, at)
		}
		if err == nil && h.known() && h.ofRun() {
			i, ok := last[h.run]
			switch {
			case !ok:
				err = f.errorAt(at, ErrDamaged, fmt.Sprintf("damaged block at byte %d: it belongs to run %d, which did not begin", at, h.run))
			case f.runs[i].Complete:
				err = f.errorAt(at, ErrDamaged, fmt.Sprintf("damaged block at byte %d: run %d had ended", at, h.run))
			case h.typ == blockEnd:
				f.runs[i].Complete = true
				fallthrough
			case h.typ == blockState || h.typ == blockRun:
				lastState[h.run] = at
			}
		}
		if err != nil {
			if !errors.As(err, &f.damage) {
				return err
			}
			break
		}
		ended = h.typ == blockFileEnd
		b.skip(&h)
	}
	if ended && b.offset < f.size {
		f.damage = f.errorAt(b.offset, ErrDamaged, fmt.Sprintf("damaged at byte %d: %d bytes follow its end", b.offset, f.size-b.offset))
	}
	return f.readStates(lastState)
}

// readStates completes the runs' info from their first and last states. A run
// whose first block is damaged is dropped with all that follow it.
func (f *File) readStates(lastState map[uint16]int64) error {
	d, err := newPayloads()
	if err != nil {
		return err
	}
	defer d.close()
	for i := range f.runs {
		r := &f.runs[i]
		var st state
		read := func(at int64) *Error {
			b := blocks{f: f, offset: at}
			h, err := b.header()
			if err != nil {
				return f.asError(err, at)
			}
			p, err := d.read(&b, &h)
			if err != nil {
				return f.asError(err, at)
			}
			if !st.parse(p) {
				return f.damagedAt(at, fmt.Sprintf("its %v cannot be", h.typ))
			}
			return nil
		}
		if bad := read(r.offset); bad != nil {
			f.damage, f.runs = bad, f.runs[:i]
			return nil
		}
		r.Info, r.StartMonoNS, r.EndMonoNS, r.WallOffsetNS = st.info, st.monoNS, st.monoNS, st.wallOffsetNS
		if bad := read(lastState[r.no]); bad == nil {
			r.Info, r.EndMonoNS, r.WallOffsetNS = st.info, max(st.monoNS, r.StartMonoNS), st.wallOffsetNS
		}
	}
	return nil
}

func (f *File) errorAt(at int64, kind error, detail string) *Error {
	return &Error{Path: f.path, Offset: at, Kind: kind, Detail: detail}
}

func (f *File) damagedAt(at int64, why string) *Error {
	return f.errorAt(at, ErrDamaged, fmt.Sprintf("damaged block at byte %d: %s", at, why))
}

func (f *File) asError(err error, at int64) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return f.errorAt(at, ErrDamaged, fmt.Sprintf("block at byte %d cannot be read: %v", at, err))
}

// Path is the recording's name as it was given.
func (f *File) Path() string { return f.path }

// Writer names the program that wrote the recording.
func (f *File) Writer() string { return f.writer }

// Runs are the runs that the recording holds, in the order in which they began.
func (f *File) Runs() []RunInfo { return f.runs }

// Damage is what was found wrong with the recording's structure when it was
// opened, an [Error], or nil. The checksums of entries are looked at only when
// they are read.
func (f *File) Damage() error {
	if f.damage == nil {
		return nil
	}
	return f.damage
}

// Close closes the file. Sources that were opened fail from then on.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	if err := f.closer.Close(); err != nil {
		return fmt.Errorf("close recording %s: %w", f.path, err)
	}
	return nil
}

// blocks walks the blocks of a file.
type blocks struct {
	f      *File
	offset int64 // of the next block's header
	buf    [blockHeaderSize]byte
}

// header reads the header at offset.
func (b *blocks) header() (blockHeader, error) {
	left := b.f.size - b.offset
	if left == 0 {
		return blockHeader{}, b.f.errorAt(b.offset, ErrTruncated, fmt.Sprintf("truncated at byte %d: the end is missing", b.offset))
	}
	if left < blockHeaderSize {
		return blockHeader{}, b.f.errorAt(b.offset, ErrTruncated, fmt.Sprintf("truncated block at byte %d: %d of the header's %d bytes", b.offset, left, blockHeaderSize))
	}
	if _, err := b.f.r.ReadAt(b.buf[:], b.offset); err != nil {
		return blockHeader{}, b.readError(err)
	}
	h, wrong := parseBlockHeader(&b.buf)
	if wrong != "" {
		return h, b.f.damagedAt(b.offset, wrong)
	}
	if left -= blockHeaderSize; left < int64(h.length) {
		return h, b.f.errorAt(b.offset, ErrTruncated, fmt.Sprintf("truncated block at byte %d: %d of %d bytes", b.offset, left, h.length))
	}
	return h, nil
}

func (b *blocks) readError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return b.f.errorAt(b.offset, ErrTruncated, fmt.Sprintf("truncated block at byte %d: it became shorter while it was read", b.offset))
	}
	return fmt.Errorf("read recording %s at byte %d: %w", b.f.path, b.offset, err)
}

func (b *blocks) skip(h *blockHeader) { b.offset += blockHeaderSize + int64(h.length) }

// payloads reads and decompresses payloads into memory that it uses again.
type payloads struct {
	dec         *zstd.Decoder
	stored, raw []byte
}

func newPayloads() (*payloads, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxRaw), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("make decompressor: %w", err)
	}
	return &payloads{dec: dec}, nil
}

func (p *payloads) close() {
	p.dec.Close()
	p.stored, p.raw = nil, nil
}

// read returns the payload of the block whose header is h, checked and
// decompressed. It is valid until the next call.
func (p *payloads) read(b *blocks, h *blockHeader) ([]byte, error) {
	if cap(p.stored) < int(h.length) {
		p.stored = make([]byte, h.length)
	}
	p.stored = p.stored[:h.length]
	if _, err := b.f.r.ReadAt(p.stored, b.offset+blockHeaderSize); err != nil && (h.length > 0 || !errors.Is(err, io.EOF)) {
		return nil, b.readError(err)
	}
	if checksum(p.stored) != h.sum {
		return nil, b.f.damagedAt(b.offset, "checksum differs")
	}
	if h.flags&flagZstd == 0 {
		return p.stored, nil
	}
	raw, err := p.dec.DecodeAll(p.stored, p.raw[:0])
	if err != nil || len(raw) > maxRaw {
		return nil, b.f.damagedAt(b.offset, "it does not decompress")
	}
	p.raw = raw
	return raw, nil
}

// Source plays one run of a recording. It is a [collector.Source] whose time is
// that of the entry received last. Poll and Close belong to one goroutine, as do
// NextMonoNS and PollUntil; the other methods may be called at the same time.
type Source struct {
	f        *File
	info     RunInfo
	b        blocks
	p        *payloads
	dec      decoder
	ended    bool
	err      error
	onState  func(State)
	untold   []State // reached, but not told yet
	received uint64

	mu    sync.Mutex
	names map[spanring.NameID]spanring.Name
	st    state
	acc   spanring.Account
	nowNS int64

	allocs allocTable // the last one that is whole
	parts  allocTable // what has come of the next one
}

// State is what a recording says of a run at one moment between entries.
type State struct {
	MonoNS   int64
	Info     spanring.Info
	Counters spanring.Counters
	Contexts []spanring.ContextState
	Account  spanring.Account
	Alive    bool // the producer ran
	End      bool // the run's last state

	// Allocs are the live allocations as they were last written to the recording,
	// at AllocsMonoNS; they must not be changed. AllocScan says what they are worth.
	Allocs       []spanring.Alloc
	AllocScan    spanring.AllocScan
	AllocsMonoNS int64
}

// Source begins to read run i of Runs, from its first entry. The caller closes
// it.
func (f *File) Source(i int) (*Source, error) {
	if i < 0 || i >= len(f.runs) {
		return nil, fmt.Errorf("recording %s has no run %d: it holds %d", f.path, i, len(f.runs))
	}
	p, err := newPayloads()
	if err != nil {
		return nil, err
	}
	s := &Source{f: f, info: f.runs[i], p: p, names: make(map[spanring.NameID]spanring.Name)}
	s.b = blocks{f: f, offset: s.info.offset}
	if s.fill(); s.err != nil {
		p.close()
		return nil, s.err
	}
	return s, nil
}

// OnState calls f with the state in which the run began, now, and with every later
// one at the beginning of the Poll after the one that returned the last entry
// before it.
func (s *Source) OnState(f func(State)) {
	s.onState = f
	s.noteState(false)
	s.tell()
}

// tell hands on the states that lie before everything that is still to be
// polled.
func (s *Source) tell() {
	for _, st := range s.untold {
		s.onState(st)
	}
	s.untold = s.untold[:0]
}

func (s *Source) noteState(end bool) {
	if s.onState == nil {
		return
	}
	st := &s.st
	s.untold = append(s.untold, State{
		MonoNS: st.monoNS, Info: st.info, Counters: st.counters, Contexts: st.contexts,
		Account: st.account, Alive: st.alive, End: end,
		Allocs: s.allocs.list, AllocScan: s.allocs.scan, AllocsMonoNS: s.allocs.monoNS,
	})
}

// fill reads on until there is an entry to deliver, the run ends, or it cannot be
// read further.
func (s *Source) fill() {
	for s.dec.left == 0 && !s.ended && s.err == nil {
		at := s.b.offset
		h, err := s.b.header()
		if err != nil {
			s.err = err
			return
		}
		if h.typ == blockFileEnd {
			s.err = s.f.damagedAt(at, fmt.Sprintf("the file ends before run %d does", s.info.no))
			return
		}
		if h.run != s.info.no || !h.known() {
			s.b.skip(&h)
			continue
		}
		p, err := s.p.read(&s.b, &h)
		if err != nil {
			s.err = err
			return
		}
		if !s.take(h.typ, p) {
			s.err = s.f.damagedAt(at, fmt.Sprintf("its %v cannot be", h.typ))
			return
		}
		s.b.skip(&h)
		if h.typ == blockRun {
			return // its first state stands before any entry is read
		}
	}
}

// take takes a block's payload in and reports whether it can be one.
func (s *Source) take(t blockType, p []byte) bool {
	switch t {
	case blockNames:
		f := fields{b: p}
		s.mu.Lock()
		defer s.mu.Unlock()
		for len(f.b) > 0 && len(s.names) < maxNames {
			id, n := parseName(&f)
			if f.bad {
				return false
			}
			s.names[id] = n
		}
		return true
	case blockEntries:
		return s.dec.open(p) == nil
	case blockAllocs:
		more, ok := s.parts.parse(p)
		if !ok {
			return false
		}
		if !more {
			s.mu.Lock()
			s.allocs, s.parts = s.parts, allocTable{}
			s.mu.Unlock()
			// Mostly the state of the same moment follows. Not where the run begins.
			if s.allocs.monoNS <= s.st.monoNS {
				s.noteState(false)
			}
		}
		return true
	case blockRun, blockState, blockEnd:
		var st state
		if !st.parse(p) {
			return false
		}
		end := t == blockEnd
		s.mu.Lock()
		s.st = st
		s.nowNS = max(s.nowNS, st.monoNS)
		s.settle()
		s.mu.Unlock()
		s.ended = end
		if t != blockRun {
			s.noteState(end)
		}
		return true
	}
	return false
}

// maxNames bounds the names of one run that are kept. A ring of the default size
// has room for fewer.
const maxNames = 1 << 18

// settle makes the account that of what was delivered: between two states of the
// recording it is ahead of the last one. The caller holds mu.
func (s *Source) settle() {
	s.acc = s.st.account
	if s.acc.Received == s.received {
		return
	}
	s.acc.Received = s.received
	s.acc.Pending = 0
	s.acc.Published = s.acc.Received + s.acc.Lost + s.acc.Missed
}

// Info implements [collector.Source].
func (s *Source) Info() (spanring.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.st.info, nil
}

// NextMonoNS is when the next entry was received, on the recording's clock. ok is
// false when Poll will return none.
func (s *Source) NextMonoNS() (ns int64, ok bool) {
	s.fill()
	if s.dec.left == 0 {
		return 0, false
	}
	return s.dec.recvMonoNS(), true
}

// Poll implements [collector.Source]: it returns as many entries as fit. Damage
// is returned after the entries before it.
func (s *Source) Poll(dst []spanring.Entry) (n int, done bool, err error) {
	return s.PollUntil(dst, math.MaxInt64)
}

// PollUntil is Poll of the entries received up to a time of the recording, which
// then is the source's time.
func (s *Source) PollUntil(dst []spanring.Entry, monoNS int64) (n int, done bool, err error) {
	s.fill()
	s.tell()
	var at int64
	for n < len(dst) && s.dec.left > 0 && s.dec.recvMonoNS() <= monoNS {
		at = s.dec.recvMonoNS()
		if err := s.dec.next(&dst[n]); err != nil {
			s.err = s.f.damagedAt(s.b.offset, "its entries do not decode")
			break
		}
		n++
	}
	if n > 0 {
		s.received += uint64(n)
		s.mu.Lock()
		s.nowNS = max(s.nowNS, at)
		s.settle()
		s.mu.Unlock()
	}
	// A state behind the last entry belongs to it: take it in before the caller
	// looks at the account.
	if n < len(dst) {
		s.fill()
	}
	if s.dec.left > 0 {
		if monoNS != math.MaxInt64 {
			s.mu.Lock()
			s.nowNS = max(s.nowNS, min(monoNS, s.dec.recvMonoNS()))
			s.mu.Unlock()
		}
		return n, false, nil
	}
	if n > 0 {
		return n, false, nil // the end is told by itself
	}
	return 0, s.ended || s.err != nil, s.err
}

// NowMonoNS implements [collector.Source]: how far the recording has been played.
func (s *Source) NowMonoNS() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nowNS
}

// WallOffsetNS implements [collector.Source], as of the recording.
func (s *Source) WallOffsetNS() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.st.wallOffsetNS
}

// Name implements [collector.Source]. A name is known once an entry that has it
// was polled.
func (s *Source) Name(id spanring.NameID) (spanring.Name, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.names[id]
	return n, ok
}

// Counters implements [collector.Source], as of the last state before what was
// polled.
func (s *Source) Counters() (spanring.Counters, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.st.counters, nil
}

// Contexts implements [collector.Source].
func (s *Source) Contexts() ([]spanring.ContextState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.st.contexts, nil
}

// Account implements [collector.Source]: at the recording's end it is what the
// recorder's reader had counted.
func (s *Source) Account() spanring.Account {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acc
}

// Busy implements [collector.Source]: what was in flight when the recording
// ended, once it is played to its end.
func (s *Source) Busy() ([]spanring.SlotEntry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.st.busy, nil
}

// Allocs implements [collector.AllocSource]: the live allocations as they were
// last written to the recording before what was polled.
func (s *Source) Allocs(dst []spanring.Alloc) ([]spanring.Alloc, spanring.AllocScan, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(dst, s.allocs.list...), s.allocs.scan, nil
}

// Alive implements [collector.Source]: whether the producer ran at the last state
// played. A producer that outlived its recording stays alive.
func (s *Source) Alive() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.st.alive, nil
}

// Close implements [collector.Source]. It leaves the file open.
func (s *Source) Close() error {
	if !s.ended || s.dec.left > 0 {
		s.ended = true
		s.dec.left = 0
	}
	s.p.close()
	return nil
}

var (
	_ collector.Source      = (*Source)(nil)
	_ collector.AllocSource = (*Source)(nil)
)
