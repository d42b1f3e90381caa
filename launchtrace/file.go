package launchtrace

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A file of one execution: a header of 64 bytes, then blocks. All numbers are
// little-endian.
//
//	header: magic [8] | version u16 | reserved u16 | crc32c u32 | writer [48]
//	block:  length u32 | type u8 | flags u8 | reserved u16 | crc32c of payload u32 |
//	        crc32c of these 12 bytes u32 | payload [length]
//
// The blocks are one Trace (region, step, operations, those dropped), one
// Functions (name and handle of each, the first being none), one Ranges (base,
// bytes and site of each allocation that arguments lie in), any number of Ops, and
// one End with the number of operations. Numbers in payloads are varints. A reader
// ignores what follows the fields of a payload that it knows, and skips blocks of a
// type that it does not know if they are flagged optional; it refuses others.
const (
	// FileVersion is the version of the format that this package writes. It reads
	// all versions up to it.
	FileVersion = 1
	// FileSuffix ends the name of a file.
	FileSuffix = ".ltops"

	// fileMagic begins every file. The line ends and the end-of-file character show
	// one that was copied as text.
	fileMagic = "LTOPS\r\n\x1a"

	fileHeaderSize  = 64
	blockHeaderSize = 16
	writerTextSize  = 48
	flagOptional    = 1 << 0

	// maxPayload bounds a block: as many ranges as there may be fit one. Writers
	// begin a new block of operations at blockTarget.
	maxPayload  = 96 << 20
	blockTarget = 256 << 10
	// maxFunctions bounds the functions of a file.
	maxFunctions = 1 << 20
	// maxFileWords bounds the operations of a file in memory, to 512 MiB.
	maxFileWords = 1 << 26
)

type blockType uint8

const (
	blockTrace     blockType = 1
	blockFunctions blockType = 2
	blockRanges    blockType = 3
	blockOps       blockType = 4
	blockEnd       blockType = 5
)

func (t blockType) String() string {
	switch t {
	case blockTrace:
		return "trace"
	case blockFunctions:
		return "functions"
	case blockRanges:
		return "ranges"
	case blockOps:
		return "operations"
	case blockEnd:
		return "end"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Errors about files, told apart with errors.Is. Each is wrapped in a [FileError].
var (
	// ErrNotTrace: the file does not begin as a launch trace.
	ErrNotTrace = errors.New("not a launch trace")
	// ErrVersion: a launch trace of a later version of the format.
	ErrVersion = errors.New("launch trace of a later version")
	// ErrDamaged: a block's checksum or content is wrong.
	ErrDamaged = errors.New("damaged launch trace")
	// ErrTruncated: the file ends before the trace does.
	ErrTruncated = errors.New("truncated launch trace")
)

// FileError says which file could not be read, and where. Its text is one line.
type FileError struct {
	Path   string
	Offset int64 // of the block or byte in question
	Kind   error // ErrNotTrace, ErrVersion, ErrDamaged or ErrTruncated
	Detail string
}

// Error is the whole message: "launch trace PATH: …".
func (e *FileError) Error() string { return "launch trace " + e.Path + ": " + e.Detail }

// Unwrap returns Kind.
func (e *FileError) Unwrap() error { return e.Kind }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// WriteFile writes t to path, replacing what is there: in a temporary beside it
// first, so that no part of a trace is ever seen. Only its user can read it. writer
// names the program and its version, for errors of older readers.
func WriteFile(path string, t *Trace, writer string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return fmt.Errorf("write launch trace %s: %w", path, bare(err))
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write launch trace %s: %w", path, bare(err)), os.Remove(f.Name()))
		}
	}()
	if err := errors.Join(Encode(f, t, writer), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// bare takes off what repeats the path.
func bare(err error) error {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return pe.Err
	}
	if le := (*os.LinkError)(nil); errors.As(err, &le) {
		return le.Err
	}
	return err
}

// Encode writes t as a file.
func Encode(w io.Writer, t *Trace, writer string) error {
	e := encoder{w: bufio.NewWriter(w)}
	var h [fileHeaderSize]byte
	copy(h[:8], fileMagic)
	binary.LittleEndian.PutUint16(h[8:], FileVersion)
	copy(h[16:], writer[:min(len(writer), writerTextSize)])
	binary.LittleEndian.PutUint32(h[12:], headerSum(&h))
	e.write(h[:])

	b := appendText(nil, t.region)
	for _, v := range []uint64{t.step, uint64(t.n), t.dropped} {
		b = binary.AppendUvarint(b, v)
	}
	e.block(blockTrace, b)

	type function struct {
		name uint32
		fn   uint64
	}
	ids := map[function]uint64{{}: 0}
	b = nil
	words := 0
	for o := range t.words() {
		words += len(o)
		f := function{o.name(), o.fn()}
		if _, ok := ids[f]; !ok {
			ids[f] = uint64(len(ids))
			b = binary.AppendUvarint(appendText(b, t.texts[f.name]), f.fn)
		}
	}
	if words > maxFileWords || t.n > MaxOps {
		return fmt.Errorf("%d operations of %d MiB: a file has room for %d of %d MiB", t.n, words>>17, MaxOps, maxFileWords>>17)
	}
	if len(ids) > maxFunctions || len(b) > maxPayload-binary.MaxVarintLen64 {
		return fmt.Errorf("%d functions with names of %d MiB: a file has room for %d of %d MiB", len(ids), len(b)>>20, maxFunctions, maxPayload>>20)
	}
	e.block(blockFunctions, append(binary.AppendUvarint(nil, uint64(len(ids)-1)), b...))

	b = binary.AppendUvarint(nil, uint64(len(t.ranges)))
	for _, r := range t.ranges {
		b = appendText(binary.AppendUvarint(binary.AppendUvarint(b, r.Base), r.Bytes), r.Site)
	}
	e.block(blockRanges, b)

	var c codec
	c.reset()
	b = b[:0]
	for o := range t.words() {
		if len(b) >= blockTarget {
			e.block(blockOps, b)
			c.reset()
			b = b[:0]
		}
		b = c.append(b, o, ids[function{o.name(), o.fn()}])
	}
	if len(b) > 0 {
		e.block(blockOps, b)
	}
	e.block(blockEnd, binary.AppendUvarint(nil, uint64(t.n)))
	if e.err != nil {
		return e.err
	}
	return e.w.Flush()
}

func headerSum(h *[fileHeaderSize]byte) uint32 {
	return crc32.Update(checksum(h[:12]), castagnoli, h[16:])
}

type encoder struct {
	w   *bufio.Writer
	err error
}

func (e *encoder) write(b []byte) {
	if e.err == nil {
		_, e.err = e.w.Write(b)
	}
}

func (e *encoder) block(t blockType, payload []byte) {
	e.write(appendBlockHeader(nil, t, 0, payload))
	e.write(payload)
}

func appendBlockHeader(b []byte, t blockType, flags byte, payload []byte) []byte {
	at := len(b)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = append(b, byte(t), flags, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, checksum(payload))
	return binary.LittleEndian.AppendUint32(b, checksum(b[at:]))
}

// ReadFile reads a file. An error about its content is a [FileError].
func ReadFile(path string) (*Trace, error) {
	// What is no file, such as a pipe, must not be waited for.
	if st, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("launch trace %s: %w", path, bare(err))
	} else if !st.Mode().IsRegular() {
		return nil, &FileError{Path: path, Kind: ErrNotTrace, Detail: "not a regular file"}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("launch trace %s: %w", path, bare(err))
	}
	defer f.Close()
	return Decode(f, path)
}

