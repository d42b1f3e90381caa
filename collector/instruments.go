package collector

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/lanetrace/lanetrace/spanring"
)

// LabelEngine is the label that has an engine's stable name.
const LabelEngine = "engine"

// Names of labels.
const (
	labelEngine = LabelEngine
	labelLane   = "lane"
	labelKernel = "kernel"
	labelGraph  = "graph"
	labelGPU    = "gpu"
	labelReason = "reason"
	labelRegion = "region"
	labelArmed  = "armed"
	labelSite   = "site"
	labelKind   = "kind"
	labelState  = "state"
	labelBound  = "bound"

	labelCPUMode = "cpu.mode"
)

// DefaultTopKernels is how many kernels of an engine have series of their own.
const DefaultTopKernels = 50

// InstrumentOptions say how metrics are made.
type InstrumentOptions struct {
	// TopKernels is how many kernels, and how many graphs, of an engine have series
	// of their own: those that took the most GPU time lately. The rest is "other".
	// Default 50.
	TopKernels int
	// TopSites is how many call sites of an engine have series of their own: those
	// that hold the most device memory. The rest is "other". Default 50.
	TopSites int
	// Histograms is how lanes, steps and queue delays are kept. Default
	// HistogramsExplicit.
	Histograms HistogramForm
	// Version is shown by build.info. Default "unknown".
	Version string
}

// Instruments are the metrics of all engines. Histograms come out of Producer,
// everything else out of the instruments that Register makes; both belong to the
// same readers. Who reads an engine may do without: a nil *Instruments takes nothing.
type Instruments struct {
	o InstrumentOptions

	mu      sync.Mutex
	engines []*Engine

	ended [2]atomic.Uint64 // EngineEnded, EngineDied
	rings [numRingFails]atomic.Uint64

	flights [numFlights]flightCount
}

// NewInstruments returns instruments without engines.
func NewInstruments(o InstrumentOptions) *Instruments {
	if o.TopKernels == 0 {
		o.TopKernels = DefaultTopKernels
	}
	if o.TopSites == 0 {
		o.TopSites = DefaultTopSites
	}
	if o.Version == "" {
		o.Version = "unknown"
	}
	return &Instruments{o: o}
}

func (i *Instruments) topKernels() int {
	if i == nil {
		return DefaultTopKernels
	}
	return i.o.TopKernels
}

func (i *Instruments) topSites() int {
	if i == nil {
		return DefaultTopSites
	}
	return i.o.TopSites
}

func (i *Instruments) add(e *Engine) {
	if i == nil {
		return
	}
	e.attrs = newEngineAttrs(e.label)
	e.sum.keep(i.o.Histograms)
	i.mu.Lock()
	i.engines = append(i.engines, e)
	i.mu.Unlock()
}

func (i *Instruments) remove(e *Engine) {
	if i == nil {
		return
	}
	i.mu.Lock()
	i.engines = slices.DeleteFunc(i.engines, func(x *Engine) bool { return x == e })
	i.mu.Unlock()
}

// Engines are the engines that have series now. It may be called from any
// goroutine.
func (i *Instruments) Engines() []*Engine {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.engines)
}

// runCounters are the counters that the producer keeps: they count from its start,
// all others from when reading began.
var runCounters = func() map[string]bool {
	m := map[string]bool{mPublished.Name: true}
	for _, d := range []*Metric{
		mBegun, mLanded, mFailed, mDropped, mProblems, mLaunches, mProducerSteps, mProducerRequests, mControl,
		mHarvests, mHarvestCalls, mHarvestTime, mDriverCalls,
		mStepTime, mOverheadTime, mSpansQueued, mSpansStarved, mAnchors, mAnchorsGivenUp, mMemAllocs, mMemFrees, mMemProblems, mMemViolations, mMemScans,
	} {
		m[d.Name] = true
	}
	return m
}()

// AttachedAt is when the engine began to be read.
func (e *Engine) AttachedAt() time.Time { return e.sum.start }

// StartOf is since when the engine's counters of that name count, for readers that
// tell a counter's start: the run's start for those that the engine keeps itself, so
// that they are no others after a restart of the sidecar.
func (e *Engine) StartOf(metric string) time.Time {
	if t := e.Info().CreatedUnixNS; runCounters[metric] && t > 0 && t < e.sum.start.UnixNano() {
		return time.Unix(0, t)
	}
	return e.sum.start
}

// engineEnded counts an engine's end.
func (i *Instruments) engineEnded(s EngineState) {
	if i != nil && s != EngineLive {
		i.ended[s-EngineEnded].Add(1)
	}
}

