package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// reading is one thing that both say.
type reading struct {
	field string // nvidia-smi's
	unit  string
	// ours is the metric, its labels beside the device's, and what makes nvidia-smi's
	// unit of it.
	ours  string
	label string
	scale float64
}

// reasons is the field whose bits are compared with counters of time.
const reasons = "clocks_event_reasons.active"

var readings = []reading{
	{"power.draw.instant", "W", "hw_power_watts", "", 1},
	{"clocks.sm", "MHz", "lanetrace_device_clock_hertz", `clock="sm"`, 1e-6},
	{"clocks.mem", "MHz", "lanetrace_device_clock_hertz", `clock="memory"`, 1e-6},
	{"temperature.gpu", "°C", "hw_temperature_celsius", "", 1},
	{"memory.used", "MiB", "hw_gpu_memory_usage_bytes", "", 1. / (1 << 20)},
	{"memory.total", "MiB", "hw_gpu_memory_limit_bytes", "", 1. / (1 << 20)},
	{"utilization.gpu", "%", "hw_gpu_utilization_ratio", "", 100},
	{"utilization.memory", "%", "lanetrace_device_memory_busy_ratio", "", 100},
	{"ecc.errors.corrected.volatile.total", "", "hw_errors_total", `error_type="corrected"`, 1},
	{"ecc.errors.uncorrected.volatile.total", "", "hw_errors_total", `error_type="uncorrected"`, 1},
	{"remapped_rows.correctable", "", "lanetrace_device_remapped_rows", `error_type="corrected"`, 1},
	{"remapped_rows.uncorrectable", "", "lanetrace_device_remapped_rows", `error_type="uncorrected"`, 1},
	{"remapped_rows.pending", "", "lanetrace_device_remapped_rows_pending", "", 1},
	{"remapped_rows.failure", "", "lanetrace_device_remapped_rows_failed", "", 1},
	{reasons, "bits", "lanetrace_device_clocks_held_down_time_seconds_total", "", 1},
}

// heldDown are the reasons in the order of the driver's bits.
var heldDown = []string{
	"idle", "application_clocks", "power_cap", "hardware_slowdown", "sync_boost", "software_thermal", "hardware_thermal", "power_brake", "display_clocks",
}

// exposition is what /metrics said, by lines.
type exposition []string

// value is the value of the first series of a name that has all labels.
func (e exposition) value(name string, labels ...string) (float64, bool) {
next:
	for _, l := range e {
		rest, ok := strings.CutPrefix(l, name+"{")
		if !ok {
			continue
		}
		for _, want := range labels {
			if !strings.Contains(rest, want) {
				continue next
			}
		}
		_, text, ok := strings.Cut(rest, "} ")
		if !ok {
			continue
		}
		text, _, _ = strings.Cut(text, " ")
		v, err := strconv.ParseFloat(text, 64)
		return v, err == nil
	}
	return 0, false
}

// fields are what nvidia-smi said of one device, by name.
type fields map[string]string

func parseFields(out string, names []string) (gpus []fields, err error) {
	for l := range strings.Lines(out) {
		vs := strings.Split(strings.TrimSpace(l), ", ")
		if len(vs) != len(names)+1 {
			return nil, fmt.Errorf("nvidia-smi printed %d fields, want %d: %q", len(vs), len(names)+1, l)
		}
		f := fields{"uuid": vs[0]}
		for i, n := range names {
			f[n] = vs[i+1]
		}
		gpus = append(gpus, f)
	}
	return gpus, nil
}

// number is a value as nvidia-smi prints it; ok is false for what it does not know.
func number(text string) (float64, bool) {
	switch text {
	case "No":
		return 0, true
	case "Yes":
		return 1, true
	}
	if h, found := strings.CutPrefix(text, "0x"); found {
		v, err := strconv.ParseUint(h, 16, 64)
		return float64(v), err == nil
	}
	v, err := strconv.ParseFloat(text, 64)
	return v, err == nil
}

// line is one reading compared.
type line struct{ name, before, smi, after, difference, unit string }

// compare puts what nvidia-smi said of a device between two scrapes. The difference is
// from the nearer end of what lies between them.
func compare(gpu fields, before, after exposition) (ls []line) {
	id := fmt.Sprintf(`hw_id="%s"`, gpu["uuid"])
	for _, r := range readings {
		get := func(e exposition) (float64, bool) {
			v, ok := e.value(r.ours, id, r.label)
			return v * r.scale, ok
		}
		a, okA := get(before)
		b, okB := get(after)
		if r.field == reasons {
			b, okB = held(before, after, id)
			a, okA = b, okB
		}
		s, okS := number(gpu[r.field])
		l := line{r.field, "absent", gpu[r.field], "absent", "", r.unit}
		if okA {
			l.before = short(a)
		}
		if okB {
			l.after = short(b)
		}
		switch {
		case okA && okB && okS:
			d := 0.
			if s < min(a, b) {
				d = min(a, b) - s
			} else if s > max(a, b) {
				d = max(a, b) - s
			}
			l.difference = short(d)
		case !okA && !okB && !okS:
			l.difference = "both absent"
		default:
			l.difference = "ONE ABSENT"
		}
		ls = append(ls, l)
	}
	return ls
}

// held are the bits of the reasons whose time went on between two scrapes.
func held(before, after exposition, id string) (bits float64, ok bool) {
	for i, name := range heldDown {
		const metric = "lanetrace_device_clocks_held_down_time_seconds_total"
		a, okA := before.value(metric, id, `reason="`+name+`"`)
		b, okB := after.value(metric, id, `reason="`+name+`"`)
		if okA && okB {
			ok = true
			if b > a {
				bits += math.Pow(2, float64(i))
			}
		}
	}
	return bits, ok
}

// short has two decimals, fewer where they are zeros.
func short(v float64) string {
	return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64)
}
