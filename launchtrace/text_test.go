package launchtrace

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// golden compares text with a file; LANETRACE_TEST_UPDATE writes it.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", "golden", name+".txt")
	if os.Getenv("LANETRACE_TEST_UPDATE") != "" {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), text); d != "" {
		t.Errorf("%s (-want +got):\n%s", path, d)
	}
}

func atStep(t *Trace, step uint64) *Trace {
	c := *t
	c.step = step
	return &c
}

// TestGoldenReport: everything that a report can say.
func TestGoldenReport(t *testing.T) {
	const kv, again, tmp = 0x7f0000000000, 0x7f8000000000, 0x7f0040000000
	before := []Op{
		kernel("norm", kv, 64),
		kernel("attention", kv+0x100, kv+0x200, 16, 0x3f800000),
		{Kind: KindMemset, Args: []uint64{tmp, 0, 4096}},
		kernel("old", tmp+8),
		{Kind: KindKernel, Func: 0x55d0c0ffee, Grid: [3]uint32{1, 2, 3}, Block: [3]uint32{32, 4, 1}, SharedBytes: 512, ArgsUnknown: true},
		{Kind: KindKernel, Name: "untyped", Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, ArgsUnknown: true},
		{Kind: KindKernel, Name: "sized now", Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, ArgsUnknown: true},
		kernel("sample", 1, 2, 3),
		kernel("longer", 1),
		kernel("ends", 0, math.MaxUint64, 1<<63, 1<<63-1),
		{Kind: KindCopy, Args: []uint64{tmp, kv, 256}},
	}
	after := []Op{
		kernel("norm", again, 64),
		kernel("attention", again+0x108, again+0x200, 17, 0x3f800000),
		{Kind: KindMemset, Args: []uint64{tmp, 255, 8192}},
		{Kind: KindKernel, Func: 0x55d0c0ffee, Grid: [3]uint32{1, 2, 3}, Block: [3]uint32{32, 4, 1}, SharedBytes: 1024, ArgsUnknown: true},
		{Kind: KindKernel, Func: 0x55d0dddddd, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{64, 1, 1}, ArgsUnknown: true},
		{Kind: KindKernel, Name: "untyped", Grid: [3]uint32{2, 1, 1}, Block: [3]uint32{1, 8, 1}, ArgsUnknown: true},
		{Kind: KindKernel, Name: "sized now", Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Args: []uint64{3, again}},
		kernel("sample", 1),
		kernel("longer", 1, tmp),
		kernel("ends", math.MaxUint64, 0, 1<<63-1, 1<<63),
		{Kind: KindCopy, Args: []uint64{tmp, 0x1000, 256}},
		{Kind: KindKernel, Name: "no\nargs\x1b[31m", Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}},
		{Kind: KindCopy, Args: []uint64{0x2000, tmp + 16, 1}},
	}
	a := atStep(trace(t, before...).WithRanges([]Range{{kv, 1 << 20, "kv.go:31"}, {tmp, 1 << 16, "scratch.go:7"}}), 17)
	b := atStep(trace(t, after...).WithRanges([]Range{{again, 1 << 20, "kv.go:31"}, {tmp, 1 << 16, "scratch.go:7"}}), 18)
	plain := checkScript(t, a, b, DiffOptions{})
	bySite := checkScript(t, a, b, DiffOptions{BySite: true})
	golden(t, "all", plain.Report(-1).Text())
	golden(t, "bysite", bySite.Report(-1).Text())
	golden(t, "three", plain.Report(3).Text())
	golden(t, "none", plain.Report(0).Text())
	golden(t, "equal", Diff(a, atStep(a, 18), DiffOptions{}).Report(-1).Text())
	golden(t, "reverse", Diff(b, a, DiffOptions{}).Report(-1).Text())

	// Enough for both insertions and removals to exceed what is aligned.
	many := func(name string) []Op {
		return repeat(4000, func(i int) Op { return kernel(fmt.Sprint(name, i)) })
	}
	c, d := *trace(t, many("old")...), *trace(t, many("new")...)
	c.dropped, d.dropped = 3, 4
	text := Diff(&c, &d, DiffOptions{}).Report(-1).Text()
	lines := strings.SplitAfter(text, "\n")
	golden(t, "block", lines[0]+strings.Join(lines[len(lines)-5:], ""))
}

func TestArgText(t *testing.T) {
	for _, c := range []struct {
		arg  ArgChange
		want string
	}{
		{ArgChange{Arg: 2, Old: 0x10, New: 0x11}, "arg2 0x10 -> 0x11 (+1)"},
		{ArgChange{Arg: 0, Old: 0, New: math.MaxUint64}, "arg0 0x0 -> 0xffffffffffffffff (+18446744073709551615)"},
		{ArgChange{Arg: 0, Old: math.MaxUint64, New: 0}, "arg0 0xffffffffffffffff -> 0x0 (-18446744073709551615)"},
		{ArgChange{Arg: 1, Old: 1 << 63, New: 1<<63 - 1}, "arg1 0x8000000000000000 -> 0x7fffffffffffffff (-1)"},
		{ArgChange{Arg: 1, Old: 1<<63 - 1, New: 1 << 63}, "arg1 0x7fffffffffffffff -> 0x8000000000000000 (+1)"},
		{ArgChange{Arg: 63, Old: 5, New: 5}, "arg63 0x5 -> 0x5 (+0)"},
		{ArgChange{Arg: 3, Old: 0x7f10, New: 0x8f10, OldSite: "kv.go:3+0x10", NewSite: "kv.go:9+0x0"}, "arg3 0x7f10 -> 0x8f10 (+4096) kv.go:3+0x10 -> kv.go:9+0x0"},
		{ArgChange{Arg: 3, Old: 0x7f10, New: 0, OldSite: "kv.go:3+0x10"}, "arg3 0x7f10 -> 0x0 (-32528) kv.go:3+0x10 -> no allocation"},
	} {
		if got := c.arg.Text(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestNoReport(t *testing.T) {
	var p *Report
	if p.Differing() != 0 || p.Partial() || p.Text() != "not recorded\n" {
		t.Errorf("of nothing: %q", p.Text())
	}
}

func TestWords(t *testing.T) {
	for _, c := range []struct {
		b    []byte
		want uint64
	}{
		{nil, 0}, {[]byte{0xff}, 0xff}, {[]byte{1, 2}, 0x201}, {[]byte{1, 2, 3, 4, 5, 6, 7}, 0x07060504030201},
		{[]byte{1, 2, 3, 4, 5, 6, 7, 8}, 0x0807060504030201}, {[]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0x0807060504030201},
	} {
		if got := Word(c.b); got != c.want {
			t.Errorf("%x is %#x, want %#x", c.b, got, c.want)
		}
	}
	for size, want := range map[uint8]uint64{0: 0, 1: 0xef, 2: 0xcdef, 4: 0x89abcdef, 8: 0x0123456789abcdef, 9: 0x0123456789abcdef} {
		if got := WordOf(0x0123456789abcdef, size); got != want {
			t.Errorf("%d bytes are %#x, want %#x", size, got, want)
		}
	}
	for k, want := range map[Kind]string{0: "none", KindKernel: "kernel", KindMemset: "memset", KindCopy: "copy", 9: "kind(9)"} {
		if got := k.String(); got != want {
			t.Errorf("%d is %q", k, got)
		}
	}
	for k, want := range map[EditKind]string{EditChange: "changed", EditInsert: "inserted", EditRemove: "removed", EditReplace: "replaced", 9: "edit(9)"} {
		if got := k.String(); got != want {
			t.Errorf("%d is %q", k, got)
		}
	}
}