// ringFailed counts a ring that cannot be read.
func (i *Instruments) ringFailed(r ringFail) {
	if i != nil {
		i.rings[r].Add(1)
	}
}

// ringFail is why a ring cannot be read.
type ringFail uint8

const (
	ringVersion ringFail = iota
	ringCorrupt
	ringTruncated
	ringUnreadable

	numRingFails
)

var ringFailText = [numRingFails]string{"version", "corrupt", "truncated", "unreadable"}

// ringFailureOf is what a ring that cannot be read is counted as.
func ringFailureOf(err error) ringFail {
	switch {
	case errors.Is(err, spanring.ErrVersion):
		return ringVersion
	case errors.Is(err, spanring.ErrTruncated):
		return ringTruncated
	case errors.Is(err, spanring.ErrCorrupt), errors.Is(err, spanring.ErrNotRing):
		return ringCorrupt
	}
	return ringUnreadable
}

const reasonPoolFull = "pool_full"

// problemCounters are the producer's counters behind producer.problems.
var problemCounters = []spanring.Counter{
	spanring.CtrCapturing, spanring.CtrStaleEnds, spanring.CtrMisuse, spanring.CtrGivenUp, spanring.CtrNamesFull,
	spanring.CtrUnattributed, spanring.CtrPoolsFailed, spanring.CtrControlRejected, spanring.CtrLaunchOpsDropped,
	spanring.CtrOverlapping,
}

// Values of the label state.
var (
	gpuStates          = []string{"lane", "in_step", "between_steps", "untimed"}
	producerStepStates = []string{"begun", "ended", "armed", "untimed"}
	overheadKinds      = []string{"kernels", "lanes"}
	gpuArmedStates     = []string{"busy_in_lane", "busy_outside_lanes", "idle_in_lane"}
)

var ignoredReasons = []string{"malformed", "late", "other_kind"}

var failReasons, problemReasons, incompleteReasons = func() (f, p, n []string) {
	for r := spanring.FailNone + 1; int(r) < spanring.NumReasons; r++ {
		f = append(f, r.String())
	}
	for _, c := range problemCounters {
		p = append(p, c.String())
	}
	for r := Complete + 1; r < numIncompleteReasons; r++ {
		n = append(n, r.String())
	}
	return f, p, n
}()

// engineAttrs are the attributes of one engine's instruments.
type engineAttrs struct {
	made   bool // there are instruments
	set    attribute.Set
	engine metric.MeasurementOption

	armed                                                             [2]metric.MeasurementOption
	failed, problems, lost, ignored, notSelected, dropped, incomplete []metric.MeasurementOption
	exported                                                          []metric.MeasurementOption
	poolFull                                                          metric.MeasurementOption
	memProblems, slack                                                []metric.MeasurementOption
	gpu, gpuArmed, bound, producerSteps                               []metric.MeasurementOption
	slowSteps, tokens, overhead                                       []metric.MeasurementOption
}

func newEngineAttrs(label string) engineAttrs {
	with := func(key, value string) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(attribute.String(labelEngine, label), attribute.String(key, value)))
	}
	each := func(key string, values []string) (o []metric.MeasurementOption) {
		for _, v := range values {
			o = append(o, with(key, v))
		}
		return o
	}
	set := attribute.NewSet(attribute.String(labelEngine, label))
	return engineAttrs{
		made: true, set: set, engine: metric.WithAttributeSet(set),
		armed:       [2]metric.MeasurementOption{with(labelArmed, "false"), with(labelArmed, "true")},
		failed:      each(labelReason, failReasons),
		problems:    each(labelReason, problemReasons),
		lost:        each(labelReason, lostReasons),
		ignored:     each(labelReason, ignoredReasons),
		notSelected: each(labelReason, notSelectedText[:]),
		dropped:     each(labelReason, dropText[:]),
		incomplete:  each(labelReason, incompleteReasons),
		exported:    each(labelReason, exportText[1:]),
		poolFull:    with(labelReason, reasonPoolFull),
		memProblems: each(labelReason, memProblemReasons),
		slack:       each(labelKind, slackKinds),
		gpu:         each(labelState, gpuStates),
		gpuArmed:    each(labelState, gpuArmedStates),
		bound:       each(labelBound, boundText[:]),

		producerSteps: each(labelState, producerStepStates),
		slowSteps:     each(labelReason, armText[:]),
		tokens:        each(labelKind, tokenKinds),
		overhead:      each(labelKind, overheadKinds),
	}
}

// Registered are the observable instruments of some metrics, by metric.
type Registered struct {
	ints   map[*Metric]metric.Int64Observable
	floats map[*Metric]metric.Float64Observable
	all    []metric.Observable
}

