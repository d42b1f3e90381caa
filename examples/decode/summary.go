package main

import (
	"fmt"
	"io"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/spanring"
)

// summary is what a run did.
type summary struct {
	Backend     string  `json:"backend"`
	GPU         string  `json:"gpu"`
	Model       string  `json:"model"`
	Async       bool    `json:"async"`
	Interrupted bool    `json:"interrupted"`
	Seconds     float64 `json:"seconds"`

	Requests struct {
		Came   int `json:"came"`
		Served int `json:"served"`
		Cut    int `json:"cut"` // by an interrupt
		Traced int `json:"traced"`
	} `json:"requests"`
	// Traced are the requests with a trace context that were served, the first
	// 10,000 of them.
	Traced []traced `json:"traced,omitempty"`
	Tokens struct {
		Prompt    int     `json:"prompt"`
		Generated int     `json:"generated"`
		PerSecond float64 `json:"per_second"`
		Stale     int     `json:"stale"` // rows run for a sequence that had ended
	} `json:"tokens"`
	Steps struct {
		Count    int     `json:"count"`
		Launches float64 `json:"launches_mean"`
		P50NS    int64   `json:"p50_ns"`
		P99NS    int64   `json:"p99_ns"`
		MaxNS    int64   `json:"max_ns"`
	} `json:"steps"`
	Memory struct {
		LiveBytes     int64 `json:"live_bytes"`
		LiveCount     int64 `json:"live_count"`
		PeakBytes     int64 `json:"peak_bytes"`
		ChunkSlack    int64 `json:"chunk_slack_bytes"`
		RoundingSlack int64 `json:"rounding_slack_bytes"`
		Violations    int   `json:"guard_band_violations"`
	} `json:"memory"`
	Telemetry struct {
		Level    string `json:"level"`
		Ring     string `json:"ring,omitempty"`
		Off      string `json:"off,omitempty"` // why there is none
		Begun    uint64 `json:"begun"`
		Landed   uint64 `json:"landed"`
		Failed   uint64 `json:"failed"`
		Dropped  uint64 `json:"dropped"`
		InFlight int64  `json:"in_flight"`
		Armed    uint64 `json:"armed_steps"`
		Queued   uint64 `json:"queued"`
		Starved  uint64 `json:"starved"`
		Untimed  uint64 `json:"untimed_steps"` // lanes left out for their budget
		// What timing launches and lanes is reckoned to have taken of step time.
		KernelShare float64           `json:"kernel_share"`
		LaneShare   float64           `json:"lane_share"`
		StepTimeNS  uint64            `json:"step_time_ns"`
		Reasons     map[string]uint64 `json:"failed_by_reason,omitempty"`
	} `json:"telemetry"`
}

func newSummary(e *engine, dev device) *summary {
	st := &e.stats
	r := &summary{Backend: dev.backend, GPU: dev.gpu.Name(), Model: e.model.shape.name, Async: e.async, Seconds: st.elapsed.Seconds()}
	r.Requests.Came, r.Requests.Served, r.Requests.Cut = st.came, st.served, st.came-st.served
	r.Requests.Traced, r.Traced = st.tracedCount, st.traced
	r.Tokens.Prompt, r.Tokens.Generated, r.Tokens.Stale = st.prefillTokens, st.tokens, st.stale
	if r.Seconds > 0 {
		r.Tokens.PerSecond = float64(st.tokens) / r.Seconds
	}
	r.Steps.Count = st.steps
	if st.steps > 0 {
		r.Steps.Launches = float64(st.launches) / float64(st.steps)
	}
	r.Steps.P50NS, r.Steps.P99NS = int64(st.step.quantile(0.5)), int64(st.step.quantile(0.99))
	r.Steps.MaxNS = int64(st.step.longest)
	mem, _ := dev.gpu.LedgerProbe().Totals()
	r.Memory.LiveBytes, r.Memory.LiveCount, r.Memory.PeakBytes = int64(mem.LiveBytes), int64(mem.LiveCount), int64(mem.PeakBytes)
	r.Memory.ChunkSlack, r.Memory.RoundingSlack = int64(mem.ChunkSlackBytes), int64(mem.RoundingSlackBytes)
	r.Memory.Violations = e.plants.violated
	r.Telemetry.Level = e.hub.Level().String()
	return r
}

