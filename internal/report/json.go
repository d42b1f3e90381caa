package report

import (
	"encoding/json"
	"io"
	"maps"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// DocumentVersion changes when a key changes its meaning or goes. Keys may be
// added at any time.
const DocumentVersion = 1

// Document is the report of several runs for machines; docs/report.md says what
// its keys mean. Keys are there also at 0, lists also when empty.
type Document struct {
	Version int             `json:"version"`
	Engines []*EngineReport `json:"engines"`
	Devices []DeviceReport  `json:"devices"`
}

// EngineReport is one run.
type EngineReport struct {
	Engine     string `json:"engine"`
	RunID      string `json:"run_id"`
	State      string `json:"state"`
	Recorded   bool   `json:"recorded"`
	Service    string `json:"service"`
	Executable string `json:"executable"`
	PID        int64  `json:"pid"`
	Producer   string `json:"producer"`
	GPUUUID    string `json:"gpu_uuid"`
	GPUName    string `json:"gpu_name"`
	Model      string `json:"model"`

	Rank RankReport `json:"rank"`

	Level       string `json:"level"`
	KernelEvery uint32 `json:"kernel_every"`
	LaneEvery   uint32 `json:"lane_every"`

	// From and To are null when no step was read.
	From *time.Time `json:"from"`
	To   *time.Time `json:"to"`

	Steps    StepsReport          `json:"steps"`
	Requests RequestsReport       `json:"requests"`
	GPUTime  GPUTimeReport        `json:"gpu_time"`
	Overhead OverheadReport       `json:"overhead"`
	Lanes    []LaneReport         `json:"lanes"`
	Kernels  []KernelReport       `json:"kernels"`
	Regions  []RegionReport       `json:"launch_regions"`
	Memory   *MemoryReport        `json:"memory"` // null when it is not tracked
	Bands    BandsReport          `json:"guard_bands"`
	Leaks    []LeakReport         `json:"suspected_leaks"`
	Account  AccountReport        `json:"account"`
	Contexts []ContextReport      `json:"contexts"`
	Counters map[string]uint64    `json:"counters"`
	Step     *ExemplaryStepReport `json:"step"` // null when there is none
}

// Distribution is of times in ns. Quantiles are right to 0.1 %, the rest is exact.
type Distribution struct {
	Count uint64 `json:"count"`
	SumNS uint64 `json:"sum_ns"`
	P50NS uint64 `json:"p50_ns"`
	P99NS uint64 `json:"p99_ns"`
	MaxNS uint64 `json:"max_ns"`
}

func distribution(s *sketch) Distribution {
	return Distribution{s.n, s.sum, uint64(s.quantile(0.5)), uint64(s.quantile(0.99)), s.most}
}

// OverheadReport is what timing is reckoned to have cost the engine's steps, in ns and
// as shares of their time, since its run began.
type OverheadReport struct {
	StepTimeNS   int64   `json:"step_time_ns"`
	KernelsNS    int64   `json:"kernels_ns"`
	LanesNS      int64   `json:"lanes_ns"`
	KernelsShare float64 `json:"kernels_share"`
	LanesShare   float64 `json:"lanes_share"`
	Untimed      uint64  `json:"steps_with_lanes_untimed"`
}

func overheadReport(o collector.Overhead) OverheadReport {
	kernels, lanes := o.Shares()
	return OverheadReport{int64(o.StepTime), int64(o.Kernels), int64(o.Lanes), kernels, lanes, o.Untimed}
}

// StepsReport are the steps that are complete, and how many are not.
type StepsReport struct {
	Unarmed    Distribution      `json:"unarmed"`
	Host       Distribution      `json:"host"`
	Armed      Distribution      `json:"armed"`
	Incomplete map[string]uint64 `json:"incomplete"`
	WithoutEnd uint64            `json:"without_end"`
	Untimed    uint64            `json:"lanes_untimed"` // in host alone
	StandIns   map[string]uint64 `json:"stand_ins"`
}

// LaneReport is a lane.
type LaneReport struct {
	Lane    string       `json:"lane"`
	Unarmed Distribution `json:"unarmed"`
	Armed   Distribution `json:"armed"`
}

// KernelReport is a kernel, or a graph, on armed steps.
type KernelReport struct {
	Kernel string `json:"kernel"`
	Distribution
	Queued  uint64 `json:"queued"`
	Starved uint64 `json:"starved"`
}

// RegionReport is a region of the launch trace.
type RegionReport struct {
	Region       string `json:"region"`
	Executions   uint64 `json:"executions"`
	Differing    uint64 `json:"differing"`
	DifferingOps uint64 `json:"differing_operations"`
	LastStep     uint64 `json:"last_differing_step"`
}

// MemoryReport is the device memory, in bytes.
type MemoryReport struct {
	State         string       `json:"state"`
	Approximate   bool         `json:"approximate"`
	Live          uint64       `json:"live_bytes"`
	Count         uint64       `json:"live_allocations"`
	Peak          uint64       `json:"peak_bytes"`
	Guard         uint64       `json:"guard_bytes"`
	ChunkSlack    uint64       `json:"chunk_slack_bytes"`
	RoundingSlack uint64       `json:"rounding_slack_bytes"`
	Arenas        uint64       `json:"arena_bytes"`
	ArenaCount    uint64       `json:"arenas"`
	Unlisted      uint64       `json:"unlisted_bytes"`
	Sites         []SiteReport `json:"sites"`
}

// SiteReport is a call site with live allocations.
type SiteReport struct {
	Site     string `json:"site"`
	Label    string `json:"label"`
	Function string `json:"function"`
	Bytes    int64  `json:"live_bytes"`
	Count    int64  `json:"live_allocations"`
}

// BandsReport is what was found of guard bands.
type BandsReport struct {
	Violations uint64       `json:"violations"`
	Last       []BandReport `json:"last"`
}

// BandReport is one guard band that was found changed.
type BandReport struct {
	Site       string `json:"site"`
	Index      uint64 `json:"allocation"`
	Bytes      uint64 `json:"allocation_bytes"`
	GuardBytes uint32 `json:"guard_bytes"`
	First      uint32 `json:"first_changed"`
	Last       uint32 `json:"last_changed"`
	Changed    uint32 `json:"changed_bytes"`
}

// LeakReport is a call site that did nothing but grow.
type LeakReport struct {
	Site           string  `json:"site"`
	Bytes          int64   `json:"live_bytes"`
	Grown          int64   `json:"grown_bytes"`
	OverSeconds    float64 `json:"over_seconds"`
	BytesPerSecond float64 `json:"bytes_per_second"`
}

// AccountReport is the loss account, with the lines of it that do not add up.
type AccountReport struct {
	Producer   collector.ProducerAccount `json:"producer"`
	Reader     collector.ReaderAccount   `json:"reader"`
	Sidecar    collector.SidecarAccount  `json:"sidecar"`
	Unbalanced []string                  `json:"unbalanced"`
}

// ContextReport is a GPU context's clock and constant.
type ContextReport struct {
	Context       uint8  `json:"context"`
	Device        int32  `json:"device"`
	UUID          string `json:"uuid"`
	Calibration   string `json:"calibration"`
	ConstantNS    uint32 `json:"constant_ns"`
	SpreadNS      uint32 `json:"constant_spread_ns"`
	RatePPB       int64  `json:"clock_rate_ppb"`
	UncertaintyNS uint64 `json:"clock_uncertainty_ns"`
}

// ExemplaryStepReport is the step that the report for people draws. Times are from
// its begin.
type ExemplaryStepReport struct {
	Number        uint64        `json:"step"`
	Armed         bool          `json:"armed"`
	Untimed       bool          `json:"lanes_untimed"`
	BatchSize     uint32        `json:"batch_size"`
	DecodeTokens  uint32        `json:"decode_tokens"`
	PrefillTokens uint32        `json:"prefill_tokens"`
	GraphMode     string        `json:"graph_mode"`
	DurationNS    int64         `json:"duration_ns"`
	HostNS        int64         `json:"host_ns"`
	Requests      []string      `json:"linked_requests"`
	LeftOut       int           `json:"linked_requests_left_out"`
	Derived       DerivedReport `json:"derived"`
	Spans         []SpanReport  `json:"spans"`
}

// SpanReport is a span of that step.
type SpanReport struct {
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	Lane       string `json:"lane"`
	Context    uint8  `json:"context"`
	Stream     uint16 `json:"stream"`
	StartNS    int64  `json:"start_ns"`
	DurationNS uint64 `json:"duration_ns"`
}

// Write writes the document, indented.
func (d *Document) Write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(d)
}