// makeObservables makes an instrument for each of ms, which are no histograms.
func makeObservables(m metric.Meter, ms []*Metric) (*Registered, error) {
	r := &Registered{ints: make(map[*Metric]metric.Int64Observable), floats: make(map[*Metric]metric.Float64Observable)}
	for _, d := range ms {
		var err error
		unit, help := metric.WithUnit(d.Unit), metric.WithDescription(d.Help)
		switch {
		case d.Type == TypeCounter && d.float:
			var o metric.Float64ObservableCounter
			o, err = m.Float64ObservableCounter(d.Name, unit, help)
			r.floats[d], r.all = o, append(r.all, o)
		case d.Type == TypeCounter:
			var o metric.Int64ObservableCounter
			o, err = m.Int64ObservableCounter(d.Name, unit, help)
			r.ints[d], r.all = o, append(r.all, o)
		case d.float:
			var o metric.Float64ObservableGauge
			o, err = m.Float64ObservableGauge(d.Name, unit, help)
			r.floats[d], r.all = o, append(r.all, o)
		default:
			var o metric.Int64ObservableGauge
			o, err = m.Int64ObservableGauge(d.Name, unit, help)
			r.ints[d], r.all = o, append(r.all, o)
		}
		if err != nil {
			return nil, fmt.Errorf("make instrument %s: %w", d.Name, err)
		}
	}
	return r, nil
}

// observation is one callback's observer with its instruments.
type observation struct {
	metric.Observer
	*Registered
}

// n reports a number. A damaged or hostile ring's may be larger than OpenTelemetry's
// integers go: it is not under 0.
func (o observation) n(m *Metric, v uint64, opts ...metric.ObserveOption) {
	o.ObserveInt64(o.ints[m], int64(min(v, math.MaxInt64)), opts...)
}

func (o observation) f(m *Metric, v float64, opts ...metric.ObserveOption) {
	o.ObserveFloat64(o.floats[m], v, opts...)
}

// Register makes the observable instruments on m. It may be called once for each
// MeterProvider.
func (i *Instruments) Register(m metric.Meter) error {
	var ms []*Metric
	for _, d := range metrics {
		if d.Type != TypeHistogram && d.group != gExport && !d.Device() {
			ms = append(ms, d)
		}
	}
	r, err := makeObservables(m, ms)
	if err != nil {
		return err
	}
	_, err = m.RegisterCallback(func(_ context.Context, ob metric.Observer) error {
		o := observation{ob, r}
		i.observeOwn(o)
		live := uint64(0)
		for _, e := range i.Engines() {
			e.observe(o)
			if e.State() == EngineLive {
				live++
			}
		}
		o.n(mEnginesLive, live)
		return nil
	}, r.all...)
	if err != nil {
		return fmt.Errorf("register instruments: %w", err)
	}
	return nil
}

func (i *Instruments) observeOwn(o observation) {
	for s := range i.ended {
		o.n(mEnginesEnded, i.ended[s].Load(), metric.WithAttributes(attribute.String(labelReason, (EngineEnded+EngineState(s)).String())))
	}
	for f := range i.rings {
		o.n(mRingsFailed, i.rings[f].Load(), metric.WithAttributes(attribute.String(labelReason, ringFailText[f])))
	}
	for f := range i.flights {
		reason := metric.WithAttributes(attribute.String(labelReason, flightText[f]))
		o.n(mFlightRecords, i.flights[f].written.Load(), reason)
		o.n(mFlightFailed, i.flights[f].failed.Load(), reason)
	}
	o.n(mBuild, 1, metric.WithAttributes(attribute.String("version", i.o.Version)))
	observeProcess(o)
}

