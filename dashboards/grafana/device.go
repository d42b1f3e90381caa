package main

// device is the GPU itself, as far as engines and readings tell.
func device() *board {
	const gpu = `gpu=~"$gpu"`
	return &board{
		name: "device",
		desc: "GPUs: their clocks as engines map them, and what timing on them costs.",
		sections: []section{
			{"Clock", []panel{
				{title: "Uncertainty of the GPU's clock", desc: "Half-width of the interval in which the GPU's clock lies on the host's. It grows while nothing runs.", unit: "s", targets: []target{
					{expr: sel("lanetrace_clock_uncertainty_seconds", gpu), legend: "{{engine}} {{gpu}}"}}},
				{title: "Drift", desc: "Rate of the GPU's clock against the host's, less 1. About 1e-5 and steady is usual.", unit: "percentunit", targets: []target{
					{expr: sel("lanetrace_clock_drift_ratio", gpu), legend: "{{engine}} {{gpu}}"}}},
				{title: "Age of the clock map", desc: "Time since the map between the two clocks was last published.", unit: "s", targets: []target{
					{expr: sel("lanetrace_clock_age_seconds", gpu), legend: "{{engine}} {{gpu}}"}}},
				{title: "Anchors", desc: "Observations of the GPU's clock, and tries that took longer than their bound.", unit: "ops", targets: []target{
					{expr: sumRate("engine", sel("lanetrace_clock_anchors_total")), legend: "{{engine}} taken"},
					{expr: sumRate("engine", sel("lanetrace_clock_anchors_given_up_total")), legend: "{{engine}} given up"}}},
			}},
			{"Timing", []panel{
				{title: "What an event pair measures beyond its kernel", desc: "The machine's constant, and whether it was measured or assumed.", kind: rows, unit: "s", targets: []target{
					{expr: sel("lanetrace_calibration_constant_seconds", gpu), legend: "{{engine}} {{calibration}}"}}},
				{title: "Time of GPUs in lanes", desc: "How much of each second some lane ran, summed over the devices of an engine.", unit: "percentunit", targets: []target{
					{expr: sumRate("engine", sel("lanetrace_gpu_time_seconds_total", `state="lane"`)), legend: "{{engine}}"}}},
			}},
		},
	}
}
