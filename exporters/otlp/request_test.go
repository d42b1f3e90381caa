package otlp

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

func testContext(n byte, flags uint8) spanring.TraceContext {
	return spanring.TraceContext{TraceID: [16]byte{0x4b, 15: n}, SpanID: [8]byte{0xf0, 7: n}, Flags: flags}
}

func testLink(c spanring.TraceContext, flags uint32) *tracepb.Span_Link {
	return &tracepb.Span_Link{TraceId: c.TraceID[:], SpanId: c.SpanID[:], Flags: flags}
}

// ExportRequest makes a capture keep the bytes of summaries too.
func (c *capture) ExportRequest(r *collector.Request) {
	c.chunks = append(c.chunks, chunk{buf: appendRequest(nil, r, c.enc.model), units: 1, spans: 1})
	r.Engine.Ledger().Export(1)
}

// requestOf are the entries of a request's steps, one lane each, and of its end.
func requestOf(c spanring.TraceContext, steps int) (es []wordser) {
	for n := uint64(1); n <= uint64(steps); n++ {
		at := int64(n) * 1_000_000
		es = append(es,
			&spanring.StepBegin{Step: n, MonoNS: at},
			&spanring.StepLink{Step: n, TraceContext: c},
			&spanring.Span{Kind: spanring.KindLane, Step: n, Ordinal: 1, Name: 2, Lane: 2, StartMonoNS: at, RawNS: 900},
			&spanring.StepEnd{Step: n, BeginNS: at, MonoNS: at + 5000, Opened: 1, Linked: 1})
	}
	return append(es, &spanring.RequestEnd{TraceContext: c, BeginNS: 500_000, EndNS: 9_000_000, PromptTokens: 1000, OutputTokens: 64})
}

