package launchtrace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// anyTrace is a trace with everything in it.
func anyTrace(t testing.TB) *Trace {
	t.Helper()
	max3 := [3]uint32{math.MaxUint32, math.MaxUint32, math.MaxUint32}
	ops := append(layers(20),
		Op{Kind: KindKernel, Func: math.MaxUint64, Grid: max3, Block: max3, SharedBytes: math.MaxUint32, Args: []uint64{math.MaxUint64, 0, 1 << 63}},
		Op{Kind: KindKernel, Func: 7, Name: strings.Repeat("ö", 512), ArgsUnknown: true},
		Op{Kind: KindKernel, Func: 8, Name: "\xff\n", ArgsUnknown: true},
		Op{Kind: KindKernel, Func: math.MaxUint64},
		Op{Kind: KindCopy, Args: []uint64{0x9000, 0x5000, 12}},
		kernel("norm"),
	)
	tr := trace(t, ops...).WithRanges([]Range{{0x9000, 4096, "scratch.go:7"}, {math.MaxUint64 - 10, 11, "kv.go:12"}})
	tr.step, tr.dropped = math.MaxUint64, 99
	return tr
}

func encoded(t testing.TB, tr *Trace) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Encode(&b, tr, "test 1.0"); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// sameTrace compares all that a trace tells.
func sameTrace(t testing.TB, want, got *Trace) {
	t.Helper()
	type told struct {
		Region        string
		Step, Dropped uint64
		Len           int
		Ranges        []Range
	}
	tell := func(t *Trace) told {
		return told{t.Region(), t.Step(), t.Dropped(), t.Len(), t.Ranges()}
	}
	if d := cmp.Diff(tell(want), tell(got), cmpopts.EquateEmpty()); d != "" {
		t.Fatalf("(-want +got):\n%s", d)
	}
	sameOps(t, want.Ops(), got.Ops())
}

func sameOps(t testing.TB, want, got []Op) {
	t.Helper()
	if len(want) != len(got) {
		t.Fatalf("%d operations, want %d", len(got), len(want))
	}
	for i := range want {
		if !want[i].equal(&got[i]) || want[i].Func != got[i].Func {
			t.Fatalf("operation %d (-want +got):\n%s", i, cmp.Diff(want[i], got[i]))
		}
	}
}

func TestFileRoundTrip(t *testing.T) {
	for name, tr := range map[string]*Trace{
		"everything": anyTrace(t), "nothing": trace(t), "one": trace(t, Op{Kind: KindMemset}),
		"large": trace(t, layers(20_000)...),
	} {
		path := filepath.Join(t.TempDir(), "a"+FileSuffix)
		for range 2 { // replacing what is there
			if err := WriteFile(path, tr, "test 1.0"); err != nil {
				t.Fatal(err)
			}
		}
		got, err := ReadFile(path)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		sameTrace(t, tr, got)
		st, err := os.Stat(path)
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", name, st.Mode(), err)
		}
		if es, err := os.ReadDir(filepath.Dir(path)); err != nil || len(es) != 1 {
			t.Errorf("%s: %d files are left, %v", name, len(es), err)
		}
		if n := st.Size(); name == "large" && n > 2<<20 {
			t.Errorf("100,000 operations take %d bytes", n)
		}
		if d := Diff(tr, got, DiffOptions{}); len(d.Edits()) != 0 {
			t.Errorf("%s: %s", name, d.Report(3).Text())
		}
	}
}

