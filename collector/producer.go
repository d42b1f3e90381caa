package collector

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// Scope is the instrumentation scope of metrics.
const Scope = "github.com/lanetrace/lanetrace"

// Producer yields the histograms by engine, lane and kernel for a reader that
// knows one form of each, as OTLP does: the exponential one where it is kept.
func (i *Instruments) Producer() sdkmetric.Producer { return producer{i, false} }

// AllForms yields every form that is kept of the same histograms: of those with
// exponential buckets the explicit ones, too, as a metric of the same name. It is
// for the Prometheus exporter, which shows both as one.
func (i *Instruments) AllForms() sdkmetric.Producer { return producer{i, true} }

type producer struct {
	i   *Instruments
	all bool
}

// dataPoints are what one metric has at one time.
type dataPoints struct {
	explicit    []metricdata.HistogramDataPoint[float64]
	exponential []metricdata.ExponentialHistogramDataPoint[float64]
}

// Produce implements sdkmetric.Producer.
func (p producer) Produce(context.Context) ([]metricdata.ScopeMetrics, error) {
	now := time.Now()
	of := make(map[*Metric]*dataPoints)
	at := func(m *Metric) *dataPoints {
		if of[m] == nil {
			of[m] = new(dataPoints)
		}
		return of[m]
	}
	add := func(m *Metric, h *histogram, attrs attribute.Set, since time.Time) {
		ps := at(m)
		if h.exp != nil {
			ps.exponential = append(ps.exponential, h.exponential(attrs, since, now))
		}
		if h.exp == nil || p.all {
			ps.explicit = append(ps.explicit, h.explicit(attrs, stepSeconds, since, now))
		}
	}
	for _, e := range p.i.Engines() {
		s := &e.sum
		s.mu.Lock()
		add(mStepDuration, &s.stepTime[0], e.attrs.set, s.start)
		add(mStepArmedDuration, &s.stepTime[1], e.attrs.set, s.start)
		add(mStepHostDuration, &s.stepHost, e.attrs.set, s.start)
		for _, l := range s.lanes {
			add(mLaneDuration, &l.duration[0], l.attrs, l.since)
			add(mLaneArmedDuration, &l.duration[1], l.attrs, l.since)
			add(mLaneQueueDelay, &l.queue, l.attrs, l.since)
		}
		for _, t := range []struct {
			m *Metric
			t *topK
		}{{mKernelArmedDuration, s.kernels}, {mGraphArmedDuration, s.graph}} {
			t.t.rank(now)
			ps := at(t.m)
			for _, r := range slices.Concat(t.t.members, []*ranked{&t.t.other}) {
				ps.explicit = append(ps.explicit, r.h.point(r.attrs, kernelSeconds, r.since, now))
			}
		}
		s.mu.Unlock()
	}
	sm := metricdata.ScopeMetrics{Scope: instrumentation.Scope{Name: Scope, Version: p.i.o.Version}}
	for _, m := range metrics {
		ps := of[m]
		if ps == nil {
			continue
		}
		data := metricdata.Metrics{Name: m.Name, Description: m.Help, Unit: m.Unit}
		if len(ps.explicit) > 0 {
			data.Data = metricdata.Histogram[float64]{DataPoints: ps.explicit, Temporality: metricdata.CumulativeTemporality}
			sm.Metrics = append(sm.Metrics, data)
		}
		if len(ps.exponential) > 0 {
			data.Data = metricdata.ExponentialHistogram[float64]{DataPoints: ps.exponential, Temporality: metricdata.CumulativeTemporality}
			sm.Metrics = append(sm.Metrics, data)
		}
	}
	return []metricdata.ScopeMetrics{sm}, nil
}
