package main

// memory is the ledger of device memory.
func memory() *board {
	by := func(labels, metric string) string { return "sum by (" + labels + ") (" + sel(metric) + ")" }
	return &board{
		name: "memory",
		desc: "Device memory by the ledgers of engines. Where an engine keeps none, and at level off, figures are missing, which is not 0.",
		sections: []section{
			{"Bytes", []panel{
				{title: "Live and peak", desc: "Live device allocations, and the most that they have been. Guard bands and arenas are not counted.", unit: "bytes", targets: []target{
					{expr: by("engine", "lanetrace_memory_live_bytes"), legend: "{{engine}} live"},
					{expr: by("engine", "lanetrace_memory_peak_bytes"), legend: "{{engine}} peak"}}},
				{title: "Live by call site", desc: "The call sites that hold most, and other for the rest that have no series of their own.", kind: areas, unit: "bytes", targets: []target{
					{expr: "topk(20, " + by("site", "lanetrace_memory_site_live_bytes") + ")", legend: "{{site}}"}}},
				{title: "Slack", desc: "What the driver keeps beyond allocations: the rest of the chunks that hold small ones, and what large ones are rounded up by.", kind: areas, unit: "bytes", targets: []target{
					{expr: by("engine, kind", "lanetrace_memory_slack_bytes"), legend: "{{engine}} {{kind}}"}}},
				{title: "Slack of live bytes", desc: "Both kinds of slack as a share of what is live.", unit: "percentunit", targets: []target{
					{expr: by("engine", "lanetrace_memory_slack_bytes") + " / (" + by("engine", "lanetrace_memory_live_bytes") + " > 0)", legend: "{{engine}}"}}},
				{title: "Guard bands and arenas", desc: "Bytes of guard bands behind live allocations, and of arenas, which are in no other figure.", unit: "bytes", targets: []target{
					{expr: by("engine", "lanetrace_memory_guard_bands_bytes"), legend: "{{engine}} guard bands"},
					{expr: by("engine", "lanetrace_memory_arenas_bytes"), legend: "{{engine}} arenas"}}},
				{title: "Live allocations", desc: "How many allocations are live.", unit: "short", targets: []target{
					{expr: by("engine", "lanetrace_memory_allocations_live"), legend: "{{engine}}"}}},
			}},
			{"Rate and growth", []panel{
				{title: "Allocations and frees", desc: "Device allocations made, and taken off the ledger to be freed.", unit: perSecond("calls"), targets: []target{
					{expr: sumRate("engine", sel("lanetrace_memory_allocations_total")), legend: "{{engine}} allocations"},
					{expr: sumRate("engine", sel("lanetrace_memory_frees_total")), legend: "{{engine}} frees"}}},
				{title: "Suspected leaks", desc: "Call sites that did nothing but grow for ten minutes (--leak-window), by how fast. other is 0 unless there are more suspects than series.", unit: "binBps", red: true, targets: []target{
					{expr: sel("lanetrace_memory_site_growth_bytes_per_second"), legend: "{{engine}} {{site}}"}}},
			}},
			{"Violations", []panel{
				{title: "Guard bands violated", desc: "Guard bands found changed since the engine began: something wrote past an allocation's end.", kind: value, unit: "short", red: true, width: 6, targets: []target{
					{expr: by("engine", "lanetrace_memory_violations_total"), legend: "{{engine}}"}}},
				{title: "Guard band scans", desc: "Scans of all guard bands since the engine began. Without scans nothing is found.", kind: value, unit: "short", width: 6, targets: []target{
					{expr: by("engine", "lanetrace_memory_scans_total"), legend: "{{engine}}"}}},
				{title: "Engines with a ledger", desc: "1 while the engine keeps these figures up to date.", kind: value, unit: "short", width: 12, targets: []target{
					{expr: by("engine", "lanetrace_memory_tracked"), legend: "{{engine}}"}}},
				{title: "Problems", desc: "Allocations and frees that the driver refused, unknown frees, allocations without a place on the ring's table, and addresses whose former owner was never freed.", unit: perSecond("problems"), width: 24, targets: []target{
					{expr: sumRate("engine, reason", sel("lanetrace_memory_problems_total")), legend: "{{engine}} {{reason}}"}}},
			}},
		},
	}
}
