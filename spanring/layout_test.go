package spanring

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestLayoutPinned holds every offset and size as a literal: a change to one is
// a new layout version.
func TestLayoutPinned(t *testing.T) {
	got := map[string]int64{
		"LayoutVersion": LayoutVersion, "magic": int64(magic),
		"HeaderSize": HeaderSize, "EntrySize": EntrySize, "SlotSize": SlotSize, "AllocSize": AllocSize,
		"nameAlign": nameAlign, "nameMark": nameMark, "graphPayload": graphPayload, "MaxNameBytes": MaxNameBytes,
		"MaxFileBytes": MaxFileBytes, "MaxContexts": MaxContexts, "contextSize": contextSize,
		"offMagic": offMagic, "offVersion": offVersion, "offFileBytes": offFileBytes,
		"offLogOff": offLogOff, "offLogEntries": offLogEntries, "offSlotOff": offSlotOff, "offSlotCount": offSlotCount,
		"offNameOff": offNameOff, "offNameBytes": offNameBytes, "offAllocOff": offAllocOff, "offAllocCount": offAllocCount,
		"offRunID": offRunID, "offPID": offPID, "offPIDNS": offPIDNS, "offStartTicks": offStartTicks,
		"offMadeUnixNS": offMadeUnixNS, "offMadeMonoNS": offMadeMonoNS, "offExe": offExe, "offService": offService,
		"offGPUUUID": offGPUUUID, "offGPUName": offGPUName, "offRank": offRank, "offProducer": offProducer, "offModel": offModel,
		"offState": offState, "offArming": offArming, "offLanes": offLanes, "offHead": offHead, "offNamesUsed": offNamesUsed,
		"offCounters": offCounters, "offAllocMut": offAllocMut, "offAllocUse": offAllocUse, "offContexts": offContexts, "NumCounters": int64(NumCounters), "stateClean": stateClean,
		"exeBytes": exeBytes, "serviceBytes": serviceBytes, "gpuUUIDBytes": gpuUUIDBytes, "gpuNameBytes": gpuNameBytes,
		"producerBytes": producerBytes, "wordClaimed": wordClaimed, "published(0)": int64(published(0)), "published(41)": int64(published(41)),
		"words of payload": int64(len(Words{})),
	}
	want := map[string]int64{
		"LayoutVersion": 1, "magic": 0x63617274656e616c,
		"HeaderSize": 4096, "EntrySize": 64, "SlotSize": 64, "AllocSize": 64,
		"nameAlign": 16, "nameMark": 0xa5, "graphPayload": 16, "MaxNameBytes": 1024,
		"MaxFileBytes": 1073741824, "MaxContexts": 16, "contextSize": 112,
		"offMagic": 0, "offVersion": 8, "offFileBytes": 16,
		"offLogOff": 24, "offLogEntries": 32, "offSlotOff": 40, "offSlotCount": 48,
		"offNameOff": 56, "offNameBytes": 64, "offAllocOff": 72, "offAllocCount": 80,
		"offRunID": 88, "offPID": 104, "offPIDNS": 112, "offStartTicks": 120,
		"offMadeUnixNS": 128, "offMadeMonoNS": 136, "offExe": 144, "offService": 208,
		"offGPUUUID": 336, "offGPUName": 384, "offRank": 448, "offProducer": 464, "offModel": 496,
		"offState": 512, "offArming": 520, "offLanes": 528, "offHead": 768, "offNamesUsed": 832,
		"offCounters": 896, "offAllocMut": 1920, "offAllocUse": 1928, "offContexts": 2304, "NumCounters": 128, "stateClean": 1 << 32,
		"exeBytes": 64, "serviceBytes": 128, "gpuUUIDBytes": 48, "gpuNameBytes": 64,
		"producerBytes": 32, "wordClaimed": 1, "published(0)": 2, "published(41)": 84,
		"words of payload": 7,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("layout drifted (-want +got):\n%s", d)
	}
}

