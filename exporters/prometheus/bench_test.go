package prometheus

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// BenchmarkScrape is one scrape of a sidecar with so many engines of three lanes and
// fifty kernels each.
func BenchmarkScrape(b *testing.B) {
	for _, engines := range []int{1, 8} {
		for _, form := range []collector.HistogramForm{collector.HistogramsExplicit, collector.HistogramsExponential} {
			for name, accept := range map[string]string{"text": "text/plain", "protobuf": acceptProto} {
				b.Run(fmt.Sprintf("engines=%d/%v/%s", engines, form, name), func(b *testing.B) {
					ins, h := serveWith(b, collector.InstrumentOptions{Histograms: form}, nil)
					for e := range engines {
						w, p := engine(b, ins, collector.ProcessorOptions{Label: fmt.Sprintf("e%d", e)}, spanring.Info{})
						for i := range 50 {
							step(w, uint64(i+1), true, w.Name(spanring.NameLane, fmt.Sprintf("lane %d", i%3)), w.Name(spanring.NameKernel, fmt.Sprintf("kernel %d", i)), 1_000_000)
						}
						poll(b, p)
					}
					b.ReportAllocs()
					bytes := int64(0)
					for b.Loop() {
						r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
						r.Header.Set("Accept", accept)
						w := httptest.NewRecorder()
						h.ServeHTTP(w, r)
						bytes, _ = io.Copy(io.Discard, w.Result().Body)
					}
					b.ReportMetric(float64(bytes), "B/scrape")
				})
			}
		}
	}
}
