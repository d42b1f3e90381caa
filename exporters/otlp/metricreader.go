package otlp

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/lanetrace/lanetrace/collector"
)

// MetricOptions configure the reader that sends metrics.
type MetricOptions struct {
	// Endpoint is a URL; over HTTP it is what v1/metrics is added to. Default: the
	// OTEL_EXPORTER_OTLP_* variables.
	Endpoint string
	// Every is how often metrics are sent. Default: OTEL_METRIC_EXPORT_INTERVAL,
	// else 60 s.
	Every time.Duration
	// Producers yield what no instrument does.
	Producers []sdkmetric.Producer
	// Engines are the engines that have series. Each gets a resource of its own, the
	// one of its traces. Default none: everything is of the MeterProvider's resource.
	Engines func() []*collector.Engine
	// HostName is the resource attribute host.name of engines. Default os.Hostname.
	HostName string
	// Getenv looks up the protocol's variables. Default os.Getenv.
	Getenv Getenv
	// Logger takes warnings. Default discards.
	Logger *slog.Logger
}

// MetricReader sends metrics over OTLP, gRPC or HTTP as the variables say, with
// OpenTelemetry's own exporter and retry. It runs once it is given to a MeterProvider, whose Shutdown sends a
// last time and reports a failure of that.
type MetricReader struct {
	*sdkmetric.PeriodicReader
	exp *metricExporter
}

// NewMetricReader makes a reader that sends metrics. It does not connect yet: an
// endpoint that cannot be reached is a warning later.
func NewMetricReader(o MetricOptions) (*MetricReader, error) {
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	exp, idle, err := newMetricExporter(o.Endpoint, o.Getenv, true)
	if err != nil {
		return nil, err
	}
	if p := o.Getenv(temporalityVariable); p != "" && !strings.EqualFold(p, "cumulative") {
		o.Logger.Warn("metrics over OTLP stay cumulative: a Collector's cumulativetodelta processor makes differences of them", temporalityVariable, p)
	}
	var ro []sdkmetric.PeriodicReaderOption
	if o.Every != 0 {
		ro = append(ro, sdkmetric.WithInterval(o.Every))
	}
	for _, p := range o.Producers {
		ro = append(ro, sdkmetric.WithProducer(p))
	}
	x := &metricExporter{Exporter: exp, idle: idle, warn: newWarner(o.Logger)}
	if o.Engines != nil {
		if o.HostName == "" {
			o.HostName, _ = os.Hostname()
		}
		x.split = &splitter{engines: o.Engines, host: o.HostName}
	}
	return &MetricReader{PeriodicReader: sdkmetric.NewPeriodicReader(x, ro...), exp: x}, nil
}

// newMetricExporter is OpenTelemetry's exporter of the protocol that the variables
// name, with its own retry or without. idle closes its idle connections.
func newMetricExporter(endpoint string, getenv Getenv, retry bool) (exp sdkmetric.Exporter, idle func(), err error) {
	if err := checkEndpoint(endpoint); err != nil {
		return nil, nil, err
	}
	p, err := protocolOf(signalMetrics, getenv)
	if err != nil {
		return nil, nil, err
	}
	if _, err := tlsConfig(signalMetrics, getenv); err != nil {
		return nil, nil, err
	}
	idle = func() {}
	if p == protocolHTTP {
		exp, idle, err = newHTTPMetricExporter(endpoint, getenv, retry)
	} else {
		o := []otlpmetricgrpc.Option{otlpmetricgrpc.WithDialOption(dialOptions()...)}
		if !retry {
			o = append(o, otlpmetricgrpc.WithRetry(otlpmetricgrpc.RetryConfig{Enabled: false}))
		}
		if endpoint != "" {
			o = append(o, otlpmetricgrpc.WithEndpointURL(endpoint))
		}
		exp, err = otlpmetricgrpc.New(context.Background(), o...)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("make OTLP metric exporter: %w", err)
	}
	return exp, idle, nil
}

// PrefersExponential reports whether a standard variable asks for exponential
// histograms over OTLP. Ours are made before the exporter could choose.
func PrefersExponential(getenv Getenv) bool {
	return strings.EqualFold(getenv("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"), "base2_exponential_bucket_histogram")
}

const temporalityVariable = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"

// Temporality is cumulative whatever a variable says: histograms and the counters
// of engines are, and a receiver could not make use of a mixture. It implements
// sdkmetric.Exporter.
func (x *metricExporter) Temporality(sdkmetric.InstrumentKind) metricdata.Temporality {
	return metricdata.CumulativeTemporality
}

// Pushes are how many pushes a receiver took and how many failed, as
// collector.RegisterMetricExport wants them.
func (r *MetricReader) Pushes() [2]uint64 {
	return [2]uint64{r.exp.ok.Load(), r.exp.failed.Load()}
}

// metricExporter counts failures and logs them now and then; the SDK would give
// each to a global handler.
type metricExporter struct {
	sdkmetric.Exporter
	idle       func()
	split      *splitter // nil for one resource
	warn       *warner
	ok, failed atomic.Uint64
}

// Export sends once, or as often as the exporter's own retry wants. Values are
// cumulative: what could not be sent now is in the next push.
func (x *metricExporter) Export(ctx context.Context, rm *metricdata.ResourceMetrics) error {
	err := x.export(ctx, rm)
	if err == nil {
		x.ok.Add(1)
		return nil
	}
	x.failed.Add(1)
	x.warn.say("OTLP push of metrics fails", "error", err, "failed", x.failed.Load())
	return nil
}

// export sends a request for each resource. What a receiver has against one engine's
// metrics is no reason not to send the others'; one that is away is not tried again
// before the next push, which has everything again. The error is the first one.
func (x *metricExporter) export(ctx context.Context, rm *metricdata.ResourceMetrics) (err error) {
	rms := []*metricdata.ResourceMetrics{rm}
	if x.split != nil {
		if rms, err = x.split.split(rm); err != nil {
			return err
		}
	}
	for _, rm := range rms {
		o := outcome{err: errNotSent}
		sent := x.Exporter.Export(context.WithValue(ctx, outcomeKey{}, &o), rm)
		if sent == nil {
			continue
		}
		if o.err == nil && o.rejected == 0 {
			// It took everything and had something to say, which to the SDK is an error.
			x.warn.say("OTLP receiver took metrics with a remark", "message", collector.CleanText(o.message))
			continue
		}
		err = cmp.Or(err, fmt.Errorf("metrics of %s: %w", whose(rm), sent))
		if again, _ := retryable(o.err); o.err != nil && again {
			break
		}
	}
	return err
}

// whose says whose metrics a resource's are.
func whose(rm *metricdata.ResourceMetrics) string {
	if v, ok := rm.Resource.Set().Value(attrEngine); ok {
		return "engine " + v.AsString()
	}
	return "the sidecar"
}

// Shutdown ends the exporter and its connections.
func (x *metricExporter) Shutdown(ctx context.Context) error {
	defer x.idle()
	return x.Exporter.Shutdown(ctx)
}
