package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/lanetrace/lanetrace/internal/testdriver"
	"github.com/lanetrace/lanetrace/spanring"
)

// The test binary is its own engine.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args[1:], "-engine") {
		os.Exit(command(os.Args[1:], nil, os.Stdin, os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

// fakeActivity writes the records that CUPTI would have: the times that the
// stand-in driver's kernels take, where the spans say that they were.
func fakeActivity(r *result, path string) error {
	var out bytes.Buffer
	n := 0
	correlation := 10
	line := func(kind string, start, end, bytes int64, name string) {
		fmt.Fprintf(&out, "%s\t%d\t%d\t7\t%d\t%d\t%s\n", kind, start, end, correlation, bytes, name)
		n++
	}
	line(opKernel, 1, 2, 0, spinName) // set-up
	correlation++
	line(opKernel, 3, 4, 0, beginName)
	now := int64(1000)
	for i := range r.plan {
		b := &r.plan[i]
		inLane := make([]int64, len(b.Lanes))
		for _, o := range b.Ops {
			if o.Lane > 0 {
				inLane[o.Lane-1]++
			}
		}
		lane := 0
		for _, o := range b.Ops {
			correlation++
			took := int64(1000)
			if o.Lane > 0 {
				sp := r.spans[spanOf{b.Lanes[o.Lane-1].Step, b.Lanes[o.Lane-1].Ordinal}]
				took = max(1, (int64(sp.RawNS)-standInExcess)/inLane[o.Lane-1])
				if o.Lane != lane {
					now = max(now, sp.StartMonoNS+1580)
				}
			}
			lane = o.Lane
			if o.Ordinal > 0 {
				sp, ok := r.spans[spanOf{b.Step, o.Ordinal}]
				if !ok {
					return fmt.Errorf("step %d has no span %d", b.Step, o.Ordinal)
				}
				// The stand-in's pair holds this much more, see its setting below.
				took = max(1, int64(sp.RawNS)-standInExcess)
				if sp.Gap == spanring.GapStarved || o.Kind == opGraph {
					took = max(1, int64(cmp.Or(b.TargetNS, 5000)))
					if b.Shape == "4 waves" {
						took = (took-fixedNS)/4 + fixedNS
					}
				}
				now = max(now, sp.EndMonoNS()-1460-took)
			}
			switch o.Kind {
			case opGraph:
				each := max(took/int64(o.Nodes), 1)
				for k := range o.Nodes {
					line(opKernel, now+int64(k)*each, now+int64(k+1)*each, 0, o.Name)
				}
			default:
				line(o.Kind, now, now+took, o.Bytes, o.Name)
			}
			if now += took; o.Lane == 0 {
				now++
			}
		}
	}
	fmt.Fprintf(&out, "end\t%d\t0\n", n)
	return os.WriteFile(path, out.Bytes(), 0o600)
}

// standInExcess is what a queued pair holds beyond its kernel on the stand-in.
const standInExcess = 3040

// placeBound is what is said where positions are wrong. The stand-in's stamps are of
// virtual time, and what its kernels write comes when the real clock has caught up: it
// cannot be held against the placement. Nor can positions on a machine too busy to look
// at the clock: its map slews by any amount then.
var placeBound = regexp.MustCompile(`^- (placement, .*|.* spans are where they cannot be|.* spans end more than .* off their records)$`)

// nothingWrong holds that a measurement found nothing wrong but positions.
func nothingWrong(t *testing.T, status int, out, errs string) {
	t.Helper()
	_, wrong, found := strings.Cut(out, "## Wrong\n\n")
	for w := range strings.Lines(wrong) {
		if w = strings.TrimSpace(w); !placeBound.MatchString(w) {
			t.Error(w)
		}
	}
	if found != (status == 1) || status > 1 {
		t.Errorf("status %d:\n%s\n%s", status, out, errs)
	}
}

func TestOverTheStandIn(t *testing.T) {
	t.Setenv("LANETRACE_TESTDRIVER_AFTER_RECORD_NS", "1580")
	js := filepath.Join(t.TempDir(), "all.json")
	var out, errs bytes.Buffer
	status := command([]string{"-library", testdriver.Build(t), "-tmp", t.TempDir(), "-scale", "0.02", "-processes", "1", "-cold", "0",
		"-align", "300ms", "-streams", "2", "-json", js}, fakeActivity, nil, &out, &errs)
	t.Log(errs.String())
	t.Log(out.String())
	nothingWrong(t, status, out.String(), errs.String())
	for _, want := range []string{"## Processes", "## Kernels", "## Lines", "## Aims", "## What follows", "## Graphs", "## Placement", "## Structure", "out of order: ",
		"copy to the host of 1 MiB", "graph of 100 kernels", "event shared", "| steady |", "| after idling |", "| beside busy streams |", "all kinds, alone"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing", want)
		}
	}
	var doc struct {
		Processes []struct {
			Constant uint32 `json:"constant_ns"`
		} `json:"processes"`
		Rows []struct {
			row
			CUPTI   []int64 `json:"cupti_ns"`
			Control []int64 `json:"raw_without_cupti_ns"`
		} `json:"rows"`
		Placement [][7]int64 `json:"placement"`
	}
	b, err := os.ReadFile(js)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Processes) != 5 || len(doc.Placement) < 3 || len(doc.Rows) < 60 {
		t.Errorf("%d processes, %d placements, %d rows", len(doc.Processes), len(doc.Placement), len(doc.Rows))
	}
	for _, p := range doc.Processes {
		if p.Constant < standInExcess-100 || p.Constant > standInExcess+100 {
			t.Errorf("constant %d", p.Constant)
		}
	}
	for _, r := range doc.Rows {
		// Part constant also runs beside part align.
		if len(r.CUPTI) != len(r.Control) && r.Part != "warm-up" {
			t.Errorf("%+v: %d with CUPTI, %d without", r.row, len(r.CUPTI), len(r.Control))
		}
	}
}

