package prometheus

import (
	"fmt"
	"log/slog"
	"net/http"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
)

// Options configure an Exporter.
type Options struct {
	// Producers yield cumulative histograms. Of one series there may be an explicit
	// and an exponential one: they become one histogram with classic and native
	// buckets.
	Producers []sdkmetric.Producer
	// Timeout bounds one scrape. Default 10 s.
	Timeout time.Duration
	// Logger takes errors of scrapes. Default discards.
	Logger *slog.Logger
}

// Exporter is a metric reader and the handler that serves what it reads.
type Exporter struct {
	reader  sdkmetric.Reader
	handler http.Handler
}

// New makes an exporter. Its Reader must be given to a MeterProvider before the
// first scrape.
func New(o Options) (*Exporter, error) {
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	reg := client.NewRegistry()
	eo := []otelprom.Option{
		otelprom.WithRegisterer(reg),
		otelprom.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes),
		// One scope: its name on every series would only be weight.
		otelprom.WithoutScopeInfo(),
	}
	exp, err := otelprom.New(eo...)
	if err != nil {
		return nil, fmt.Errorf("make Prometheus exporter: %w", err)
	}
	if err := reg.Register(newHistograms(o.Producers)); err != nil {
		return nil, fmt.Errorf("register histograms: %w", err)
	}
	return &Exporter{
		reader: exp,
		handler: promhttp.HandlerFor(reg, promhttp.HandlerOpts{
			ErrorLog: slog.NewLogLogger(o.Logger.Handler(), slog.LevelWarn),
			// One series that cannot be shown must not hide all others.
			ErrorHandling:       promhttp.ContinueOnError,
			EnableOpenMetrics:   true,
			MaxRequestsInFlight: 4,
			Timeout:             o.Timeout,
		}),
	}, nil
}

// Reader is what a MeterProvider feeds.
func (e *Exporter) Reader() sdkmetric.Reader { return e.reader }

// Handler serves /metrics.
func (e *Exporter) Handler() http.Handler { return e.handler }
