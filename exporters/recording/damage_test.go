package recording

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/internal/synth"
)

// blockAt are the offsets of a recording's blocks.
func blockAt(t testing.TB, b []byte) (at []int, typ []blockType) {
	t.Helper()
	f := &File{r: bytes.NewReader(b), size: int64(len(b))}
	bl := blocks{f: f, offset: fileHeaderSize}
	for bl.offset < f.size {
		h, err := bl.header()
		if err != nil {
			t.Fatal(err)
		}
		at, typ = append(at, int(bl.offset)), append(typ, h.typ)
		bl.skip(&h)
	}
	return at, typ
}

// readAll opens b and plays its runs one after the other, until something is
// wrong.
func readAll(t testing.TB, b []byte) (entries int, err error) {
	t.Helper()
	f, err := NewReader(bytes.NewReader(b), int64(len(b)), "x.ltrec")
	if err != nil {
		return 0, err
	}
	for i := range f.Runs() {
		s, err := f.Source(i)
		if err != nil {
			return entries, err
		}
		p, err := play(t, s, 64, nil)
		s.Close()
		entries += len(p.Entries)
		if err != nil {
			return entries, err
		}
	}
	return entries, f.Damage()
}

func rawBlock(t blockType, flags uint8, run uint16, payload string) []byte {
	h := blockHeader{length: uint32(len(payload)), typ: t, flags: flags, run: run, sum: checksum([]byte(payload))}
	return append(h.append(nil), payload...)
}

