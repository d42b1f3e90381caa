package otlp

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// recycle encodes into the same buffer for ever.
type recycle struct {
	enc   encoder
	buf   []byte
	bytes int
}

func (r *recycle) Export(s *collector.Step, reason collector.ExportReason) {
	r.enc.step(s, testRun, reason, func() []byte { return r.buf[:0] }, func(c chunk) {
		r.buf = c.buf
		r.bytes += len(c.buf)
		s.Engine.Ledger().Export(c.units)
	})
}

// endless is a source that repeats one step under new numbers.
type endless struct {
	source
	step []spanring.Words
	n    uint64
	at   int
}

func (e *endless) Poll(dst []spanring.Entry) (int, bool, error) {
	for i := range dst {
		dst[i].Words = e.step[e.at]
		dst[i].Words[1] = e.n
		if e.at++; e.at == len(e.step) {
			e.at = 0
			e.n++
		}
	}
	return len(dst), false, nil
}

func benchStep(armed bool) (es []wordser, spans int) {
	const at = 1_000_000_000
	es = append(es, &spanring.StepBegin{Step: 1, MonoNS: at, Armed: armed, Level: 3})
	o := uint32(0)
	for i := range 3 {
		o++
		parent := o
		es = append(es, &spanring.Span{Kind: spanring.KindLane, Armed: armed, Step: 1, Ordinal: o, Name: 1, Lane: 1, Stream: 1, StartMonoNS: at + int64(i)*1e6, RawNS: 900_000, LeadNS: 30_000, PlaceUncertaintyNS: 900})
		if !armed {
			continue
		}
		for k := range 20 {
			o++
			es = append(es, &spanring.Span{Kind: spanring.KindKernel, Armed: true, Step: 1, Ordinal: o, Parent: parent, Name: 3, Lane: 1, Stream: 1,
				StartMonoNS: at + int64(i)*1e6 + int64(k)*10_000, RawNS: 9000, CorrectionNS: 3040, Calibration: spanring.CalibrationMeasured, Gap: spanring.GapQueued, LeadNS: 30_000, PlaceUncertaintyNS: 900, DurationUncertaintyNS: 64})
		}
	}
	es = append(es, &spanring.StepEnd{Step: 1, BeginNS: at, MonoNS: at + 50_000, Armed: armed, Opened: o})
	return es, int(o) + 1
}

// BenchmarkEntriesToOTLP is what a span costs from ring entry to OTLP bytes:
// decoding, assembling its step, counting it for the instruments, selecting,
// encoding. Figures are for each span, steps counted as one.
func BenchmarkEntriesToOTLP(b *testing.B) {
	for _, armed := range []bool{false, true} {
		name := "lanes"
		if armed {
			name = "armed"
		}
		b.Run(name, func(b *testing.B) {
			es, spans := benchStep(armed)
			src := &endless{n: 1, source: source{info: testInfo, names: map[spanring.NameID]spanring.Name{
				1: {Kind: spanring.NameLane, Text: "decode"}, 3: {Kind: spanring.NameKernel, Text: "void gemm_kernel<float, 128, 64>(float const*, float*)"},
			}}}
			for _, e := range es {
				src.step = append(src.step, e.Words())
			}
			x := &recycle{enc: encoder{maxBytes: chunkBytes}}
			p, err := collector.NewProcessor(src, collector.ProcessorOptions{
				Exporter: x, Selector: collector.SelectAll{}, Instruments: collector.NewInstruments(collector.InstrumentOptions{}),
			})
			if err != nil {
				b.Fatal(err)
			}
			for range 16 { // the steady state
				if _, _, err := p.Poll(); err != nil {
					b.Fatal(err)
				}
			}
			start := p.Engine().Ledger().Counts().Received
			x.bytes = 0
			b.ReportAllocs()
			b.ResetTimer()
			for done := 0; done < b.N; {
				n, _, err := p.Poll()
				if err != nil {
					b.Fatal(err)
				}
				done += n * spans / len(es)
			}
			b.StopTimer()
			n := p.Engine().Ledger().Counts().Received - start
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/span")
			b.ReportMetric(float64(x.bytes)/float64(n), "B/span")
		})
	}
}

