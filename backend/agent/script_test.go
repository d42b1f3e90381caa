package agent

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

// operation is a line of the script for the C writer, and the same for Go's.
type operation struct {
	line string
	play func(w *goSide) uint64
}

// goSide is the Go writer with what a script's operations go on from.
type goSide struct {
	*spanring.Writer
	slots [spanring.MaxContexts]spanring.Slots
	n     int
}

func hexText[T string | []byte](s T) string { return "x" + hex.EncodeToString([]byte(s)) }

// script builds operations over random values with a leaning to the extremes.
type script struct {
	r        *rand.Rand
	ops      []operation
	contexts int
	slots    int // of each context
}

func (s *script) op(name string, play func(w *goSide) uint64, args ...any) {
	var b strings.Builder
	b.WriteString(name)
	for _, a := range args {
		switch v := a.(type) {
		case string:
			b.WriteString(" " + v)
		case bool:
			b.WriteString(map[bool]string{false: " 0", true: " 1"}[v])
		case int64:
			fmt.Fprintf(&b, " %d", uint64(v))
		case int32:
			fmt.Fprintf(&b, " %d", uint64(v))
		case int:
			fmt.Fprintf(&b, " %d", uint64(v))
		case uint64, uint32, uint16, uint8:
			fmt.Fprintf(&b, " %d", v)
		default:
			panic(fmt.Sprintf("argument of type %T", a))
		}
	}
	s.ops = append(s.ops, operation{b.String(), play})
}

func (s *script) u64() uint64 {
	switch s.r.IntN(6) {
	case 0:
		return 0
	case 1:
		return math.MaxUint64
	case 2:
		return s.r.Uint64()
	}
	return s.r.Uint64() >> s.r.IntN(64)
}
func (s *script) i64() int64   { return int64(s.u64()) }
func (s *script) u32() uint32  { return uint32(s.u64()) }
func (s *script) u16() uint16  { return uint16(s.u64()) }
func (s *script) u8() uint8    { return uint8(s.u64()) }
func (s *script) flag() bool   { return s.r.IntN(2) == 0 }
func (s *script) context() int { return s.r.IntN(s.contexts) }

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func appended(w *goSide, e spanring.Words) uint64 { return b2u(w.Append(&e)) }

func (s *script) id(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = s.u8()
	}
	return b
}

func (s *script) alloc() spanring.Alloc {
	if s.flag() {
		return spanring.Alloc{Addr: s.u64()>>2 | 1, Bytes: 1 + uint64(s.u16()), Site: spanring.NameID(s.u16()), Index: s.u64(), MonoNS: s.i64() & math.MaxInt64, Kind: 1}
	}
	// Mostly what a reader refuses.
	return spanring.Alloc{
		Addr: s.u64(), Bytes: s.u64(), GuardBytes: s.u32(), Site: spanring.NameID(s.u32()), Index: s.u64(), MonoNS: s.i64(),
		Kind: spanring.AllocKind(s.r.IntN(3)), Context: uint8(s.r.IntN(spanring.MaxContexts)),
	}
}

func allocArgs(a spanring.Alloc) []any {
	return []any{a.Addr, a.Bytes, a.GuardBytes, uint32(a.Site), a.Index, a.MonoNS, uint8(a.Kind), a.Context}
}

// text is a name: short, repeated, long, of runes that the cut meets, or no UTF-8.
func (s *script) text() string {
	switch s.r.IntN(7) {
	case 0:
		return strings.Repeat("kernel<"+strconv.Itoa(s.r.IntN(50))+">::", 60+s.r.IntN(40))
	case 1:
		return strings.Repeat("é", 480+s.r.IntN(60)) + strings.Repeat("語", s.r.IntN(20))
	case 2:
		return string(s.id(s.r.IntN(1100)))
	case 3:
		return ""
	case 4:
		return strings.Repeat("\x80", 1000+s.r.IntN(60))
	}
	return "name " + strconv.Itoa(s.r.IntN(200))
}

