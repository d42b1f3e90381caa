//go:build cgo

package cuda

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/internal/testdriver"
	"github.com/lanetrace/lanetrace/internal/testdriver/control"
	"github.com/lanetrace/lanetrace/ledger"
)

// TestIntegrated: on a GPU that shares the host's memory, what can be allocated is
// the larger of both figures; the driver's own stays what it is.
func TestIntegrated(t *testing.T) {
	lib, ctl := controlled(t)
	for _, c := range []struct {
		integrated bool
		host       int64
		hostErr    error
		free       int64 // 0: as the driver says
	}{
		{false, 1 << 40, nil, 0},
		{true, 1 << 40, nil, 1 << 40},
		{true, 1 << 20, nil, 0},
		{true, 0, errors.New("no meminfo"), 0},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			ctl.SetTotalMemory(8 << 30)
			ctl.SetIntegrated(c.integrated)
			g := openTest(t, Config{Library: lib})
			defer g.Close()
			g.hostFree = func() (int64, error) { return c.host, c.hostErr }
			device, err := g.DeviceFreeMemory()
			if device <= 7<<30 || device > 8<<30 || err != nil {
				t.Errorf("device free %d, %v", device, err)
			}
			if c.free == 0 {
				c.free = device
			}
			free, err := g.FreeMemory()
			if !errors.Is(err, c.hostErr) || err == nil && free != c.free {
				t.Errorf("free %d, %v, want %d, %v", free, err, c.free, c.hostErr)
			}
		})
	}
	if n, err := hostAvailable(); err != nil || n < 1<<20 || n%1024 != 0 {
		t.Errorf("this host has %d bytes available, %v", n, err)
	}
}

// TestBadEnvironment: what cannot be right is an error that names its variable.
func TestBadEnvironment(t *testing.T) {
	lib := standIn(t)
	for _, v := range [][2]string{
		{"LANETRACE_REDZONE", "many"}, {"LANETRACE_REDZONE", "-1"}, {"LANETRACE_REDZONE_FILL", "256"},
		{"LANETRACE_REDZONE_FIRST", "x"}, {"LANETRACE_REDZONE_TRACE", "1.5"}, {backend.DebugSyncEnv, "yes"},
	} {
		t.Run(v[0]+"="+v[1], func(t *testing.T) {
			t.Setenv(v[0], v[1])
			g, err := Open(Config{Library: lib})
			if err == nil {
				g.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), v[0]+"=") {
				t.Errorf("error %v", err)
			}
		})
	}
	t.Setenv("LANETRACE_REDZONE", "0x20")
	g := openTest(t, Config{Library: lib})
	defer g.Close()
	if _, err := g.Alloc(100); err != nil {
		t.Fatal(err)
	}
	if m, _ := g.LedgerProbe().Totals(); m.GuardBytes != 32 {
		t.Errorf("guard bytes %d", m.GuardBytes)
	}
}

// TestDriverWithoutTheRest: what a driver lacks is ErrNotSupported, and nothing else is
// harmed.
func TestDriverWithoutTheRest(t *testing.T) {
	standIn(t)
	lib := testdriver.BuildWithout(t, "cuMemAllocManaged", "cuMemcpy2DAsync_v2", "cuMemHostGetDevicePointer_v2", "cuModuleGetGlobal_v2", "cuCtxSetCurrent", "cuFuncGetParamInfo")
	f := newFixture(t, Config{Library: lib})
	_, errManaged := f.g.AllocManaged(10)
	b, err := f.g.AllocHostPinned(10)
	f.ok(err)
	_, errHost := f.g.HostPtrToDevice(b)
	for what, err := range map[string]error{
		"AllocManaged": errManaged, "HostPtrToDevice": errHost, "BindThread": f.g.BindThread(),
		"CopyDtoD2DAsync": f.g.CopyDtoD2DAsync(f.p, 8, f.p+100, 8, 4, 2, f.s),
	} {
		if !errors.Is(err, backend.ErrNotSupported) {
			t.Errorf("%s: %v, want ErrNotSupported", what, err)
		}
	}
	if _, err := f.g.KernelNTile(f.k); err == nil {
		t.Error("a tile width without globals")
	}
	if n, _ := f.g.LiveCount(); n != 1 {
		t.Errorf("%d allocations live, want the fixture's", n)
	}
	// Without sizes an untyped launch passes addresses on, and the trace says so.
	region := f.g.LaunchTrace().Region("old")
	region.Begin()
	cycles := uint64(10)
	f.ok(f.g.LaunchUntyped(f.k, &backend.Launch{Grid: one, Block: one, Stream: f.s}, []backend.Param{backend.ParamOf(&cycles)}))
	region.End(0, 0)
	_, tr := region.Executions()
	if ops := tr.Ops(); len(ops) != 1 || !ops[0].ArgsUnknown {
		t.Errorf("traced %+v", ops)
	}
	f.ok(f.g.Close())
}

