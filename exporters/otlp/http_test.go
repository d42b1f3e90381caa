package otlp

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/lanetrace/lanetrace/collector"
)

// httpReceiver is an OTLP/HTTP receiver in this process.
type httpReceiver struct {
	*httptest.Server
	mu      sync.Mutex
	traces  []*coltracepb.ExportTraceServiceRequest // taken
	paths   []string
	arrived []time.Time
	got     chan struct{}
	// answer, if it returns true, has answered the n-th request, from 1.
	answer func(n int, w http.ResponseWriter, r *http.Request) bool
}

func newHTTPReceiver(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request) bool) *httpReceiver {
	t.Helper()
	s := &httpReceiver{got: make(chan struct{}, 1000), answer: answer}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *httpReceiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.got <- struct{}{} }()
	s.paths = append(s.paths, r.Method+" "+r.URL.Path+" "+r.Header.Get("Content-Type"))
	s.arrived = append(s.arrived, time.Now())
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		body = z
	}
	b, err := io.ReadAll(body)
	req := new(coltracepb.ExportTraceServiceRequest)
	if err != nil || proto.Unmarshal(b, req) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if s.answer != nil && s.answer(len(s.paths), w, r) {
		return
	}
	s.traces = append(s.traces, req)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func (s *httpReceiver) wait(t *testing.T, requests int) {
	t.Helper()
	for range requests {
		select {
		case <-s.got:
		case <-time.After(time.Minute):
			t.Fatal("no request within a minute")
		}
	}
}

// overHTTP is an environment that asks for HTTP.
func overHTTP(k string) string {
	if k == "OTEL_EXPORTER_OTLP_PROTOCOL" {
		return "http/protobuf"
	}
	return ""
}

func TestHTTPReceiverGetsEverySpan(t *testing.T) {
	s := newHTTPReceiver(t, nil)
	x := newExporter(t, Options{Endpoint: s.URL + "/base", Getenv: overHTTP})
	src, p := newEngine(t, x, testInfo)
	for n := uint64(1); n <= 100; n++ {
		src.push(simpleStep(n, 3)...)
	}
	poll(t, p)
	if err := shutdown(t, x); err != nil {
		t.Fatal(err)
	}
	spans := 0
	for _, r := range s.traces {
		if u := unknown(r.ProtoReflect()); u != 0 {
			t.Errorf("%d bytes unknown to the receiver", u)
		}
		for _, rs := range r.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				spans += len(ss.Spans)
			}
		}
	}
	if spans != 500 {
		t.Errorf("%d spans arrived, want 500", spans)
	}
	if d := cmp.Diff(collector.SidecarCounts{Received: 400, Exported: 400}, p.Engine().Ledger().Counts()); d != "" {
		t.Errorf("ledger (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"POST /base/v1/traces application/x-protobuf"}, s.paths); d != "" {
		t.Errorf("requests (-want +got):\n%s", d)
	}
}