// reserved is what numbers are called that no counter has.
const reserved = "reserved"

// Report is the run for machines. What is not in the steps, e says.
func (r *Run) Report(e *collector.Engine) *EngineReport {
	i := e.Info()
	c := e.Counters()
	a := e.Account()
	out := &EngineReport{
		Engine: e.Label(), RunID: i.RunID.String(), State: e.State().String(), Recorded: r.o.Recorded,
		Service: collector.CleanText(i.Service), Executable: collector.CleanText(i.Executable), PID: int64(i.PID),
		Producer: collector.CleanText(i.Producer), GPUUUID: collector.CleanText(i.GPUUUID), GPUName: collector.CleanText(i.GPUName),
		Model: collector.CleanText(i.Model), Rank: rankReport(i.Rank), Requests: r.requests.report(),
		Level: collector.LevelText(i.Level), KernelEvery: i.KernelEvery, LaneEvery: i.LaneEvery, Overhead: overheadReport(e.Overhead()),
		Steps: StepsReport{
			Unarmed: distribution(&r.steps[0]), Host: distribution(&r.host), Armed: distribution(&r.steps[1]),
			Incomplete: make(map[string]uint64), WithoutEnd: r.bare, Untimed: r.untimed,
			StandIns: map[string]uint64{spanring.StepGraph.String(): 0, spanring.StepWindow.String(): 0},
		},
		Lanes: []LaneReport{}, Kernels: []KernelReport{}, Regions: []RegionReport{}, Leaks: []LeakReport{}, Contexts: []ContextReport{},
		Memory: memoryReport(e), Bands: BandsReport{Last: []BandReport{}},
		Account:  AccountReport{a.Producer, a.Reader, a.Sidecar, append([]string{}, a.Unbalanced()...)},
		Counters: make(map[string]uint64),
		GPUTime:  gpuTimeReport(e.GPUTime()),
		Step:     exemplaryReport(r.Exemplary()),
	}
	if r.seen {
		from, to := time.Unix(0, r.firstNS+r.wallNS).UTC(), time.Unix(0, r.lastNS+r.wallNS).UTC()
		out.From, out.To = &from, &to
	}
	maps.Copy(out.Steps.StandIns, r.standIns)
	for i, n := range r.incomplete {
		if t := collector.IncompleteReason(i).String(); t != "" {
			out.Steps.Incomplete[t] = n
		}
	}
	for _, n := range sortedBy(r.lanes, func(l *laneStat) uint64 { return l.d[0].sum + l.d[1].sum }) {
		d := &r.lanes[n].d
		out.Lanes = append(out.Lanes, LaneReport{n, distribution(&d[0]), distribution(&d[1])})
	}
	for _, n := range sortedBy(r.kernels, func(k *kernelStat) uint64 { return k.d.sum }) {
		k := r.kernels[n]
		out.Kernels = append(out.Kernels, KernelReport{n, distribution(&k.d), k.queued, k.starved})
	}
	for _, g := range e.LaunchRegions() {
		out.Regions = append(out.Regions, RegionReport{g.Region, g.Executions, g.Differing, g.DifferingOps, g.Last.Step})
	}
	vs, n := e.Violations()
	out.Bands.Violations = n
	for i := range vs {
		v := &vs[i]
		out.Bands.Last = append(out.Bands.Last, BandReport{v.Site.Text, v.Index, v.Bytes, v.GuardBytes, v.First, v.Last, v.Changed})
	}
	for _, l := range r.leaks(e) {
		out.Leaks = append(out.Leaks, LeakReport{collector.CleanText(l.Site), l.Bytes, l.Grown, l.Over.Seconds(), finite(l.BytesPerSecond)})
	}
	for _, x := range e.Contexts() {
		out.Contexts = append(out.Contexts, ContextReport{
			x.Index, x.Device, x.UUIDText(), x.Calibration.String(), x.ConstantNS, x.SpreadNS, x.RatePPB, x.UncertaintyNS,
		})
	}
	for k := range spanring.NumCounters {
		if t := k.String(); t != reserved {
			out.Counters[t] = c[k]
		}
	}
	return out
}

