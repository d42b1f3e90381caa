package conformance

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/backend"
)

var wholeTests = []test{
	{"untyped launch", untypedLaunch},
	{"retained and asynchronous copies", keptCopies},
	{"kept copies in a capture", keptInCapture},
	{"pitched copies", pitched},
	{"pinned memory", pinnedMemory},
	{"host pointers", hostPointers},
	{"managed memory", managed},
	{"op cache", opCache},
	{"audit of look-ups", lookupAudit},
	{"what modules say", moduleGlobals},
	{"handles on modules", moduleHandles},
	{"bind a thread", bindThread},
	{"free memory", freeMemory},
	{"wait after each launch", debugSync},
}

func untypedLaunch(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	p := r.words(100, 1)
	out := r.alloc(56)
	region := r.gpu.LaunchTrace().Region("untyped")
	region.Begin(uint64(st))
	l := backend.Launch{Grid: backend.Dim3{2, 1, 1}, Block: backend.Dim3{32, 1, 1}, Stream: st}
	v, n := uint32(0xabcd), uint32(100)
	r.ok(r.gpu.LaunchUntyped(r.k[kFill], &l, []backend.Param{backend.ParamOf(&p), backend.ParamOf(&v), backend.ParamOf(&n)}))
	v, n = 0, 0 // no longer needed
	// Parameters of every size.
	a, b, c, d, e, f, g := uint8(1), uint16(2), int32(-3), uint64(1<<63), float32(1), float64(-2), uint8(9)
	r.ok(r.gpu.LaunchUntyped(r.k[kArgs], &l, []backend.Param{
		backend.ParamOf(&out), backend.ParamOf(&a), backend.ParamOf(&b), backend.ParamOf(&c), backend.ParamOf(&d),
		backend.ParamOf(&e), backend.ParamOf(&f), backend.ParamOf(&g),
	}))
	region.End(0, 0)
	r.wantAll("filled by an untyped launch", st, p, 0xabcd, 100)
	r.wantWords("parameters as the kernel saw them", st, out, []uint32{1, 0, 2, 0, 0xfffffffd, 0, 0, 1 << 31, 0x3f800000, 0, 0, 0xc0000000, 9, 0})
	_, tr := region.Executions()
	want := [][]uint64{{uint64(p), 0xabcd, 100}, {uint64(out), 1, 2, 0xfffffffd, 1 << 63, 0x3f800000, 0xc000000000000000, 9}}
	var got [][]uint64
	for _, o := range tr.Ops() {
		if o.ArgsUnknown {
			t.Log("this driver does not know parameters' sizes")
			want = nil
			break
		}
		got = append(got, o.Args)
	}
	if d := cmp.Diff(want, got); want != nil && d != "" {
		t.Errorf("traced (-want +got):\n%s", d)
	}
	r.refused("no kernel", invalidHandle, r.gpu.LaunchUntyped(0, &l, nil))
	if want != nil {
		r.refused("a parameter too few", invalidValue, r.gpu.LaunchUntyped(r.k[kFill], &l, []backend.Param{backend.ParamOf(&p)}))
	}
	r.refused("a parameter without an address", invalidValue, r.gpu.LaunchUntyped(r.k[kFill], &l, []backend.Param{nil, nil, nil}))
	l.Args = []backend.Arg{backend.U32(1)}
	r.refused("typed arguments too", invalidValue, r.gpu.LaunchUntyped(r.k[kFill], &l, []backend.Param{backend.ParamOf(&p), backend.ParamOf(&v), backend.ParamOf(&n)}))
}