// observe reports one engine.
func (e *Engine) observe(o observation) {
	a := &e.attrs
	c := e.Counters()
	o.n(mBegun, c[spanring.CtrBegun], a.engine)
	o.n(mLanded, c[spanring.CtrLanded], a.engine)
	o.n(mDropped, c[spanring.CtrDropped], a.poolFull)
	o.n(mInFlight, uint64(max(0, c.InFlight())), a.engine)
	for r := range failReasons {
		o.n(mFailed, c[spanring.Reason(r+1).Counter()], a.failed[r])
	}
	for p, ctr := range problemCounters {
		o.n(mProblems, c[ctr], a.problems[p])
	}
	o.n(mLaunches, c[spanring.CtrLaunches], a.engine)
	for i, ctr := range [...]spanring.Counter{spanring.CtrStepsBegun, spanring.CtrStepsEnded, spanring.CtrStepsArmed, spanring.CtrStepsUntimed} {
		o.n(mProducerSteps, c[ctr], a.producerSteps[i])
	}
	v := e.Overhead()
	o.f(mStepTime, v.StepTime.Seconds(), a.engine)
	for i, spent := range [...]time.Duration{v.Kernels, v.Lanes} {
		o.f(mOverheadTime, spent.Seconds(), a.overhead[i])
	}
	for i, share := range e.overheadLately() {
		o.f(mOverheadShare, share, a.overhead[i])
	}
	o.n(mProducerRequests, c[spanring.CtrRequests], a.engine)
	o.n(mControl, c[spanring.CtrControlApplied], a.engine)
	o.n(mHarvests, c[spanring.CtrHarvests], a.engine)
	o.n(mHarvestCalls, c[spanring.CtrHarvestCalls], a.engine)
	o.f(mHarvestTime, float64(c[spanring.CtrHarvestNS])/1e9, a.engine)
	o.n(mDriverCalls, c[spanring.CtrDriverCalls], a.engine)
	o.n(mSpansQueued, c[spanring.CtrQueued], a.engine)
	o.n(mSpansStarved, c[spanring.CtrStarved], a.engine)
	o.n(mAnchors, c[spanring.CtrAnchors], a.engine)
	o.n(mAnchorsGivenUp, c[spanring.CtrAnchorsGivenUp], a.engine)

	e.observeMemory(o, &c)

	r := e.ReaderAccount()
	o.n(mPublished, r.Published, a.engine)
	o.n(mReceived, r.Received, a.engine)
	o.n(mLost, r.Overwritten, a.lost[0])
	o.n(mLost, r.Holes, a.lost[1])
	o.n(mLost, r.Unreadable, a.lost[2])
	o.n(mMissed, r.Missed, a.engine)
	o.n(mReaderPending, r.Pending, a.engine)
	if s, ok := e.ringHeld(r.Published); ok {
		o.f(mRingHeld, s, a.engine)
	}

	s := e.ledger.Counts()
	o.n(mSideReceived, s.Received, a.engine)
	o.n(mSideExported, s.Exported, a.engine)
	o.n(mSideRejected, s.Rejected, a.engine)
	o.n(mSidePending, s.Pending, a.engine)
	for i, v := range s.NotSelected {
		o.n(mSideNotSelected, v, a.notSelected[i])
	}
	for i, v := range s.Dropped {
		o.n(mSideDropped, v, a.dropped[i])
	}

	e.observeSummary(o)
	e.observeInfo(o)
}

func (e *Engine) observeSummary(o observation) {
	a, s := &e.attrs, &e.sum
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, v := range s.steps {
		o.n(mSteps, v, a.armed[i])
	}
	for i, v := range [...]uint64{s.work.DecodeTokens, s.work.PrefillTokens} {
		o.n(mTokens, v, a.tokens[i])
	}
	for i := range incompleteReasons {
		o.n(mStepsIncomplete, s.incomplete[i+1], a.incomplete[i])
	}
	for i := range a.exported {
		o.n(mStepsExported, s.exported[i+1], a.exported[i])
	}
	for i, v := range e.SlowSteps() {
		o.n(mSlowArms, v, a.slowSteps[i])
	}
	o.n(mStepsOpen, uint64(s.openSteps), a.engine)
	o.n(mRequestsEnded, e.requests.Ended, a.engine)
	o.n(mRequestsOpen, e.requests.Open, a.engine)
	o.n(mRequestsEvicted, e.requests.Evicted, a.engine)
	for i, v := range []uint64{s.malformed, s.lateEntries, s.otherEntries} {
		o.n(mEntriesIgnored, v, a.ignored[i])
	}
	g := &e.gpu.total
	for i, v := range [...]uint64{g.LaneNS, g.WithinNS, g.BetweenNS, g.UntimedNS} {
		o.f(mGPUTime, float64(v)/1e9, a.gpu[i])
	}
	o.f(mGPUTimeLate, float64(g.LateNS)/1e9, a.engine)
	for i, v := range [...]uint64{g.ArmedBusyNS - min(g.ArmedBusyNS, g.ArmedBusyOutsideNS), g.ArmedBusyOutsideNS, g.ArmedLaneIdleNS} {
		o.f(mGPUArmedTime, float64(v)/1e9, a.gpuArmed[i])
	}
	for i, v := range g.Bound {
		o.n(mStepsBound, v, a.bound[i])
	}
	for _, r := range s.regions {
		o.n(mLaunchExecutions, r.Executions, r.attrs)
		o.n(mLaunchDiffering, r.Differing, r.attrs)
		o.n(mLaunchDifferingOps, r.DifferingOps, r.attrs)
	}
}

