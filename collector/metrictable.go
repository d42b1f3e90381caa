package collector

import (
	"fmt"
	"strings"
)

// MetricType is what a metric's values mean.
type MetricType uint8

// The types of metrics.
const (
	TypeCounter   MetricType = iota // only grows, from 0 at a run's start
	TypeGauge                       // a current value
	TypeHistogram                   // explicit buckets
)

// String is the type's name.
func (t MetricType) String() string {
	switch t {
	case TypeCounter:
		return "counter"
	case TypeHistogram:
		return "histogram"
	}
	return "gauge"
}

// Metric describes one exported metric. docs/metrics.md is made from them.
type Metric struct {
	// Name and Unit are OpenTelemetry's.
	Name string
	Unit string
	Type MetricType
	// Labels are its attributes.
	Labels []string
	// Help is one sentence.
	Help string

	group string
	float bool // the instrument takes float64
}

// PrometheusName is the name that the Prometheus exporter translates Name to.
func (m *Metric) PrometheusName() string {
	n := strings.ReplaceAll(m.Name, ".", "_")
	switch m.Unit {
	case "s":
		n += "_seconds"
	case "By":
		n += "_bytes"
	case "By/s":
		n += "_bytes_per_second"
	case "J":
		n += "_joules"
	case "W":
		n += "_watts"
	case "Cel":
		n += "_celsius"
	case "Hz":
		n += "_hertz"
	case "1":
		if m.Type == TypeGauge {
			n += "_ratio"
		}
	}
	if m.Type == TypeCounter {
		n += "_total"
	}
	return n
}

// Device reports whether the metric is of a device's readings: its series are there
// only where a device reports it.
func (m *Metric) Device() bool { return m.group == gDevice }

// metrics is every metric of the project, in the order of the documentation.
var metrics []*Metric

// Metrics returns a description of every metric there is.
func Metrics() []Metric {
	out := make([]Metric, len(metrics))
	for i, m := range metrics {
		out[i] = *m
	}
	return out
}

func define(group string, t MetricType, name, unit, labels, help string) *Metric {
	return defineStandard(group, t, "lanetrace."+name, unit, labels, help)
}

// defineStandard defines a metric under a name that is not ours, but
// OpenTelemetry's conventions'.
func defineStandard(group string, t MetricType, name, unit, labels, help string) *Metric {
	m := &Metric{Name: name, Unit: unit, Type: t, Labels: strings.Fields(labels), Help: help, group: group}
	switch unit {
	case "s", "1", "By/s", "J", "W", "Cel", "Hz":
		m.float = true
	}
	metrics = append(metrics, m)
	return m
}

const (
	gSteps    = "Steps"
	gGPU      = "GPU time"
	gLaunches = "Launch trace"
	gMemory   = "Device memory"
	gProducer = "Loss account: the producer"
	gReader   = "Loss account: the reader"
	gSidecar  = "Loss account: the sidecar"
	gEngine   = "Engines"
	gClock    = "Clock and calibration"
	gDevice   = "Devices"
	gExport   = "Export"
	gOwn      = "The sidecar itself"
)