func TestRequestSummary(t *testing.T) {
	me := testContext(1, 0x03)
	stepLinks := func(n int) (ls []*tracepb.Span_Link) {
		for i := range n {
			tr := collector.StepTraceID(testRun, uint64(i+1))
			root := tr.RootID()
			ls = append(ls, &tracepb.Span_Link{TraceId: tr[:], SpanId: root[:], Flags: 0x101})
		}
		return ls
	}
	for _, tt := range []struct {
		name  string
		model string
		es    []wordser
		want  *tracepb.Span
	}{
		{"a request", "org/model", requestOf(me, 2), &tracepb.Span{
			Links: stepLinks(2),
			Attributes: []*commonpb.KeyValue{
				str("lanetrace.span.kind", "request"), num("lanetrace.request.steps", 2), num("lanetrace.request.steps.exported", 2),
				num("lanetrace.request.gpu.lane_ns", 1800), num("gen_ai.usage.input_tokens", 1000), num("gen_ai.usage.output_tokens", 64),
				str("gen_ai.request.model", "org/model"),
			},
		}},
		{"more steps than links", "", requestOf(me, 200), &tracepb.Span{
			Links: stepLinks(128), DroppedLinksCount: 72,
			Attributes: []*commonpb.KeyValue{
				str("lanetrace.span.kind", "request"), num("lanetrace.request.steps", 200), num("lanetrace.request.steps.exported", 200),
				num("lanetrace.request.gpu.lane_ns", 180_000), num("gen_ai.usage.input_tokens", 1000), num("gen_ai.usage.output_tokens", 64),
			},
		}},
	} {
		c := newCapture(1 << 20)
		c.enc.model = tt.model
		src, p := newEngine(t, c, testInfo)
		src.push(tt.es...)
		poll(t, p)
		spans := c.resourceSpans(t, "l", testInfo).ScopeSpans[0].Spans
		got := spans[len(spans)-1]
		r := collector.Request{Engine: p.Engine(), RequestEnd: spanring.RequestEnd{TraceContext: me}}
		id := r.SummaryID()
		tt.want.TraceId, tt.want.SpanId, tt.want.ParentSpanId, tt.want.Flags = me.TraceID[:], id[:], me.SpanID[:], 0x303
		tt.want.Name, tt.want.Kind = "request", tracepb.Span_SPAN_KIND_INTERNAL
		tt.want.StartTimeUnixNano, tt.want.EndTimeUnixNano = wallOffset+500_000, wallOffset+9_000_000
		if d := cmp.Diff(tt.want, got, protocmp.Transform()); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
	// One whose step never closes.
	c := newCapture(1 << 20)
	src, p := newEngine(t, c, testInfo)
	es := requestOf(me, 2)
	src.push(append(es[:7:7], es[8])...)
	poll(t, p)
	p.Finish() // closes the step, and with it the request
	last := func() string {
		spans := c.resourceSpans(t, "l", testInfo).ScopeSpans[0].Spans
		return spans[len(spans)-1].String()
	}
	if s := last(); !strings.Contains(s, "lanetrace.request.steps") || strings.Contains(s, "steps.open") {
		t.Errorf("%s", s)
	}
	open := appendRequest(nil, &collector.Request{Engine: p.Engine(), RequestEnd: spanring.RequestEnd{TraceContext: me}, StepsOpen: 3, Gapped: true}, "")
	for _, k := range []string{"lanetrace.request.steps.open", "lanetrace.request.gapped"} {
		if !bytes.Contains(open, []byte(k)) {
			t.Errorf("%s is not told", k)
		}
	}
}

// TestRequestsReachTheServer through the exporter, and are settled.
func TestRequestsReachTheServer(t *testing.T) {
	s := newServer(t)
	x := newExporter(t, Options{Endpoint: s.addr})
	info := testInfo
	info.Model = "org/\nmodel"
	src, p := newEngine(t, x, info)
	src.push(requestOf(testContext(1, 1), 3)...)
	src.push(&spanring.RequestEnd{TraceContext: testContext(2, 0)})
	poll(t, p)
	if err := shutdown(t, x); err != nil {
		t.Fatal(err)
	}
	want := collector.SidecarCounts{Received: 8, Exported: 7}
	want.NotSelected[collector.NotSampled] = 1
	if d := cmp.Diff(want, p.Engine().Ledger().Counts()); d != "" {
		t.Errorf("ledger (-want +got):\n%s", d)
	}
	models := map[string]int{}
	for _, sp := range s.spans()[testRun.String()] {
		for _, a := range sp.Attributes {
			if a.Key == "gen_ai.request.model" && a.Value.GetStringValue() == "org/ model" {
				models[sp.Name]++
			}
		}
	}
	if d := cmp.Diff(map[string]int{"step": 3, "request": 1}, models); d != "" {
		t.Errorf("spans with the model (-want +got):\n%s", d)
	}
}

// TestRequestTooLarge is dropped and counted.
func TestRequestTooLarge(t *testing.T) {
	x := newExporter(t, Options{Client: &fakeClient{}, MaxRequestBytes: 700})
	src, p := newEngine(t, x, testInfo)
	src.push(&spanring.RequestEnd{TraceContext: testContext(1, 1)})
	poll(t, p)
	if err := shutdown(t, x); err != nil {
		t.Fatal(err)
	}
	if c := p.Engine().Ledger().Counts(); c.Dropped[collector.DropOversize] != 1 || c.Pending != 0 {
		t.Errorf("ledger %+v", c)
	}
}

func TestRequestJSONLine(t *testing.T) {
	var out bytes.Buffer
	j := NewJSONWriter(&out, JSONOptions{HostName: "h"})
	src, p := newEngine(t, j, testInfo)
	src.push(requestOf(testContext(1, 1), 1)...)
	poll(t, p)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines: %s", len(lines), out.String())
	}
	var v struct {
		ResourceSpans []struct {
			ScopeSpans []struct {
				Spans []struct {
					TraceID, ParentSpanID string
					Flags                 int
					Links                 []struct{ TraceID, SpanID string }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(lines[1]), &v); err != nil {
		t.Fatal(err)
	}
	sp := v.ResourceSpans[0].ScopeSpans[0].Spans[0]
	tr := collector.StepTraceID(testRun, 1)
	if sp.TraceID != "4b000000000000000000000000000001" || sp.ParentSpanID != "f000000000000001" || sp.Flags != 0x301 ||
		len(sp.Links) != 1 || sp.Links[0].TraceID != tr.String() || sp.Links[0].SpanID != tr.RootID().String() {
		t.Errorf("%+v", sp)
	}

	// What cannot be written is dropped.
	j = NewJSONWriter(failingWriter{}, JSONOptions{HostName: "h"})
	src, p = newEngine(t, j, testInfo)
	for range 100 {
		src.push(&spanring.RequestEnd{TraceContext: testContext(1, 1)})
	}
	poll(t, p)
	if c := p.Engine().Ledger().Counts(); c.Dropped[collector.DropRefused] == 0 || c.Pending != 0 || c.Received != 100 {
		t.Errorf("ledger %+v", c)
	}
	if err := j.Close(); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("Close: %v", err)
	}
}