func TestDamage(t *testing.T) {
	whole, want := recordBytes(t, Options{FlushEntries: 100}, synth.New(synth.Options{Duration: 50 * time.Millisecond}))
	at, typ := blockAt(t, whole)
	third := 0 // the third block of entries
	for i, seen := 0, 0; i < len(at); i++ {
		if typ[i] == blockEntries {
			if seen++; seen == 3 {
				third = at[i]
			}
		}
	}
	end := at[len(at)-1]
	num := func(format string, n int) string { return strings.ReplaceAll(format, "#", itoa(n)) }
	change := func(i int, v byte) func([]byte) []byte {
		return func(b []byte) []byte { b[i] ^= v; return b }
	}
	for _, tc := range []struct {
		name    string
		change  func(b []byte) []byte
		entries int // -1: all
		kind    error
		text    string
	}{
		{"untouched", func(b []byte) []byte { return b }, -1, nil, ""},
		{"payload", change(third+blockHeaderSize+9, 1), 200, ErrDamaged, num("recording x.ltrec: damaged block at byte #: checksum differs", third)},
		{"header", change(third+1, 0x10), 200, ErrDamaged, num("recording x.ltrec: damaged block at byte #: checksum of its header differs", third)},
		{"cut in payload", func(b []byte) []byte { return b[:third+blockHeaderSize+20] }, 200, ErrTruncated, num("recording x.ltrec: truncated block at byte #: 20 of ", third)},
		{"cut in header", func(b []byte) []byte { return b[:third+5] }, 200, ErrTruncated, num("recording x.ltrec: truncated block at byte #: 5 of the header's 16 bytes", third)},
		{"cut between blocks", func(b []byte) []byte { return b[:third] }, 200, ErrTruncated, num("recording x.ltrec: truncated at byte #: the end is missing", third)},
		{"cut before the file's end", func(b []byte) []byte { return b[:end] }, -1, ErrTruncated, num("recording x.ltrec: truncated at byte #: the end is missing", end)},
		{"more behind it", func(b []byte) []byte { return append(b, "junk"...) }, -1, ErrDamaged, num("recording x.ltrec: damaged at byte #: 4 bytes follow its end", len(whole))},
		{"first block", change(fileHeaderSize+blockHeaderSize, 1), 0, ErrDamaged, "recording x.ltrec: damaged block at byte 64: checksum differs"},
		{"empty", func([]byte) []byte { return nil }, 0, ErrNotRecording, "recording x.ltrec: not a recording: the file is empty"},
		{"text", func([]byte) []byte { return []byte("hello, world\n") }, 0, ErrNotRecording, "recording x.ltrec: not a recording: it does not begin with LTREC"},
		{"copied as text", func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n")) }, 0, ErrNotRecording, "recording x.ltrec: not a recording: it does not begin with LTREC"},
		{"cut in file header", func(b []byte) []byte { return b[:30] }, 0, ErrTruncated, "recording x.ltrec: truncated at byte 30, inside the file header"},
		{"only the file header", func(b []byte) []byte { return b[:fileHeaderSize] }, 0, ErrTruncated, "recording x.ltrec: truncated at byte 64: the end is missing"},
		{"file header", change(20, 1), 0, ErrDamaged, "recording x.ltrec: damaged file header at byte 0: checksum differs"},
		{
			"later version", func(b []byte) []byte {
				return append(appendFileHeader(nil, Version+1, "lanetrace v9.0.0"), b[fileHeaderSize:]...)
			}, 0, ErrVersion,
			"recording x.ltrec: format version 2, this lanetrace reads up to 1: a later lanetrace is needed, as lanetrace v9.0.0 that wrote it",
		},
		{
			"unknown block, optional", func(b []byte) []byte {
				return bytes.Join([][]byte{b[:third], rawBlock(77, flagOptional, 1, "?"), b[third:]}, nil)
			}, -1, nil, "",
		},
		{
			"unknown block", func(b []byte) []byte {
				return bytes.Join([][]byte{b[:third], rawBlock(77, 0, 1, "?"), b[third:]}, nil)
			}, 200, ErrDamaged, num("recording x.ltrec: damaged block at byte #: type 77 is not known and not optional: a later lanetrace is needed", third),
		},
		{
			"unknown flag", func(b []byte) []byte {
				return bytes.Join([][]byte{b[:third], rawBlock(blockNames, 0x80, 1, ""), b[third:]}, nil)
			}, 200, ErrDamaged, num("recording x.ltrec: damaged block at byte #: unknown flags 0x80", third),
		},
		{
			"other run", func(b []byte) []byte {
				return bytes.Join([][]byte{b[:third], rawBlock(blockNames, 0, 9, ""), b[third:]}, nil)
			}, -1, ErrDamaged, num("recording x.ltrec: damaged block at byte #: it belongs to run 9, which did not begin", third),
		},
		{
			"run begun twice", func(b []byte) []byte {
				return bytes.Join([][]byte{b[:third], rawBlock(blockRun, 0, 1, ""), b[third:]}, nil)
			}, 200, ErrDamaged, num("recording x.ltrec: damaged block at byte #: ", third),
		},
		{
			"no zstd", func(b []byte) []byte {
				return bytes.Join([][]byte{b[:third], rawBlock(blockEntries, flagZstd, 1, "no zstd frame"), b[third:]}, nil)
			}, 200, ErrDamaged, num("recording x.ltrec: damaged block at byte #: it does not decompress", third),
		},
		{
			"no entries", func(b []byte) []byte {
				return bytes.Join([][]byte{b[:third], rawBlock(blockEntries, 0, 1, "\x05\x00\x00"), b[third:]}, nil)
			}, 200, ErrDamaged, num("recording x.ltrec: damaged block at byte #: its entries cannot be", third),
		},
		{
			"endless length", func(b []byte) []byte {
				h := blockHeader{length: maxStored + 1, typ: blockNames, run: 1}
				return append(b[:third:third], h.append(nil)...)
			}, 200, ErrDamaged, num("recording x.ltrec: damaged block at byte #: its length of 8388609 bytes is over 8388608", third),
		},
		{
			"file ends before the run", func(b []byte) []byte {
				return append(b[:third:third], b[end:]...)
			}, 200, ErrDamaged, num("recording x.ltrec: damaged block at byte #: the file ends before run 1 does", third),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, err := readAll(t, tc.change(bytes.Clone(whole)))
			if tc.entries < 0 {
				tc.entries = len(want[0].Entries)
			}
			if n != tc.entries {
				t.Errorf("%d entries, want %d", n, tc.entries)
			}
			if !errors.Is(err, tc.kind) || (err == nil) != (tc.kind == nil) {
				t.Fatalf("error %v, want %v", err, tc.kind)
			}
			if err == nil {
				return
			}
			if !strings.HasPrefix(err.Error(), tc.text) || strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("error %q, want %q", err, tc.text)
			}
			var e *Error
			if !errors.As(err, &e) || e.Path != "x.ltrec" {
				t.Errorf("error %#v is no Error of x.ltrec", err)
			}
		})
	}
}