// TestNumbersPinned holds the numbers that readers of other versions see.
func TestNumbersPinned(t *testing.T) {
	kinds := map[Kind]string{
		1: "step_begin", 2: "step_end", 3: "lane", 4: "kernel", 5: "graph", 6: "alloc", 7: "free", 8: "violation",
		9: "launch_diff", 10: "anchor", 11: "step_attrs", 12: "trace_context", 13: "request_end", 14: "device",
		15: "span_failed", 0: "none", 16: "kind(16)", 255: "kind(255)",
	}
	for k, want := range kinds {
		if k.String() != want {
			t.Errorf("kind %d is %q, want %q", k, k.String(), want)
		}
		if k.IsSpan() != (k >= 3 && k <= 5) {
			t.Errorf("kind %v: IsSpan %v", k, k.IsSpan())
		}
	}
	reasons := []string{
		"none", "record", "unreadable", "capture", "abandoned", "replayed", "launch", "closed",
		"end_before_start", "not_finite", "zero", "too_long", "misplaced",
	}
	for i, want := range reasons {
		if got := Reason(i).String(); got != want {
			t.Errorf("reason %d is %q, want %q", i, got, want)
		}
	}
	if NumReasons != len(reasons) || Reason(NumReasons).String() != "unknown" {
		t.Errorf("%d reasons, the next is %q", NumReasons, Reason(NumReasons).String())
	}
	counters := map[Counter]string{
		0: "begun", 1: "dropped", 2: "steps_begun", 3: "steps_ended", 4: "steps_armed", 5: "unattributed",
		6: "capturing", 7: "stale_ends", 8: "misuse", 9: "given_up", 10: "names_full", 11: "launches",
		12: "pools_failed", 13: "control_applied", 14: "control_rejected", 15: "requests", 16: "landed",
		17: "failed_record", 18: "failed_unreadable", 19: "failed_capture", 20: "failed_abandoned",
		21: "failed_replayed", 22: "failed_launch", 23: "failed_closed", 24: "failed_end_before_start",
		25: "failed_not_finite", 26: "failed_zero", 27: "failed_too_long", 28: "failed_misplaced", 29: "reserved",
		39: "reserved", 40: "queued", 41: "starved", 42: "anchors", 43: "anchors_given_up", 44: "harvests",
		45: "harvest_calls", 46: "harvest_ns", 47: "driver_calls", 48: "reserved",
		64: "mem_live_bytes", 65: "mem_live_count", 66: "mem_peak_bytes", 67: "mem_guard_bytes", 68: "mem_chunk_slack_bytes",
		69: "mem_rounding_slack_bytes", 70: "mem_arena_bytes", 71: "mem_arena_count", 72: "mem_chunk_bytes",
		73: "mem_unlisted_bytes", 74: "mem_unlisted_count", 75: "reserved", 80: "allocs", 81: "frees", 82: "allocs_failed",
		83: "frees_failed", 84: "frees_unknown", 85: "allocs_unlisted", 86: "allocs_replaced", 87: "violations",
		88: "redzone_scans", 89: "reserved", 127: "reserved", 255: "reserved",
	}
	for c, want := range counters {
		if c.String() != want {
			t.Errorf("counter %d is %q, want %q", c, c.String(), want)
		}
		if c.IsGauge() != (c >= 64 && c < 80) {
			t.Errorf("counter %d: gauge %v", c, c.IsGauge())
		}
	}
}

