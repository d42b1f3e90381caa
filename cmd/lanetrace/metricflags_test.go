package main

import (
	"testing"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// The flag decides on the form of histograms, and without it the standard variable.
func TestHistogramForm(t *testing.T) {
	explicit, exponential := collector.HistogramsExplicit, collector.HistogramsExponential
	for name, tt := range map[string]struct {
		flag *collector.HistogramForm
		env  string
		want collector.HistogramForm
	}{
		"nothing":            {nil, "", explicit},
		"the variable":       {nil, "base2_exponential_bucket_histogram", exponential},
		"the flag":           {&exponential, "", exponential},
		"the flag over it":   {&explicit, "base2_exponential_bucket_histogram", explicit},
		"another aggregate":  {nil, "explicit_bucket_histogram", explicit},
		"both, alike":        {&exponential, "base2_exponential_bucket_histogram", exponential},
		"an unknown variant": {nil, "t-digest", explicit},
	} {
		f := metricFlags{Histograms: tt.flag, TopKernels: 3, TopSites: 3}
		ins := f.instruments(func(string) string { return tt.env })
		w, err := spanring.NewHeap(spanring.Options{})
		if err != nil {
			t.Fatal(err)
		}
		r, err := spanring.NewHeapReader(w, spanring.ReaderOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p, err := collector.NewProcessor(collector.NewRingSource(r), collector.ProcessorOptions{Instruments: ins})
		if err != nil {
			t.Fatal(err)
		}
		sms, err := ins.Producer().Produce(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := explicit
		for _, m := range sms[0].Metrics {
			if _, ok := m.Data.(metricdata.ExponentialHistogram[float64]); ok {
				got = exponential
			}
		}
		if got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
