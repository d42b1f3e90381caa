package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"testing"
)

// Jaeger is a Jaeger 2 with its traces in memory.
type Jaeger struct {
	*server
	OTLP     string // URL of its OTLP receiver over gRPC
	OTLPHTTP string // and over HTTP
	URL      string // of its query API
}

// StartJaeger starts a Jaeger and waits until it is ready.
func StartJaeger(tb testing.TB) *Jaeger {
	tb.Helper()
	j := &Jaeger{}
	j.server = start(tb, plan{name: "jaeger", ports: 5, make: func(dir string, p []int) ([]string, string, error) {
		j.OTLP, j.OTLPHTTP, j.URL = "http://"+local(p[0]), "http://"+local(p[1]), "http://"+local(p[2])
		conf, err := write(dir, "jaeger.yaml", fmt.Sprintf(jaegerConfig, local(p[0]), local(p[1]), local(p[2]), local(p[3]), local(p[4])))
		return []string{"--config", conf}, "http://" + local(p[4]) + "/status", err
	}})
	return j
}

const jaegerConfig = `
receivers:
  otlp:
    protocols:
      grpc: {endpoint: "%s"}
      http: {endpoint: "%s"}
processors:
  batch: {timeout: 20ms}
exporters:
  jaeger_storage_exporter: {trace_storage: memory}
extensions:
  jaeger_storage:
    backends:
      memory: {memory: {max_traces: 200000}}
  jaeger_query:
    enable_tracing: false
    storage: {traces: memory}
    http: {endpoint: "%s"}
    grpc: {endpoint: "%s"}
  healthcheckv2:
    use_v2: true
    http: {endpoint: "%s"}
service:
  extensions: [jaeger_storage, jaeger_query, healthcheckv2]
  telemetry: {logs: {level: warn}, metrics: {level: none}}
  pipelines:
    traces: {receivers: [otlp], processors: [batch], exporters: [jaeger_storage_exporter]}
`

// JaegerTrace is a trace as Jaeger's API gives it.
type JaegerTrace struct {
	TraceID   string                   `json:"traceID"`
	Spans     []JaegerSpan             `json:"spans"`
	Processes map[string]JaegerProcess `json:"processes"`
	Warnings  []string                 `json:"warnings"`
}

// JaegerProcess is an OTLP resource.
type JaegerProcess struct {
	ServiceName string      `json:"serviceName"`
	Tags        []JaegerTag `json:"tags"`
}

// JaegerSpan is a span. Its times are whole microseconds, cut off.
type JaegerSpan struct {
	TraceID       string      `json:"traceID"`
	SpanID        string      `json:"spanID"`
	OperationName string      `json:"operationName"`
	References    []JaegerRef `json:"references"`
	StartUnixUS   int64       `json:"startTime"`
	DurationUS    int64       `json:"duration"`
	Tags          []JaegerTag `json:"tags"`
	ProcessID     string      `json:"processID"`
	Warnings      []string    `json:"warnings"`
}

// JaegerRef is a parent (CHILD_OF) or a link (FOLLOWS_FROM).
type JaegerRef struct {
	RefType string `json:"refType"`
	TraceID string `json:"traceID"`
	SpanID  string `json:"spanID"`
}

// JaegerTag is an attribute. Its value is a JSON value.
type JaegerTag struct {
	Key   string          `json:"key"`
	Type  string          `json:"type"`
	Value json.RawMessage `json:"value"`
}

// EndUnixUS is the span's end.
func (s *JaegerSpan) EndUnixUS() int64 { return s.StartUnixUS + s.DurationUS }

// Parent is the id of the span's parent within its trace, "" of a root.
func (s *JaegerSpan) Parent() string {
	for _, r := range s.References {
		if r.RefType == "CHILD_OF" && r.TraceID == s.TraceID {
			return r.SpanID
		}
	}
	return ""
}

// Links are the trace ids of other traces that the span refers to, in its order.
func (s *JaegerSpan) Links() []string {
	var out []string
	for _, r := range s.References {
		if r.TraceID != s.TraceID {
			out = append(out, r.TraceID)
		}
	}
	return out
}

// Tag is the text of an attribute's value, and whether it is there.
func (s *JaegerSpan) Tag(key string) (string, bool) {
	for _, t := range s.Tags {
		if t.Key != key {
			continue
		}
		var text string
		if json.Unmarshal(t.Value, &text) == nil {
			return text, true
		}
		return string(t.Value), true
	}
	return "", false
}

// Int is the value of a whole attribute, and whether it is there and one.
func (s *JaegerSpan) Int(key string) (int64, bool) {
	text, ok := s.Tag(key)
	n, err := strconv.ParseInt(text, 10, 64)
	return n, ok && err == nil
}

// jaegerAnswer is around every answer.
type jaegerAnswer struct {
	Data   json.RawMessage `json:"data"`
	Errors []struct {
		Code int    `json:"code"`
		Msg  string `json:"msg"`
	} `json:"errors"`
}

func (j *Jaeger) get(ctx context.Context, path string, v any) error {
	var a jaegerAnswer
	if err := GetJSON(ctx, j.URL+path, &a); err != nil {
		return err
	}
	if len(a.Errors) > 0 {
		return fmt.Errorf("jaeger answers %s: %s", path, a.Errors[0].Msg)
	}
	if err := json.Unmarshal(a.Data, v); err != nil {
		return fmt.Errorf("decode jaeger's answer to %s: %w", path, err)
	}
	return nil
}

// Services are the services that Jaeger has traces of.
func (j *Jaeger) Services(ctx context.Context) ([]string, error) {
	var s []string
	return s, j.get(ctx, "/api/services", &s)
}

// JaegerQuery says which traces Find finds.
type JaegerQuery struct {
	Service   string
	Operation string            // name of a span; "" is any
	Tags      map[string]string // attributes that one span must have
	FromUS    int64             // earliest begin of a trace, Unix microseconds
	ToUS      int64             // latest
	Limit     int               // at most so many; default 100
}

// Find returns the traces with a span that the query describes.
func (j *Jaeger) Find(ctx context.Context, q JaegerQuery) ([]JaegerTrace, error) {
	v := url.Values{"service": {q.Service}}
	if q.Operation != "" {
		v.Set("operation", q.Operation)
	}
	if len(q.Tags) > 0 {
		tags, err := json.Marshal(q.Tags)
		if err != nil {
			return nil, err
		}
		v.Set("tags", string(tags))
	}
	if q.Limit == 0 {
		q.Limit = 100
	}
	v.Set("limit", strconv.Itoa(q.Limit))
	v.Set("start", strconv.FormatInt(q.FromUS, 10))
	v.Set("end", strconv.FormatInt(q.ToUS, 10))
	var ts []JaegerTrace
	return ts, j.get(ctx, "/api/traces?"+v.Encode(), &ts)
}

// Trace returns the trace with that id, 32 hexadecimal digits; found is false when
// there is none.
func (j *Jaeger) Trace(ctx context.Context, id string) (t JaegerTrace, found bool, err error) {
	var ts []JaegerTrace
	err = j.get(ctx, "/api/traces/"+url.PathEscape(id), &ts)
	var se *StatusError
	switch {
	case errors.As(err, &se) && se.Status == http.StatusNotFound:
		return t, false, nil
	case err != nil || len(ts) == 0:
		return t, false, err
	}
	return ts[0], true, nil
}
