package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/recording"
)

// TestRecordings holds every recording there is against what readers of spans take
// for granted.
func TestRecordings(t *testing.T) {
	paths, err := filepath.Glob("../../examples/recordings/*.ltrec")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			fi, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			rec, err := recording.NewReader(f, fi.Size(), path)
			if err != nil {
				t.Fatal(err)
			}
			for i := range rec.Runs() {
				src, err := rec.Source(i)
				if err != nil {
					t.Fatal(err)
				}
				var s structure
				p, err := collector.NewProcessor(src, collector.ProcessorOptions{Observers: []collector.Observer{&s}})
				if err != nil {
					t.Fatal(err)
				}
				if err := p.Drain(); err != nil {
					t.Fatal(err)
				}
				if err := p.Close(); err != nil {
					t.Error(err)
				}
				s.finish()
				t.Logf("run %d: %d spans, %d inside a lane", i, s.spans, s.children)
				if s.spans == 0 || s.children == 0 {
					t.Error("nothing was checked")
				}
				for _, v := range s.found[:min(len(s.found), 10)] {
					t.Error(v)
				}
				if n := len(s.found) + s.more; n > 10 {
					t.Errorf("%d violations in all", n)
				}
			}
		})
	}
}
