package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/units"
)

// The JSON in the folder is what the code makes, and there is no other.
func TestJSONIsCurrent(t *testing.T) {
	want := make(map[string]bool)
	for _, b := range boards() {
		want[b.file()] = true
		text, err := b.json()
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(b.file())
		if err != nil {
			t.Fatalf("%v: run go generate", err)
		}
		if !bytes.Equal(got, text) {
			t.Errorf("%s is not what the code makes: run go generate", b.file())
		}
	}
	files, err := filepath.Glob("*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !want[f] {
			t.Errorf("%s is of no board", f)
		}
	}
}

// strict decodes with the SDK's own strictness: a field that it does not know is an
// error. Without errors it returns a typed nil.
func strict(text []byte) error {
	plugins.RegisterDefaultPlugins()
	var d dashboard.Dashboard
	err := d.UnmarshalJSONStrict(text)
	var be cog.BuildErrors
	if errors.As(err, &be) && len(be) == 0 {
		err = nil
	}
	return errors.Join(err, func() error {
		err := d.Validate()
		if errors.As(err, &be) && len(be) == 0 {
			return nil
		}
		return err
	}())
}

// files are the boards as they stand in the folder.
func files(t *testing.T) map[string][]byte {
	t.Helper()
	out := make(map[string][]byte)
	for _, b := range boards() {
		text, err := os.ReadFile(b.file())
		if err != nil {
			t.Fatal(err)
		}
		out[b.file()] = text
	}
	return out
}

func TestStrictDecoding(t *testing.T) {
	for name, text := range files(t) {
		if err := strict(text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// It can fail.
	text := bytes.Replace(files(t)["steps.json"], []byte(`"legendFormat"`), []byte(`"legendFromat"`), 1)
	if err := strict(text); err == nil {
		t.Error("a misspelt field passes")
	}
}

// boardFile is what the checks below look at.
type boardFile struct {
	UID, Title, Description string
	SchemaVersion           int
	Panels                  []panelFile
	Templating              struct {
		List []struct {
			Name, Type, Label string
			Query             any
		}
	}
}

type panelFile struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ H, W, X, Y int }
	Datasource               struct{ Type, UID string }
	Targets                  []struct {
		RefID, Expr, LegendFormat, Format string
		Range, Instant                    bool
		Datasource                        struct{ Type, UID string }
	}
	FieldConfig struct{ Defaults struct{ Unit string } }
	Options     json.RawMessage
}

// panelTypes are the panels used, and which form of an answer each can draw.
var panelTypes = map[string][]string{
	"timeseries": {"time_series"}, "stat": {"time_series"}, "bargauge": {"time_series"}, "table": {"table"}, "heatmap": {"heatmap"},
}

// unitsUsed are the units that panels may have: the SDK checks none.
var unitsUsed = []string{
	units.Short, units.NoUnit, units.Seconds, units.BytesIEC, units.BytesPerSecondIEC, units.OpsPerSecond, units.PercentUnit,
	units.Watt, units.Hertz, units.Celsius, units.Joule,
}

// window is a range in a query.
var window = regexp.MustCompile(`\[([^\]]*)\]`)

// check finds what strict decoding misses.
func check(text []byte) (bad []string) {
	var b boardFile
	if err := json.Unmarshal(text, &b); err != nil {
		return []string{err.Error()}
	}
	say := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
	if b.UID == "" || b.Title == "" || b.Description == "" || b.SchemaVersion < 36 || len(b.Panels) == 0 {
		say("uid %q, title %q, schema %d, %d panels", b.UID, b.Title, b.SchemaVersion, len(b.Panels))
	}
	var vars []string
	for _, v := range b.Templating.List {
		vars = append(vars, v.Name)
		if v.Label == "" {
			say("variable %s has no label", v.Name)
		}
	}
	if !slices.Equal(vars[:min(5, len(vars))], []string{"datasource", "job", "instance", "gpu", "engine"}) {
		say("variables are %v", vars)
	}
	ids, titles, taken := map[int]bool{}, map[string]bool{}, map[[2]int]string{}
	for _, p := range b.Panels {
		if ids[p.ID] {
			say("%s: id %d is there twice", p.Title, p.ID)
		}
		ids[p.ID] = true
		g := p.GridPos
		if g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > 24 {
			say("%s lies outside of the grid: %+v", p.Title, g)
			continue
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if o, ok := taken[[2]int{x, y}]; ok {
					say("%s lies on %s", p.Title, o)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if titles[p.Title] || p.Title == "" {
			say("title %q is there twice, or empty", p.Title)
		}
		titles[p.Title] = true
		if p.Description == "" || !strings.HasSuffix(p.Description, ".") && !strings.HasSuffix(p.Description, ").") {
			say("%s: description %q", p.Title, p.Description)
		}
		if !slices.Contains(unitsUsed, p.FieldConfig.Defaults.Unit) {
			say("%s: unit %q", p.Title, p.FieldConfig.Defaults.Unit)
		}
		formats, ok := panelTypes[p.Type]
		if !ok {
			say("%s: panel type %q", p.Title, p.Type)
		}
		if p.Datasource.Type != "prometheus" || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			say("%s: %d queries of %+v", p.Title, len(p.Targets), p.Datasource)
		}
		refs := map[string]bool{}
		for _, q := range p.Targets {
			if refs[q.RefID] || q.RefID == "" || q.Expr == "" || q.LegendFormat == "" || q.Datasource != p.Datasource || q.Range == q.Instant {
				say("%s: query %+v", p.Title, q)
			}
			refs[q.RefID] = true
			if !slices.Contains(formats, q.Format) {
				say("%s: a %s panel does not draw %s", p.Title, p.Type, q.Format)
			}
			for _, w := range window.FindAllStringSubmatch(q.Expr, -1) {
				if w[1] != "$__rate_interval" {
					say("%s: a range of %s", p.Title, w[1])
				}
			}
			for _, v := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(q.Expr, -1) {
				if v[1] != "__rate_interval" && !slices.Contains(vars, v[1]) {
					say("%s: no variable %s", p.Title, v[1])
				}
			}
		}
	}
	return bad
}

func TestChecks(t *testing.T) {
	all := files(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, s := range check(all[name]) {
			t.Errorf("%s: %s", name, s)
		}
	}
	for _, c := range []struct{ was, is, want string }{
		{`"type": "timeseries"`, `"type": "timeserie"`, "panel type"},
		{`"unit": "s"`, `"unit": "sec"`, "unit"},
		{`"format": "time_series"`, `"format": "timeseries"`, "does not draw"},
		{`"w": 12`, `"w": 25`, "outside of the grid"},
		{`"x": 12`, `"x": 6`, "lies on"},
		{`[$__rate_interval]`, `[5m]`, "a range of 5m"},
		{`engine=~\"$engine\"`, `engine=~\"$engin\"`, "no variable engin"},
		{`"refId": "B"`, `"refId": "A"`, "query"},
	} {
		text := strings.Replace(string(all["steps.json"]), c.was, c.is, 1)
		if bad := strings.Join(check([]byte(text)), "\n"); !strings.Contains(bad, c.want) {
			t.Errorf("%s for %s: found only %q", c.is, c.was, bad)
		}
	}
}
