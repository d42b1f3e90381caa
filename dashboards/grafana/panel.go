package main

import (
	"fmt"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/bargauge"
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/heatmap"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// kind is how a panel draws.
type kind int

const (
	lines kind = iota // over time
	areas             // over time, stacked
	heat              // a histogram's buckets over time
	value             // one number now
	bars              // one bar for each series now
	rows              // a table of series now
)

// target is one query of a panel.
type target struct {
	expr   string
	legend string
	// exemplar asks for the exemplars of a histogram: the traces behind it.
	exemplar bool
}

// panel is one panel of a board.
type panel struct {
	title string
	desc  string
	kind  kind
	unit  string
	width uint32 // of 24 columns; 0 is 12
	// tall has a value take as many rows as what stands beside it.
	tall bool
	// red turns a value red that is not 0.
	red bool
	// none stands in place of "No data", where that is no fault.
	none string
	// told: the series of a table say all with their labels; their value is 1.
	told    bool
	targets []target
}

// section is a row of a board and the panels under it.
type section struct {
	title  string
	panels []panel
}

// refID is the name of query i of a panel.
func refID(i int) string { return string(rune('A' + i)) }

func (t target) query(i int, k kind) cog.Builder[variants.Dataquery] {
	q := prometheus.NewDataqueryBuilder().Expr(t.expr).RefId(refID(i)).LegendFormat(t.legend).
		EditorMode(prometheus.QueryEditorModeCode).Datasource(source())
	if t.exemplar {
		q.Exemplar(true)
	}
	switch k {
	case heat:
		q.Format(prometheus.PromQueryFormatHeatmap).Range()
	case rows:
		q.Format(prometheus.PromQueryFormatTable).Instant()
	case bars:
		q.Format(prometheus.PromQueryFormatTimeSeries).Instant()
	default:
		q.Format(prometheus.PromQueryFormatTimeSeries).Range()
	}
	return q
}

// source is the data source that the board's first variable chooses.
func source() common.DataSourceRef {
	return common.DataSourceRef{Type: cog.ToPtr("prometheus"), Uid: cog.ToPtr("${datasource}")}
}

func (p *panel) thresholds() cog.Builder[dashboard.ThresholdsConfig] {
	steps := []dashboard.Threshold{{Color: "green"}}
	if p.red {
		steps = append(steps, dashboard.Threshold{Color: "red", Value: cog.ToPtr(1e-9)})
	}
	return dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).Steps(steps)
}

// columns leaves out what says nothing in a table: all rows are of now.
func (p *panel) columns() dashboard.DataTransformerConfig {
	exclude := map[string]bool{"Time": true, "__name__": true, "job": true}
	if p.told {
		exclude["Value"] = true
	}
	return dashboard.DataTransformerConfig{Id: "organize", Options: map[string]any{"excludeByName": exclude}}
}