func TestHTTPPartialSuccess(t *testing.T) {
	s := newHTTPReceiver(t, func(_ int, w http.ResponseWriter, _ *http.Request) bool {
		b, err := proto.Marshal(&coltracepb.ExportTraceServiceResponse{PartialSuccess: &coltracepb.ExportTracePartialSuccess{RejectedSpans: 7, ErrorMessage: "too\nold"}})
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/x-protobuf; charset=binary")
		w.Write(b)
		return true
	})
	var log bytes.Buffer
	x := newExporter(t, Options{Endpoint: s.URL, Getenv: overHTTP, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	src, p := newEngine(t, x, testInfo)
	for n := uint64(1); n <= 4; n++ {
		src.push(simpleStep(n, 3)...)
	}
	poll(t, p)
	if err := shutdown(t, x); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(collector.SidecarCounts{Received: 16, Exported: 9, Rejected: 7}, p.Engine().Ledger().Counts()); d != "" {
		t.Errorf("ledger (-want +got):\n%s", d)
	}
	if l := log.String(); strings.Count(l, "took a request in part") != 1 || !strings.Contains(l, "too old") || !strings.Contains(l, "rejected=7") {
		t.Errorf("log: %s", l)
	}
	if len(s.paths) != 1 {
		t.Errorf("%d requests: a partial success must not be sent again", len(s.paths))
	}
}

func TestRetryOverHTTP(t *testing.T) {
	for _, tt := range []struct {
		status int
		after  string
		again  bool
	}{
		{429, "", true}, {502, "", true}, {503, "1", true}, {503, "soon", true}, {504, "", true},
		{400, "", false}, {401, "", false}, {404, "1", false}, {413, "", false}, {500, "", false}, {501, "", false}, {302, "", false},
	} {
		t.Run(fmt.Sprint(tt.status, tt.after), func(t *testing.T) {
			s := newHTTPReceiver(t, func(n int, w http.ResponseWriter, r *http.Request) bool {
				if n > 1 {
					return false
				}
				if tt.after != "" {
					w.Header().Set("Retry-After", tt.after)
				}
				if tt.status == 302 {
					w.Header().Set("Location", "/elsewhere")
				}
				w.WriteHeader(tt.status)
				io.WriteString(w, "because\nof this")
				return true
			})
			var log lockedBuffer
			x := newExporter(t, Options{Endpoint: s.URL, Getenv: overHTTP, MinBackoff: time.Millisecond, MaxBackoff: 2 * time.Millisecond,
				FlushEvery: time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			src, p := newEngine(t, x, testInfo)
			src.push(simpleStep(1, 3)...)
			poll(t, p)
			want := collector.SidecarCounts{Received: 4}
			requests := 1
			if tt.again {
				want.Exported, requests = 4, 2
			} else {
				want.Dropped[collector.DropRefused] = 4
			}
			s.wait(t, requests)
			if err := shutdown(t, x); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, p.Engine().Ledger().Counts()); d != "" {
				t.Errorf("ledger (-want +got):\n%s", d)
			}
			if len(s.paths) != requests {
				t.Errorf("requests %v, want %d", s.paths, requests)
			}
			if l := log.String(); !strings.Contains(l, fmt.Sprint("HTTP status ", tt.status)) || !strings.Contains(l, "because of this") {
				t.Errorf("log: %s", l)
			}
			if d := s.arrived[len(s.arrived)-1].Sub(s.arrived[0]); tt.after == "1" && tt.again && d < time.Second {
				t.Errorf("tried again after %v, told 1 s", d)
			}
		})
	}
}

// TestHTTPRedirect: a 307 is followed with the spans, which then count once.
func TestHTTPRedirect(t *testing.T) {
	s := newHTTPReceiver(t, func(n int, w http.ResponseWriter, r *http.Request) bool {
		if n == 1 {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}
		return n == 1
	})
	x := newExporter(t, Options{Endpoint: s.URL, Getenv: overHTTP})
	src, p := newEngine(t, x, testInfo)
	src.push(simpleStep(1, 3)...)
	poll(t, p)
	if err := shutdown(t, x); err != nil {
		t.Fatal(err)
	}
	if c := p.Engine().Ledger().Counts(); c.Exported != 4 || len(s.traces) != 1 || !strings.HasPrefix(s.paths[1], "POST /elsewhere") {
		t.Errorf("ledger %+v, requests %v", c, s.paths)
	}
}

// TestHTTPUnreachable: no answer is tried again, and said at the end.
func TestHTTPUnreachable(t *testing.T) {
	s := newHTTPReceiver(t, nil)
	s.Close()
	x := newExporter(t, Options{Endpoint: s.URL, Getenv: overHTTP, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond, FlushEvery: time.Millisecond})
	_, p := neverSent(t, x)
	if c := p.Engine().Ledger().Counts(); c.Dropped[collector.DropShutdown] != 4 {
		t.Errorf("ledger %+v", c)
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for in, want := range map[string]time.Duration{
		"": 0, "0": 0, "7": 7 * time.Second, " 7 ": 7 * time.Second, "-1": 0, "1.5": 0, "soon": 0, "99999999999999999999999": 0,
		"9223372036854775807": maxRetryAfter, "Fri, 01 May 2026 12:00:30 GMT": 30 * time.Second, "Fri, 01 May 2026 11:00:00 GMT": 0,
		"Sat, 01 May 2027 12:00:00 GMT": maxRetryAfter,
	} {
		if got := retryAfter(in, now); got != want {
			t.Errorf("%q: %v, want %v", in, got, want)
		}
	}
}

func TestSettingsThatAreWrong(t *testing.T) {
	pem := tempFile(t, []byte("no certificate"))
	for _, tt := range []struct {
		env  []string
		want string
	}{
		{[]string{"OTEL_EXPORTER_OTLP_CERTIFICATE=/not/there"}, "OTEL_EXPORTER_OTLP_CERTIFICATE: open /not/there"},
		{[]string{"OTEL_EXPORTER_OTLP_CERTIFICATE=" + pem}, "has no certificate in PEM"},
		{[]string{"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE=" + pem}, "OTEL_EXPORTER_OTLP_CLIENT_KEY is not"},
		{[]string{"OTEL_EXPORTER_OTLP_CLIENT_KEY=" + pem}, "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE is not"},
		{[]string{"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE=" + pem, "OTEL_EXPORTER_OTLP_CLIENT_KEY=" + pem}, "failed to find any PEM data"},
		{[]string{"OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_EXPORTER_OTLP_TIMEOUT=10s"}, "want whole milliseconds"},
		{[]string{"OTEL_EXPORTER_OTLP_PROTOCOL=http/json"}, "want grpc or http/protobuf"},
	} {
		env := func(k string) string {
			i := slices.IndexFunc(tt.env, func(e string) bool { return strings.HasPrefix(e, k+"=") })
			if i < 0 {
				return ""
			}
			return tt.env[i][len(k)+1:]
		}
		_, err := NewExporter(Options{Endpoint: nobody, Getenv: env})
		_, merr := NewMetricReader(MetricOptions{Endpoint: nobody, Getenv: env})
		for _, err := range []error{err, merr} {
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v: %v, want %q", tt.env, err, tt.want)
			}
		}
	}
}
