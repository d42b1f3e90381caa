package otlp

import (
	"context"
	"errors"
	"fmt"
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