// close takes in telemetry's account, when nothing moves any more.
func (r *summary) close(hub *lanetrace.Hub) {
	t := &r.Telemetry
	ring := hub.Ring()
	if ring == nil {
		t.Off = hub.Disabled().Error()
		return
	}
	c := ring.Counters()
	t.Ring = ring.Path()
	t.Begun, t.Landed, t.Failed, t.Dropped = c[spanring.CtrBegun], c[spanring.CtrLanded], c.Failed(), c[spanring.CtrDropped]
	t.InFlight = c.InFlight()
	t.Armed, t.Queued, t.Starved = c[spanring.CtrStepsArmed], c[spanring.CtrQueued], c[spanring.CtrStarved]
	t.Untimed, t.StepTimeNS = c[spanring.CtrStepsUntimed], c[spanring.CtrStepTimeNS]
	o := hub.Overhead()
	t.KernelShare, t.LaneShare = o.KernelShare, o.LaneShare
	for reason := spanring.FailNone + 1; int(reason) < spanring.NumReasons; reason++ {
		if n := c[reason.Counter()]; n > 0 {
			if t.Reasons == nil {
				t.Reasons = make(map[string]uint64)
			}
			t.Reasons[reason.String()] = n
		}
	}
}

func (r *summary) print(w io.Writer) error {
	mode := "synchronous"
	if r.Async {
		mode = "asynchronous"
	}
	ended := ""
	if r.Interrupted {
		ended = fmt.Sprintf(", interrupted: %d requests cut short", r.Requests.Cut)
	}
	t := &r.Telemetry
	_, err := fmt.Fprintf(w, `%s (%s), model %s, %s%s
requests   %d served of %d in %.2f s
tokens     %d generated (%.0f a second) from %d of prompts; %d rows stale
steps      %d of %.1f launches; host time p50 %v, p99 %v, max %v
memory     %d allocations hold %.2f MiB, the driver keeps %.2f MiB more; %d guard bands written to
telemetry  level %s: %d begun, %d landed, %d failed, %d dropped, %d in flight; %d steps armed, %d launches queued, %d starved
overhead   timing lanes took %.3f %% of step time, launches %.3f %%, as reckoned; lanes of %d steps left out
`,
		r.GPU, r.Backend, r.Model, mode, ended,
		r.Requests.Served, r.Requests.Came, r.Seconds,
		r.Tokens.Generated, r.Tokens.PerSecond, r.Tokens.Prompt, r.Tokens.Stale,
		r.Steps.Count, r.Steps.Launches, short(r.Steps.P50NS), short(r.Steps.P99NS), short(r.Steps.MaxNS),
		r.Memory.LiveCount, float64(r.Memory.LiveBytes)/(1<<20), float64(r.Memory.ChunkSlack+r.Memory.RoundingSlack)/(1<<20), r.Memory.Violations,
		t.Level, t.Begun, t.Landed, t.Failed, t.Dropped, t.InFlight, t.Armed, t.Queued, t.Starved,
		100*t.LaneShare, 100*t.KernelShare, t.Untimed)
	if err != nil {
		return err
	}
	switch {
	case len(t.Reasons) > 0:
		_, err = fmt.Fprintf(w, "failed     %v\n", t.Reasons)
		if err != nil {
			return err
		}
	case t.Off != "":
		_, err = fmt.Fprintf(w, "ring       none: %s\n", t.Off)
		return err
	}
	_, err = fmt.Fprintf(w, "ring       %s\n", t.Ring)
	return err
}

// short rounds to three or four places.
func short(ns int64) time.Duration {
	d := time.Duration(ns)
	for unit := time.Duration(1); ; unit *= 10 {
		if d < 10000*unit {
			return d.Round(unit)
		}
	}
}