var (
	mStepDuration = define(gSteps, TypeHistogram, "step.duration", "s", "engine",
		"A step as its trace shows it, from the earlier of its begin on the host and its first span's start to the later of its end on the host and its last span's end; armed steps left out, and those whose lanes were left out of the timing.")
	mStepArmedDuration = define(gSteps, TypeHistogram, "step.armed.duration", "s", "engine",
		"The same of armed steps, whose kernels were timed.")
	mStepHostDuration = define(gSteps, TypeHistogram, "step.host.duration", "s", "engine",
		"A step on the host, from its begin to its end; armed steps left out.")
	mSteps = define(gSteps, TypeCounter, "steps", "{step}", "engine armed",
		"Steps closed; armed is true or false.")
	mStepsIncomplete = define(gSteps, TypeCounter, "steps.incomplete", "{step}", "engine reason",
		"Steps closed before everything they opened was accounted for.")
	mStepsExported = define(gSteps, TypeCounter, "steps.selected", "{step}", "engine reason",
		"Steps selected for export, by why.")
	mSlowArms = define(gSteps, TypeCounter, "steps.slow", "{step}", "engine reason",
		"Slow steps, by what became of arming the next ones: asked for, limited by the last request, a level under kernel, an operator's request pending, the slow step too long ago, failed to write the request, no live ring to write it to, or off.")
	mStepsBound = define(gSteps, TypeCounter, "steps.bound", "{step}", "engine bound",
		"Complete steps by what limited them: the host's launches, the GPU's work, or nothing that can be told from their spans.")
	mTokens = define(gSteps, TypeCounter, "tokens", "{token}", "engine kind",
		"Tokens of closed steps, as their attributes say: generated, or of prompts.")
	mStepsOpen = define(gSteps, TypeGauge, "steps.open", "{step}", "engine",
		"Steps that the sidecar holds open.")
	mRequestsEnded = define(gSteps, TypeCounter, "requests.ended", "{request}", "engine",
		"Requests that ended, of those whose traces are recorded.")
	mRequestsOpen = define(gSteps, TypeGauge, "requests.open", "{request}", "engine",
		"Requests of which the sidecar gathers the steps.")
	mRequestsEvicted = define(gSteps, TypeCounter, "requests.evicted", "{request}", "engine",
		"Requests that had not ended when they made room for others: their summaries lack the steps from before.")

	mLaneDuration = define(gGPU, TypeHistogram, "gpu.lane.duration", "s", "engine lane",
		"A lane on the GPU, by its event pair; lanes of armed steps left out.")
	mLaneArmedDuration = define(gGPU, TypeHistogram, "gpu.lane.armed.duration", "s", "engine lane",
		"The same of armed steps' lanes, which hold what timing their kernels costs.")
	mLaneQueueDelay = define(gGPU, TypeHistogram, "gpu.lane.queue.delay", "s", "engine lane",
		"From enqueueing a lane on the host to its start on the GPU; armed steps left out.")
	mKernelArmedDuration = define(gGPU, TypeHistogram, "gpu.kernel.armed.duration", "s", "engine kernel",
		"A kernel on the GPU, less the machine's constant. Only the kernels of armed steps are timed: by armed step it is what a step has of each, as the recording rules in dashboards/prometheus have it. The kernels that take most time have series of their own, the rest is the kernel other. C++ names are demangled, without template arguments and parameters.")
	mGraphArmedDuration = define(gGPU, TypeHistogram, "gpu.graph.armed.duration", "s", "engine graph",
		"A graph launch on the GPU, by its event pair; armed steps only. Limited like kernels.")
	mGPUTime = define(gGPU, TypeCounter, "gpu.time", "s", "engine state",
		"What the engine's devices spent their time on, summed over devices and united over streams, armed steps included: lane is some lane running; in_step none, within the extent of a step; between_steps none, between steps; untimed none, while none could be seen, the level being too low or lanes left out to stay within their budget. Begins with the first lane seen and follows some steps behind.")
	mGPUTimeLate = define(gGPU, TypeCounter, "gpu.time.late", "s", "engine",
		"GPU time that became known after its place in gpu.time had been counted: gpu.time is off by so much at most.")
	mGPUArmedTime = define(gGPU, TypeCounter, "gpu.armed.time", "s", "engine state",
		"The same of armed steps, by their kernels, which only they have: busy_in_lane and busy_outside_lanes are kernels running, idle_in_lane is launch gaps within lanes, the timing of kernels included (about 3 µs each).")
	mSpansQueued = define(gGPU, TypeCounter, "spans.queued", "{span}", "engine",
		"Landed kernels and graphs with work queued ahead of them, so that no host gap is inside.")
	mSpansStarved = define(gGPU, TypeCounter, "spans.starved", "{span}", "engine",
		"Landed kernels and graphs whose stream had run dry, so that launch latency is inside.")

	mLaunchExecutions = define(gLaunches, TypeCounter, "launchtrace.executions", "{execution}", "engine region",
		"Executions of a region whose launches were recorded. Regions that have no series of their own are the region other.")
	mLaunchDiffering = define(gLaunches, TypeCounter, "launchtrace.differing_executions", "{execution}", "engine region",
		"Executions that enqueued other operations than the one before.")
	mLaunchDifferingOps = define(gLaunches, TypeCounter, "launchtrace.differing_ops", "{operation}", "engine region",
		"Operations inserted, removed or changed from one execution to the next.")

	mMemTracked = define(gMemory, TypeGauge, "memory.tracked", "", "engine",
		"1 while the engine keeps the figures below up to date; 0 where it has no ledger and at level off, and then the gauges are missing, which is not 0 bytes.")
	mMemLive = define(gMemory, TypeGauge, "memory.live", "By", "engine",
		"Live device allocations, guard bands and arenas not counted.")
	mMemPeak = define(gMemory, TypeGauge, "memory.peak", "By", "engine",
		"The most that they have been.")
	mMemCount = define(gMemory, TypeGauge, "memory.allocations.live", "{allocation}", "engine",
		"How many of them there are.")
	mMemSlack = define(gMemory, TypeGauge, "memory.slack", "By", "engine kind",
		"What the driver keeps beyond them: chunk is the rest of the chunks that hold smaller allocations, rounding what larger ones are rounded up by.")
	mMemGuard = define(gMemory, TypeGauge, "memory.guard_bands", "By", "engine",
		"Guard bands behind live allocations.")
	mMemArenas = define(gMemory, TypeGauge, "memory.arenas", "By", "engine",
		"Arenas, which are in no other figure.")
	mMemSite = define(gMemory, TypeGauge, "memory.site.live", "By", "engine site",
		"Live device allocations by call site. The largest have series of their own, the rest is the site other.")
	mMemGrowth = define(gMemory, TypeGauge, "memory.site.growth", "By/s", "engine site",
		"How fast a call site grows that did nothing but grow for ten minutes (--leak-window) after warm-up: a suspected leak. Other sites have no series, but for other, which is what suspects without one add up to.")
	mMemAllocs = define(gMemory, TypeCounter, "memory.allocations", "{allocation}", "engine",
		"Device allocations made.")
	mMemFrees = define(gMemory, TypeCounter, "memory.frees", "{free}", "engine",
		"Device allocations that were taken off the ledger to be freed.")
	mMemProblems = define(gMemory, TypeCounter, "memory.problems", "{event}", "engine reason",
		"Allocations and frees that the driver refused, frees of addresses that nobody had allocated, allocations that found no place on the ring's table, and allocations at an address whose former owner was never freed.")
	mMemViolations = define(gMemory, TypeCounter, "memory.violations", "{violation}", "engine",
		"Guard bands found changed: something wrote past an allocation's end.")
	mMemScans = define(gMemory, TypeCounter, "memory.scans", "{scan}", "engine",
		"Scans of all guard bands.")

	mBegun = define(gProducer, TypeCounter, "spans.begun", "{span}", "engine",
		"Spans begun, steps included: begun = landed + failed + dropped + in flight.")
	mLanded = define(gProducer, TypeCounter, "spans.landed", "{span}", "engine",
		"Spans whose times were read and written to the ring, and steps that ended.")
	mFailed = define(gProducer, TypeCounter, "spans.failed", "{span}", "engine reason",
		"Spans that began and will never land.")
	mDropped = define(gProducer, TypeCounter, "spans.dropped", "{span}", "engine reason",
		"Spans that found no free event pair (pool_full).")
	mInFlight = define(gProducer, TypeGauge, "spans.in_flight", "{span}", "engine",
		"Spans begun and not yet landed, failed or dropped.")
	mProblems = define(gProducer, TypeCounter, "producer.problems", "{event}", "engine reason",
		"What the engine's library noted and carried on after: lanes and launches not timed because their stream was capturing, ends that came twice, calls that could not be right, ring places given up, names that no longer fitted, launches that belong to nothing, pools of event pairs that could not be made, control requests rejected, operations that a launch trace had no memory for, launches not timed because they overlap others.")
	mLaunches = define(gProducer, TypeCounter, "producer.launches", "{launch}", "engine",
		"Launches on armed steps, timed or not.")
	mProducerSteps = define(gProducer, TypeCounter, "producer.steps", "{step}", "engine state",
		"Steps as the engine counts them: begun, ended, and among the begun armed ones and those untimed, whose lanes were left out to stay within the budget for lanes. Unlike steps it lacks none whose entries were lost.")
	mStepTime = define(gProducer, TypeCounter, "producer.step.time", "s", "engine",
		"Time of steps by which the engine measures its overhead: of each its part on the host or on the GPU, whichever is longer, and no moment twice.")
	mOverheadTime = define(gProducer, TypeCounter, "producer.overhead.time", "s", "engine kind",
		"What timing is reckoned to have cost the engine's steps: kernels is launches of armed steps, lanes is lanes, 3.5 µs each.")
	mOverheadShare = define(gProducer, TypeGauge, "producer.overhead.share", "1", "engine kind",
		"The same as a share of step time, over the last half minute to minute.")
	mProducerRequests = define(gProducer, TypeCounter, "producer.requests", "{request}", "engine",
		"Requests whose end the engine wrote to the ring.")
	mControl = define(gProducer, TypeCounter, "producer.control.applied", "{request}", "engine",
		"Requests from the control file that the engine acted on.")
	mHarvests = define(gProducer, TypeCounter, "producer.harvests", "{harvest}", "engine",
		"Times that completed event pairs were read.")
	mHarvestCalls = define(gProducer, TypeCounter, "producer.harvest.calls", "{call}", "engine",
		"Driver calls that read event pairs, completed or not.")
	mHarvestTime = define(gProducer, TypeCounter, "producer.harvest.time", "s", "engine",
		"Time spent reading completed event pairs.")
	mDriverCalls = define(gProducer, TypeCounter, "producer.driver.calls", "{call}", "engine",
		"Driver calls made for telemetry alone.")

	mPublished = define(gReader, TypeCounter, "entries.published", "{entry}", "engine",
		"Ring entries handed out by the producer: published = received + lost + missed before attach + pending.")
	mReceived = define(gReader, TypeCounter, "entries.received", "{entry}", "engine",
		"Ring entries read.")
	mLost = define(gReader, TypeCounter, "entries.lost", "{entry}", "engine reason",
		"Ring entries that were overwritten before they were read, never completed (hole), or still to be read when the ring was found damaged (unreadable).")
	mMissed = define(gReader, TypeCounter, "entries.missed_before_attach", "{entry}", "engine",
		"Ring entries that were already gone, or to be skipped, when reading began.")
	mReaderPending = define(gReader, TypeGauge, "entries.pending", "{entry}", "engine",
		"Ring entries published and not yet read.")
	mRingHeld = define(gReader, TypeGauge, "ring.held", "s", "engine",
		"How far back the ring's log reaches at the rate of the last minute, at most 86,400 s: a sidecar that is away for longer loses entries.")
	mEntriesIgnored = define(gReader, TypeCounter, "entries.ignored", "{entry}", "engine reason",
		"Entries read that made no span: words that cannot be, of steps closed before, or of kinds that steps do not consist of.")

	mSideReceived = define(gSidecar, TypeCounter, "sidecar.spans.received", "{span}", "engine",
		"Spans read, steps included: received = exported + not selected + rejected + dropped + pending.")
	mSideExported = define(gSidecar, TypeCounter, "sidecar.spans.exported", "{span}", "engine",
		"Spans that a receiver took.")
	mSideNotSelected = define(gSidecar, TypeCounter, "sidecar.spans.not_selected", "{span}", "engine reason",
		"Spans of steps that were not to be exported; no loss.")
	mSideRejected = define(gSidecar, TypeCounter, "sidecar.spans.rejected", "{span}", "engine",
		"Spans that a receiver rejected out of a request it took.")
	mSideDropped = define(gSidecar, TypeCounter, "sidecar.spans.dropped", "{span}", "engine reason",
		"Spans that the sidecar received and dropped.")
	mSidePending = define(gSidecar, TypeGauge, "sidecar.spans.pending", "{span}", "engine",
		"Spans in open steps and in the export queue.")

	mInfo = define(gEngine, TypeGauge, "engine.info", "", "engine run_id pid executable service producer gpu gpu_name model rank_data rank_tensor rank_pipeline rank_expert",
		"Always 1; its labels say which run stands behind the label engine. A rank that is not known is empty.")
	mUp = define(gEngine, TypeGauge, "engine.up", "", "engine",
		"1 while the engine lives, 0 after its end until its series end.")
	mLevel = define(gEngine, TypeGauge, "engine.level", "", "engine",
		"The level in force: 0 off, 1 basic, 2 lane, 3 kernel.")
	mStride = define(gEngine, TypeGauge, "engine.arming.stride", "{step}", "engine",
		"One step in so many is armed now; 0 is none.")
	mLaneStride = define(gEngine, TypeGauge, "engine.lanes.stride", "{step}", "engine",
		"The lanes of one step in so many are timed now: 1 is all, more is what a budget for lanes allows; 0 is none, at a level below lane, or that the producer does not say.")
	mEnginesLive = define(gEngine, TypeGauge, "engines.live", "{engine}", "",
		"Engines that are read now.")
	mEnginesEnded = define(gEngine, TypeCounter, "engines.ended", "{engine}", "reason",
		"Engines seen to end: ended closed its ring, died did not.")
	mInFlightAge = define(gEngine, TypeGauge, "spans.in_flight.age", "s", "engine",
		"How long ago the span was enqueued that has been in flight longest; 0 when none is, as in an engine that idles, and after an engine's end. It needs nothing that the GPU completes: of an engine that hangs it grows.")
	mRingsFailed = define(gEngine, TypeCounter, "rings.failed", "{ring}", "reason",
		"Ring files that could not be read, or no longer.")
	mFlightRecords = define(gEngine, TypeCounter, "flight.records", "{record}", "reason",
		"Flight records written of engines that died or hung.")
	mFlightFailed = define(gEngine, TypeCounter, "flight.failed", "{record}", "reason",
		"Flight records that could not be written, for want of a writable directory or of the ring.")

	mClockUncertainty = define(gClock, TypeGauge, "clock.uncertainty", "s", "engine gpu",
		"Half-width of the interval in which the GPU's clock lies on the host's.")
	mClockDrift = define(gClock, TypeGauge, "clock.drift", "1", "engine gpu",
		"Rate of the GPU's clock against the host's, less 1.")
	mClockAge = define(gClock, TypeGauge, "clock.age", "s", "engine gpu",
		"Time since the map between the two clocks was last published.")
	mAnchors = define(gClock, TypeCounter, "clock.anchors", "{anchor}", "engine",
		"Observations of the GPU's clock.")
	mAnchorsGivenUp = define(gClock, TypeCounter, "clock.anchors.given_up", "{anchor}", "engine",
		"Tries to observe the GPU's clock that took longer than their bound.")
	mConstant = define(gClock, TypeGauge, "calibration.constant", "s", "engine gpu calibration",
		"What an event pair measures beyond its kernel on this machine, and where that is known from.")

	mDeviceInfo = define(gDevice, TypeGauge, "device.info", "", "hw.id hw.name",
		"Always 1 for a GPU that the sidecar reads. hw.id is its UUID, the label gpu of engines.")
	mDeviceReadings = define(gDevice, TypeCounter, "device.readings", "{reading}", "hw.id",
		"Times that the device was read.")
	mDeviceFailed = define(gDevice, TypeCounter, "device.readings.failed", "{query}", "hw.id query",
		"What the driver failed to answer, by what it was asked; the value is then missing, not the last one. What a device does not support is no failure.")
	mDeviceRefused = define(gDevice, TypeCounter, "device.readings.refused", "{reading}", "hw.id reason",
		"Readings that were none: malformed entries of a recording, or stale ones that are older than the last. Those of a driver never are.")
	mDevicePower = defineStandard(gDevice, TypeGauge, "hw.power", "W", "hw.id hw.type",
		"Power drawn, by the driver's instantaneous reading where it has one, else its own average.")
	mDeviceEnergy = defineStandard(gDevice, TypeCounter, "hw.energy", "J", "hw.id hw.type",
		"Energy by the device's counter since the sidecar began to read it. Nothing is counted across a reset of that counter.")
	mDeviceEnergyBreaks = define(gDevice, TypeCounter, "device.energy.breaks", "{break}", "hw.id reason",
		"Times that the device's energy counter went on from elsewhere: reset, or wrap over its end.")
	mDevicePerTokenLive = define(gDevice, TypeGauge, "device.energy.per_token.live", "J", "hw.id kind",
		"Energy of the device by token of the engines on it, over the last ten readings: by those generated, or by all, prompts included. Missing where no token was worked on.")
	mDevicePerToken = define(gDevice, TypeGauge, "device.energy.per_token", "J", "hw.id kind",
		"The same since the sidecar began to read it, idling included.")
	mDevicePerStep = define(gDevice, TypeGauge, "device.energy.per_step.estimate", "J", "hw.id",
		"Energy of the device by step of the engines on it, over at least a second: an estimate, for steps overlap, and idling and what others do on the device are in it.")
	mDeviceTemperature = defineStandard(gDevice, TypeGauge, "hw.temperature", "Cel", "hw.id",
		"Temperature of the GPU's die.")
	mDeviceClock = define(gDevice, TypeGauge, "device.clock", "Hz", "hw.id clock",
		"Frequency now of the clock sm or memory.")
	mDeviceHeldDown = define(gDevice, TypeCounter, "device.clocks.held_down.time", "s", "hw.id reason",
		"Time for which clocks were held down, by why, to the interval of readings. Reasons overlap. idle and application_clocks are no faults; power_cap is usual under full load.")
	mDeviceUtilization = defineStandard(gDevice, TypeGauge, "hw.gpu.utilization", "1", "hw.id hw.gpu.task",
		"Share of the driver's last sampling period (up to a second) in which some kernel ran: not how much of the GPU it used.")
	mDeviceMemoryBusy = define(gDevice, TypeGauge, "device.memory.busy", "1", "hw.id",
		"Share of the driver's last sampling period in which device memory was read or written.")
	mDeviceMemoryUsage = defineStandard(gDevice, TypeGauge, "hw.gpu.memory.usage", "By", "hw.id",
		"Device memory in use, by all processes.")
	mDeviceMemoryLimit = defineStandard(gDevice, TypeGauge, "hw.gpu.memory.limit", "By", "hw.id",
		"Device memory there is.")
	mDeviceErrors = defineStandard(gDevice, TypeCounter, "hw.errors", "{error}", "hw.id hw.type error.type",
		"ECC errors of device memory since the driver was loaded, corrected and uncorrected.")
	mDeviceRows = define(gDevice, TypeGauge, "device.remapped_rows", "{row}", "hw.id error.type",
		"Rows of device memory replaced by spare ones, by the errors that led to it.")
	mDeviceRemapPending = define(gDevice, TypeGauge, "device.remapped_rows.pending", "", "hw.id",
		"1 while a row is to be replaced at the device's next reset.")
	mDeviceRemapFailed = define(gDevice, TypeGauge, "device.remapped_rows.failed", "", "hw.id",
		"1 when a row could not be replaced: the device needs service.")
	mDevicePCIe = define(gDevice, TypeGauge, "device.pcie.throughput", "By/s", "hw.id network.io.direction",
		"PCIe traffic of the device, over the 20 ms for which the driver counts it; read every five seconds.")
	mDeviceNVLink = define(gDevice, TypeGauge, "device.nvlink.throughput", "By/s", "hw.id network.io.direction",
		"NVLink data of the device over all links, since the reading before; read every five seconds.")

	mQueueSize = define(gExport, TypeGauge, "export.queue.size", "By", "",
		"Encoded spans that wait to be sent.")
	mQueueLimit = define(gExport, TypeGauge, "export.queue.limit", "By", "",
		"Where the export queue begins to drop the oldest.")
	mRequests = define(gExport, TypeCounter, "export.requests", "{request}", "reason",
		"Export requests by what came of them: ok, retried, refused.")
	mMetricPushes = define(gExport, TypeCounter, "export.metrics", "{request}", "reason",
		"Pushes of metrics over OTLP by what came of them: ok, failed.")
	mSent = define(gExport, TypeCounter, "export.sent", "By", "",
		"Encoded spans in requests that a receiver took.")
	mKeepEntries = define(gExport, TypeCounter, "keep.entries", "{entry}", "reason",
		"Entries for the recordings that sidecar --keep keeps on disk: written, or lost because the disk was full, too slow or not writable.")
	mKeepSize = define(gExport, TypeGauge, "keep.size", "By", "",
		"Recordings kept on disk.")
	mKeepLimit = define(gExport, TypeGauge, "keep.limit", "By", "",
		"Where the oldest recordings kept on disk begin to go; 0 when none are kept.")

	mCPU = defineStandard(gOwn, TypeCounter, "process.cpu.time", "s", "cpu.mode",
		"Processor time of this process.")
	mMemory = defineStandard(gOwn, TypeGauge, "process.memory.usage", "By", "",
		"Resident memory of this process. The ring files that it has mapped are in it, and are the engines'.")
	mAnonymous = define(gOwn, TypeGauge, "sidecar.memory.anonymous", "By", "",
		"Anonymous resident memory of this process (RssAnon): what it needs itself.")
	mFDs = defineStandard(gOwn, TypeGauge, "process.unix.file_descriptor.count", "{file_descriptor}", "",
		"Open file descriptors of this process.")
	mGoroutines = defineStandard(gOwn, TypeGauge, "go.goroutine.count", "{goroutine}", "",
		"Goroutines of this process.")
	mBuild = define(gOwn, TypeGauge, "build.info", "", "version",
		"Always 1; version is this program's.")
)

