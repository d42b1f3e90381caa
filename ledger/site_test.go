package ledger

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

func TestIsCaller(t *testing.T) {
	const m = "github.com/lanetrace/lanetrace"
	var f finder
	f.init([]string{"example.com/engine/alloc", "plain"})
	for _, c := range []struct {
		function, file string
		want           bool
	}{
		{"main.load", "/src/engine/main.go", true},
		{"example.com/engine.Load", "x.go", true},
		{"example.com/engine/alloc.New", "x.go", false},
		{"example.com/engine/alloc/pool.New", "x.go", false},
		{"example.com/engine/allocator.New", "x.go", true},
		{"plain.F", "x.go", false},
		{"plainer.F", "x.go", true},
		{m + ".(*Device).LaneBegin", "x.go", false},
		{m + ".Open.func1", "x.go", false},
		{m + "/backend/cuda.(*GPU).Alloc", "x.go", false},
		{m + "/backend.F", "x.go", false},
		{m + "/backend/conformance.Run", "x.go", true},
		{m + "/backend/conformance2.Run", "x.go", false},
		{m + "/ledger.(*Ledger).Begin", "x.go", false},
		{m + "/ledger.F[go.shape.struct { example.com/engine.T }]", "x.go", false},
		{m + "/ledger_test.TestX", "x.go", true},
		{m + "/launchtrace.F", "x.go", false},
		{m + "/cudaevents/scripted.F", "x.go", false},
		{m + "/spanring.F", "x.go", false},
		{m + "/internal/player.F", "x.go", false},
		{m + "/ledger.TestX", "/src/ledger/x_test.go", true},
		{m + "/examples/decode.(*model).load", "x.go", true},
		{m + "/cmd/lanetrace.run", "x.go", true},
		{m + "/collector.F", "x.go", true},
		{m + "2.F", "x.go", true},
		{"gopkg.in/yaml%2ev3.F", "x.go", true},
		{"runtime.goexit", "asm.s", false},
		{"runtime/debug.F", "x.go", false},
		{"sync.(*Once).doSlow", "x.go", false},
		{"reflect.Value.Call", "x.go", false},
		{"sort.Slice", "x.go", true},
	} {
		if got := f.isCaller(c.function, c.file); got != c.want {
			t.Errorf("%s in %s: %v", c.function, c.file, got)
		}
	}
	if p := packageOf("gopkg.in/yaml%2ev3.(*T).F"); p != "gopkg.in/yaml.v3" {
		t.Error(p)
	}
}

// here is the line of its caller.
func here() int {
	_, _, line, _ := runtime.Caller(1)
	return line
}

// TestCallSite: the site is the line that calls, through functions that are
// inlined and ones that are not, and on stacks deeper than one look.
func TestCallSite(t *testing.T) {
	l := newLedger(t, Options{})
	want := map[uint64]int{}
	add := func(addr uint64, line int) { want[addr] = line }
	for range 3 {
		p := l.Begin(device, 1)
		p.Done(1)
		add(1, here()-1)
		func() {
			p.Done(2)
			add(2, here()-1)
		}()
		var deep func(n int)
		deep = func(n int) {
			if n > 0 {
				deep(n - 1)
				return
			}
			p.Done(3)
			add(3, here()-1)
		}
		deep(100)
	}
	live, _ := l.LiveAllocations()
	if len(live) != 3 {
		t.Fatalf("%+v", live)
	}
	for _, a := range live {
		s := SiteTotal{Site: a.Site}
		if file, line := s.File(); filepath.Base(file) != "site_test.go" || line != int64(want[a.Addr]) {
			t.Errorf("%+v, want line %d", a, want[a.Addr])
		}
	}
	// A stack that ends within the library has none.
	if s := l.callSite(&[firstFrames]uintptr{}, 0); s != unknownSite {
		t.Errorf("site %d", s)
	}
}

// TestCallSiteOfProgram builds a program that uses the library as an engine does,
// with and without -trimpath, and reads the sites that it prints.
func TestCallSiteOfProgram(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command")
	}
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		flag, prefix string
	}{{"-trimpath=true", ""}, {"-trimpath=false", filepath.Dir(wd) + "/"}} {
		exe := filepath.Join(t.TempDir(), "siteprog")
		if out, err := exec.Command(goTool, "build", c.flag, "-o", exe, "./testdata/siteprog").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		out, err := exec.Command(exe).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		file := c.prefix + "ledger/testdata/siteprog/main.go:"
		want := file + "21\n" + file + "27\n" + file + "30\n" + file + "31\n"
		if string(out) != want {
			t.Errorf("%s: sites\n%swant\n%s", c.flag, out, want)
		}
	}
}
