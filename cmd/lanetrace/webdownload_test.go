package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/dashboards/web"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// A download holds the steps that were asked for, whole, and no others.
func TestDownloads(t *testing.T) {
	base := t.TempDir()
	rec := filepath.Join(base, "a.ltrec")
	if err := makeRecording(rec, synth.Options{Duration: 50 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	dir := spanring.Dir{Path: filepath.Join(base, "rings"), Group: -1}
	if err := makeRings(rec, dir.Path, filepath.Join(base, "dead.ring"), filepath.Join(base, "ended.ring")); err != nil {
		t.Fatal(err)
	}
	rings, err := dir.List()
	if err != nil || len(rings) != 1 {
		t.Fatalf("%v, %v", rings, err)
	}
	rd, err := spanring.Open(rings[0], spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	info, err := rd.Info()
	if err := errors.Join(err, rd.Close()); err != nil {
		t.Fatal(err)
	}
	// steps of a source, as text: number, times and names.
	type step struct {
		Number     uint64
		Begin, End int64
		Spans      []string
		Whole      bool
	}
	stepsOf := func(src collector.Source) (out []step) {
		keep := collector.ObserverFunc(func(s *collector.Step) {
			o := step{Number: s.Number, Begin: s.BeginMonoNS, End: s.EndMonoNS, Whole: !s.Faulty() && s.Missing() == 0}
			for i := range s.Spans {
				o.Spans = append(o.Spans, s.Spans[i].Text.Text)
			}
			out = append(out, o)
		})
		p, err := collector.NewProcessor(src, collector.ProcessorOptions{Observers: []collector.Observer{keep}})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(p.Drain(), p.Close()); err != nil {
			t.Fatal(err)
		}
		return out
	}
	src, err := openRun(dir, info.RunID.String())
	if err != nil {
		t.Fatal(err)
	}
	wanted := web.Steps{{3, 6}, {64, 64}}
	var want []step
	for _, s := range stepsOf(src) {
		if wanted.Has(s.Number) {
			want = append(want, s)
		}
	}
	if len(want) != 5 {
		t.Fatalf("%d steps, want 5", len(want))
	}

	write := downloads(dir)
	var b bytes.Buffer
	if err := write(&b, web.Download{Run: info.RunID.String(), Format: web.FormatRecording, Steps: wanted}); err != nil {
		t.Fatal(err)
	}
	f, err := recording.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()), "download")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	played, err := f.Source(0)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, stepsOf(played)); d != "" || f.Damage() != nil {
		t.Errorf("recording, damage %v (-want +got):\n%s", f.Damage(), d)
	}

	b.Reset()
	if err := write(&b, web.Download{Run: info.RunID.String(), Format: web.FormatChrome, Steps: wanted}); err != nil {
		t.Fatal(err)
	}
	var doc struct {
		TraceEvents []struct {
			Name, Ph string
			Args     map[string]any
		}
	}
	if err := json.Unmarshal(b.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	begun := 0
	for _, e := range doc.TraceEvents {
		if e.Name == "step" && e.Ph == "b" {
			begun++
		}
	}
	if begun != len(want) {
		t.Errorf("%d steps in the trace, want %d", begun, len(want))
	}
	if err := write(&b, web.Download{Run: "00", Format: web.FormatChrome, Steps: wanted}); !errors.Is(err, web.ErrNoRun) {
		t.Errorf("of no run: %v", err)
	}
	if err := downloads(spanring.Dir{Path: filepath.Join(base, "none"), Group: -1})(&b, web.Download{}); !errors.Is(err, web.ErrNoRun) {
		t.Errorf("of no directory: %v", err)
	}
}
