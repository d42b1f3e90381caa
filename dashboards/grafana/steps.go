package main

// steps is what an engine's steps and lanes take, and where the GPU's time goes.
func steps() *board {
	const lane = `lane=~"$lane"`
	return &board{
		name: "steps", lanes: true,
		desc: "Steps and lanes of engines by the GPU's own clock. Armed steps, whose kernels were timed, are left out of durations.",
		sections: []section{
			{"Steps", []panel{
				{title: "Steps a second", desc: "Steps closed, armed ones among them.", unit: perSecond("steps"), targets: []target{
					{expr: sumRate("engine", sel("lanetrace_steps_total")), legend: "{{engine}}"}}},
				{title: "Step duration", desc: "A step from the earlier of its begin on the host and its first span to the later of its end on the host and its last span. Points are exemplars: they lead to the trace.", unit: "s", targets: []target{
					{expr: quantile("0.5", "engine", "lanetrace_step_duration_seconds"), legend: "{{engine}} p50"},
					{expr: quantile("0.99", "engine", "lanetrace_step_duration_seconds"), legend: "{{engine}} p99", exemplar: true}}},
				{title: "Step duration, all of them", desc: "How many steps took how long. Points are exemplars: they lead to the trace.", kind: heat, unit: "s", targets: []target{
					{expr: "sum by (le) (increase(" + sel("lanetrace_step_duration_seconds_bucket") + "[$__rate_interval]))", legend: "{{le}}", exemplar: true}}},
				{title: "Steps on the host", desc: "A step's part on the host, from its begin to its end. An asynchronous engine's is shorter than the step.", unit: "s", targets: []target{
					{expr: quantile("0.5", "engine", "lanetrace_step_host_duration_seconds"), legend: "{{engine}} p50"},
					{expr: quantile("0.99", "engine", "lanetrace_step_host_duration_seconds"), legend: "{{engine}} p99"}}},
				{title: "What limits steps", desc: "Complete steps by what limited them: the GPU's work, the host's launches, or nothing that can be told from their spans.", kind: areas, unit: perSecond("steps"), width: 24, targets: []target{
					{expr: sumRate("bound", sel("lanetrace_steps_bound_total")), legend: "{{bound}}"}}},
			}},
			{"Lanes", []panel{
				{title: "Lane duration, all of them", desc: "How many lanes took how long on the GPU. Points are exemplars: they lead to the trace.", kind: heat, unit: "s", targets: []target{
					{expr: "sum by (le) (increase(" + sel("lanetrace_gpu_lane_duration_seconds_bucket", lane) + "[$__rate_interval]))", legend: "{{le}}", exemplar: true}}},
				{title: "Lane duration", desc: "Lanes on the GPU by their event pairs.", unit: "s", targets: []target{
					{expr: quantile("0.5", "lane", "lanetrace_gpu_lane_duration_seconds", lane), legend: "{{lane}} p50"},
					{expr: quantile("0.99", "lane", "lanetrace_gpu_lane_duration_seconds", lane), legend: "{{lane}} p99", exemplar: true}}},
				{title: "Lane time", desc: "GPU seconds a second of each lane of steps that were not armed. With a budget for lanes, those that were timed.", kind: areas, unit: "percentunit", targets: []target{
					{expr: sumRate("lane", sel("lanetrace_gpu_lane_duration_seconds_sum", lane)), legend: "{{lane}}"}}},
				{title: "Queue delay", desc: "From enqueueing a lane on the host to its start on the GPU: how far the host runs ahead.", unit: "s", targets: []target{
					{expr: quantile("0.5", "lane", "lanetrace_gpu_lane_queue_delay_seconds", lane), legend: "{{lane}} p50"},
					{expr: quantile("0.99", "lane", "lanetrace_gpu_lane_queue_delay_seconds", lane), legend: "{{lane}} p99"}}},
			}},
			{"GPU time outside lanes", []panel{
				{title: "GPU time", desc: "What the devices spent their time on: some lane ran (lane), none within a step (in_step), none between steps (between_steps), or lanes could not be seen (untimed), the level being too low or lanes left out to stay within their budget.", kind: areas, unit: "percentunit", targets: []target{
					{expr: sumRate("state", sel("lanetrace_gpu_time_seconds_total")), legend: "{{state}}"}}},
				{title: "Share of GPU time outside lanes", desc: "Of the time in which lanes could be seen, the part in which none ran.", unit: "percentunit", targets: []target{
					{expr: sumRate("engine", sel("lanetrace_gpu_time_seconds_total", `state=~"in_step|between_steps"`)) + " / (" +
						sumRate("engine", sel("lanetrace_gpu_time_seconds_total", `state!="untimed"`)) + " > 0)", legend: "{{engine}}"}}},
				{title: "Share of GPU time in lanes, 5 minutes", desc: "The recording rule of it, for alerts and long ranges.", unit: "percentunit", targets: []target{
					{expr: sel("engine:lanetrace_gpu_lane_time:ratio_rate5m"), legend: "{{engine}}"}}},
				{title: "GPU time known late", desc: "Seconds a second that became known after their place had been counted: GPU time is off by so much at most.", unit: "percentunit", targets: []target{
					{expr: sumRate("engine", sel("lanetrace_gpu_time_late_seconds_total")), legend: "{{engine}}"}}},
			}},
			{"Slow steps and traces", []panel{
				{title: "Longest steps", desc: "The upper end of the bucket with the longest step. Points are exemplars: they lead to the trace.", unit: "s", targets: []target{
					{expr: quantile("1", "engine", "lanetrace_step_duration_seconds"), legend: "{{engine}}", exemplar: true}}},
				{title: "Slow steps", desc: "Steps that exceed the 99th percentile of their class by half, by what became of timing the next ones kernel by kernel.", unit: perSecond("steps"), targets: []target{
					{expr: sumRate("reason", sel("lanetrace_steps_slow_total")), legend: "arming: {{reason}}"}}},
				{title: "Steps selected as traces", desc: "Steps selected for export, by why.", kind: areas, unit: perSecond("steps"), targets: []target{
					{expr: sumRate("reason", sel("lanetrace_steps_selected_total")), legend: "{{reason}}"}}},
				{title: "Incomplete steps", desc: "Steps closed before everything they opened was accounted for.", unit: perSecond("steps"), targets: []target{
					{expr: sumRate("engine, reason", sel("lanetrace_steps_incomplete_total")), legend: "{{engine}} {{reason}}"}}},
			}},
			{"Requests", []panel{
				{title: "Requests ended", desc: "Requests that ended, of those whose traces are recorded.", unit: perSecond("requests"), targets: []target{
					{expr: sumRate("engine", sel("lanetrace_requests_ended_total")), legend: "{{engine}}"}}},
				{title: "Requests open", desc: "Requests of which the sidecar gathers the steps.", unit: "short", targets: []target{
					{expr: "sum by (engine) (" + sel("lanetrace_requests_open") + ")", legend: "{{engine}}"}}},
			}},
		},
	}
}
