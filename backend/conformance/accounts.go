package conformance

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

var accountTests = []test{
	{"ledger", ledgerFigures},
	{"arenas are off it", arenas},
	{"frees of what is unknown", unknownFrees},
	{"other processes see it", publishedLedger},
	{"sweep", sweeps},
	{"close sweeps", closeSweeps},
	{"concurrent allocations and frees", concurrentAllocs},
	{"an overrun is found", overrun},
	{"a read past the end is found", readPastEnd},
	{"bands are rounded up, from an index on", bandShapes},
	{"scan beside a capture", scanBesideCapture},
	{"no bands, no scan", noBands},
}

// accounts are a GPU's ledger figures, which must be tracked.
type accounts struct{ Live, Count, Peak, Arena int64 }

func (r *rig) accounts() accounts {
	r.t.Helper()
	var a accounts
	for what, f := range map[*int64]func() (int64, bool){
		&a.Live: r.gpu.LiveBytes, &a.Count: r.gpu.LiveCount, &a.Peak: r.gpu.PeakBytes, &a.Arena: r.gpu.ArenaBytes,
	} {
		n, tracked := f()
		if !tracked {
			r.t.Fatal("memory is not tracked")
		}
		*what = n
	}
	return a
}

func (r *rig) wantAccounts(what string, want accounts) {
	r.t.Helper()
	if d := cmp.Diff(want, r.accounts()); d != "" {
		r.t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func (r *rig) totals() spanring.MemoryTotals {
	r.t.Helper()
	t, tracked := r.gpu.LedgerProbe().Totals()
	if !tracked {
		r.t.Fatal("memory is not tracked")
	}
	return t
}

// here is the place of its caller, as a call site.
func here(line int) string {
	_, file, at, _ := runtime.Caller(1)
	return fmt.Sprintf("%s:%d", file, at+line)
}

func ledgerFigures(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	r.wantAccounts("at first", accounts{})
	const chunk = 2 << 20
	site := here(1)
	a, err := r.gpu.Alloc(1000)
	r.ok(err)
	b, err := r.gpu.Alloc(3 * chunk / 2)
	r.ok(err)
	c, err := r.gpu.AllocManaged(500)
	r.ok(err)
	r.wantAccounts("three allocations", accounts{Live: 1500 + 3*chunk/2, Count: 3, Peak: 1500 + 3*chunk/2})
	live, tracked := r.gpu.LiveAllocations()
	if !tracked || len(live) != 3 {
		t.Fatalf("live: %v, %v", live, tracked)
	}
	// Builds may trim the path in front.
	if got := live[0].Site; !strings.HasSuffix(site, got) || !strings.Contains(got, "conformance/accounts.go:") {
		t.Errorf("site %q, want %q", got, site)
	}
	if live[0].Addr != uint64(a) || live[0].Bytes != 1000 || live[0].Index != 0 || live[1].Index != 1 || live[2].Index != 2 || live[0].MonoNS == 0 {
		t.Errorf("live: %+v", live)
	}
	if slack, _ := r.gpu.RoundingSlackBytes(); slack != chunk/2 {
		t.Errorf("rounding slack %d, want %d", slack, chunk/2)
	}
	// One small allocation in one chunk or, over a border, in two; managed memory
	// may be plain and then lies in it too.
	if slack, _ := r.gpu.ChunkSlackBytes(); slack <= 0 || slack%chunk != chunk-1000 && slack%chunk != chunk-1500 {
		t.Errorf("chunk slack %d", slack)
	}
	report := r.gpu.AllocReport(5, 1)
	for _, want := range []string{"accounts.go:", "chunk", "rounding"} {
		if !strings.Contains(report, want) {
			t.Errorf("report has no %q:\n%s", want, report)
		}
	}
	r.ok(r.gpu.Free(b))
	r.ok(r.gpu.Free(c))
	r.wantAccounts("two freed", accounts{Live: 1000, Count: 1, Peak: 1500 + 3*chunk/2})
	r.ok(r.gpu.Free(a))
	r.wantAccounts("all freed", accounts{Peak: 1500 + 3*chunk/2})
	if slack, _ := r.gpu.ChunkSlackBytes(); slack != 0 {
		t.Errorf("chunk slack %d of nothing", slack)
	}
	// What the driver refuses leaves no trace but a count.
	if _, err := r.gpu.Alloc(1 << 45); err == nil {
		t.Error("allocated 32 TiB")
	}
	if m := r.totals(); m.AllocsFailed != 1 || m.Allocs != 3 || m.Frees != 3 || m.LiveBytes != 0 {
		t.Errorf("totals %+v", m)
	}
}

func arenas(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	p, err := r.gpu.AllocArena(1 << 20)
	r.ok(err)
	r.wantAccounts("an arena", accounts{Arena: 1 << 20})
	r.ok(r.gpu.Memset(p, 3, 1<<20))
	if n, err := r.gpu.SweepUnreleased(); n != 0 || err != nil {
		t.Errorf("sweep with an arena alone: %d, %v", n, err)
	}
	r.ok(r.gpu.FreeArena(p))
	r.wantAccounts("freed", accounts{})
	_, err = r.gpu.AllocArena(0)
	r.refused("an arena of 0 bytes", invalidValue, err)
	r.ok(r.gpu.FreeArena(0))
	// One that is left goes with the GPU.
	_, err = r.gpu.AllocArena(4096)
	r.ok(err)
}

func unknownFrees(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	p := r.alloc(100)
	before := r.accounts()
	r.refused("free of an unknown address", invalidValue, r.gpu.Free(0x1234))
	r.ok(r.gpu.Free(0))
	r.wantAccounts("after frees of what is unknown", before)
	if m := r.totals(); m.FreesUnknown != 1 || m.Frees != 0 {
		t.Errorf("totals %+v", m)
	}
	r.ok(r.gpu.Free(p))
	r.refused("free twice", invalidValue, r.gpu.Free(p))
	if m := r.totals(); m.FreesUnknown != 2 || m.Frees != 1 || m.LiveBytes != 0 {
		t.Errorf("totals %+v", m)
	}
}

func publishedLedger(s *suite, t *testing.T) {
	x := s.telemetry(t, "basic")
	scan := func() ([]spanring.Alloc, spanring.AllocScan) {
		t.Helper()
		list, sc, err := x.rd.Allocs(nil)
		x.ok(err)
		if sc.Approximate {
			t.Error("approximate while nothing moves")
		}
		return list, sc
	}
	want := func(what string, state spanring.AllocState, addrs ...backend.DevicePtr) {
		t.Helper()
		list, sc := scan()
		var got []backend.DevicePtr
		for _, a := range list {
			got = append(got, backend.DevicePtr(a.Addr))
		}
		slices.Sort(got)
		slices.Sort(addrs)
		if sc.State != state || !slices.Equal(got, addrs) {
			t.Errorf("%s: %v %#x, want %v %#x", what, sc.State, got, state, addrs)
		}
	}
	want("at first", spanring.AllocsPublished)
	a, b := x.alloc(1000), x.alloc(2000)
	want("two", spanring.AllocsPublished, a, b)
	x.ok(x.hub.SetLevel(lanetrace.LevelOff))
	want("at off", spanring.AllocsStale, a, b)
	x.ok(x.gpu.Free(a))
	c := x.alloc(3000)
	want("changed at off", spanring.AllocsStale, a, b)
	if n, tracked := x.gpu.LiveBytes(); n != 5000 || !tracked {
		t.Errorf("live bytes at off: %d, %v", n, tracked)
	}
	x.ok(x.hub.SetLevel(lanetrace.LevelKernel))
	want("after a rise", spanring.AllocsPublished, b, c)
	list, sc := scan()
	if sc.Totals.LiveBytes != 5000 || sc.Totals.LiveCount != 2 {
		t.Errorf("totals %+v", sc.Totals)
	}
	for _, al := range list {
		if n, ok := x.rd.Name(al.Site); !ok || !strings.Contains(n.Text, "conformance/") {
			t.Errorf("site of %#x: %q, %v", al.Addr, n.Text, ok)
		}
	}
	// The log has it all that happened above off.
	if n := x.counter(spanring.CtrFrees); n != 1 {
		t.Errorf("%d frees counted, want 1", n)
	}
	x.ok(x.gpu.Close())
	if list, sc := scan(); len(list) != 0 || sc.Totals.LiveBytes != 0 {
		t.Errorf("after close: %v, %+v", list, sc)
	}
}

func sweeps(s *suite, t *testing.T) {
	r, log := s.configured(t, nil, backend.MemoryConfig{})
	if n, err := r.gpu.SweepUnreleased(); n != 0 || err != nil {
		t.Errorf("sweep of nothing: %d, %v", n, err)
	}
	for i := range 7 {
		r.alloc(1000 * (i + 1))
	}
	p := r.alloc(5)
	if n, err := r.gpu.SweepUnreleased(); n != 8 || err != nil {
		t.Errorf("sweep: %d, %v, want 8", n, err)
	}
	r.wantAccounts("swept", accounts{Peak: 28_005})
	r.refused("free of what was swept", invalidValue, r.gpu.Free(p))
	warned := log.with("never freed")
	if len(warned) != 1 || warned[0]["bytes"] != "28005" || warned[0]["allocations"] != "8" || !strings.Contains(warned[0]["site1"], "rig.go:") {
		t.Errorf("warnings: %v", warned)
	}
}

// closeSweeps is also a load that failed half-way: whoever gives up closes.
func closeSweeps(s *suite, t *testing.T) {
	r, log := s.configured(t, nil, backend.MemoryConfig{})
	r.alloc(100)
	_, err := r.gpu.Alloc(1 << 45)
	r.refused("a load's second allocation", outOfMemory, err)
	r.ok(r.gpu.Close())
	if n, _ := r.gpu.LiveBytes(); n != 0 {
		t.Errorf("%d bytes live after close", n)
	}
	if warned := log.with("never freed"); len(warned) != 1 || warned[0]["bytes"] != "100" {
		t.Errorf("warnings: %v", warned)
	}
}

func concurrentAllocs(s *suite, t *testing.T) {
	r, _ := s.configured(t, nil, backend.MemoryConfig{Redzone: ledger.Redzone{Bytes: 32}})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 50 {
				p, err := r.gpu.Alloc(100 + w + i)
				if err != nil {
					t.Error(err)
					return
				}
				if err := r.gpu.Free(p); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 5 {
		if n, err := r.gpu.ScanRedzones(); n != 0 || err != nil {
			t.Errorf("scan: %d, %v", n, err)
		}
	}
	wg.Wait()
	if m := r.totals(); m.LiveBytes != 0 || m.GuardBytes != 0 || m.Allocs != 200 || m.Frees != 200 || m.FreesUnknown != 0 || m.AllocsReplaced != 0 {
		t.Errorf("totals %+v", m)
	}
}

func overrun(s *suite, t *testing.T) {
	hub := newHub(t, "basic")
	r, log := s.configured(t, hub, backend.MemoryConfig{Redzone: ledger.Redzone{Bytes: 64}})
	rd, err := spanring.NewHeapReader(hub.Ring(), spanring.ReaderOptions{})
	r.ok(err)
	t.Cleanup(func() { _ = rd.Close() })
	st := r.stream()
	var ptrs []backend.DevicePtr
	for range 20 {
		ptrs = append(ptrs, r.words(100, 0))
	}
	big := r.alloc(5 << 20)
	if n, err := r.gpu.ScanRedzones(); n != 0 || err != nil {
		t.Fatalf("scan of whole bands: %d, %v", n, err)
	}
	// Three words too many, of allocation 7, behind work that is still to come.
	r.spin(st, 2e6)
	r.fill(st, ptrs[7], 0x01020304, 103)
	r.ok(r.gpu.Memset(big+5<<20+10, 0xa4, 1))
	if n, err := r.gpu.ScanRedzones(); n != 2 || err != nil {
		t.Errorf("scan: %d, %v, want 2", n, err)
	}
	said := log.with("guard band")
	if len(said) != 2 {
		t.Fatalf("%d lines about guard bands: %v", len(said), said)
	}
	slices.SortFunc(said, func(a, b map[string]string) int { return strings.Compare(b["index"], a["index"]) })
	for i, want := range []map[string]string{
		{"index": "7", "bytes": "400", "first_offset": "0", "last_offset": "11", "changed": "12", "first_value": "0x04", "fill": "0xa5"},
		{"index": "20", "bytes": "5242880", "first_offset": "10", "last_offset": "10", "changed": "1", "first_value": "0xa4", "fill": "0xa5"},
	} {
		for k, v := range want {
			if said[i][k] != v {
				t.Errorf("violation %d: %s is %q, want %q", i, k, said[i][k], v)
			}
		}
		if !strings.Contains(said[i]["site"], "conformance/") {
			t.Errorf("violation %d: site %q", i, said[i]["site"])
		}
	}
	// They were filled anew.
	if n, err := r.gpu.ScanRedzones(); n != 0 || err != nil {
		t.Errorf("second scan: %d, %v", n, err)
	}
	if m := r.totals(); m.Violations != 2 || m.RedzoneScans != 3 || m.GuardBytes != 21*64 {
		t.Errorf("totals %+v", m)
	}
	var buf [256]spanring.Entry
	n, err := rd.Poll(buf[:], spanring.MonoNS())
	r.ok(err)
	found := 0
	for i := range buf[:n] {
		if w := &buf[i].Words; w.Kind() == spanring.KindViolation {
			v, err := w.Violation()
			r.ok(err)
			if v.Index == 7 && (v.Bytes != 400 || v.First != 0 || v.Last != 11 || v.Changed != 12 || v.Value != 4 || v.Fill != 0xa5 || v.Addr != uint64(ptrs[7])) {
				t.Errorf("entry %+v", v)
			}
			found++
		}
	}
	if found != 2 {
		t.Errorf("%d entries about guard bands, want 2", found)
	}
	// The allocations' own bytes were left alone.
	r.wantAll("allocation 7", st, ptrs[7], 0x01020304, 100)
	r.wantAll("allocation 8", st, ptrs[8], 0, 100)
}

func readPastEnd(s *suite, t *testing.T) {
	r, _ := s.configured(t, nil, backend.MemoryConfig{Redzone: ledger.Redzone{Bytes: 16}})
	st := r.stream()
	var ptrs []backend.DevicePtr
	for range 10 {
		ptrs = append(ptrs, r.alloc(1000))
	}
	out := r.alloc(8)
	// The kernel under suspicion reads 4 bytes past the end of allocation 6.
	guilty := func() uint32 {
		t.Helper()
		r.launch(st, kCopy8, backend.Ptr(out), backend.Ptr(ptrs[6]+1000), backend.U64(4))
		var got [4]byte
		r.ok(r.gpu.CopyDtoHOnStream(got[:], out, st))
		return unle(got[:])[0]
	}
	if v := guilty(); v != 0xa5a5a5a5 {
		t.Errorf("before: %#x", v)
	}
	// Bisecting, as one would who sees only the output.
	lo, hi := uint64(0), uint64(11)
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		r.ok(r.gpu.PoisonRedzones(lo, mid))
		switch v := guilty(); v {
		case 0xeeeeeeee:
			hi = mid
		case 0:
			lo = mid
		default:
			t.Fatalf("read %#x from a poisoned band", v)
		}
	}
	if lo != 6 {
		t.Errorf("found allocation %d, want 6", lo)
	}
	// Scans expect the new fill.
	if n, err := r.gpu.ScanRedzones(); n != 0 || err != nil {
		t.Errorf("scan of poisoned bands: %d, %v", n, err)
	}
}

func bandShapes(s *suite, t *testing.T) {
	fill := byte(0x5a)
	r, log := s.configured(t, nil, backend.MemoryConfig{Redzone: ledger.Redzone{Bytes: 17, First: 1, Fill: &fill}})
	r.alloc(100) // has none
	p := r.alloc(10)
	m, err := r.gpu.AllocManaged(10)
	r.ok(err)
	arena, err := r.gpu.AllocArena(64)
	r.ok(err)
	r.ok(r.gpu.Memset(arena, 1, 64))
	if m := r.totals(); m.GuardBytes != 64 {
		t.Errorf("guard bytes %d, want 2 bands of 32", m.GuardBytes)
	}
	got := make([]byte, 42)
	r.ok(r.gpu.CopyDtoH(got, p))
	wantBytes(t, "a band", slices.Repeat([]byte{fill}, 32), got[10:])
	r.ok(r.gpu.Memset(m+41, 0, 1))
	if n, err := r.gpu.ScanRedzones(); n != 1 || err != nil {
		t.Errorf("scan: %d, %v, want 1", n, err)
	}
	if said := log.with("guard band"); len(said) != 1 || said[0]["index"] != "2" || said[0]["last_offset"] != "31" {
		t.Errorf("said %v", said)
	}
}

func scanBesideCapture(s *suite, t *testing.T) {
	r, _ := s.configured(t, nil, backend.MemoryConfig{Redzone: ledger.Redzone{Bytes: 64}})
	st := r.stream()
	p := r.words(100, 1)
	r.ok(r.gpu.BeginCapture(st))
	r.fill(st, p, 9, 100)
	if n, err := r.gpu.ScanRedzones(); n != 0 || err != nil {
		t.Errorf("scan: %d, %v", n, err)
	}
	q := r.alloc(10)
	r.scale(st, p, 2, 100)
	g, err := r.gpu.EndCapture(st)
	r.ok(err)
	r.ok(r.gpu.LaunchGraph(g, st))
	r.wantAll("the capture was unharmed", st, p, 18, 100)
	r.ok(r.gpu.DestroyGraph(g))
	r.ok(r.gpu.Free(q))
}

func noBands(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	r.alloc(100)
	if n, err := r.gpu.ScanRedzones(); n != 0 || err != nil {
		t.Errorf("scan: %d, %v", n, err)
	}
	r.ok(r.gpu.PoisonRedzones(0, 10))
	if m := r.totals(); m.RedzoneScans != 0 || m.GuardBytes != 0 {
		t.Errorf("totals %+v", m)
	}
}

// configured opens a GPU with a memory configuration and a log to look at.
func (s *suite) configured(t *testing.T, hub *lanetrace.Hub, c backend.MemoryConfig) (*rig, *heard) {
	t.Helper()
	h := &heard{}
	return s.rigOn(t, s.caps.OpenMemory(t, hub, c, slog.New(h))), h
}

// heard is a log handler that keeps what it is told.
type heard struct {
	mu   sync.Mutex
	said []map[string]string
}

func (h *heard) Enabled(context.Context, slog.Level) bool { return true }
func (h *heard) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h *heard) WithGroup(string) slog.Handler            { return h }

func (h *heard) Handle(_ context.Context, r slog.Record) error {
	line := map[string]string{"msg": r.Message}
	r.Attrs(func(a slog.Attr) bool {
		line[a.Key] = a.Value.String()
		return true
	})
	h.mu.Lock()
	h.said = append(h.said, line)
	h.mu.Unlock()
	return nil
}

// with are the lines whose message holds text.
func (h *heard) with(text string) (out []map[string]string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, line := range h.said {
		if strings.Contains(line["msg"], text) {
			out = append(out, line)
		}
	}
	return out
}
