package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/pprof/profile"

	"github.com/lanetrace/lanetrace/internal/synth"
)

// TestReportProfile reads the profile of a recorded engine: by call site, what the
// engine held at its end.
func TestReportProfile(t *testing.T) {
	dir := t.TempDir()
	rec, out := filepath.Join(dir, "m.ltrec"), filepath.Join(dir, "m.pb.gz")
	if err := makeRecording(rec, synth.Options{Duration: 100 * time.Millisecond, Memory: true, Layers: 2}); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"report", "--pprof", out, rec}, &stdout, &stderr); code != 0 || stdout.Len()+stderr.Len() > 0 {
		t.Fatalf("exit code %d\n%s%s", code, &stdout, &stderr)
	}
	f, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := profile.Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]int64{}
	for _, s := range p.Sample {
		l := s.Location[0].Line[0]
		got[l.Function.Filename+" "+l.Function.Name] = append(s.Value, l.Line)
	}
	want := map[string][]int64{
		"examples/decode/model.go model.go:91":     {1, 131072*1024 + 4096, 91},
		"examples/decode/model.go model.go:104":    {8, 2 * ((6144+2048+11008+5504)*1024 + 4*512), 104},
		"examples/decode/model.go model.go:107":    {2, 8192, 107},
		"examples/decode/cache.go cache.go:38":     {1, 96<<20 + 1000, 38},
		"examples/decode/scratch.go scratch.go:22": {4, 4096 + 16384 + 98304 + 1000, 22},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if at := time.Unix(0, p.TimeNanos).UTC(); at.Year() != 2026 {
		t.Errorf("of %v", at)
	}
}
