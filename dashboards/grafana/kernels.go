package main

// noKernels stands where no kernel was timed.
const noKernels = "No kernel was timed: that takes level kernel"

// kernels is where the time goes within lanes.
func kernels() *board {
	// often is what a rule has of a step, times the steps a second.
	often := func(by, rule string) string {
		const engine = "job, instance, engine"
		return "topk(20, sum by (" + by + ") (" + sel(rule) + " * on (" + engine + ") group_left () " + sumRate(engine, sel("lanetrace_steps_total")) + "))"
	}
	kernelTime := often("kernel", "engine_kernel:lanetrace_gpu_kernel_time_per_step:ratio_rate15m")
	return &board{
		name: "kernels",
		desc: "Kernels and graphs, which are timed on armed steps only. What a step has of each is a mean over the armed steps of 15 minutes, by recording rules; times the steps a second it stands for all steps.",
		sections: []section{
			{"Kernels", []panel{
				{title: "Kernels by GPU time", desc: "GPU seconds a second of each kernel over all steps, as measured on armed ones.", kind: bars, unit: "percentunit", none: noKernels, targets: []target{
					{expr: kernelTime, legend: "{{kernel}}"}}},
				{title: "Kernel time", desc: "The same over time.", kind: areas, unit: "percentunit", none: noKernels, targets: []target{
					{expr: kernelTime, legend: "{{kernel}}"}}},
				{title: "Kernel launches a second", desc: "Launches a second of each kernel over all steps, as counted on armed ones.", unit: perSecond("launches"), none: noKernels, targets: []target{
					{expr: often("kernel", "engine_kernel:lanetrace_gpu_kernel_launches_per_step:ratio_rate15m"), legend: "{{kernel}}"}}},
				{title: "Mean kernel duration", desc: "A kernel on the GPU, less what timing it takes.", unit: "s", none: noKernels, targets: []target{
					{expr: "topk(20, " + mean("kernel", "lanetrace_gpu_kernel_armed_duration_seconds") + ")", legend: "{{kernel}}"}}},
				{title: "Kernel duration, p99", desc: "The 99th percentile of each kernel on armed steps.", unit: "s", none: noKernels, targets: []target{
					{expr: "topk(20, " + quantile("0.99", "kernel", "lanetrace_gpu_kernel_armed_duration_seconds") + ")", legend: "{{kernel}}"}}},
				{title: "Queued and starved", desc: "Kernels and graphs with work queued ahead of them, and those whose stream had run dry: the latter hold launch latency.", kind: areas, unit: perSecond("spans"), targets: []target{
					{expr: "sum(" + rate(sel("lanetrace_spans_queued_total")) + ")", legend: "queued"},
					{expr: "sum(" + rate(sel("lanetrace_spans_starved_total")) + ")", legend: "starved"}}},
			}},
			{"Graphs", []panel{
				{title: "Graph time", desc: "GPU seconds a second of each graph over all steps, as measured on armed ones.", kind: areas, unit: "percentunit", targets: []target{
					{expr: often("graph", "engine_graph:lanetrace_gpu_graph_time_per_step:ratio_rate15m"), legend: "{{graph}}"}}},
				{title: "Graph launch duration", desc: "A graph launch on the GPU on armed steps: mean and 99th percentile.", unit: "s", none: "No graph was launched on an armed step", targets: []target{
					{expr: "topk(20, " + mean("graph", "lanetrace_gpu_graph_armed_duration_seconds") + ")", legend: "{{graph}} mean"},
					{expr: "topk(20, " + quantile("0.99", "graph", "lanetrace_gpu_graph_armed_duration_seconds") + ")", legend: "{{graph}} p99"}}},
			}},
			{"Armed steps", []panel{
				{title: "Time of armed steps", desc: "Kernels running in a lane or outside, and launch gaps within lanes, of which about 3 µs a kernel is what timing it takes.", kind: areas, unit: "percentunit", targets: []target{
					{expr: sumRate("state", sel("lanetrace_gpu_armed_time_seconds_total")), legend: "{{state}}"}}},
				{title: "Share of lane time in kernels, 15 minutes", desc: "On armed steps; the rest is launch gaps.", unit: "percentunit", targets: []target{
					{expr: sel("engine:lanetrace_gpu_busy_in_lane:ratio_rate15m"), legend: "{{engine}}"}}},
				{title: "Steps for each armed one, 15 minutes", desc: "How many steps there were for each whose kernels were timed, and the stride at which steps are armed now.", unit: "short", targets: []target{
					{expr: sel("engine:lanetrace_steps_per_armed_step:ratio_rate15m"), legend: "{{engine}} measured"},
					{expr: sel("lanetrace_engine_arming_stride"), legend: "{{engine}} stride"}}},
				{title: "Launches on armed steps", desc: "Launches a second on armed steps, timed or not.", unit: perSecond("launches"), targets: []target{
					{expr: sumRate("engine", sel("lanetrace_producer_launches_total")), legend: "{{engine}}"}}},
				{title: "What arming costs a lane", desc: "The mean of armed steps' lanes beside that of the others. Steps are armed by count, but also after slow ones.", unit: "s", targets: []target{
					{expr: mean("lane", "lanetrace_gpu_lane_armed_duration_seconds"), legend: "{{lane}} armed"},
					{expr: mean("lane", "lanetrace_gpu_lane_duration_seconds"), legend: "{{lane}}"}}},
				{title: "What arming costs a step", desc: "The mean of armed steps beside that of the others.", unit: "s", targets: []target{
					{expr: mean("engine", "lanetrace_step_armed_duration_seconds"), legend: "{{engine}} armed"},
					{expr: mean("engine", "lanetrace_step_duration_seconds"), legend: "{{engine}}"}}},
			}},
			{"Launch trace", []panel{
				{title: "Executions of regions", desc: "Executions of regions whose launches are recorded.", unit: perSecond("executions"), targets: []target{
					{expr: sumRate("region", sel("lanetrace_launchtrace_executions_total")), legend: "{{region}}"}}},
				{title: "Executions that differ", desc: "Those that enqueued other operations than the one before, and how many operations.", unit: perSecond(""), targets: []target{
					{expr: sumRate("region", sel("lanetrace_launchtrace_differing_executions_total")), legend: "{{region}} executions"},
					{expr: sumRate("region", sel("lanetrace_launchtrace_differing_ops_total")), legend: "{{region}} operations"}}},
			}},
		},
	}
}
