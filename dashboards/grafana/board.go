package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// board is one dashboard.
type board struct {
	name string // of its file, and in its uid
	desc string
	// lanes: the board has a variable for lanes.
	lanes    bool
	sections []section
}

// boards are all dashboards, in the order of their links.
func boards() []*board {
	return []*board{steps(), kernels(), memory(), ranks(), health(), device()}
}

func (b *board) file() string { return b.name + ".json" }

// titles of the boards by name.
var titles = map[string]string{
	"steps": "Steps", "kernels": "Kernels", "memory": "Memory", "ranks": "Ranks", "health": "Pipeline health", "device": "Device",
}

// json is the board's file.
func (b *board) json() ([]byte, error) {
	d, err := b.build()
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(d); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

func (b *board) build() (dashboard.Dashboard, error) {
	d := dashboard.NewDashboardBuilder("lanetrace / "+titles[b.name]).
		Uid("lanetrace-"+b.name).Description(b.desc).Tags([]string{"lanetrace"}).
		Time("now-30m", "now").Refresh("30s").Timezone(common.TimeZoneBrowser).Editable().
		Tooltip(dashboard.DashboardCursorSyncCrosshair).
		Link(dashboard.NewDashboardLinkBuilder("lanetrace").Type(dashboard.DashboardLinkTypeDashboards).
			Tags([]string{"lanetrace"}).AsDropdown(true).IncludeVars(true).KeepTime(true))
	for _, v := range b.variables() {
		d.WithVariable(v)
	}
	id := uint32(0)
	for _, s := range b.sections {
		id++
		d.WithRow(dashboard.NewRowBuilder(s.title).Id(id))
		for i := range s.panels {
			id++
			p, err := s.panels[i].build(id)
			if err != nil {
				return dashboard.Dashboard{}, fmt.Errorf("section %s: %w", s.title, err)
			}
			d.WithPanel(p)
		}
	}
	return d.Build()
}

// variables are what a board can be narrowed to. Each offers what those before it
// leave, so that choosing a GPU leaves the engines that have it.
func (b *board) variables() []cog.Builder[dashboard.VariableModel] {
	vs := []cog.Builder[dashboard.VariableModel]{
		dashboard.NewDatasourceVariableBuilder("datasource").Label("Data source").Type("prometheus"),
		labelValues("job", "Job", "lanetrace_build_info", "job"),
		labelValues("instance", "Sidecar", `lanetrace_build_info{job=~"$job"}`, "instance"),
		labelValues("gpu", "GPU", `lanetrace_engine_info{job=~"$job",instance=~"$instance"}`, "gpu"),
		labelValues("engine", "Engine", `lanetrace_engine_info{job=~"$job",instance=~"$instance",gpu=~"$gpu"}`, "engine"),
	}
	if b.lanes {
		vs = append(vs, labelValues("lane", "Lane", sel("lanetrace_gpu_lane_duration_seconds_count"), "lane"))
	}
	return vs
}

// labelValues is a variable with the values of a label. All is chosen at first.
func labelValues(name, label, selector, of string) cog.Builder[dashboard.VariableModel] {
	query := fmt.Sprintf("label_values(%s, %s)", selector, of)
	all := dashboard.StringOrArrayOfString{String: cog.ToPtr("$__all")}
	return dashboard.NewQueryVariableBuilder(name).Label(label).Datasource(source()).
		Query(dashboard.StringOrMap{String: cog.ToPtr(query)}).Definition(query).
		Multi(true).IncludeAll(true).
		Current(dashboard.VariableOption{Selected: cog.ToPtr(true), Text: dashboard.StringOrArrayOfString{String: cog.ToPtr("All")}, Value: all}).
		Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortAlphabeticalAsc)
}
