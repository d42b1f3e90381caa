package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

var client = &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}

func fetch(t *testing.T, method, url string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, r.Header, string(b)
}

// urlIn waits for a command to say where it serves.
func urlIn(t *testing.T, o *output) string {
	t.Helper()
	re := regexp.MustCompile(`http://[0-9.:]+/metrics`)
	eventually(t, "address on "+o.String(), func() bool { return re.MatchString(o.String()) })
	return strings.TrimSuffix(re.FindString(o.String()), "/metrics")
}

// The demo's metrics are those that are documented, each with every reason from
// the start, and come to what its recording says.
func TestDemoMetrics(t *testing.T) {
	c := start(t, "demo", "--listen", "127.0.0.1:0")
	url := urlIn(t, &c.out)
	series := func() map[string]map[string]float64 {
		_, _, text := fetch(t, "GET", url+"/metrics")
		p := expfmt.NewTextParser(model.UTF8Validation)
		fams, err := p.TextToMetricFamilies(strings.NewReader(text))
		if err != nil {
			t.Fatalf("metrics do not parse: %v\n%s", err, text)
		}
		out := make(map[string]map[string]float64)
		for name, f := range fams {
			out[name] = make(map[string]float64)
			for _, m := range f.Metric {
				key := ""
				for _, l := range m.Label {
					if l.GetName() != "engine" {
						key += l.GetName() + "=" + l.GetValue() + ";"
					}
				}
				v := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
				out[name][key] = v
			}
		}
		return out
	}
	got := series()
	if v, ok := got["lanetrace_spans_dropped_total"]["reason=pool_full;"]; !ok || v != 0 {
		t.Errorf("drops in the first scrape: %v, %v", v, ok)
	}
	eventually(t, "armed steps, and a second of readings of the GPU", func() bool {
		got = series()
		return got["lanetrace_steps_total"]["armed=true;"] > 0 && got["lanetrace_device_energy_per_step_estimate_joules"] != nil && got["lanetrace_gpu_kernel_armed_duration_seconds"] != nil
	})
	tracked := got["lanetrace_memory_tracked"][""] == 1
	for _, m := range collector.Metrics() {
		name := m.PrometheusName()
		// A run whose memory is not tracked has no gauges of it: that is not 0 bytes.
		gone := !tracked && m.Type == collector.TypeGauge && strings.HasPrefix(m.Name, "lanetrace.memory.") &&
			m.Name != "lanetrace.memory.tracked" && m.Name != "lanetrace.memory.site.growth"
		gone = gone || strings.HasPrefix(m.Name, "lanetrace.device.nvlink.") // the recorded GPU had none
		if (got[name] == nil) != gone {
			t.Errorf("metric %s: there %v", name, got[name] != nil)
		}
	}
	for name, reasons := range map[string][]string{
		"lanetrace_spans_dropped_total":              {"reason=pool_full;"},
		"lanetrace_spans_failed_total":               nil,
		"lanetrace_sidecar_spans_dropped_total":      nil,
		"lanetrace_entries_lost_total":               {"reason=overwritten;", "reason=hole;", "reason=unreadable;"},
		"lanetrace_sidecar_spans_not_selected_total": {"reason=no_exporter;", "reason=one_in_n;"},
		"lanetrace_export_requests_total":            {"reason=ok;", "reason=retried;", "reason=refused;"},
	} {
		switch name {
		case "lanetrace_spans_failed_total":
			for r := spanring.FailNone + 1; int(r) < spanring.NumReasons; r++ {
				reasons = append(reasons, "reason="+r.String()+";")
			}
		case "lanetrace_sidecar_spans_dropped_total":
			for r := range collector.NumDropReasons {
				reasons = append(reasons, "reason="+collector.DropReason(r).String()+";")
			}
		}
		for _, r := range reasons {
			v, ok := got[name][r]
			if !ok {
				t.Errorf("%s{%s} is missing", name, r)
			}
			if r != "reason=no_exporter;" && v != 0 {
				t.Errorf("%s{%s} is %v", name, r, v)
			}
		}
	}
	for _, s := range []string{"lane=admit;", "lane=prefill;", "lane=decode;"} {
		if got["lanetrace_gpu_lane_duration_seconds"][s] == 0 {
			t.Errorf("no lane %s in %v", s, got["lanetrace_gpu_lane_duration_seconds"])
		}
	}

	// The account, as JSON: what has been received balances with what was sent on.
	_, h, text := fetch(t, "GET", url+"/debug/account")
	var as []collector.Account
	if err := json.Unmarshal([]byte(text), &as); err != nil || len(as) != 1 || h.Get("Content-Type") != "application/json" {
		t.Fatalf("account %s: %v", text, err)
	}
	if a := as[0]; a.Producer.Begun == 0 || a.Reader.Published == 0 || a.Sidecar.Received == 0 || a.State != "live" || len(a.Unbalanced()) > 0 {
		t.Errorf("account %+v, unbalanced %v", a, a.Unbalanced())
	}

	// Nothing is written over HTTP, and what is not there is not there.
	for _, tc := range []struct {
		method, path string
		code         int
	}{
		{"GET", "/", 200}, {"HEAD", "/metrics", 200}, {"GET", "/healthz", 200}, {"GET", "/readyz", 200},
		{"POST", "/metrics", 405}, {"PUT", "/", 405}, {"DELETE", "/debug/account", 405}, {"GET", "/debug/pprof/", 404}, {"GET", "/x", 404},
	} {
		code, h, _ := fetch(t, tc.method, url+tc.path)
		if code != tc.code || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: %d, want %d; headers %v", tc.method, tc.path, code, tc.code, h)
		}
	}

	dir := regexp.MustCompile(`--dir (\S+)`).FindStringSubmatch(c.out.String())
	if len(dir) != 2 {
		t.Fatalf("no ring directory in %q", c.out.String())
	}
	if _, err := os.Stat(dir[1]); err != nil {
		t.Errorf("ring directory: %v", err)
	}
	c.stop()
	if code := c.wait(t); code != 0 || c.err.String() != "" {
		t.Errorf("exit code %d, stderr %q", code, c.err.String())
	}
	if _, err := os.Stat(dir[1]); !os.IsNotExist(err) {
		t.Errorf("ring directory is still there: %v", err)
	}
}