func TestFileErrors(t *testing.T) {
	dir := t.TempDir()
	tr := anyTrace(t)
	good := encoded(t, tr)
	block := func(typ blockType, flags byte, payload ...byte) []byte {
		return append(appendBlockHeader(nil, typ, flags, payload), payload...)
	}
	header := good[:fileHeaderSize]
	again := func(f func(h []byte)) []byte {
		b := bytes.Clone(good)
		f(b)
		binary.LittleEndian.PutUint32(b[12:], headerSum((*[fileHeaderSize]byte)(b)))
		return b
	}
	file := func(blocks ...[]byte) []byte { return append(bytes.Clone(header), bytes.Join(blocks, nil)...) }
	head := block(blockTrace, 0, 1, 'r', 3, 2, 0)
	functions := block(blockFunctions, 0, 1, 1, 'f', 5)
	ranges := block(blockRanges, 0, 0)
	op := []byte{1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}
	ops := block(blockOps, 0, append(op, op...)...)
	for _, c := range []struct {
		name   string
		b      []byte
		kind   error
		offset int64
		text   string
	}{
		{"empty", nil, ErrNotTrace, 0, "not a launch trace: the file is empty"},
		{"text", []byte("hello, world"), ErrNotTrace, 0, "not a launch trace: it does not begin with LTOPS"},
		{"recording", []byte("LTREC\r\n\x1a and so on"), ErrNotTrace, 0, "does not begin with LTOPS"},
		{"copied as text", bytes.ReplaceAll(good, []byte("\r\n"), []byte("\n")), ErrNotTrace, 0, "does not begin with LTOPS"},
		{"cut in its magic", good[:5], ErrTruncated, 5, "truncated at byte 5, inside the file header"},
		{"cut in its header", good[:63], ErrTruncated, 63, "truncated at byte 63, inside the file header"},
		{"only a header", header, ErrTruncated, 64, "truncated at byte 64, before its end"},
		{"cut before its end", good[:len(good)-5], ErrTruncated, int64(len(good) - 5), fmt.Sprintf("truncated at byte %d", len(good)-5)},
		{"cut in a payload", good[:85], ErrTruncated, 85, "truncated at byte 85, inside the trace block at byte 64"},
		{"later version", again(func(h []byte) { h[8] = 2 }), ErrVersion, 8, "format version 2, this lanetrace reads up to 1: a later lanetrace is needed, as test 1.0 that wrote it"},
		{"version 0", again(func(h []byte) { h[8] = 0 }), ErrVersion, 8, "format version 0"},
		{"something behind", append(bytes.Clone(good), 0), ErrDamaged, int64(len(good)), fmt.Sprintf("damaged at byte %d: something follows its end", len(good))},
		{"operations first", file(ops), ErrDamaged, 64, "damaged operations block at byte 64: it comes before the trace block"},
		{"operations second", file(head, ops), ErrDamaged, 85, "it comes before the functions or ranges block"},
		{"end without ranges", file(head, functions, block(blockEnd, 0, 2)), ErrDamaged, 105, "it comes before the functions or ranges block"},
		{"two heads", file(head, head), ErrDamaged, 85, "it comes twice"},
		{"late ranges", file(head, functions, ranges, ops, ranges), ErrDamaged, 160, "it comes twice"},
		{"too few", file(head, functions, ranges, block(blockOps, 0, op...), block(blockEnd, 0, 2)), ErrDamaged, 149, "1 operations were read, want 2"},
		{"too many", file(head, functions, ranges, ops, ops), ErrDamaged, 160, "more than 2 operations"},
		{"end disagrees", file(head, functions, ranges, ops, block(blockEnd, 0, 1)), ErrDamaged, 160, "2 operations were read, want 2"},
		{"unknown block", file(head, block(9, 0, 1)), ErrVersion, 85, "block at byte 85: type 9 is not known and not optional"},
		{"unknown flags", file(block(blockTrace, 2, 1)), ErrDamaged, 64, "unknown flags 0x2"},
		{"too long", file(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32([]byte{0, 0, 0, 0x10, 1, 0, 0, 0}, 0), checksum([]byte{0, 0, 0, 0x10, 1, 0, 0, 0, 0, 0, 0, 0}))), ErrDamaged, 64, "its length of 268435456 bytes is over"},
		{"a name too long", file(block(blockTrace, 0, append([]byte{0x81, 8}, make([]byte, 1030)...)...)), ErrDamaged, 64, "it does not decode"},
		{"too many operations promised", file(block(blockTrace, 0, 1, 'r', 3, 0xff, 0xff, 0xff, 0xff, 1, 0)), ErrDamaged, 64, "it does not decode"},
		{"a function that is not there", file(head, functions, ranges, block(blockOps, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0)), ErrDamaged, 122, "it does not decode"},
		{"kind 4", file(head, functions, ranges, block(blockOps, 0, 4, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0)), ErrDamaged, 122, "it does not decode"},
		{"flag 2", file(head, functions, ranges, block(blockOps, 0, 1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0)), ErrDamaged, 122, "it does not decode"},
		{"unknown arguments that are there", file(head, functions, ranges, block(blockOps, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0)), ErrDamaged, 122, "it does not decode"},
		{"grid beyond 32 bits", file(head, functions, ranges, block(blockOps, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0)), ErrDamaged, 122, "it does not decode"},
		{"half an operation", file(head, functions, ranges, block(blockOps, 0, 1, 0, 1, 0, 0, 0)), ErrDamaged, 122, "it does not decode"},
		{"ranges that overlap", file(head, functions, block(blockRanges, 0, 2, 10, 5, 1, 'a', 12, 5, 1, 'b')), ErrDamaged, 105, "it does not decode"},
	} {
		path := filepath.Join(dir, "x")
		if err := os.WriteFile(path, c.b, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadFile(path)
		var fe *FileError
		if !errors.As(err, &fe) || !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", c.name, err)
		} else if fe.Offset != c.offset || fe.Path != path {
			t.Errorf("%s: %v: offset %d, want %d", c.name, err, fe.Offset, c.offset)
		}
	}
	for _, c := range []struct{ path, text string }{
		{filepath.Join(dir, "absent"), "launch trace " + filepath.Join(dir, "absent") + ": no such file or directory"},
		{dir, "launch trace " + dir + ": not a regular file"},
	} {
		if _, err := ReadFile(c.path); err == nil || err.Error() != c.text {
			t.Errorf("%v, want %s", err, c.text)
		}
	}
	if _, err := Decode(iotest.ErrReader(errors.New("disk on fire")), "x"); err == nil || err.Error() != "launch trace x: read at byte 0: disk on fire" {
		t.Errorf("%v", err)
	}
	// Blocks that are not known and optional, and fields behind those that are.
	ok := file(block(blockTrace, 0, 1, 'r', 3, 2, 0, 99, 99), block(77, flagOptional, 1, 2, 3), functions, ranges, ops, block(blockEnd, 0, 2, 5))
	got, err := Decode(bytes.NewReader(ok), "x")
	if err != nil || got.Len() != 2 || got.Ops()[1].Name != "f" || got.Step() != 3 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestFileDamage: no byte can change, and no end be missing, without an error that
