package servers

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// PrometheusOptions configure a Prometheus.
type PrometheusOptions struct {
	// Targets are scraped every 500 ms: HOST:PORT, or an http URL of which that part
	// is taken.
	Targets []string
	// Rules are rule files. They are read as they are, but for the intervals of their
	// groups: all are evaluated every 500 ms.
	Rules []string
	// NativeHistograms asks for protobuf and keeps native histograms. Default: text,
	// and classic ones.
	NativeHistograms bool
}

// Prometheus is a Prometheus with exemplar storage and an OTLP receiver. What it
// receives has the labels job and instance, of service.name and
// service.instance.id; other resource attributes are in target_info.
type Prometheus struct {
	*server
	URL string // of its API
	// OTLPHTTP is what /v1/metrics is added to.
	OTLPHTTP string
}

// StartPrometheus starts a Prometheus and waits until it is ready, not until it has
// scraped: see [Prometheus.AwaitTargets].
func StartPrometheus(tb testing.TB, o PrometheusOptions) *Prometheus {
	tb.Helper()
	m := &Prometheus{}
	m.server = start(tb, plan{name: "prometheus", ports: 1, make: func(dir string, p []int) ([]string, string, error) {
		m.URL = "http://" + local(p[0])
		m.OTLPHTTP = m.URL + "/api/v1/otlp"
		rules, err := hurriedRules(dir, o.Rules)
		if err != nil {
			return nil, "", err
		}
		conf, err := write(dir, "prometheus.yml", o.config(rules))
		return []string{
			"--config.file=" + conf, "--storage.tsdb.path=" + filepath.Join(dir, "data"),
			"--web.listen-address=" + local(p[0]), "--web.enable-otlp-receiver",
			"--enable-feature=exemplar-storage", "--log.level=warn",
		}, m.URL + "/-/ready", err
	}})
	return m
}

// quoted is a list of YAML strings.
func quoted(ss []string) string {
	q := make([]string, len(ss))
	for i, s := range ss {
		q[i] = strconv.Quote(s)
	}
	return "[" + strings.Join(q, ", ") + "]"
}

// ruleInterval is the interval of a rule group, with what stands before it.
var ruleInterval = regexp.MustCompile(`(?m)^(\s*(?:- )?interval:).*$`)

// hurriedRules copies rule files to dir, with intervals that suit a test.
func hurriedRules(dir string, rules []string) (copies []string, err error) {
	for i, name := range rules {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		c, err := write(dir, fmt.Sprintf("rules-%d.yml", i), ruleInterval.ReplaceAllString(string(b), "$1 500ms"))
		if err != nil {
			return nil, err
		}
		copies = append(copies, c)
	}
	return copies, nil
}

func (o PrometheusOptions) config(rules []string) string {
	targets := make([]string, len(o.Targets))
	for i, t := range o.Targets {
		if u, err := url.Parse(t); err == nil && u.Host != "" {
			t = u.Host
		}
		targets[i] = t
	}
	return fmt.Sprintf(`
global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}
rule_files: %s
scrape_configs:
  - job_name: lanetrace
    scrape_native_histograms: %v
    static_configs: [{targets: %s}]
storage:
  tsdb: {out_of_order_time_window: 30m}
  exemplars: {max_exemplars: 100000}
`, quoted(rules), o.NativeHistograms, quoted(targets))
}

// Sample is one series at one time. Of a native histogram Value is its count.
type Sample struct {
	Labels map[string]string
	UnixMS int64
	Value  float64
	// Histogram is set where the series is a native histogram.
	Histogram *PromHistogram
}

// PromHistogram is a native histogram as the API gives it.
type PromHistogram struct {
	Count, Sum float64
	Buckets    []PromBucket
}

// PromBucket is a bucket of a native histogram that is not empty.
type PromBucket struct{ From, To, Count float64 }

// Label is the value of a label, "" where there is none.
func (s *Sample) Label(name string) string { return s.Labels[name] }