// Decode reads a file's content; path is for errors. Nothing in it is trusted: a
// damaged or hostile file is an error, whose cost is bounded.
func Decode(r io.Reader, path string) (*Trace, error) {
	d := decoder{r: bufio.NewReaderSize(r, 64<<10), path: path, functions: []uint32{0}, handles: []uint64{0}}
	if err := d.run(); err != nil {
		return nil, err
	}
	return d.b.t, nil
}

// decoder reads a file from its beginning to its end.
type decoder struct {
	r    *bufio.Reader
	path string
	at   int64 // bytes read

	seen      [blockEnd + 1]bool
	b         *builder
	want      uint64 // operations
	words     int
	functions []uint32 // number of the name
	handles   []uint64
	buf       []byte
	args      []uint64
}

func (d *decoder) fail(offset int64, kind error, format string, args ...any) error {
	return &FileError{Path: d.path, Offset: offset, Kind: kind, Detail: fmt.Sprintf(format, args...)}
}

// read fills b. n is how much of it there was.
func (d *decoder) read(b []byte) (n int, err error) {
	n, err = io.ReadFull(d.r, b)
	d.at += int64(n)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return n, io.EOF
	}
	if err != nil {
		return n, fmt.Errorf("launch trace %s: read at byte %d: %w", d.path, d.at, bare(err))
	}
	return n, nil
}

func (d *decoder) run() error {
	if err := d.header(); err != nil {
		return err
	}
	for !d.seen[blockEnd] {
		if err := d.block(); err != nil {
			return err
		}
	}
	if _, err := d.read(make([]byte, 1)); err == nil {
		return d.fail(d.at-1, ErrDamaged, "damaged at byte %d: something follows its end", d.at-1)
	} else if err != io.EOF {
		return err
	}
	return nil
}

func (d *decoder) header() error {
	var h [fileHeaderSize]byte
	n, err := d.read(h[:])
	if err != nil && err != io.EOF {
		return err
	}
	if n == 0 {
		return d.fail(0, ErrNotTrace, "not a launch trace: the file is empty")
	}
	if m := min(n, len(fileMagic)); string(h[:m]) != fileMagic[:m] {
		return d.fail(0, ErrNotTrace, "not a launch trace: it does not begin with %s", fileMagic[:5])
	}
	if n < fileHeaderSize {
		return d.fail(int64(n), ErrTruncated, "truncated at byte %d, inside the file header", n)
	}
	if binary.LittleEndian.Uint32(h[12:]) != headerSum(&h) {
		return d.fail(0, ErrDamaged, "damaged file header at byte 0: checksum differs")
	}
	if v := binary.LittleEndian.Uint16(h[8:]); v == 0 || v > FileVersion {
		by := clean(strings.TrimRight(string(h[16:]), "\x00"))
		if by != "" {
			by = ", as " + by + " that wrote it"
		}
		return d.fail(8, ErrVersion, "format version %d, this lanetrace reads up to %d: a later lanetrace is needed%s", v, FileVersion, by)
	}
	return nil
}