// keptCopies enqueues copies behind work, forgets the memory they need, moves the
// stack and runs the collector.
func keptCopies(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	for i, n := range sizes {
		p, q := r.alloc(n), r.alloc(n)
		r.ok(r.gpu.CopyHtoD(q, pattern(n, uint32(i+100))))
		r.spin(st, 2*time.Millisecond)
		r.retain(p, n, uint32(i), st)
		dst := make([]byte, n)
		r.ok(r.gpu.CopyDtoHAsync(dst, q, st))
		deep(200)
		runtime.GC()
		churn(n)
		r.sync(st)
		wantBytes(t, fmt.Sprintf("%d bytes read without waiting", n), pattern(n, uint32(i+100)), dst)
		got := make([]byte, n)
		r.ok(r.gpu.CopyDtoHOnStream(got, p, st))
		wantBytes(t, fmt.Sprintf("%d bytes from a retained source that nobody remembers", n), pattern(n, uint32(i)), got)
	}
	// To an array that was on the stack.
	p := r.alloc(64)
	r.ok(r.gpu.CopyHtoD(p, pattern(64, 7)))
	var onStack [64]byte
	r.spin(st, 2*time.Millisecond)
	r.ok(r.gpu.CopyDtoHAsync(onStack[:], p, st))
	deep(300)
	runtime.GC()
	r.sync(st)
	wantBytes(t, "an array of a frame that moved", pattern(64, 7), onStack[:])
	// Many chunks, one wait.
	big := r.alloc(1 << 20)
	want := pattern(1<<20, 5)
	r.ok(r.gpu.CopyHtoD(big, want))
	got := make([]byte, 1<<20)
	for at := 0; at < len(got); at += 1 << 14 {
		r.ok(r.gpu.CopyDtoHAsync(got[at:at+1<<14], big+backend.DevicePtr(at), st))
	}
	r.sync(st)
	wantBytes(t, "64 chunks", want, got)
	r.ok(r.gpu.CopyDtoHAsync(nil, big, st))
	r.ok(r.gpu.CopyHtoDAsyncRetained(big, nil, st))
	r.refused("CopyDtoHAsync on no stream", invalidHandle, r.gpu.CopyDtoHAsync(got[:1], big, 0xdead0))
	r.refused("CopyHtoDAsyncRetained on no stream", invalidHandle, r.gpu.CopyHtoDAsyncRetained(big, got[:1], 0xdead0))
	// What is still needed at the end goes with the GPU.
	r.ok(r.gpu.CopyDtoHAsync(make([]byte, 100), big, st))
}

// retain enqueues a copy from memory that is garbage when it returns.
func (r *rig) retain(p backend.DevicePtr, n int, seed uint32, st backend.Stream) {
	r.t.Helper()
	r.ok(r.gpu.CopyHtoDAsyncRetained(p, pattern(n, seed), st))
}

// churn makes garbage of a size, so that freed memory of it is used again.
func churn(n int) {
	for range 20 {
		b := make([]byte, n)
		for i := range b {
			b[i] = 0xdd
		}
		runtime.KeepAlive(b)
	}
}

func keptInCapture(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	p := r.words(16, 3)
	in, err := r.gpu.AllocHostPinned(64)
	r.ok(err)
	out, err := r.gpu.AllocHostPinned(64)
	r.ok(err)
	r.ok(r.gpu.BeginCapture(st))
	r.refused("a copy to Go memory in a capture", captureUnsup, r.gpu.CopyDtoHAsync(make([]byte, 64), p, st))
	r.refused("a copy of Go memory in a capture", captureUnsup, r.gpu.CopyHtoDAsyncRetained(p, make([]byte, 64), st))
	r.ok(r.gpu.CopyHtoDAsyncRetained(p, in, st))
	r.scale(st, p, 2, 16)
	r.ok(r.gpu.CopyDtoHAsync(out, p, st))
	g, err := r.gpu.EndCapture(st)
	r.ok(err)
	for round := range uint32(3) {
		copy(in, le(slices.Repeat([]uint32{round + 5}, 16)))
		r.ok(r.gpu.LaunchGraph(g, st))
		r.sync(st)
		wantBytes(t, "a replay", le(slices.Repeat([]uint32{2 * (round + 5)}, 16)), out)
	}
	r.ok(r.gpu.DestroyGraph(g))
	r.ok(r.gpu.FreeHostPinned(in))
	r.ok(r.gpu.FreeHostPinned(out))
}

func pitched(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	const width, height, from, to = 37, 11, 64, 50
	src, dst := r.alloc(from*height), r.alloc(to*height)
	in := pattern(from*height, 1)
	r.ok(r.gpu.CopyHtoD(src, in))
	r.ok(r.gpu.Memset(dst, 0xcc, to*height))
	r.ok(r.gpu.CopyDtoD2DAsync(dst, to, src, from, width, height, st))
	want := slices.Repeat([]byte{0xcc}, to*height)
	for y := range height {
		copy(want[y*to:][:width], in[y*from:])
	}
	got := make([]byte, to*height)
	r.ok(r.gpu.CopyDtoHOnStream(got, dst, st))
	wantBytes(t, "pitched copy", want, got)
	r.ok(r.gpu.CopyDtoD2DAsync(dst, to, src, from, 0, height, st))
	r.ok(r.gpu.CopyDtoD2DAsync(dst, to, src, from, width, 0, st))
	r.refused("a pitch under the width", invalidValue, r.gpu.CopyDtoD2DAsync(dst, width-1, src, from, width, height, st))
	r.refused("a negative height", invalidValue, r.gpu.CopyDtoD2DAsync(dst, to, src, from, width, -1, st))
	r.refused("no stream", invalidHandle, r.gpu.CopyDtoD2DAsync(dst, to, src, from, width, height, 0xdead0))
}

