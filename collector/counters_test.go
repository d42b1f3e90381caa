package collector

import (
	"math"
	"slices"
	"strings"
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/lanetrace/lanetrace/spanring"
)

// counting is a source whose counters the test sets.
type counting struct {
	Source
	c spanring.Counters
}

func (s *counting) Counters() (spanring.Counters, error) { return s.c, nil }

// notInstruments are counters whose figures come from elsewhere: regions count
// executions by the entries received, each under its name.
var notInstruments = []spanring.Counter{spanring.CtrLaunchExecutions, spanring.CtrLaunchDiffs, spanring.CtrLaunchDiffOps}

// TestEveryCounterOfTheProducerIsShown: whatever a producer counts is in some
// metric, once and with its value, so that nothing is counted in vain.
func TestEveryCounterOfTheProducerIsShown(t *testing.T) {
	r := sdkmetric.NewManualReader()
	mp, m, err := NewMeterProvider(MeterOptions{Readers: []sdkmetric.Reader{r}})
	if err != nil {
		t.Fatal(err)
	}
	defer mp.Shutdown(t.Context())
	ins := NewInstruments(InstrumentOptions{})
	if err := ins.Register(m); err != nil {
		t.Fatal(err)
	}
	w, err := spanring.NewHeap(spanring.Options{Geometry: smallRing})
	if err != nil {
		t.Fatal(err)
	}
	rd, err := spanring.NewHeapReader(w, spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	src := &counting{Source: NewRingSource(rd)}
	p, err := NewProcessor(src, ProcessorOptions{Instruments: ins, Label: "e"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	collectAll := func() map[float64]int {
		var rm metricdata.ResourceMetrics
		if err := r.Collect(t.Context(), &rm); err != nil {
			t.Fatal(err)
		}
		out := map[float64]int{}
		for _, sm := range rm.ScopeMetrics {
			for _, m := range sm.Metrics {
				switch d := m.Data.(type) {
				case metricdata.Sum[int64]:
					for _, p := range d.DataPoints {
						out[float64(p.Value)]++
					}
				case metricdata.Sum[float64]:
					for _, p := range d.DataPoints {
						out[math.Round(p.Value*1e9)]++
					}
				}
			}
		}
		return out
	}
	seen := 0
	for c := range spanring.Counter(len(src.c)) {
		// Words of memory's totals are gauges.
		if slices.Contains(notInstruments, c) || c.String() == "reserved" || strings.HasPrefix(c.String(), "mem_") {
			continue
		}
		seen++
		const value = 123_456_789_000
		src.c = spanring.Counters{}
		src.c[c] = value
		if n := collectAll()[value]; n != 1 {
			t.Errorf("counter %s is in %d series", c, n)
		}
	}
	if seen < 40 {
		t.Errorf("only %d counters have names", seen)
	}
	// What no counter can be is not shown as less than nothing.
	for c := range src.c {
		src.c[c] = 1 << 63
	}
	for v, n := range collectAll() {
		if v < 0 {
			t.Errorf("%d series have %v", n, v)
		}
	}
}
