package collector

import (
	"context"
	"fmt"
	"os"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
)

// MeterOptions say whose metrics a MeterProvider's are.
type MeterOptions struct {
	// Version of this program. Default none.
	Version string
	// Dir is the ring directory: together with the host's name it is the
	// service.instance.id, so that two sidecars stay apart and a restarted one is
	// the same again. Default none.
	Dir string
	// HostName is the host's name. Default os.Hostname.
	HostName string
	// Readers get the metrics.
	Readers []sdkmetric.Reader
}

// NewMeterProvider makes a MeterProvider and the meter on which instruments are
// registered. Nothing global is set. OTEL_RESOURCE_ATTRIBUTES and
// OTEL_SERVICE_NAME win over what is set here. Shutdown of the provider sends a
// last time.
func NewMeterProvider(o MeterOptions) (*sdkmetric.MeterProvider, metric.Meter, error) {
	if o.HostName == "" {
		o.HostName, _ = os.Hostname()
	}
	attrs := []attribute.KeyValue{
		attribute.String("service.name", "lanetrace"),
		attribute.String("service.instance.id", CleanText(o.HostName+":"+o.Dir)),
		attribute.String("host.name", CleanText(o.HostName)),
	}
	if o.Version != "" {
		attrs = append(attrs, attribute.String("service.version", o.Version))
	}
	res, err := resource.New(context.Background(), resource.WithAttributes(attrs...), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	// Kernels, sites and regions are limited by their own K. The SDK's limit counts all
	// engines together and would make something else of the last ones.
	mo := []sdkmetric.Option{sdkmetric.WithResource(res), sdkmetric.WithCardinalityLimit(0)}
	for _, r := range o.Readers {
		mo = append(mo, sdkmetric.WithReader(r))
	}
	mp := sdkmetric.NewMeterProvider(mo...)
	return mp, mp.Meter(Scope, metric.WithInstrumentationVersion(o.Version)), nil
}