func memoryReport(e *collector.Engine) *MemoryReport {
	m := e.Memory()
	if m.State == spanring.AllocsNotTracked {
		return nil
	}
	t := &m.Totals
	out := &MemoryReport{
		State: m.State.String(), Approximate: m.Approximate, Live: t.LiveBytes, Count: t.LiveCount, Peak: t.PeakBytes, Guard: t.GuardBytes,
		ChunkSlack: t.ChunkSlackBytes, RoundingSlack: t.RoundingSlackBytes, Arenas: t.ArenaBytes, ArenaCount: t.ArenaCount,
		Unlisted: t.UnlistedBytes, Sites: []SiteReport{},
	}
	for _, s := range m.Sites {
		out.Sites = append(out.Sites, SiteReport{collector.CleanText(s.Site), collector.CleanText(s.Title()), collector.CleanText(s.Function), s.Bytes, s.Count})
	}
	return out
}

func exemplaryReport(s *collector.Step) *ExemplaryStepReport {
	if s == nil {
		return nil
	}
	begin, end := s.Bounds()
	out := &ExemplaryStepReport{Number: s.Number, Armed: s.Armed, Untimed: s.Untimed, DurationNS: end - begin, HostNS: s.HostNS(), Derived: derivedReport(&s.Derived), Requests: linkTexts(s), LeftOut: s.LinksDropped(), Spans: []SpanReport{}}
	if s.HasAttrs {
		out.BatchSize, out.DecodeTokens, out.PrefillTokens = s.Attrs.BatchSize, s.Attrs.DecodeTokens, s.Attrs.PrefillTokens
		out.GraphMode = s.Attrs.GraphMode.String()
	}
	for i := range s.Spans {
		sp := &s.Spans[i]
		out.Spans = append(out.Spans, SpanReport{
			sp.Kind.String(), sp.Text.String(), sp.LaneText.String(), sp.Context, sp.Stream, sp.StartMonoNS - begin, sp.DurationNS(),
		})
	}
	return out
}
