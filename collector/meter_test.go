package collector

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

func TestMeterProviderSaysWhose(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=prod")
	t.Setenv("OTEL_SERVICE_NAME", "")
	r := sdkmetric.NewManualReader()
	mp, m, err := NewMeterProvider(MeterOptions{Version: "1.2.3", Dir: "/rings", HostName: "h", Readers: []sdkmetric.Reader{r}})
	if err != nil {
		t.Fatal(err)
	}
	defer mp.Shutdown(context.Background())
	if err := NewInstruments(InstrumentOptions{}).Register(m); err != nil {
		t.Fatal(err)
	}
	var rm metricdata.ResourceMetrics
	if err := r.Collect(context.Background(), &rm); err != nil {
		t.Fatal(err)
	}
	for k, want := range map[string]string{
		"service.name": "lanetrace", "service.instance.id": "h:/rings", "host.name": "h", "service.version": "1.2.3",
		"deployment.environment.name": "prod", "telemetry.sdk.language": "go",
	} {
		got := ""
		for _, a := range rm.Resource.Attributes() {
			if string(a.Key) == k {
				got = a.Value.AsString()
			}
		}
		if got != want {
			t.Errorf("%s is %q, want %q", k, got, want)
		}
	}
	if len(rm.ScopeMetrics) != 1 || rm.ScopeMetrics[0].Scope.Name != Scope || rm.ScopeMetrics[0].Scope.Version != "1.2.3" {
		t.Errorf("scopes %+v", rm.ScopeMetrics)
	}
}

// TestManySeries: engines together may have more series of one instrument than the
// SDK's own limit, and none of them becomes something else.
func TestManySeries(t *testing.T) {
	r := sdkmetric.NewManualReader()
	mp, m, err := NewMeterProvider(MeterOptions{Readers: []sdkmetric.Reader{r}})
	if err != nil {
		t.Fatal(err)
	}
	defer mp.Shutdown(context.Background())
	c, err := m.Int64ObservableCounter("x")
	if err != nil {
		t.Fatal(err)
	}
	const series = 5000
	if _, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for i := range series {
			o.ObserveInt64(c, 1, metric.WithAttributes(attribute.Int("i", i)))
		}
		return nil
	}, c); err != nil {
		t.Fatal(err)
	}
	var rm metricdata.ResourceMetrics
	if err := r.Collect(context.Background(), &rm); err != nil {
		t.Fatal(err)
	}
	if n := len(rm.ScopeMetrics[0].Metrics[0].Data.(metricdata.Sum[int64]).DataPoints); n != series {
		t.Errorf("%d series, want %d", n, series)
	}
}
