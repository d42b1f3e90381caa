package ledger

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

func TestRedzoneFromEnv(t *testing.T) {
	for _, c := range []struct {
		name string
		env  map[string]string
		in   Redzone
		want Redzone
		bad  []string // variables that the error names
	}{
		{name: "unset"},
		{name: "all", env: map[string]string{"": "100", "_FILL": "0xC3", "_FIRST": "7", "_TRACE": "0"},
			want: Redzone{Bytes: 100, Fill: new(byte(0xc3)), First: 7, Trace: new(uint64(0))}},
		{name: "zero fill", env: map[string]string{"_FILL": "0"}, want: Redzone{Fill: new(byte(0))}},
		{name: "off", env: map[string]string{"": "0"}},
		{name: "largest", env: map[string]string{"": "1073741824", "_FILL": "255", "_FIRST": "18446744073709551615"},
			want: Redzone{Bytes: 1 << 30, Fill: new(byte(255)), First: 1<<64 - 1}},
		{name: "the configuration comes first", env: map[string]string{"": "100", "_FILL": "1", "_FIRST": "7", "_TRACE": "9"},
			in:   Redzone{Bytes: 5, Fill: new(byte(2)), First: 3, Trace: new(uint64(4))},
			want: Redzone{Bytes: 5, Fill: new(byte(2)), First: 3, Trace: new(uint64(4))}},
		{name: "bad size", env: map[string]string{"": "64k"}, bad: []string{"LANETRACE_REDZONE=\"64k\""}},
		{name: "negative", env: map[string]string{"": "-1"}, bad: []string{"LANETRACE_REDZONE="}},
		{name: "too large", env: map[string]string{"": "1073741825"}, bad: []string{"LANETRACE_REDZONE="}},
		{name: "all bad", env: map[string]string{"": "yes", "_FILL": "256", "_FIRST": "1.5", "_TRACE": " 3"},
			bad: []string{"LANETRACE_REDZONE=", "LANETRACE_REDZONE_FILL=", "LANETRACE_REDZONE_FIRST=", "LANETRACE_REDZONE_TRACE="}},
		{name: "hex that is none", env: map[string]string{"_FILL": "0xg"}, bad: []string{"LANETRACE_REDZONE_FILL="}},
	} {
		got, err := c.in.FromEnv(func(k string) string { return c.env[strings.TrimPrefix(k, "LANETRACE_REDZONE")] })
		if (err != nil) != (len(c.bad) > 0) {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for _, v := range c.bad {
			if !strings.Contains(err.Error(), v) {
				t.Errorf("%s: %v does not name %s", c.name, err, v)
			}
		}
		if d := cmp.Diff(c.want, got); d != "" && err == nil {
			t.Errorf("%s: %s", c.name, d)
		}
	}
	for in, want := range map[int64]int64{0: 0, 1: 16, 16: 16, 17: 32, 1<<30 - 1: 1 << 30} {
		r, err := Redzone{Bytes: in}.settle()
		if err != nil || r.Bytes != want || *r.Fill != 0xa5 {
			t.Errorf("%d bytes: %+v, %v", in, r, err)
		}
	}
}

func TestCompareBand(t *testing.T) {
	band := func(n int, fill byte, at map[int]byte) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = fill
			if v, ok := at[i]; ok {
				b[i] = v
			}
		}
		return b
	}
	for _, c := range []struct {
		name string
		band []byte
		fill byte
		want Change
		bad  bool
	}{
		{"empty", nil, 0xa5, Change{}, false},
		{"untouched", band(64, 0xa5, nil), 0xa5, Change{}, false},
		{"one byte, untouched", []byte{7}, 7, Change{}, false},
		{"one byte, changed", []byte{8}, 7, Change{0, 0, 1, 8}, true},
		{"first", band(64, 0xa5, map[int]byte{0: 1}), 0xa5, Change{0, 0, 1, 1}, true},
		{"last", band(64, 0xa5, map[int]byte{63: 0}), 0xa5, Change{63, 63, 1, 0}, true},
		{"some, with untouched ones between", band(64, 0xa5, map[int]byte{5: 0x80, 9: 0xa4, 20: 0xff}), 0xa5, Change{5, 20, 3, 0x80}, true},
		{"all, to one other value", band(16, 0xee, nil), 0xa5, Change{0, 15, 16, 0xee}, true},
		// Bytes, not characters with a sign: 0xff is not -1, and 0x80 not below 0.
		{"high bytes", band(16, 0xff, map[int]byte{3: 0x7f}), 0xff, Change{3, 3, 1, 0x7f}, true},
		{"high fill, untouched", band(16, 0x80, nil), 0x80, Change{}, false},
	} {
		if got, bad := CompareBand(c.band, c.fill); got != c.want || bad != c.bad {
			t.Errorf("%s: %+v, %v", c.name, got, bad)
		}
	}
}

