package conformance

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/launchtrace"
	"github.com/lanetrace/lanetrace/spanring"
)

var traceTests = []test{
	{"what is recorded", traceRecords},
	{"a changed argument is named", traceDiff},
	{"across a capture", traceCapture},
	{"copies of rows", traceRows},
	{"the ring hears of it", traceRing},
}

// traced is one operation without its handle.
type traced struct {
	Kind        string
	Name        string
	Grid, Block [3]uint32
	Shared      uint32
	Args        []uint64
}

func ops(t *testing.T, tr *launchtrace.Trace) (out []traced) {
	t.Helper()
	if tr == nil {
		t.Fatal("nothing was recorded")
	}
	for _, o := range tr.Ops() {
		out = append(out, traced{o.Kind.String(), o.Name, o.Grid, o.Block, o.SharedBytes, o.Args})
	}
	return out
}

func traceRecords(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st, other := r.stream(), r.stream()
	p, q := r.words(100, 1), r.words(100, 2)
	// What runs beside the stream has memory of its own.
	beside, blocking := r.words(100, 3), r.words(1, 4)
	region := r.gpu.LaunchTrace().Region("test")
	r.fill(st, p, 1, 100) // before it begins
	region.Begin(uint64(st))
	r.fill(st, p, 7, 100)
	r.ok(r.gpu.MemsetAsync(q, 0x11, 40, st))
	r.ok(r.gpu.CopyDtoDAsync(q, p, 80, st))
	// None of these is an operation of the region.
	r.ok(r.gpu.MemsetAsync(q, 0, 0, st))
	r.ok(r.gpu.Memset(blocking, 1, 4))
	r.ok(r.gpu.CopyHtoDAsync(q, []byte{1, 2}, st))
	r.fill(other, beside, 8, 100)
	r.refused("a launch without arguments", invalidValue, r.tryLaunch(st, kFill))
	r.launch(st, kArgs, backend.Ptr(p), backend.U8(0xfe), backend.U16(0xfedc), backend.U32(3), backend.U64(1<<63), backend.F32(1), backend.F64(-2), backend.U8(9))
	rep := region.End(0, 10)
	r.fill(st, p, 9, 100) // after its end
	if rep == nil || !rep.First {
		t.Errorf("report %+v, want that of a first execution", rep)
	}
	_, after := region.Executions()
	grid, block := [3]uint32{2, 1, 1}, [3]uint32{32, 1, 1}
	want := []traced{
		{"kernel", Module + "::" + kFill, grid, block, 0, []uint64{uint64(p), 7, 100}},
		{"memset", "", [3]uint32{}, [3]uint32{}, 0, []uint64{uint64(q), 0x11, 40}},
		{"copy", "", [3]uint32{}, [3]uint32{}, 0, []uint64{uint64(q), uint64(p), 80}},
		{"kernel", Module + "::" + kArgs, grid, block, 0, []uint64{uint64(p), 0xfe, 0xfedc, 3, 1 << 63, 0x3f800000, 0xc000000000000000, 9}},
	}
	if d := cmp.Diff(want, ops(t, after)); d != "" {
		t.Errorf("operations (-want +got):\n%s", d)
	}
}

func traceDiff(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	p := r.words(100, 1)
	region := r.gpu.LaunchTrace().Region("step")
	step := func(v int, extra bool) *launchtrace.Report {
		region.Begin()
		r.fill(st, p, 1, 100)
		if extra {
			r.fill(st, p+4, 2, 50)
		}
		r.scale(st, p, v, 100)
		r.scale(st, p, 3, 100)
		return region.End(0, 10)
	}
	step(16, false)
	if rep := step(16, false); rep.Differing() != 0 {
		t.Errorf("the same twice:\n%s", rep.Text())
	}
	rep := step(17, false)
	if rep.Changed != 1 || rep.Inserted != 0 || rep.Removed != 0 {
		t.Errorf("report:\n%s", rep.Text())
	}
	if text := rep.Text(); !strings.Contains(text, "#1 kernel "+Module+"::"+kScale) || !strings.Contains(text, "arg1 0x10 -> 0x11 (+1)") {
		t.Errorf("report:\n%s", text)
	}
	// Another address in the same allocation shows as a place in it.
	rep = step(17, true)
	if rep.Inserted != 1 || rep.Changed != 0 {
		t.Errorf("report:\n%s", rep.Text())
	}
	if text := rep.Text(); !strings.Contains(text, "conformance/") || !strings.Contains(text, "+0x4") {
		t.Errorf("report names no place:\n%s", text)
	}
	r.sync(st)
}

