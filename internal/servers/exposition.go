package servers

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Series are values by series: the name, then the labels in order of their names,
// as NAME{a="x",le="0.1"}. A classic histogram is its _bucket, _sum and _count.
type Series map[string]float64

// SeriesKey is the key of a series in Series. Labels whose names are in but are left
// out, and so are empty ones, which Prometheus does not tell from missing ones; le is written in one way.
func SeriesKey(name string, labels map[string]string, but ...string) string {
	var kv []string
	for k, v := range labels {
		if k == "__name__" || v == "" || slices.Contains(but, k) {
			continue
		}
		if f, err := strconv.ParseFloat(v, 64); k == "le" && err == nil {
			v = strconv.FormatFloat(f, 'g', -1, 64)
		}
		kv = append(kv, fmt.Sprintf("%s=%q", k, v))
	}
	slices.Sort(kv)
	return name + "{" + strings.Join(kv, ",") + "}"
}

// Scrape is what a service serves at /metrics now, in Prometheus's text format,
// as text and decoded.
func (s *Service) Scrape(ctx context.Context) (string, Series, error) {
	text, err := Get(ctx, s.URL+"/metrics", "Accept", "text/plain;version=0.0.4")
	if err != nil {
		return "", nil, err
	}
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return "", nil, fmt.Errorf("decode %s/metrics: %w", s.URL, err)
	}
	out := make(Series)
	for name, f := range families {
		for _, m := range f.GetMetric() {
			labels := make(map[string]string)
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			h := m.GetHistogram()
			if h == nil {
				out[SeriesKey(name, labels)] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
				continue
			}
			out[SeriesKey(name+"_sum", labels)] = h.GetSampleSum()
			out[SeriesKey(name+"_count", labels)] = float64(h.GetSampleCount())
			for _, b := range h.GetBucket() {
				labels["le"] = strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64)
				out[SeriesKey(name+"_bucket", labels)] = float64(b.GetCumulativeCount())
			}
		}
	}
	return string(text), out, nil
}
