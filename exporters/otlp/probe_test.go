package otlp

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestProbe(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	grpc := newServer(t)
	if err := Probe(ctx, grpc.addr, func(string) string { return "" }); err != nil {
		t.Errorf("gRPC: %v", err)
	}
	if len(grpc.spans()) != 0 {
		t.Errorf("gRPC: spans %v", grpc.spans())
	}

	taken := newHTTPReceiver(t, nil)
	if err := Probe(ctx, taken.URL, overHTTP); err != nil {
		t.Errorf("HTTP: %v", err)
	}
	if len(taken.traces) != 1 || len(taken.traces[0].ResourceSpans) != 0 {
		t.Errorf("HTTP: got %v, want one request without spans", taken.traces)
	}
	refused := newHTTPReceiver(t, func(_ int, w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	if err := Probe(ctx, refused.URL, overHTTP); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("HTTP that refuses: %v", err)
	}
	if err := Probe(ctx, nobody, overHTTP); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("HTTP that is away: %v", err)
	}
}

// TestProbeMetrics: one request, once, without any metric, and what a receiver says to it.
func TestProbeMetrics(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, addr := newMetricServer(t)
	if err := ProbeMetrics(ctx, addr, func(string) string { return "" }); err != nil {
		t.Errorf("gRPC: %v", err)
	}
	if len(s.got) != 1 {
		t.Fatalf("gRPC: %d requests, want 1", len(s.got))
	}
	if r := <-s.got; len(r.ResourceMetrics) != 1 || len(r.ResourceMetrics[0].ScopeMetrics) != 0 {
		t.Errorf("gRPC: got %v, want no metrics", r)
	}
	// A receiver of traces alone.
	if err := ProbeMetrics(ctx, newServer(t).addr, func(string) string { return "" }); status.Code(err) != codes.Unimplemented {
		t.Errorf("gRPC without metrics: %v", err)
	}

	taken := newHTTPReceiver(t, nil)
	if err := ProbeMetrics(ctx, taken.URL+"/base", overHTTP); err != nil {
		t.Errorf("HTTP: %v", err)
	}
	if d := cmp.Diff([]string{"POST /base/v1/metrics application/x-protobuf"}, taken.paths); d != "" {
		t.Errorf("HTTP: requests (-want +got):\n%s", d)
	}
	// One that would have it sent again is asked once.
	busy := newHTTPReceiver(t, func(_ int, w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	if err := ProbeMetrics(ctx, busy.URL, overHTTP); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("HTTP that is busy: %v", err)
	}
	if len(busy.paths) != 1 {
		t.Errorf("HTTP that is busy: asked %d times", len(busy.paths))
	}
}