// build makes the SDK's panel of p.
func (p *panel) build(id uint32) (cog.Builder[dashboard.Panel], error) {
	if p.title == "" || p.desc == "" || p.unit == "" || len(p.targets) == 0 {
		return nil, fmt.Errorf("panel %q lacks a title, a description, a unit or a query", p.title)
	}
	w, h := p.width, uint32(8)
	if w == 0 {
		w = 12
	}
	if p.kind == value && !p.tall {
		h = 4
	}
	qs := make([]cog.Builder[variants.Dataquery], len(p.targets))
	for i, t := range p.targets {
		qs[i] = t.query(i, p.kind)
	}
	last := common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})
	switch p.kind {
	case heat:
		return heatmap.NewPanelBuilder().Id(id).Title(p.title).Description(p.desc).Datasource(source()).Height(h).Span(w).Targets(qs).
			Calculate(false).ShowLegend().CellGap(1).
			YAxis(heatmap.NewYAxisConfigBuilder().Unit(p.unit)).Unit("short").
			Tooltip(heatmap.NewHeatmapTooltipBuilder().Mode(common.TooltipDisplayModeSingle).YHistogram(true)).
			Color(heatmap.NewHeatmapColorOptionsBuilder().Mode(heatmap.HeatmapColorModeScheme).Scheme("Oranges").Fill("dark-orange").
				Scale(heatmap.HeatmapColorScaleExponential).Exponent(0.5).Steps(64).Reverse(false)), nil
	case value:
		return stat.NewPanelBuilder().Id(id).Title(p.title).Description(p.desc).Datasource(source()).Height(h).Span(w).Targets(qs).
			Unit(p.unit).ReduceOptions(last).GraphMode(common.BigValueGraphModeNone).ColorMode(common.BigValueColorModeValue).
			TextMode(common.BigValueTextModeAuto).Orientation(common.VizOrientationAuto).Thresholds(p.thresholds()), nil
	case bars:
		return bargauge.NewPanelBuilder().Id(id).Title(p.title).Description(p.desc).Datasource(source()).Height(h).Span(w).Targets(qs).
			Unit(p.unit).ReduceOptions(last).Orientation(common.VizOrientationHorizontal).DisplayMode(common.BarGaugeDisplayModeBasic).
			Min(0).Thresholds(p.thresholds()).NoValue(p.none), nil
	case rows:
		return table.NewPanelBuilder().Id(id).Title(p.title).Description(p.desc).Datasource(source()).Height(h).Span(w).Targets(qs).
			Unit(p.unit).Filterable(true).WithTransformation(p.columns()).
			Footer(common.NewTableFooterOptionsBuilder().Show(false).Reducer([]string{"sum"})), nil
	}
	b := timeseries.NewPanelBuilder().Id(id).Title(p.title).Description(p.desc).Datasource(source()).Height(h).Span(w).Targets(qs).
		Unit(p.unit).AxisSoftMin(0).LineWidth(2).ShowPoints(common.VisibilityModeNever).Thresholds(p.thresholds()).
		Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending)).
		Legend(common.NewVizLegendOptionsBuilder().DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom).ShowLegend(true))
	// What is 0 has an axis up to 100 otherwise: 10,000 %, or 1.67 minutes.
	if most, ok := map[string]float64{"percentunit": 1e-3, "s": 1e-5}[p.unit]; ok {
		b.AxisSoftMax(most)
	}
	if p.none != "" {
		b.NoValue(p.none)
	}
	if p.kind == areas {
		b.FillOpacity(40).Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal))
	}
	return b, nil
}

// sel is a selector of series that belong to engines: what the variables choose,
// and more.
func sel(metric string, more ...string) string {
	return metric + "{" + strings.Join(append([]string{`job=~"$job"`, `instance=~"$instance"`, `engine=~"$engine"`}, more...), ",") + "}"
}

// own is a selector of series that are a sidecar's own.
func own(metric string, more ...string) string {
	return metric + "{" + strings.Join(append([]string{`job=~"$job"`, `instance=~"$instance"`}, more...), ",") + "}"
}

// perSecond is the unit of what happens so often: thousands are K, millions M.
func perSecond(what string) string { return "count:" + what + "/s" }

// rate is how fast a counter grows.
func rate(selector string) string { return "rate(" + selector + "[$__rate_interval])" }

// sumRate is the sum of how fast counters grow, by labels.
func sumRate(by, selector string) string {
	return "sum by (" + by + ") (" + rate(selector) + ")"
}

// quantile is a quantile of a histogram whose name has no suffix, by labels.
func quantile(q, by, metric string, more ...string) string {
	return "histogram_quantile(" + q + ", " + sumRate(by+", le", sel(metric+"_bucket", more...)) + ")"
}

// mean is what a histogram's values are on average, by labels.
func mean(by, metric string, more ...string) string {
	return sumRate(by, sel(metric+"_sum", more...)) + " / " + sumRate(by, sel(metric+"_count", more...))
}