func (s *script) trace() spanring.TraceContext {
	c := spanring.TraceContext{Flags: s.u8()}
	copy(c.TraceID[:], s.id(16))
	copy(c.SpanID[:], s.id(8))
	return c
}

func (s *script) contextState(index int, slots uint32) (spanring.ContextState, []any) {
	c := spanring.ContextState{
		Index: uint8(index), MIG: s.flag(), Device: int32(s.u32()), Capability: s.u16(), Calibration: spanring.Calibration(s.r.IntN(3)),
		ConstantNS: s.u32(), SpreadNS: s.u32(), FirstSlot: uint32(index * s.slots), Slots: slots,
		GPURefNS: s.i64(), HostRefNS: s.i64(), RatePPB: s.i64(), UpdatedMonoNS: s.i64(), UncertaintyNS: s.u64(),
	}
	copy(c.UUID[:], s.id(16))
	return c, []any{
		c.Index, hexText(c.UUID[:]), c.MIG, c.Device, c.Capability, uint8(c.Calibration), c.ConstantNS, c.SpreadNS, c.FirstSlot, c.Slots,
		c.GPURefNS, c.HostRefNS, c.RatePPB, c.UpdatedMonoNS, c.UncertaintyNS,
	}
}

// add adds one random operation.
func (s *script) add() {
	switch s.r.IntN(24) {
	case 0, 1, 2:
		v := spanring.Span{
			Kind: spanring.Kind(3 + s.r.IntN(3)), Armed: s.flag(), SharedStart: s.flag(), InGraph: s.flag(), Gap: spanring.Gap(s.r.IntN(3)),
			Calibration: spanring.Calibration(s.r.IntN(3)), Context: s.u8(), Lane: s.u16(), Stream: s.u16(), Step: s.u64(),
			Name: spanring.NameID(s.u32()), Ordinal: s.u32(), Parent: s.u32(), StartMonoNS: s.i64(), RawNS: s.u64(), CorrectionNS: s.u16(),
			LeadNS: s.i64(), PlaceUncertaintyNS: s.u64(), DurationUncertaintyNS: s.u64(),
		}
		s.op("span", func(w *goSide) uint64 { return appended(w, v.Words()) },
			uint8(v.Kind), v.Armed, v.SharedStart, v.InGraph, uint8(v.Gap), uint8(v.Calibration), v.Context, v.Lane, v.Stream, v.Step,
			uint32(v.Name), v.Ordinal, v.Parent, v.StartMonoNS, v.RawNS, v.CorrectionNS, v.LeadNS, v.PlaceUncertaintyNS, v.DurationUncertaintyNS)
	case 3:
		v := spanring.SpanFailed{
			SpanKind: spanring.Kind(s.u8()), Reason: spanring.Reason(s.u8()), Context: s.u8(), Lane: s.u16(), Stream: s.u16(), Step: s.u64(),
			EnqueueMonoNS: s.i64(), Name: spanring.NameID(s.u32()), Ordinal: s.u32(), Parent: s.u32(),
		}
		s.op("failed", func(w *goSide) uint64 { return appended(w, v.Words()) },
			uint8(v.SpanKind), uint8(v.Reason), v.Context, v.Lane, v.Stream, v.Step, v.EnqueueMonoNS, uint32(v.Name), v.Ordinal, v.Parent)
	case 4:
		v := spanring.StepBegin{Step: s.u64(), MonoNS: s.i64(), Armed: s.flag(), Asked: s.flag(), Level: s.u8(), Source: spanring.StepSource(s.u8() % spanring.NumStepSources), Untimed: s.flag()}
		s.op("begin", func(w *goSide) uint64 { return appended(w, v.Words()) }, v.Step, v.MonoNS, v.Armed, v.Asked, v.Level, uint8(v.Source), v.Untimed)
	case 5:
		v := spanring.StepEnd{Step: s.u64(), MonoNS: s.i64(), BeginNS: s.i64(), Armed: s.flag(), Opened: s.u32(), Dropped: s.u32(), Linked: s.u32(), Untimed: s.flag()}
		s.op("end", func(w *goSide) uint64 { return appended(w, v.Words()) }, v.Step, v.MonoNS, v.BeginNS, v.Armed, v.Opened, v.Dropped, v.Linked, v.Untimed)
	case 6:
		v := spanring.StepAttrs{Step: s.u64(), BatchSize: s.u32(), DecodeTokens: s.u32(), PrefillTokens: s.u32(), GraphMode: spanring.GraphMode(s.u8())}
		s.op("attrs", func(w *goSide) uint64 { return appended(w, v.Words()) }, v.Step, v.BatchSize, v.DecodeTokens, v.PrefillTokens, uint8(v.GraphMode))
	case 7:
		v := spanring.Anchor{Context: s.u8(), GPUNS: s.i64(), MonoNS: s.i64(), RatePPB: s.i64(), ResidualNS: s.i64(), UncertaintyNS: s.u64()}
		s.op("anchor", func(w *goSide) uint64 { return appended(w, v.Words()) }, v.Context, v.GPUNS, v.MonoNS, v.RatePPB, v.ResidualNS, v.UncertaintyNS)
	case 8:
		v := spanring.StepLink{Step: s.u64(), TraceContext: s.trace()}
		s.op("link", func(w *goSide) uint64 { return appended(w, v.Words()) }, v.Step, hexText(v.TraceID[:]), hexText(v.SpanID[:]), v.Flags)
	case 9:
		v := spanring.RequestEnd{TraceContext: s.trace(), BeginNS: s.i64(), EndNS: s.i64(), PromptTokens: s.u32(), OutputTokens: s.u32()}
		s.op("request", func(w *goSide) uint64 { return appended(w, v.Words()) },
			hexText(v.TraceID[:]), hexText(v.SpanID[:]), v.Flags, v.BeginNS, v.EndNS, v.PromptTokens, v.OutputTokens)
	case 10:
		v := spanring.MemEvent{Kind: spanring.KindAlloc + spanring.Kind(s.r.IntN(2)), Alloc: s.alloc(), LiveBytes: s.u64(), Swept: s.flag()}
		s.op("mem", func(w *goSide) uint64 { return appended(w, v.Words()) }, append([]any{uint8(v.Kind), v.LiveBytes, v.Swept}, allocArgs(v.Alloc)...)...)
	case 11, 12:
		k, t := spanring.NameKind(1+s.r.IntN(5)), s.text()
		s.op("name", func(w *goSide) uint64 { return uint64(w.Name(k, t)) }, uint8(k), hexText(t))
	case 13:
		id, n, t := s.u64()>>60, s.u32()>>30, s.text()
		s.op("graph", func(w *goSide) uint64 { return uint64(w.GraphName(id, n, t)) }, id, n, hexText(t))
	case 14:
		c, n := spanring.Counter(s.r.IntN(256)), s.u64()>>20
		s.op("add", func(w *goSide) uint64 { w.Add(c, n); return w.Counter(c) }, uint8(c), n)
	case 15:
		l, e, q := s.u8(), s.u32(), s.u32()
		s.op("level", func(w *goSide) uint64 { w.SetLevel(l); return 0 }, l)
		s.op("lanes", func(w *goSide) uint64 { w.SetLanes(q); return 0 }, q)
		s.op("arming", func(w *goSide) uint64 { w.SetArming(e, q); return 0 }, e, q)
	case 16:
		// Ended by NUL in C, so without it here.
		u, n := strings.ReplaceAll(s.text(), "\x00", "0"), strings.ReplaceAll(s.text(), "\x00", "0")
		s.op("gpu", func(w *goSide) uint64 { w.SetGPU(u, n); return 0 }, hexText(u), hexText(n))
	case 17:
		c, args := s.contextState(s.r.IntN(spanring.MaxContexts), s.u32())
		s.op("setcontext", func(w *goSide) uint64 { w.SetContext(&c); return 0 }, args...)
	case 18, 19:
		s.slot()
	case 20:
		a := s.alloc()
		s.op("allocput", func(w *goSide) uint64 {
			w.Allocs().Lock()
			defer w.Allocs().Unlock()
			p, _ := w.Allocs().Put(&a)
			return uint64(p)
		}, allocArgs(a)...)
	case 21:
		p := s.r.IntN(40)
		s.op("allocremove", func(w *goSide) uint64 { w.Allocs().Lock(); w.Allocs().Remove(p); w.Allocs().Unlock(); return 0 }, p)
	case 22:
		c, n, v := spanring.Counter(s.r.IntN(128)), s.i64(), s.u64()
		s.op("allocsadd", func(w *goSide) uint64 {
			w.Allocs().Lock()
			w.Allocs().Add(c, n)
			w.Allocs().Unlock()
			return w.Counter(c)
		}, uint8(c), n)
		s.op("raise", func(w *goSide) uint64 {
			w.Allocs().Lock()
			w.Allocs().Raise(c, v)
			w.Allocs().Unlock()
			return w.Counter(c)
		}, uint8(c), v)
	case 23:
		l, p := s.r.IntN(3)-1, s.r.IntN(3)-1
		s.op("track", func(w *goSide) uint64 { w.Allocs().Lock(); w.Allocs().Track(l, p); w.Allocs().Unlock(); return 0 }, l, p)
	}
}

