package report

import (
	"fmt"
	"strings"

	"github.com/lanetrace/lanetrace/collector"
)

// gpuTable is how the devices spent their time, nothing where no lane was timed.
func gpuTable(b *strings.Builder, g collector.GPUTime, w int) {
	all := float64(g.LaneNS + g.WithinNS + g.BetweenNS + g.UntimedNS)
	if all <= 0 {
		return
	}
	b.WriteByte('\n')
	var rows [][]string
	add := func(name string, ns uint64) {
		rows = append(rows, []string{name, Duration(float64(ns)), percent(float64(ns), all)})
	}
	add("in lanes, on any stream", g.LaneNS)
	add("in none, within steps", g.WithinNS)
	add("in none, between steps", g.BetweenNS)
	if g.UntimedNS > 0 {
		add("in none, lanes not timed", g.UntimedNS)
	}
	table(b, "  ", w, []string{"GPU TIME", "total", "share"}, rows)
	if g.LateNS > 0 {
		fmt.Fprintf(b, "  off by up to %s, which came late\n", Duration(float64(g.LateNS)))
	}
	if g.ArmedLaneNS > 0 {
		fmt.Fprintf(b, "  armed steps: kernels cover %s of lanes", percent(float64(g.ArmedLaneNS-min(g.ArmedLaneNS, g.ArmedLaneIdleNS)), float64(g.ArmedLaneNS)))
		if g.ArmedBusyOutsideNS > 0 {
			fmt.Fprintf(b, ", %s of kernels lie outside", Duration(float64(g.ArmedBusyOutsideNS)))
		}
		b.WriteByte('\n')
	}
	n := &g.Bound
	fmt.Fprintf(b, "  steps limited by the GPU %s, by the host's launches %s, not known %s\n",
		Count(n[collector.BoundGPU]), Count(n[collector.BoundLaunch]), Count(n[collector.BoundUnknown]))
}

// GPUTimeReport is how the devices spent their time, in ns summed over them.
type GPUTimeReport struct {
	Lanes     uint64            `json:"lanes_ns"`
	Within    uint64            `json:"within_steps_ns"`
	Between   uint64            `json:"between_steps_ns"`
	Untimed   uint64            `json:"untimed_ns"`
	Late      uint64            `json:"late_ns"`
	Armed     ArmedTimeReport   `json:"armed"`
	LimitedBy map[string]uint64 `json:"steps_limited_by"`
}

// ArmedTimeReport are the lanes of armed steps and what kernels covered.
type ArmedTimeReport struct {
	Lanes       uint64 `json:"lanes_ns"`
	Busy        uint64 `json:"busy_ns"`
	LaneIdle    uint64 `json:"lane_idle_ns"`
	BusyOutside uint64 `json:"busy_outside_ns"`
}

func gpuTimeReport(g collector.GPUTime) GPUTimeReport {
	out := GPUTimeReport{
		Lanes: g.LaneNS, Within: g.WithinNS, Between: g.BetweenNS, Untimed: g.UntimedNS, Late: g.LateNS,
		Armed:     ArmedTimeReport{g.ArmedLaneNS, g.ArmedBusyNS, g.ArmedLaneIdleNS, g.ArmedBusyOutsideNS},
		LimitedBy: make(map[string]uint64),
	}
	for i, n := range g.Bound {
		out.LimitedBy[collector.Bound(i).String()] = n
	}
	return out
}

// DerivedReport is what follows from a step's spans, in ns.
type DerivedReport struct {
	Extent      int64  `json:"extent_ns"`
	Lanes       int64  `json:"lanes_ns"`
	Outside     int64  `json:"outside_ns"`
	Busy        *int64 `json:"busy_ns"` // null without kernels
	LaneIdle    *int64 `json:"lane_idle_ns"`
	BusyOutside *int64 `json:"busy_outside_ns"`
	Queue       *int64 `json:"queue_ns"` // null without spans
	Kernels     uint64 `json:"kernels"`
	Starved     uint64 `json:"starved"`
	LimitedBy   string `json:"limited_by"`
}

func derivedReport(d *collector.Derived) DerivedReport {
	out := DerivedReport{
		Extent: d.ExtentNS, Lanes: d.LaneNS, Outside: d.OutsideNS, Kernels: d.Kernels, Starved: d.Starved, LimitedBy: d.Bound.String(),
	}
	if d.HasBusy {
		out.Busy, out.LaneIdle, out.BusyOutside = &d.BusyNS, &d.LaneIdleNS, &d.BusyOutsideNS
	}
	if d.HasQueue {
		out.Queue = &d.QueueNS
	}
	return out
}
