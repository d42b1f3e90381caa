package collector

import (
	"context"
	"fmt"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/lanetrace/lanetrace/spanring"
)

// endless is a source that repeats one step under new numbers.
type endless struct {
	Source
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

// newEndless repeats a step of three lanes, with 20 kernels each if armed, and says
// how many spans it is.
func newEndless(tb testing.TB, armed bool) (*endless, int) {
	tb.Helper()
	w, err := spanring.NewHeap(spanring.Options{Geometry: smallRing})
	if err != nil {
		tb.Fatal(err)
	}
	r, err := spanring.NewHeapReader(w, spanring.ReaderOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	lane := w.Name(spanring.NameLane, "decode")
	var kernels []spanring.NameID
	for i := range 20 {
		kernels = append(kernels, w.Name(spanring.NameKernel, fmt.Sprintf("void gemm_%d<float>(float*)", i)))
	}
	const at = 1_000_000_000
	e := &endless{Source: NewRingSource(r), n: 1}
	add := func(x wordser) { e.step = append(e.step, x.Words()) }
	add(&spanring.StepBegin{Step: 1, MonoNS: at, Armed: armed, Level: 3})
	o := uint32(0)
	for i := range 3 {
		o++
		parent := o
		add(&spanring.Span{Kind: spanring.KindLane, Armed: armed, Step: 1, Ordinal: o, Name: lane, Lane: 1, Stream: 1, StartMonoNS: at + int64(i)*1e6, RawNS: 900_000, LeadNS: 30_000})
		if !armed {
			continue
		}
		for k := range 20 {
			o++
			add(&spanring.Span{Kind: spanring.KindKernel, Armed: true, Step: 1, Ordinal: o, Parent: parent, Name: kernels[k], Lane: 1, Stream: 1,
				StartMonoNS: at + int64(i)*1e6 + int64(k)*10_000, RawNS: 9000, CorrectionNS: 3040, Gap: spanring.GapQueued, LeadNS: 30_000})
		}
	}
	add(&spanring.StepEnd{Step: 1, BeginNS: at, MonoNS: at + 50_000, Armed: armed, Opened: o})
	return e, int(o) + 1
}

func benchProcessor(tb testing.TB, armed bool, ins *Instruments) (*Processor, int, int) {
	tb.Helper()
	src, spans := newEndless(tb, armed)
	p, err := NewProcessor(src, ProcessorOptions{Instruments: ins})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { p.Close() })
	for range 64 { // the steady state
		if _, _, err := p.Poll(); err != nil {
			tb.Fatal(err)
		}
	}
	return p, spans, len(src.step)
}

// BenchmarkEntriesToInstruments is what a span costs from ring entry to the
// aggregates: decoding, assembling its step, deriving its times, counting. Figures
// are for each span, steps counted as one.
func BenchmarkEntriesToInstruments(b *testing.B) {
	for _, armed := range []bool{false, true} {
		for _, form := range []HistogramForm{HistogramsExplicit, HistogramsExponential} {
			name := "lanes/" + form.String()
			if armed {
				name = "armed/" + form.String()
			}
			b.Run(name, func(b *testing.B) {
				p, spans, entries := benchProcessor(b, armed, NewInstruments(InstrumentOptions{Histograms: form}))
				start := p.Engine().Ledger().Counts().Received
				b.ReportAllocs()
				b.ResetTimer()
				for done := 0; done < b.N; {
					n, _, err := p.Poll()
					if err != nil {
						b.Fatal(err)
					}
					done += n * spans / entries
				}
				b.StopTimer()
				n := p.Engine().Ledger().Counts().Received - start
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/span")
			})
		}
	}
}

// BenchmarkSDKHistogram is OpenTelemetry's own histogram for one kernel's duration,
// its attributes made once and in use, to compare with: nothing is read, decoded or
// assembled.
func BenchmarkSDKHistogram(b *testing.B) {
	mp := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	defer mp.Shutdown(context.Background())
	h, err := mp.Meter("bench").Float64Histogram("x", metric.WithExplicitBucketBoundaries(kernelSeconds...))
	if err != nil {
		b.Fatal(err)
	}
	var opts [20]metric.RecordOption
	for i := range opts {
		opts[i] = metric.WithAttributeSet(attribute.NewSet(attribute.String("engine", "e"), attribute.String("kernel", fmt.Sprintf("gemm_%d", i))))
	}
	ctx := context.Background()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		h.Record(ctx, 6e-6, opts[i%len(opts)])
		i++
	}
}

// BenchmarkProduce is one collection of an engine's histograms.
func BenchmarkProduce(b *testing.B) {
	ins := NewInstruments(InstrumentOptions{})
	benchProcessor(b, true, ins)
	p := ins.Producer()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Produce(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// TestCountingDoesNotAllocate: in the steady state a batch of entries becomes
// figures without an allocation, in both forms of histograms.
func TestCountingDoesNotAllocate(t *testing.T) {
	for _, form := range []HistogramForm{HistogramsExplicit, HistogramsExponential} {
		p, _, _ := benchProcessor(t, true, NewInstruments(InstrumentOptions{Histograms: form}))
		if a := testing.AllocsPerRun(200, func() { p.Poll() }); a > 0 {
			t.Errorf("%v: %v allocations for %d entries", form, a, pollBatch)
		}
	}
}
