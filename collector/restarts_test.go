package collector

import (
	"fmt"
	"os"
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

// heap is what is allocated and in use.
func heap() int64 {
	var ms runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&ms)
	return int64(ms.HeapAlloc)
}

// TestRingsComeAndGo: a collector that saw a hundred runs of an engine, one after
// another, shows the last one, and keeps nothing of the others.
func TestRingsComeAndGo(t *testing.T) {
	ins := NewInstruments(InstrumentOptions{})
	r := sdkmetric.NewManualReader(sdkmetric.WithProducer(ins.Producer()))
	mp, m, err := NewMeterProvider(MeterOptions{Readers: []sdkmetric.Reader{r}})
	if err != nil {
		t.Fatal(err)
	}
	defer mp.Shutdown(t.Context())
	if err := ins.Register(m); err != nil {
		t.Fatal(err)
	}
	d := ringDir(t)
	c, _ := start(t, Options{Dir: d, Processor: ProcessorOptions{Instruments: ins}})
	run := func(i int) int {
		w, err := spanring.Create(d, spanring.Options{Geometry: smallRing, Info: spanring.Info{Service: "s", Rank: spanring.NoRank}})
		if err != nil {
			t.Fatal(err)
		}
		writeStep(w, 1, w.Name(spanring.NameLane, fmt.Sprintf("lane %d", i)))
		id := w.Info().RunID
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the end of a run", func() bool {
			es := c.Engines()
			return len(es) == 1 && es[0].RunID() == id && es[0].State() == EngineEnded
		})
		if err := os.Remove(w.Path()); err != nil {
			t.Fatal(err)
		}
		return series(t, r)
	}
	first := 0
	for i := range 10 {
		first = run(i)
	}
	before := heap()
	for i := range 90 {
		if n := run(10 + i); n != first {
			t.Fatalf("after run %d there are %d series, %d before", i, n, first)
		}
	}
	if d := heap() - before; d > 256<<10 {
		t.Errorf("ninety runs left %d bytes", d)
	}
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
