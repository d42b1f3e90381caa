package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/collector/device"
	"github.com/lanetrace/lanetrace/exporters/prometheus"
	"github.com/lanetrace/lanetrace/exporters/recording"
)

// replayMetrics are the metrics that a sidecar would have served where playing ends,
// and the readings of GPUs that are played for them. A nil *replayMetrics has none.
type replayMetrics struct {
	ins      *collector.Instruments
	prom     *prometheus.Exporter
	mp       *sdkmetric.MeterProvider
	readings *device.Readings
	src      *recording.Readings // nil: the recording has none
	out      io.Writer
	closeOut func() error

	engines []*collector.Engine
	nowNS   int64 // of the reading that was played last
}

// metrics makes what --metrics asks for.
func (c *replayCmd) metrics(a *app, src *recording.Readings) (m *replayMetrics, err error) {
	if c.Metrics == "" {
		return nil, nil
	}
	m = &replayMetrics{
		ins: collector.NewInstruments(collector.InstrumentOptions{Version: lanetrace.Version}), src: src, out: a.stdout,
		closeOut: func() error { return nil },
	}
	m.readings = device.NewReadings(device.ReadingsOptions{
		Engines: func() []*collector.Engine { return m.engines }, NowMonoNS: func() int64 { return m.nowNS },
	})
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
	if c.Metrics != "-" {
		f, err := os.Create(c.Metrics)
		if err != nil {
			return nil, bareOpen(c.Metrics, err)
		}
		m.out, m.closeOut = f, f.Close
	}
	return m, nil
}

// instruments are those of the runs that are played; m may be nil.
func (m *replayMetrics) instruments() *collector.Instruments {
	if m == nil {
		return nil
	}
	return m.ins
}

// upTo plays the readings up to a time: what came of runs so far came before them. m
// may be nil.
func (m *replayMetrics) upTo(unixNS int64, runs []*replayRun) {
	if m == nil || m.src == nil {
		return
	}
	for _, r := range runs {
		if e := r.proc.Engine(); !slices.Contains(m.engines, e) {
			m.engines = append(m.engines, e)
		}
	}
	for {
		if at, ok := m.src.NextUnixNS(); !ok || at > unixNS {
			return
		}
		g, _ := m.src.Next()
		m.nowNS = max(m.nowNS, g.MonoNS)
		m.readings.DeviceReading(&g.Device, g.Entries)
		// What those that ended meanwhile did last has been seen now.
		m.engines = slices.DeleteFunc(m.engines, func(e *collector.Engine) bool {
			return !slices.ContainsFunc(runs, func(r *replayRun) bool { return r.proc.Engine() == e })
		})
	}
}

// rest plays the readings up to where playing ends, 0 for where they do.
func (m *replayMetrics) rest(endUnixNS int64, runs []*replayRun) {
	if endUnixNS == 0 {
		endUnixNS = math.MaxInt64
	}
	m.upTo(endUnixNS, runs)
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
	var refused uint64
	for _, n := range m.readings.Refused() {
		refused += n
	}
	if refused > 0 {
		a.say("warning: %d readings of GPUs cannot be and were left out", refused)
	}
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