func traceCapture(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	p := r.words(100, 1)
	region := r.gpu.LaunchTrace().Region("captured")
	capture := func(n int) (backend.Graph, *launchtrace.Report) {
		region.Begin(uint64(st))
		g := r.capture(st, func() {
			r.fill(st, p, n, 100)
			r.ok(r.gpu.MemsetAsync(p, 0, 4, st))
			r.scale(st, p, 2, 100)
		})
		// A replay is no operation: what is in the graph was recorded.
		r.ok(r.gpu.LaunchGraph(g, st))
		return g, region.End(0, 10)
	}
	g1, rep := capture(5)
	if rep.After != 3 {
		t.Errorf("report:\n%s", rep.Text())
	}
	g2, rep := capture(6)
	if rep.Changed != 1 || !strings.Contains(rep.Text(), "arg1 0x5 -> 0x6 (+1)") {
		t.Errorf("report:\n%s", rep.Text())
	}
	r.wantWords("what the second graph did", st, p, []uint32{0, 12, 12})
	r.ok(r.gpu.DestroyGraph(g1))
	r.ok(r.gpu.DestroyGraph(g2))
}

// traceRows: rows that lie elsewhere are a difference, as many bytes as they may
// have.
func traceRows(s *suite, t *testing.T) {
	r := s.rig(t, nil)
	st := r.stream()
	p, q := r.words(100, 1), r.words(100, 2)
	region := r.gpu.LaunchTrace().Region("rows")
	rows := func(dstPitch, srcPitch, width, height int) string {
		region.Begin(uint64(st))
		r.ok(r.gpu.CopyDtoD2DAsync(q, dstPitch, p, srcPitch, width, height, st))
		return region.End(0, 10).Text()
	}
	rows(16, 32, 8, 4)
	_, after := region.Executions()
	want := []traced{{Kind: "copy", Args: []uint64{uint64(q), uint64(p), 32, 16, 32, 8, 4}}}
	if d := cmp.Diff(want, ops(t, after)); d != "" {
		t.Errorf("operations (-want +got):\n%s", d)
	}
	if text := rows(16, 32, 8, 4); !strings.Contains(text, "no difference") {
		t.Errorf("the same twice:\n%s", text)
	}
	if text := rows(20, 32, 8, 4); !strings.Contains(text, "copy: arg3 0x10 -> 0x14 (+4)\n") {
		t.Errorf("another pitch:\n%s", text)
	}
	if text := rows(20, 32, 4, 8); !strings.Contains(text, "arg5 0x8 -> 0x4 (-4); arg6 0x4 -> 0x8 (+4)\n") {
		t.Errorf("another shape:\n%s", text)
	}
	r.sync(st)
}

func traceRing(s *suite, t *testing.T) {
	x := s.telemetry(t, "basic")
	st := x.stream()
	p := x.words(100, 1)
	region := x.gpu.LaunchTrace().Region("ringed")
	for i, n := range []int{1, 1, 2} {
		region.Begin()
		x.fill(st, p, n, 100)
		region.End(uint64(i+1), 0)
	}
	x.sync(st)
	x.wantCounter(spanring.CtrLaunchExecutions, 0, 3)
	x.wantCounter(spanring.CtrLaunchDiffs, 0, 1)
	x.wantCounter(spanring.CtrLaunchDiffOps, 0, 1)
	// At off it hears nothing; the comparison is made all the same.
	heard := x.hub.Ring().Counters()
	execution := func(n int) *launchtrace.Report {
		region.Begin()
		x.fill(st, p, n, 100)
		return region.End(0, 0)
	}
	x.ok(x.hub.SetLevel(lanetrace.LevelOff))
	if rep := execution(3); rep.Changed != 1 || region.End(0, 0) != nil {
		t.Errorf("at off:\n%s", rep.Text())
	}
	if d := cmp.Diff(heard, x.hub.Ring().Counters()); d != "" {
		t.Errorf("counters at off (-before +after):\n%s", d)
	}
	x.ok(x.hub.SetLevel(lanetrace.LevelBasic))
	execution(4)
	x.wantCounter(spanring.CtrLaunchExecutions, 0, 4)
	x.wantCounter(spanring.CtrLaunchDiffs, 0, 2)
	x.sync(st)
}
