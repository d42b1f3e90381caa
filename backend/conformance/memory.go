package conformance

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/backend"
)

var memoryTests = []test{
	{"copies", copies},
	{"offsets", offsets},
	{"device to device", deviceToDevice},
	{"memset", memsets},
	{"nothing", zeroBytes},
	{"async source is free at once", asyncSource},
	{"async copies keep their order", asyncOrder},
	{"behind a stream's work", behindWork},
	{"figures", figures},
	{"bad", badMemory},
}

// sizes are a byte, odd ones, and some around the units that drivers pack, stage
// and split by.
var sizes = []int{1, 3, 511, 512, 4 << 10, 64<<10 + 1, 1<<20 - 1, 2<<20 + 5}

func copies(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	for i, n := range sizes {
		want := pattern(n, uint32(i))
		p := r.alloc(n)
		r.ok(r.gpu.CopyHtoD(p, want))
		got := make([]byte, n)
		r.ok(r.gpu.CopyDtoH(got, p))
		wantBytes(t, fmt.Sprintf("%d bytes there and back", n), want, got)
		r.ok(r.gpu.Free(p))
	}
}

func offsets(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	want := pattern(1000, 1)
	p := r.alloc(1000)
	r.ok(r.gpu.CopyHtoD(p, want))
	patch := pattern(100, 2)
	r.ok(r.gpu.CopyHtoD(p+333, patch))
	copy(want[333:], patch)
	got := make([]byte, 700)
	r.ok(r.gpu.CopyDtoH(got, p+300))
	wantBytes(t, "bytes 300 to 1000", want[300:], got)
}

func deviceToDevice(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	for i, n := range sizes {
		want := pattern(n, uint32(i))
		a, b, c := r.alloc(n), r.alloc(n), r.alloc(n)
		r.ok(r.gpu.CopyHtoD(a, want))
		r.ok(r.gpu.CopyDtoD(b, a, n))
		r.ok(r.gpu.CopyDtoDAsync(c, b, n, st))
		got := make([]byte, n)
		r.ok(r.gpu.CopyDtoHOnStream(got, c, st))
		wantBytes(t, fmt.Sprintf("%d bytes copied twice within the device", n), want, got)
	}
}

func memsets(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	const n = 100_003
	p := r.alloc(n)
	r.ok(r.gpu.Memset(p, 0xa5, n))
	r.ok(r.gpu.MemsetAsync(p+1, 0x3c, n-2, st))
	got := make([]byte, n)
	r.ok(r.gpu.CopyDtoHOnStream(got, p, st))
	want := bytes.Repeat([]byte{0x3c}, n)
	want[0], want[n-1] = 0xa5, 0xa5
	wantBytes(t, "memset", want, got)
}

func zeroBytes(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st, p := r.stream(), r.alloc(1)
	for what, err := range map[string]error{
		"CopyHtoD":         r.gpu.CopyHtoD(p, nil),
		"CopyDtoH":         r.gpu.CopyDtoH(nil, p),
		"CopyDtoD":         r.gpu.CopyDtoD(p, p, 0),
		"CopyHtoDAsync":    r.gpu.CopyHtoDAsync(p, []byte{}, st),
		"CopyDtoDAsync":    r.gpu.CopyDtoDAsync(p, p, 0, st),
		"CopyDtoHOnStream": r.gpu.CopyDtoHOnStream([]byte{}, p, st),
		"Memset":           r.gpu.Memset(p, 1, 0),
		"MemsetAsync":      r.gpu.MemsetAsync(p, 1, 0, st),
		"Free of null":     r.gpu.Free(0),
	} {
		if err != nil {
			t.Errorf("%s of nothing: %v", what, err)
		}
	}
}

// asyncSource overwrites the source of a copy that cannot have begun, moves the
// stack and runs the collector.
func asyncSource(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	for i, n := range sizes {
		p := r.alloc(n)
		r.spin(st, 2*time.Millisecond)
		src := pattern(n, uint32(i))
		r.ok(r.gpu.CopyHtoDAsync(p, src, st))
		for j := range src {
			src[j] = 0xee
		}
		deep(200)
		runtime.GC()
		got := make([]byte, n)
		r.ok(r.gpu.CopyDtoHOnStream(got, p, st))
		wantBytes(t, fmt.Sprintf("%d bytes whose source was overwritten", n), pattern(n, uint32(i)), got)
	}
	// From and to the stack.
	p := r.alloc(64)
	r.spin(st, 2*time.Millisecond)
	fromStack(r, p, st)
	var got [64]byte
	r.ok(r.gpu.CopyDtoHOnStream(got[:], p, st))
	wantBytes(t, "a source on a stack that is gone", pattern(64, 99), got[:])
}

