package recording

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
)

// Version is the version of the file format that this package writes. It reads
// all versions up to it.
const Version = 1

// Suffix ends the name of a recording.
const Suffix = ".ltrec"

// magic begins every recording. The line ends and the end-of-file character show
// a file that was copied as text.
const magic = "LTREC\r\n\x1a"

const (
	fileHeaderSize  = 64
	blockHeaderSize = 16
	writerTextSize  = 48

	// maxStored and maxRaw bound a block's payload as stored and decompressed.
	// Writers stay far below.
	maxStored = 8 << 20
	maxRaw    = 16 << 20
	// maxRuns is how many runs a file can hold.
	maxRuns = 1<<16 - 1
)

type blockType uint8

const (
	blockRun      blockType = 1
	blockNames    blockType = 2
	blockEntries  blockType = 3
	blockState    blockType = 4
	blockEnd      blockType = 5
	blockFileEnd  blockType = 6
	blockAllocs   blockType = 7 // optional
	blockReadings blockType = 8 // optional; of the file
)

func (t blockType) String() string {
	switch t {
	case blockRun:
		return "run"
	case blockNames:
		return "names"
	case blockEntries:
		return "entries"
	case blockState:
		return "state"
	case blockEnd:
		return "end"
	case blockFileEnd:
		return "file end"
	case blockAllocs:
		return "allocations"
	case blockReadings:
		return "readings"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

const (
	// flagOptional: a reader that does not know the block's type skips it.
	flagOptional = 1 << 0
	// flagZstd: the payload is one zstd frame.
	flagZstd = 1 << 1

	knownFlags = flagOptional | flagZstd
)

// Errors about files, told apart with errors.Is. Each is wrapped in an [Error].
var (
	// ErrNotRecording: the file does not begin as a recording.
	ErrNotRecording = errors.New("not a lanetrace recording")
	// ErrVersion: a recording of a later version of the format.
	ErrVersion = errors.New("recording of a later version")
	// ErrDamaged: a block's checksum or content is wrong.
	ErrDamaged = errors.New("damaged recording")
	// ErrTruncated: the file ends before the recording does.
	ErrTruncated = errors.New("truncated recording")
)

// Error says which file could not be read, and where. Its text is one line.
type Error struct {
	Path   string // as given to Open
	Offset int64  // of the block or byte in question
	Kind   error  // ErrNotRecording, ErrVersion, ErrDamaged or ErrTruncated
	Detail string
}

// Error is the whole message: "recording PATH: …".
func (e *Error) Error() string { return "recording " + e.Path + ": " + e.Detail }

// Unwrap returns Kind.
func (e *Error) Unwrap() error { return e.Kind }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// appendFileHeader appends the header of a file written by writer, which names
// the program and its version.
func appendFileHeader(b []byte, version uint16, writer string) []byte {
	var h [fileHeaderSize]byte
	copy(h[:8], magic)
	binary.LittleEndian.PutUint16(h[8:], version)
	copy(h[16:], writer[:min(len(writer), writerTextSize)])
	binary.LittleEndian.PutUint32(h[12:], fileHeaderSum(&h))
	return append(b, h[:]...)
}

func fileHeaderSum(h *[fileHeaderSize]byte) uint32 {
	return crc32.Update(checksum(h[:12]), castagnoli, h[16:])
}

// parseFileHeader checks the beginning of a file of which n header bytes were
// there. An error has no path yet.
func parseFileHeader(h *[fileHeaderSize]byte, n int) (writer string, err *Error) {
	if n == 0 {
		return "", &Error{Kind: ErrNotRecording, Detail: "not a recording: the file is empty"}
	}
	if m := min(n, len(magic)); string(h[:m]) != magic[:m] {
		return "", &Error{Kind: ErrNotRecording, Detail: "not a recording: it does not begin with " + magic[:5]}
	}
	if n < fileHeaderSize {
		return "", &Error{Offset: int64(n), Kind: ErrTruncated, Detail: fmt.Sprintf("truncated at byte %d, inside the file header", n)}
	}
	if binary.LittleEndian.Uint32(h[12:]) != fileHeaderSum(h) {
		return "", &Error{Kind: ErrDamaged, Detail: "damaged file header at byte 0: checksum differs"}
	}
	writer = strings.ToValidUTF8(strings.TrimRight(string(h[16:]), "\x00"), "\ufffd")
	writer = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, writer)
	if v := binary.LittleEndian.Uint16(h[8:]); v == 0 || v > Version {
		by := ""
		if writer != "" {
			by = ", as " + writer + " that wrote it"
		}
		return "", &Error{Offset: 8, Kind: ErrVersion, Detail: fmt.Sprintf("format version %d, this lanetrace reads up to %d: a later lanetrace is needed%s", v, Version, by)}
	}
	return writer, nil
}

// blockHeader is a block's header as it stands in the file.
type blockHeader struct {
	length uint32
	typ    blockType
	flags  uint8
	run    uint16
	sum    uint32
}

func (h *blockHeader) append(b []byte) []byte {
	at := len(b)
	b = binary.LittleEndian.AppendUint32(b, h.length)
	b = append(b, byte(h.typ), h.flags)
	b = binary.LittleEndian.AppendUint16(b, h.run)
	b = binary.LittleEndian.AppendUint32(b, h.sum)
	return binary.LittleEndian.AppendUint32(b, checksum(b[at:]))
}

// parseBlockHeader returns what is wrong with the header, "" for nothing.
func parseBlockHeader(b *[blockHeaderSize]byte) (h blockHeader, wrong string) {
	h = blockHeader{
		length: binary.LittleEndian.Uint32(b[0:]), typ: blockType(b[4]), flags: b[5],
		run: binary.LittleEndian.Uint16(b[6:]), sum: binary.LittleEndian.Uint32(b[8:]),
	}
	switch {
	case binary.LittleEndian.Uint32(b[12:]) != checksum(b[:12]):
		return h, "checksum of its header differs"
	case h.length > maxStored:
		return h, fmt.Sprintf("its length of %d bytes is over %d", h.length, maxStored)
	case h.flags&^knownFlags != 0:
		return h, fmt.Sprintf("unknown flags %#x", h.flags)
	case (h.run == 0) == h.ofRun() && h.known():
		return h, fmt.Sprintf("%v block of run %d", h.typ, h.run)
	case !h.known() && h.flags&flagOptional == 0:
		return h, fmt.Sprintf("%v is not known and not optional: a later lanetrace is needed", h.typ)
	}
	return h, ""
}

func (h *blockHeader) known() bool { return h.typ >= blockRun && h.typ <= blockReadings }

// ofRun reports whether the block belongs to a run, rather than to the file.
func (h *blockHeader) ofRun() bool { return h.typ != blockFileEnd && h.typ != blockReadings }
