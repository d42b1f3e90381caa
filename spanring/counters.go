package spanring

// Counter names one of the producer's counters in the header. They only grow,
// but for the gauges of memory, are written by the producer alone, and survive
// it: a reader finds them in a dead engine's file.
type Counter uint8

// The producer's side of the loss account, in spans (steps included):
//
//	begun = landed + failed{reason} + dropped + in flight
const (
	// CtrBegun counts spans begun: steps, lanes, kernels, graph launches, and
	// requests, which begin for the account when they end.
	CtrBegun Counter = 0
	// CtrDropped counts spans that found no free pair slot.
	CtrDropped Counter = 1
	// CtrLanded counts spans whose times were read and written to the log, and
	// steps and requests that ended.
	CtrLanded Counter = 16
	// CtrFailedFirst is the counter of the first Reason; the others follow in the
	// order of the reasons.
	CtrFailedFirst Counter = 17
)

// Reason is why a begun span did not land.
type Reason uint8

const (
	// FailNone is no failure.
	FailNone Reason = iota
	// FailRecord: the driver refused an event record.
	FailRecord
	// FailUnreadable: reading the pair returned neither success nor not-ready.
	FailUnreadable
	// FailCapture: the end would have landed in a stream capture.
	FailCapture
	// FailAbandoned: never ended within the time-out after its step's end.
	FailAbandoned
	// FailReplayed: a pair inside a graph was stamped again before it was read.
	FailReplayed
	// FailLaunch: the launch that the pair should have bracketed was refused.
	FailLaunch
	// FailClosed: still in flight when its recorder was closed or replaced, or the
	// graph that it is in destroyed.
	FailClosed
	// FailEndBeforeStart: the GPU's end stamp lies before its start stamp.
	FailEndBeforeStart
	// FailNotFinite: the driver's value is NaN or infinite.
	FailNotFinite
	// FailZero: a pair that measures nothing at all.
	FailZero
	// FailTooLong: longer than from its enqueue until it was seen complete, plus
	// the clock's uncertainty.
	FailTooLong
	// FailMisplaced: its place on the host's clock contradicts when it was
	// enqueued or seen complete by more than the clock's uncertainty.
	FailMisplaced

	numReasons
)

// NumReasons is the number of reasons, FailNone included.
const NumReasons = int(numReasons)

var reasonText = [NumReasons]string{
	"none", "record", "unreadable", "capture", "abandoned", "replayed", "launch", "closed",
	"end_before_start", "not_finite", "zero", "too_long", "misplaced",
}

// String is the value of the metric label reason.
func (r Reason) String() string {
	if int(r) < NumReasons {
		return reasonText[r]
	}
	return "unknown"
}

// Counter returns the counter of r, which must not be FailNone.
func (r Reason) Counter() Counter { return CtrFailedFirst + Counter(r) - 1 }

// The rest of the producer's counters. Those below 16 are written by the threads
// that serve, the others mostly by the harvester: they share no cache line.
const (
	// CtrStepsBegun and CtrStepsEnded count steps; their difference is open, or was
	// never ended.
	CtrStepsBegun Counter = 2
	CtrStepsEnded Counter = 3
	// CtrStepsArmed counts steps whose kernels were timed.
	CtrStepsArmed Counter = 4
	// CtrUnattributed counts launches on armed steps that belong to no lane and
	// no step, and were not timed.
	CtrUnattributed Counter = 5
	// CtrCapturing counts lanes and launches not opened because their stream was
	// capturing (or its capture status could not be had).
	CtrCapturing Counter = 6
	// CtrStaleEnds counts ends whose handle was already ended or abandoned.
	CtrStaleEnds Counter = 7
	// CtrMisuse counts calls that could not be right: an unknown lane, a step
	// ended twice, a lane begun on an ended step.
	CtrMisuse Counter = 8
	// CtrGivenUp counts log entries given up because their place was still being
	// written.
	CtrGivenUp Counter = 9
	// CtrNamesFull counts names that no longer fitted the table.
	CtrNamesFull Counter = 10
	// CtrLaunches counts kernel launches made through the backend, timed or not,
	// on armed steps.
	CtrLaunches Counter = 11
	// CtrPoolsFailed counts pools of event pairs that could not be made.
	CtrPoolsFailed Counter = 12
	// CtrControlApplied and CtrControlRejected count requests from the control
	// file.
	CtrControlApplied  Counter = 13
	CtrControlRejected Counter = 14
	// CtrRequests counts requests whose end was written.
	CtrRequests Counter = 15

	// CtrQueued and CtrStarved count landed kernel and graph spans by whether
	// work was queued ahead of them.
	CtrQueued  Counter = 40
	CtrStarved Counter = 41
	// CtrAnchors and CtrAnchorsGivenUp count clock anchors taken, and tries that
	// outlived their bound.
	CtrAnchors        Counter = 42
	CtrAnchorsGivenUp Counter = 43
	// CtrHarvests, CtrHarvestCalls and CtrHarvestNS count harvests, the driver
	// calls they made, and the time they took in nanoseconds.
	CtrHarvests     Counter = 44
	CtrHarvestCalls Counter = 45
	CtrHarvestNS    Counter = 46
	// CtrDriverCalls counts every driver call of telemetry's own.
	CtrDriverCalls Counter = 47

	// CtrLaunchExecutions counts executions of regions whose launches were recorded,
	// CtrLaunchDiffs those that differed from the one before, and CtrLaunchDiffOps
	// the operations in which they did.
	CtrLaunchExecutions Counter = 100
	CtrLaunchDiffs      Counter = 101
	CtrLaunchDiffOps    Counter = 102
	// CtrLaunchOpsDropped counts operations that were not recorded because the
	// recorder's memory was full.
	CtrLaunchOpsDropped Counter = 103
	// CtrOverlapping counts launches on armed steps that were not timed because
	// they overlap the launch before them (programmatic dependent launches): an
	// event between the two would end that.
	CtrOverlapping Counter = 104
	// CtrStepTimeNS is the time of steps in nanoseconds, each its part on the host or
	// on the GPU, whichever is longer, and no moment twice: what overhead is a share
	// of. CtrArmedCostNS and CtrLaneCostNS are what timing launches and lanes is
	// reckoned to have cost.
	CtrStepTimeNS  Counter = 105
	CtrArmedCostNS Counter = 106
	CtrLaneCostNS  Counter = 107
	// CtrStepsUntimed counts steps whose lanes were not timed, within the budget for
	// lanes.
	CtrStepsUntimed Counter = 108

	// NumCounters is the number of counter words a reader copies. Numbers without
	// a name are reserved and read 0.
	NumCounters Counter = 128
)

