package otlp

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// TestSpanBytes: the largest span without its names takes no more than is
// reckoned, and so does the host's part.
func TestSpanBytes(t *testing.T) {
	s := &collector.Step{HasBegin: true, HasEnd: true, BeginMonoNS: math.MaxInt64 - wallOffset - 1, EndMonoNS: math.MaxInt64 - wallOffset}
	name := &collector.Name{Kind: spanring.NameKernel, GraphID: math.MaxUint64, GraphNodes: math.MaxUint32}
	for _, k := range []spanring.Kind{spanring.KindLane, spanring.KindKernel, spanring.KindGraph} {
		s.Spans = []collector.Span{{Span: spanring.Span{
			Kind: k, SharedStart: true, InGraph: true, Gap: spanring.GapUnknown, Calibration: spanring.CalibrationMeasured, Context: 15,
			Lane: math.MaxUint16, Stream: math.MaxUint16, Ordinal: math.MaxUint32, RawNS: 1<<48 - 1, LeadNS: -1 << 47,
			PlaceUncertaintyNS: math.MaxUint64, DurationUncertaintyNS: math.MaxUint64,
		}, Text: name, LaneText: name}}
		if n := len(appendSpan(nil, s, 0, collector.TraceID{1})); n > spanBytes || k == spanring.KindGraph && n < spanBytes*3/4 {
			t.Errorf("%v takes %d bytes, reckoned %d", k, n, spanBytes)
		}
	}
	if n := len(appendHost(nil, s, collector.TraceID{1})); n > spanBytes {
		t.Errorf("host takes %d bytes", n)
	}
}

// bigStep is a step of so many lanes and kernels, whose lengths are a shuffle of
// 10 µs and up in steps of 100 ns.
func bigStep(lanes, kernels int, kernel spanring.NameID) []wordser {
	es := []wordser{&spanring.StepBegin{Step: 1, MonoNS: 1000, Armed: true, Level: 3}}
	for i := range lanes {
		es = append(es, &spanring.Span{Kind: spanring.KindLane, Armed: true, Step: 1, Ordinal: uint32(i + 1), Parent: uint32(i), Name: 1, Lane: 1, StartMonoNS: 2000, RawNS: 1e9})
	}
	rnd := rand.New(rand.NewPCG(5, 6))
	for i, p := range rnd.Perm(kernels) {
		es = append(es, &spanring.Span{
			Kind: spanring.KindKernel, Armed: true, Step: 1, Ordinal: uint32(lanes + i + 1), Parent: uint32(min(lanes, 1)), Name: kernel, Lane: 1,
			StartMonoNS: 3000 + int64(i)*1000, RawNS: 10_000 + 100*uint64(p), Gap: spanring.GapQueued,
		})
	}
	return append(es, &spanring.StepEnd{Step: 1, BeginNS: 1000, MonoNS: 5000, Armed: true, Opened: uint32(lanes + kernels)})
}

func leftOutOf(t *testing.T, root *tracepb.Span) int64 {
	t.Helper()
	for _, a := range root.Attributes {
		if a.Key == "lanetrace.step.spans.left_out" {
			return a.Value.GetIntValue()
		}
	}
	return 0
}

