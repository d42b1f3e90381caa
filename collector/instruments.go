package collector

import (
	"context"

	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// InstrumentOptions say how metrics are made.
type InstrumentOptions struct {
	// TopKernels is how many kernels of an engine have series of their own, those
	// that took the most GPU time; the rest is the kernel "other". Default 50.
	TopKernels int
}

// Instruments are the metrics of all engines. Histograms come out of Producer,
// everything else out of the instruments that Register makes; both must be given
// to the same readers.
type Instruments struct{}

// NewInstruments returns instruments without engines.
func NewInstruments(o InstrumentOptions) *Instruments { return &Instruments{} }

// Register makes the observable instruments on m, once.
func (i *Instruments) Register(m metric.Meter) error { return nil }

// Producer yields the histograms by engine, lane and kernel.
func (i *Instruments) Producer() sdkmetric.Producer { return producer{i} }

func (i *Instruments) add(e *Engine)    {}
func (i *Instruments) remove(e *Engine) {}

type producer struct{ i *Instruments }

func (p producer) Produce(ctx context.Context) ([]metricdata.ScopeMetrics, error) { return nil, nil }
