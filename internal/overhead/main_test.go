package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lanetrace/lanetrace/internal/cubench/cupti"
	"github.com/lanetrace/lanetrace/internal/dl"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run runs the command and returns what it printed.
func run(t *testing.T, want int, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	if got := command(t.Context(), args, &out, &errs); got != want {
		t.Fatalf("%v: status %d, want %d\n%s%s", args, got, want, &out, &errs)
	}
	return out.String(), errs.String()
}

// decode is the example engine, built; its steps are of one sequence, since the
// simulated GPU is none.
func decode(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "decode")
	if out, err := exec.Command("go", "build", "-o", bin+".built", "../../examples/decode").CombinedOutput(); err != nil {
		t.Fatalf("build decode: %v\n%s", err, out)
	}
	if err := os.WriteFile(bin, []byte("#!/bin/sh\nexec "+bin+".built \"$@\" --max-batch 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return bin
}

// toolkit is a toolkit with a stand-in for CUPTI.
func toolkit(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	if err := os.CopyFS(root, os.DirFS("testdata/toolkit")); err != nil {
		t.Fatal(err)
	}
	lib := filepath.Join(root, "lib64", "libcupti.so.13")
	if err := os.MkdirAll(filepath.Dir(lib), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", lib, "testdata/libcupti.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return root
}

// cells are the table rows that begin so, without their first column.
func cells(text, row string) (out [][]string) {
	for line := range strings.Lines(text) {
		if c := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|"); strings.TrimSpace(c[0]) == row {
			for i := range c {
				c[i] = strings.TrimSpace(c[i])
			}
			out = append(out, c[1:])
		}
	}
	return out
}

// TestMeasure runs all of it but PyTorch on the simulated GPU, CUPTI's stand-in
// included: its library is compiled as on a machine that has CUPTI.
func TestMeasure(t *testing.T) {
	if errors.Is(dl.Probe("libc.so.6"), dl.ErrNoCgo) {
		t.Skip("without cgo decode cannot switch a profiler")
	}
	raw := filepath.Join(t.TempDir(), "raw.jsonl")
	out, _ := run(t, 0, "-decode", decode(t), "-backend", "sim", "-shapes", "short", "-rounds", "25", "-time", "100us", "-cuda", toolkit(t), "-raw", raw)
	difference := regexp.MustCompile(`^[+-]\d+\.\d \[[+-]\d+\.\d to [+-]\d+\.\d\]$`)
	for _, how := range []string{"eager, waits", "eager, runs ahead", "graph, waits", "graph, runs ahead"} {
		row := "short, " + how
		got := cells(out, row)
		if len(got) != 3 {
			t.Fatalf("%d rows of %s in\n%s", len(got), row, out)
		}
		levels, arming, profiler := got[0], got[1], got[2]
		launches := map[bool]string{true: "40", false: "1"}[strings.HasPrefix(how, "eager")]
		if levels[0] != launches || !difference.MatchString(levels[2]) || !difference.MatchString(levels[4]) || levels[6] != "all" || !strings.HasPrefix(levels[7], "25 × ") {
			t.Errorf("%s: levels %v", row, levels)
		}
		if stride, err := strconv.Atoi(arming[2]); !difference.MatchString(arming[0]) || err != nil || stride < 64 || !difference.MatchString(arming[5]) {
			t.Errorf("%s: arming %v", row, arming)
		}
		if !difference.MatchString(profiler[3]) || profiler[5] == "0.0" {
			t.Errorf("%s: profiler %v", row, profiler)
		}
	}
	if !strings.Contains(out, "spans dropped 0, failed 0") || !strings.Contains(out, "Left out, the attached PyTorch model: no -python was given\n") {
		t.Error(out)
	}
	b, err := os.ReadFile(raw)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d raw documents, want 2", len(lines))
	}
	again, _ := run(t, 0, "-from", raw+","+raw)
	if d := cmp.Diff(strings.TrimSuffix(out, "\nLeft out, the attached PyTorch model: no -python was given\n"), again); d != "" {
		t.Errorf("tables of what was kept (-measured +read):\n%s", d)
	}
	for _, l := range lines {
		var r report
		if err := json.Unmarshal([]byte(l), &r); err != nil || len(r.Modes) != 4 {
			t.Errorf("%d modes, %v", len(r.Modes), err)
		}
	}
}