// get asks the API and decodes data.
func (m *Prometheus) get(ctx context.Context, path string, v any) error {
	var a struct {
		Status string          `json:"status"`
		Data   json.RawMessage `json:"data"`
	}
	if err := GetJSON(ctx, m.URL+"/api/v1/"+path, &a); err != nil {
		return err
	}
	if a.Status != "success" {
		return fmt.Errorf("prometheus answers %s: status %s", path, a.Status)
	}
	if err := json.Unmarshal(a.Data, v); err != nil {
		return fmt.Errorf("decode prometheus's answer to %s: %w", path, err)
	}
	return nil
}

// Query evaluates an instant query, at the time of the zero value now. The result
// is a vector or a scalar's one sample; a matrix gives every sample.
func (m *Prometheus) Query(ctx context.Context, query string, at time.Time) ([]Sample, error) {
	v := url.Values{"query": {query}}
	if !at.IsZero() {
		v.Set("time", strconv.FormatFloat(float64(at.UnixMilli())/1e3, 'f', 3, 64))
	}
	var d struct {
		Type   string          `json:"resultType"`
		Result json.RawMessage `json:"result"`
	}
	if err := m.get(ctx, "query?"+v.Encode(), &d); err != nil {
		return nil, err
	}
	if d.Type == "scalar" {
		var p promPoint
		if err := json.Unmarshal(d.Result, &p); err != nil {
			return nil, fmt.Errorf("query %s: %w", query, err)
		}
		return []Sample{Sample(p)}, nil
	}
	var rows []struct {
		Metric     map[string]string `json:"metric"`
		Value      *promPoint        `json:"value"`
		Histogram  *promPoint        `json:"histogram"`
		Values     []promPoint       `json:"values"`
		Histograms []promPoint       `json:"histograms"`
	}
	if err := json.Unmarshal(d.Result, &rows); err != nil {
		return nil, fmt.Errorf("query %s: %w", query, err)
	}
	var out []Sample
	for _, r := range rows {
		points := append(r.Values, r.Histograms...)
		for _, p := range []*promPoint{r.Value, r.Histogram} {
			if p != nil {
				points = append(points, *p)
			}
		}
		for _, p := range points {
			p.Labels = r.Metric
			out = append(out, Sample(p))
		}
	}
	return out, nil
}

// Value evaluates a query that must give exactly one sample.
func (m *Prometheus) Value(ctx context.Context, query string) (float64, error) {
	ss, err := m.Query(ctx, query, time.Time{})
	if err != nil {
		return 0, err
	}
	if len(ss) != 1 {
		return 0, fmt.Errorf("query %s: %d series, want 1", query, len(ss))
	}
	return ss[0].Value, nil
}

// promPoint is [time, "value"] or [time, {histogram}].
type promPoint Sample

// UnmarshalJSON implements json.Unmarshaler.
func (p *promPoint) UnmarshalJSON(b []byte) error {
	var raw [2]json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	var at float64
	if err := json.Unmarshal(raw[0], &at); err != nil {
		return err
	}
	p.UnixMS = int64(at*1e3 + 0.5)
	var text string
	if json.Unmarshal(raw[1], &text) == nil {
		var err error
		p.Value, err = strconv.ParseFloat(text, 64)
		return err
	}
	var h struct {
		Count   string   `json:"count"`
		Sum     string   `json:"sum"`
		Buckets [][4]any `json:"buckets"`
	}
	if err := json.Unmarshal(raw[1], &h); err != nil {
		return err
	}
	ph := &PromHistogram{}
	number := func(to *float64, v any) error {
		f, err := strconv.ParseFloat(fmt.Sprint(v), 64)
		*to = f
		return err
	}
	if err := number(&ph.Count, h.Count); err != nil {
		return err
	}
	if err := number(&ph.Sum, h.Sum); err != nil {
		return err
	}
	for _, b := range h.Buckets {
		var pb PromBucket
		for i, to := range []*float64{&pb.From, &pb.To, &pb.Count} {
			if err := number(to, b[i+1]); err != nil {
				return err
			}
		}
		ph.Buckets = append(ph.Buckets, pb)
	}
	p.Histogram, p.Value = ph, ph.Count
	return nil
}

// Exemplar is one exemplar that Prometheus stored.
type Exemplar struct {
	Series map[string]string // labels of its series
	Labels map[string]string // its own, such as trace_id
	Value  float64
	UnixMS int64
}

