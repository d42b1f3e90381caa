package otlp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/lanetrace/lanetrace/collector"
)

// httpError is a receiver's answer other than success.
type httpError struct {
	status     int
	text       string
	retryAfter time.Duration // 0 when the server said nothing
}

func (e *httpError) Error() string {
	s := fmt.Sprintf("HTTP status %d %s", e.status, http.StatusText(e.status))
	if e.text != "" {
		s += ": " + e.text
	}
	return s
}

// retryable is the specification's list.
func (e *httpError) retryable() bool {
	switch e.status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

const (
	// maxAnswer bounds what is read of an answer.
	maxAnswer = 1 << 20
	// maxErrorText bounds what is told of an error's body.
	maxErrorText = 200
	// maxRetryAfter is the longest that a receiver may make us wait at a time:
	// longer is more likely a mistake than a plan.
	maxRetryAfter = time.Hour
)

// noter is a round-tripper that notes, in the outcome that the request's context
// carries, the server's answer as it is.
type noter struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper. The answer's body is read whole and
// stands in memory.
func (n noter) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := n.next.RoundTrip(r)
	o, ok := r.Context().Value(outcomeKey{}).(*outcome)
	if !ok {
		return resp, err
	}
	if err != nil {
		o.err = err
		return resp, err
	}
	// What cannot be read of the body changes nothing: the status says what became
	// of the spans.
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err := resp.Body.Close(); err != nil {
		body = nil
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		he := &httpError{status: resp.StatusCode}
		if text := collector.CleanText(string(body)); len(text) > 0 {
			he.text = collector.CutText(text, maxErrorText)
		}
		if he.retryable() {
			he.retryAfter = retryAfter(resp.Header.Get("Retry-After"), time.Now())
		}
		o.err = he
		return resp, nil
	}
	o.err = nil
	if t, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err == nil && t == "application/x-protobuf" {
		var a coltracepb.ExportTraceServiceResponse // that of metrics has the same fields
		if proto.Unmarshal(body, &a) == nil {
			o.rejected = a.GetPartialSuccess().GetRejectedSpans()
			o.message = a.GetPartialSuccess().GetErrorMessage()
		}
	}
	return resp, nil
}

// retryAfter reads the header of that name: seconds, or a date. 0 is none.
func retryAfter(v string, now time.Time) time.Duration {
	v = strings.TrimSpace(v)
	if s, err := strconv.ParseUint(v, 10, 63); err == nil {
		return time.Duration(min(s, uint64(maxRetryAfter/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return min(max(0, at.Sub(now)), maxRetryAfter)
	}
	return 0
}

// newTransport is a client's own, so that closing its connections is nobody
// else's loss.
func newTransport(signal string, getenv Getenv) (*http.Transport, error) {
	c, err := tlsConfig(signal, getenv)
	if err != nil {
		return nil, err
	}
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:   true,
		MaxIdleConns:        4,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second,
		TLSClientConfig:     c,
		HTTP2:               &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingWait},
	}, nil
}

// newHTTPClient is a client with the time-out of the signal.
func newHTTPClient(signal string, getenv Getenv, rt http.RoundTripper) (*http.Client, error) {
	timeout, err := timeoutOf(signal, getenv)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: rt, Timeout: timeout, CheckRedirect: checkRedirect}, nil
}

// checkRedirect follows only where the request stays what it is: after a 302 the
// same request would be a GET without spans, and its success a lie.
func checkRedirect(r *http.Request, via []*http.Request) error {
	if r.Method != http.MethodPost {
		return http.ErrUseLastResponse
	}
	if len(via) >= 10 {
		return errors.New("stopped after 10 redirects")
	}
	return nil
}

// signalURL is where a signal goes of an endpoint that is all signals'.
func signalURL(endpoint, path string) (string, error) {
	u, err := url.JoinPath(endpoint, path)
	if err != nil {
		return "", fmt.Errorf("OTLP endpoint %q: %w", endpoint, err)
	}
	return u, nil
}

// httpTraceClient is OpenTelemetry's client with a transport that is closed with
// it.
type httpTraceClient struct {
	otlptrace.Client
	transport *http.Transport
}

// newHTTPTraceClient is OpenTelemetry's client with its retry off. A client of ours
// inside it reads the variables of certificates and time-out, which it would
// otherwise ignore.
func newHTTPTraceClient(endpoint string, getenv Getenv) (otlptrace.Client, error) {
	t, err := newTransport(signalTraces, getenv)
	if err != nil {
		return nil, err
	}
	hc, err := newHTTPClient(signalTraces, getenv, noter{t})
	if err != nil {
		return nil, err
	}
	o := []otlptracehttp.Option{
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: false}),
		otlptracehttp.WithEncoding(otlptracehttp.EncodingProtobuf),
		otlptracehttp.WithHTTPClient(hc),
	}
	if endpoint != "" {
		u, err := signalURL(endpoint, "v1/traces")
		if err != nil {
			return nil, err
		}
		o = append(o, otlptracehttp.WithEndpointURL(u))
	}
	return &httpTraceClient{otlptracehttp.NewClient(o...), t}, nil
}

// Stop ends the client and its connections.
func (c *httpTraceClient) Stop(ctx context.Context) error {
	defer c.transport.CloseIdleConnections()
	return c.Client.Stop(ctx)
}

// newHTTPMetricExporter is OpenTelemetry's exporter. Cumulative values need no
// queue of ours, so that its own retry does, as it does over gRPC.
func newHTTPMetricExporter(endpoint string, getenv Getenv, retry bool) (sdkmetric.Exporter, func(), error) {
	t, err := newTransport(signalMetrics, getenv)
	if err != nil {
		return nil, nil, err
	}
	hc, err := newHTTPClient(signalMetrics, getenv, noter{t})
	if err != nil {
		return nil, nil, err
	}
	o := []otlpmetrichttp.Option{otlpmetrichttp.WithHTTPClient(hc)}
	if !retry {
		o = append(o, otlpmetrichttp.WithRetry(otlpmetrichttp.RetryConfig{Enabled: false}))
	}
	if endpoint != "" {
		u, err := signalURL(endpoint, "v1/metrics")
		if err != nil {
			return nil, nil, err
		}
		o = append(o, otlpmetrichttp.WithEndpointURL(u))
	}
	exp, err := otlpmetrichttp.New(context.Background(), o...)
	if err != nil {
		return nil, nil, err
	}
	return exp, t.CloseIdleConnections, nil
}
