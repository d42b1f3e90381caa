package otlp

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// Probe sends one request without spans to where traces would go, as the endpoint
// or the OTEL_EXPORTER_OTLP_* variables say, and returns nil when a receiver took
// it. It tries once and blocks until ctx ends at the latest.
func Probe(ctx context.Context, endpoint string, getenv Getenv) error {
	c, err := newClient(endpoint, getenv)
	if err != nil {
		return err
	}
	if err := c.Start(ctx); err != nil {
		return fmt.Errorf("start the OTLP client: %w", err)
	}
	o := upload(ctx, c, nil)
	if errors.Is(o.err, errNotSent) {
		o.err = errors.New("no request was made")
	}
	return errors.Join(o.err, c.Stop(context.WithoutCancel(ctx)))
}

// ProbeMetrics is Probe for where metrics would go: one request without any.
func ProbeMetrics(ctx context.Context, endpoint string, getenv Getenv) error {
	x, idle, err := newMetricExporter(endpoint, getenv, false)
	if err != nil {
		return err
	}
	defer idle()
	var o outcome // over HTTP it says what the exporter's error leaves out
	err = x.Export(context.WithValue(ctx, outcomeKey{}, &o), &metricdata.ResourceMetrics{})
	if err != nil && o.err != nil {
		err = o.err
	} else if inner := errors.Unwrap(err); inner != nil {
		err = inner // without what the exporter was at, which is known here
	}
	return errors.Join(err, x.Shutdown(context.WithoutCancel(ctx)))
}