// TestFileBytes reads a ring file without this package's reader, at literal
// offsets.
func TestFileBytes(t *testing.T) {
	w, err := Create(privateDir(t), Options{Geometry: smallGeometry, Info: Info{
		Executable: "engine", Service: "chat", GPUUUID: "GPU-01", GPUName: "H200", Producer: "lanetrace 1",
		Rank: Rank{1, 2, 3, -1}, Level: 2, KernelEvery: 64, ArmedRequested: 5,
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	e := Words{10, 11, 12, 13, 14, 15, 16}
	for range 66 {
		w.Append(&e)
	}
	w.Add(CtrBegun, 7)
	w.Add(FailZero.Counter(), 3)
	if id := w.Name(NameKernel, "gemm"); id != 1 {
		t.Errorf("first name has id %d", id)
	}
	c := ContextState{UUID: [16]byte{0xaa, 15: 0xbb}, MIG: true, Device: 3, Capability: 90, Calibration: CalibrationMeasured, ConstantNS: 3040, SpreadNS: 60, GPURefNS: 1, HostRefNS: 2, RatePPB: -3, UpdatedMonoNS: 4, UncertaintyNS: 5}
	s, err := w.NewContext(&c, 4)
	if err != nil {
		t.Fatal(err)
	}
	s.Store(1, MakeSlotWord(9, SlotOpen))
	s.Put(1, &Slot{Kind: KindLane, Step: 21, EnqueueMonoNS: 22, ClosedMonoNS: 23, Name: 24, Ordinal: 25, Parent: 26, Lane: 27, Stream: 28, Context: 0, Graph: 29, Gap: GapStarved, Armed: true, SharedStart: true})

	at := w.Allocs()
	at.Lock()
	at.Track(1, 1)
	for i := range uint64(3) {
		if p, ok := at.Put(&Alloc{Addr: 0x7000 + i, Bytes: 100, GuardBytes: 16, Site: 5, Index: 40 + i, MonoNS: 50, Kind: AllocManaged, Context: 3}); p != int(i) || !ok {
			t.Errorf("allocation %d has place %d, %v", i, p, ok)
		}
	}
	at.Remove(1)
	at.Add(CtrMemLiveBytes, 300)
	at.Add(CtrMemLiveBytes, -100)
	at.Unlock()

	b, err := os.ReadFile(w.Path())
	if err != nil {
		t.Fatal(err)
	}
	u64 := func(off int) uint64 { return binary.LittleEndian.Uint64(b[off:]) }
	const logAt, slotAt, nameAt, allocAt, size = 4096, 4096 + 64*64, 4096 + 64*64 + 8*64, 4096 + 64*64 + 8*64 + 4096, 4096 + 64*64 + 8*64 + 4096 + 8*64
	if len(b) != size {
		t.Fatalf("file has %d bytes, want %d", len(b), size)
	}
	if string(b[:8]) != "lanetrac" {
		t.Errorf("magic %q", b[:8])
	}
	for _, c := range []struct {
		what string
		off  int
		want uint64
	}{
		{"version and header size", 8, 1 | 4096<<32},
		{"file bytes", 16, size}, {"log", 24, logAt}, {"log entries", 32, 64}, {"slots", 40, slotAt}, {"slot count", 48, 8},
		{"names", 56, nameAt}, {"name bytes", 64, 4096}, {"allocations", 72, allocAt}, {"allocation count", 80, 8},
		{"pid", 104, uint64(os.Getpid())}, {"made, wall clock", 128, uint64(w.Info().CreatedUnixNS)}, {"made, monotonic", 136, uint64(w.Info().CreatedMonoNS)},
		{"rank", 448, 1 | 2<<32}, {"rank", 456, 3 | 0xffffffff<<32},
		{"model", 496, 0}, {"state", 512, 2}, {"arming", 520, 64 | 5<<32}, {"head", 768, 66}, {"names used", 832, 16},
		{"begun", 896, 7}, {"failed zero", 896 + 8*26, 3},
		{"context sequence", 2304, 2}, {"context uuid", 2312, 0xaa}, {"context uuid", 2320, 0xbb << 56},
		{"context flags", 2328, 3 | 1<<8 | 90<<16 | 3<<32}, {"constant", 2336, 3040 | 60<<32}, {"slots", 2344, 4 << 32},
		{"gpu", 2352, 1}, {"host", 2360, 2}, {"rate", 2368, ^uint64(2)}, {"updated", 2376, 4}, {"uncertainty", 2384, 5},
		{"second context", 2304 + 112, 0},
		{"entry 65", logAt + 64, 132}, {"entry 2", logAt + 128, 6}, {"its first word", logAt + 136, 10}, {"its last word", logAt + 184, 16},
		{"slot 1", slotAt + 64, 9<<2 | 1}, {"step", slotAt + 72, 21}, {"enqueue", slotAt + 80, 22}, {"closed", slotAt + 88, 23},
		{"name, ordinal", slotAt + 96, 24 | 25<<32}, {"parent, lane, stream", slotAt + 104, 26 | 27<<32 | 28<<48},
		{"kind, flags, generation", slotAt + 112, 3 | 0x32<<8 | 9<<32}, {"graph", slotAt + 120, 29},
		{"live bytes", 896 + 8*64, 200}, {"changes of the allocations", 1920, 2}, {"their use", 1928, 3 | 1<<32},
		{"allocation 0", allocAt, 4 | 1}, {"allocation 1", allocAt + 64, 4}, {"allocation 2", allocAt + 128, 4 | 1},
		{"address", allocAt + 136, 0x7002}, {"bytes", allocAt + 144, 100}, {"guard, site", allocAt + 152, 16 | 5<<32},
		{"index", allocAt + 160, 42}, {"time", allocAt + 168, 50}, {"kind, context", allocAt + 176, 2 | 3<<8}, {"reserved", allocAt + 184, 0},
		{"name record", nameAt, 4 | 2<<16 | 0xa5<<24 | 0x85fc8323<<32}, {"name", nameAt + 8, 0x6d6d6567},
	} {
		if got := u64(c.off); got != c.want {
			t.Errorf("%s at %#x is %#x, want %#x", c.what, c.off, got, c.want)
		}
	}
	for _, c := range []struct {
		off, n int
		want   string
	}{{144, 64, "engine"}, {208, 128, "chat"}, {336, 48, "GPU-01"}, {384, 64, "H200"}, {464, 32, "lanetrace 1"}} {
		want := make([]byte, c.n)
		copy(want, c.want)
		if got := b[c.off : c.off+c.n]; string(got) != string(want) {
			t.Errorf("text at %#x is %q, want %q", c.off, got, want)
		}
	}
	id := w.Info().RunID
	if string(b[88:104]) != string(id[:]) {
		t.Errorf("run id %x, want %v", b[88:104], id)
	}
}

func TestGeometryCheck(t *testing.T) {
	ok := smallGeometry
	with := func(f func(*Geometry)) Geometry {
		g := ok
		f(&g)
		return g
	}
	for _, c := range []struct {
		name string
		g    Geometry
		bad  bool
	}{
		{"smallest", Geometry{64, 1, 4096, 1}, false},
		{"default", DefaultGeometry, false},
		{"most entries", with(func(g *Geometry) { g.LogEntries = 1 << 23 }), false},
		{"one GiB of log and a header", with(func(g *Geometry) { g.LogEntries = 1 << 24 }), true},
		{"no entries", with(func(g *Geometry) { g.LogEntries = 0 }), true},
		{"few entries", with(func(g *Geometry) { g.LogEntries = 32 }), true},
		{"no power of two", with(func(g *Geometry) { g.LogEntries = 96 }), true},
		{"negative entries", with(func(g *Geometry) { g.LogEntries = -64 }), true},
		{"too many entries", with(func(g *Geometry) { g.LogEntries = 1 << 25 }), true},
		{"no slots", with(func(g *Geometry) { g.Slots = 0 }), true},
		{"too many slots", with(func(g *Geometry) { g.Slots = 1<<20 + 1 }), true},
		{"few name bytes", with(func(g *Geometry) { g.NameBytes = 4032 }), true},
		{"odd name bytes", with(func(g *Geometry) { g.NameBytes = 4100 }), true},
		{"too many name bytes", with(func(g *Geometry) { g.NameBytes = 256<<20 + 64 }), true},
		{"no allocations", with(func(g *Geometry) { g.Allocs = 0 }), true},
		{"too many allocations", with(func(g *Geometry) { g.Allocs = 1<<20 + 1 }), true},
	} {
		err := c.g.Check()
		if (err != nil) != c.bad || (err != nil && !errors.Is(err, ErrGeometry)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if got := DefaultGeometry.FileBytes(); got != 7<<20+4096 {
		t.Errorf("default ring has %d bytes", got)
	}
	if d := cmp.Diff(Geometry{LogEntries: 128, Slots: 16384, NameBytes: 1 << 20, Allocs: 16384}, Geometry{LogEntries: 128}.WithDefaults()); d != "" {
		t.Errorf("defaults: %s", d)
	}
	if d := cmp.Diff(smallGeometry, smallGeometry.WithDefaults()); d != "" {
		t.Errorf("defaults over what is set: %s", d)
	}
}

func TestGeometryForBytes(t *testing.T) {
	for _, c := range []struct {
		total int64
		want  Geometry
	}{
		{64 << 10, Geometry{512, 128, 8192, 128}},
		{256 << 10, Geometry{2048, 512, 32768, 512}},
		{7<<20 + 4096, DefaultGeometry},
		{8 << 20, DefaultGeometry},
		{MaxFileBytes, Geometry{1 << 22, 1 << 20, 64 << 20, 1 << 20}},
	} {
		g, err := GeometryForBytes(c.total)
		if err != nil {
			t.Errorf("%d bytes: %v", c.total, err)
		}
		if d := cmp.Diff(c.want, g); d != "" {
			t.Errorf("%d bytes: %s", c.total, d)
		}
	}
	for total := int64(64 << 10); total <= 2<<20; total += 4321 {
		g, err := GeometryForBytes(total)
		if err != nil {
			t.Fatalf("%d bytes: %v", total, err)
		}
		if n := g.FileBytes(); n > total || 3*n < total {
			t.Errorf("%d bytes: the ring has %d", total, n)
		}
	}
	for _, total := range []int64{-1, 0, 64<<10 - 1, MaxFileBytes + 1} {
		if g, err := GeometryForBytes(total); !errors.Is(err, ErrGeometry) {
			t.Errorf("%d bytes: %+v, %v", total, g, err)
		}
	}
}