// says where.
func TestFileDamage(t *testing.T) {
	good := encoded(t, anyTrace(t))
	rnd := rand.New(rand.NewPCG(1, 1))
	for i := range good {
		b := bytes.Clone(good)
		b[i] ^= 1 << rnd.IntN(8)
		var fe *FileError
		if _, err := Decode(bytes.NewReader(b), "x"); !errors.As(err, &fe) || fe.Offset > int64(len(b)) || !strings.Contains(err.Error(), "byte") && !errors.Is(err, ErrNotTrace) {
			t.Fatalf("byte %d: %v", i, err)
		}
		if _, err := Decode(bytes.NewReader(good[:i]), "x"); !errors.Is(err, ErrTruncated) && i > 0 {
			t.Fatalf("cut at %d: %v", i, err)
		}
	}
}

func TestWriteFileFails(t *testing.T) {
	tr := anyTrace(t)
	dir := t.TempDir()
	if err := WriteFile(filepath.Join(dir, "absent", "a"), tr, ""); err == nil || !strings.HasSuffix(err.Error(), ": no such file or directory") {
		t.Errorf("%v", err)
	}
	// A folder cannot be replaced, and the temporary does not stay.
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(sub, tr, ""); err == nil || strings.Count(err.Error(), "sub") != 1 {
		t.Errorf("%v", err)
	}
	if es, _ := os.ReadDir(dir); len(es) != 1 {
		t.Errorf("%d files are left", len(es))
	}
	n := len(encoded(t, tr))
	for _, k := range []int{0, 10, 100, n - 1} {
		if err := Encode(&short{k}, tr, ""); !errors.Is(err, errShort) {
			t.Errorf("a writer that takes %d of %d bytes: %v", k, n, err)
		}
	}
}

var errShort = errors.New("no space left")

// short takes so many bytes.
type short struct{ n int }

func (s *short) Write(b []byte) (int, error) {
	if len(b) > s.n {
		n := s.n
		s.n = 0
		return n, errShort
	}
	s.n -= len(b)
	return len(b), nil
}

var _ io.Writer = (*short)(nil)
