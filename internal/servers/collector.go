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

// CollectorOptions configure a Collector. It writes what it receives to files,
// which Spans and Points read.
type CollectorOptions struct {
	// Config, if not nil, makes the whole configuration, of the addresses to listen on
	// as HOST:PORT and of a directory of the test. The other options are then not used,
	// and Spans and Points have nothing unless it writes spans.jsonl and points.jsonl.
	Config func(dir, grpc, http, health string) string

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
	spans    follower[Span]
	points   follower[Point]
}

// StartCollector starts a Collector and waits until it is ready.
func StartCollector(tb testing.TB, o CollectorOptions) *Collector {
	tb.Helper()
	c := &Collector{}
	c.server = start(tb, plan{name: "collector", ports: 3, make: func(dir string, p []int) ([]string, string, error) {
		c.OTLP, c.OTLPHTTP = "http://"+local(p[0]), "http://"+local(p[1])
		c.spans = follower[Span]{name: filepath.Join(dir, "spans.jsonl"), decode: DecodeSpans}
		c.points = follower[Point]{name: filepath.Join(dir, "points.jsonl"), decode: DecodePoints}
		if err := os.Mkdir(filepath.Join(dir, "queue"), 0o700); err != nil {
			return nil, "", err
		}
		config := o.Config
		if config == nil {
			config = o.config
		}
		conf, err := write(dir, "collector.yaml", config(dir, local(p[0]), local(p[1]), local(p[2])))
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

// Spans are all spans that the Collector has written so far. The slice is the
// Collector's: it may be read, not changed.
func (c *Collector) Spans() ([]Span, error) { return c.spans.read() }

// Points are all data points of metrics that it has written so far, likewise.
func (c *Collector) Points() ([]Point, error) { return c.points.read() }

// follower decodes a file of lines that grows, each line once.
type follower[T any] struct {
	name   string
	decode func([]byte) ([]T, error)

	off int64 // what is decoded
	all []T
}

// read decodes the whole lines that came since the last time, and returns
// everything.
func (f *follower[T]) read() ([]T, error) {
	file, err := os.Open(f.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was read
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, st.Size()-f.off)
	if _, err := file.ReadAt(b, f.off); err != nil {
		return nil, fmt.Errorf("read %s: %w", f.name, err)
	}
	b = b[:bytes.LastIndexByte(b, '\n')+1]
	more, err := f.decode(b)
	if err != nil {
		return nil, fmt.Errorf("%s after %d bytes: %w", f.name, f.off, err)
	}
	f.off += int64(len(b))
	f.all = append(f.all, more...)
	return f.all, nil
}
