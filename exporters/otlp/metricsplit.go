package otlp

import (
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/lanetrace/lanetrace/collector"
)

// splitter deals one collection out to its engines: the SDK's reader has one
// resource for everything, and an engine's metrics belong to the same resource as
// its traces. What is of no engine stays with the sidecar's. It is used from one
// goroutine.
type splitter struct {
	engines func() []*collector.Engine
	host    string
	last    map[string]*collector.Engine // whose the labels were at the last push
}

// takeover is how long ago an engine may have taken its label over from another
// one for a collection still to hold values of that one.
const takeover = time.Second

// part is what one resource gets.
type part struct {
	engine *collector.Engine
	rm     *metricdata.ResourceMetrics
	scope  int // index + 1 in the collection's scopes of the last of rm's
}

// split returns the resources of rm, the sidecar's first. Points of an engine that
// is no longer known are left out: its series have ended.
func (s *splitter) split(rm *metricdata.ResourceMetrics) ([]*metricdata.ResourceMetrics, error) {
	now := time.Now()
	own := &part{rm: &metricdata.ResourceMetrics{Resource: rm.Resource}}
	parts := map[string]*part{"": own}
	order := []*part{own}
	labels := make(map[string]*collector.Engine)
	for _, e := range s.engines() {
		labels[e.Label()] = e
		if before := s.last[e.Label()]; before != nil && before != e && now.Sub(e.AttachedAt()) < takeover {
			// The values may be those of the run before. Cumulative ones that the
			// next push has anyway.
			continue
		}
		i := e.Info()
		r, err := engineResource(e.Label(), s.host, &i)
		if err != nil {
			return nil, fmt.Errorf("resource of engine %s: %w", e.Label(), err)
		}
		p := &part{engine: e, rm: &metricdata.ResourceMetrics{Resource: r}}
		parts[e.Label()] = p
		order = append(order, p)
	}
	s.last = labels
	for i := range rm.ScopeMetrics {
		sm := &rm.ScopeMetrics[i]
		for j := range sm.Metrics {
			m := &sm.Metrics[j]
			for label, d := range deal(m.Data) {
				p := parts[label]
				if p == nil {
					continue
				}
				if p.scope != i+1 {
					p.scope = i + 1
					p.rm.ScopeMetrics = append(p.rm.ScopeMetrics, metricdata.ScopeMetrics{Scope: sm.Scope})
				}
				if p.engine != nil {
					startAt(d, p.engine.StartOf(m.Name))
				}
				to := &p.rm.ScopeMetrics[len(p.rm.ScopeMetrics)-1]
				to.Metrics = append(to.Metrics, metricdata.Metrics{Name: m.Name, Description: m.Description, Unit: m.Unit, Data: d})
			}
		}
	}
	var out []*metricdata.ResourceMetrics
	for _, p := range order {
		if len(p.rm.ScopeMetrics) > 0 {
			out = append(out, p.rm)
		}
	}
	return out, nil
}

// deal sorts the points of one metric by their engine, "" for none.
func deal(d metricdata.Aggregation) map[string]metricdata.Aggregation {
	out := make(map[string]metricdata.Aggregation)
	switch d := d.(type) {
	case metricdata.Sum[int64]:
		for l, ps := range byEngine(d.DataPoints, func(p *metricdata.DataPoint[int64]) *attribute.Set { return &p.Attributes }) {
			out[l] = metricdata.Sum[int64]{DataPoints: ps, Temporality: d.Temporality, IsMonotonic: d.IsMonotonic}
		}
	case metricdata.Sum[float64]:
		for l, ps := range byEngine(d.DataPoints, func(p *metricdata.DataPoint[float64]) *attribute.Set { return &p.Attributes }) {
			out[l] = metricdata.Sum[float64]{DataPoints: ps, Temporality: d.Temporality, IsMonotonic: d.IsMonotonic}
		}
	case metricdata.Gauge[int64]:
		for l, ps := range byEngine(d.DataPoints, func(p *metricdata.DataPoint[int64]) *attribute.Set { return &p.Attributes }) {
			out[l] = metricdata.Gauge[int64]{DataPoints: ps}
		}
	case metricdata.Gauge[float64]:
		for l, ps := range byEngine(d.DataPoints, func(p *metricdata.DataPoint[float64]) *attribute.Set { return &p.Attributes }) {
			out[l] = metricdata.Gauge[float64]{DataPoints: ps}
		}
	case metricdata.Histogram[float64]:
		for l, ps := range byEngine(d.DataPoints, func(p *metricdata.HistogramDataPoint[float64]) *attribute.Set { return &p.Attributes }) {
			out[l] = metricdata.Histogram[float64]{DataPoints: ps, Temporality: d.Temporality}
		}
	case metricdata.ExponentialHistogram[float64]:
		for l, ps := range byEngine(d.DataPoints, func(p *metricdata.ExponentialHistogramDataPoint[float64]) *attribute.Set { return &p.Attributes }) {
			out[l] = metricdata.ExponentialHistogram[float64]{DataPoints: ps, Temporality: d.Temporality}
		}
	default:
		out[""] = d
	}
	return out
}

func byEngine[P any](ps []P, attrs func(*P) *attribute.Set) map[string][]P {
	out := make(map[string][]P)
	for i := range ps {
		v, _ := attrs(&ps[i]).Value(collector.LabelEngine)
		l := v.AsString()
		out[l] = append(out[l], ps[i])
	}
	return out
}

// startAt says since when cumulative sums count. The SDK takes the time at which
// its instruments were made, which is the same for an engine and for its successor
// under the same label.
func startAt(d metricdata.Aggregation, start time.Time) {
	switch d := d.(type) {
	case metricdata.Sum[int64]:
		if d.Temporality == metricdata.CumulativeTemporality {
			for i := range d.DataPoints {
				d.DataPoints[i].StartTime = start
			}
		}
	case metricdata.Sum[float64]:
		if d.Temporality == metricdata.CumulativeTemporality {
			for i := range d.DataPoints {
				d.DataPoints[i].StartTime = start
			}
		}
	}
}

// engineResource is the resource of an engine's traces, for metrics.
func engineResource(label, host string, i *collector.Info) (*resource.Resource, error) {
	field := appendResource(nil, label, host, i)
	_, _, tag := protowire.ConsumeTag(field)
	if err := protowire.ParseError(tag); err != nil {
		return nil, err
	}
	msg, n := protowire.ConsumeBytes(field[tag:])
	if err := protowire.ParseError(n); err != nil {
		return nil, err
	}
	var r resourcepb.Resource
	if err := proto.Unmarshal(msg, &r); err != nil {
		return nil, err
	}
	attrs := make([]attribute.KeyValue, 0, len(r.Attributes))
	for _, a := range r.Attributes {
		switch v := a.Value.GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			attrs = append(attrs, attribute.String(a.Key, v.StringValue))
		case *commonpb.AnyValue_IntValue:
			attrs = append(attrs, attribute.Int64(a.Key, v.IntValue))
		case *commonpb.AnyValue_BoolValue:
			attrs = append(attrs, attribute.Bool(a.Key, v.BoolValue))
		default:
			return nil, fmt.Errorf("attribute %s is of a kind that metrics do not know", a.Key)
		}
	}
	return resource.NewSchemaless(attrs...), nil
}