// The sidecar sends the traces of the rings that it finds, and says nothing is
// left when all arrived.
func TestSidecarSends(t *testing.T) {
	base := t.TempDir()
	rec := filepath.Join(base, "a.ltrec")
	if err := makeRecording(rec, synth.Options{Duration: 50 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if err := makeRings(rec, filepath.Join(base, "rings"), filepath.Join(base, "dead.ring"), filepath.Join(base, "ended.ring")); err != nil {
		t.Fatal(err)
	}
	r, url := serveReceiver(t)
	t.Setenv("OTEL_METRICS_EXPORTER", "none")
	c := start(t, "sidecar", "--listen", "127.0.0.1:0", "--dir", filepath.Join(base, "rings"), "--otlp-endpoint", url, "--every", "10", "--budget", "0")
	at := urlIn(t, &c.err)
	eventually(t, "exported spans", func() bool {
		_, _, text := fetch(t, "GET", at+"/metrics")
		return regexp.MustCompile(`(?m)^lanetrace_sidecar_spans_exported_total\{[^}]*\} [1-9]`).MatchString(text)
	})
	c.stop()
	if code := c.wait(t); code != 0 || strings.Contains(c.err.String(), "warning") {
		t.Errorf("exit code %d, stderr %q", code, c.err.String())
	}
	if !strings.Contains(c.err.String(), "OTLP is traces to "+url) {
		t.Errorf("stderr %q", c.err.String())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// Steps 10 to 80 and the armed 64.
	if len(r.traces) != 9 {
		t.Errorf("%d traces, want 9", len(r.traces))
	}
}

// The default directory need not be there yet: it is waited for, and that is said
// once.
func TestAwaitDir(t *testing.T) {
	var out output
	a := &app{ctx: t.Context(), stderr: &out, log: newLogger(&out)}
	d := spanring.Dir{Path: filepath.Join(t.TempDir(), "rings"), Group: -1}
	done := make(chan error, 1)
	go func() { done <- a.awaitDir(t.Context(), d) }()
	eventually(t, "message", func() bool { return out.String() != "" })
	select {
	case err := <-done:
		t.Fatalf("did not wait: %v", err)
	default:
	}
	if err := d.Make(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if d := cmp.Diff("lanetrace: waiting for an engine: ring directory "+d.Path+" is not there yet\n", out.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := a.awaitDir(ctx, spanring.Dir{Path: "/nonexistent", Group: -1}); err != nil {
		t.Errorf("told to stop: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.awaitDir(t.Context(), spanring.Dir{Path: file, Group: -1}); err == nil {
		t.Error("a file is no ring directory, and no error")
	}
}

func TestTooSmall(t *testing.T) {
	if why := tooSmall("/nonexistent", 1); why != "is missing" {
		t.Errorf("missing: %q", why)
	}
	if why := tooSmall(t.TempDir(), 1<<62); !regexp.MustCompile(`^has \d+ MiB free, too little for \d+ MiB of rings$`).MatchString(why) {
		t.Errorf("too small: %q", why)
	}
	if why := tooSmall(t.TempDir(), 1); why != "" {
		t.Errorf("large enough: %q", why)
	}
}

func TestListenErrors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, tc := range []struct{ addr, text string }{
		{l.Addr().String(), "is in use; stop what listens there or give another address with --listen or LANETRACE_LISTEN"},
		{"203.0.113.1:9478", "this machine has no such address; give another with --listen"},
		{"no.such.host.invalid:1", "give another address with --listen"},
	} {
		c := start(t, "sidecar", "--listen", tc.addr, "--dir", privateDir(t))
		if code := c.wait(t); code != 1 || !strings.Contains(c.err.String(), "cannot listen on "+tc.addr) || !strings.HasSuffix(c.err.String(), tc.text+"\n") || strings.Count(c.err.String(), "\n") != 1 {
			t.Errorf("%s: exit code %d, stderr %q", tc.addr, code, c.err.String())
		}
	}
}

// privateDir is an empty ring directory.
func privateDir(t *testing.T) string {
	t.Helper()
	d := spanring.Dir{Path: filepath.Join(t.TempDir(), "rings"), Group: -1}
	if err := d.Make(); err != nil {
		t.Fatal(err)
	}
	return d.Path
}

func TestLogger(t *testing.T) {
	var out output
	l := newLogger(&out)
	l.progress("recording: 1")
	l.slog(false).With("engine", "a b").Info("engine attached", "pid", 7)
	l.slog(true).Info("not said")
	l.slog(true).Warn("two\nlines", "error", io.EOF)
	want := "recording: 1\r" + strings.Repeat(" ", 12) + "\rlanetrace: engine attached engine=\"a b\" pid=7\nlanetrace: warning: two; lines error=EOF\n"
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestEngineMatch(t *testing.T) {
	i := spanring.Info{Service: "svc", Executable: "exe", RunID: spanring.RunID{0xab, 0xcd, 0xef}}
	for m, want := range map[engineMatch]bool{
		"": true, "svc": true, "exe": true, "abcd": true, "ABCDef": true, "svc-gpu1": false, "abc": false, "x": false, "cdef": false,
	} {
		if got := m.picks(i); got != want {
			t.Errorf("%q picks %v, want %v", m, got, want)
		}
	}
}

// A connection over which nothing was asked, as browsers and load balancers make them,
// neither holds up a sidecar's end nor makes a failure of it.
func TestEndWithAnIdleConnection(t *testing.T) {
	c := start(t, "sidecar", "--dir", t.TempDir(), "--listen", "127.0.0.1:0")
	conn, err := net.Dial("tcp", strings.TrimPrefix(urlIn(t, &c.err), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fetch(t, "GET", urlIn(t, &c.err)+"/healthz") // so that the other one was accepted
	c.stop()
	if code := c.wait(t); code != 0 {
		t.Errorf("exit code %d, stderr %s", code, c.err.String())
	}
}