// Exemplars returns the exemplars of the series that a selector names, of the
// last hour.
func (m *Prometheus) Exemplars(ctx context.Context, selector string) ([]Exemplar, error) {
	now := time.Now()
	v := url.Values{
		"query": {selector},
		"start": {strconv.FormatInt(now.Add(-time.Hour).Unix(), 10)},
		"end":   {strconv.FormatInt(now.Add(time.Minute).Unix(), 10)},
	}
	var rows []struct {
		Series    map[string]string `json:"seriesLabels"`
		Exemplars []struct {
			Labels map[string]string `json:"labels"`
			Value  string            `json:"value"`
			Time   float64           `json:"timestamp"`
		} `json:"exemplars"`
	}
	if err := m.get(ctx, "query_exemplars?"+v.Encode(), &rows); err != nil {
		return nil, err
	}
	var out []Exemplar
	for _, r := range rows {
		for _, e := range r.Exemplars {
			value, err := strconv.ParseFloat(e.Value, 64)
			if err != nil {
				return nil, fmt.Errorf("exemplar of %v: %w", r.Series, err)
			}
			out = append(out, Exemplar{Series: r.Series, Labels: e.Labels, Value: value, UnixMS: int64(e.Time*1e3 + 0.5)})
		}
	}
	return out, nil
}

// Target is a scrape target.
type Target struct {
	URL       string `json:"scrapeUrl"`
	Health    string `json:"health"` // up, down or unknown
	LastError string `json:"lastError"`
}

// Targets are the active scrape targets.
func (m *Prometheus) Targets(ctx context.Context) ([]Target, error) {
	var d struct {
		Active []Target `json:"activeTargets"`
	}
	return d.Active, m.get(ctx, "targets?state=active", &d)
}

// AwaitTargets waits until each of n targets has been scraped without error.
func (m *Prometheus) AwaitTargets(n int) {
	m.tb.Helper()
	up := make(map[string]bool) // a busy machine answers some scrape too late
	Poll(m.tb, "prometheus's targets up", func() error {
		ts, err := m.Targets(m.tb.Context())
		if err != nil {
			return err
		}
		for _, t := range ts {
			up[t.URL] = up[t.URL] || t.Health == "up"
			if !up[t.URL] && t.LastError != "" {
				err = fmt.Errorf("%s: %s", t.URL, t.LastError)
			}
		}
		if len(up) < n && err == nil {
			err = fmt.Errorf("%d of %d targets", len(up), n)
		}
		for u, is := range up {
			if !is && err == nil {
				err = fmt.Errorf("%s is not up", u)
			}
		}
		return err
	})
}

// Promtool runs promtool with stdin as its standard input, and returns its whole
// output. An exit code other than 0 is an error that holds it.
func Promtool(tb testing.TB, stdin string, args ...string) (string, error) {
	tb.Helper()
	cmd := exec.CommandContext(tb.Context(), filepath.Join(Root(tb), "tools", "servers"), append([]string{"start", "promtool"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("promtool %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), err
}

// Rule is a rule that Prometheus evaluates.
type Rule struct {
	Type      string `json:"type"` // recording or alerting
	Name      string `json:"name"`
	Query     string `json:"query"`
	Health    string `json:"health"` // ok, err or unknown
	LastError string `json:"lastError"`
	State     string `json:"state"` // of an alerting rule: inactive, pending or firing
	// LastEvaluation is when it was evaluated last. What it was evaluated of may be a
	// group's interval older.
	LastEvaluation time.Time `json:"lastEvaluation"`
	Alerts         []struct {
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
		State       string            `json:"state"`
	} `json:"alerts"`
}

// Rules are the rules of all files, in their order.
func (m *Prometheus) Rules(ctx context.Context) ([]Rule, error) {
	var d struct {
		Groups []struct {
			Rules []Rule `json:"rules"`
		} `json:"groups"`
	}
	if err := m.get(ctx, "rules", &d); err != nil {
		return nil, err
	}
	var out []Rule
	for _, g := range d.Groups {
		out = append(out, g.Rules...)
	}
	return out, nil
}

// Names are the names of all metrics that Prometheus has, in order.
func (m *Prometheus) Names(ctx context.Context) ([]string, error) {
	var names []string
	return names, m.get(ctx, "label/__name__/values", &names)
}
