package collector

import (
	"fmt"
	"runtime"
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/lanetrace/lanetrace/spanring"
)

// series counts the series that a reader gets.
func series(t *testing.T, r *sdkmetric.ManualReader) (n int) {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := r.Collect(t.Context(), &rm); err != nil {
		t.Fatal(err)
	}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				n += len(d.DataPoints)
			case metricdata.Sum[float64]:
				n += len(d.DataPoints)
			case metricdata.Gauge[int64]:
				n += len(d.DataPoints)
			case metricdata.Gauge[float64]:
				n += len(d.DataPoints)
			case metricdata.Histogram[float64]:
				n += len(d.DataPoints)
			case metricdata.ExponentialHistogram[float64]:
				n += len(d.DataPoints)
			default:
				t.Fatalf("%s is a %T", m.Name, m.Data)
			}
		}
	}
	return n
}

// TestRestartsLeaveNothing: a hundred runs of an engine, each with kernels and lanes
// of its own, leave series and memory where they were.
func TestRestartsLeaveNothing(t *testing.T) {
	ins := NewInstruments(InstrumentOptions{Histograms: HistogramsExponential})
	r := sdkmetric.NewManualReader(sdkmetric.WithProducer(ins.AllForms()))
	mp, m, err := NewMeterProvider(MeterOptions{Readers: []sdkmetric.Reader{r}})
	if err != nil {
		t.Fatal(err)
	}
	defer mp.Shutdown(t.Context())
	if err := ins.Register(m); err != nil {
		t.Fatal(err)
	}
	restart := func(i int) (during int) {
		w, err := spanring.NewHeap(spanring.Options{Geometry: smallRing, Info: spanring.Info{Service: "s", Rank: spanring.NoRank}})
		if err != nil {
			t.Fatal(err)
		}
		rd, err := spanring.NewHeapReader(w, spanring.ReaderOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p, err := NewProcessor(NewRingSource(rd), ProcessorOptions{Label: "s", Instruments: ins})
		if err != nil {
			t.Fatal(err)
		}
		kernel, lane := w.Name(spanring.NameKernel, fmt.Sprintf("kernel %d", i)), w.Name(spanring.NameLane, fmt.Sprintf("lane %d", i))
		at := spanring.MonoNS()
		for _, e := range []wordser{
			&spanring.StepBegin{Step: 1, MonoNS: at, Armed: true},
			&spanring.Span{Kind: spanring.KindLane, Armed: true, Step: 1, Ordinal: 1, Name: lane, StartMonoNS: at, RawNS: 1000},
			&spanring.Span{Kind: spanring.KindKernel, Armed: true, Step: 1, Ordinal: 2, Parent: 1, Name: kernel, StartMonoNS: at, RawNS: 500},
			&spanring.StepEnd{Step: 1, BeginNS: at, MonoNS: at + 1000, Armed: true, Opened: 2},
		} {
			words := e.Words()
			w.Append(&words)
		}
		if _, _, err := p.Poll(); err != nil {
			t.Fatal(err)
		}
		during = series(t, r)
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		p.Forget()
		return during
	}
	heap := func() int64 {
		var ms runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&ms)
		return int64(ms.HeapAlloc)
	}
	for i := range 10 { // until everything has grown to its size
		restart(i)
	}
	before, alone, first := heap(), series(t, r), restart(10)
	for i := range 100 {
		if n := restart(11 + i); n != first {
			t.Fatalf("run %d has %d series, the first had %d", i, n, first)
		}
	}
	if n := series(t, r); n != alone || first <= alone {
		t.Errorf("%d series after a hundred runs, %d before, %d during one", n, alone, first)
	}
	// A ring alone is more than this.
	if d := heap() - before; d > 256<<10 {
		t.Errorf("a hundred runs left %d bytes", d)
	}
}
