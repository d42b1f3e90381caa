//go:build servers

package servers_test

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"testing"

	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/spanring"
)

// surveyed is what a pass over the recording of one run finds, by code that shares
// nothing with the collector but the ring's words.
type surveyed struct {
	info     spanring.Info
	contexts []spanring.ContextState
	counters spanring.Counters
	account  spanring.Account
	scan     spanring.AllocScan // of memory at the end
	wallNS   int64              // added to the run's clock it gives Unix time

	entries          uint64
	steps            [2]uint64            // ended: not armed, armed
	lanes            map[string][]float64 // seconds, of steps that are not armed
	collective       float64              // seconds, on armed steps
	graphs           map[string][]float64
	selected         map[string]float64 // steps by why they are to be sent
	slow             map[string]float64 // slow steps by what came of arming the next
	incomplete       map[string]float64 // that were begun and not ended
	ignored          map[string]float64 // entries that make no span
	late             float64            // seconds
	open             float64            // requests that did not end
	ended            float64            // requests that did
	made             map[string][]spanring.Alloc
	openSteps        float64
	sidecar          sidecarCounts
	oldestNS         int64  // when what is in flight was enqueued at first, 0 for nothing
	generated, input uint64 // tokens
}

// sidecarCounts are spans in the sidecar, steps and summaries of requests among them, by
// what became of them.
type sidecarCounts struct{ received, exported, notSelected, dropped, pending float64 }

// surveyedStep is a step while the pass is in it.
type surveyedStep struct {
	begin   spanring.StepBegin
	attrs   spanring.StepAttrs
	spans   []spanring.Span
	failed  bool
	differs bool
	linked  bool
}

// selection is how the sidecar was told to select.
type selection struct{ oneInN uint64 }

// What the sidecar's documentation says of slow steps, and of what comes late.
const (
	slowFactor   = 1.5
	slowWarmUp   = 256
	askAgainNS   = 10e9
	staleNS      = 5e9
	pendingSteps = 1024
)

var inCollective = regexp.MustCompile(`(?i)nccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all`)

// surveyAll are the runs of a directory of recordings, by engine.
func surveyAll(t *testing.T, dir string, sel selection) map[string]*surveyed {
	t.Helper()
	kept, err := recording.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := kept.Damage(); err != nil {
		t.Fatal(err)
	}
	out := make(map[string]*surveyed)
	for _, r := range kept.Runs(0, 0) {
		src, err := r.Source()
		if err != nil {
			t.Fatal(err)
		}
		s := survey(t, src, sel)
		if err := src.Close(); err != nil {
			t.Fatal(err)
		}
		l := labelled(&s.info)
		if out[l] != nil {
			t.Fatalf("two runs of %s", l)
		}
		out[l] = s
	}
	return out
}

// labelled is the label engine: service, ranks, and eight digits of the GPU.
func labelled(i *spanring.Info) string {
	l := i.Service
	for _, r := range []struct {
		tag string
		n   int32
	}{{"dp", i.Rank.Data}, {"tp", i.Rank.Tensor}, {"pp", i.Rank.Pipeline}, {"ep", i.Rank.Expert}} {
		if r.n != -1 {
			l += fmt.Sprintf("-%s%d", r.tag, r.n)
		}
	}
	return l + "-gpu" + i.GPUUUID[len("GPU-"):][:8]
}

