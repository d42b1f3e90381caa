package report

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

var update = flag.Bool("update", false, "write the drawings anew")

func name(text string) *collector.Name { return &collector.Name{Text: text, Label: text} }

// build makes a step whose host part begins at 1 s.
type build struct{ s collector.Step }

const t0 = 1_000_000_000

func newStep(number uint64, hostNS int64) *build {
	b := &build{collector.Step{Number: number, BeginMonoNS: t0, EndMonoNS: t0 + hostNS, HasBegin: true, HasEnd: true}}
	return b
}

// span adds a span from ns to ns after the step's begin, enqueued lead before.
func (b *build) span(kind spanring.Kind, text string, stream uint16, parent uint32, from, to, lead int64) uint32 {
	ordinal := uint32(len(b.s.Spans) + 1)
	b.s.Spans = append(b.s.Spans, collector.Span{
		Span: spanring.Span{Kind: kind, Stream: stream, Ordinal: ordinal, Parent: parent, StartMonoNS: t0 + from, RawNS: uint64(to - from), LeadNS: lead},
		Text: name(text),
	})
	return ordinal
}

func (b *build) lane(text string, stream uint16, parent uint32, from, to, lead int64) uint32 {
	return b.span(spanring.KindLane, text, stream, parent, from, to, lead)
}

func (b *build) kernel(text string, parent uint32, from, to int64) {
	b.span(spanring.KindKernel, text, 0, parent, from, to, 0)
}

func TestTimeline(t *testing.T) {
	const us = 1000
	for _, tc := range []struct {
		name string
		step func() *build
		o    TimelineOptions
	}{
		{"decode", func() *build {
			b := newStep(1344, 120*us)
			b.s.Armed = true
			b.s.Attrs, b.s.HasAttrs = spanring.StepAttrs{BatchSize: 16, DecodeTokens: 16, GraphMode: spanring.GraphEager}, true
			l := b.lane("admit", 0, 0, 20*us, 30*us, 10*us)
			b.kernel("scatter", l, 21*us, 25*us)
			l = b.lane("decode", 0, 0, 30*us, 400*us, 20*us)
			for i := range int64(4) {
				b.kernel("rms_norm", l, (40+90*i)*us, (45+90*i)*us)
				b.kernel("gemm_qkv", l, (45+90*i)*us, (75+90*i)*us)
				b.kernel("attention", l, (75+90*i)*us, (129+90*i)*us)
			}
			return b
		}, TimelineOptions{}},
		{"async", func() *build {
			// The host is done long before the GPU begins.
			b := newStep(7, 100*us)
			b.lane("decode", 0, 0, 1000*us, 1900*us, 980*us)
			return b
		}, TimelineOptions{}},
		{"streams", func() *build {
			// Two streams overlap, a lane comes twice, lanes nest.
			b := newStep(8, 900*us)
			outer := b.lane("forward", 1, 0, 100*us, 600*us, 0)
			b.lane("attention", 1, outer, 150*us, 250*us, 50*us)
			b.lane("mlp", 1, outer, 250*us, 400*us, 0)
			b.lane("attention", 1, outer, 400*us, 500*us, 0)
			b.lane("copy", 2, 0, 300*us, 800*us, 200*us)
			return b
		}, TimelineOptions{Width: 72}},
		{"many_kernels", func() *build {
			b := newStep(9, 100*us)
			l := b.lane("decode", 0, 0, 0, 200*us, 0)
			for i := range int64(12) {
				b.kernel(fmt.Sprintf("void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_%02d>(Params)", i), l, i*16*us, i*16*us+(i+1)*us)
			}
			return b
		}, TimelineOptions{Kernels: 4}},
		{"faults", func() *build {
			b := newStep(10, 50*us)
			b.lane("decode", 0, 0, 10*us, 90*us, 0)
			b.s.Failed = []collector.FailedSpan{{SpanFailed: spanring.SpanFailed{SpanKind: spanring.KindLane, Reason: spanring.FailAbandoned, EnqueueMonoNS: t0 + 30*us}, Text: name("admit")}}
			b.s.FailedCount, b.s.Dropped, b.s.Incomplete = 1, 2, collector.IncompleteTimeout
			return b
		}, TimelineOptions{}},
		{"edges", func() *build {
			// One column is 10 µs: halves, a sliver, and none of it lost.
			b := newStep(11, 500*us)
			b.lane("half", 0, 0, 5*us, 25*us, 0)
			b.lane("sliver", 0, 0, 101*us, 101*us+32, 0)
			b.lane("last", 0, 0, 499*us, 500*us, 0)
			b.lane("column", 0, 0, 200*us, 210*us, 0)
			b.lane("before", 0, 0, -20*us, 0, 0)
			return b
		}, TimelineOptions{}},
		{"nothing", func() *build { return newStep(12, 0) }, TimelineOptions{}},
		{"no_end", func() *build {
			b := newStep(13, 0)
			b.s.HasEnd = false
			b.lane("decode", 0, 0, 0, 900, 0)
			return b
		}, TimelineOptions{Width: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Timeline(&tc.step().s, tc.o)
			path := filepath.Join("testdata", "timeline_"+tc.name+".txt")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// Every lane is seen, no line is too wide, and nothing needs a terminal.
func TestTimelineAnyStep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newStep(rapid.Uint64().Draw(t, "number"), rapid.Int64Range(0, 1<<40).Draw(t, "host"))
		n := rapid.IntRange(0, 30).Draw(t, "spans")
		lanes := []uint32{0}
		top := make(map[string]bool)
		for range n {
			from := rapid.Int64Range(-1000, 1<<40).Draw(t, "from")
			kind := rapid.SampledFrom([]spanring.Kind{spanring.KindLane, spanring.KindKernel, spanring.KindGraph}).Draw(t, "kind")
			text := rapid.SampledFrom([]string{"a", "b", "Größe", strings.Repeat("x", 300)}).Draw(t, "text")
			parent := rapid.SampledFrom(lanes).Draw(t, "parent")
			o := b.span(kind, text, rapid.Uint16Range(0, 2).Draw(t, "stream"), parent, from, from+rapid.Int64Range(0, 1<<30).Draw(t, "length"), rapid.Int64Range(-1<<20, 1<<30).Draw(t, "lead"))
			if kind == spanring.KindLane {
				lanes = append(lanes, o)
				if parent == 0 {
					top[text] = true
				}
			}
		}
		w := rapid.IntRange(60, 160).Draw(t, "width")
		got := Timeline(&b.s, TimelineOptions{Width: w})
		for _, l := range strings.Split(got, "\n") {
			if width(l) > w {
				t.Fatalf("line of %d cells, at most %d: %q", width(l), w, l)
			}
			if l != strings.TrimRight(l, " ") {
				t.Fatalf("blanks at the end of %q", l)
			}
			for _, r := range l {
				if unicode.IsControl(r) {
					t.Fatalf("control character in %q", l)
				}
			}
			// A lane's bar is there, however short.
			for text := range top {
				if strings.HasPrefix(l, text+" ") && len(text) == 1 && !strings.ContainsAny(l, "█▌▐░▒▓") {
					t.Fatalf("no bar in %q", l)
				}
			}
		}
	})
}
