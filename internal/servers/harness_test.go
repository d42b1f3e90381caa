package servers

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A server that is not there is one line that says how to get it.
func TestMissingServer(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"start", "jaeger"}, 127, "jaeger is not there: build it with: tools/servers get jaeger\n"},
		{[]string{"start", "promtool", "check"}, 127, "promtool is not there: build it with: tools/servers get promtool\n"},
		{[]string{"start", "tempo"}, 2, "tools/servers: unknown server tempo: want jaeger, collector, prometheus or promtool\n"},
		{[]string{"get", "tempo"}, 2, "tools/servers: unknown server tempo: want jaeger, collector, prometheus or promtool\n"},
	} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(Root(t), "tools", "servers"), c.args...)
		cmd.Env = append(os.Environ(), "LANETRACE_SERVERS="+t.TempDir())
		out, err := cmd.CombinedOutput()
		var x *exec.ExitError
		if !errors.As(err, &x) || x.ExitCode() != c.code || string(out) != c.want {
			t.Errorf("%v: %v, %q; want exit code %d, %q", c.args, err, out, c.code, c.want)
		}
	}
}

func TestProcess(t *testing.T) {
	t.Setenv("OTEL_TRACES_EXPORTER", "none")
	script := func(text string) *Process {
		return newProcess(t, t.TempDir(), "script", []string{"WORD=hello"}, []string{"/bin/sh", "-c", text})
	}
	said := func(p *Process, want string) {
		t.Helper()
		Poll(t, "output", func() error {
			if got := p.Stdout(); got != want {
				return errors.New(got)
			}
			return nil
		})
	}

	p := script(`echo "$WORD $OTEL_TRACES_EXPORTER."; echo oops >&2; exit 3`)
	if p.Ended() {
		t.Error("ended before it was started")
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	if code := p.Wait(); code != 3 || !p.Ended() || p.Stdout() != "hello .\n" || p.Stderr() != "oops\n" {
		t.Errorf("exit code %d, %v, %q, %q", code, p.Ended(), p.Stdout(), p.Stderr())
	}
	if err := p.Stop(); err != nil {
		t.Errorf("stopping what has ended: %v", err)
	}

	p = script(`trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done`)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	said(p, "up\n")
	if err := p.Start(); err == nil {
		t.Error("started twice at once")
	}
	if err := p.Stop(); err != nil || p.Stdout() != "up\nbye\n" || p.Wait() != 0 {
		t.Errorf("stop: %v, %q", err, p.Stdout())
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	said(p, "up\nbye\nup\n")
	p.Kill()
	if code := p.Wait(); code != -1 || p.Stdout() != "up\nbye\nup\n" {
		t.Errorf("kill: %d, %q", code, p.Stdout())
	}

	p = script(`trap 'exit 5' TERM; echo up; while :; do sleep 0.01; done`)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	said(p, "up\n")
	if err := p.Stop(); err == nil || !strings.Contains(err.Error(), "exit status 5") {
		t.Errorf("an end that is not a good one: %v", err)
	}
}

func TestTail(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"", 2, ""}, {"a\n", 2, "a\n"}, {"a\nb\n", 2, "a\nb\n"}, {"a\nb\nc\n", 2, "b\nc\n"}, {"a\nb\nc", 2, "b\nc"},
	} {
		if got := tail(c.in, c.n); got != c.want {
			t.Errorf("the last %d lines of %q: %q, want %q", c.n, c.in, got, c.want)
		}
	}
}

func TestFreePorts(t *testing.T) {
	seen := make(map[int]bool)
	for _, p := range freePorts(t, 20) {
		if p < 1024 || p > 65535 || seen[p] {
			t.Errorf("port %d", p)
		}
		seen[p] = true
	}
}