func (s *script) slot() {
	c, i := s.context(), s.r.IntN(s.slots)
	st := func() spanring.SlotState { return spanring.SlotState(s.r.IntN(4)) }
	switch s.r.IntN(4) {
	case 0:
		g, a, b := uint32(s.r.IntN(3)), st(), st()
		s.op("slotcas", func(w *goSide) uint64 {
			return b2u(w.slots[c].CompareAndSwap(i, spanring.MakeSlotWord(g, a), spanring.MakeSlotWord(g+1, b)))
		}, c, i, g, uint8(a), g+1, uint8(b))
	case 1:
		g, a := s.u32(), st()
		s.op("slotstore", func(w *goSide) uint64 {
			w.slots[c].Store(i, spanring.MakeSlotWord(g, a))
			return uint64(w.slots[c].Word(i))
		}, c, i, g, uint8(a))
	case 2:
		v := spanring.Slot{
			Kind: spanring.Kind(3 + s.r.IntN(3)), Armed: s.flag(), SharedStart: s.flag(), Gap: spanring.Gap(s.r.IntN(3)), Context: s.u8(),
			Lane: s.u16(), Stream: s.u16(), Step: s.u64(), EnqueueMonoNS: s.i64(), ClosedMonoNS: s.i64(), Name: spanring.NameID(s.u32()),
			Ordinal: s.u32(), Parent: s.u32(), Graph: s.u64(),
		}
		s.op("slotput", func(w *goSide) uint64 {
			w.slots[c].Put(i, &v)
			g := w.slots[c].Get(i)
			return g.Step ^ g.Graph ^ uint64(g.Ordinal) ^ uint64(g.Name)<<32 ^ uint64(g.Kind) ^ b2u(g.Armed)<<8 ^ uint64(g.Gap)<<12 ^ b2u(g.SharedStart)<<16
		}, c, i, uint8(v.Kind), v.Armed, v.SharedStart, uint8(v.Gap), v.Context, v.Lane, v.Stream, v.Step, v.EnqueueMonoNS, v.ClosedMonoNS,
			uint32(v.Name), v.Ordinal, v.Parent, v.Graph)
	case 3:
		ns, g := s.i64(), spanring.Gap(s.r.IntN(3))
		s.op("slotclosed", func(w *goSide) uint64 { w.slots[c].SetClosed(i, ns, g); return 0 }, c, i, ns, uint8(g))
	}
}

