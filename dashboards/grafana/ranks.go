package main

// ranks compares the engines of one model: who is late, and who waits for it.
func ranks() *board {
	const (
		ownTime    = "engine:lanetrace_own_time_per_step:rate15m"
		collective = "engine:lanetrace_collective_time_per_step:rate15m"
		lateness   = "engine:lanetrace_rank_lateness:rate15m"
		lane       = `lane=~"$lane"`
	)
	return &board{
		name: "ranks", lanes: true,
		desc: "The ranks of a model side by side. Ranks wait for each other in collectives: all their lanes become as long as the slowest. Who is late has the most work of its own and waits least in collectives; the others are not to blame.",
		sections: []section{
			{"Who is late", []panel{
				{title: "The late rank", desc: "How much more of its own work each rank has in a step than the least of its peers: the same service, model and pipeline stage. The longest bar is who the others wait for. Collectives are left out, since waiting is in them.", kind: bars, unit: "s", width: 24, none: noKernels + " on every rank", targets: []target{
					{expr: "sort_desc(" + sel(lateness) + ")", legend: "{{engine}}"}}},
				{title: "Own work in a step", desc: "Lane time of a step less the time in collective kernels (15 minutes).", unit: "s", targets: []target{
					{expr: sel(ownTime), legend: "{{engine}}"}}},
				{title: "In collectives in a step", desc: "Time of a step in collective kernels, as armed steps measured it (15 minutes). Who waits has much of it; who is late has least.", unit: "s", none: noKernels, targets: []target{
					{expr: sel(collective), legend: "{{engine}}"}}},
			}},
			{"The same lane across ranks", []panel{
				{title: "Lane duration by rank, p50", desc: "The median of the chosen lanes. Lanes with a collective in them are equally long on all ranks.", unit: "s", targets: []target{
					{expr: quantile("0.5", "engine, lane", "lanetrace_gpu_lane_duration_seconds", lane), legend: "{{lane}} {{engine}}"}}},
				{title: "Lane duration by rank, p99", desc: "The 99th percentile of the chosen lanes.", unit: "s", targets: []target{
					{expr: quantile("0.99", "engine, lane", "lanetrace_gpu_lane_duration_seconds", lane), legend: "{{lane}} {{engine}}", exemplar: true}}},
				{title: "Spread of the mean lane across ranks", desc: "The longest rank's mean less the shortest one's.", unit: "s", targets: []target{
					{expr: "max by (lane) (" + mean("engine, lane", "lanetrace_gpu_lane_duration_seconds", lane) + ") - min by (lane) (" + mean("engine, lane", "lanetrace_gpu_lane_duration_seconds", lane) + ")", legend: "{{lane}}"}}},
				{title: "Queue delay by rank, p50", desc: "How far each rank's host runs ahead of its GPU. A rank whose host is late has least.", unit: "s", targets: []target{
					{expr: quantile("0.5", "engine, lane", "lanetrace_gpu_lane_queue_delay_seconds", lane), legend: "{{lane}} {{engine}}"}}},
			}},
			{"Ranks", []panel{
				{title: "Steps a second by rank", desc: "Ranks of one model take the same steps; one that takes fewer is not in step, or loses entries.", unit: perSecond("steps"), targets: []target{
					{expr: sumRate("engine", sel("lanetrace_steps_total")), legend: "{{engine}}"}}},
				{title: "Uncertainty of GPU clocks by rank", desc: "Differences below the sum of two of these say nothing where positions are compared. Durations are not touched.", unit: "s", targets: []target{
					{expr: "max by (engine) (" + sel("lanetrace_clock_uncertainty_seconds") + ")", legend: "{{engine}}"}}},
				{title: "Engines", desc: "Which run stands behind the label engine, with its ranks and its device.", kind: rows, told: true, unit: "none", width: 24, targets: []target{
					{expr: sel("lanetrace_engine_info", `gpu=~"$gpu"`), legend: "{{engine}}"}}},
			}},
		},
	}
}
