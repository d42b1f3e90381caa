package prometheus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	client "github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

const acceptProto = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"

// scrapeProto reads the protobuf format, as a server does that wants native
// histograms.
func scrapeProto(t testing.TB, h http.Handler) map[string]*dto.MetricFamily {
	t.Helper()
	res := get(t, h, acceptProto)
	d := expfmt.NewDecoder(res.Body, expfmt.ResponseFormat(res.Header))
	out := map[string]*dto.MetricFamily{}
	for {
		f := new(dto.MetricFamily)
		err := d.Decode(f)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out[f.GetName()] = f
	}
}

// nativeBuckets are the counts of a native histogram by index, and their sum.
func nativeBuckets(h *dto.Histogram) (by map[int]int64, sum int64) {
	by = map[int]int64{}
	at, count, d := 0, int64(0), 0
	for _, s := range h.PositiveSpan {
		at += int(s.GetOffset())
		for range s.GetLength() {
			count += h.PositiveDelta[d]
			d++
			if count != 0 {
				by[at] = count
			}
			sum += count
			at++
		}
	}
	return by, sum
}

func exponentialSidecar(t *testing.T) (*collector.Instruments, http.Handler) {
	return serveWith(t, collector.InstrumentOptions{TopKernels: 5, Histograms: collector.HistogramsExponential}, nil)
}

// TestNativeHistograms: on request a protobuf scrape has native histograms, with
// the same counts as the classic buckets beside them, and a text scrape has the
// classic ones.
func TestNativeHistograms(t *testing.T) {
	ins, h := exponentialSidecar(t)
	w, p := engine(t, ins, collector.ProcessorOptions{Label: "e"}, spanring.Info{})
	lane := w.Name(spanring.NameLane, "decode")
	for n := uint64(1); n <= 90; n++ {
		step(w, n, false, lane, 0, 1_000_000)
	}
	for n := uint64(91); n <= 100; n++ {
		step(w, n, false, lane, 0, 3_000_000)
	}
	poll(t, p)

	fs := scrapeProto(t, h)
	hist := fs["lanetrace_gpu_lane_duration_seconds"].Metric[0].Histogram
	if hist.GetSchema() != 3 || hist.GetSampleCount() != 100 || math.Abs(hist.GetSampleSum()-0.12) > 1e-9 {
		t.Errorf("schema %d, count %d, sum %v", hist.GetSchema(), hist.GetSampleCount(), hist.GetSampleSum())
	}
	// The bucket with index i ends at 2^(i/8).
	by, sum := nativeBuckets(hist)
	want := map[int]int64{int(math.Ceil(8 * math.Log2(0.001))): 90, int(math.Ceil(8 * math.Log2(0.003))): 10}
	if d := cmp.Diff(want, by); d != "" || sum != 100 {
		t.Errorf("native buckets sum up to %d:\n%s", sum, d)
	}
	if n := len(hist.Bucket); n < 30 || hist.Bucket[n-1].GetCumulativeCount() != 100 {
		t.Errorf("%d classic buckets beside", n)
	}
	if hist.GetCreatedTimestamp().AsTime().IsZero() {
		t.Error("no time of creation")
	}
	text := scrape(t, h)["lanetrace_gpu_lane_duration_seconds"].Metric[0].Histogram
	for _, b := range text.Bucket {
		want := uint64(0)
		if b.GetUpperBound() >= 0.001 {
			want = 90
		}
		if b.GetUpperBound() >= 0.003 {
			want = 100
		}
		if b.GetCumulativeCount() != want {
			t.Errorf("bucket %v has %d, want %d", b.GetUpperBound(), b.GetCumulativeCount(), want)
		}
	}
	if len(text.Bucket) < 30 {
		t.Errorf("a text scrape has %d buckets", len(text.Bucket))
	}

	// Queue delays below the clock's uncertainty are zeroes.
	write(w, &spanring.Span{Kind: spanring.KindLane, Step: 101, Ordinal: 1, Name: lane, StartMonoNS: spanring.MonoNS(), RawNS: 1000, LeadNS: -300})
	poll(t, p)
	queue := scrapeProto(t, h)["lanetrace_gpu_lane_queue_delay_seconds"].Metric[0].Histogram
	if queue.GetZeroCount() != 1 || queue.GetSampleCount() != 101 {
		t.Errorf("queue delays: %d zeroes of %d", queue.GetZeroCount(), queue.GetSampleCount())
	}
	// One without values is native nevertheless.
	armed := fs["lanetrace_step_armed_duration_seconds"].Metric[0].Histogram
	if len(armed.PositiveSpan) != 1 || armed.GetSampleCount() != 0 {
		t.Errorf("an empty histogram has spans %v", armed.PositiveSpan)
	}
	if k := fs["lanetrace_gpu_kernel_armed_duration_seconds"].Metric[0].Histogram; k.Schema != nil || len(k.PositiveSpan) > 0 {
		t.Error("kernels are native histograms")
	}
}

// TestExplicitHistogramsAreClassic: nothing native unless asked for.
func TestExplicitHistogramsAreClassic(t *testing.T) {
	ins, h := serve(t, nil)
	w, p := engine(t, ins, collector.ProcessorOptions{Label: "e"}, spanring.Info{})
	step(w, 1, false, w.Name(spanring.NameLane, "decode"), 0, 1_000_000)
	poll(t, p)
	for name, f := range scrapeProto(t, h) {
		for _, m := range f.Metric {
			if x := m.Histogram; x != nil && (x.Schema != nil || len(x.PositiveSpan) > 0) {
				t.Errorf("%s is native", name)
			}
		}
	}
}

func TestSpans(t *testing.T) {
	for _, counts := range [][]uint64{nil, {0}, {1}, {0, 0, 5, 0}, {1, 0, 2}, {1, 0, 0, 2}, {1, 0, 0, 0, 2, 3}, {3, 1, 0, 0, 0, 0, 0, 9, 0, 1}} {
		for _, first := range []int{-20, 0, 7} {
			var h dto.Histogram
			h.PositiveSpan, h.PositiveDelta = spans(first, counts)
			want := map[int]int64{}
			for i, c := range counts {
				if c > 0 {
					want[first+i] = int64(c)
				}
			}
			got, _ := nativeBuckets(&h)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%v from %d:\n%s", counts, first, d)
			}
		}
	}
}

// TestOnlyHistogramsFromProducers: another kind of data is an error in the scrape,
// not silence.
func TestOnlyHistogramsFromProducers(t *testing.T) {
	c := newHistograms([]sdkmetric.Producer{badProducer{}})
	if n := countErrors(c); n != 1 {
		t.Errorf("%d errors, want 1", n)
	}
}

type badProducer struct{}

func (badProducer) Produce(context.Context) ([]metricdata.ScopeMetrics, error) {
	return []metricdata.ScopeMetrics{{Metrics: []metricdata.Metrics{{Name: "x", Data: metricdata.Gauge[int64]{}}}}}, nil
}

func countErrors(c client.Collector) (n int) {
	ch := make(chan client.Metric, 10)
	c.Collect(ch)
	close(ch)
	for m := range ch {
		if m.Write(new(dto.Metric)) != nil {
			n++
		}
	}
	return n
}

func labelText(m *dto.Metric) string {
	l := labelsOf(m)
	out := ""
	for _, k := range slices.Sorted(maps.Keys(l)) {
		if l[k] != "" { // an empty label is none
			out += fmt.Sprintf("%s=%q,", k, l[k])
		}
	}
	return out
}
