//go:build servers && panels

package servers_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/internal/servers"
)

// drawnPanel is what tools/panels tells of a panel.
type drawnPanel struct {
	Title, Type string
	Series      int
	Error       string
	NoData      bool
	Text        string // as it is seen
	Colors      int    // on its canvases
	Unit        string
	UnitKnown   bool
}

// drawnBoard is what it tells of a board.
type drawnBoard struct {
	Problems []string // what the browser's console says
	Panels   []drawnPanel
}

// drawnSeconds is how much of the demo is drawn.
const drawnSeconds = 45

// Grafana's own components draw every panel of every board: none throws, all know
// their units, and what Prometheus has is to be seen. LANETRACE_IMAGES names a folder
// for a picture of each board.
func TestPanelsDrawn(t *testing.T) {
	tool := filepath.Join(servers.Root(t), "tools", "panels")
	if _, err := os.Stat(filepath.Join(tool, "node_modules")); err != nil {
		t.Fatalf("%v: run npm ci in tools/panels", err)
	}
	rules, _ := ruleFiles(t)
	demo := built.Demo(t, nil)
	m := servers.StartPrometheus(t, servers.PrometheusOptions{Targets: []string{demo.URL}, Rules: rules})
	m.AwaitTargets(1)
	at := scrapedAfter(t, m, time.Now().Add(drawnSeconds*time.Second))
	args := []string{"render.mjs", "--prometheus", m.URL, "--boards", filepath.Join(servers.Root(t), "dashboards", "grafana"), "--rate", "30s",
		"--end", fmt.Sprintf("%.3f", float64(at.UnixMilli())/1e3), "--seconds", fmt.Sprint(drawnSeconds), "--step", "1"}
	if dir := os.Getenv("LANETRACE_IMAGES"); dir != "" {
		args = append(args, "--out", dir)
	}
	cmd := exec.CommandContext(t.Context(), "node", args...)
	cmd.Dir, cmd.Stderr = tool, os.Stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var boards map[string]drawnBoard
	if err := json.Unmarshal(text, &boards); err != nil {
		t.Fatal(err)
	}
	for name, b := range boards {
		for _, p := range b.Problems {
			t.Errorf("board %s: %s", name, p)
		}
	}
	panels, _ := servers.Boards(t)
	drawn := 0
	for i := range panels {
		p := &panels[i]
		k := slices.IndexFunc(boards[p.Board].Panels, func(d drawnPanel) bool { return d.Title == p.Title })
		if k < 0 {
			t.Errorf("%s: not drawn", p.Where())
			continue
		}
		d := &boards[p.Board].Panels[k]
		if d.Error != "" || !d.UnitKnown || d.Type != p.Type {
			t.Errorf("%s, %s in %s: %s", p.Where(), d.Type, d.Unit, d.Error)
		}
		has := false
		for _, e := range p.Exprs {
			q := "(" + servers.Interpolate(e, "30s") + fmt.Sprintf(")[%ds:1s]", drawnSeconds)
			if d.Type == "table" || d.Type == "bargauge" { // of now
				q = servers.Interpolate(e, "30s")
			}
			ss, err := m.Query(t.Context(), q, at)
			if err != nil {
				t.Fatal(err)
			}
			has = has || slices.ContainsFunc(ss, func(s servers.Sample) bool { return !math.IsNaN(s.Value) })
		}
		if d.NoData == has {
			t.Errorf("%s: says that there is no data: %v; there is: %v", p.Where(), d.NoData, has)
		}
		if !has {
			t.Logf("%s: the demo has nothing of it", p.Where())
			continue
		}
		drawn++
		switch d.Type {
		case "timeseries", "heatmap": // axes, lines, and what lies between
			if d.Colors < 5 {
				t.Errorf("%s: %d colours are drawn", p.Where(), d.Colors)
			}
		default: // values are text
			if rest := strings.TrimSpace(strings.TrimPrefix(d.Text, d.Title)); !strings.ContainsAny(rest, "0123456789") {
				t.Errorf("%s: nothing is to be read but %q", p.Where(), d.Text)
			}
		}
	}
	t.Logf("%d of %d panels have something to draw", drawn, len(panels))
}
