package otlp

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// capture is an exporter that keeps the bytes of each step's chunks.
type capture struct {
	enc      encoder
	chunks   []chunk
	oversize int
}

func newCapture(max int) *capture { return &capture{enc: encoder{maxBytes: max}} }

func (c *capture) Export(s *collector.Step, r collector.ExportReason) {
	c.enc.step(s, s.Engine.RunID(), r, func() []byte { return nil }, func(k chunk) { c.chunks = append(c.chunks, k) })
	c.oversize += c.enc.oversize
	s.Engine.Ledger().Export(s.Units())
}

// resourceSpans decodes what a request would hold.
func (c *capture) resourceSpans(t testing.TB, label string, info spanring.Info) *tracepb.ResourceSpans {
	t.Helper()
	var bufs [][]byte
	for _, k := range c.chunks {
		bufs = append(bufs, k.buf)
	}
	res, scope := appendResource(nil, label, "node-1", &info), appendScope(nil, "1.2.3")
	b := appendResourceSpans(nil, res, scope, bufs...)
	n := 0
	for _, k := range bufs {
		n += len(k)
	}
	if got := resourceSpansSize(len(res), len(scope), n); got != len(b) {
		t.Errorf("size is %d, foretold %d", len(b), got)
	}
	var m tracepb.ResourceSpans
	if err := proto.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	if u := unknown(m.ProtoReflect()); u > 0 {
		t.Errorf("%d bytes are no fields that the protocol knows", u)
	}
	return &m
}

// Values as the generated messages hold them.

func str(k, v string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: k, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: v}}}
}

func num(k string, v int64) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: k, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: v}}}
}

func yes(k string, v bool) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: k, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_BoolValue{BoolValue: v}}}
}

