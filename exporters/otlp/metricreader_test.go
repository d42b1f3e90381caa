package otlp

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	colmetricpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"

	"github.com/lanetrace/lanetrace/collector"
)

type metricServer struct {
	colmetricpb.UnimplementedMetricsServiceServer
	got chan *colmetricpb.ExportMetricsServiceRequest
}

func (s *metricServer) Export(_ context.Context, r *colmetricpb.ExportMetricsServiceRequest) (*colmetricpb.ExportMetricsServiceResponse, error) {
	s.got <- r
	return &colmetricpb.ExportMetricsServiceResponse{}, nil
}

// TestMetricsArrive: instruments and histograms reach a receiver under their
// names, the last values with the shutdown.
func TestMetricsArrive(t *testing.T) {
	s, addr := newMetricServer(t)

	ins := collector.NewInstruments(collector.InstrumentOptions{})
	r, err := NewMetricReader(MetricOptions{Endpoint: addr, Every: time.Hour, Producers: []sdkmetric.Producer{ins.Producer()}})
	if err != nil {
		t.Fatal(err)
	}
	mp := sdkmetric.NewMeterProvider(sdkmetric.WithReader(r))
	if err := ins.Register(mp.Meter(collector.Scope)); err != nil {
		t.Fatal(err)
	}
	p, err := collector.NewProcessor(&source{info: testInfo}, collector.ProcessorOptions{Instruments: ins})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := mp.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if p := r.Pushes(); p != [2]uint64{1, 0} {
		t.Errorf("pushes %v", p)
	}
	names := map[string]bool{}
	for _, rm := range (<-s.got).ResourceMetrics {
		for _, sm := range rm.ScopeMetrics {
			for _, m := range sm.Metrics {
				names[m.Name] = true
			}
		}
	}
	for _, want := range []string{"lanetrace.step.duration", "lanetrace.spans.begun", "lanetrace.sidecar.spans.dropped", "lanetrace.engine.info"} {
		if !names[want] {
			t.Errorf("no %s among %v", want, names)
		}
	}
}

// TestMetricsUnreachable: a push that fails is counted and warned of, and no
// error of the provider's.
func TestMetricsUnreachable(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "50")
	var log lockedBuffer
	r, err := NewMetricReader(MetricOptions{Endpoint: nobody, Every: time.Hour, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	mp := sdkmetric.NewMeterProvider(sdkmetric.WithReader(r))
	if err := collector.NewInstruments(collector.InstrumentOptions{}).Register(mp.Meter("m")); err != nil {
		t.Fatal(err)
	}
	mp.Shutdown(t.Context())
	if p := r.Pushes(); p != [2]uint64{0, 1} || !strings.Contains(log.String(), "OTLP push of metrics fails") {
		t.Errorf("pushes %v, log %s", p, log.String())
	}
}
