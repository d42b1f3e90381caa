package otlp

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	colmetricpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// outcome is what came of one request.
type outcome struct {
	err      error // the transport's; nil when the server took the request
	rejected int64 // spans, or data points, that the server rejected out of it
	message  string
}

type outcomeKey struct{}

// intercept notes, in the outcome that the call's context carries, the server's
// answer as it is: the client itself makes a partial success an error.
func intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	if o, ok := ctx.Value(outcomeKey{}).(*outcome); ok {
		o.err = err
		switch r := reply.(type) {
		case *coltracepb.ExportTraceServiceResponse:
			o.rejected, o.message = r.GetPartialSuccess().GetRejectedSpans(), r.GetPartialSuccess().GetErrorMessage()
		case *colmetricpb.ExportMetricsServiceResponse:
			o.rejected, o.message = r.GetPartialSuccess().GetRejectedDataPoints(), r.GetPartialSuccess().GetErrorMessage()
		}
	}
	return err
}

// Getenv is os.Getenv or a test's.
type Getenv func(string) string

// Configured reports whether traces, and whether metrics, have an endpoint: the
// one given (a flag's value), else the standard OTEL_EXPORTER_OTLP_*ENDPOINT
// variables. OTEL_SDK_DISABLED=true turns both off, OTEL_TRACES_EXPORTER=none and
// OTEL_METRICS_EXPORTER=none one of them.
func Configured(endpoint string, getenv Getenv) (traces, metrics bool) {
	if Disabled(getenv) {
		return false, false
	}
	any := endpoint != "" || getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != ""
	traces = (any || getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "") && getenv("OTEL_TRACES_EXPORTER") != "none"
	metrics = (any || getenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT") != "") && getenv("OTEL_METRICS_EXPORTER") != "none"
	return traces, metrics
}

// Disabled reports whether OTEL_SDK_DISABLED is true, in letters of any case.
func Disabled(getenv Getenv) bool { return strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") }

// checkEndpoint refuses what would otherwise be taken for some other address.
func checkEndpoint(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("OTLP endpoint %q: want a URL such as http://127.0.0.1:4317 (https for TLS)", endpoint)
	}
	return nil
}

// newClient is OpenTelemetry's client of the protocol that the variables name,
// with its retry off. It reads the OTEL_EXPORTER_OTLP_* variables itself;
// endpoint, if not empty, wins.
func newClient(endpoint string, getenv Getenv) (otlptrace.Client, error) {
	if err := checkEndpoint(endpoint); err != nil {
		return nil, err
	}
	p, err := protocolOf(signalTraces, getenv)
	if err != nil {
		return nil, err
	}
	// A certificate that cannot be read is an error here, to OpenTelemetry's clients
	// a message and a connection without it.
	if _, err := tlsConfig(signalTraces, getenv); err != nil {
		return nil, err
	}
	if p == protocolHTTP {
		return newHTTPTraceClient(endpoint, getenv)
	}
	o := []otlptracegrpc.Option{
		otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{Enabled: false}),
		otlptracegrpc.WithDialOption(dialOptions()...),
	}
	if endpoint != "" {
		o = append(o, otlptracegrpc.WithEndpointURL(endpoint))
	}
	return otlptracegrpc.NewClient(o...), nil
}

// pingAfter and pingWait are how long nothing comes from a receiver before it is asked
// whether it is there, and how long its answer takes at most before another connection
// is made. A machine that is gone closes none, and the kernel takes a quarter of an hour
// to notice. gRPC allows no less than 10 s for the one.
const pingAfter, pingWait = 10 * time.Second, 10 * time.Second

// dialOptions are those of all gRPC clients. A connection over which nothing is under
// way is left alone.
func dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(intercept),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingWait}),
	}
}

// upload sends one request and says what came of it.
func upload(ctx context.Context, c otlptrace.Client, rs []*tracepb.ResourceSpans) outcome {
	var o outcome
	noted := context.WithValue(ctx, outcomeKey{}, &o)
	o.err = errNotSent
	err := c.UploadTraces(noted, rs)
	if o.err == errNotSent {
		// The call never reached the interceptor or round-tripper (no connection, client stopped), or
		// the client is not one of ours.
		o.err = err
	}
	return o
}

type notSent struct{}

func (notSent) Error() string { return "not sent" }

var errNotSent error = notSent{}

// retryable applies the OTLP specification's table: whether a request that failed
// with err may be sent again, and after how long if the server said so.
func retryable(err error) (bool, time.Duration) {
	var he *httpError
	if errors.As(err, &he) {
		return he.retryable(), he.retryAfter
	}
	st, ok := status.FromError(err)
	if !ok {
		// No answer of a server's at all.
		return true, 0
	}
	var wait time.Duration
	told := false
	for _, d := range st.Details() {
		if r, ok := d.(*errdetails.RetryInfo); ok {
			told, wait = true, min(max(0, r.GetRetryDelay().AsDuration()), maxRetryAfter)
		}
	}
	switch st.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss:
		return true, wait
	case codes.ResourceExhausted:
		return told, wait
	}
	return false, 0
}
