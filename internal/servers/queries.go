package servers

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v2"
)

// ShippedRule is a rule of dashboards/prometheus.
type ShippedRule struct {
	File        string            `yaml:"-"`
	Record      string            `yaml:"record"`
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// Name is what the rule records or raises.
func (r *ShippedRule) Name() string { return r.Record + r.Alert }

// ShippedRules are all rules of dashboards/prometheus, in their order.
func ShippedRules(tb testing.TB) []ShippedRule {
	tb.Helper()
	files, err := filepath.Glob(filepath.Join(Root(tb), "dashboards", "prometheus", "*.yml"))
	if err != nil {
		tb.Fatal(err)
	}
	var out []ShippedRule
	for _, f := range files {
		if strings.Contains(filepath.Base(f), "test") {
			continue
		}
		text, err := os.ReadFile(f)
		if err != nil {
			tb.Fatal(err)
		}
		var doc struct {
			Groups []struct {
				Name     string        `yaml:"name"`
				Interval string        `yaml:"interval"`
				Rules    []ShippedRule `yaml:"rules"`
			} `yaml:"groups"`
		}
		if err := yaml.UnmarshalStrict(text, &doc); err != nil {
			tb.Fatalf("read %s: %v", f, err)
		}
		for _, g := range doc.Groups {
			for _, r := range g.Rules {
				r.File = f
				out = append(out, r)
			}
		}
	}
	if len(out) == 0 {
		tb.Fatal("no rules in dashboards/prometheus")
	}
	return out
}

// Panel is a panel of a board of dashboards/grafana.
type Panel struct {
	Board, Title, Type string
	Exprs              []string // of its queries, with the board's variables
	Exemplars          []string // those of them that ask for exemplars
}

// Where is the panel in words.
func (p *Panel) Where() string { return p.Board + ": " + p.Title }

// Boards are the panels of all boards, and the queries of their variables.
func Boards(tb testing.TB) (panels []Panel, variables []string) {
	tb.Helper()
	files, err := filepath.Glob(filepath.Join(Root(tb), "dashboards", "grafana", "*.json"))
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			tb.Fatal(err)
		}
		var doc struct {
			Panels []struct {
				Type, Title string
				Targets     []struct {
					Expr     string
					Exemplar bool
				}
			}
			Templating struct{ List []struct{ Definition string } }
		}
		if err := json.Unmarshal(text, &doc); err != nil {
			tb.Fatalf("read %s: %v", f, err)
		}
		for _, p := range doc.Panels {
			if p.Type == "row" {
				continue
			}
			q := Panel{Board: strings.TrimSuffix(filepath.Base(f), ".json"), Title: p.Title, Type: p.Type}
			for _, t := range p.Targets {
				q.Exprs = append(q.Exprs, t.Expr)
				if t.Exemplar {
					q.Exemplars = append(q.Exemplars, t.Expr)
				}
			}
			panels = append(panels, q)
		}
		for _, v := range doc.Templating.List {
			if v.Definition != "" {
				variables = append(variables, v.Definition)
			}
		}
	}
	if len(panels) == 0 {
		tb.Fatal("no boards in dashboards/grafana")
	}
	return panels, variables
}

// variable is a variable of a board in a query.
var variable = regexp.MustCompile(`\$(__rate_interval|\w+)`)

// Interpolate puts in what a board's variables stand for when all is chosen, and a
// range.
func Interpolate(expr, rateInterval string) string {
	return variable.ReplaceAllStringFunc(expr, func(v string) string {
		if v == "$__rate_interval" {
			return rateInterval
		}
		return ".*"
	})
}

// Selector is a series selector in a query.
type Selector struct {
	Metric   string
	Matchers []Matcher
}

// Matcher is one label's condition.
type Matcher struct{ Label, Op, Value string }

var (
	selector = regexp.MustCompile(`\b((?:lanetrace|process|go|hw|engine|engine_kernel|engine_graph)[_:][a-zA-Z0-9_:]*)(?:\{([^{}]*)\})?`)
	matcher  = regexp.MustCompile(`(\w+)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"`)
	grouping = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)`)
)

// Selectors are the series selectors of a query. It knows the project's own names and
// those of conventions, and no string but a matcher's value.
func Selectors(expr string) []Selector {
	expr = grouping.ReplaceAllString(expr, "")
	var out []Selector
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		s := Selector{Metric: m[1]}
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			s.Matchers = append(s.Matchers, Matcher{l[1], l[2], l[3]})
		}
		out = append(out, s)
	}
	return out
}

// Matches reports whether a series with these labels is selected.
func (s *Selector) Matches(name string, labels map[string]string) (bool, error) {
	if name != s.Metric {
		return false, nil
	}
	for _, m := range s.Matchers {
		re, err := regexp.Compile("^(?:" + m.Value + ")$")
		if err != nil {
			return false, fmt.Errorf("matcher %s%s%q: %w", m.Label, m.Op, m.Value, err)
		}
		v := labels[m.Label]
		ok := false
		switch m.Op {
		case "=":
			ok = v == m.Value
		case "!=":
			ok = v != m.Value
		case "=~":
			ok = re.MatchString(v)
		case "!~":
			ok = !re.MatchString(v)
		}
		if !ok {
			return false, nil
		}
	}
	return true, nil
}