var counterText = map[Counter]string{
	CtrBegun: "begun", CtrLanded: "landed", CtrDropped: "dropped",
	CtrStepsBegun: "steps_begun", CtrStepsEnded: "steps_ended", CtrStepsArmed: "steps_armed",
	CtrQueued: "queued", CtrStarved: "starved", CtrUnattributed: "unattributed",
	CtrCapturing: "capturing", CtrStaleEnds: "stale_ends", CtrMisuse: "misuse",
	CtrGivenUp: "given_up", CtrNamesFull: "names_full",
	CtrAnchors: "anchors", CtrAnchorsGivenUp: "anchors_given_up",
	CtrHarvests: "harvests", CtrHarvestCalls: "harvest_calls", CtrHarvestNS: "harvest_ns",
	CtrDriverCalls: "driver_calls", CtrPoolsFailed: "pools_failed",
	CtrControlApplied: "control_applied", CtrControlRejected: "control_rejected",
	CtrRequests: "requests", CtrLaunches: "launches", CtrLaunchExecutions: "launch_executions", CtrLaunchDiffs: "launch_diffs",
	CtrLaunchDiffOps: "launch_diff_ops", CtrLaunchOpsDropped: "launch_ops_dropped",
	CtrOverlapping: "overlapping", CtrStepTimeNS: "step_time_ns", CtrArmedCostNS: "armed_cost_ns", CtrLaneCostNS: "lane_cost_ns",
	CtrStepsUntimed: "steps_untimed",

	CtrMemLiveBytes: "mem_live_bytes", CtrMemLiveCount: "mem_live_count", CtrMemPeakBytes: "mem_peak_bytes",
	CtrMemGuardBytes: "mem_guard_bytes", CtrMemChunkSlackBytes: "mem_chunk_slack_bytes",
	CtrMemRoundingSlackBytes: "mem_rounding_slack_bytes",
	CtrMemArenaBytes:         "mem_arena_bytes", CtrMemArenaCount: "mem_arena_count", CtrMemChunkBytes: "mem_chunk_bytes",
	CtrMemUnlistedBytes: "mem_unlisted_bytes", CtrMemUnlistedCount: "mem_unlisted_count",
	CtrAllocs: "allocs", CtrFrees: "frees", CtrAllocsFailed: "allocs_failed", CtrFreesFailed: "frees_failed",
	CtrFreesUnknown: "frees_unknown", CtrAllocsUnlisted: "allocs_unlisted", CtrAllocsReplaced: "allocs_replaced",
	CtrViolations: "violations", CtrRedzoneScans: "redzone_scans",
}

// String is the counter's name in JSON, lower case with underscores.
func (c Counter) String() string {
	if t, ok := counterText[c]; ok {
		return t
	}
	if c >= CtrFailedFirst && c < CtrFailedFirst+Counter(numReasons)-1 {
		return "failed_" + Reason(c-CtrFailedFirst+1).String()
	}
	return "reserved"
}

// Counters is a copy of a producer's counters.
type Counters [NumCounters]uint64

// Failed sums the failures of all reasons.
func (c *Counters) Failed() uint64 {
	var n uint64
	for r := FailRecord; r < numReasons; r++ {
		n += c[r.Counter()]
	}
	return n
}

// InFlight is begun - landed - failed - dropped. While spans begin and land
// during the copy it can be off by those.
func (c *Counters) InFlight() int64 {
	return int64(c[CtrBegun]) - int64(c[CtrLanded]) - int64(c.Failed()) - int64(c[CtrDropped])
}
