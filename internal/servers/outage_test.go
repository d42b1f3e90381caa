//go:build servers

package servers_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/servers"
)

// A Collector that is killed and comes again: what waits meanwhile is sent then,
// and when the outage is longer than the queue, what arrived and what the account
// calls lost are together all that was to be sent, to the span. What was lost is
// then sent again from what the sidecar kept.
func TestCollectorOutage(t *testing.T) {
	c := servers.StartCollector(t, servers.CollectorOptions{})
	dir, kept := servers.RingDir(t), servers.RingDir(t)
	side := built.Sidecar(t, dir, []string{"OTEL_METRICS_EXPORTER=none"}, "--every", "1", "--budget", "0", "--keep", kept, "--otlp-endpoint", c.OTLP)
	engine := func() string {
		t.Helper()
		return servers.EngineRunID(built.Engine(t, dir, nil, "--requests", "50"))
	}

	// Nothing wrong: everything arrives.
	a := side.SettledRun(engine())
	complete(t, c, a)

	// An outage that the queue outlasts costs nothing.
	c.Kill()
	id := engine()
	servers.Poll(t, "spans that wait", func() error {
		as, err := side.Accounts(t.Context())
		for _, a := range as {
			if a.RunID == id && a.State != "live" && a.Reader.Pending == 0 && a.Sidecar.Pending > 0 {
				return nil
			}
		}
		return fmt.Errorf("accounts: %+v, %v", as, err)
	})
	c.Restart()
	complete(t, c, side.SettledRun(id))

	// One that it does not outlast costs the oldest spans, and the account says how
	// many.
	c.Kill()
	e := built.Engine(t, dir, []string{"LANETRACE_LEVEL=kernel", "LANETRACE_KERNEL_SPAN_EVERY=1", "LANETRACE_KERNEL_BUDGET=1"}, "--duration", "10m")
	servers.Poll(t, "a queue that is full", func() error {
		as, err := side.Accounts(t.Context())
		for _, a := range as {
			if a.Sidecar.Dropped["queue_full"] > 0 {
				return nil
			}
		}
		return fmt.Errorf("accounts: %+v, %v", as, err)
	})
	if err := e.Stop(); err != nil {
		t.Fatal(err)
	}
	id = servers.EngineRunID(e)
	c.Restart()
	a = side.SettledRun(id)
	s := a.Sidecar
	if s.Exported == 0 || s.Dropped["queue_full"] == 0 || s.Exported+s.Dropped["queue_full"] != s.Received {
		t.Errorf("a queue that is full: %+v", s)
	}
	t.Logf("of %d spans %d were exported, %d lost", s.Received, s.Exported, s.Dropped["queue_full"])
	before := len(arrivedOf(t, c, a))

	// Sent again, it is all there, and what had arrived before is the same.
	built.Run(t, nil, "replay", "--since", "10m", "--engine", id, "--every", "1", "--budget", "0", "--otlp-endpoint", c.OTLP, kept)
	spans := make(map[string]servers.Span)
	var again, differ int
	servers.Poll(t, "the spans that were lost", func() error {
		all, err := c.Spans()
		if err != nil {
			return err
		}
		clear(spans)
		again, differ = 0, 0
		for _, s := range all {
			if s.Resource["service.instance.id"].Text != id {
				continue
			}
			key := s.TraceID + "/" + s.SpanID
			if old, ok := spans[key]; ok {
				again++
				if diff := cmp.Diff(old, s); diff != "" {
					if differ++; differ == 1 {
						t.Logf("span %s came again and differs (-before +again):\n%s", s.Name, diff)
					}
				}
			}
			spans[key] = s
		}
		if n := distinct(spans); n < a.Sidecar.Received || again < before {
			return fmt.Errorf("%d of %d, %d of %d again", n, a.Sidecar.Received, again, before)
		}
		return nil
	})
	if n := distinct(spans); n != a.Sidecar.Received || again != before || differ != 0 {
		t.Errorf("%d different spans, want %d; %d of the %d that had arrived came again, %d of them not the same",
			n, a.Sidecar.Received, again, before, differ)
	}
}

// distinct is how many spans the loss account counts among those.
func distinct(spans map[string]servers.Span) (n uint64) {
	for _, s := range spans {
		n += accounted([]servers.Span{s})
	}
	return n
}

// complete fails the test unless all spans of an engine were exported and arrived.
func complete(t *testing.T, c *servers.Collector, a collector.Account) {
	t.Helper()
	if a.Sidecar.Exported != a.Sidecar.Received || a.Sidecar.Received != a.Producer.Landed || a.Sidecar.Received == 0 {
		t.Errorf("not everything was exported: %+v", a)
	}
	arrivedOf(t, c, a)
}

