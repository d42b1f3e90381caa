package prometheus

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	client "github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// histograms shows what producers yield. Explicit and exponential histograms of
// the same name and labels become one Prometheus histogram with classic and native
// buckets: a text scrape has the classic ones, a protobuf scrape both, and the
// server takes what it is configured for. OpenTelemetry's exporter makes a native
// histogram alone out of an exponential one, of which a text scrape would see no
// buckets at all.
type histograms struct {
	producers []sdkmetric.Producer
	metrics   otlptranslator.MetricNamer
	labels    otlptranslator.LabelNamer
}

func newHistograms(ps []sdkmetric.Producer) *histograms {
	return &histograms{producers: ps, metrics: otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)}
}

// Describe describes nothing: which series there will be is not known.
func (*histograms) Describe(chan<- *client.Desc) {}

var errNoHistogram = errors.New("a producer yields something else than a cumulative histogram of float64")

// Collect implements client.Collector.
func (h *histograms) Collect(ch chan<- client.Metric) {
	for _, p := range h.producers {
		// Prometheus hands no context to collectors; producers do not block.
		sms, err := p.Produce(context.Background())
		if err != nil {
			ch <- invalid(fmt.Errorf("produce histograms: %w", err))
		}
		for _, sm := range sms {
			h.collect(ch, sm.Metrics)
		}
	}
}

func invalid(err error) client.Metric {
	return client.NewInvalidMetric(client.NewInvalidDesc(err), err)
}

// collect shows the metrics of one scope.
func (h *histograms) collect(ch chan<- client.Metric, ms []metricdata.Metrics) {
	type series struct {
		name string
		set  attribute.Distinct
	}
	shown := make(map[series]*histogram)
	var order []*histogram
	for i := range ms {
		m := &ms[i]
		name, err := h.metrics.Build(otlptranslator.Metric{Name: m.Name, Unit: m.Unit, Type: otlptranslator.MetricTypeHistogram})
		if err != nil {
			ch <- invalid(fmt.Errorf("name of %s: %w", m.Name, err))
			continue
		}
		descs := make(map[string]*client.Desc)
		at := func(set attribute.Set) *histogram {
			s := shown[series{name, set.Equivalent()}]
			if s != nil {
				return s
			}
			if s, err = h.newHistogram(name, m.Description, set, descs); err != nil {
				ch <- invalid(fmt.Errorf("labels of %s: %w", m.Name, err))
				return nil
			}
			shown[series{name, set.Equivalent()}] = s
			order = append(order, s)
			return s
		}
		switch d := m.Data.(type) {
		case metricdata.Histogram[float64]:
			for j := range d.DataPoints {
				if s := at(d.DataPoints[j].Attributes); s != nil {
					s.classic(&d.DataPoints[j])
				}
			}
		case metricdata.ExponentialHistogram[float64]:
			for j := range d.DataPoints {
				if s := at(d.DataPoints[j].Attributes); s != nil {
					s.native(&d.DataPoints[j])
				}
			}
		default:
			ch <- invalid(fmt.Errorf("%s: %w", m.Name, errNoHistogram))
		}
	}
	for _, s := range order {
		ch <- s
	}
}

// histogram is one series at one time.
type histogram struct {
	desc *client.Desc
	pb   dto.Metric
	h    dto.Histogram
}