// block reads one block.
func (d *decoder) block() error {
	at := d.at
	var h [blockHeaderSize]byte
	if _, err := d.read(h[:]); err == io.EOF {
		return d.fail(d.at, ErrTruncated, "truncated at byte %d, before its end", d.at)
	} else if err != nil {
		return err
	}
	length, typ, flags := binary.LittleEndian.Uint32(h[0:]), blockType(h[4]), h[5]
	known := typ >= blockTrace && typ <= blockEnd
	switch {
	case binary.LittleEndian.Uint32(h[12:]) != checksum(h[:12]):
		return d.fail(at, ErrDamaged, "damaged block at byte %d: checksum of its header differs", at)
	case length > maxPayload:
		return d.fail(at, ErrDamaged, "damaged %v block at byte %d: its length of %d bytes is over %d", typ, at, length, maxPayload)
	case flags&^flagOptional != 0:
		return d.fail(at, ErrDamaged, "damaged %v block at byte %d: unknown flags %#x", typ, at, flags)
	case !known && flags&flagOptional == 0:
		return d.fail(at, ErrVersion, "block at byte %d: %v is not known and not optional: a later lanetrace is needed", at, typ)
	}
	if err := d.payload(int(length)); err == io.EOF {
		return d.fail(d.at, ErrTruncated, "truncated at byte %d, inside the %v block at byte %d", d.at, typ, at)
	} else if err != nil {
		return err
	}
	if checksum(d.buf) != binary.LittleEndian.Uint32(h[8:]) {
		return d.fail(at, ErrDamaged, "damaged %v block at byte %d: checksum differs", typ, at)
	}
	if !known {
		return nil
	}
	if wrong := d.take(typ); wrong != "" {
		return d.fail(at, ErrDamaged, "damaged %v block at byte %d: %s", typ, at, wrong)
	}
	d.seen[typ] = true
	return nil
}

// payload reads a block's payload, in parts, so that a length that cannot be costs
// no memory.
func (d *decoder) payload(n int) error {
	d.buf = d.buf[:0]
	for len(d.buf) < n {
		k := len(d.buf)
		part := min(n-k, 1<<20)
		d.buf = append(d.buf, make([]byte, part)...)
		if _, err := d.read(d.buf[k:]); err != nil {
			return err
		}
	}
	return nil
}

// take takes a block in, whose checksum is right, and says what is wrong with it, ""
// for nothing.
func (d *decoder) take(typ blockType) string {
	switch {
	case typ != blockTrace && !d.seen[blockTrace]:
		return "it comes before the trace block"
	case typ >= blockOps && !(d.seen[blockFunctions] && d.seen[blockRanges]):
		return "it comes before the functions or ranges block"
	case typ != blockOps && d.seen[typ]:
		return "it comes twice"
	case typ < blockOps && d.seen[blockOps]:
		return "it comes after operations"
	}
	f := fields{b: d.buf}
	bad := false
	switch typ {
	case blockTrace:
		region := f.text()
		d.b = newBuilder(region, f.uint())
		d.want, d.b.t.dropped = f.uint(), f.uint()
		bad = d.want > MaxOps
	case blockFunctions:
		n := f.uint()
		if n >= maxFunctions {
			return "it does not decode"
		}
		for i := 0; i < int(n) && !f.bad; i++ {
			d.functions, d.handles = append(d.functions, d.b.name(f.text())), append(d.handles, f.uint())
		}
	case blockRanges:
		n := f.uint()
		if n > maxRanges {
			return "it does not decode"
		}
		for i := 0; i < int(n) && !f.bad; i++ {
			base, bytes := f.uint(), f.uint()
			if !d.b.t.addRange(Range{base, bytes, f.text()}) {
				bad = true
			}
		}
	case blockOps:
		return d.ops(&f)
	case blockEnd:
		if n := f.uint(); n != d.want || n != uint64(d.b.t.n) {
			return fmt.Sprintf("%d operations were read, want %d", d.b.t.n, d.want)
		}
	}
	if bad || f.bad {
		return "it does not decode"
	}
	return ""
}

func (d *decoder) ops(f *fields) string {
	var c codec
	c.reset()
	for len(f.b) > 0 && !f.bad {
		h, fn, args := c.next(f, len(d.functions), d.args)
		if f.bad {
			break
		}
		d.args = args
		h[1] |= uint64(d.functions[fn])
		h[2] = d.handles[fn]
		d.words += headWords + len(args)
		if uint64(d.b.t.n) == d.want || d.words > maxFileWords {
			return fmt.Sprintf("more than %d operations", d.b.t.n)
		}
		d.b.t.put(&h, args, takeChunk)
	}
	if f.bad {
		return "it does not decode"
	}
	return ""
}
