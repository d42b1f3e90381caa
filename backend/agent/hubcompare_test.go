package agent

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
	"github.com/lanetrace/lanetrace/spanring"
)

// goRig does with the Go library what testdata/hub.c does with the agent.
type goRig struct {
	t      *testing.T
	hub    *lanetrace.Hub
	drv    *scripted.Driver
	dev    *lanetrace.Device
	stream []cudaevents.Stream
	step   [compareSteps]lanetrace.Step
	lane   [compareLanes]lanetrace.Lane
}

const (
	compareSteps   = 6
	compareLanes   = 12
	compareStreams = 3
)

func newGoRig(t *testing.T, level string, laneBudget float64) *goRig {
	t.Helper()
	h, err := lanetrace.OpenHeap(lanetrace.Config{
		Level: level, KernelSpanEvery: 1_000_000, LaneBudget: laneBudget, HarvestEvery: -1, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	drv := scripted.New(scripted.Options{RealTime: true, Device: cudaevents.Device{Capability: 90}})
	dev, err := h.Attach(drv)
	if err != nil {
		t.Fatal(err)
	}
	g := &goRig{t: t, hub: h, drv: drv, dev: dev}
	for range compareStreams {
		g.stream = append(g.stream, drv.NewStream())
	}
	for _, name := range []string{"a", "b", "c"} {
		h.Lane(name)
	}
	return g
}

// act does a line of testdata/hub.c's.
func (g *goRig) act(op string, a ...int) {
	switch op {
	case "step":
		g.step[a[0]] = g.hub.StepBegin()
	case "endstep":
		g.step[a[0]].End()
	case "attrs":
		g.step[a[0]].SetAttrs(lanetrace.Attrs{BatchSize: a[1], DecodeTokens: a[2], PrefillTokens: a[3], GraphMode: spanring.GraphReplay})
	case "link":
		c := lanetrace.TraceContext{Flags: uint8(a[2])}
		c.TraceID[0], c.SpanID[0] = byte(a[1]), byte(a[1])
		for range a[3] {
			g.step[a[0]].Link(c)
		}
	case "request":
		var r lanetrace.Request
		r.Context.TraceID[0], r.Context.SpanID[0], r.Context.Flags = byte(a[0]), byte(a[0]), 1
		r.BeginMonoNS, r.EndMonoNS, r.PromptTokens, r.OutputTokens = int64(a[1]), int64(a[2]), 3, 4
		g.hub.RequestEnd(r)
	case "begin":
		g.lane[a[0]] = g.dev.LaneBegin(g.step[a[1]], lanetrace.LaneID(a[2]), g.stream[a[3]])
	case "end":
		g.lane[a[0]].End()
	case "next":
		g.lane[a[0]] = g.lane[a[1]].Next(lanetrace.LaneID(a[2]))
	case "bind":
		var s lanetrace.Step
		if a[0] >= 0 {
			s = g.step[a[0]]
		}
		g.dev.Bind(s, g.stream[a[1]])
	case "launch":
		s := g.stream[a[0]]
		l, ok := g.dev.LaunchBegin(spanring.KindKernel, s, g.dev.Name(spanring.NameKernel, "work"))
		if !ok {
			g.drv.Work(s, 5000)
			return
		}
		g.dev.LaunchEnd(l, g.drv.Launch(l.Pair, s, 5000))
	case "capture":
		g.drv.BeginCapture(g.stream[a[0]], scripted.Relaxed)
	case "endcapture":
		if err := g.drv.EndCapture(g.stream[a[0]]); err != nil {
			g.t.Error(err)
		}
	case "renew":
		g.dev.StreamDestroyed(g.stream[a[0]])
		g.drv.DropStream(g.stream[a[0]])
		g.stream[a[0]] = g.drv.NewStream()
	case "level":
		if err := g.hub.SetLevel(lanetrace.Level(a[0])); err != nil {
			g.t.Error(err)
		}
	case "arm":
		g.hub.Arm(uint32(a[0]))
	default:
		g.t.Fatalf("no operation %s", op)
	}
}

// close lands what can land, fails the rest, and returns the log and the counters.
func (g *goRig) close() ([]string, spanring.Counters) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_ = g.dev.Detach(ctx) // the deadline is for lanes that nobody ends
	rd, err := spanring.NewHeapReader(g.hub.Ring(), spanring.ReaderOptions{})
	if err != nil {
		g.t.Fatal(err)
	}
	defer rd.Close()
	entries := make([]spanring.Entry, 1<<16)
	n, err := rd.Poll(entries, 0)
	if err != nil {
		g.t.Fatal(err)
	}
	log, counters := describeLog(g.t, entries[:n], rd.Name), g.hub.Ring().Counters()
	if err := g.hub.Close(context.Background()); err != nil {
		g.t.Error(err)
	}
	return log, counters
}

// A random engine, careless at times, does the same over both producers: the same
// steps and spans with the same ordinals, parents and failures, and the same counters.
func TestHubComparedWithGo(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			level := []string{"kernel", "lane", "basic"}[seed%3]
			env, budget := []string{"LANETRACE_KERNEL_SPAN_EVERY=1000000"}, 0.0
			if seed >= 4 {
				// Once the lanes of one step were timed, those of no unarmed one are again.
				env, budget = append(env, "LANETRACE_LANE_BUDGET=1e-12"), 1e-12
			}
			e, g := newHubRig(t, hubOptions{level: level, env: env}), newGoRig(t, level, budget)
			for i := 1; i < compareStreams; i++ {
				e.do(fmt.Sprintf("stream %d 0", i))
			}
			var script []string
			var both func(op string, a ...int)
			// Meanwhile the driver refuses a record or a launch; the agent's thread, which
			// records too, is held.
			refused := func(f func()) {
				skip := r.IntN(2)
				e.do("hold 1")
				if what := r.IntN(3); what == 0 {
					e.do("fail cuLaunchKernel 719 0 1")
					g.drv.Fail(scripted.Launch, 1, 719)
				} else {
					e.do(fmt.Sprintf("fail cuEventRecord 700 %d 1", skip))
					g.drv.Fail(scripted.Record, skip+1, 700)
				}
				f()
				e.do("heal")
				e.do("hold 0")
				g.drv.Heal(scripted.Record)
				g.drv.Heal(scripted.Launch)
			}
			both = func(op string, a ...int) {
				line := op
				for _, v := range a {
					line += fmt.Sprint(" ", v)
				}
				switch op {
				case "capture":
					e.want(line+" 2", "0")
				case "launch":
					e.do(line + " -1")
				case "renew":
					e.want(fmt.Sprintf("destroy %d", a[0]), "0")
					e.do(fmt.Sprintf("stream %d 0", a[0]))
				default:
					e.do(line)
				}
				g.act(op, a...)
				script = append(script, line)
			}
			capturing := -1
			// The pool is there before the first capture.
			both("level", 2)
			both("level", 1+r.IntN(3))
			if both("arm", 20); budget == 0 {
				both("arm", 100_000)
			}
			for range 1000 {
				step, lane, stream := r.IntN(compareSteps), r.IntN(compareLanes), r.IntN(compareStreams)
				id := r.IntN(4)
				if r.IntN(12) == 0 {
					id = 9
				}
				switch n := r.IntN(100); {
				case n < 14:
					both("step", step)
				case n < 24:
					both("endstep", step)
				case n < 46:
					both("begin", lane, step, id, stream)
				case n < 66:
					both("end", lane)
				case n < 72:
					both("next", lane, r.IntN(compareLanes), id)
				case n < 76:
					both("bind", step-1, stream)
				case n < 87:
					both("launch", stream)
				case n < 90:
					refused(func() {
						switch r.IntN(4) {
						case 0:
							both("begin", lane, step, id, stream)
						case 1:
							both("end", lane)
						case 2:
							both("next", lane, r.IntN(compareLanes), id)
						default:
							both("launch", stream)
						}
					})
				case n < 92:
					both("attrs", step, r.IntN(9), r.IntN(9), r.IntN(9))
				case n < 94:
					both("link", step, r.IntN(3), r.IntN(2), 1+r.IntN(100))
				case n < 95:
					both("request", r.IntN(3), 100, 200)
				case n < 96:
					if stream != capturing {
						both("renew", stream)
					}
				case n < 97:
					both("level", []int{0, 1, 2, 3, 3, 3, 3, 3, 3}[r.IntN(9)])
				default:
					if capturing < 0 {
						capturing = stream
						both("capture", stream)
					} else {
						both("endcapture", capturing)
						capturing = -1
					}
				}
			}
			if capturing >= 0 {
				both("endcapture", capturing)
			}
			// What can land has, in both, before they end.
			for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
				e.do("harvest")
				g.hub.Harvest()
				if c, went := e.counters(), g.hub.Ring().Counters(); c.InFlight() == went.InFlight() {
					break
				}
			}
			e.script("close = 0\n inflight = 0")
			want, wantCounters := g.close()
			got := e.log()
			slices.Sort(want)
			slices.Sort(got)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("log (-Go +C) of %v:\n%s", script, d)
			}
			besides := map[string]uint64{"steps_untimed": 0, "lane_cost_ns": 0, "armed_cost_ns": 0}
			if d := cmp.Diff(namedCounters(wantCounters, besides), namedCounters(e.counters(), besides)); d != "" {
				t.Errorf("counters (-Go +C):\n%s", d)
			}
			if untimed := wantCounters[spanring.CtrStepsUntimed]; (untimed > 0) != (seed >= 4) {
				t.Errorf("%d steps untimed with a budget of %v", untimed, budget)
			}
			t.Logf("%d entries alike, %d spans begun, %d failed, %d steps untimed", len(got), wantCounters[spanring.CtrBegun], wantCounters.Failed(),
				wantCounters[spanring.CtrStepsUntimed])
		})
	}
}