func TestSeriesKey(t *testing.T) {
	got := SeriesKey("n_bucket", map[string]string{"__name__": "n_bucket", "z": `a"b`, "le": "1.0", "job": "x", "empty": ""}, "job")
	if want := `n_bucket{le="1",z="a\"b"}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

const spansLine = `{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"s"}}]},"scopeSpans":[{"scope":{},"spans":[` +
	`{"traceId":"0102","spanId":"03","parentSpanId":"04","flags":257,"name":"n","kind":1,"startTimeUnixNano":"5","endTimeUnixNano":"6",` +
	`"attributes":[{"key":"i","value":{"intValue":"7"}},{"key":"b","value":{"boolValue":true}}],` +
	`"events":[{"timeUnixNano":"8","name":"e"}],"links":[{"traceId":"09","spanId":"0a","flags":1}],"status":{}}]}]}]}`

const pointsLine = `{"resourceMetrics":[{"resource":{},"scopeMetrics":[{"metrics":[` +
	`{"name":"c","unit":"s","sum":{"isMonotonic":true,"dataPoints":[{"startTimeUnixNano":"1","timeUnixNano":"2","asInt":"3"}]}},` +
	`{"name":"g","gauge":{"dataPoints":[{"timeUnixNano":"2","asDouble":0.5,"attributes":[{"key":"k","value":{"stringValue":"v"}}]}]}},` +
	`{"name":"h","histogram":{"dataPoints":[{"count":"3","sum":4.5,"bucketCounts":["1","2"],"explicitBounds":[2],"exemplars":[{"asDouble":1.5,"traceId":"0a","spanId":"0b"}]}]}}]}]}]}`

func TestDecodeOTLP(t *testing.T) {
	spans, err := DecodeSpans([]byte(spansLine + "\n\n" + spansLine + "\n"))
	want := Span{
		Resource: Attrs{"service.name": {"stringValue", "s"}}, TraceID: "0102", SpanID: "03", ParentID: "04", Name: "n", Kind: 1, Flags: 257,
		StartUnixNS: 5, EndUnixNS: 6, Attrs: Attrs{"i": {"intValue", "7"}, "b": {"boolValue", "true"}},
		Events: []SpanEvent{{Name: "e", UnixNS: 8}}, Links: []SpanLink{{TraceID: "09", SpanID: "0a", Flags: 1}},
	}
	if diff := cmp.Diff([]Span{want, want}, spans); diff != "" || err != nil {
		t.Errorf("spans: %v\n%s", err, diff)
	}
	if n := want.Attrs["i"].Int(); n != 7 {
		t.Errorf("7 is %d", n)
	}
	points, err := DecodePoints([]byte(pointsLine))
	wantPoints := []Point{
		{Metric: "c", Unit: "s", Type: "sum", Monotonic: true, StartUnixNS: 1, UnixNS: 2, Value: 3},
		{Metric: "g", Type: "gauge", UnixNS: 2, Value: 0.5, Attrs: Attrs{"k": {"stringValue", "v"}}},
		{Metric: "h", Type: "histogram", Count: 3, Sum: 4.5, Bounds: []float64{2}, Buckets: []uint64{1, 2}, Exemplars: []PointExemplar{{"0a", "0b", 1.5}}},
	}
	if diff := cmp.Diff(wantPoints, points); diff != "" || err != nil {
		t.Errorf("points: %v\n%s", err, diff)
	}
	for _, bad := range []string{
		"{", strings.Replace(spansLine, `"5"`, `"x"`, 1), strings.Replace(spansLine, `"key":"b"`, `"key":"i"`, 1),
	} {
		if _, err := DecodeSpans([]byte(spansLine + "\n" + bad)); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// A file that grows is decoded once, whole lines only.
func TestFollower(t *testing.T) {
	f := follower[Span]{name: filepath.Join(t.TempDir(), "spans"), decode: DecodeSpans}
	is := func(n int) {
		t.Helper()
		if got, err := f.read(); err != nil || len(got) != n {
			t.Errorf("%d spans, %v; want %d", len(got), err, n)
		}
	}
	add := func(text string) {
		t.Helper()
		w, err := os.OpenFile(f.name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	is(0)
	add(spansLine + "\n" + spansLine[:40])
	is(1)
	is(1)
	add(spansLine[40:] + "\n")
	is(2)
	add("{\n")
	if _, err := f.read(); err == nil {
		t.Error("a broken line is not noticed")
	}
}

func TestPromPoint(t *testing.T) {
	for text, want := range map[string]promPoint{
		`[1.5,"2.5"]`: {UnixMS: 1500, Value: 2.5},
		`[2,{"count":"3","sum":"0.5","buckets":[[0,"0.1","0.2","3"]]}]`: {
			UnixMS: 2000, Value: 3, Histogram: &PromHistogram{Count: 3, Sum: 0.5, Buckets: []PromBucket{{0.1, 0.2, 3}}}},
	} {
		var got promPoint
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
	for _, text := range []string{`[1]`, `[1,"x"]`, `["x","1"]`, `[1,{"count":"x"}]`} {
		var got promPoint
		if err := json.Unmarshal([]byte(text), &got); err == nil {
			t.Errorf("%s is taken for %+v", text, got)
		}
	}
}

// Rules are copied but for how often they are evaluated.
func TestHurriedRules(t *testing.T) {
	dir := t.TempDir()
	in, err := write(dir, "in.yml", "groups:\n  - name: a\n    interval: 30s\n    rules:\n      - record: interval:x\n        expr: y\n  - interval: 1m\n    name: b\n")
	if err != nil {
		t.Fatal(err)
	}
	out, err := hurriedRules(dir, []string{in})
	if err != nil || len(out) != 1 {
		t.Fatal(out, err)
	}
	want := "groups:\n  - name: a\n    interval: 500ms\n    rules:\n      - record: interval:x\n        expr: y\n  - interval: 500ms\n    name: b\n"
	if diff := cmp.Diff(want, read(out[0])); diff != "" {
		t.Error(diff)
	}
}
