//go:build servers

package servers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/internal/servers"
)

// wellFormed fails the test for every span that lies outside its parent, has no
// parent but is no root, or that Jaeger warns about.
func wellFormed(t *testing.T, tr *servers.JaegerTrace) {
	t.Helper()
	if len(tr.Warnings) > 0 {
		t.Errorf("trace %s: jaeger warns: %q", tr.TraceID, tr.Warnings)
	}
	byID := make(map[string]*servers.JaegerSpan)
	for i := range tr.Spans {
		s := &tr.Spans[i]
		if byID[s.SpanID] != nil {
			t.Errorf("trace %s: span id %s is there twice", tr.TraceID, s.SpanID)
		}
		byID[s.SpanID] = s
	}
	roots := 0
	for i := range tr.Spans {
		s := &tr.Spans[i]
		for _, w := range s.Warnings {
			// Of a step that was cut off when it had just begun nothing but its begin is known.
			if why, _ := s.Tag("lanetrace.step.incomplete"); why == "" || s.DurationUS > 0 || !strings.HasPrefix(w, "Negative duration detected") {
				t.Errorf("trace %s, span %s, incomplete: %q: jaeger warns: %q", tr.TraceID, s.OperationName, why, w)
			}
		}
		id := s.Parent()
		if id == "" {
			roots++
			continue
		}
		p := byID[id]
		if p == nil {
			t.Errorf("trace %s, span %s: its parent %s is not there", tr.TraceID, s.OperationName, id)
			continue
		}
		// Jaeger cuts start and length to whole microseconds, each: an end can be one
		// early, and of parent and child not the same one.
		if s.StartUnixUS < p.StartUnixUS || s.EndUnixUS() > p.EndUnixUS()+1 {
			t.Errorf("trace %s: span %s from %d to %d lies outside %s from %d to %d", tr.TraceID,
				s.OperationName, s.StartUnixUS, s.EndUnixUS(), p.OperationName, p.StartUnixUS, p.EndUnixUS())
		}
	}
	if roots != 1 {
		t.Errorf("trace %s: %d roots", tr.TraceID, roots)
	}
}

// requestAlone checks a trace of the demo's requests: their parent is a span of whoever
// sent them, who is in no recording, which Jaeger warns of.
func requestAlone(t *testing.T, tr *servers.JaegerTrace) {
	t.Helper()
	if len(tr.Spans) != 1 {
		t.Errorf("trace %s of a request has %d spans", tr.TraceID, len(tr.Spans))
	}
	for i := range tr.Spans {
		s := &tr.Spans[i]
		if s.OperationName != "request" || s.Parent() == "" || len(s.Links()) == 0 {
			t.Errorf("trace %s of a request: span %s, parent %q, %d links", tr.TraceID, s.OperationName, s.Parent(), len(s.Links()))
		}
		for _, w := range s.Warnings {
			if !strings.Contains(w, "invalid parent span IDs="+s.Parent()) {
				t.Errorf("trace %s of a request: jaeger warns: %q", tr.TraceID, w)
			}
		}
	}
}

// The demo's traces are found by service and by attribute, hold together, and
// Jaeger has nothing to say about them.
func TestJaegerDemo(t *testing.T) {
	j := servers.StartJaeger(t)
	from := time.Now().Add(-time.Minute).UnixMicro()
	demo := built.Demo(t, []string{"OTEL_METRICS_EXPORTER=none"}, "--every", "100", "--budget", "0", "--otlp-endpoint", j.OTLP)

	find := func(q servers.JaegerQuery) []servers.JaegerTrace {
		t.Helper()
		q.FromUS, q.ToUS = from, time.Now().Add(time.Minute).UnixMicro()
		ts, err := j.Find(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		return ts
	}
	var armed []servers.JaegerTrace
	servers.Poll(t, "traces of armed and of other steps", func() error {
		armed = find(servers.JaegerQuery{Service: "decode", Operation: "step", Tags: map[string]string{"lanetrace.step.armed": "true"}})
		others := find(servers.JaegerQuery{Service: "decode", Operation: "step", Tags: map[string]string{"lanetrace.step.armed": "false"}})
		if len(armed) < 10 || len(others) < 10 {
			return fmt.Errorf("%d armed, %d others", len(armed), len(others))
		}
		return nil
	})
	if err := demo.Stop(); err != nil {
		t.Fatal(err)
	}
	if ss, err := j.Services(t.Context()); err != nil || !slices.Contains(ss, "decode") {
		t.Errorf("services %q, %v", ss, err)
	}

	// What was sent last is stored a moment later, span by span.
	var all []servers.JaegerTrace
	stored := 0
	servers.Poll(t, "traces at rest", func() error {
		before := stored
		stored = 0
		all = find(servers.JaegerQuery{Service: "decode", Limit: 10000})
		for i := range all {
			stored += len(all[i].Spans)
		}
		if stored != before {
			return fmt.Errorf("%d spans, %d before", stored, before)
		}
		return nil
	})
	if len(all) < 20 {
		t.Errorf("%d traces of the service", len(all))
	}
	names := make(map[string]int)
	requests := 0
	for i := range all {
		if all[i].Spans[0].OperationName == "request" {
			requestAlone(t, &all[i])
			requests++
		} else {
			wellFormed(t, &all[i])
		}
		for k := range all[i].Spans {
			names[all[i].Spans[k].OperationName]++
		}
	}
	for _, n := range []string{"step", "host", "admit", "prefill", "decode", "matmul", "attention"} {
		if names[n] == 0 {
			t.Errorf("no span %s in %d traces: %v", n, len(all), names)
		}
	}
	if requests == 0 {
		t.Error("no trace of a request")
	}
	// By an attribute of a child: every trace that comes has it.
	kernels := find(servers.JaegerQuery{Service: "decode", Tags: map[string]string{"lanetrace.kernel": "attention"}})
	if len(kernels) == 0 {
		t.Error("no trace is found by the name of a kernel")
	}
	for _, tr := range kernels {
		if !slices.ContainsFunc(tr.Spans, func(s servers.JaegerSpan) bool { v, _ := s.Tag("lanetrace.kernel"); return v == "attention" }) {
			t.Errorf("trace %s was found by a kernel that it has not", tr.TraceID)
		}
	}
	if none := find(servers.JaegerQuery{Service: "decode", Tags: map[string]string{"lanetrace.kernel": "no such kernel"}}); len(none) != 0 {
		t.Errorf("%d traces of a kernel that there is not", len(none))
	}
	// A trace is had by its id, and there is none of another.
	if tr, ok, err := j.Trace(t.Context(), armed[0].TraceID); err != nil || !ok || len(tr.Spans) != len(armed[0].Spans) {
		t.Errorf("trace %s by its id: %v, %v, %d spans of %d", armed[0].TraceID, ok, err, len(tr.Spans), len(armed[0].Spans))
	}
	if _, ok, err := j.Trace(t.Context(), strings.Repeat("ab", 16)); ok || err != nil {
		t.Errorf("a trace that there is not: %v, %v", ok, err)
	}
}