func pinnedMemory(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	before := r.accounts()
	b, err := r.gpu.AllocHostPinned(1000)
	r.ok(err)
	if len(b) != 1000 || backend.Misaligned(b, 64) {
		t.Errorf("%d bytes, on a border of 64: %v", len(b), !backend.Misaligned(b, 64))
	}
	r.wantAccounts("host memory is not the device's", before)
	copy(b, pattern(1000, 3))
	p := r.alloc(1000)
	r.ok(r.gpu.CopyHtoDAsyncRetained(p, b, r.gpu.DefaultStream()))
	r.sync(r.gpu.DefaultStream())
	clear(b)
	r.ok(r.gpu.CopyDtoH(b, p))
	wantBytes(t, "through pinned memory", pattern(1000, 3), b)
	r.refused("free of a part", invalidValue, r.gpu.FreeHostPinned(b[:999]))
	r.refused("free of another part", invalidValue, r.gpu.FreeHostPinned(b[1:]))
	r.refused("free of other memory", invalidValue, r.gpu.FreeHostPinned(make([]byte, 1000)))
	r.ok(r.gpu.FreeHostPinned(b))
	r.refused("free twice", invalidValue, r.gpu.FreeHostPinned(b))
	r.refused("free of nothing", invalidValue, r.gpu.FreeHostPinned(nil))
	_, err = r.gpu.AllocHostPinned(0)
	r.refused("0 bytes", invalidValue, err)
	_, err = r.gpu.AllocHostPinned(100) // goes with the GPU
	r.ok(err)
}

func hostPointers(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	b, err := r.gpu.AllocHostPinned(400)
	r.ok(err)
	p, err := r.gpu.HostPtrToDevice(b)
	if s.caps.Driverless {
		if !errors.Is(err, backend.ErrNotSupported) {
			t.Errorf("HostPtrToDevice: %v, want ErrNotSupported", err)
		}
		return
	}
	r.ok(err)
	st := r.stream()
	r.fill(st, p, 77, 100)
	r.sync(st)
	wantBytes(t, "what a kernel wrote to host memory", le(slices.Repeat([]uint32{77}, 100)), b)
	_, err = r.gpu.HostPtrToDevice(make([]byte, 10))
	r.refused("memory that is not page-locked", invalidValue, err)
}

func managed(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	p, err := r.gpu.AllocManaged(400)
	r.ok(err)
	r.fill(st, p, 5, 100)
	r.wantAll("managed memory", st, p, 5, 100)
	r.wantAccounts("managed memory", accounts{Live: 400, Count: 1, Peak: 400})
	r.ok(r.gpu.Free(p))
	_, err = r.gpu.AllocManaged(0)
	r.refused("0 bytes", invalidValue, err)
}

func opCache(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	c := r.gpu.OpCache()
	k1, err := c.Kernel(Module, kFill)
	r.ok(err)
	k2, err := c.Kernel(Module, kFill)
	r.ok(err)
	if k1 != k2 || c != r.gpu.OpCache() {
		t.Errorf("kernels %d and %d", k1, k2)
	}
	_, err = c.Kernel(Module, "no_such")
	r.refused("a kernel that is not there", notFound, err)
	a, err := c.Scratch("a", 1000)
	r.ok(err)
	b, err := c.Scratch("b", 1000)
	r.ok(err)
	again, err := c.Scratch("a", 500)
	r.ok(err)
	if a == b || again != a {
		t.Errorf("scratch %#x, %#x, %#x", a, b, again)
	}
	_, err = c.Scratch("a", 5000)
	r.ok(err)
	r.wantAccounts("one grew", accounts{Live: 6000, Count: 2, Peak: 7000})
	// Close empties it without a word: see the account of leaks.
	r2, log := s.configured(t, nil, backend.MemoryConfig{})
	_, err = r2.gpu.OpCache().Scratch("a", 100)
	r.ok(err)
	r.ok(r2.gpu.Close())
	if said := log.with("never freed"); len(said) != 0 {
		t.Errorf("closing said %v", said)
	}
	r2.wantAccounts("closed", accounts{Peak: 100})
}

func lookupAudit(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	if r.gpu.HasModule("no_module") || !r.gpu.HasModule(Module) {
		t.Error("HasModule is wrong")
	}
	if failed, more := r.gpu.FailedLookups(); len(failed) != 0 || more != 0 {
		t.Errorf("asking whether there is a module left %v", failed)
	}
	for range 2 {
		_, err := r.gpu.Kernel(Module, "no_kernel")
		r.refused("no kernel", notFound, err)
	}
	_, err := r.gpu.Kernel("no_module", kFill)
	r.refused("no module", notFound, err)
	want := []backend.FailedLookup{{Module: Module, Function: "no_kernel", Times: 2}, {Module: "no_module", Function: kFill, Times: 1}}
	got, _ := r.gpu.FailedLookups()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("failed look-ups (-want +got):\n%s", d)
	}
}

