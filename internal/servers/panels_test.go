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
	"github.com/lanetrace/lanetrace/spanring"
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

// drawnSeconds is how much of the demo is drawn, drawnRate what rates are of: in all less
// than the minute that the demo plays before it begins anew.
const (
	drawnSeconds = 35
	drawnRate    = 15 * time.Second
)

// steady has an engine take a step each 20 ms, one in four of them armed, until the
// test ends.
func steady(t *testing.T, s *scripted) {
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(scriptedEvery)
		defer tick.Stop()
		for {
			s.endAt(spanring.MonoNS(), 1)
			s.write(s.n+1, func(n uint64) scriptedStep { return scriptedStep{armed: n%4 == 0} })
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	t.Cleanup(func() { close(done); <-stopped })
}

// draw has boards drawn of what a Prometheus has before a time, all or those named;
// pictures go to a folder, if any is named.
func draw(t *testing.T, m *servers.Prometheus, at time.Time, pictures string, only ...string) (boards map[string]drawnBoard) {
	t.Helper()
	args := []string{"render.mjs", "--prometheus", m.URL, "--boards", filepath.Join(servers.Root(t), "dashboards", "grafana"), "--rate", drawnRate.String(),
		"--end", fmt.Sprintf("%.3f", float64(at.UnixMilli())/1e3), "--seconds", fmt.Sprint(drawnSeconds), "--step", "1", "--only", strings.Join(only, ",")}
	if pictures != "" {
		args = append(args, "--out", pictures)
	}
	cmd := exec.CommandContext(t.Context(), "node", args...)
	cmd.Dir, cmd.Stderr = filepath.Join(servers.Root(t), "tools", "panels"), os.Stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &boards); err != nil {
		t.Fatal(err)
	}
	return boards
}

// seen checks what became of the panels of boards, and returns which had anything to
// draw.
func seen(t *testing.T, m *servers.Prometheus, at time.Time, boards map[string]drawnBoard) (drawn []string) {
	t.Helper()
	for name, b := range boards {
		for _, p := range b.Problems {
			t.Errorf("board %s: %s", name, p)
		}
	}
	panels, _ := servers.Boards(t)
	for i := range panels {
		p := &panels[i]
		b, ok := boards[p.Board]
		if !ok {
			continue
		}
		k := slices.IndexFunc(b.Panels, func(d drawnPanel) bool { return d.Title == p.Title })
		if k < 0 {
			t.Errorf("%s: not drawn", p.Where())
			continue
		}
		d := &b.Panels[k]
		if d.Error != "" || !d.UnitKnown || d.Type != p.Type {
			t.Errorf("%s, %s in %s: %s", p.Where(), d.Type, d.Unit, d.Error)
		}
		has := false
		for _, e := range p.Exprs {
			q := "(" + servers.Interpolate(e, drawnRate.String()) + fmt.Sprintf(")[%ds:1s]", drawnSeconds)
			if d.Type == "table" || d.Type == "bargauge" { // of now
				q = servers.Interpolate(e, drawnRate.String())
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
			continue
		}
		drawn = append(drawn, p.Where())
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
	return drawn
}

// Grafana's own components draw every panel of every board, of the demo or of two ranks
// with graphs: none throws, all know their units, and what Prometheus has is to be
// seen. LANETRACE_IMAGES names a folder for a picture of each board.
func TestPanelsDrawn(t *testing.T) {
	if _, err := os.Stat(filepath.Join(servers.Root(t), "tools", "panels", "node_modules")); err != nil {
		t.Fatalf("%v: run npm ci in tools/panels", err)
	}
	rules, _ := ruleFiles(t)
	demo := built.Demo(t, nil)
	ofDemo := servers.StartPrometheus(t, servers.PrometheusOptions{Targets: []string{demo.URL}, Rules: rules})
	dir := servers.RingDir(t)
	for tensor, ns := range [][3]uint64{{1e6, 4e6, 3e6}, {2e6, 6e6, 1e6}} {
		r := spanring.NoRank
		r.Tensor = int32(tensor)
		steady(t, newScripted(t, dir, spanring.Info{Rank: r, Model: "small", KernelEvery: 4, LaneEvery: 1}, spanring.ContextState{
			UUID: [16]byte{0xa0, byte(tensor)}, Calibration: spanring.CalibrationMeasured, ConstantNS: 3040, UncertaintyNS: 1500, UpdatedMonoNS: spanring.MonoNS(),
		}, ns[0], ns[1], ns[2]))
	}
	ranks := servers.StartPrometheus(t, servers.PrometheusOptions{Targets: []string{sidecar(t, dir, nil).URL}, Rules: rules})
	ofDemo.AwaitTargets(1)
	ranks.AwaitTargets(1)
	at := scrapedAfter(t, ofDemo, time.Now().Add(drawnRate+drawnSeconds*time.Second))
	pictures := os.Getenv("LANETRACE_IMAGES")
	drawn := seen(t, ofDemo, at, draw(t, ofDemo, at, pictures))
	at = scrapedAfter(t, ranks, time.Now())
	for _, w := range seen(t, ranks, at, draw(t, ranks, at, "", "kernels")) {
		if !slices.Contains(drawn, w) {
			drawn = append(drawn, w)
		}
	}
	boards := draw(t, ranks, at, pictures, "ranks")
	seen(t, ranks, at, boards)
	for _, p := range boards["ranks"].Panels {
		// The longest bar is the first.
		if p.Title == "The late rank" && !strings.HasPrefix(strings.TrimSpace(strings.TrimPrefix(p.Text, p.Title)), "stand-in-tp1") {
			t.Errorf("the late rank is said to be %q", p.Text)
		}
	}
	panels, _ := servers.Boards(t)
	for i := range panels {
		if w := panels[i].Where(); !slices.Contains(drawn, w) {
			t.Errorf("%s: there was nothing to draw", w)
		}
	}
	t.Logf("%d panels drawn", len(drawn))
}