// TestEveryField: an armed step with everything in it, decoded with the generated
// messages and compared field by field.
func TestEveryField(t *testing.T) {
	c := newCapture(1 << 20)
	c.enc.model = "org/model"
	src, p := newEngine(t, c, testInfo)
	src.push(
		&spanring.StepLink{Step: 7, TraceContext: testContext(1, 0x01)},
		&spanring.StepLink{Step: 7, TraceContext: testContext(2, 0x02)},
		&spanring.StepBegin{Step: 7, MonoNS: 1000, Armed: true, Level: 3, Source: spanring.StepWindow},
		&spanring.StepAttrs{Step: 7, BatchSize: 3, DecodeTokens: 2, PrefillTokens: 500, GraphMode: spanring.GraphMixed},
		&spanring.Span{
			Kind: spanring.KindLane, Armed: true, Step: 7, Ordinal: 1, Name: 1, Lane: 1, Stream: 3, Context: 1, StartMonoNS: 4000, RawNS: 20_000, LeadNS: -10,
			PlaceUncertaintyNS: 800, DurationUncertaintyNS: 32, SharedStart: true,
		},
		&spanring.Span{
			Kind: spanring.KindKernel, Armed: true, Step: 7, Ordinal: 2, Parent: 1, Name: 3, Lane: 1, Stream: 3, StartMonoNS: 5000, RawNS: 10_000,
			CorrectionNS: 3040, LeadNS: 70_000, Gap: spanring.GapStarved, Calibration: spanring.CalibrationAssumed,
			PlaceUncertaintyNS: 801, DurationUncertaintyNS: 2000,
		},
		&spanring.Span{
			Kind: spanring.KindGraph, Armed: true, Step: 7, Ordinal: 3, Name: 5, Stream: 4, StartMonoNS: 30_000, RawNS: 900_000, LeadNS: 1,
			Gap: spanring.GapQueued, InGraph: true,
		},
		&spanring.SpanFailed{SpanKind: spanring.KindLane, Reason: spanring.FailCapture, Step: 7, Ordinal: 4, Name: 2, Stream: 5, EnqueueMonoNS: 40_000},
		&spanring.SpanFailed{SpanKind: spanring.KindKernel, Reason: spanring.FailLaunch, Step: 7, Ordinal: 5, Name: 4, EnqueueMonoNS: 41_000},
		&spanring.LaunchDiff{Region: 1, Step: 7, MonoNS: 45_000, Before: 412, After: 413, Inserted: 3, Removed: 2, Changed: 1},
		&spanring.LaunchDiff{Region: 2, Step: 7, MonoNS: 46_000, Partial: true, Before: 5, After: 5, Changed: 5},
		&spanring.StepEnd{Step: 7, BeginNS: 1000, MonoNS: 50_000, Armed: true, Opened: 5, Dropped: 4, Linked: 132},
	)
	poll(t, p)

	trace := collector.StepTraceID(testRun, 7)
	span := func(id, parent collector.SpanID, name string, start, end uint64, attrs ...*commonpb.KeyValue) *tracepb.Span {
		s := &tracepb.Span{
			TraceId: trace[:], SpanId: id[:], Name: name, Kind: tracepb.Span_SPAN_KIND_INTERNAL, Flags: 0x101,
			StartTimeUnixNano: wallOffset + start, EndTimeUnixNano: wallOffset + end, Attributes: attrs,
		}
		if parent != (collector.SpanID{}) {
			s.ParentSpanId = parent[:]
		}
		return s
	}
	rootID := trace.RootID()
	root := span(rootID, collector.SpanID{}, "step", 1000, 930_000,
		num("lanetrace.step.number", 7), yes("lanetrace.step.armed", true), str("lanetrace.export.reason", "all"),
		num("lanetrace.step.spans.landed", 3), str("lanetrace.level", "kernel"), str("lanetrace.step.source", "window"), str("gen_ai.request.model", "org/model"), num("lanetrace.step.batch_size", 3),
		num("lanetrace.step.decode_tokens", 2), num("lanetrace.step.prefill_tokens", 500), str("lanetrace.step.graph_mode", "mixed"),
		num("lanetrace.step.gpu.extent_ns", 945_000), num("lanetrace.step.gpu.lane_ns", 20_000), num("lanetrace.step.gpu.outside_ns", 925_000),
		num("lanetrace.step.gpu.busy_ns", 906_960), num("lanetrace.step.gpu.lane_idle_ns", 0), num("lanetrace.queue_delay_ns", -10),
		str("lanetrace.step.bound", "gpu"), num("lanetrace.step.spans.failed", 2), num("lanetrace.step.spans.dropped", 4))
	root.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: "2 spans failed (capture), 4 spans found no event pair"}
	root.Links = []*tracepb.Span_Link{testLink(testContext(1, 0), 0x301), testLink(testContext(2, 0), 0x302)}
	root.DroppedLinksCount = 130
	root.Events = []*tracepb.Span_Event{
		{TimeUnixNano: wallOffset + 40_000, Name: "lanetrace.span.failed", Attributes: []*commonpb.KeyValue{
			str("lanetrace.span.kind", "lane"), str("lanetrace.lane", "decode"), str("lanetrace.reason", "capture"), num("lanetrace.stream", 5)}},
		{TimeUnixNano: wallOffset + 41_000, Name: "lanetrace.span.failed", Attributes: []*commonpb.KeyValue{
			str("lanetrace.span.kind", "kernel"), str("lanetrace.kernel", "soft max"), str("lanetrace.reason", "launch"), num("lanetrace.stream", 0)}},
		{TimeUnixNano: wallOffset + 45_000, Name: "lanetrace.launchtrace.diff", Attributes: []*commonpb.KeyValue{
			str("lanetrace.region", "prefill"), num("lanetrace.launchtrace.ops.before", 412), num("lanetrace.launchtrace.ops.after", 413),
			num("lanetrace.launchtrace.ops.inserted", 3), num("lanetrace.launchtrace.ops.removed", 2), num("lanetrace.launchtrace.ops.changed", 1)}},
		{TimeUnixNano: wallOffset + 46_000, Name: "lanetrace.launchtrace.diff", Attributes: []*commonpb.KeyValue{
			str("lanetrace.region", "decode"), num("lanetrace.launchtrace.ops.before", 5), num("lanetrace.launchtrace.ops.after", 5),
			num("lanetrace.launchtrace.ops.inserted", 0), num("lanetrace.launchtrace.ops.removed", 0), num("lanetrace.launchtrace.ops.changed", 5),
			yes("lanetrace.launchtrace.partial", true)}},
	}
	want := &tracepb.ResourceSpans{
		Resource: &resourcepb.Resource{Attributes: []*commonpb.KeyValue{
			str("service.name", "chat"), str("service.instance.id", "ab0102030405060708090a0b0c0d0e0f"), str("host.name", "node-1"),
			num("process.pid", 4711), str("process.executable.name", "decode"), str("hw.id", "GPU-8c1f02aa-1111-2222-3333-444455556666"),
			str("hw.type", "gpu"), str("hw.name", "NVIDIA H200"), str("lanetrace.engine", "chat-dp2-tp0-gpu8c1f02aa"), str("lanetrace.producer", "lanetrace-go 0.1.0"),
			num("lanetrace.rank.data", 2), num("lanetrace.rank.tensor", 0),
		}},
		ScopeSpans: []*tracepb.ScopeSpans{{
			Scope: &commonpb.InstrumentationScope{Name: ScopeName, Version: "1.2.3"},
			Spans: []*tracepb.Span{
				root,
				span(trace.HostID(), rootID, "host", 1000, 50_000, str("lanetrace.span.kind", "host")),
				span(trace.SpanID(1), rootID, "prefill", 4000, 24_000,
					str("lanetrace.span.kind", "lane"), str("lanetrace.lane", "prefill"), num("lanetrace.stream", 3), num("lanetrace.context", 1),
					num("lanetrace.queue_delay_ns", -10), num("lanetrace.duration.uncertainty_ns", 32), num("lanetrace.start.uncertainty_ns", 800),
					yes("lanetrace.start.shared", true)),
				span(trace.SpanID(2), trace.SpanID(1), "gemm", 5000, 11_960,
					str("lanetrace.span.kind", "kernel"), str("lanetrace.lane", "prefill"), str("lanetrace.kernel", "gemm"), num("lanetrace.stream", 3),
					num("lanetrace.queue_delay_ns", 70_000), str("lanetrace.gap", "starved"), num("lanetrace.duration.raw_ns", 10_000),
					str("lanetrace.calibration", "assumed"), num("lanetrace.duration.uncertainty_ns", 2000), num("lanetrace.start.uncertainty_ns", 801)),
				span(trace.SpanID(3), rootID, "graph 32", 30_000, 930_000,
					str("lanetrace.span.kind", "graph"), num("lanetrace.graph.id", 99), num("lanetrace.graph.nodes", 200), num("lanetrace.stream", 4),
					num("lanetrace.queue_delay_ns", 1), str("lanetrace.gap", "queued"), num("lanetrace.duration.raw_ns", 900_000),
					str("lanetrace.calibration", "none"), num("lanetrace.duration.uncertainty_ns", 0), num("lanetrace.start.uncertainty_ns", 0),
					yes("lanetrace.in_graph", true)),
			},
		}},
	}
	got := c.resourceSpans(t, p.Engine().Label(), testInfo)
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if len(c.chunks) != 1 || c.chunks[0].units != 4 || c.chunks[0].spans != 5 {
		t.Errorf("chunks %+v, want one of 4 units in 5 spans", c.chunks)
	}
}