func itoa(n int) string {
	var b []byte
	for ; n > 0; n /= 10 {
		b = append([]byte{byte('0' + n%10)}, b...)
	}
	return string(b)
}

// Whatever is cut off, what comes before it is read, and the cut is told.
func TestEveryCut(t *testing.T) {
	whole, want := recordBytes(t, Options{FlushEntries: 20}, synth.New(synth.Options{Duration: 8 * time.Millisecond}))
	last := 0
	for n := range whole {
		f, err := NewReader(bytes.NewReader(whole[:n]), int64(n), "x.ltrec")
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("cut at %d: %v", n, err)
			}
			continue
		}
		if !errors.Is(f.Damage(), ErrTruncated) {
			t.Fatalf("cut at %d: damage %v", n, f.Damage())
		}
		s, err := f.Source(0)
		if err != nil {
			t.Fatalf("cut at %d: %v", n, err)
		}
		p, err := play(t, s, 64, nil)
		s.Close()
		if err == nil && !f.Runs()[0].Complete {
			t.Fatalf("cut at %d: no error", n)
		}
		if len(p.Entries) < last {
			t.Fatalf("cut at %d: %d entries, %d when cut earlier", n, len(p.Entries), last)
		}
		last = len(p.Entries)
		if d := cmp.Diff(want[0].Entries[:last], p.Entries[:last:last]); d != "" && last > 0 {
			t.Fatalf("cut at %d (-want +got):\n%s", n, d)
		}
		if a := p.Account; a.Received != uint64(last) || a.Published != a.Received+a.Lost+a.Missed+a.Pending {
			t.Fatalf("cut at %d: account %+v after %d entries", n, a, last)
		}
	}
	if last != len(want[0].Entries) {
		t.Errorf("%d entries of %d", last, len(want[0].Entries))
	}
}

func TestOpenBad(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct{ name, path, text string }{
		{"missing", filepath.Join(dir, "no.ltrec"), "open recording: open " + filepath.Join(dir, "no.ltrec") + ": no such file or directory"},
		{"directory", dir, "recording " + dir + ": not a recording: it is a directory"},
		{"device", "/dev/null", "recording /dev/null: not a recording: it is no regular file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Open(tc.path)
			if err == nil || err.Error() != tc.text {
				t.Errorf("error %v, want %s", err, tc.text)
			}
		})
	}
	empty := filepath.Join(dir, "empty.ltrec")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(empty); !errors.Is(err, ErrNotRecording) {
		t.Errorf("empty file: %v", err)
	}
}

func FuzzReader(f *testing.F) {
	whole, _ := recordBytes(f, Options{FlushEntries: 40}, synth.New(synth.Options{Duration: 8 * time.Millisecond}))
	f.Add(whole)
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := readAll(t, b)
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Errorf("error without a place: %v", err)
		}
		readAllReadings(t, b)
		// The same with checksums that fit: what is behind them is looked at too.
		b = resum(bytes.Clone(b))
		readAll(t, b)
		readAllReadings(t, b)
	})
}

// readAllReadings reads the readings of b to their end, until something is wrong.
func readAllReadings(t testing.TB, b []byte) {
	t.Helper()
	f, err := NewReader(bytes.NewReader(b), int64(len(b)), "x.ltrec")
	if err != nil {
		return
	}
	_, err = readings(t, f)
	var e *Error
	if err != nil && !errors.As(err, &e) {
		t.Errorf("error without a place: %v", err)
	}
}

// resum makes the checksums of b fit its content, as far as the lengths lead.
func resum(b []byte) []byte {
	if len(b) < fileHeaderSize {
		return b
	}
	copy(b, appendFileHeader(nil, Version, string(b[16:fileHeaderSize])))
	for at := fileHeaderSize; at+blockHeaderSize <= len(b); {
		h := b[at : at+blockHeaderSize]
		n := int(binary.LittleEndian.Uint32(h) & 0xffff)
		n = min(n, len(b)-at-blockHeaderSize)
		binary.LittleEndian.PutUint32(h, uint32(n))
		binary.LittleEndian.PutUint32(h[8:], checksum(b[at+blockHeaderSize:at+blockHeaderSize+n]))
		binary.LittleEndian.PutUint32(h[12:], checksum(h[:12]))
		at += blockHeaderSize + n
	}
	return b
}
