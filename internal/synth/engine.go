// Package synth is an engine that never ran: a [collector.Source] whose steps,
// lanes and kernels are drawn from a seed. It serves tests and the recording that
// stands in where none of a real GPU is at hand. The same options give the same
// entries; it holds a few milliseconds of them, however long it runs.
package synth

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// Options describe the engine.
type Options struct {
	// Seed of everything that varies.
	Seed uint64
	// Duration is how long steps begin. Default 1 s.
	Duration time.Duration
	// KernelEvery arms one step in so many. Default 64; negative: none.
	KernelEvery int
	// LaneEvery times the lanes of one step in so many, and of armed ones. Default 1:
	// of all.
	LaneEvery int
	// Layers is the number of layers of the model, eight kernels each. Default 4.
	Layers int
	// FailEvery makes one step in so many lose a lane, and DropEvery find no slot
	// for one. Default none.
	FailEvery, DropEvery int
	// DiffEvery makes each step an execution of the region "step", one in so many of
	// which differs from the one before. Default: none is recorded.
	DiffEvery int
	// Memory: the engine has a ledger of its device memory. LeakEvery leaks 64 KiB
	// in one step in so many, and at step ViolateAt a guard band is found changed.
	// Default: none of it.
	Memory    bool
	LeakEvery int
	ViolateAt uint64
	// RequestEvery begins a request in one step in so many; each step is linked to
	// those it works for. Default: none.
	RequestEvery int
	// StepEvery is how far apart the begins of steps are at least, on average. Default:
	// a step begins as soon as the GPU allows.
	StepEvery time.Duration
	// Model is the served model. Default: none.
	Model string
	// Service is the engine's name. Default "synthetic-decode".
	Service string
	// GPUName names the device. Default "synthetic (no GPU)".
	GPUName string
	// StartMonoNS is when the run begins. Default 1,000 s.
	StartMonoNS int64
	// WallOffsetNS makes Unix time of it. Default 2026-01-01 00:00:00 UTC less
	// StartMonoNS.
	WallOffsetNS int64
	// Outlives: the engine runs on when the source ends.
	Outlives bool
}

func (o Options) withDefaults() Options {
	if o.Duration == 0 {
		o.Duration = time.Second
	}
	if o.KernelEvery == 0 {
		o.KernelEvery = 64
	}
	o.LaneEvery = max(1, o.LaneEvery)
	if o.Layers == 0 {
		o.Layers = 4
	}
	if o.Service == "" {
		o.Service = "synthetic-decode"
	}
	if o.GPUName == "" {
		o.GPUName = "synthetic (no GPU)"
	}
	if o.StartMonoNS == 0 {
		o.StartMonoNS = 1_000_000_000_000
	}
	if o.WallOffsetNS == 0 {
		o.WallOffsetNS = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano() - o.StartMonoNS
	}
	return o
}

// The lanes of the engine.
const (
	LaneAdmit = iota
	LanePrefill
	LaneDecode
)

const (
	harvestNS  = 5_000_000
	pollNS     = 20_000_000
	constantNS = 3_040
	costNS     = 3_500 // of timing a lane or a launch
)

type kernel struct {
	name string
	ns   int64 // typical length
}

// layer are the kernels of one layer and head those around them, of lengths in
// the proportions of a small decoder.
var (
	layer = []kernel{
		{"rms_norm_f16", 4_300}, {"gemm_f16_128x64_qkv", 15_600}, {"rope_f16", 4_700},
		{"attention_decode_f16_h64", 31_200}, {"gemm_f16_128x64_out", 11_900}, {"rms_norm_f16", 4_300},
		{"gemm_f16_128x128_up", 27_400}, {"silu_gemm_f16_128x64_down", 22_100},
	}
	head = []kernel{{"embedding_f16", 5_200}, {"rms_norm_f16", 4_300}, {"gemm_f16_128x128_logits", 41_800}, {"argmax_f32", 9_300}}
)

// Engine is the source. Poll belongs to one goroutine; the other methods too.
type Engine struct {
	o   Options
	rnd *rand.Rand

	names  []spanring.Name
	ids    map[string]spanring.NameID
	queue  queue
	seq    uint64
	step   uint64
	hostNS int64 // when the next step begins on the host
	gpuNS  int64 // when the stream is idle again
	endNS  int64 // no step begins after it
	nowNS  int64
	ctrs   spanring.Counters
	acc    spanring.Account
	done   bool
	mem    memory

	requests []request
}

