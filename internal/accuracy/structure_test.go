package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/spanring"
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

func TestStructure(t *testing.T) {
	lane := func(ordinal, parent uint32, start int64, raw uint64) collector.Span {
		return collector.Span{Span: spanring.Span{Kind: spanring.KindLane, Ordinal: ordinal, Parent: parent, StartMonoNS: start, RawNS: raw, Stream: 1}}
	}
	kernel := func(ordinal, parent uint32, start int64, raw uint64) collector.Span {
		s := lane(ordinal, parent, start, raw)
		s.Kind, s.LeadNS = spanring.KindKernel, start-int64(ordinal) // enqueued at 1, 2, ...
		return s
	}
	for _, tc := range []struct {
		name  string
		spans []collector.Span
		want  []violation
	}{
		{"well", []collector.Span{lane(1, 0, 1000, 1000), kernel(2, 1, 1000, 400), kernel(3, 1, 1400, 600)}, nil},
		{"within what a position can be off", []collector.Span{lane(1, 0, 1000, 1000), kernel(2, 1, 904, 400), kernel(3, 1, 1208, 888)}, nil},
		{"while the clock's map slews", []collector.Span{lane(1, 0, 0, 10_000_000), kernel(2, 1, 0, 5_000_000), kernel(3, 1, 4_995_000, 5_015_000)}, nil},
		{"begins before its lane", []collector.Span{lane(1, 0, 1000, 1000), kernel(2, 1, 903, 400)}, []violation{{"begins before its lane", 7, 2, 97}}},
		{"ends after its lane", []collector.Span{lane(1, 0, 1000, 1000), kernel(2, 1, 1500, 700)}, []violation{{"ends after its lane", 7, 2, 200}}},
		{"a lane in a lane", []collector.Span{lane(1, 0, 1000, 1000), lane(2, 1, 1500, 700)}, []violation{{"ends after its lane", 7, 2, 200}}},
		{"before its neighbour's end", []collector.Span{kernel(1, 0, 1000, 400), kernel(2, 0, 1300, 400)},
			[]violation{{"begins before the one before it on its stream has ended", 7, 2, 100}}},
		{"out of order", []collector.Span{kernel(1, 0, 5000, 400), kernel(2, 0, 1000, 400)},
			[]violation{{"begins before the one before it on its stream has ended", 7, 2, 4400}}},
		{"worst first", []collector.Span{lane(1, 0, 1000, 1000), kernel(2, 1, 800, 300), kernel(3, 1, 1900, 700)},
			[]violation{{"ends after its lane", 7, 3, 600}, {"begins before its lane", 7, 2, 200}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s structure
			s.ObserveStep(&collector.Step{Number: 7, Spans: tc.spans})
			s.finish()
			if d := cmp.Diff(tc.want, s.found); d != "" {
				t.Error(d)
			}
			if s.spans != len(tc.spans) {
				t.Errorf("%d spans", s.spans)
			}
		})
	}
}

func TestStructureIsBounded(t *testing.T) {
	var s structure
	for range maxFound + 5 {
		s.ObserveStep(&collector.Step{Number: 1, Spans: []collector.Span{
			{Span: spanring.Span{Kind: spanring.KindLane, Ordinal: 1, StartMonoNS: 1000, RawNS: 10}},
			{Span: spanring.Span{Kind: spanring.KindLane, Ordinal: 2, Parent: 1, StartMonoNS: 1000, RawNS: 1000}},
		}})
	}
	if len(s.found) != maxFound || s.more != 5 {
		t.Errorf("%d and %d more", len(s.found), s.more)
	}
}
