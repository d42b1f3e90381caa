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
	FieldConfig     json.RawMessage
	Options         json.RawMessage
	Transformations []struct {
		ID      string
		Options map[string]map[string]bool
	}
}

// panelTypes are the panels used, and which form of an answer each can draw.
var panelTypes = map[string][]string{
	"timeseries": {"time_series"}, "stat": {"time_series"}, "bargauge": {"time_series"}, "table": {"table"}, "heatmap": {"heatmap"},
}

// unitsUsed are the units that panels may have: the SDK checks none.
var unitsUsed = []string{
	units.Short, units.NoUnit, units.Seconds, units.BytesIEC, units.BytesPerSecondIEC, units.PercentUnit,
	units.Watt, units.Hertz, units.Celsius, units.Joule, units.ScientificNotation,
}

// perSecondUnit is a unit of our own, of which Grafana takes any.
var perSecondUnit = regexp.MustCompile(`^count:[a-z]*/s$`)

// words are what the words of panels may be, by the last two names of where they
// stand; the SDK takes any. A place that is not here is one that nobody looked at.
var words = map[string][]string{
	"tooltip.mode": {"single", "multi", "none"}, "tooltip.sort": {"asc", "desc", "none"},
	"legend.displayMode": {"list", "table", "hidden"}, "legend.placement": {"bottom", "right"},
	"stacking.mode": {"none", "normal", "percent"}, "thresholds.mode": {"absolute", "percentage"}, "custom.showPoints": {"auto", "never", "always"},
	"custom.align": {"auto", "left", "right", "center"}, "options.cellHeight": {"sm", "md", "lg", "auto"},
	"options.orientation": {"auto", "horizontal", "vertical"}, "options.colorMode": {"value", "background", "background_solid", "none"},
	"options.graphMode": {"none", "line", "area"}, "options.textMode": {"auto", "value", "value_and_name", "name", "none"},
	"options.justifyMode": {"auto", "center"}, "options.displayMode": {"basic", "lcd", "gradient"}, "options.valueMode": {"color", "text", "hidden"},
	"options.namePlacement": {"auto", "top", "left", "hidden"}, "options.sizing": {"auto", "manual"}, "options.showValue": {"auto", "never", "always"},
	"options.percentChangeColorMode": {"standard", "inverted", "same_as_value"}, "options.selectionMode": {"x", "y", "xy"},
	"color.mode": {"scheme", "opacity"}, "color.scale": {"linear", "exponential"}, "color.scheme": {"Oranges"}, "color.fill": {"dark-orange"},
	"exemplars.color": {"rgba(255,0,255,0.7)"}, "steps.color": {"green", "red"}, "reduceOptions.calcs": {"lastNotNull"}, "footer.reducer": {"sum"},
	"defaults.unit": unitsUsed, "yAxis.unit": unitsUsed,
}

// wrongWords are the words below v that are none of those.
func wrongWords(v any, path ...string) (bad []string) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			bad = append(bad, wrongWords(x, append(slices.Clone(path), k)...)...)
		}
	case []any:
		for _, x := range v {
			bad = append(bad, wrongWords(x, path...)...)
		}
	case string:
		at := strings.Join(path[max(0, len(path)-2):], ".")
		if own := at == "defaults.unit" && perSecondUnit.MatchString(v) || at == "defaults.noValue"; !own && !slices.Contains(words[at], v) {
			bad = append(bad, fmt.Sprintf("%s is %q", at, v))
		}
	}
	return bad
}

// holeAbove is the first line above y that panels leave a place free in, -1 for none.
func holeAbove(taken map[[2]int]string, y int) int {
	for line := range y {
		for x := range 24 {
			if _, ok := taken[[2]int{x, line}]; !ok {
				return line
			}
		}
	}
	return -1
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
		var unit struct{ Defaults struct{ Unit string } }
		if err := json.Unmarshal(p.FieldConfig, &unit); err != nil || unit.Defaults.Unit == "" {
			say("%s: no unit: %v", p.Title, err)
		}
		for at, raw := range map[string]json.RawMessage{"options": p.Options, "fieldConfig": p.FieldConfig} {
			var v any
			if err := json.Unmarshal(raw, &v); err != nil {
				say("%s: %v", p.Title, err)
			}
			for _, s := range wrongWords(v, at) {
				say("%s: %s", p.Title, s)
			}
		}
		for _, f := range p.Transformations {
			if p.Type != "table" || f.ID != "organize" || len(f.Options) != 1 || !f.Options["excludeByName"]["Time"] {
				say("%s: transformation %+v", p.Title, f)
			}
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
	bottom := 0
	for at := range taken {
		bottom = max(bottom, at[1]+1)
	}
	if y := holeAbove(taken, bottom); y >= 0 {
		say("line %d is not filled", y)
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
		{`"unit": "s"`, `"unit": "sec"`, `defaults.unit is "sec"`},
		{`"unit": "count:steps/s"`, `"unit": "count:steps"`, `defaults.unit is "count:steps"`},
		{`"mode": "multi"`, `"mode": "all"`, `tooltip.mode is "all"`},
		{`"mode": "normal"`, `"mode": ""`, `stacking.mode is ""`},
		{`"placement": "bottom"`, `"placement": "below"`, `legend.placement is "below"`},
		{`"format": "time_series"`, `"format": "timeseries"`, "does not draw"},
		{`"w": 12`, `"w": 25`, "outside of the grid"},
		{`"x": 12`, `"x": 6`, "lies on"},
		{`"w": 24,`, `"w": 23,`, "is not filled"},
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
