package otlp

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
)

// MetricOptions configure the reader that sends metrics.
type MetricOptions struct {
	// Endpoint is a URL. Default: the OTEL_EXPORTER_OTLP_* variables.
	Endpoint string
	// Every is how often metrics are sent. Default: OTEL_METRIC_EXPORT_INTERVAL,
	// else 60 s.
	Every time.Duration
	// Producers yield what no instrument does.
	Producers []sdkmetric.Producer
}

// NewMetricReader makes a reader that sends metrics over OTLP/gRPC, with
// OpenTelemetry's own exporter and retry. It does not connect yet. It runs once
// it is given to a MeterProvider, whose Shutdown sends a last time.
func NewMetricReader(o MetricOptions) (sdkmetric.Reader, error) {
	if err := checkEndpoint(o.Endpoint); err != nil {
		return nil, err
	}
	var eo []otlpmetricgrpc.Option
	if o.Endpoint != "" {
		eo = append(eo, otlpmetricgrpc.WithEndpointURL(o.Endpoint))
	}
	exp, err := otlpmetricgrpc.New(context.Background(), eo...)
	if err != nil {
		return nil, fmt.Errorf("make OTLP metric exporter: %w", err)
	}
	var ro []sdkmetric.PeriodicReaderOption
	if o.Every != 0 {
		ro = append(ro, sdkmetric.WithInterval(o.Every))
	}
	for _, p := range o.Producers {
		ro = append(ro, sdkmetric.WithProducer(p))
	}
	return sdkmetric.NewPeriodicReader(exp, ro...), nil
}