// TestFigures puts known figures into the tables.
func TestFigures(t *testing.T) {
	m := mode{Steps: 30, Stride: 70, Lanes: 4, Differences: []difference{
		{Of: "basic", Over: "off", MedianNS: 120, LowNS: -30, HighNS: 250},
		{Of: "lane", Over: "basic", MedianNS: 3140, LowNS: 2900, HighNS: 3400, Share: 0.00242},
		{Of: "armed", Over: "lane", MedianNS: 266_000, LowNS: 260_000, HighNS: 270_000},
		{Of: "kernel", Over: "lane", MedianNS: 3900, LowNS: 3300, HighNS: 4100},
	}}
	level := func(name string, ns float64) {
		m.Levels = append(m.Levels, struct {
			Level    string  `json:"level"`
			MedianNS float64 `json:"median_ns"`
		}{name, ns})
	}
	level("off", 1_299_500)
	level("lane", 1_302_700)
	p := mode{Profiled: true, Kernels: 76, Differences: []difference{{Of: "profiler", Over: "off", MedianNS: 5900, LowNS: 5000, HighNS: 7000, Share: 0.005}}}
	p.Levels = m.Levels
	p.Levels = append(p.Levels[:1:1], struct {
		Level    string  `json:"level"`
		MedianNS float64 `json:"median_ns"`
	}{"profiler", 1_305_400})
	var b bytes.Buffer
	rows := []row{{"middling", 76, false, 31, &m}, {"middling", 76, false, 31, &p}}
	levelTables(&b, rows)
	profilerTable(&b, rows)
	for _, want := range []string{
		"| middling, eager, waits | 76 | 1,300 | - | +0.1 [-0.0 to +0.2] | +3.1 [+2.9 to +3.4] | 0.24 % | 1 in 4 | 31 × 30 |\n",
		// 266 µs by 76 launches, and by 70 steps.
		"| middling, eager, waits | +266.0 [+260.0 to +270.0] | 3.50 | 70 | +3.80 | 0.292 % | +3.9 [+3.3 to +4.1] |\n",
		"| middling, eager, waits | 1,300 | 1,300 | 1,305 | +5.9 [+5.0 to +7.0] | +0.5 % | 76.0 |\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
}

// fakePython answers as llama.py does; noTorch fails as Python without torch does.
const (
	fakePython = `#!/bin/sh
[ "$1" = -c ] && exit 0
case "$*" in
*profiler*)
	[ -z "$LD_PRELOAD" ] || exit 3
	echo '{"torch": "2", "ab": {"step_us": {"plain": 3602.5}, "difference_us": {"profiler - plain": [643, 600.5, 700]}}}' ;;
*)
	[ "$LANETRACE_STEP" = step ] && [ -d "$LANETRACE_DIR" ] && [ -n "$NVTX_INJECTION64_PATH" ] || exit 3
	echo '{"torch": "2", "ab": {"step_us": {"off": 3242.8}, "difference_us": {"lane - off": [3.3, 2.1, 3.9], "kernel - lane": [0.9, 0.4, 2.9]}}}' ;;
esac
`
	noTorch = `#!/bin/sh
echo 'Traceback' >&2
echo "ModuleNotFoundError: No module named 'torch'" >&2
exit 1
`
)

func TestAttachedModel(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	agent := filepath.Join(toolkit(t), "lib64", "libcupti.so.13") // any library will do
	o := options{python: write("python", fakePython), agent: agent, llama: write("llama.py", ""), pythonRounds: 25}
	var b bytes.Buffer
	if err := o.pythonTable(context.Background(), &b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| graph replay, the host runs ahead | 3242.8 | +3.3 [+2.1 to +3.9] | +0.9 [+0.4 to +2.9] | 25 × 60 |\n",
		"| eager, the host waits for each | 3602.5 | +643.0 [+600.5 to +700.0] |\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, &b)
		}
	}
	for _, c := range []struct {
		o    options
		want string
	}{
		{options{}, "no -python was given"},
		{options{python: write("python3", noTorch), agent: o.agent, llama: o.llama}, "No module named 'torch'"},
		{options{python: o.python, agent: filepath.Join(dir, "not"), llama: o.llama}, "no such file"},
	} {
		b.Reset()
		if err := c.o.pythonTable(context.Background(), &b); err != nil || !strings.HasPrefix(b.String(), "\nLeft out, the attached PyTorch model: ") || !strings.Contains(b.String(), c.want) || strings.Count(b.String(), "\n") != 2 {
			t.Errorf("%+v: %v\n%s", c.o, err, &b)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"-rounds", "24"}, 2, "want at least 25 rounds"},
		{[]string{"-time", "-1s"}, 2, "want more than 0"},
		{[]string{"-shapes", "short,tall"}, 2, `no shape "tall"`},
		{[]string{"more"}, 2, `unexpected argument "more"`},
		{[]string{"-decode", "/not/there", "-cupti", "none"}, 1, "/not/there"},
		{[]string{"-from", "/not/there"}, 1, "/not/there"},
	} {
		if _, said := run(t, c.status, c.args...); !strings.Contains(said, c.want) {
			t.Errorf("%v: %q, want %q", c.args, said, c.want)
		}
	}
}

// TestInjected: the driver loads the same library into a program and starts it.
func TestInjected(t *testing.T) {
	lib, err := cupti.Build(t.Context(), t.TempDir(), toolkit(t), cupti.Source)
	if errors.Is(err, dl.ErrNoCgo) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{1, 0, 0} {
		f := []string{"InitializeInjection", cupti.Off, cupti.On}[i]
		if got, err := dl.Call(lib, f); err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", f, got, err, want)
		}
	}
	if n, err := dl.Call(lib, cupti.Kernels); err != nil || n != 40 {
		t.Errorf("%d kernels, %v, want 40", n, err)
	}
}