func TestIncompleteStepIsAnError(t *testing.T) {
	c := newCapture(1 << 20)
	src, p := newEngine(t, c, testInfo)
	es := simpleStep(3, 2)
	src.push(append(es[:2:2], es[3])...) // the second lane never comes
	src.done = true
	poll(t, p)
	root := c.resourceSpans(t, "l", testInfo).ScopeSpans[0].Spans[0]
	want := &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: "closed early (engine_ended), 1 spans missing"}
	if d := cmp.Diff(want, root.Status, protocmp.Transform()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	var has bool
	for _, a := range root.Attributes {
		has = has || a.Key == "lanetrace.step.incomplete" && a.Value.GetStringValue() == "engine_ended"
	}
	if !has {
		t.Errorf("attributes do not say incomplete: %v", root.Attributes)
	}
}

// TestMoreFailuresThanAreKept: the rest is counted where the protocol counts it.
func TestMoreFailuresThanAreKept(t *testing.T) {
	c := newCapture(1 << 20)
	src, p := newEngine(t, c, testInfo)
	const n = collector.MaxFailedSpans + 300
	src.push(&spanring.StepBegin{Step: 1, MonoNS: 10})
	for i := range n {
		src.push(&spanring.SpanFailed{SpanKind: spanring.KindLane, Reason: spanring.FailZero, Step: 1, Ordinal: uint32(i + 1), EnqueueMonoNS: 20})
	}
	for range collector.MaxLaunchDiffs + 4 {
		src.push(&spanring.LaunchDiff{Step: 1, MonoNS: 25, Before: 1, After: 1, Changed: 1})
	}
	src.push(&spanring.StepEnd{Step: 1, BeginNS: 10, MonoNS: 30, Opened: n})
	poll(t, p)
	root := c.resourceSpans(t, "l", testInfo).ScopeSpans[0].Spans[0]
	if len(root.Events) != collector.MaxFailedSpans+collector.MaxLaunchDiffs || root.DroppedEventsCount != 304 {
		t.Errorf("%d events and %d dropped", len(root.Events), root.DroppedEventsCount)
	}
}

