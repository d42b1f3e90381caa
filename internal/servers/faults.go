package servers

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/prometheus"
	"github.com/lanetrace/lanetrace/spanring"
)

// StandIn is an engine's ring that a test writes: what happens in it is what the test
// says. It is closed with the test.
func StandIn(tb testing.TB, ringDir string, g spanring.Geometry) *spanring.Writer {
	tb.Helper()
	return StandInOf(tb, ringDir, g, spanring.Info{Rank: spanring.NoRank})
}

// StandInOf is a stand-in that says this of itself. Its service is stand-in and its
// level kernel unless said otherwise.
func StandInOf(tb testing.TB, ringDir string, g spanring.Geometry, i spanring.Info) *spanring.Writer {
	tb.Helper()
	if i.Service == "" {
		i.Service = "stand-in"
	}
	if i.Level == 0 {
		i.Level = 3
	}
	i.Executable = "stand-in"
	w, err := spanring.Create(spanring.Dir{Path: ringDir, Group: -1}, spanring.Options{Geometry: g, Info: i})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := w.Close(); err != nil {
			tb.Error(err)
		}
	})
	return w
}

// ServeDevices serves what devices report, as the sidecar does, until the test ends.
func ServeDevices(tb testing.TB, stats func() []collector.DeviceStats) (url string) {
	tb.Helper()
	x, err := prometheus.New(prometheus.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	mp, meter, err := collector.NewMeterProvider(collector.MeterOptions{Version: "0", Readers: []sdkmetric.Reader{x.Reader()}})
	if err != nil {
		tb.Fatal(err)
	}
	if err := collector.RegisterDevices(meter, stats); err != nil {
		tb.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", x.Handler())
	s := httptest.NewServer(mux)
	tb.Cleanup(func() {
		s.Close()
		if err := mp.Shutdown(tb.Context()); err != nil && tb.Context().Err() == nil {
			tb.Error(err)
		}
	})
	return s.URL
}

var (
	forTime  = regexp.MustCompile(`(?m)^(\s*for:) [1-9].*$`)
	hangTime = regexp.MustCompile(`(lanetrace_spans_in_flight_age_seconds >) 30`)
)

// HurriedAlerts is a copy of the shipped alerts that waits a second wherever they
// wait, and for spans in flight. All else is as it is shipped.
func HurriedAlerts(tb testing.TB) string {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join(Root(tb), "dashboards", "prometheus", "alerts.yml"))
	if err != nil {
		tb.Fatal(err)
	}
	if !hangTime.Match(text) {
		tb.Fatal("the rule of spans in flight is not what is hurried")
	}
	out := forTime.ReplaceAll(text, []byte("$1 1s"))
	out = hangTime.ReplaceAll(out, []byte("$1 1"))
	path := filepath.Join(tb.TempDir(), "alerts.yml")
	if err := os.WriteFile(path, out, 0o600); err != nil {
		tb.Fatal(fmt.Errorf("hurry the alerts: %w", err))
	}
	return path
}