func moduleGlobals(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	if n, err := r.gpu.KernelNTile(r.k[kFill]); n != 64 || err != nil {
		t.Errorf("tile of fill: %d, %v", n, err)
	}
	_, err := r.gpu.KernelNTile(r.k[kAdd])
	r.refused("a tile of 0", notFound, err)
	_, err = r.gpu.KernelNTile(r.k[kScale])
	r.refused("no tile", notFound, err)
	_, err = r.gpu.KernelNTile(0)
	r.refused("no kernel", invalidHandle, err)
	for k, want := range map[backend.Kernel]bool{r.k[kFill]: true, r.k[kAdd]: false, r.k[kScale]: false, 0: false, 999: false} {
		if got := r.gpu.KernelCastsAToE4M3(k); got != want {
			t.Errorf("kernel %d casts: %v", k, got)
		}
	}
	if failed, _ := r.gpu.FailedLookups(); len(failed) != 0 {
		t.Errorf("globals that are not there are in the audit: %v", failed)
	}
	// Looking up while a capture runs harms nothing.
	st := r.gpu.DefaultStream()
	p := r.words(10, 1)
	r.ok(r.gpu.BeginCapture(st))
	r.fill(st, p, 2, 10)
	_, err = r.gpu.Kernel(Module, kFill)
	r.ok(err)
	g, err := r.gpu.EndCapture(st)
	r.ok(err)
	r.ok(r.gpu.DestroyGraph(g))
}

func moduleHandles(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	m, err := r.gpu.Modules()
	if s.caps.Driverless {
		if !errors.Is(err, backend.ErrNotSupported) {
			t.Errorf("Modules: %v, want ErrNotSupported", err)
		}
		return
	}
	r.ok(err)
	other, err := r.gpu.Modules()
	r.ok(err)
	if d := cmp.Diff([]string{Module}, m.Names()); d != "" {
		t.Error(d)
	}
	fn, err := m.Function(Module, kFill)
	if err != nil || fn == 0 {
		t.Errorf("function %#x, %v", fn, err)
	}
	_, err = m.Function(Module, "no_such")
	r.refused("no function", notFound, err)
	r.ok(other.Close())
	r.ok(other.Close())
	// Modules outlive their GPU for as long as there is a handle.
	r.ok(r.gpu.Close())
	if again, err := m.Function(Module, kFill); err != nil || again == 0 {
		t.Errorf("after the GPU was closed: %#x, %v", again, err)
	}
	r.ok(m.Close())
	_, err = m.Function(Module, kFill)
	r.refused("a handle that was closed", 0, err)
	_, err = r.gpu.Modules()
	r.refused("a GPU that was closed", 0, err)
}

func bindThread(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	elsewhere(func() { r.ok2(r.gpu.BindThread()) })
	r.ok(r.gpu.Close())
	elsewhere(func() {
		if err := r.gpu.BindThread(); err == nil {
			t.Error("bound a closed GPU")
		}
	})
}

func freeMemory(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	device, err := r.gpu.DeviceFreeMemory()
	r.ok(err)
	free, err := r.gpu.FreeMemory()
	r.ok(err)
	// Of a GPU with memory of its own they are the same, but for what others do.
	if free <= 0 || device <= 0 || free < device/2 {
		t.Errorf("free %d, of the device's own %d", free, device)
	}
}

func debugSync(s *suite, t *testing.T) {
	t.Setenv(backend.DebugSyncEnv, "1")
	r := s.rig(t, nil)
	t.Setenv(backend.DebugSyncEnv, "0") // read once
	if !r.gpu.DebugSyncKernels() {
		t.Fatal("it does not wait after launches")
	}
	st := r.stream()
	e := r.event()
	p := r.words(10, 1)
	r.spin(st, time.Millisecond)
	r.ok(r.gpu.RecordEvent(e, st))
	r.fill(st, p, 2, 10)
	if done, err := r.gpu.EventQuery(e); !done || err != nil {
		t.Errorf("behind a launch that was waited for: %v, %v", done, err)
	}
	g := r.capture(st, func() { r.fill(st, p, 3, 10) }) // a capture is never waited for
	r.ok(r.gpu.LaunchGraph(g, st))
	r.wantAll("the capture was unharmed", st, p, 3, 10)
	r.ok(r.gpu.DestroyGraph(g))
	if r2 := s.rig(t, nil); r2.gpu.DebugSyncKernels() {
		t.Error("it waits after launches without being asked to")
	}
}