// arrivedOf waits until the Collector has as many spans of an engine as the account
// calls exported, none of them twice, and returns them.
func arrivedOf(t *testing.T, c *servers.Collector, a collector.Account) []servers.Span {
	t.Helper()
	var spans []servers.Span
	servers.Poll(t, "exported spans at the Collector", func() error {
		all, err := c.Spans()
		if err != nil {
			return err
		}
		spans = spans[:0]
		for _, s := range all {
			if s.Resource["service.instance.id"].Text == a.RunID {
				spans = append(spans, s)
			}
		}
		if n := accounted(spans); n < a.Sidecar.Exported {
			return fmt.Errorf("%d of %d", n, a.Sidecar.Exported)
		}
		return nil
	})
	if n := accounted(spans); n != a.Sidecar.Exported {
		t.Errorf("%d spans arrived, the account says %d", n, a.Sidecar.Exported)
	}
	byID(t, spans)
	return spans
}

// The configuration of docs/deploy.md is one of a Collector that loses nothing: with
// Jaeger away and the Collector killed in between, all that the account calls
// exported reaches Jaeger.
func TestCollectorDurableQueue(t *testing.T) {
	j := servers.StartJaeger(t)
	c := servers.StartCollector(t, servers.CollectorOptions{Config: func(dir, grpc, http, health string) string {
		return documented(t, map[string]string{
			"/var/lib/otelcol/queue": filepath.Join(dir, "queue"), "127.0.0.1:4317": grpc, "127.0.0.1:4318": http,
			"health_check: {}":              fmt.Sprintf("health_check: {endpoint: %q}", health),
			"endpoint: traces.example:4317": "tls: {insecure: true}\n    endpoint: " + strings.TrimPrefix(j.OTLP, "http://"),
			// Its own metrics would need a port of everybody's.
			"\nservice:\n": "\nservice:\n  telemetry: {logs: {level: error}, metrics: {level: none}}\n",
		})
	}})
	if err := j.Stop(); err != nil {
		t.Fatal(err)
	}
	dir := servers.RingDir(t)
	side := built.Sidecar(t, dir, []string{"OTEL_METRICS_EXPORTER=none"}, "--every", "1", "--budget", "0", "--otlp-endpoint", c.OTLP)
	from := time.Now()
	a := side.SettledRun(servers.EngineRunID(built.Engine(t, dir, nil, "--requests", "50")))
	c.Kill()
	if a.Sidecar.Exported != a.Sidecar.Received || a.Sidecar.Received == 0 {
		t.Fatalf("not everything was exported: %+v", a)
	}
	j.Restart()
	c.Restart()

	got := make(map[string]bool)
	servers.Poll(t, "the spans in Jaeger", func() error {
		clear(got)
		ts, err := j.Find(t.Context(), servers.JaegerQuery{
			Service: "decode", FromUS: from.Add(-time.Minute).UnixMicro(), ToUS: time.Now().UnixMicro(), Limit: 100_000,
		})
		if err != nil {
			return err
		}
		for _, tr := range ts {
			for _, s := range tr.Spans {
				if kind, _ := s.Tag("lanetrace.span.kind"); kind != "host" {
					got[s.TraceID+"/"+s.SpanID] = true
				}
			}
		}
		if n := uint64(len(got)); n < a.Sidecar.Exported {
			return fmt.Errorf("%d of %d", n, a.Sidecar.Exported)
		}
		return nil
	})
	if n := uint64(len(got)); n != a.Sidecar.Exported {
		t.Errorf("%d spans in Jaeger, the account says %d", n, a.Sidecar.Exported)
	}
}

// documented is the Collector's configuration of docs/deploy.md with some of its
// text replaced, each of which must be there.
func documented(t *testing.T, replace map[string]string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(servers.Root(t), "docs", "deploy.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(b), "```yaml\nextensions:\n")
	text, _, ok := strings.Cut(text, "```")
	if !ok {
		t.Fatal("docs/deploy.md has no configuration of a Collector")
	}
	text = "extensions:\n" + text
	var pairs []string
	for old, instead := range replace {
		if !strings.Contains(text, old) {
			t.Errorf("the configuration of docs/deploy.md has no %q", old)
		}
		pairs = append(pairs, old, instead)
	}
	// In one pass: a port that was put in may begin like one that is to be replaced.
	return strings.NewReplacer(pairs...).Replace(text)
}