// deviceMemory is a device of a few pages, by address.
type deviceMemory struct {
	base  uint64
	b     []byte
	reads []int // bands of each call
	fail  error
}

func (d *deviceMemory) read(bands []Band, into []byte) error {
	d.reads = append(d.reads, len(bands))
	for _, b := range bands {
		n := copy(into[:b.Bytes], d.b[b.Addr-d.base:])
		into = into[n:]
	}
	if len(into) != 0 {
		return fmt.Errorf("%d bytes too many", len(into))
	}
	return d.fail
}

func (d *deviceMemory) fill(b Band) error {
	for i := range b.Bytes {
		d.b[b.Addr-d.base+uint64(i)] = b.Fill
	}
	return d.fail
}

// alloc makes an allocation and fills its band, as a backend does.
func (d *deviceMemory) alloc(l *Ledger, addr uint64, bytes int64) {
	p := l.Begin(device, bytes)
	off, n, fill := p.Guard()
	for i := range n {
		d.b[addr-d.base+uint64(off+i)] = fill
	}
	p.Done(addr)
}

func TestScanAndPoison(t *testing.T) {
	logged, log := newLog()
	w, r := heapRing(t, testGeometry)
	l := newLedger(t, Options{Logger: log, Redzone: Redzone{Bytes: 20, Fill: new(byte(0xc3)), First: 1}})
	l.Attach(w, 5, true)
	d := &deviceMemory{base: 1 << 20, b: make([]byte, 1<<16)}
	d.alloc(l, 1<<20, 1000)         // 0: too early for a band
	d.alloc(l, 1<<20+0x4000, 100)   // 1
	d.alloc(l, 1<<20+0x1000, 50)    // 2
	d.alloc(l, 1<<20+0x2000, 0x333) // 3
	scan := func(want int) {
		t.Helper()
		if n, err := l.ScanBands(d.read, d.fill); n != want || err != nil {
			t.Errorf("%d violated, want %d, %v", n, want, err)
		}
	}
	scan(0)
	if lines := logged.lines(); lines != nil || cmp.Diff([]int{3}, d.reads) != "" {
		t.Errorf("%q, %v", lines, d.reads)
	}
	// A write past the end of 2, and one far past that of 3; the last byte of 1 and
	// the first one behind its band are nobody's business.
	d.b[0x1000+50+4], d.b[0x1000+50+6], d.b[0x2000+0x333+31] = 0x01, 0x02, 0xff
	d.b[0x4000+99], d.b[0x4000+100+32] = 9, 9
	scan(2)
	scan(0) // filled anew
	var got []spanring.Violation
	buf := make([]spanring.Entry, 64)
	n, _ := r.Poll(buf, 0)
	for _, e := range buf[:n] {
		if v, err := e.Words.Violation(); err == nil {
			if s, ok := r.Name(v.Site); !ok || !strings.Contains(s.Text, "band_test.go:") || v.MonoNS <= 0 {
				t.Errorf("%+v at %+v", v, s)
			}
			v.Site, v.MonoNS = 0, 0
			got = append(got, v)
		}
	}
	want := []spanring.Violation{
		{Context: 5, Addr: 1<<20 + 0x1000, Bytes: 50, GuardBytes: 32, Index: 2, First: 4, Last: 6, Changed: 2, Fill: 0xc3, Value: 1},
		{Context: 5, Addr: 1<<20 + 0x2000, Bytes: 0x333, GuardBytes: 32, Index: 3, First: 31, Last: 31, Changed: 1, Fill: 0xc3, Value: 0xff},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	lines := logged.lines()
	if len(lines) != 2 || !strings.Contains(lines[0], "level=ERROR") || !strings.Contains(lines[0], "index=2 site=") ||
		!strings.Contains(lines[0], "band_test.go:") ||
		!strings.Contains(lines[0], "bytes=50 address=0x101000 band_bytes=32 first_offset=4 last_offset=6 changed=2 first_value=0x01 fill=0xc3") {
		t.Errorf("log:\n%s", strings.Join(lines, "\n"))
	}

	// Poison: 2 in the range, 1 and 3 outside; later scans expect that.
	if err := l.PoisonBands(2, 3, d.fill); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[int]byte{0x1000 + 50: 0xee, 0x1000 + 81: 0xee, 0x1000 + 82: 0, 0x4000 + 100: 0, 0x2000 + 0x333 + 31: 0, 0x4000 + 99: 9} {
		if d.b[at] != want {
			t.Errorf("%#x holds %#x, want %#x", at, d.b[at], want)
		}
	}
	scan(0)
	d.b[0x1000+50] = 0xc3
	scan(1)
	if d.b[0x1000+50] != 0xee {
		t.Errorf("filled anew with %#x", d.b[0x1000+50])
	}
	tt, _ := l.Totals()
	if tt.Violations != 3 || tt.RedzoneScans != 5 || tt.GuardBytes != 96 {
		t.Errorf("%+v", tt)
	}
	if _, s, _ := r.Allocs(nil); s.Totals != tt {
		t.Errorf("ring %+v, ledger %+v", s.Totals, tt)
	}

	d.fail = errors.New("the copy failed")
	if n, err := l.ScanBands(d.read, d.fill); n != 0 || !errors.Is(err, d.fail) {
		t.Errorf("%d, %v", n, err)
	}
	if err := l.PoisonBands(0, 1, d.fill); !errors.Is(err, d.fail) {
		t.Error(err)
	}
	if n, err := l.ScanBands(func(bands []Band, into []byte) error { return nil }, d.fill); n != 1 || !errors.Is(err, d.fail) {
		t.Errorf("a band that cannot be filled: %d, %v", n, err)
	}
	// At level off it is found all the same, and counted when the level rises.
	d.fail = nil
	l.SetPublishing(false)
	before := w.Published()
	d.b[0x1000+50] = 1
	if err := l.PoisonBands(0, 100, d.fill); err != nil {
		t.Fatal(err)
	}
	d.b[0x1000+50] = 1
	scan(1)
	if w.Published() != before {
		t.Error("an entry was written at level off")
	}
	l.SetPublishing(true)
	if tt, _ := l.Totals(); w.Counter(spanring.CtrViolations) != tt.Violations || tt.Violations != 5 {
		t.Errorf("%d violations, %d in the ring", tt.Violations, w.Counter(spanring.CtrViolations))
	}
}

// TestNoBands: without guard bands nothing is read or filled.
func TestNoBands(t *testing.T) {
	l := newLedger(t, Options{})
	alloc(l, 4096, 10)
	never := func([]Band, []byte) error { t.Error("reads"); return nil }
	fill := func(Band) error { t.Error("fills"); return nil }
	if n, err := l.ScanBands(never, fill); n != 0 || err != nil {
		t.Error(n, err)
	}
	if err := l.PoisonBands(0, 9, fill); err != nil {
		t.Error(err)
	}
	if tt, _ := l.Totals(); tt.RedzoneScans != 0 {
		t.Errorf("%+v", tt)
	}
}

// TestScanInParts: bands that are too much for one read come in several, each
// band whole.
func TestScanInParts(t *testing.T) {
	l := newLedger(t, Options{Redzone: Redzone{Bytes: 6 << 20}})
	for i := range uint64(5) {
		alloc(l, (i+1)<<30, 1)
	}
	var calls []int
	n, err := l.ScanBands(func(bands []Band, into []byte) error {
		calls = append(calls, len(bands))
		if len(into) != len(bands)*6<<20 {
			t.Errorf("%d bytes for %d bands", len(into), len(bands))
		}
		for i := range into {
			into[i] = 0xa5
		}
		if len(calls) == 2 {
			into[6<<20] = 0
		}
		return nil
	}, func(b Band) error {
		if b.Allocation.Index != 3 {
			t.Errorf("fills %+v", b)
		}
		return nil
	})
	if n != 1 || err != nil || cmp.Diff([]int{2, 2, 1}, calls) != "" {
		t.Errorf("%d, %v, %v", n, err, calls)
	}
}

func TestRanges(t *testing.T) {
	l := newLedger(t, Options{ChunkBytes: 4096})
	b := func(addr uint64, n int64) Band { return Band{Addr: addr, Bytes: n} }
	got := l.Ranges([]Band{
		b(4096+100, 16), b(4096+200, 16), b(8192-16, 16), // one chunk, up to its end
		b(8192, 16), b(12288-8, 16), // across a border
		b(12288+100, 16), // in the chunk where that one ends, but not where it begins
		b(1<<20, 10000),  // several chunks long
	})
	want := []Range{
		{4096 + 100, 4096 - 100, 3}, {8192, 16, 1}, {12288 - 8, 16, 1}, {12288 + 100, 16, 1}, {1 << 20, 10000, 1},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	n := 0
	for _, r := range got {
		n += r.Bands
	}
	if n != 7 {
		t.Errorf("%d bands", n)
	}
}

// TestTrace: the allocation asked for is logged with its stack, others are not.
func TestTrace(t *testing.T) {
	logged, log := newLog()
	l := newLedger(t, Options{Logger: log, Redzone: Redzone{Trace: new(uint64(1))}})
	alloc(l, 4096, 10)
	alloc(l, 8192, 20)
	free(l, 4096, nil)
	free(l, 8192, nil)
	lines := logged.lines()
	if len(lines) != 2 {
		t.Fatalf("log:\n%s", strings.Join(lines, "\n"))
	}
	for i, want := range []string{"traced allocation allocated", "traced allocation freed"} {
		if s := lines[i]; !strings.Contains(s, want) || !strings.Contains(s, "index=1 address=0x2000 bytes=20") || !strings.Contains(s, "ledger.TestTrace ") {
			t.Error(s)
		}
	}
}
