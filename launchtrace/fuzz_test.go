package launchtrace

import (
	"bytes"
	"errors"
	"testing"
)

// opsOf makes operations of bytes, three each, few enough of a sort that many are
// alike.
func opsOf(b []byte, base uint64) []Op {
	var ops []Op
	for ; len(b) >= 3; b = b[3:] {
		what, x, y := b[0], uint64(b[1]), uint64(b[2])
		switch what & 7 {
		case 0:
			ops = append(ops, Op{Kind: KindMemset, Args: []uint64{base + x, y, 64}})
		case 1:
			ops = append(ops, Op{Kind: KindCopy, Args: []uint64{base + x, base + y, 64}})
		case 2:
			ops = append(ops, Op{Kind: KindKernel, Func: x & 3, Args: []uint64{y}})
		case 3:
			ops = append(ops, Op{Kind: KindKernel, Func: x, Name: "untyped", SharedBytes: uint32(y), ArgsUnknown: true})
		default:
			o := Op{Kind: KindKernel, Func: y, Name: string('a' + rune(what>>6)), Grid: [3]uint32{uint32(what >> 4 & 1), 1, 1}}
			for range what & 3 {
				o.Args = append(o.Args, base+x, y)
			}
			ops = append(ops, o)
		}
	}
	return ops
}

// keysOf numbers kinds and functions alike in both.
func keysOf(a, b []Op) (ka, kb []int32) {
	type key struct {
		kind Kind
		name string
		fn   uint64
	}
	ids := map[key]int32{}
	of := func(ops []Op) (k []int32) {
		for _, o := range ops {
			x := key{kind: o.Kind, name: o.Name}
			if o.Name == "" {
				x.fn = o.Func
			}
			if _, ok := ids[x]; !ok {
				ids[x] = int32(len(ids))
			}
			k = append(k, ids[x])
		}
		return k
	}
	return of(a), of(b)
}

// FuzzDiff compares any two sequences. The counts must add up, the edits must make
// the second of the first, and no alignment on kind and function be shorter.
func FuzzDiff(f *testing.F) {
	f.Add([]byte{}, []byte{}, false)
	f.Add([]byte("\x04\x01\x02\x05\x01\x02\x01\x09\x09"), []byte("\x04\x01\x02\x01\x09\x09"), false)
	f.Add(bytes.Repeat([]byte{6, 1, 2}, 40), append(bytes.Repeat([]byte{6, 1, 2}, 20), bytes.Repeat([]byte{6, 1, 3}, 25)...), true)
	f.Fuzz(func(t *testing.T, x, y []byte, bySite bool) {
		const limit = 3 * 120
		from, to := opsOf(x[:min(len(x), limit)], 0x10000), opsOf(y[:min(len(y), limit)], 0x20000)
		a := trace(t, from...).WithRanges([]Range{{0x10000, 0xf0, "site"}})
		b := trace(t, to...).WithRanges([]Range{{0x20000, 0xf0, "site"}})
		s := checkScript(t, a, b, DiffOptions{BySite: bySite})
		if s.Limited() {
			t.Fatal("limited")
		}
		ka, kb := keysOf(from, to)
		if want := distance(ka, kb); s.Inserted()+s.Removed() != want {
			t.Fatalf("%d inserted and %d removed, where %d are needed", s.Inserted(), s.Removed(), want)
		}
		back := checkScript(t, b, a, DiffOptions{BySite: bySite})
		if back.Inserted() != s.Removed() || back.Removed() != s.Inserted() {
			t.Fatalf("%+v, and the other way round %+v", countsOf(s), countsOf(back))
		}
		if self := Diff(a, a, DiffOptions{BySite: bySite}); len(self.Edits()) != 0 {
			t.Fatalf("a sequence differs from itself: %s", self.Report(-1).Text())
		}
	})
}

// FuzzDecode takes anything for a file. What can be read must come out of another
// round of writing and reading.
func FuzzDecode(f *testing.F) {
	good := encoded(f, anyTrace(f))
	f.Add(good)
	f.Add(good[:100])
	f.Add([]byte(fileMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		tr, err := Decode(bytes.NewReader(b), "x")
		if err != nil {
			var fe *FileError
			if !errors.As(err, &fe) || fe.Offset < 0 || fe.Offset > int64(len(b)) {
				t.Fatalf("%v", err)
			}
			return
		}
		if tr.Len() > len(b) {
			t.Fatalf("%d operations in %d bytes", tr.Len(), len(b))
		}
		again, err := Decode(bytes.NewReader(encoded(t, tr)), "x")
		if err != nil {
			t.Fatal(err)
		}
		sameTrace(t, tr, again)
		if s := Diff(tr, again, DiffOptions{}); len(s.Edits()) != 0 {
			t.Fatal(s.Report(-1).Text())
		}
	})
}

// FuzzOps takes anything for the operations of a block, whose checksum would keep
// most of it from the decoder.
func FuzzOps(f *testing.F) {
	tr := anyTrace(f)
	var c codec
	c.reset()
	var b []byte
	for w := range tr.words() {
		b = c.append(b, w, uint64(w.name()))
	}
	f.Add(b)
	f.Add([]byte{1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, ops []byte) {
		blocks := [][2]any{
			{blockTrace, []byte{1, 'r', 3, 0xff, 0xff, 3, 0}},
			{blockFunctions, []byte{3, 1, 'f', 5, 1, 'g', 6, 0, 7}},
			{blockRanges, []byte{0}},
			{blockOps, ops},
		}
		d := decoder{functions: []uint32{0}, handles: []uint64{0}}
		for _, x := range blocks {
			d.buf = x[1].([]byte)
			wrong := d.take(x[0].(blockType))
			d.seen[x[0].(blockType)] = true
			if wrong != "" && x[0] != blockOps {
				t.Fatal(wrong)
			}
			if wrong != "" {
				return
			}
		}
		if d.b.t.Len()*11 > len(ops) {
			t.Fatalf("%d operations in %d bytes", d.b.t.Len(), len(ops))
		}
		again, err := Decode(bytes.NewReader(encoded(t, d.b.t)), "x")
		if err != nil {
			t.Fatal(err)
		}
		sameTrace(t, d.b.t, again)
	})
}