// newHistogram makes a series without values. Descriptions are shared through
// descs by series of the same labels.
func (h *histograms) newHistogram(name, help string, set attribute.Set, descs map[string]*client.Desc) (*histogram, error) {
	s := &histogram{pb: dto.Metric{Label: make([]*dto.LabelPair, 0, set.Len())}}
	keys := make([]string, 0, set.Len())
	for it := set.Iter(); it.Next(); {
		a := it.Attribute()
		key, err := h.labels.Build(string(a.Key))
		if err != nil {
			return nil, err
		}
		if slices.Contains(keys, key) {
			return nil, fmt.Errorf("two attributes are the label %s", key)
		}
		keys = append(keys, key)
		value := strings.ToValidUTF8(a.Value.String(), "\ufffd")
		s.pb.Label = append(s.pb.Label, &dto.LabelPair{Name: &key, Value: &value})
	}
	slices.SortFunc(s.pb.Label, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
	id := strings.Join(keys, ",")
	if descs[id] == nil {
		descs[id] = client.NewDesc(name, help, keys, nil)
	}
	s.desc = descs[id]
	s.pb.Histogram = &s.h
	return s, nil
}

// Desc implements client.Metric.
func (s *histogram) Desc() *client.Desc { return s.desc }

// Write implements client.Metric.
func (s *histogram) Write(m *dto.Metric) error {
	m.Label, m.Histogram = s.pb.Label, s.pb.Histogram
	return nil
}

// classic sets the classic buckets, the last one only if there is an exemplar for
// it: it is the count.
func (s *histogram) classic(p *metricdata.HistogramDataPoint[float64]) {
	s.h.SampleCount, s.h.SampleSum = &p.Count, &p.Sum
	s.h.CreatedTimestamp = timestamppb.New(p.StartTime)
	sum := uint64(0)
	buckets := make([]dto.Bucket, len(p.BucketCounts))
	for i := range buckets {
		b := &buckets[i]
		sum += p.BucketCounts[i]
		n := sum
		b.CumulativeCount = &n
		if i < len(p.Bounds) {
			b.UpperBound = &p.Bounds[i]
		} else {
			inf := math.Inf(1)
			b.UpperBound = &inf
		}
		s.h.Bucket = append(s.h.Bucket, b)
	}
	for i := range p.Exemplars {
		e := newExemplar(&p.Exemplars[i])
		// The first bound that is not below the value; the last bucket has none.
		at, _ := slices.BinarySearch(p.Bounds, p.Exemplars[i].Value)
		if at < len(s.h.Bucket) {
			s.h.Bucket[at].Exemplar = e
		}
	}
	if n := len(s.h.Bucket); n > 0 && n == len(p.Bounds)+1 && s.h.Bucket[n-1].Exemplar == nil {
		s.h.Bucket = s.h.Bucket[:n-1]
	}
}

// native sets the native buckets.
func (s *histogram) native(p *metricdata.ExponentialHistogramDataPoint[float64]) {
	s.h.SampleCount, s.h.SampleSum = &p.Count, &p.Sum
	s.h.CreatedTimestamp = timestamppb.New(p.StartTime)
	s.h.Schema, s.h.ZeroThreshold, s.h.ZeroCount = &p.Scale, &p.ZeroThreshold, &p.ZeroCount
	// Native buckets are numbered by their upper bounds, exponential ones by their
	// lower.
	s.h.PositiveSpan, s.h.PositiveDelta = spans(int(p.PositiveBucket.Offset)+1, p.PositiveBucket.Counts)
	s.h.NegativeSpan, s.h.NegativeDelta = spans(int(p.NegativeBucket.Offset)+1, p.NegativeBucket.Counts)
	if len(s.h.PositiveSpan)+len(s.h.NegativeSpan) == 0 && p.ZeroThreshold == 0 && p.ZeroCount == 0 {
		// An empty span tells an empty native histogram from a classic one.
		s.h.PositiveSpan = []*dto.BucketSpan{{Offset: new(int32), Length: new(uint32)}}
	}
	for i := range p.Exemplars {
		s.h.Exemplars = append(s.h.Exemplars, newExemplar(&p.Exemplars[i]))
	}
}

// maxGap is how many empty buckets are written out: each is a byte, a new span is
// several.
const maxGap = 2

// spans are the runs of buckets that hold something, and their counts, each as
// the difference from the one before it. Buckets count from index first.
func spans(first int, counts []uint64) (ss []*dto.BucketSpan, deltas []int64) {
	next, last := 0, int64(0) // where the next span's offset counts from
	for i := 0; i < len(counts); {
		if counts[i] == 0 {
			i++
			continue
		}
		end, gap := i+1, 0
		for j := end; j < len(counts) && gap <= maxGap; j++ {
			if counts[j] == 0 {
				gap++
				continue
			}
			end, gap = j+1, 0
		}
		off, n := int32(first+i-next), uint32(end-i)
		ss = append(ss, &dto.BucketSpan{Offset: &off, Length: &n})
		for _, c := range counts[i:end] {
			deltas = append(deltas, int64(c)-last)
			last = int64(c)
		}
		next = first + end
		i = end
	}
	return ss, deltas
}

func newExemplar(e *metricdata.Exemplar[float64]) *dto.Exemplar {
	label := func(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }
	x := &dto.Exemplar{Value: &e.Value, Timestamp: timestamppb.New(e.Time), Label: []*dto.LabelPair{
		label(otlptranslator.ExemplarTraceIDKey, hex.EncodeToString(e.TraceID)),
		label(otlptranslator.ExemplarSpanIDKey, hex.EncodeToString(e.SpanID)),
	}}
	for _, a := range e.FilteredAttributes {
		x.Label = append(x.Label, label(string(a.Key), a.Value.String()))
	}
	return x
}