func (s *script) newContext(slots int) {
	c, args := s.contextState(s.contexts, uint32(slots))
	s.op("newcontext", func(w *goSide) uint64 {
		st := c
		got, err := w.NewContext(&st, slots)
		if err != nil {
			return math.MaxUint64
		}
		w.slots[w.n] = got
		w.n++
		return uint64(st.Index) | uint64(st.FirstSlot)<<8
	}, args...)
	s.contexts++
}

// TestScript plays the same operations through both writers, and compares the
// files word by word: all but who and when.
func TestScript(t *testing.T) {
	geo := spanring.Geometry{LogEntries: 256, Slots: 64, NameBytes: 64 << 10, Allocs: 24}
	bin := buildProgram(t, "ringscript.c", ringSources)
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := &script{r: rand.New(rand.NewPCG(seed, 1)), slots: 16}
			s.newContext(s.slots)
			s.newContext(s.slots)
			for range 4000 {
				s.add()
			}
			for i := range 2 {
				c, args := s.contextState(i, uint32(s.slots))
				s.op("setcontext", func(w *goSide) uint64 { w.SetContext(&c); return 0 }, args...)
			}
			// Beyond the table of slots, then what is left of it.
			s.newContext(33)
			s.newContext(32)
			compareScript(t, bin, geo, s)
		})
	}
}