// survey makes the pass.
func survey(t *testing.T, src *recording.Series, sel selection) *surveyed {
	t.Helper()
	s := &surveyed{
		lanes: make(map[string][]float64), graphs: make(map[string][]float64), selected: make(map[string]float64),
		slow: make(map[string]float64), incomplete: make(map[string]float64), ignored: make(map[string]float64), made: make(map[string][]spanring.Alloc),
	}
	name := func(id spanring.NameID) string {
		n, ok := src.Name(id)
		if !ok {
			t.Fatalf("the recording has no name %d", id)
		}
		return n.Text
	}
	steps := make(map[uint64]*surveyedStep)
	over := make(map[uint64]bool)
	requests := make(map[[16]byte]bool)
	classes := make(map[string][]float64) // how long the steps of a class took
	var asked bool
	var askedNS int64
	var closed [][2]int64 // what closed steps took of the GPU, as begun
	var begun []int64
	get := func(n uint64) *surveyedStep {
		if steps[n] == nil {
			steps[n] = &surveyedStep{}
		}
		return steps[n]
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]spanring.Entry, 1)
	for {
		n, done, err := src.Poll(buf)
		must(err)
		if done {
			break
		}
		if n == 0 {
			continue
		}
		s.entries++
		w, nowNS := &buf[0].Words, src.NowMonoNS()
		switch k := w.Kind(); k {
		case spanring.KindStepBegin:
			b, err := w.StepBegin()
			must(err)
			get(b.Step).begin = b
		case spanring.KindStepAttrs:
			a, err := w.StepAttrs()
			must(err)
			get(a.Step).attrs = a
			s.generated += uint64(a.DecodeTokens)
			s.input += uint64(a.PrefillTokens)
		case spanring.KindTraceContext:
			l, err := w.StepLink()
			must(err)
			if l.Flags&1 != 0 {
				get(l.Step).linked = true
				if _, ok := requests[l.TraceID]; !ok {
					requests[l.TraceID] = true
				}
			}
		case spanring.KindRequestEnd:
			r, err := w.RequestEnd()
			must(err)
			requests[r.TraceID] = false
			s.ended++
			s.sidecar.received++
			s.sidecar.exported++
		case spanring.KindLaunchDiff:
			d, err := w.LaunchDiff()
			must(err)
			if d.Inserted+d.Removed+d.Changed > 0 {
				get(d.Step).differs = true
			}
		case spanring.KindSpanFailed:
			f, err := w.SpanFailed()
			must(err)
			get(f.Step).failed = true
		case spanring.KindLane, spanring.KindKernel, spanring.KindGraph:
			sp, err := w.Span()
			must(err)
			s.sidecar.received++
			if over[sp.Step] {
				s.sidecar.dropped++
				continue
			}
			st := get(sp.Step)
			st.spans = append(st.spans, sp)
			switch took := float64(sp.RawNS-uint64(sp.CorrectionNS)) / 1e9; {
			case k == spanring.KindLane && !sp.Armed:
				s.lanes[name(sp.Name)] = append(s.lanes[name(sp.Name)], took)
			case k == spanring.KindGraph:
				s.graphs[name(sp.Name)] = append(s.graphs[name(sp.Name)], took)
			case k == spanring.KindKernel && inCollective.MatchString(name(sp.Name)):
				s.collective += took
			}
		case spanring.KindAlloc:
			e, err := w.MemEvent()
			must(err)
			site := name(e.Alloc.Site)
			s.made[site] = append(s.made[site], e.Alloc)
		case spanring.KindStepEnd:
			e, err := w.StepEnd()
			if err != nil {
				s.ignored["malformed"]++
				continue
			}
			if over[e.Step] {
				s.ignored["late"]++
				continue
			}
			st := get(e.Step)
			delete(steps, e.Step)
			over[e.Step] = true
			i := 0
			if e.Armed {
				i = 1
			}
			s.steps[i]++

			// How long it took, and whether that is long.
			from, to := int64(math.MaxInt64), int64(0)
			for _, sp := range st.spans {
				from, to = min(from, sp.StartMonoNS), max(to, sp.StartMonoNS+int64(sp.RawNS)-int64(sp.CorrectionNS))
			}
			slow := false
			if !e.Armed && !st.failed && e.Dropped == 0 {
				took := float64(max(e.MonoNS-e.BeginNS, to-from))
				class := fmt.Sprint(st.attrs.GraphMode, st.attrs.PrefillTokens > 0)
				if before := classes[class]; len(before) >= slowWarmUp {
					sorted := slices.Sorted(slices.Values(before))
					slow = took > slowFactor*sorted[len(sorted)*99/100]
				}
				classes[class] = append(classes[class], took)
			}
			if slow {
				switch {
				case asked && nowNS-askedNS < askAgainNS:
					s.slow["limited"]++
				case nowNS-e.MonoNS > staleNS:
					s.slow["stale"]++
				case st.begin.Level != 3:
					s.slow["level"]++
				default:
					asked, askedNS = true, nowNS
					s.slow["asked"]++
				}
			}

			units := float64(1 + len(st.spans))
			s.sidecar.received++
			s.sidecar.notSelected += units
			// Why it is to be sent, the first reason that holds.
			for _, r := range []struct {
				reason string
				holds  bool
			}{
				{"failed", st.failed}, {"dropped", e.Dropped > 0}, {"launch_diff", st.differs}, {"asked", st.begin.Asked && e.Armed}, {"slow", slow},
				{"linked", st.linked}, {"armed", e.Armed}, {"one_in_n", e.Step%sel.oneInN == 0},
			} {
				if r.holds {
					s.selected[r.reason]++
					s.sidecar.notSelected -= units
					s.sidecar.exported += units
					break
				}
			}

			// Time that is known only after so many steps that began later: what comes
			// before the middle of theirs was counted without it.
			var later [][2]int64
			for i, c := range closed {
				if begun[i] > e.BeginNS && c[0] > to {
					later = append(later, c)
				}
			}
			if len(later) > pendingSteps && to < later[len(later)/2][0] {
				s.late += float64(to-from) / 1e9
			}
			closed, begun = append(closed, [2]int64{from, to}), append(begun, e.BeginNS)
		default:
			s.ignored["other_kind"]++
		}
	}
	for _, open := range requests {
		if open {
			s.open++
		}
	}
	var err error
	s.info, err = src.Info()
	must(err)
	s.contexts, err = src.Contexts()
	must(err)
	s.counters, err = src.Counters()
	must(err)
	_, s.scan, err = src.Allocs(nil)
	must(err)
	s.account, s.wallNS = src.Account(), src.WallOffsetNS()
	busy, err := src.Busy()
	must(err)
	for _, b := range busy {
		if s.oldestNS == 0 || b.Slot.EnqueueMonoNS < s.oldestNS {
			s.oldestNS = b.Slot.EnqueueMonoNS
		}
	}
	// Steps that did not end are open, unless their engine ended.
	for _, st := range steps {
		units := float64(1 + len(st.spans))
		s.sidecar.received++
		if s.info.Clean {
			s.incomplete["engine_ended"]++
			s.selected["incomplete"]++
			s.sidecar.exported += units
		} else {
			s.openSteps++
			s.sidecar.pending += units
		}
	}
	return s
}

func sum(values []float64) (total float64) {
	for _, v := range values {
		total += v
	}
	return total
}

func meanOf(values []float64) float64 { return sum(values) / float64(len(values)) }

func quantileOf(q float64, values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(q*float64(len(sorted)-1))]
}
