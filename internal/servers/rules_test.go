//go:build servers

package servers_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/internal/servers"
)

// ruleFiles are Prometheus's rules that the project ships, and the files that test
// them.
func ruleFiles(t *testing.T) (rules, tests []string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(servers.Root(t), "dashboards", "prometheus", "*.yml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if strings.Contains(filepath.Base(f), "test") {
			tests = append(tests, f)
		} else {
			rules = append(rules, f)
		}
	}
	if len(rules) == 0 {
		t.Fatal("no rules in dashboards/prometheus")
	}
	return rules, tests
}

// The rules are valid, and pass their own tests.
func TestRules(t *testing.T) {
	rules, tests := ruleFiles(t)
	for _, f := range rules {
		t.Run(filepath.Base(f), func(t *testing.T) {
			if out, err := servers.Promtool(t, "", "check", "rules", "--lint=all", "--lint-fatal", f); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	for _, f := range tests {
		t.Run(filepath.Base(f), func(t *testing.T) {
			if out, err := servers.Promtool(t, "", "test", "rules", f); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// Every recording rule has a value over the demo, and no rule fails.
func TestRulesOverDemo(t *testing.T) {
	rules, _ := ruleFiles(t)
	demo := built.Demo(t, nil)
	m := servers.StartPrometheus(t, servers.PrometheusOptions{Targets: []string{demo.URL}, Rules: rules})
	m.AwaitTargets(1)
	var rs []servers.Rule
	servers.Poll(t, "all rules evaluated", func() error {
		var err error
		if rs, err = m.Rules(t.Context()); err != nil {
			return err
		}
		for _, r := range rs {
			if r.Health == "err" {
				t.Fatalf("rule %s fails: %s", r.Name, r.LastError)
			}
			if r.Health != "ok" {
				return fmt.Errorf("rule %s is %s", r.Name, r.Health)
			}
		}
		return nil
	})
	if len(rs) == 0 {
		t.Fatal("no rules are loaded")
	}
	for _, r := range rs {
		if r.Type != "recording" {
			continue
		}
		servers.Poll(t, "a value of "+r.Name, func() error {
			ss, err := m.Query(t.Context(), r.Name, time.Time{})
			if err == nil && len(ss) == 0 {
				err = fmt.Errorf("no series: %s", r.Query)
			}
			return err
		})
	}
}
