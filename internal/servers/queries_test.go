package servers

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
)

func TestSelectors(t *testing.T) {
	got := Selectors(`sum by (engine, lanetrace_x) (rate(lanetrace_steps_total{job=~"$job",armed!="true"}[5m])) / on (engine) engine:lanetrace_y:rate5m > 0 and go_goroutine_count`)
	want := []Selector{
		{"lanetrace_steps_total", []Matcher{{"job", "=~", "$job"}, {"armed", "!=", "true"}}},
		{"engine:lanetrace_y:rate5m", nil},
		{"go_goroutine_count", nil},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	s := Selector{"n", []Matcher{{"a", "=~", "x|y"}, {"b", "!=", ""}}}
	for _, c := range []struct {
		name   string
		labels map[string]string
		want   bool
	}{
		{"n", map[string]string{"a": "x", "b": "1"}, true},
		{"n", map[string]string{"a": "xy", "b": "1"}, false},
		{"n", map[string]string{"a": "x"}, false},
		{"m", map[string]string{"a": "x", "b": "1"}, false},
	} {
		if got, err := s.Matches(c.name, c.labels); got != c.want || err != nil {
			t.Errorf("%s%v: %v, %v", c.name, c.labels, got, err)
		}
	}
	if got := Interpolate(`rate(x{a=~"$a"}[$__rate_interval])`, "1m"); got != `rate(x{a=~".*"}[1m])` {
		t.Error(got)
	}
}

// suffixes are what Prometheus sees of a histogram.
var suffixes = []string{"_bucket", "_sum", "_count"}

// scraped are labels that a scrape adds.
var scraped = []string{"job", "instance"}

// shipped are all queries that the project ships, by where they stand.
func shipped(t *testing.T) map[string][]string {
	qs := make(map[string][]string)
	panels, variables := Boards(t)
	for i := range panels {
		qs[panels[i].Where()] = panels[i].Exprs
	}
	qs["variables"] = variables
	for _, r := range ShippedRules(t) {
		qs["rule "+r.Name()] = []string{r.Expr}
	}
	return qs
}

// Every selector of every panel and rule names a metric that there is, labels that it
// has, and values that they can take.
func TestQueriesAndMetricsAgree(t *testing.T) {
	metrics := make(map[string]collector.Metric)
	for _, m := range collector.Metrics() {
		if m.Type != collector.TypeHistogram {
			metrics[m.PrometheusName()] = m
			continue
		}
		for _, s := range suffixes {
			metrics[m.PrometheusName()+s] = m
		}
	}
	recorded := make(map[string]bool)
	for _, r := range ShippedRules(t) {
		if r.Record != "" {
			recorded[r.Record] = true
		}
	}
	used := make(map[string]bool)
	for where, exprs := range shipped(t) {
		for _, e := range exprs {
			ss := Selectors(e)
			if len(ss) == 0 {
				t.Errorf("%s: no series in %s", where, e)
			}
			for _, s := range ss {
				if recorded[s.Metric] {
					continue
				}
				m, ok := metrics[s.Metric]
				if !ok {
					t.Errorf("%s: there is no metric %s", where, s.Metric)
					continue
				}
				used[m.Name] = true
				for _, l := range s.Matchers {
					// Dots in names of labels are underscores in Prometheus.
					i := slices.IndexFunc(m.Labels, func(n string) bool { return strings.ReplaceAll(n, ".", "_") == l.Label })
					if i < 0 {
						if !slices.Contains(scraped, l.Label) && (l.Label != "le" || m.Type != collector.TypeHistogram) {
							t.Errorf("%s: %s has no label %s", where, s.Metric, l.Label)
						}
						continue
					}
					values := m.LabelValues(m.Labels[i])
					if len(values) == 0 || strings.HasPrefix(l.Value, "$") {
						continue
					}
					for _, v := range strings.Split(l.Value, "|") {
						if !slices.Contains(values, v) {
							t.Errorf("%s: %s of %s is never %s", where, l.Label, s.Metric, v)
						}
					}
				}
			}
		}
	}
	doc, err := os.ReadFile(filepath.Join(Root(t), "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	unused := 0
	for _, m := range collector.Metrics() {
		if used[m.Name] {
			continue
		}
		unused++
		if !strings.Contains(string(doc), "`"+m.PrometheusName()+"`") {
			t.Errorf("%s is on no panel, in no rule and not in docs/metrics.md", m.Name)
		}
	}
	// Boards would be of little use if most were only in the documentation.
	if unused > len(collector.Metrics())/10 {
		t.Errorf("%d of %d metrics are on no panel and in no rule", unused, len(collector.Metrics()))
	}
}

// Every alert says how bad it is, what it is, and has a page that says what to do;
// and every page has an alert.
func TestAlertsHaveRunbooks(t *testing.T) {
	const base = "https://github.com/lanetrace/lanetrace/blob/main/docs/runbooks/"
	dir := filepath.Join(Root(t), "docs", "runbooks")
	pages, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	left := make(map[string]bool)
	for _, p := range pages {
		left[filepath.Base(p)] = true
	}
	tests, err := os.ReadFile(filepath.Join(Root(t), "dashboards", "prometheus", "alerts_test.yml"))
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)#]+\.md)\)`)
	metric := regexp.MustCompile(`\b(?:lanetrace|process|go|hw)_[a-z0-9_]+`)
	names := make(map[string]bool)
	for _, m := range collector.Metrics() {
		names[m.PrometheusName()] = true
	}
	seen := make(map[string]bool)
	for _, r := range ShippedRules(t) {
		if r.Alert == "" {
			continue
		}
		if seen[r.Alert] || !regexp.MustCompile(`^Lanetrace[A-Z][A-Za-z]+$`).MatchString(r.Alert) {
			t.Errorf("alert %s: its name, or it is there twice", r.Alert)
		}
		seen[r.Alert] = true
		if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) || r.For == "" ||
			r.Annotations["summary"] == "" || r.Annotations["description"] == "" || r.Annotations["runbook_url"] != base+r.Alert+".md" {
			t.Errorf("alert %s: severity, for, summary, description or runbook_url: %+v", r.Alert, r)
		}
		if n := strings.Count(string(tests), "alertname: "+r.Alert+"\n"); n < 2 {
			t.Errorf("alert %s: %d cases in alerts_test.yml, want one that fires and one that must not", r.Alert, n)
		}
		text, err := os.ReadFile(filepath.Join(dir, r.Alert+".md"))
		if err != nil {
			t.Error(err)
			continue
		}
		delete(left, r.Alert+".md")
		page := string(text)
		for _, want := range []string{"# " + r.Alert + "\n", "**What it means.**", "**What to look at.**", "**What to do.**"} {
			if !strings.Contains(page, want) {
				t.Errorf("runbook of %s: no %q", r.Alert, want)
			}
		}
		for _, m := range link.FindAllStringSubmatch(page, -1) {
			if _, err := os.Stat(filepath.Join(dir, m[1])); err != nil {
				t.Errorf("runbook of %s: %v", r.Alert, err)
			}
		}
		for _, n := range metric.FindAllString(page, -1) {
			if !names[n] {
				t.Errorf("runbook of %s: there is no metric %s", r.Alert, n)
			}
		}
	}
	for p := range left {
		t.Errorf("runbook %s is of no alert", p)
	}
}