// New makes an engine.
func New(o Options) *Engine {
	o = o.withDefaults()
	e := &Engine{
		o: o, rnd: rand.New(rand.NewPCG(o.Seed, 0x1a7e)), ids: make(map[string]spanring.NameID),
		hostNS: o.StartMonoNS + 1_000_000, nowNS: o.StartMonoNS, endNS: o.StartMonoNS + int64(o.Duration),
	}
	e.gpuNS = e.hostNS
	for _, l := range []string{"admit", "prefill", "decode"} {
		e.name(spanring.NameLane, l)
	}
	e.load()
	return e
}

func (e *Engine) name(k spanring.NameKind, text string) spanring.NameID {
	if id, ok := e.ids[text]; ok {
		return id
	}
	e.names = append(e.names, spanring.Name{Kind: k, Text: text})
	e.ids[text] = spanring.NameID(len(e.names))
	return e.ids[text]
}

// normal is about mean ± sd, never under a tenth of mean.
func (e *Engine) normal(mean, sd float64) int64 {
	return int64(max(mean/10, mean+sd*e.rnd.NormFloat64()))
}

// stamp puts a time on the grid of the GPU's clock.
func stamp(ns int64) int64 { return ns &^ 31 }

// item is an entry and when it is published.
type item struct {
	atNS  int64
	order uint64
	words spanring.Words
	count func(*spanring.Counters)
}

type queue []item

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if q[i].atNS != q[j].atNS {
		return q[i].atNS < q[j].atNS
	}
	return q[i].order < q[j].order
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(item)) }
func (q *queue) Pop() any {
	x := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return x
}

func (e *Engine) push(atNS int64, w spanring.Words, count func(*spanring.Counters)) {
	e.seq++
	heap.Push(&e.queue, item{atNS, e.seq, w, count})
}

// harvested is when a pair that completes at ns is read.
func harvested(ns int64) int64 { return ns/harvestNS*harvestNS + harvestNS }

