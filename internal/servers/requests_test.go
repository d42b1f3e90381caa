//go:build servers

package servers_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/internal/servers"
)

// From a request's trace id alone, its steps and their time on the GPU are found
// in Jaeger, and from a step the requests that it worked for.
func TestJaegerRequests(t *testing.T) {
	j := servers.StartJaeger(t)
	dir := servers.RingDir(t)
	side := built.Sidecar(t, dir, []string{"OTEL_METRICS_EXPORTER=none"}, "--budget", "0", "--otlp-endpoint", j.OTLP)
	from := time.Now()
	e := built.Engine(t, dir, nil, "--requests", "60", "--trace", "0.2", "--json")
	a := side.SettledRun(servers.EngineRunID(e))
	if a.Sidecar.Exported == 0 || a.Sidecar.Rejected != 0 {
		t.Fatalf("account %+v", a)
	}
	var said struct {
		Traced []struct {
			Traceparent  string `json:"traceparent"`
			PromptTokens int64  `json:"prompt_tokens"`
			OutputTokens int64  `json:"output_tokens"`
		} `json:"traced"`
	}
	if err := json.Unmarshal([]byte(e.Stdout()), &said); err != nil {
		t.Fatal(err)
	}
	if len(said.Traced) < 5 {
		t.Fatalf("only %d requests are traced", len(said.Traced))
	}
	// What a gateway sends of each request: its own span, the parent of ours.
	var gateway []map[string]any
	for _, q := range said.Traced {
		_, ids, _ := strings.Cut(q.Traceparent, "-")
		traceID, rest, _ := strings.Cut(ids, "-")
		spanID, _, _ := strings.Cut(rest, "-")
		gateway = append(gateway, map[string]any{
			"traceId": traceID, "spanId": spanID, "name": "POST /v1/completions", "kind": 2,
			"startTimeUnixNano": fmt.Sprint(from.UnixNano()), "endTimeUnixNano": fmt.Sprint(time.Now().UnixNano()),
		})
	}
	post(t, j.OTLPHTTP, "gateway", gateway)

	for i, q := range said.Traced {
		id := gateway[i]["traceId"].(string)
		var tr servers.JaegerTrace
		servers.Poll(t, "the request's trace "+id, func() error {
			var err error
			tr, _, err = j.Trace(t.Context(), id)
			if err == nil && len(tr.Spans) < 2 {
				err = fmt.Errorf("%d spans", len(tr.Spans))
			}
			return err
		})
		wellFormed(t, &tr)
		k := slices.IndexFunc(tr.Spans, func(s servers.JaegerSpan) bool { return s.OperationName == "request" })
		if k < 0 || len(tr.Spans) != 2 {
			t.Fatalf("trace %s has %d spans, no summary among them: %+v", id, len(tr.Spans), tr.Spans)
		}
		sum := &tr.Spans[k]
		if sum.Parent() != gateway[i]["spanId"] {
			t.Errorf("the summary of %s has the parent %s", id, sum.Parent())
		}
		whole := func(s *servers.JaegerSpan, key string) int64 {
			t.Helper()
			n, ok := s.Int(key)
			if !ok {
				t.Errorf("span %s of %s has no %s", s.OperationName, s.TraceID, key)
			}
			return n
		}
		if p, o := whole(sum, "gen_ai.usage.input_tokens"), whole(sum, "gen_ai.usage.output_tokens"); p != q.PromptTokens || o != q.OutputTokens {
			t.Errorf("request %s has %d and %d tokens, the engine says %d and %d", id, p, o, q.PromptTokens, q.OutputTokens)
		}
		steps := sum.Links()
		if n := whole(sum, "lanetrace.request.steps"); n < q.OutputTokens || int64(len(steps)) != n || whole(sum, "lanetrace.request.steps.exported") != n {
			t.Errorf("request %s has %d steps, %d links, for %d tokens", id, n, len(steps), q.OutputTokens)
		}
		var laneNS, laneUS, lanes int64
		for _, step := range steps {
			var st servers.JaegerTrace
			servers.Poll(t, "step "+step+" of request "+id, func() error {
				var ok bool
				var err error
				if st, ok, err = j.Trace(t.Context(), step); err == nil && !ok {
					err = errors.New("not there")
				}
				return err
			})
			wellFormed(t, &st)
			for i := range st.Spans {
				s := &st.Spans[i]
				if s.Parent() == "" {
					laneNS += whole(s, "lanetrace.step.gpu.lane_ns")
					if !slices.Contains(s.Links(), id) {
						t.Errorf("step %s does not lead back to request %s: %q", step, id, s.Links())
					}
				}
				if kind, _ := s.Tag("lanetrace.span.kind"); kind == "lane" {
					laneUS += s.DurationUS
					lanes++
				}
			}
		}
		// The engine's lanes follow one another on one stream, and Jaeger cuts each to
		// whole microseconds.
		if got := whole(sum, "lanetrace.request.gpu.lane_ns"); got != laneNS || got <= 0 || got < laneUS*1000 || got > (laneUS+lanes)*1000 {
			t.Errorf("request %s: %d ns on the GPU, its steps %d ns, their %d lanes %d us", id, got, laneNS, lanes, laneUS)
		}
	}
}

// post sends spans of a service, given as OTLP/JSON, to a receiver over HTTP.
func post(t *testing.T, to, service string, spans []map[string]any) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"resourceSpans": []any{map[string]any{
		"resource":   map[string]any{"attributes": []any{map[string]any{"key": "service.name", "value": map[string]any{"stringValue": service}}}},
		"scopeSpans": []any{map[string]any{"spans": spans}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := servers.PostJSON(t.Context(), to+"/v1/traces", body); err != nil {
		t.Fatal(err)
	}
}