func (e *Engine) observeInfo(o observation) {
	a, i := &e.attrs, e.Info()
	live := e.State() == EngineLive
	o.n(mUp, uint64(b2i(live)), a.engine)
	age := time.Duration(0)
	if f, ok := e.OldestInFlight(); ok && live {
		age = max(0, f.Age)
	}
	o.f(mInFlightAge, age.Seconds(), a.engine)
	o.n(mLevel, uint64(i.Level), a.engine)
	o.n(mStride, uint64(i.KernelEvery), a.engine)
	o.n(mLaneStride, uint64(i.LaneEvery), a.engine)
	rank := func(n int32) string {
		if n < 0 {
			return ""
		}
		return strconv.Itoa(int(n))
	}
	o.n(mInfo, 1, metric.WithAttributes(
		attribute.String(labelEngine, e.label),
		attribute.String("run_id", i.RunID.String()),
		attribute.String("pid", strconv.FormatUint(uint64(i.PID), 10)),
		attribute.String("executable", CleanText(i.Executable)),
		attribute.String("service", CleanText(i.Service)),
		attribute.String("producer", CleanText(i.Producer)),
		attribute.String(labelGPU, CleanText(i.GPUUUID)),
		attribute.String("gpu_name", CleanText(i.GPUName)),
		attribute.String("model", CleanText(i.Model)),
		attribute.String("rank_data", rank(i.Rank.Data)),
		attribute.String("rank_tensor", rank(i.Rank.Tensor)),
		attribute.String("rank_pipeline", rank(i.Rank.Pipeline)),
		attribute.String("rank_expert", rank(i.Rank.Expert)),
	))
	cs, now := e.Contexts(), e.NowMonoNS()
	seen := make(map[string]bool, len(cs))
	for _, c := range cs {
		// Two contexts of one device share its clock: the first stands for both.
		uuid := c.UUIDText()
		if seen[uuid] {
			continue
		}
		seen[uuid] = true
		gpu := attribute.String(labelGPU, uuid)
		opt := metric.WithAttributes(attribute.String(labelEngine, e.label), gpu)
		if c.UpdatedMonoNS != 0 {
			o.f(mClockUncertainty, float64(c.UncertaintyNS)/1e9, opt)
			o.f(mClockDrift, float64(c.RatePPB)/1e9, opt)
			if live {
				o.f(mClockAge, float64(max(0, now-c.UpdatedMonoNS))/1e9, opt)
			}
		}
		o.f(mConstant, float64(c.ConstantNS)/1e9, metric.WithAttributes(
			attribute.String(labelEngine, e.label), gpu, attribute.String("calibration", c.Calibration.String())))
	}
}

// ExportStats are what an exporter tells of itself.
type ExportStats struct {
	QueueBytes, QueueLimit uint64
	// Requests are counted by what came of them, in the order of RequestReasons.
	Requests  [3]uint64
	SentBytes uint64
}

// RegisterExport makes the instruments of an exporter on m; stats is called at
// each collection.
func RegisterExport(m metric.Meter, stats func() ExportStats) error {
	r, err := makeObservables(m, []*Metric{mQueueSize, mQueueLimit, mRequests, mSent})
	if err != nil {
		return err
	}
	_, err = m.RegisterCallback(func(_ context.Context, ob metric.Observer) error {
		o, s := observation{ob, r}, stats()
		o.n(mQueueSize, s.QueueBytes)
		o.n(mQueueLimit, s.QueueLimit)
		o.n(mSent, s.SentBytes)
		for i, n := range s.Requests {
			o.n(mRequests, n, metric.WithAttributes(attribute.String(labelReason, RequestReasons[i])))
		}
		return nil
	}, r.all...)
	if err != nil {
		return fmt.Errorf("register export instruments: %w", err)
	}
	return nil
}

// RegisterMetricExport makes the instrument that counts pushes of metrics, in the
// order of MetricPushReasons.
func RegisterMetricExport(m metric.Meter, pushes func() [2]uint64) error {
	r, err := makeObservables(m, []*Metric{mMetricPushes})
	if err != nil {
		return err
	}
	_, err = m.RegisterCallback(func(_ context.Context, ob metric.Observer) error {
		o := observation{ob, r}
		for i, n := range pushes() {
			o.n(mMetricPushes, n, metric.WithAttributes(attribute.String(labelReason, MetricPushReasons[i])))
		}
		return nil
	}, r.all...)
	if err != nil {
		return fmt.Errorf("register metric export instrument: %w", err)
	}
	return nil
}