func TestChunksAndOversize(t *testing.T) {
	const lanes = 2000
	whole := newCapture(1 << 30)
	cut := newCapture(10_000)
	tiny := newCapture(100)
	for _, c := range []*capture{whole, cut, tiny} {
		src, p := newEngine(t, c, testInfo)
		src.push(simpleStep(1, lanes)...)
		poll(t, p)
	}
	units, spans := 0, 0
	for i, k := range cut.chunks {
		if len(k.buf) > 10_000 {
			t.Errorf("chunk %d has %d bytes", i, len(k.buf))
		}
		units += k.units
		spans += k.spans
	}
	if units != lanes+1 || spans != lanes+2 || len(cut.chunks) < 20 {
		t.Errorf("%d units, %d spans in %d chunks", units, spans, len(cut.chunks))
	}
	if !proto.Equal(whole.resourceSpans(t, "l", testInfo), cut.resourceSpans(t, "l", testInfo)) {
		t.Error("cut and whole differ")
	}
	if tiny.oversize != lanes+1 {
		t.Errorf("%d units oversize, want all %d", tiny.oversize, lanes+1)
	}
	for _, k := range tiny.chunks {
		if k.units != 0 || k.spans != 0 || len(k.buf) != 0 {
			t.Errorf("an oversize span left %+v", k)
		}
	}
}

// TestAnyStepDecodes: whatever values the entries hold, the bytes are a message
// that the protocol knows, every id is well formed, and every parent is there.
func TestAnyStepDecodes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCapture(rapid.SampledFrom([]int{600, 2000, 1 << 20}).Draw(rt, "chunk"))
		src, p := newEngine(t, c, testInfo)
		for i := range rapid.IntRange(0, 12).Draw(rt, "names") {
			src.names[spanring.NameID(10+i)] = spanring.Name{Kind: spanring.NameKernel, Text: string(rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(rt, "name"))}
		}
		n := rapid.IntRange(0, 30).Draw(rt, "spans")
		for i := range n {
			o := uint32(i + 1)
			src.push(&spanring.Span{
				Kind: rapid.SampledFrom([]spanring.Kind{spanring.KindLane, spanring.KindKernel, spanring.KindGraph}).Draw(rt, "kind"),
				Step: 5, Ordinal: o, Parent: rapid.Uint32Range(0, o-1).Draw(rt, "parent"), Name: spanring.NameID(rapid.Uint32Range(0, 25).Draw(rt, "id")),
				Lane: uint16(rapid.IntRange(0, 3).Draw(rt, "lane")), StartMonoNS: rapid.Int64Range(0, 1<<60).Draw(rt, "start"),
				RawNS: rapid.Uint64().Draw(rt, "raw"), CorrectionNS: rapid.Uint16().Draw(rt, "correction"), LeadNS: rapid.Int64().Draw(rt, "lead"),
				PlaceUncertaintyNS: rapid.Uint64().Draw(rt, "place"), Stream: rapid.Uint16().Draw(rt, "stream"),
				InGraph: rapid.Bool().Draw(rt, "in graph"), Gap: spanring.Gap(rapid.IntRange(0, 2).Draw(rt, "gap")),
			})
		}
		src.push(&spanring.StepEnd{Step: 5, BeginNS: 10, MonoNS: rapid.Int64Range(10, 1<<60).Draw(rt, "end"), Opened: rapid.Uint32().Draw(rt, "opened"), Dropped: rapid.Uint32().Draw(rt, "dropped")})
		src.done = true
		poll(t, p)
		got := c.resourceSpans(t, "l", testInfo)
		ids := map[string]bool{}
		spans := got.ScopeSpans[0].Spans
		for _, s := range spans {
			ids[string(s.SpanId)] = true
		}
		if c.oversize == 0 && len(ids) != n+2 {
			rt.Errorf("%d spans, want %d", len(ids), n+2)
		}
		for _, s := range spans {
			if len(s.TraceId) != 16 || len(s.SpanId) != 8 {
				rt.Errorf("ids %x %x", s.TraceId, s.SpanId)
			}
			if s.Name == "" || s.EndTimeUnixNano < s.StartTimeUnixNano {
				rt.Errorf("span %q from %d to %d", s.Name, s.StartTimeUnixNano, s.EndTimeUnixNano)
			}
			if p := s.ParentSpanId; c.oversize == 0 && len(p) > 0 && !ids[string(p)] {
				rt.Errorf("%q has a parent that is not there", s.Name)
			}
		}
		if c.oversize == 0 {
			for _, s := range spans {
				if s.StartTimeUnixNano < spans[0].StartTimeUnixNano || s.EndTimeUnixNano > spans[0].EndTimeUnixNano {
					rt.Errorf("%q lies outside its step", s.Name)
				}
			}
		}
	})
}