// makeStep draws the next step.
func (e *Engine) makeStep() {
	o := &e.o
	e.step++
	n := e.step
	armed := o.KernelEvery > 0 && n%uint64(o.KernelEvery) == 0
	untimed := !armed && n%uint64(o.LaneEvery) != 0
	prefill := n%20 == 7
	begin := e.hostNS
	batch := uint32(12 + (n/200)%5)
	sb := spanring.StepBegin{Step: n, MonoNS: begin, Armed: armed, Untimed: untimed, Level: 3}
	e.push(begin, sb.Words(), func(c *spanring.Counters) {
		c[spanring.CtrBegun]++
		c[spanring.CtrStepsBegun]++
		if armed {
			c[spanring.CtrStepsArmed]++
		}
		if untimed {
			c[spanring.CtrStepsUntimed]++
		}
	})
	e.stepMemory(n, begin)
	at := spanring.StepAttrs{Step: n, BatchSize: batch, DecodeTokens: batch, GraphMode: spanring.GraphEager}
	if prefill {
		at.PrefillTokens = 96 + 8*uint32(e.rnd.IntN(16))
	}
	e.push(begin+3_000, at.Words(), nil)
	linked := e.linkRequests(n, begin)

	var ordinal, opened, dropped uint32
	host := begin + e.normal(9_000, 900)
	gpu := max(e.gpuNS, host+e.normal(6_500, 500))
	gpuBegin, lanes := gpu, uint32(0)
	lane := func(lane uint16, text string, ks []kernel, shared bool) {
		ordinal++
		own := ordinal
		enq, start, first := host, stamp(gpu), true
		for _, k := range ks {
			host += e.normal(4_100, 350)
			queued := gpu > host
			length := e.normal(float64(k.ns), float64(k.ns)*0.015)
			kStart := stamp(max(gpu, host+e.normal(2_000, 200)))
			if first {
				start, first = min(start, kStart), false
			}
			extra := int64(0)
			if armed {
				extra = constantNS
				if !queued {
					extra = constantNS + e.normal(2_200, 700)
				}
				ordinal++
				sp := spanring.Span{
					Kind: spanring.KindKernel, Armed: true, Gap: spanring.GapStarved, Calibration: spanring.CalibrationMeasured,
					Lane: lane, Step: n, Name: e.name(spanring.NameKernel, k.name), Ordinal: ordinal, Parent: own,
					StartMonoNS: kStart, RawNS: uint64(stamp(length + extra)), CorrectionNS: constantNS,
					LeadNS: kStart - host, PlaceUncertaintyNS: 3_200 + uint64(n%16)*8, DurationUncertaintyNS: 2_000,
				}
				if queued {
					sp.Gap, sp.DurationUncertaintyNS = spanring.GapQueued, 64
				}
				e.land(&sp)
			}
			gpu = kStart + length + extra
		}
		if untimed {
			ordinal = 0
			return
		}
		lanes++
		end := stamp(gpu)
		if end <= start {
			end = start + 1_280
		}
		sp := spanring.Span{
			Kind: spanring.KindLane, Armed: armed, SharedStart: shared, Lane: lane, Step: n,
			Name: e.name(spanring.NameLane, text), Ordinal: own, StartMonoNS: start, RawNS: uint64(end - start),
			LeadNS: start - enq, PlaceUncertaintyNS: 3_200 + uint64(n%16)*8, DurationUncertaintyNS: 64,
		}
		switch {
		case o.FailEvery > 0 && n%uint64(o.FailEvery) == 0 && lane == LaneAdmit:
			f := spanring.SpanFailed{
				SpanKind: sp.Kind, Reason: spanring.FailRecord, Lane: lane, Step: n, EnqueueMonoNS: sp.EnqueueMonoNS(),
				Name: sp.Name, Ordinal: sp.Ordinal,
			}
			e.push(harvested(end), f.Words(), func(c *spanring.Counters) {
				c[spanring.CtrBegun]++
				c[spanring.FailRecord.Counter()]++
			})
		case o.DropEvery > 0 && n%uint64(o.DropEvery) == 0 && lane == LaneAdmit:
			dropped++
		default:
			e.land(&sp)
		}
		opened = ordinal - dropped
	}
	lane(LaneAdmit, "admit", []kernel{{"scatter_slots_i32", 3_900}}, false)
	if prefill {
		var ks []kernel
		for range o.Layers {
			ks = append(ks, layer[0], kernel{"gemm_f16_128x128_up", 61_000}, kernel{"attention_prefill_f16_h64", 88_000}, layer[7])
		}
		lane(LanePrefill, "prefill", ks, true)
	}
	ks := []kernel{head[0]}
	for range o.Layers {
		ks = append(ks, layer...)
	}
	lane(LaneDecode, "decode", append(ks, head[1:]...), true)

	e.gpuNS = gpu
	end := host + e.normal(5_000, 400)
	if o.DiffEvery > 0 {
		e.diff(n, end-1_000)
	}
	se := spanring.StepEnd{Step: n, MonoNS: end, BeginNS: begin, Armed: armed, Untimed: untimed, Opened: opened, Dropped: dropped, Linked: linked}
	e.push(end, se.Words(), func(c *spanring.Counters) {
		c[spanring.CtrLanded]++
		c[spanring.CtrStepsEnded]++
		c[spanring.CtrBegun] += uint64(dropped)
		c[spanring.CtrDropped] += uint64(dropped)
		c[spanring.CtrStepTimeNS] += uint64(max(end-begin, gpu-gpuBegin))
		c[spanring.CtrLaneCostNS] += uint64(lanes-dropped) * costNS
		c[spanring.CtrArmedCostNS] += uint64(ordinal-lanes) * costNS
	})
	e.endRequests(n, end+1_000)
	// The host runs at most a step ahead of the GPU.
	e.hostNS = max(end+e.normal(12_000, 2_000), gpu-300_000)
	if every := int64(o.StepEvery); every > 0 {
		e.hostNS = max(e.hostNS, begin+e.normal(float64(every), float64(every)*0.02))
	}
}

// diff publishes what became of comparing a step's launches with the last one's.
func (e *Engine) diff(n uint64, atNS int64) {
	const ops = 412
	d := spanring.LaunchDiff{Region: e.name(spanring.NameOther, "step"), Step: n, MonoNS: atNS, After: ops}
	switch {
	case n == 1:
		d.First = true
	case n%uint64(e.o.DiffEvery) == 0:
		d.Before, d.After, d.Inserted, d.Removed, d.Changed = ops, ops+1, 2, 1, 3
	case n%uint64(e.o.DiffEvery) == 1:
		d.Before, d.Inserted, d.Removed, d.Changed = ops+1, 1, 2, 3
	default:
		d.Before = ops
	}
	e.push(atNS, d.Words(), func(c *spanring.Counters) {
		c[spanring.CtrLaunchExecutions]++
		if k := d.Differing(); k > 0 {
			c[spanring.CtrLaunchDiffs]++
			c[spanring.CtrLaunchDiffOps] += k
		}
	})
}

