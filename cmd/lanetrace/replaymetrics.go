package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/prometheus"
	"github.com/lanetrace/lanetrace/exporters/recording"
)

// replayMetrics are the metrics that a sidecar would have served where playing ends,
// and the readings of GPUs that are played for them. A nil *replayMetrics has none.
type replayMetrics struct {
	*replayReadings
	ins      *collector.Instruments
	prom     *prometheus.Exporter
	mp       *sdkmetric.MeterProvider
	out      io.Writer
	closeOut func() error
}

// metrics makes what --metrics asks for.
func (c *replayCmd) metrics(a *app, src *recording.Readings) (m *replayMetrics, err error) {
	if c.Metrics == "" {
		return nil, nil
	}
	m = &replayMetrics{ins: collector.NewInstruments(collector.InstrumentOptions{Version: lanetrace.Version}), replayReadings: newReplayReadings(src)}
	if m.prom, err = prometheus.New(prometheus.Options{Producers: []sdkmetric.Producer{m.ins.AllForms()}, Logger: a.log.slog(true)}); err != nil {
		return nil, err
	}
	mp, meter, err := collector.NewMeterProvider(collector.MeterOptions{Version: lanetrace.Version, Dir: c.Path, Readers: []sdkmetric.Reader{m.prom.Reader()}})
	if err != nil {
		return nil, err
	}
	m.mp = mp
	if err := errors.Join(m.ins.Register(meter), collector.RegisterDevices(meter, m.readings.Stats)); err != nil {
		return nil, err
	}
	m.out, m.closeOut, err = a.output(c.Metrics)
	return m, err
}

// instruments are those of the runs that are played; m may be nil.
func (m *replayMetrics) instruments() *collector.Instruments {
	if m == nil {
		return nil
	}
	return m.ins
}

// played are the readings that are played; m may be nil.
func (m *replayMetrics) played() *replayReadings {
	if m == nil {
		return nil
	}
	return m.replayReadings
}

// write writes the metrics and says which readings were none. m may be nil.
func (m *replayMetrics) write(a *app) error {
	if m == nil {
		return nil
	}
	w := bufio.NewWriter(m.out)
	req, err := http.NewRequestWithContext(context.WithoutCancel(a.ctx), http.MethodGet, "/metrics", nil)
	if err != nil {
		return fmt.Errorf("write metrics: %w", err)
	}
	res := &textResponse{w: w, header: make(http.Header), code: http.StatusOK}
	m.prom.Handler().ServeHTTP(res, req)
	if res.code != http.StatusOK {
		err = fmt.Errorf("write metrics: status %d", res.code)
	}
	err = errors.Join(err, w.Flush(), m.closeOut(), m.mp.Shutdown(context.WithoutCancel(a.ctx)))
	if m.src != nil {
		err = errors.Join(err, bareRecording(m.src.Err()))
	}
	a.sayRefused(m.refused())
	return err
}

// textResponse writes a response's body.
type textResponse struct {
	w      io.Writer
	header http.Header
	code   int
}

func (r *textResponse) Header() http.Header         { return r.header }
func (r *textResponse) WriteHeader(code int)        { r.code = code }
func (r *textResponse) Write(b []byte) (int, error) { return r.w.Write(b) }

// unsent takes steps that go nowhere: only metrics were asked for.
type unsent struct{}

// Export implements collector.Exporter.
func (unsent) Export(s *collector.Step, _ collector.ExportReason) {
	s.Engine.Ledger().NotSelect(collector.NotWanted, s.Units())
}