// TestGuardBandFails: an allocation whose band cannot be filled is none, and a scan
// or a sweep that the driver refuses says so.
func TestGuardBandFails(t *testing.T) {
	lib, ctl := controlled(t)
	g := openTest(t, Config{Library: lib, Memory: backend.MemoryConfig{Redzone: ledger.Redzone{Bytes: 64}}})
	defer g.Close()
	before := ctl.Live("allocation")
	fail := func(f string, r control.Result) {
		t.Helper()
		if err := ctl.Fail(f, r, 0, 1); err != nil {
			t.Fatal(err)
		}
	}
	fail("cuMemsetD8Async", 719)
	if _, err := g.Alloc(100); err == nil || ctl.Live("allocation") != before {
		t.Errorf("alloc: %v, %d allocations", err, ctl.Live("allocation")-before)
	}
	p, err := g.Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	fail("cuMemcpyDtoHAsync_v2", 700)
	if _, err := g.ScanRedzones(); !errors.Is(err, ErrIllegalAddress) {
		t.Errorf("scan: %v", err)
	}
	fail("cuMemFree_v2", 700)
	if err := g.Free(p); !errors.Is(err, ErrIllegalAddress) {
		t.Errorf("free: %v", err)
	}
	if n, _ := g.LiveBytes(); n != 100 {
		t.Errorf("%d bytes live after a free that failed", n)
	}
	if n, err := g.SweepUnreleased(); n != 1 || err != nil {
		t.Errorf("sweep: %d, %v", n, err)
	}
	if m, _ := g.LedgerProbe().Totals(); m.LiveBytes != 0 || m.GuardBytes != 0 || m.AllocsFailed != 1 || m.FreesFailed != 1 {
		t.Errorf("totals %+v", m)
	}
}

