package report

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/lanetrace/lanetrace/collector"
)

// DeviceReport is what readings of one GPU came to. What it did not report is null.
type DeviceReport struct {
	UUID     string       `json:"uuid"`
	Name     string       `json:"name"`
	Readings uint64       `json:"readings"`
	Power    *PowerReport `json:"power"`

	EnergyJoules       *float64           `json:"energy_joules"`
	EnergyBreaks       map[string]uint64  `json:"energy_breaks"`
	JoulesPerGenerated *float64           `json:"joules_per_generated_token"`
	JoulesPerToken     *float64           `json:"joules_per_token"`
	HeldDownSeconds    map[string]float64 `json:"clocks_held_down_seconds"`
}

// PowerReport is over all readings that had power, in watts.
type PowerReport struct {
	Mean float64 `json:"mean_watts"`
	Max  float64 `json:"max_watts"`
}

// Devices are the reports of GPUs of which there are readings.
func Devices(ds []collector.DeviceStats) []DeviceReport {
	out := []DeviceReport{}
	for i := range ds {
		if ds[i].Readings > 0 {
			out = append(out, deviceReport(&ds[i]))
		}
	}
	return out
}

func deviceReport(d *collector.DeviceStats) DeviceReport {
	known := func(o collector.Opt[float64]) *float64 {
		if !o.Known {
			return nil
		}
		return &o.Value
	}
	r := DeviceReport{
		UUID: collector.CleanText(d.ID), Name: collector.CleanText(d.Name), Readings: d.Readings,
		EnergyJoules: known(d.Joules), JoulesPerGenerated: known(d.PerGenerated), JoulesPerToken: known(d.PerToken),
	}
	if p := &d.Power; p.Readings > 0 {
		r.Power = &PowerReport{float64(p.SumMilliwatts) / float64(p.Readings) / 1e3, float64(p.MostMilliwatts) / 1e3}
	}
	if d.Joules.Known {
		r.EnergyBreaks = map[string]uint64{}
		for i, n := range d.Breaks {
			r.EnergyBreaks[collector.EnergyBreak(i).String()] = n
		}
	}
	if d.HeldDownNS.Known {
		r.HeldDownSeconds = map[string]float64{}
		for i, ns := range d.HeldDownNS.Value {
			r.HeldDownSeconds[collector.HeldDownReasons[i]] = float64(ns) / 1e9
		}
	}
	return r
}

// DevicesText is what readings of GPUs came to, nothing where there are none. columns is
// how wide it is, as Width in [Options].
func DevicesText(ds []collector.DeviceStats, columns int) string {
	w := Options{Width: columns}.withDefaults().Width
	var b strings.Builder
	// What is too long for a line goes on behind a comma.
	line := func(k, v string) {
		for rest := v; rest != ""; k = "" {
			v, rest = rest, ""
			for width(v) > w-12 {
				i := strings.LastIndex(v, ", ")
				if i < 0 {
					break
				}
				v, rest = v[:i+1], v[i+2:]+strings.TrimSuffix(", "+rest, ", ")
			}
			fmt.Fprintf(&b, "    %-8s%s\n", k, v)
		}
	}
	for i := range ds {
		d := &ds[i]
		if d.Readings == 0 {
			continue
		}
		if b.Len() == 0 {
			b.WriteString("GPUS\n")
		}
		r := deviceReport(d)
		b.WriteString("  " + clip(strings.TrimSpace(r.Name+"  "+r.UUID), w-2) + "\n")
		if p := r.Power; p != nil {
			readings := "readings"
			if d.Power.Readings == 1 {
				readings = "reading"
			}
			line("power", fmt.Sprintf("%s W mean, %s W largest, of %s %s", watts(p.Mean), watts(p.Max), Count(d.Power.Readings), readings))
		}
		line("energy", energyText(&r))
		line("", breaksText(d.Breaks))
		line("clocks", heldText(d.HeldDownNS))
	}
	return b.String()
}

// watts has no decimal from 100 on.
func watts(v float64) string {
	if v >= 99.95 {
		return grouped(strconv.FormatFloat(v, 'f', 0, 64))
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

func energyText(r *DeviceReport) string {
	if r.EnergyJoules == nil {
		return ""
	}
	text := joules(*r.EnergyJoules)
	if r.JoulesPerGenerated != nil {
		text += ", " + joules(*r.JoulesPerGenerated) + " by token generated"
	}
	if r.JoulesPerToken != nil {
		text += ", " + joules(*r.JoulesPerToken) + " by token of any kind"
	}
	return text
}

// joules has three significant digits or more.
func joules(v float64) string {
	unit := " J"
	if v < 0.9995 && v > 0 {
		v, unit = 1e3*v, " mJ"
	}
	return rate(v) + unit
}

func breaksText(breaks [collector.NumEnergyBreaks]uint64) string {
	var parts []string
	for i, n := range breaks {
		if n > 0 {
			parts = append(parts, Count(n)+" "+collector.EnergyBreak(i).String())
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "missing what was used across breaks of its counter, " + strings.Join(parts, ", ")
}

// heldText is for how long clocks were held down, by reason, as they are in metrics.
func heldText(held collector.Opt[[collector.NumHeldDownReasons]uint64]) string {
	var parts []string
	for i, ns := range held.Value {
		if ns > 0 {
			parts = append(parts, collector.HeldDownReasons[i]+" "+Duration(float64(ns)))
		}
	}
	switch {
	case !held.Known:
		return ""
	case len(parts) == 0:
		return "never held down"
	}
	return "held down: " + strings.Join(parts, ", ")
}