// LabelValues are the values that a label with a fixed set of them can take on a
// metric, none for all others. They exist from the start, at 0.
func (m *Metric) LabelValues(label string) []string {
	if label == "armed" {
		return []string{"false", "true"}
	}
	if label == labelKind {
		return map[string][]string{
			mMemSlack.Name: slackKinds, mTokens.Name: tokenKinds,
			mOverheadTime.Name: overheadKinds, mOverheadShare.Name: overheadKinds,
			mDevicePerToken.Name: perTokenKinds, mDevicePerTokenLive.Name: perTokenKinds,
		}[m.Name]
	}
	switch label {
	case labelQuery:
		return deviceQueryText[:]
	case labelState:
		return map[string][]string{mGPUTime.Name: gpuStates, mGPUArmedTime.Name: gpuArmedStates, mProducerSteps.Name: producerStepStates}[m.Name]
	case labelBound:
		return boundText[:]
	case labelCPUMode:
		return cpuModes
	}
	if label != "reason" {
		return nil
	}
	switch m.Name {
	case mFailed.Name:
		return failReasons
	case mDropped.Name:
		return []string{reasonPoolFull}
	case mProblems.Name:
		return problemReasons
	case mMemProblems.Name:
		return memProblemReasons
	case mLost.Name:
		return lostReasons
	case mEntriesIgnored.Name:
		return ignoredReasons
	case mSideNotSelected.Name:
		return notSelectedText[:]
	case mSideDropped.Name:
		return dropText[:]
	case mStepsIncomplete.Name:
		return incompleteReasons
	case mSlowArms.Name:
		return armText[:]
	case mStepsExported.Name:
		return exportText[1:]
	case mEnginesEnded.Name:
		return []string{EngineEnded.String(), EngineDied.String()}
	case mRingsFailed.Name:
		return ringFailText[:]
	case mFlightRecords.Name, mFlightFailed.Name:
		return flightText[:]
	case mDeviceEnergyBreaks.Name:
		return energyBreakText[:]
	case mDeviceRefused.Name:
		return deviceRefusalText[:]
	case mDeviceHeldDown.Name:
		return HeldDownReasons[:]
	case mRequests.Name:
		return RequestReasons
	case mKeepEntries.Name:
		return KeepReasons[:]
	case mMetricPushes.Name:
		return MetricPushReasons
	}
	return nil
}

