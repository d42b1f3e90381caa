package main

// device is the GPU itself, as far as engines and readings tell.
func device() *board {
	const gpu, hw = `gpu=~"$gpu"`, `hw_id=~"$gpu"`
	return &board{
		name: "device",
		desc: "GPUs: what they report of themselves, their clocks as engines map them, and what timing on them costs.",
		sections: []section{
			{"Power and energy", []panel{
				{title: "Power", desc: "Power drawn by each GPU.", unit: "watt", targets: []target{
					{expr: own("hw_power_watts", hw), legend: "{{hw_id}}"}}},
				{title: "Power by the energy counter", desc: "Energy by the device's own counter in each second; it may differ from readings of power, which lie between.", unit: "watt", targets: []target{
					{expr: sumRate("hw_id", own("hw_energy_joules_total", hw)), legend: "{{hw_id}}"}}},
				{title: "Energy by token", desc: "Energy of the GPU by token of the engines on it, over the last ten readings: by those generated, or by all. None while no token is worked on.", unit: "joule", targets: []target{
					{expr: own("lanetrace_device_energy_per_token_live_joules", hw), legend: "{{hw_id}} {{kind}}"}}},
				{title: "Energy by token since the start", desc: "The same since the sidecar began to read the GPU, idling included.", kind: value, unit: "joule", tall: true, targets: []target{
					{expr: own("lanetrace_device_energy_per_token_joules", hw), legend: "{{hw_id}} {{kind}}"}}},
				{title: "Energy by step, estimated", desc: "Over at least a second. Steps overlap, and idling and what others do on the GPU are in it.", unit: "joule", targets: []target{
					{expr: own("lanetrace_device_energy_per_step_estimate_joules", hw), legend: "{{hw_id}}"}}},
				{title: "Breaks of the energy counter", desc: "Resets, and wraps over its end. Nothing is counted across them.", unit: perSecond("breaks"), targets: []target{
					{expr: sumRate("hw_id, reason", own("lanetrace_device_energy_breaks_total", hw)), legend: "{{hw_id}} {{reason}}"}}},
			}},
			{"Clocks and temperature", []panel{
				{title: "Clocks", desc: "Frequencies now.", unit: "hertz", targets: []target{
					{expr: own("lanetrace_device_clock_hertz", hw), legend: "{{hw_id}} {{clock}}"}}},
				{title: "Temperature", desc: "Of the GPU's die.", unit: "celsius", targets: []target{
					{expr: own("hw_temperature_celsius", hw), legend: "{{hw_id}}"}}},
				{title: "Clocks held down", desc: "Share of the time by reason. Reasons overlap. power_cap is usual under full load; idle is no fault.", unit: "percentunit", width: 24, targets: []target{
					{expr: sumRate("hw_id, reason", own("lanetrace_device_clocks_held_down_time_seconds_total", hw)), legend: "{{hw_id}} {{reason}}"}}},
				{title: "Busy", desc: "Share of the driver's last sampling period in which some kernel ran (not how much of the GPU it used), and in which memory was read or written.", unit: "percentunit", width: 24, targets: []target{
					{expr: own("hw_gpu_utilization_ratio", hw), legend: "{{hw_id}} kernels"},
					{expr: own("lanetrace_device_memory_busy_ratio", hw), legend: "{{hw_id}} memory"}}},
			}},
			{"Memory and links", []panel{
				{title: "Device memory in use", desc: "By all processes, and what there is.", unit: "bytes", targets: []target{
					{expr: own("hw_gpu_memory_usage_bytes", hw), legend: "{{hw_id}} used"},
					{expr: own("hw_gpu_memory_limit_bytes", hw), legend: "{{hw_id}} limit"}}},
				{title: "ECC errors", desc: "Errors of device memory a second, corrected and uncorrected.", unit: perSecond("errors"), targets: []target{
					{expr: sumRate("hw_id, error_type", own("hw_errors_total", hw)), legend: "{{hw_id}} {{error_type}}"}}},
				{title: "Remapped rows", desc: "Rows of device memory replaced by spare ones; whether one waits for a reset, and whether one could not be replaced.", unit: "short", targets: []target{
					{expr: own("lanetrace_device_remapped_rows", hw), legend: "{{hw_id}} {{error_type}}"},
					{expr: own("lanetrace_device_remapped_rows_pending", hw), legend: "{{hw_id}} pending"},
					{expr: own("lanetrace_device_remapped_rows_failed", hw), legend: "{{hw_id}} failed"}}},
				{title: "Traffic", desc: "PCIe and NVLink, read every five seconds.", unit: "binBps", targets: []target{
					{expr: own("lanetrace_device_pcie_throughput_bytes_per_second", hw), legend: "{{hw_id}} PCIe {{network_io_direction}}"},
					{expr: own("lanetrace_device_nvlink_throughput_bytes_per_second", hw), legend: "{{hw_id}} NVLink {{network_io_direction}}"}}},
				{title: "Readings", desc: "How often each GPU is read, what its driver failed to answer, and readings that were none.", unit: perSecond("readings"), targets: []target{
					{expr: sumRate("hw_id", own("lanetrace_device_readings_total", hw)), legend: "{{hw_id}}"},
					{expr: sumRate("hw_id, query", own("lanetrace_device_readings_failed_total", hw)) + " > 0", legend: "{{hw_id}} failed {{query}}"},
					{expr: sumRate("hw_id, reason", own("lanetrace_device_readings_refused_total", hw)) + " > 0", legend: "{{hw_id}} refused: {{reason}}"}}},
				{title: "GPUs", desc: "Those that the sidecar reads.", kind: rows, told: true, unit: "short", targets: []target{
					{expr: own("lanetrace_device_info", hw), legend: "{{hw_id}} {{hw_name}}"}}},
			}},
			{"Clock", []panel{
				{title: "Uncertainty of the GPU's clock", desc: "Half-width of the interval in which the GPU's clock lies on the host's. It grows while nothing runs.", unit: "s", targets: []target{
					{expr: sel("lanetrace_clock_uncertainty_seconds", gpu), legend: "{{engine}} {{gpu}}"}}},
				{title: "Drift", desc: "Rate of the GPU's clock against the host's, less 1. About 1e-5 and steady is usual.", unit: "sci", targets: []target{
					{expr: sel("lanetrace_clock_drift_ratio", gpu), legend: "{{engine}} {{gpu}}"}}},
				{title: "Age of the clock map", desc: "Time since the map between the two clocks was last published.", unit: "s", targets: []target{
					{expr: sel("lanetrace_clock_age_seconds", gpu), legend: "{{engine}} {{gpu}}"}}},
				{title: "Anchors", desc: "Observations of the GPU's clock, and tries that took longer than their bound.", unit: perSecond("anchors"), targets: []target{
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