// TestWrongIsAFailure: what cannot be noise ends the program with status 1 and
// says so.
func TestWrongIsAFailure(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		spoil      func(b []byte) []byte
	}{
		{"a record of another kernel", `- constant 1: batch 0 (constant, 1 block), operation 1: enqueued was kernel "lt_spin", the record is of kernel "other"`, func(b []byte) []byte {
			// The first is of the set-up, the second the plug.
			i := bytes.Index(b, []byte(beginName))
			at := i + len(beginName) + bytes.Index(b[i+len(beginName):], []byte("lt_spin\n")) + len("lt_spin\n")
			return append(b[:at:at], bytes.Replace(b[at:], []byte("\tlt_spin\n"), []byte("\tother\n"), 1)...)
		}},
		{"the file has no end", "it has no end", func(b []byte) []byte { return b[:bytes.LastIndex(b, []byte("end"))] }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			status := command([]string{"-library", testdriver.Build(t), "-tmp", t.TempDir(), "-parts", "constant", "-processes", "1"},
				func(r *result, path string) error {
					if err := fakeActivity(r, path); err != nil {
						return err
					}
					b, err := os.ReadFile(path)
					if err != nil {
						return err
					}
					return os.WriteFile(path, tc.spoil(b), 0o600)
				}, nil, &out, &errs)
			if status != 1 || !strings.Contains(out.String()+errs.String(), tc.want) {
				t.Errorf("status %d:\n%s\n%s", status, out.String(), errs.String())
			}
		})
	}
}

func TestCommandLine(t *testing.T) {
	for _, tc := range []struct {
		args   string
		status int
		err    string
	}{
		{"-h", 0, "status 1 says that something is wrong"},
		{"-parts kernels,sleep", 2, `-parts: "sleep" is none of constant, kernels`},
		{"-scale 0", 2, "a count is out of its range"},
		{"-nonsense", 2, "flag provided but not defined"},
		{"more", 2, `"more" is no flag`},
		{"-activity /nowhere/lib.so", 1, "accuracy: stat /nowhere/lib.so"},
		{"-cuda /nowhere", 1, "accuracy: no CUPTI to hold times against: no cupti.h with a libcupti.so below /nowhere (-activity none does without)"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			var out, errs bytes.Buffer
			status := command(strings.Fields(tc.args), nil, nil, &out, &errs)
			if status != tc.status || !strings.Contains(errs.String(), tc.err) {
				t.Errorf("status %d: %s", status, errs.String())
			}
		})
	}
}

// TestWithoutCUPTI: there is no table of what only CUPTI could say.
func TestWithoutCUPTI(t *testing.T) {
	var out, errs bytes.Buffer
	status := command([]string{"-library", testdriver.Build(t), "-tmp", t.TempDir(), "-activity", "none", "-parts", "constant,kernels,follow,graphs,lanes",
		"-processes", "1", "-scale", "0.01"}, nil, nil, &out, &errs)
	nothingWrong(t, status, out.String(), errs.String())
	// A machine too busy to enqueue 128 pairs in 16 ms measures none, which is said.
	for _, want := range []string{"| constant 1, alone | no | ", "out of order: "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing", want)
		}
	}
	for _, no := range []string{"## Kernels", "## Aims", "## What follows", "## Graphs"} {
		if strings.Contains(out.String(), no) {
			t.Errorf("%q stands there", no)
		}
	}
}

// TestNoDriver: that no engine can open its GPU is one line, in the driver's words.
func TestNoDriver(t *testing.T) {
	var out, errs bytes.Buffer
	status := command([]string{"-library", "/nowhere/libcuda.so.1", "-activity", "none", "-tmp", t.TempDir(), "-parts", "constant", "-processes", "1"}, nil, nil, &out, &errs)
	if status != 1 || out.Len() > 0 || !strings.Contains(errs.String(), "cannot load the CUDA driver library /nowhere/libcuda.so.1") || strings.Count(errs.String(), "\n") != 1 {
		t.Errorf("status %d:\n%s\n%s", status, out.String(), errs.String())
	}
}