// BenchmarkSDKSpan is OpenTelemetry's own tracer and batch processor for a
// kernel's span, to compare with: start, attributes, end, batch; and, to bytes,
// what its OTLP exporter makes of a batch.
func BenchmarkSDKSpan(b *testing.B) {
	ctx := context.Background()
	toBytes, err := otlptrace.New(ctx, marshalClient{})
	if err != nil {
		b.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		exp  sdktrace.SpanExporter
	}{{"batch", discardExporter{}}, {"bytes", toBytes}} {
		b.Run(tt.name, func(b *testing.B) {
			tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(sdktrace.NewBatchSpanProcessor(tt.exp, sdktrace.WithBlocking())))
			tr := tp.Tracer("bench")
			b.ReportAllocs()
			for b.Loop() {
				_, s := tr.Start(ctx, "gemm", trace.WithAttributes(
					attribute.String("lanetrace.span.kind", "kernel"), attribute.String("lanetrace.lane", "decode"), attribute.String("lanetrace.kernel", "gemm"),
					attribute.Int("lanetrace.stream", 1), attribute.Int("lanetrace.queue_delay_ns", 30_000), attribute.String("lanetrace.gap", "queued"),
					attribute.Int("lanetrace.duration.raw_ns", 9000), attribute.String("lanetrace.calibration", "measured"),
					attribute.Int("lanetrace.duration.uncertainty_ns", 64), attribute.Int("lanetrace.start.uncertainty_ns", 900)))
				s.End()
			}
			if err := tp.Shutdown(ctx); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// discardExporter stands for an exporter that does nothing.
type discardExporter struct{}

func (discardExporter) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (discardExporter) Shutdown(context.Context) error                             { return nil }

// marshalClient stands for the network: it makes the bytes and sends none.
type marshalClient struct{}

func (marshalClient) Start(context.Context) error { return nil }
func (marshalClient) Stop(context.Context) error  { return nil }
func (marshalClient) UploadTraces(_ context.Context, rs []*tracepb.ResourceSpans) error {
	_, err := proto.Marshal(&coltracepb.ExportTraceServiceRequest{ResourceSpans: rs})
	return err
}

// BenchmarkRequest is what building a request costs for each byte queued.
func BenchmarkRequest(b *testing.B) {
	x := &Exporter{scope: appendScope(nil, "1")}
	e := &engineState{resource: appendResource(nil, "l", "h", &testInfo)}
	items := make([]item, 100)
	for i := range items {
		items[i] = item{chunk: chunk{buf: make([]byte, 1000)}, eng: e}
	}
	b.SetBytes(100_000)
	b.ReportAllocs()
	for b.Loop() {
		rs, _ := x.build(items)
		if len(rs) != 1 {
			b.Fatal("more than one resource")
		}
	}
}

func TestEncodingDoesNotAllocate(t *testing.T) {
	es, _ := benchStep(true)
	src := &endless{n: 1, source: source{info: testInfo, names: map[spanring.NameID]spanring.Name{
		1: {Kind: spanring.NameLane, Text: "decode"}, 3: {Kind: spanring.NameKernel, Text: "gemm"},
	}}}
	for _, e := range es {
		src.step = append(src.step, e.Words())
	}
	x := &recycle{enc: encoder{maxBytes: chunkBytes}}
	p, err := collector.NewProcessor(src, collector.ProcessorOptions{Exporter: x, Selector: collector.SelectAll{}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for range 32 {
		p.Poll()
	}
	if a := testing.AllocsPerRun(200, func() { p.Poll() }); a > 0 {
		t.Errorf("%v allocations for 256 entries", a)
	}
}