// land publishes a span when it is harvested.
func (e *Engine) land(sp *spanring.Span) {
	gap := sp.Gap
	e.push(harvested(sp.EndMonoNS()), sp.Words(), func(c *spanring.Counters) {
		c[spanring.CtrBegun]++
		c[spanring.CtrLanded]++
		switch gap {
		case spanring.GapQueued:
			c[spanring.CtrQueued]++
		case spanring.GapStarved:
			c[spanring.CtrStarved]++
		}
		if sp.Kind == spanring.KindKernel {
			c[spanring.CtrLaunches]++
		}
	})
}

// Poll implements collector.Source: each call that leaves nothing behind moves
// the engine's time on by 20 ms.
func (e *Engine) Poll(dst []spanring.Entry) (n int, done bool, err error) {
	if e.done {
		return 0, true, nil
	}
	for n < len(dst) {
		for e.hostNS < e.endNS && (len(e.queue) == 0 || e.hostNS <= e.queue[0].atNS) {
			e.makeStep()
		}
		if len(e.queue) == 0 || e.queue[0].atNS > e.nowNS {
			break
		}
		it := heap.Pop(&e.queue).(item)
		if it.count != nil {
			it.count(&e.ctrs)
		}
		dst[n] = spanring.Entry{Seq: e.acc.Received, Words: it.words}
		e.acc.Received++
		e.acc.Published++
		n++
	}
	if n < len(dst) {
		if len(e.queue) == 0 && e.hostNS >= e.endNS {
			e.done = n == 0
			return n, e.done, nil
		}
		if n == 0 {
			e.nowNS += pollNS
			for h := harvestNS; h <= pollNS; h += harvestNS {
				e.ctrs[spanring.CtrHarvests]++
				e.ctrs[spanring.CtrHarvestCalls] += 12
				e.ctrs[spanring.CtrHarvestNS] += 2_400
				e.ctrs[spanring.CtrDriverCalls] += 60
			}
			return e.Poll(dst)
		}
	}
	return n, false, nil
}

// Step is the number of the last step drawn.
func (e *Engine) Step() uint64 { return e.step }

// NowMonoNS implements collector.Source.
func (e *Engine) NowMonoNS() int64 { return e.nowNS }

// WallOffsetNS implements collector.Source.
func (e *Engine) WallOffsetNS() int64 { return e.o.WallOffsetNS }

// Info implements collector.Source.
func (e *Engine) Info() (spanring.Info, error) {
	i := spanring.Info{
		PID: 4242, PIDNamespace: 4026531836, StartTicks: 99,
		CreatedUnixNS: e.o.StartMonoNS + e.o.WallOffsetNS, CreatedMonoNS: e.o.StartMonoNS,
		Executable: "decode", Service: e.o.Service, GPUUUID: "GPU-5e1f0000-0000-4000-8000-000000000000", GPUName: e.o.GPUName,
		Rank: spanring.NoRank, Producer: "lanetrace-synth", Model: e.o.Model, Level: 3, KernelEvery: uint32(max(0, e.o.KernelEvery)), LaneEvery: uint32(e.o.LaneEvery),
		Clean: e.done && !e.o.Outlives,
	}
	copy(i.RunID[:], fmt.Sprintf("synth%011d", e.o.Seed))
	return i, nil
}

// Name implements collector.Source.
func (e *Engine) Name(id spanring.NameID) (spanring.Name, bool) {
	if id == 0 || int(id) > len(e.names) {
		return spanring.Name{}, false
	}
	return e.names[id-1], true
}

// Counters implements collector.Source.
func (e *Engine) Counters() (spanring.Counters, error) { return e.ctrs, nil }

// Contexts implements collector.Source.
func (e *Engine) Contexts() ([]spanring.ContextState, error) {
	return []spanring.ContextState{{
		UUID: deviceUUID, Capability: 90, Calibration: spanring.CalibrationMeasured,
		ConstantNS: constantNS, SpreadNS: 60, Slots: 4096, GPURefNS: 0, HostRefNS: e.o.StartMonoNS, RatePPB: 11_800,
		UpdatedMonoNS: e.nowNS, UncertaintyNS: 3_200,
	}}, nil
}

// Account implements collector.Source.
func (e *Engine) Account() spanring.Account { return e.acc }

// Busy implements collector.Source: an engine that never ran has nothing in
// flight.
func (e *Engine) Busy() ([]spanring.SlotEntry, error) { return nil, nil }

// Alive implements collector.Source.
func (e *Engine) Alive() (bool, error) { return !e.done || e.o.Outlives, nil }

// Close implements collector.Source.
func (e *Engine) Close() error { return nil }

var (
	_ collector.Source      = (*Engine)(nil)
	_ collector.AllocSource = (*Engine)(nil)
)
