package main

import (
	"fmt"
	"io"
	"math"
)

// row is one line of the tables: a shape's mode.
type row struct {
	shape    string
	launches int
	graph    bool
	rounds   int
	m        *mode
}

func (r *row) step() string {
	how := "eager"
	if r.graph {
		how = "graph"
	}
	sync := "waits"
	if r.m.Async {
		sync = "runs ahead"
	}
	return r.shape + ", " + how + ", " + sync
}

// micros is a time in µs, with the digits that a measurement of this kind has.
func micros(ns float64) string {
	if math.Abs(ns) >= 1e6 {
		us := int(math.Round(ns / 1e3))
		return fmt.Sprintf("%d,%03d", us/1000, max(us, -us)%1000)
	}
	return fmt.Sprintf("%.1f", ns/1e3)
}

// interval is a difference with the interval that holds its median 95 times in 100.
func (d *difference) interval() string {
	if d == nil {
		return "-"
	}
	return fmt.Sprintf("%+.1f [%+.1f to %+.1f]", d.MedianNS/1e3, d.LowNS/1e3, d.HighNS/1e3)
}

func (d *difference) percent() string {
	if d == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f %%", 100*d.Share)
}

// levelTables print what levels cost: a step at off and what each level adds, then
// what arming does.
func levelTables(w io.Writer, rows []row) {
	fmt.Fprint(w, "\n| kernels, launched, the host | launches | at off, µs | off again - off, µs | basic - off, µs | lane - basic, µs | of the step | lanes timed | rounds × steps |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for i := range rows {
		r := &rows[i]
		if r.m.Profiled {
			continue
		}
		lane := r.m.difference("lane", "basic")
		timed := "all"
		if r.m.Lanes > 1 {
			timed = fmt.Sprintf("1 in %d", r.m.Lanes)
		}
		fmt.Fprintf(w, "| %s | %d | %s | %s | %s | %s | %s | %s | %d × %d |\n", r.step(), r.launches, micros(r.m.level("off")),
			r.m.difference("off again", "off").interval(), r.m.difference("basic", "off").interval(), lane.interval(), lane.percent(), timed, r.rounds, r.m.Steps)
	}
	fmt.Fprint(w, "\n| kernels, launched, the host | an armed step - lane, µs | a launch, µs | armed, one in | so kernel - lane, µs | of the step | measured, µs |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for i := range rows {
		r := &rows[i]
		armed := r.m.difference("armed", "lane")
		if r.m.Profiled || armed == nil || r.m.Stride == 0 || r.launches == 0 {
			continue
		}
		each := armed.MedianNS / float64(r.m.Stride)
		fmt.Fprintf(w, "| %s | %s | %.2f | %d | %+.2f | %.3f %% | %s |\n", r.step(), armed.interval(), armed.MedianNS/float64(r.launches)/1e3,
			r.m.Stride, each/1e3, 100*each/r.m.level("lane"), r.m.difference("kernel", "lane").interval())
	}
}

// profilerTable prints what CUPTI's records cost the same steps. Before is the step at
// off while CUPTI had not been asked for anything yet.
func profilerTable(w io.Writer, rows []row) {
	before := make(map[string]float64)
	head := "\n| kernels, launched, the host | before CUPTI, µs | records off, µs | on, µs | on - off, µs | on over before | kernels recorded a step |\n| --- | --- | --- | --- | --- | --- | --- |\n"
	for i := range rows {
		r := &rows[i]
		if !r.m.Profiled {
			before[r.step()] = r.m.level("off")
			continue
		}
		d := r.m.difference("profiler", "off")
		on, was := r.m.level("profiler"), before[r.step()]
		fmt.Fprintf(w, "%s| %s | %s | %s | %s | %s | %+.1f %% | %.1f |\n", head, r.step(), micros(was), micros(r.m.level("off")), micros(on),
			d.interval(), 100*(on/was-1), r.m.Kernels)
		head = ""
	}
}
