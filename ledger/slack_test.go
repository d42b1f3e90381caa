package ledger

import (
	"errors"
	"strings"
	"testing"
)

// TestSlack holds the definition to numbers reckoned by hand.
func TestSlack(t *testing.T) {
	const c = 2 << 20
	for _, x := range []struct {
		name            string
		allocs          [][2]int64 // address in chunks' bytes, size
		chunk, rounding int64
	}{
		{"nothing", nil, 0, 0},
		{"one byte", [][2]int64{{c, 1}}, c - 1, 0},
		{"two in one chunk", [][2]int64{{c, 1000}, {c + 1024, 1000}}, c - 2000, 0},
		{"two in two chunks", [][2]int64{{c, 1000}, {2 * c, 1000}}, 2*c - 2000, 0},
		{"across a border", [][2]int64{{2*c - 500, 1000}}, 2*c - 1000, 0},
		{"up to a border", [][2]int64{{2*c - 500, 500}}, c - 500, 0},
		{"a byte over it", [][2]int64{{2*c - 500, 501}}, 2*c - 501, 0},
		{"across one, and a neighbour beyond", [][2]int64{{2*c - 500, 1000}, {2*c + 1024, 24}}, 2*c - 1024, 0},
		{"a byte less than a chunk", [][2]int64{{c, c - 1}}, 1, 0},
		{"a chunk", [][2]int64{{c, c}}, 0, 0},
		{"a byte more", [][2]int64{{c, c + 1}}, 0, c - 1},
		{"two larger ones", [][2]int64{{c, 3*c - 7}, {8 * c, c + 100}}, 0, 7 + c - 100},
		{"small and large", [][2]int64{{c, 3*c - 7}, {8 * c, 100}}, c - 100, 7},
	} {
		l := newLedger(t, Options{})
		for _, a := range x.allocs {
			alloc(l, uint64(a[0]), a[1])
		}
		chunk, _ := l.ChunkSlackBytes()
		rounding, _ := l.RoundingSlackBytes()
		if chunk != x.chunk || rounding != x.rounding {
			t.Errorf("%s: chunk slack %d, want %d; rounding slack %d, want %d", x.name, chunk, x.chunk, rounding, x.rounding)
		}
		for _, a := range x.allocs {
			free(l, uint64(a[0]), nil)
		}
		tt, _ := l.Totals()
		if tt.ChunkSlackBytes != 0 || tt.RoundingSlackBytes != 0 || l.chunks.used != 0 {
			t.Errorf("%s: after all frees %+v", x.name, tt)
		}
	}
}

// chunkedDriver takes chunks from its free memory as a driver does.
type chunkedDriver struct {
	chunk, free  int64
	left         int64 // of the current chunk
	next         uint64
	live         int
	noise        map[int]int64 // what others take before the nth call
	calls        int
	failAt       int
	failFreeMem  bool
	failFreeCall bool
}

var errDriver = errors.New("the driver refuses")

func (d *chunkedDriver) freeBytes() (int64, error) {
	if d.failFreeMem {
		return 0, errDriver
	}
	d.calls++
	d.free -= d.noise[d.calls]
	return d.free, nil
}

func (d *chunkedDriver) alloc(n int64) (uint64, error) {
	if d.live+1 == d.failAt {
		return 0, errDriver
	}
	if d.left < n {
		take := (n - d.left + d.chunk - 1) / d.chunk * d.chunk
		d.free -= take
		d.left += take
	}
	d.left -= n
	d.next++
	d.live++
	return d.next, nil
}

func (d *chunkedDriver) release(uint64) error {
	d.live--
	if d.failFreeCall {
		return errDriver
	}
	return nil
}

func TestMeasureChunk(t *testing.T) {
	for _, c := range []struct {
		name string
		d    chunkedDriver
		want int64
		bad  string
	}{
		{"2 MiB", chunkedDriver{chunk: 2 << 20, left: 300 << 10}, 2 << 20, ""},
		{"1 MiB", chunkedDriver{chunk: 1 << 20}, 1 << 20, ""},
		{"64 KiB", chunkedDriver{chunk: 64 << 10}, 64 << 10, ""},
		{"8 MiB", chunkedDriver{chunk: 8 << 20, left: 1}, 8 << 20, ""},
		{"no chunks to speak of", chunkedDriver{chunk: 512}, 64 << 10, ""},
		{"too large", chunkedDriver{chunk: 1 << 30, left: 1 << 30}, 0, "fall 0 times"},
		{"no power of two", chunkedDriver{chunk: 3 << 20}, 0, "3145728"},
		{"others allocate", chunkedDriver{chunk: 2 << 20, noise: map[int]int64{40: 5 << 20}}, 0, "fell by"},
		{"free memory unknown", chunkedDriver{chunk: 2 << 20, failFreeMem: true}, 0, "free memory"},
		{"an allocation refused", chunkedDriver{chunk: 2 << 20, failAt: 9}, 0, "allocate 65536 bytes"},
		{"a free refused", chunkedDriver{chunk: 2 << 20, failFreeCall: true}, 0, "free:"},
	} {
		d := c.d
		d.free = 80 << 30
		got, err := MeasureChunk(d.freeBytes, d.alloc, d.release)
		if got != c.want || (err != nil) != (c.bad != "") || err != nil && !strings.Contains(err.Error(), c.bad) {
			t.Errorf("%s: %d, %v", c.name, got, err)
		}
		if d.live != 0 {
			t.Errorf("%s: %d allocations left", c.name, d.live)
		}
	}
}