// TestTraceLimit: the largest trace stays under 1 MB, lanes and the longest
// kernels are kept, and the account says to the span how many are not.
func TestTraceLimit(t *testing.T) {
	for _, tt := range []struct {
		name                 string
		lanes, kernels, most int // spans with a lane or kernel in the trace at most
		allLanes             bool
	}{
		{"as many as fit", 8, 1000, 1008, true},
		{"more kernels than fit", 8, 12_000, 4000, true},
		{"more lanes than fit", 12_000, 300, 4000, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(t)
			x := newExporter(t, Options{Endpoint: s.addr})
			src, p := newEngine(t, x, testInfo)
			src.names[9] = spanring.Name{Kind: spanring.NameKernel, Text: strings.Repeat("k", 40)}
			src.push(bigStep(tt.lanes, tt.kernels, 9)...)
			poll(t, p)
			if err := shutdown(t, x); err != nil {
				t.Fatal(err)
			}
			sent := 0
			for _, r := range s.requests {
				for _, rs := range r.ResourceSpans {
					sent += proto.Size(rs)
				}
			}
			if sent >= 1_000_000 {
				t.Errorf("%d bytes sent", sent)
			}
			spans := s.spans()[testRun.String()]
			ids, lanes := map[string]bool{}, 0
			var kept []uint64
			for _, sp := range spans {
				ids[string(sp.SpanId)] = true
				switch sp.Name {
				case "prefill":
					lanes++
				case strings.Repeat("k", 40):
					kept = append(kept, sp.EndTimeUnixNano-sp.StartTimeUnixNano)
				}
			}
			for _, sp := range spans {
				if len(sp.ParentSpanId) > 0 && !ids[string(sp.ParentSpanId)] {
					t.Fatalf("%s has a parent that was left out", sp.Name)
				}
			}
			left := tt.lanes + tt.kernels - lanes - len(kept)
			if (lanes == tt.lanes) != tt.allLanes || !tt.allLanes && len(kept) > 0 || lanes+len(kept) > tt.most {
				t.Errorf("%d lanes and %d kernels kept", lanes, len(kept))
			}
			if left > 0 && sent < 950_000 {
				t.Errorf("%d left out, though only %d bytes were sent", left, sent)
			}
			slices.Sort(kept)
			for i, ns := range kept {
				if want := uint64(10_000 + 100*(tt.kernels-len(kept)+i)); ns != want {
					t.Fatalf("kernel %d of those kept takes %d ns, want %d: not the longest", i, ns, want)
				}
			}
			if n := leftOutOf(t, spans[0]); n != int64(left) {
				t.Errorf("the step says %d left out, %d are", n, left)
			}
			want := collector.SidecarCounts{Received: uint64(tt.lanes + tt.kernels + 1), Exported: uint64(lanes + len(kept) + 1)}
			want.Dropped[collector.DropTraceLimit] = uint64(left)
			if d := cmp.Diff(want, p.Engine().Ledger().Counts()); d != "" {
				t.Errorf("ledger (-want +got):\n%s", d)
			}
		})
	}
}

// TestAnyStepFits: whatever the step and the bound, what is written fits, and what
// is not is counted.
func TestAnyStepFits(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCapture(1 << 30)
		c.enc.traceBytes = rapid.IntRange(2500, 30_000).Draw(rt, "bound")
		src, p := newEngine(t, c, testInfo)
		src.names[9] = spanring.Name{Kind: spanring.NameKernel, Text: strings.Repeat("k", rapid.IntRange(1, 1024).Draw(rt, "name"))}
		n := rapid.IntRange(0, 60).Draw(rt, "spans")
		for i := range n {
			src.push(&spanring.Span{
				Kind: rapid.SampledFrom([]spanring.Kind{spanring.KindLane, spanring.KindKernel}).Draw(rt, "kind"), Step: 1, Ordinal: uint32(i + 1),
				Parent: rapid.Uint32Range(0, uint32(i)).Draw(rt, "parent"), Name: 9, StartMonoNS: 50, RawNS: rapid.Uint64Range(1, 1e6).Draw(rt, "ns"),
			})
		}
		src.push(&spanring.StepEnd{Step: 1, BeginNS: 10, MonoNS: 20, Opened: uint32(n)})
		poll(t, p)
		k := c.chunks[0]
		if len(k.buf) > c.enc.traceBytes || k.units+c.enc.leftOut != n+1 || k.spans != k.units+1 {
			rt.Fatalf("%d bytes of %d, %d units, %d left out of %d", len(k.buf), c.enc.traceBytes, k.units, c.enc.leftOut, n)
		}
		spans := c.resourceSpans(t, "l", testInfo).ScopeSpans[0].Spans
		ids := map[string]bool{}
		for _, s := range spans {
			ids[string(s.SpanId)] = true
		}
		for _, s := range spans {
			if len(s.ParentSpanId) > 0 && !ids[string(s.ParentSpanId)] {
				rt.Fatal("a parent was left out")
			}
		}
		if leftOutOf(t, spans[0]) != int64(c.enc.leftOut) {
			rt.Fatal("the step does not say how many were left out")
		}
	})
}