func fromStack(r *rig, p backend.DevicePtr, st backend.Stream) {
	var src [64]byte
	copy(src[:], pattern(64, 99))
	r.ok(r.gpu.CopyHtoDAsync(p, src[:], st))
	src = [64]byte{}
}

// deep makes the stack grow and writes to it.
func deep(n int) int {
	var b [512]byte
	for i := range b {
		b[i] = byte(n)
	}
	if n == 0 {
		return int(b[7])
	}
	return deep(n-1) + int(b[n%512])
}

// asyncOrder enqueues more than staging memory is likely to hold.
func asyncOrder(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	const n, rounds = 300_000, 60
	p, sum := r.alloc(n), r.alloc(n*rounds)
	for i := range rounds {
		r.ok(r.gpu.CopyHtoDAsync(p, pattern(n, uint32(i)), st))
		r.ok(r.gpu.CopyDtoDAsync(sum+backend.DevicePtr(i*n), p, n, st))
	}
	got := make([]byte, n*rounds)
	r.ok(r.gpu.CopyDtoHOnStream(got, sum, st))
	for i := range rounds {
		wantBytes(t, fmt.Sprintf("round %d", i), pattern(n, uint32(i)), got[i*n:][:n])
	}
	// Many small ones in flight at once.
	r.spin(st, 2*time.Millisecond)
	for i := range 5000 {
		r.ok(r.gpu.CopyHtoDAsync(p+backend.DevicePtr(4*i), le([]uint32{uint32(i) * 7}), st))
	}
	want := make([]uint32, 5000)
	for i := range want {
		want[i] = uint32(i) * 7
	}
	r.wantWords("5,000 small copies", st, p, want)
}

// behindWork reads what a busy stream is still to write.
func behindWork(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	p := r.words(100, 1)
	r.spin(st, 3*time.Millisecond)
	r.fill(st, p, 42, 100)
	r.wantAll("read behind the work on a stream", st, p, 42, 100)
	// Blocking copies are ordered on the default stream.
	d := r.gpu.DefaultStream()
	r.spin(d, 3*time.Millisecond)
	r.fill(d, p, 43, 100)
	got := make([]byte, 4)
	r.ok(r.gpu.CopyDtoH(got, p))
	wantBytes(t, "CopyDtoH behind the default stream", le([]uint32{43}), got)
}

func figures(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	total, err := r.gpu.TotalMemory()
	r.ok(err)
	before, err := r.gpu.FreeMemory()
	r.ok(err)
	if total <= 0 || before <= 0 || before > total {
		t.Errorf("total memory %d, free %d", total, before)
	}
	const n = 64 << 20
	p := r.alloc(n)
	during, err := r.gpu.FreeMemory()
	r.ok(err)
	// Another process may take or give memory meanwhile.
	if d := before - during; d < n/2 || d > 2*n {
		t.Errorf("allocating %d bytes took %d", n, d)
	}
	r.ok(r.gpu.Free(p))
	after, err := r.gpu.FreeMemory()
	r.ok(err)
	if after <= during {
		t.Errorf("free memory is %d after a free, was %d", after, during)
	}
	if n, err := r.gpu.SMCount(); err != nil || n <= 0 {
		t.Errorf("SMCount: %d, %v", n, err)
	}
	if r.gpu.Name() == "" {
		t.Error("device has no name")
	}
}

func badMemory(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	_, err := r.gpu.Alloc(0)
	r.refused("Alloc(0)", invalidValue, err)
	_, err = r.gpu.Alloc(-1)
	r.refused("Alloc(-1)", invalidValue, err)
	_, err = r.gpu.Alloc(1 << 45)
	r.refused("Alloc of 32 TiB", outOfMemory, err)
	p := r.alloc(100)
	r.ok(r.gpu.Free(p))
	r.refused("Free twice", invalidValue, r.gpu.Free(p))
	r.refused("Free of nothing that was allocated", invalidValue, r.gpu.Free(0x1234))
	q := r.alloc(100)
	r.refused("CopyDtoD of -1 bytes", invalidValue, r.gpu.CopyDtoD(q, q, -1))
	r.refused("Memset of -1 bytes", invalidValue, r.gpu.Memset(q, 0, -1))
	r.refused("MemsetAsync on no stream", invalidHandle, r.gpu.MemsetAsync(q, 0, 1, 0xdead0))
	r.refused("CopyHtoDAsync on no stream", invalidHandle, r.gpu.CopyHtoDAsync(q, []byte{1}, 0xdead0))
	r.refused("CopyDtoHOnStream on no stream", invalidHandle, r.gpu.CopyDtoHOnStream([]byte{1}, q, 0xdead0))
	// All that leaves the GPU as it was.
	r.ok(r.gpu.CopyHtoD(q, []byte{1, 2, 3}))
	var got [3]byte
	r.ok(r.gpu.CopyDtoH(got[:], q))
	wantBytes(t, "after what was refused", []byte{1, 2, 3}, got[:])
}
