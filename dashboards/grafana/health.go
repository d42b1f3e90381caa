package main

// health is the account of what was measured, and of those who measure.
func health() *board {
	sum := func(metric string, more ...string) string { return "sum by (engine) (" + sel(metric, more...) + ")" }
	ownRate := func(by, metric string, more ...string) string { return sumRate(by, own(metric, more...)) }
	return &board{
		name: "health",
		desc: "The loss account of every engine, line by line, and the sidecars that keep it. Whatever moves is not balanced to the last span; at rest all three lines are 0.",
		sections: []section{
			{"The account", []panel{
				{title: "Spans unaccounted for in engines", desc: "Spans begun less landed, failed, dropped and in flight. 0 at rest.", kind: value, unit: "short", width: 8, targets: []target{
					{expr: sum("lanetrace_spans_begun_total") + " - " + sum("lanetrace_spans_landed_total") + " - " + sum("lanetrace_spans_failed_total") + " - " + sum("lanetrace_spans_dropped_total") + " - " + sum("lanetrace_spans_in_flight"), legend: "{{engine}}"}}},
				{title: "Entries unaccounted for", desc: "Ring entries published less received, lost, missed before attach and pending. 0 at rest.", kind: value, unit: "short", width: 8, targets: []target{
					{expr: sum("lanetrace_entries_published_total") + " - " + sum("lanetrace_entries_received_total") + " - " + sum("lanetrace_entries_lost_total") + " - " + sum("lanetrace_entries_missed_before_attach_total") + " - " + sum("lanetrace_entries_pending"), legend: "{{engine}}"}}},
				{title: "Spans unaccounted for in sidecars", desc: "Spans that the sidecar received less exported, not selected, rejected, dropped and pending. 0 at rest.", kind: value, unit: "short", width: 8, targets: []target{
					{expr: sum("lanetrace_sidecar_spans_received_total") + " - " + sum("lanetrace_sidecar_spans_exported_total") + " - " + sum("lanetrace_sidecar_spans_not_selected_total") + " - " + sum("lanetrace_sidecar_spans_rejected_total") + " - " + sum("lanetrace_sidecar_spans_dropped_total") + " - " + sum("lanetrace_sidecar_spans_pending"), legend: "{{engine}}"}}},
				{title: "Spans dropped", desc: "Since the engine began, for want of a free event pair.", kind: value, unit: "short", width: 6, red: true, targets: []target{
					{expr: sum("lanetrace_spans_dropped_total"), legend: "{{engine}}"}}},
				{title: "Spans failed", desc: "Since the engine began: begun, and never to land.", kind: value, unit: "short", width: 6, red: true, targets: []target{
					{expr: sum("lanetrace_spans_failed_total"), legend: "{{engine}}"}}},
				{title: "Entries lost", desc: "Ring entries that were overwritten before they were read, never completed, or in a ring that was damaged.", kind: value, unit: "short", width: 6, red: true, targets: []target{
					{expr: sum("lanetrace_entries_lost_total"), legend: "{{engine}}"}}},
				{title: "Spans dropped by the sidecar", desc: "Since the sidecar began to read the engine.", kind: value, unit: "short", width: 6, red: true, targets: []target{
					{expr: sum("lanetrace_sidecar_spans_dropped_total"), legend: "{{engine}}"}}},
			}},
			{"Spans and entries", []panel{
				{title: "Spans in the engine", desc: "Spans begun and landed a second; failed and dropped ones by reason, where there are any.", unit: perSecond("spans"), targets: []target{
					{expr: sumRate("engine", sel("lanetrace_spans_begun_total")), legend: "{{engine}} begun"},
					{expr: sumRate("engine", sel("lanetrace_spans_landed_total")), legend: "{{engine}} landed"},
					{expr: sumRate("engine, reason", sel("lanetrace_spans_failed_total")) + " > 0", legend: "{{engine}} failed: {{reason}}"},
					{expr: sumRate("engine, reason", sel("lanetrace_spans_dropped_total")) + " > 0", legend: "{{engine}} dropped: {{reason}}"}}},
				{title: "Spans in flight", desc: "Begun, and not yet landed, failed or dropped.", unit: "short", targets: []target{
					{expr: sum("lanetrace_spans_in_flight"), legend: "{{engine}}"}}},
				{title: "Oldest span in flight", desc: "How long ago it was enqueued. Of an engine that hangs it grows.", unit: "s", targets: []target{
					{expr: "max by (engine) (" + sel("lanetrace_spans_in_flight_age_seconds") + ")", legend: "{{engine}}"}}},
				{title: "Ring entries", desc: "Entries published, received, lost, and missed before reading began, a second.", unit: perSecond("entries"), targets: []target{
					{expr: sumRate("engine", sel("lanetrace_entries_published_total")), legend: "{{engine}} published"},
					{expr: sumRate("engine", sel("lanetrace_entries_received_total")), legend: "{{engine}} received"},
					{expr: sumRate("engine, reason", sel("lanetrace_entries_lost_total")), legend: "{{engine}} lost: {{reason}}"},
					{expr: sumRate("engine", sel("lanetrace_entries_missed_before_attach_total")), legend: "{{engine}} missed"}}},
				{title: "Lag", desc: "Ring entries published and not yet read, and steps that are held open.", unit: "short", targets: []target{
					{expr: sum("lanetrace_entries_pending"), legend: "{{engine}} entries"},
					{expr: sum("lanetrace_steps_open"), legend: "{{engine}} open steps"}}},
				{title: "Seconds that the ring holds", desc: "How far back the log reaches at the present rate: a sidecar that is away for longer loses entries.", unit: "s", targets: []target{
					{expr: "min by (engine) (" + sel("lanetrace_ring_held_seconds") + ")", legend: "{{engine}}"}}},
				{title: "Spans in the sidecar", desc: "Spans received, exported and rejected a second; those not selected and dropped by reason, where there are any.", unit: perSecond("spans"), targets: []target{
					{expr: sumRate("engine", sel("lanetrace_sidecar_spans_received_total")), legend: "{{engine}} received"},
					{expr: sumRate("engine", sel("lanetrace_sidecar_spans_exported_total")), legend: "{{engine}} exported"},
					{expr: sumRate("engine, reason", sel("lanetrace_sidecar_spans_not_selected_total")) + " > 0", legend: "{{engine}} not selected: {{reason}}"},
					{expr: sumRate("engine", sel("lanetrace_sidecar_spans_rejected_total")), legend: "{{engine}} rejected"},
					{expr: sumRate("engine, reason", sel("lanetrace_sidecar_spans_dropped_total")) + " > 0", legend: "{{engine}} dropped: {{reason}}"}}},
				{title: "Spans pending in the sidecar", desc: "Spans in open steps and in the export queue.", unit: "short", targets: []target{
					{expr: sum("lanetrace_sidecar_spans_pending"), legend: "{{engine}}"}}},
				{title: "Entries ignored", desc: "Entries that made no span: malformed, late, or of another kind. Only malformed ones are a fault.", unit: perSecond("entries"), targets: []target{
					{expr: sumRate("engine, reason", sel("lanetrace_entries_ignored_total")), legend: "{{engine}} {{reason}}"}}},
				{title: "Requests evicted", desc: "Requests that made room for others before they ended: their summaries lack steps.", unit: perSecond("requests"), targets: []target{
					{expr: sumRate("engine", sel("lanetrace_requests_evicted_total")), legend: "{{engine}}"}}},
			}},
			{"Engines", []panel{
				{title: "Engines live", desc: "Engines that are read now.", kind: value, unit: "short", width: 6, targets: []target{
					{expr: "sum(" + own("lanetrace_engines_live") + ")", legend: "live"}}},
				{title: "Engines ended", desc: "Seen to end since the sidecars began: ended closed its ring, died did not.", kind: value, unit: "short", width: 6, targets: []target{
					{expr: "sum by (reason) (" + own("lanetrace_engines_ended_total") + ")", legend: "{{reason}}"}}},
				{title: "Rings that cannot be read", desc: "Since the sidecars began, by reason.", kind: value, unit: "short", width: 6, red: true, targets: []target{
					{expr: "sum by (reason) (" + own("lanetrace_rings_failed_total") + ")", legend: "{{reason}}"}}},
				{title: "Flight records", desc: "Written of engines that died or hung, and those that could not be written.", kind: value, unit: "short", width: 6, targets: []target{
					{expr: "sum by (reason) (" + own("lanetrace_flight_records_total") + ")", legend: "{{reason}}"},
					{expr: "sum by (reason) (" + own("lanetrace_flight_failed_total") + ")", legend: "{{reason}}, not written"}}},
				{title: "Engines up", desc: "1 while the engine lives, 0 after its end until its series end.", unit: "short", targets: []target{
					{expr: "max by (engine) (" + sel("lanetrace_engine_up") + ")", legend: "{{engine}}"}}},
				{title: "Level", desc: "0 off, 1 basic, 2 lane, 3 kernel.", unit: "short", targets: []target{
					{expr: "max by (engine) (" + sel("lanetrace_engine_level") + ")", legend: "{{engine}}"}}},
				{title: "Problems in engines", desc: "What the library noted and carried on after.", unit: perSecond("problems"), width: 24, targets: []target{
					{expr: sumRate("engine, reason", sel("lanetrace_producer_problems_total")), legend: "{{engine}} {{reason}}"}}},
				{title: "Steps and requests as engines count them", desc: "Unlike the sidecar's figures these lack none whose entries were lost. Untimed steps are those whose lanes were left out, to stay within the budget for lanes.", unit: perSecond(""), width: 24, targets: []target{
					{expr: sumRate("engine, state", sel("lanetrace_producer_steps_total")), legend: "{{engine}} steps {{state}}"},
					{expr: sumRate("engine", sel("lanetrace_producer_requests_total")), legend: "{{engine}} requests"},
					{expr: sumRate("engine", sel("lanetrace_producer_control_applied_total")), legend: "{{engine}} control requests"}}},
				{title: "What telemetry costs engines: calls", desc: "Driver calls made for telemetry alone, those that read event pairs, and harvests, a second.", unit: perSecond("calls"), targets: []target{
					{expr: sumRate("engine", sel("lanetrace_producer_driver_calls_total")), legend: "{{engine}} driver calls"},
					{expr: sumRate("engine", sel("lanetrace_producer_harvest_calls_total")), legend: "{{engine}} reading pairs"},
					{expr: sumRate("engine", sel("lanetrace_producer_harvests_total")), legend: "{{engine}} harvests"}}},
				{title: "What telemetry costs engines: time", desc: "Time spent reading completed event pairs, a second, on a thread of its own unless the engine does it.", unit: "percentunit", targets: []target{
					{expr: sumRate("engine", sel("lanetrace_producer_harvest_time_seconds_total")), legend: "{{engine}}"}}},
				{title: "What telemetry costs engines: share of step time", desc: "What timing kernels and lanes is reckoned to take of the time of steps: over the range shown, and by the sidecar over half a minute to a minute. Budgets hold it down.", unit: "percentunit", targets: []target{
					{expr: sumRate("engine, kind", sel("lanetrace_producer_overhead_time_seconds_total")) + " / on (engine) group_left () " + sumRate("engine", sel("lanetrace_producer_step_time_seconds_total")), legend: "{{engine}} {{kind}}"},
					{expr: "max by (engine, kind) (" + sel("lanetrace_producer_overhead_share_ratio") + ")", legend: "{{engine}} {{kind}}, lately"}}},
				{title: "Steps for each timed one", desc: "The strides that budgets allow now: the kernels of one step in so many are timed, and the lanes of one in so many (1 is all). 0 is none.", unit: "short", targets: []target{
					{expr: "max by (engine) (" + sel("lanetrace_engine_arming_stride") + ")", legend: "{{engine}} kernels"},
					{expr: "max by (engine) (" + sel("lanetrace_engine_lanes_stride") + ")", legend: "{{engine}} lanes"}}},
			}},
			{"Export", []panel{
				{title: "Export queue", desc: "Encoded spans that wait to be sent, and where the oldest begin to be dropped.", unit: "bytes", targets: []target{
					{expr: own("lanetrace_export_queue_size_bytes"), legend: "{{instance}} queued"},
					{expr: own("lanetrace_export_queue_limit_bytes"), legend: "{{instance}} limit"}}},
				{title: "Export requests", desc: "Requests with spans, and pushes of metrics, by what came of them.", unit: perSecond("requests"), targets: []target{
					{expr: ownRate("instance, reason", "lanetrace_export_requests_total"), legend: "{{instance}} spans {{reason}}"},
					{expr: ownRate("instance, reason", "lanetrace_export_metrics_total"), legend: "{{instance}} metrics {{reason}}"}}},
				{title: "Sent", desc: "Bytes a second of encoded spans that a receiver took.", unit: "binBps", targets: []target{
					{expr: ownRate("instance", "lanetrace_export_sent_bytes_total"), legend: "{{instance}}"}}},
				{title: "Recordings kept", desc: "Bytes kept on disk, and where the oldest begin to go; 0 when none are kept.", unit: "bytes", targets: []target{
					{expr: own("lanetrace_keep_size_bytes"), legend: "{{instance}} kept"},
					{expr: own("lanetrace_keep_limit_bytes"), legend: "{{instance}} limit"}}},
				{title: "Entries kept", desc: "Entries a second for the recordings: written, or lost.", unit: perSecond("entries"), width: 24, targets: []target{
					{expr: ownRate("instance, reason", "lanetrace_keep_entries_total"), legend: "{{instance}} {{reason}}"}}},
			}},
			{"Sidecars", []panel{
				{title: "Processor time of sidecars", desc: "Processors in use.", unit: "percentunit", targets: []target{
					{expr: ownRate("instance, cpu_mode", "process_cpu_time_seconds_total"), legend: "{{instance}} {{cpu_mode}}"}}},
				{title: "Memory of sidecars", desc: "Resident memory, the engines' rings among it, and what the sidecar needs itself.", unit: "bytes", targets: []target{
					{expr: own("process_memory_usage_bytes"), legend: "{{instance}} resident"},
					{expr: own("lanetrace_sidecar_memory_anonymous_bytes"), legend: "{{instance}} its own"}}},
				{title: "Descriptors and goroutines of sidecars", desc: "Both are flat in a sidecar that is well.", unit: "short", targets: []target{
					{expr: own("process_unix_file_descriptor_count"), legend: "{{instance}} descriptors"},
					{expr: own("go_goroutine_count"), legend: "{{instance}} goroutines"}}},
				{title: "Versions", desc: "Sidecars by version.", kind: rows, unit: "none", targets: []target{
					{expr: "count by (version) (" + own("lanetrace_build_info") + ")", legend: "{{version}}"}}},
			}},
		},
	}
}