// TestScanWhereTheDriverRefusesBorders: the stand-in refuses copies over the borders
// of allocations; bands are read one by one from then on.
func TestScanWhereTheDriverRefusesBorders(t *testing.T) {
	lib, ctl := controlled(t)
	g := openTest(t, Config{Library: lib, Memory: backend.MemoryConfig{Redzone: ledger.Redzone{Bytes: 64}}})
	defer g.Close()
	ptrs, _ := allocMany(t, g, 100, func(int) int { return 1000 })
	for _, i := range []int{3, 50, 99} {
		if err := g.Memset(ptrs[i]+1000+64-1, 0, 1); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []struct {
		violated int
		copies   uint64
	}{{3, 101}, {0, 100}} {
		calls, syncs := ctl.Calls("cuMemcpyDtoHAsync_v2"), ctl.Calls("cuStreamSynchronize")
		if n, err := g.ScanRedzones(); n != want.violated || err != nil {
			t.Errorf("scan: %d, %v, want %d", n, err, want.violated)
		}
		if n := ctl.Calls("cuMemcpyDtoHAsync_v2") - calls; n != want.copies {
			t.Errorf("%d copies, want %d", n, want.copies)
		}
		// Two streams of the engine's, one wait for each batch of copies, one for fills.
		if n := ctl.Calls("cuStreamSynchronize") - syncs; n > 5 {
			t.Errorf("%d waits", n)
		}
	}
}

// TestPlanReads reads bands of a memory that is a slice, whole stretches and one by
// one, through buffers of several sizes.
func TestPlanReads(t *testing.T) {
	const base = 0x10000
	memory := make([]byte, 1<<20)
	for i := range memory {
		memory[i] = byte(i * 7)
	}
	led, err := ledger.New(ledger.Options{ChunkBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	var list []ledger.Band
	var want []byte
	for i, at := 0, 0; at < len(memory)-100_000; i++ {
		at += []int{1000, 64, 70_000, 300, 40_000}[i%5]
		list = append(list, ledger.Band{Addr: base + uint64(at), Bytes: 64})
		want = append(want, memory[at:at+64]...)
		at += 64
	}
	ranges := led.Ranges(list)
	joined := 0
	for _, room := range []int64{64, 1000, 4096, 100_000, 1 << 20} {
		for _, apart := range []bool{true, false} {
			var got []byte
			rest := list
			for len(rest) > 0 {
				reads, n := planReads(nil, rest, led.Ranges(rest), room, apart)
				if n == 0 {
					t.Fatalf("no progress with room for %d", room)
				}
				buf := make([]byte, room)
				bands := 0
				for _, r := range reads {
					copy(buf[r.at:r.at+r.bytes], memory[r.addr-base:])
					bands += r.bands
					if r.bands > 1 {
						joined++
					}
				}
				if bands != n {
					t.Errorf("%d bands in %d reads, said %d", bands, len(reads), n)
				}
				into := make([]byte, 64*n)
				takeBands(rest[:n], reads, buf, into)
				got, rest = append(got, into...), rest[n:]
			}
			if !slices.Equal(got, want) {
				t.Errorf("room for %d, apart %v: other bytes", room, apart)
			}
		}
	}
	if joined == 0 || len(ranges) == len(list) {
		t.Errorf("%d stretches of neighbours, %d ranges of %d bands: nothing was joined", joined, len(ranges), len(list))
	}
}

// A band larger than the buffer that scans read into is read in pieces.
func TestLargeBand(t *testing.T) {
	lib := standIn(t)
	g := openTest(t, Config{Library: lib, Memory: backend.MemoryConfig{Redzone: ledger.Redzone{Bytes: bandBuffer + 4096}}})
	defer g.Close()
	var last backend.DevicePtr
	for range 2 {
		p, err := g.Alloc(100)
		if err != nil {
			t.Fatal(err)
		}
		last = p
	}
	if err := g.Memset(last+100+bandBuffer+1000, 0, 1); err != nil {
		t.Fatal(err)
	}
	if n, err := g.ScanRedzones(); n != 1 || err != nil {
		t.Errorf("scan: %d, %v", n, err)
	}
}

// allocMany makes n allocations of sizes that size gives.
func allocMany(tb testing.TB, g *GPU, n int, size func(i int) int) (ptrs []backend.DevicePtr, asked int64) {
	tb.Helper()
	for i := range n {
		p, err := g.Alloc(size(i))
		if err != nil {
			tb.Fatal(err)
		}
		ptrs = append(ptrs, p)
		asked += int64(size(i))
	}
	return ptrs, asked
}

// TestMemoryAgainstTheDriver prints what the ledger says the driver keeps for 5,000
// small and 200 large allocations beside what cuMemGetInfo says it took.
func TestMemoryAgainstTheDriver(t *testing.T) {
	g := openTest(t, Config{Library: anyDriver(t)})
	defer g.Close()
	small := func(i int) int { return 1000 + (i*7919)%29_000 }
	large := func(i int) int { return 2<<20 + 1 + (i*104_729)%(6<<20) }
	for _, c := range []struct {
		name string
		n    int
		size func(int) int
	}{{"small", 5000, small}, {"large", 200, large}, {"both", 5200, func(i int) int {
		if i < 5000 {
			return small(i)
		}
		return large(i)
	}}} {
		before, err := g.DeviceFreeMemory()
		if err != nil {
			t.Fatal(err)
		}
		ptrs, asked := allocMany(t, g, c.n, c.size)
		after, err := g.DeviceFreeMemory()
		if err != nil {
			t.Fatal(err)
		}
		live, _ := g.LiveBytes()
		chunk, _ := g.ChunkSlackBytes()
		round, _ := g.RoundingSlackBytes()
		took := before - after
		if live != asked {
			t.Errorf("%s: live %d, asked for %d", c.name, live, asked)
		}
		t.Logf("MEASURED %s: %d allocations, live %d + chunk slack %d + rounding slack %d = %d; cuMemGetInfo took %d; difference %d (%.3f %%)",
			c.name, c.n, live, chunk, round, live+chunk+round, took, took-(live+chunk+round), 100*float64(took-(live+chunk+round))/float64(took))
		// Other processes may take or give memory meanwhile, and drivers keep some.
		if d := took - (live + chunk + round); d > 64<<20 || d < -64<<20 {
			t.Errorf("%s: the driver took %d, the ledger says %d", c.name, took, live+chunk+round)
		}
		for _, p := range ptrs {
			if err := g.Free(p); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestScanTimes prints how long a scan of 10,000 guard bands takes, with small
// allocations, whose bands are read together, and large ones, and that what was
// planted is found.
func TestScanTimes(t *testing.T) {
	lib := anyDriver(t)
	for _, c := range []struct {
		name  string
		bytes int
		apart bool
	}{{"1,000 bytes each", 1000, false}, {"1,000 bytes each, bands read one by one", 1000, true}, {"256 KiB each", 256 << 10, false}} {
		t.Run(c.name, func(t *testing.T) {
			g, err := Open(Config{Library: lib, Logger: slog.New(slog.DiscardHandler), Memory: backend.MemoryConfig{Redzone: ledger.Redzone{Bytes: 64}}})
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			const n = 10_000
			begin := time.Now()
			ptrs, _ := allocMany(t, g, n, func(int) int { return c.bytes })
			made := time.Since(begin)
			g.band.apart = c.apart
			var took []time.Duration
			for range 5 {
				begin := time.Now()
				if bad, err := g.ScanRedzones(); bad != 0 || err != nil {
					t.Fatalf("scan of whole bands: %d, %v", bad, err)
				}
				took = append(took, time.Since(begin))
			}
			if err := g.Memset(ptrs[1234]+backend.DevicePtr(c.bytes)+5, 1, 3); err != nil {
				t.Fatal(err)
			}
			if bad, err := g.ScanRedzones(); bad != 1 || err != nil {
				t.Errorf("scan with one overrun: %d, %v", bad, err)
			}
			begin = time.Now()
			if err := g.PoisonRedzones(0, n/2); err != nil {
				t.Error(err)
			}
			poisoned := time.Since(begin)
			var got [1]byte
			for i, want := range map[int]byte{0: 0xee, n/2 - 1: 0xee, n / 2: 0, n - 1: 0} {
				if err := g.CopyDtoH(got[:], ptrs[i]+backend.DevicePtr(c.bytes)); err != nil || got[0] != want {
					t.Errorf("past the end of allocation %d: %#x, %v, want %#x", i, got[0], err, want)
				}
			}
			t.Logf("MEASURED %s: %d bands scanned in %v (five times; copies over borders refused: %v); allocated and filled in %v, poisoned in %v",
				c.name, n, took, g.band.apart, made, poisoned)
		})
	}
}

// TestDestroyedStreamKeepsItsMemory: what the work of a destroyed stream needs stays
// until that work is done, whatever stream has its handle meanwhile.
func TestDestroyedStreamKeepsItsMemory(t *testing.T) {
	lib, ctl := controlled(t)
	f := newFixture(t, Config{Library: lib})
	// A stream that waits for another one, which lets it go on when it is gone.
	waiting := func() (s, holder backend.Stream) {
		t.Helper()
		s, err := f.g.CreateStream()
		f.ok(err)
		holder, err = f.g.CreateStream()
		f.ok(err)
		stall(t, ctl, holder, true)
		f.ok(f.g.MemsetAsync(f.p, 1, 1, holder))
		f.ok(f.g.RecordEvent(f.e, holder))
		f.ok(f.g.StreamWaitEvent(s, f.e))
		return s, holder
	}
	pins := func() (n int) {
		for _, l := range f.g.leaving {
			n += len(l.kept)
		}
		return n
	}

	s, holder := waiting()
	f.ok(f.g.CopyHtoDAsyncRetained(f.p, make([]byte, 8), s))
	f.ok(f.g.CopyHtoDAsyncRetained(f.p, make([]byte, 8), s))
	f.ok(f.g.DestroyStream(s))
	if n := len(f.g.kept[s]); n != 0 || pins() != 2 {
		t.Errorf("after its stream was destroyed %d pieces of memory go with the handle and %d with the work, want 2 with the work", n, pins())
	}
	stall(t, ctl, holder, false)
	f.ok(f.g.Synchronize(holder))
	until(t, "the memory is let go", func() bool {
		// Another stream that goes looks for those before it.
		s, err := f.g.CreateStream()
		f.ok(err)
		f.ok(f.g.DestroyStream(s))
		return pins() == 0
	})

	f.ok(f.g.BeginCapture(f.s))
	f.ok(f.g.CopyHtoDAsync(f.p, []byte{7}, f.s))
	gr, err := f.g.EndCapture(f.s)
	f.ok(err)
	s, holder = waiting()
	f.ok(f.g.LaunchGraph(gr, s))
	f.ok(f.g.DestroyStream(s))
	ctl.ResetCalls()
	done := make(chan error, 1)
	go func() { done <- f.g.DestroyGraph(gr) }()
	until(t, "it asks for the graph's work", func() bool { return ctl.Calls("cuEventQuery") > 1 || ctl.Calls("cuMemFreeHost") > 0 })
	if n := ctl.Calls("cuMemFreeHost"); n != 0 {
		t.Error("the graph's memory was freed before its work was done")
	}
	stall(t, ctl, holder, false)
	f.ok(<-done)
	if n := ctl.Calls("cuMemFreeHost"); n != 1 {
		t.Errorf("%d pieces of memory were freed, want the graph's", n)
	}
}
