package collector

import (
	"os"
	"runtime"
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

func TestStatusBytes(t *testing.T) {
	const status = "Name:\tx\nVmRSS:\t    2048 kB\nRssAnon:\t     100 kB\nBad:\tx kB\n"
	for _, tt := range []struct {
		key  string
		want uint64
		ok   bool
	}{{"VmRSS:", 2 << 20, true}, {"RssAnon:", 100 << 10, true}, {"Bad:", 0, false}, {"Gone:", 0, false}} {
		if got, ok := statusBytes(status, tt.key); got != tt.want || ok != tt.ok {
			t.Errorf("%s is %d, %v", tt.key, got, ok)
		}
	}
}

// collect are the values of all instruments without attributes.
func collect(t *testing.T, r *sdkmetric.ManualReader) map[string]float64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := r.Collect(t.Context(), &rm); err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			if g, ok := m.Data.(metricdata.Gauge[int64]); ok && len(g.DataPoints) == 1 {
				out[m.Name] = float64(g.DataPoints[0].Value)
			}
		}
	}
	return out
}

// TestOwnLoad: what the process uses is what the kernel says.
func TestOwnLoad(t *testing.T) {
	r := sdkmetric.NewManualReader()
	mp, m, err := NewMeterProvider(MeterOptions{Readers: []sdkmetric.Reader{r}})
	if err != nil {
		t.Fatal(err)
	}
	defer mp.Shutdown(t.Context())
	if err := NewInstruments(InstrumentOptions{}).Register(m); err != nil {
		t.Fatal(err)
	}
	before := collect(t, r)
	for range 10 {
		f, err := os.Open("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	after := collect(t, r)
	if d := after["process.unix.file_descriptor.count"] - before["process.unix.file_descriptor.count"]; d != 10 {
		t.Errorf("10 files more are %v descriptors more", d)
	}
	if rss, anon := after["process.memory.usage"], after["lanetrace.sidecar.memory.anonymous"]; anon < 1<<20 || rss < anon {
		t.Errorf("resident %v, anonymous %v", rss, anon)
	}
	if n := after["go.goroutine.count"]; n < 1 || n > float64(runtime.NumGoroutine()+10) {
		t.Errorf("%v goroutines", n)
	}
}
