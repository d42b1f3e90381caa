package servers

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// CollectorOptions configure a Collector. It always writes what it receives to
// files, which Spans and Points read.
type CollectorOptions struct {
	// TracesTo is an OTLP receiver over gRPC that also gets the traces; "" is none.
	TracesTo string
	// MetricsTo is an OTLP receiver over HTTP that also gets the metrics, such as
	// [Prometheus.OTLPHTTP]; "" is none.
	MetricsTo string
}

// Collector is an OpenTelemetry Collector: memory limiter, batches, and queues on
// disk towards where it forwards to.
type Collector struct {
	*server
	OTLP     string // URL of its OTLP receiver over gRPC
	OTLPHTTP string // and over HTTP
	spans    string // file
	points   string // file
}

// StartCollector starts a Collector and waits until it is ready.
func StartCollector(tb testing.TB, o CollectorOptions) *Collector {
	tb.Helper()
	c := &Collector{}
	c.server = start(tb, plan{name: "collector", ports: 3, make: func(dir string, p []int) ([]string, string, error) {
		c.OTLP, c.OTLPHTTP = "http://"+local(p[0]), "http://"+local(p[1])
		c.spans, c.points = filepath.Join(dir, "spans.jsonl"), filepath.Join(dir, "points.jsonl")
		if err := os.Mkdir(filepath.Join(dir, "queue"), 0o700); err != nil {
			return nil, "", err
		}
		conf, err := write(dir, "collector.yaml", o.config(dir, local(p[0]), local(p[1]), local(p[2])))
		return []string{"--config", "file:" + conf}, "http://" + local(p[2]), err
	}})
	return c
}

func (o CollectorOptions) config(dir, grpc, http, health string) string {
	traces, metrics := []string{"file/spans"}, []string{"file/points"}
	var more strings.Builder
	const queue = "sending_queue: {storage: file_storage}, retry_on_failure: {initial_interval: 200ms, max_interval: 1s}"
	if o.TracesTo != "" {
		traces = append(traces, "otlp")
		fmt.Fprintf(&more, "  otlp: {endpoint: %q, tls: {insecure: true}, %s}\n", strings.TrimPrefix(o.TracesTo, "http://"), queue)
	}
	if o.MetricsTo != "" {
		metrics = append(metrics, "otlphttp")
		fmt.Fprintf(&more, "  otlphttp: {endpoint: %q, %s}\n", o.MetricsTo, queue)
	}
	return fmt.Sprintf(`
receivers:
  otlp:
    protocols:
      grpc: {endpoint: %q}
      http: {endpoint: %q}
processors:
  memory_limiter: {check_interval: 1s, limit_mib: 512}
  batch: {timeout: 20ms}
exporters:
  file/spans: {path: %q, append: true, flush_interval: 50ms}
  file/points: {path: %q, append: true, flush_interval: 50ms}
%sextensions:
  health_check: {endpoint: %q}
  file_storage: {directory: %q}
service:
  extensions: [health_check, file_storage]
  telemetry: {logs: {level: warn}, metrics: {level: none}}
  pipelines:
    traces: {receivers: [otlp], processors: [memory_limiter, batch], exporters: [%s]}
    metrics: {receivers: [otlp], processors: [memory_limiter, batch], exporters: [%s]}
`, grpc, http, filepath.Join(dir, "spans.jsonl"), filepath.Join(dir, "points.jsonl"), more.String(), health, filepath.Join(dir, "queue"),
		strings.Join(traces, ", "), strings.Join(metrics, ", "))
}

// Spans are all spans that the Collector has written so far.
func (c *Collector) Spans() ([]Span, error) { return decodeFile(c.spans, DecodeSpans) }

// Points are all data points of metrics that it has written so far.
func (c *Collector) Points() ([]Point, error) { return decodeFile(c.points, DecodePoints) }

// decodeFile decodes the whole lines of a file that is being written.
func decodeFile[T any](name string, decode func([]byte) ([]T, error)) ([]T, error) {
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decode(b[:bytes.LastIndexByte(b, '\n')+1])
}
