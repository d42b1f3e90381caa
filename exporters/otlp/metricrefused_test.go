package otlp

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	colmetricpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// refusal is what a receiver has against one engine's metrics.
type refusal struct {
	code     codes.Code
	http     int
	rejected int64
	message  string
}

// answer is the refusal as a partial success.
func (r refusal) answer() *colmetricpb.ExportMetricsServiceResponse {
	return &colmetricpb.ExportMetricsServiceResponse{PartialSuccess: &colmetricpb.ExportMetricsPartialSuccess{
		RejectedDataPoints: r.rejected, ErrorMessage: r.message,
	}}
}

// particular is a receiver, over gRPC and HTTP, that takes the metrics of all engines
// but bad.
type particular struct {
	colmetricpb.UnimplementedMetricsServiceServer
	refusal
	mu   sync.Mutex
	seen []string // service.name, in order of arrival
}

// note notes whose metrics came, and whether that is the engine bad.
func (s *particular) note(r *colmetricpb.ExportMetricsServiceRequest) (bad bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rm := range r.ResourceMetrics {
		name := attr(rm.Resource.Attributes, "service.name").GetStringValue()
		s.seen = append(s.seen, name)
		bad = bad || name == "bad"
	}
	return bad
}

func (s *particular) Export(_ context.Context, r *colmetricpb.ExportMetricsServiceRequest) (*colmetricpb.ExportMetricsServiceResponse, error) {
	if !s.note(r) {
		return &colmetricpb.ExportMetricsServiceResponse{}, nil
	}
	return s.answer(), status.Error(s.code, s.message)
}

func (s *particular) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	req := new(colmetricpb.ExportMetricsServiceRequest)
	if err != nil || proto.Unmarshal(b, req) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	bad := s.note(req)
	if bad && s.http != http.StatusOK {
		http.Error(w, s.message, s.http)
		return
	}
	if bad {
		b, _ := proto.Marshal(s.answer())
		w.Write(b)
	}
}

// TestMetricsOfOneEngineRefused: what a receiver has against one engine's metrics keeps
// nobody else's from it; while it is away, nobody is tried after the first.
func TestMetricsOfOneEngineRefused(t *testing.T) {
	for _, c := range []struct {
		name    string
		refusal refusal
		seen    string
		pushes  [2]uint64
		said    string
	}{
		{"refused", refusal{codes.InvalidArgument, http.StatusBadRequest, 0, "no such tenant"}, "lanetrace bad good", [2]uint64{0, 1}, "metrics of engine bad: "},
		{"in part", refusal{codes.OK, http.StatusOK, 7, "out of order"}, "lanetrace bad good", [2]uint64{0, 1}, "out of order"},
		{"a remark", refusal{codes.OK, http.StatusOK, 0, "use another name"}, "lanetrace bad good", [2]uint64{1, 0}, "use another name"},
		{"away", refusal{codes.Unavailable, http.StatusServiceUnavailable, 0, "come again"}, "lanetrace bad", [2]uint64{0, 1}, "come again"},
	} {
		for _, p := range []protocol{protocolGRPC, protocolHTTP} {
			t.Run(c.name+" over "+string(p), func(t *testing.T) {
				s := &particular{refusal: c.refusal}
				addr := ""
				if p == protocolGRPC {
					addr = serveMetrics(t, s)
				} else {
					h := httptest.NewServer(s)
					t.Cleanup(h.Close)
					addr = h.URL
				}
				var log lockedBuffer
				ins := collector.NewInstruments(collector.InstrumentOptions{})
				exp, idle, err := newMetricExporter(addr, func(k string) string {
					return map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": string(p)}[k]
				}, false)
				if err != nil {
					t.Fatal(err)
				}
				x := &metricExporter{
					Exporter: exp, idle: idle, split: &splitter{engines: ins.Engines, host: "h"},
					warn: newWarner(slog.New(slog.NewTextHandler(&log, nil))),
				}
				mp, m, err := collector.NewMeterProvider(collector.MeterOptions{
					HostName: "h", Readers: []sdkmetric.Reader{sdkmetric.NewPeriodicReader(x, sdkmetric.WithInterval(time.Hour), sdkmetric.WithProducer(ins.Producer()))},
				})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { mp.Shutdown(context.Background()) })
				if err := ins.Register(m); err != nil {
					t.Fatal(err)
				}
				for _, name := range []string{"bad", "good"} {
					info := spanring.Info{Service: name, Rank: spanring.NoRank}
					pr, err := collector.NewProcessor(&source{info: info}, collector.ProcessorOptions{Instruments: ins})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { pr.Close() })
				}
				if err := mp.ForceFlush(t.Context()); err != nil {
					t.Error(err)
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				if got := strings.Join(s.seen, " "); got != c.seen {
					t.Errorf("metrics came of %q, want %q", got, c.seen)
				}
				if got := [2]uint64{x.ok.Load(), x.failed.Load()}; got != c.pushes {
					t.Errorf("pushes %v, want %v", got, c.pushes)
				}
				if l := log.String(); strings.Count(l, "\n") != 1 || !strings.Contains(l, c.said) {
					t.Errorf("log %q, want one line with %q", l, c.said)
				}
			})
		}
	}
}
