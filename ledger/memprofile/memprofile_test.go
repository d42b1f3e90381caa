package memprofile

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/pprof/profile"
	"go.uber.org/goleak"

	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func memory() *ledger.Memory {
	return &ledger.Memory{
		State:       spanring.AllocsStale,
		Approximate: true,
		Totals:      spanring.MemoryTotals{ChunkSlackBytes: 5, RoundingSlackBytes: 6, ArenaBytes: 7, ArenaCount: 1, UnlistedBytes: 50, UnlistedCount: 2},
		Sites: []ledger.SiteTotal{
			{Site: "examples/decode/model.go:88", Function: "main.load", Bytes: 3000, Count: 3},
			{Site: "examples/decode/cache.go:9", Bytes: 2000, Count: 1},
			{Site: "libtorch.so+0x1234", Bytes: 1000, Count: 7},
			{Site: "libt.so!_Z1fv+0x5 in kv (build 00)", Label: "libt.so!f+0x5 in kv", Function: "f", Bytes: 900, Count: 2},
		},
	}
}

// TestProfile writes a profile and reads it back.
func TestProfile(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, memory(), 1e18); err != nil {
		t.Fatal(err)
	}
	p, err := profile.Parse(&b)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.CheckValid(); err != nil {
		t.Error(err)
	}
	if p.TimeNanos != 1e18 || p.DefaultSampleType != "inuse_space" || len(p.SampleType) != 2 ||
		*p.SampleType[0] != (profile.ValueType{Type: "inuse_objects", Unit: "count"}) || *p.SampleType[1] != (profile.ValueType{Type: "inuse_space", Unit: "bytes"}) {
		t.Errorf("%v", p)
	}
	type row struct {
		name, file   string
		line         int64
		count, bytes int64
	}
	var got []row
	for _, s := range p.Sample {
		l := s.Location[0].Line[0]
		got = append(got, row{l.Function.Name, l.Function.Filename, l.Line, s.Value[0], s.Value[1]})
	}
	want := []row{
		{"main.load", "examples/decode/model.go", 88, 3, 3000},
		{"cache.go:9", "examples/decode/cache.go", 9, 1, 2000},
		{"libtorch.so+0x1234", "libtorch.so", 0, 7, 1000},
		{"libt.so!f+0x5 in kv", "libt.so", 0, 2, 900},
		{"not listed", "not listed", 0, 2, 50},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(row{})); d != "" {
		t.Error(d)
	}
	if s := strings.Join(p.Comments, "\n"); s != "chunk slack: 5 bytes\nrounding slack: 6 bytes\narenas: 7 bytes in 1\n"+
		"approximate: allocations were made or freed while this was read\ntelemetry is off: as of the moment when it was switched off" {
		t.Errorf("comments %q", s)
	}
}

func TestNotTracked(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, &ledger.Memory{}, 0); !errors.Is(err, ErrNotTracked) || b.Len() != 0 {
		t.Errorf("%v, %d bytes", err, b.Len())
	}
}

type failing struct{}

var errFull = errors.New("disk full")

func (failing) Write([]byte) (int, error) { return 0, errFull }

func TestWriteFails(t *testing.T) {
	if err := Write(failing{}, memory(), 0); !errors.Is(err, errFull) {
		t.Error(err)
	}
}

// TestToolOpensIt has go tool pprof print the profile.
func TestToolOpensIt(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command")
	}
	file := filepath.Join(t.TempDir(), "memory.pb.gz")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Write(f, memory(), 0), f.Close()); err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string][]string{
		"-sample_index=inuse_space":   {"Type: inuse_space", "2.93kB", "main.load", "cache.go:9", "libtorch.so"},
		"-sample_index=inuse_objects": {"Type: inuse_objects", "main.load"},
	} {
		out, err := exec.Command(goTool, "tool", "pprof", "-top", "-nodefraction=0", flag, file).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, w := range want {
			if !strings.Contains(string(out), w) {
				t.Errorf("%s: no %q in\n%s", flag, w, out)
			}
		}
	}
}
