package otlp

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestProbe(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	grpc := newServer(t)
	if err := Probe(ctx, grpc.addr, func(string) string { return "" }); err != nil {
		t.Errorf("gRPC: %v", err)
	}
	if len(grpc.spans()) != 0 {
		t.Errorf("gRPC: spans %v", grpc.spans())
	}

	overHTTP := func(k string) string {
		if k == "OTEL_EXPORTER_OTLP_PROTOCOL" {
			return "http/protobuf"
		}
		return ""
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
	away := newHTTPReceiver(t, nil)
	away.Close()
	if err := Probe(ctx, away.URL, overHTTP); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("HTTP that is away: %v", err)
	}
}
