package otlp

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

func TestJSONLines(t *testing.T) {
	var out bytes.Buffer
	j := NewJSONWriter(&out, JSONOptions{Version: "1.2.3", HostName: "h"})
	src, p := newEngine(t, j, testInfo)
	for n := uint64(1); n <= 3; n++ {
		src.push(simpleStep(n, 2)...)
	}
	poll(t, p)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(collector.SidecarCounts{Received: 9, Exported: 9}, p.Engine().Ledger().Counts()); d != "" {
		t.Errorf("ledger (-want +got):\n%s", d)
	}
	type span struct {
		TraceID, SpanID, ParentSpanID, Name string
		Kind                                int
		StartTimeUnixNano, EndTimeUnixNano  string
	}
	type line struct {
		ResourceSpans []struct {
			ScopeSpans []struct{ Spans []span }
		}
	}
	step := uint64(0)
	for sc := bufio.NewScanner(&out); sc.Scan(); {
		step++
		var l line
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			t.Fatalf("line %d: %v", step, err)
		}
		if strings.Contains(sc.Text(), ": ") || strings.Contains(sc.Text(), ", ") {
			t.Errorf("line %d has blanks that vary from run to run: %s", step, sc.Text())
		}
		spans := l.ResourceSpans[0].ScopeSpans[0].Spans
		tr := collector.StepTraceID(testRun, step)
		want := []string{"step " + tr.RootID().String() + " <", "host " + tr.HostID().String() + " <" + tr.RootID().String(),
			"decode " + tr.SpanID(1).String() + " <" + tr.RootID().String(), "decode " + tr.SpanID(2).String() + " <" + tr.RootID().String()}
		var got []string
		for _, s := range spans {
			got = append(got, s.Name+" "+s.SpanID+" <"+s.ParentSpanID)
			if b, err := hex.DecodeString(s.TraceID); err != nil || len(b) != 16 || s.TraceID != tr.String() {
				t.Errorf("line %d: trace id %q", step, s.TraceID)
			}
			if s.Kind != 1 {
				t.Errorf("line %d: kind %d", step, s.Kind)
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("line %d (-want +got):\n%s", step, d)
		}
		if want := fmt.Sprint(wallOffset + int64(step)*1_000_000); spans[0].StartTimeUnixNano != want {
			t.Errorf("line %d: start %q, want %s", step, spans[0].StartTimeUnixNano, want)
		}
	}
	if step != 3 {
		t.Errorf("%d lines, want 3", step)
	}
}

// TestJSONKeepsHostileNames: the line is JSON and the name in it the cleaned one;
// an attribute named like an id is not taken for one.
func TestJSONKeepsHostileNames(t *testing.T) {
	var out bytes.Buffer
	j := NewJSONWriter(&out, JSONOptions{HostName: "-"})
	src, p := newEngine(t, j, testInfo)
	src.names[2] = spanring.Name{Kind: spanring.NameLane, Text: "a\"b\\c\nd\xff<script>\u2028"}
	src.push(simpleStep(1, 1)...)
	poll(t, p)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(out.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), `"a\"b\\c d`+"\ufffd"+`<script>"`) || strings.Contains(out.String(), "host.name") {
		t.Errorf("%s", out.String())
	}
	b, err := hexIDs([]byte(`{"spans":[{"spanId":"AQI=","attributes":[{"key":"traceId","value":{"stringValue":"not base64!"}}],"startTimeUnixNano":"18446744073709551615"}]}`))
	want := `{"spans":[{"attributes":[{"key":"traceId","value":{"stringValue":"not base64!"}}],"spanId":"0102","startTimeUnixNano":"18446744073709551615"}]}`
	if err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestJSONWriteError(t *testing.T) {
	j := NewJSONWriter(failingWriter{}, JSONOptions{})
	src, p := newEngine(t, j, testInfo)
	for n := uint64(1); n <= 200; n++ {
		src.push(simpleStep(n, 2)...)
	}
	poll(t, p)
	if err := j.Close(); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("Close: %v", err)
	}
	c := p.Engine().Ledger().Counts()
	if c.Dropped[collector.DropRefused] == 0 || c.Pending != 0 {
		t.Errorf("ledger %+v", c)
	}
}