func compareScript(t *testing.T, bin string, geo spanring.Geometry, s *script) {
	info := spanring.Info{
		Service: "services are cut at 128 bytes: " + strings.Repeat("é", 60), Model: "m" + strings.Repeat("odel", 300), Level: 3,
		Executable: "engine", GPUUUID: "GPU-1", GPUName: "a GPU", Producer: "script 1", KernelEvery: 64, ArmedRequested: 5,
		Rank: spanring.Rank{Data: 1, Tensor: -1, Pipeline: 2, Expert: 1<<31 - 1},
	}
	var in bytes.Buffer
	fmt.Fprintf(&in, "%d %d %d %d %s %s %s %s %d %d\n", geo.LogEntries, geo.Slots, geo.NameBytes, geo.Allocs,
		hexText(info.Executable), hexText(info.GPUUUID), hexText(info.GPUName), hexText(info.Producer), info.KernelEvery, info.ArmedRequested)
	for _, o := range s.ops {
		in.WriteString(o.line + "\n")
	}
	dir := privateDir(t)
	cmd := exec.Command(bin)
	cmd.Env = []string{
		"LANETRACE_DIR=" + dir.Path, "OTEL_SERVICE_NAME=" + info.Service, "LANETRACE_MODEL=" + info.Model, "LANETRACE_LEVEL=kernel",
		"LANETRACE_RANK_DATA=1", "LANETRACE_RANK_PIPELINE=2", "LANETRACE_RANK_EXPERT=2147483647",
	}
	cmd.Stdin = &in
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, errs.Bytes())
	}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Scan()
	cPath := lines.Text()

	w, err := spanring.Create(dir, spanring.Options{Geometry: geo, Info: info})
	if err != nil {
		t.Fatal(err)
	}
	g := &goSide{Writer: w}
	for i, o := range s.ops {
		want := o.play(g)
		if !lines.Scan() {
			t.Fatalf("operation %d: no answer from C", i)
		}
		if got := lines.Text(); got != strconv.FormatUint(want, 10) {
			t.Fatalf("operation %d, %.200s: C answers %s, Go %d", i, o.line, got, want)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	compareFiles(t, cPath, w.Path())
	compareReaders(t, cPath, w.Path())
}

// identity are the words of the header that differ between any two rings: run id,
// process, its start, and when the ring was made.
var identity = map[int]bool{0x58: true, 0x60: true, 0x68: true, 0x78: true, 0x80: true, 0x88: true}

func compareFiles(t *testing.T, cPath, goPath string) {
	t.Helper()
	c, err := os.ReadFile(cPath)
	if err != nil {
		t.Fatal(err)
	}
	g, err := os.ReadFile(goPath)
	if err != nil {
		t.Fatal(err)
	}
	if len(c) != len(g) {
		t.Fatalf("C's file has %d bytes, Go's %d", len(c), len(g))
	}
	bad := 0
	for at := 0; at < len(c) && bad < 10; at += 8 {
		a, b := binary.LittleEndian.Uint64(c[at:]), binary.LittleEndian.Uint64(g[at:])
		if a != b && !identity[at] {
			t.Errorf("at %#x: C has %#x, Go %#x", at, a, b)
			bad++
		}
	}
}

// compareReaders compares what a reader makes of both files, header field by
// header field, and that the identity is one.
func compareReaders(t *testing.T, cPath, goPath string) {
	t.Helper()
	type read struct {
		Info     spanring.Info
		Entries  []spanring.Entry
		Account  spanring.Account
		Counters spanring.Counters
		Contexts []spanring.ContextState
		Busy     []spanring.SlotEntry
		Allocs   []spanring.Alloc
		Scan     spanring.AllocScan
		Names    []spanring.Name
	}
	get := func(path string) (v read) {
		r, err := spanring.Open(path, spanring.ReaderOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if alive, err := r.Alive(); alive || err != nil {
			t.Errorf("%s alive: %v, %v", path, alive, err)
		}
		v.Info, _ = r.Info()
		buf := make([]spanring.Entry, 512)
		n, err := r.Poll(buf, 0)
		if err != nil {
			t.Fatal(err)
		}
		v.Entries, v.Account = buf[:n], r.Account()
		v.Counters, _ = r.Counters()
		v.Contexts, _ = r.Contexts()
		v.Busy, _ = r.Busy()
		v.Allocs, v.Scan, _ = r.Allocs(nil)
		for id := range spanring.NameID(64 << 10 / 16) {
			if n, ok := r.Name(id); ok {
				v.Names = append(v.Names, n)
			}
		}
		return v
	}
	c, g := get(cPath), get(goPath)
	i := c.Info
	if i.RunID == (spanring.RunID{}) || i.PID == 0 || i.PIDNamespace != g.Info.PIDNamespace || i.StartTicks < g.Info.StartTicks ||
		i.CreatedMonoNS > g.Info.CreatedMonoNS || i.CreatedMonoNS < g.Info.CreatedMonoNS-60e9 || i.CreatedUnixNS < g.Info.CreatedUnixNS-60e9 {
		t.Errorf("C's identity is %+v, Go's %+v", i, g.Info)
	}
	if !i.Clean {
		t.Error("C's ring did not end cleanly")
	}
	c.Info.RunID, c.Info.PID, c.Info.StartTicks = g.Info.RunID, g.Info.PID, g.Info.StartTicks
	c.Info.CreatedMonoNS, c.Info.CreatedUnixNS = g.Info.CreatedMonoNS, g.Info.CreatedUnixNS
	if d := cmp.Diff(g, c); d != "" {
		t.Errorf("a reader of C's ring sees another one than of Go's (-Go +C):\n%s", d)
	}
	if len(c.Entries) == 0 || len(c.Contexts) < 2 || len(c.Allocs) == 0 || len(c.Names) < 100 {
		t.Errorf("too little to compare: %d entries, %d contexts, %d allocations, %d names", len(c.Entries), len(c.Contexts), len(c.Allocs), len(c.Names))
	}
}

// privateDir is a ring directory that both writers accept.
func privateDir(tb testing.TB) spanring.Dir {
	tb.Helper()
	d := spanring.Dir{Path: tb.TempDir(), Group: -1}
	if err := os.Chmod(d.Path, 0o700); err != nil {
		tb.Fatal(err)
	}
	return d
}