// RequestReasons are the values of the label reason of export.requests.
var RequestReasons = []string{"ok", "retried", "refused"}

// MetricPushReasons are the values of the label reason of export.metrics.
var MetricPushReasons = []string{"ok", "failed"}

// MetricsDoc is docs/metrics.md.
func MetricsDoc() string {
	var b strings.Builder
	b.WriteString(`# Metrics

<!-- Made from collector/metrictable.go by "go generate ./collector". Do not edit. -->

Names are OpenTelemetry's, with what Prometheus sees below. Times are in seconds, sizes in bytes. A label
with a fixed set of values has all of them from the start, at 0. ` + "`engine`" + ` is stable: service name (else the
executable), rank and GPU, and a number where live engines would be called the same; which process stands
behind it says ` + "`lanetrace_engine_info`" + `. Series of an engine end some minutes after the engine.

`)
	fmt.Fprintf(&b, `Histogram buckets, upper bounds: lanes, steps and queue delays %s to %s in %d steps, kernels and graphs %s to %s in
%d. With `+"`--histograms exponential`"+` lanes, steps and queue delays have exponential buckets besides, %d a doubling (scale %d):
OTLP sends those alone; a Prometheus server that scrapes native histograms gets them with the classic buckets beside
them, any other the classic ones. Without the flag `+"`OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION`"+` decides. Values are
cumulative, whatever `+"`OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE`"+` says.

Steps and lanes carry exemplars, in OpenMetrics and over OTLP: trace and span of a step of which a receiver took every
span, the latest of each bucket, for %d minutes.

Armed steps have series of their own, with `+"`armed`"+` in the name: timing each kernel costs time, which is to be nobody's
p99. Kernels are timed on armed steps only; the rules in `+"`dashboards/prometheus/recording.yml`"+` scale them to all steps.

The %d kernels, %d graphs and %d call sites that matter most have series of their own (`+"`--top-kernels`, `--top-sites`"+`); the
rest is `+"`other`"+`. What becomes one of them later starts from where it was, or from 0 with a start time of its own.

Devices are read by the sidecar itself (see [device.md](device.md)): their series carry `+"`hw.id`"+`, the GPU's UUID, and what
a device does not report has none.

Over OTLP each engine is a resource, the one of its traces: service, instance (the run), host, process, GPU; the
sidecar's own metrics are of the sidecar's resource. Counters that the engine keeps start with its run, the others when
the sidecar began to read it. In Prometheus dots in names and labels are underscores.
`,
		secondsText(stepBounds[0]), secondsText(stepBounds[len(stepBounds)-1]), len(stepBounds),
		secondsText(kernelBounds[0]), secondsText(kernelBounds[len(kernelBounds)-1]), len(kernelBounds),
		perDoubling, exponentialScale, int(exemplarLife.Minutes()), DefaultTopKernels, DefaultTopKernels, DefaultTopSites)
	group := ""
	for _, m := range metrics {
		if m.group != group {
			group = m.group
			fmt.Fprintf(&b, "\n## %s\n\n| name | type | unit | labels | meaning |\n| --- | --- | --- | --- | --- |\n", group)
		}
		labels := make([]string, len(m.Labels))
		for i, l := range m.Labels {
			labels[i] = "`" + l + "`"
			if v := m.LabelValues(l); len(v) > 0 {
				labels[i] += " (" + strings.Join(v, ", ") + ")"
			}
		}
		unit := m.Unit
		if unit == "" {
			unit = "-"
		}
		fmt.Fprintf(&b, "| `%s`<br>`%s` | %s | %s | %s | %s |\n", m.Name, m.PrometheusName(), m.Type, unit, strings.Join(labels, ", "), m.Help)
	}
	return b.String()
}

func secondsText(ns int64) string {
	switch {
	case ns < 1e6:
		return fmt.Sprintf("%d µs", ns/1e3)
	case ns < 1e9:
		return fmt.Sprintf("%d ms", ns/1e6)
	}
	return fmt.Sprintf("%d s", ns/1e9)
}
