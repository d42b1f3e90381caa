package lanetrace

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

var update = flag.Bool("update", false, "write testdata/budgets.txt anew")

// budgetFile holds loads, and what the budgets make of them: which steps are armed and
// which untimed, and what is owed after each. The agent's test reads it too.
const budgetFile = "testdata/budgets.txt"

// load is a scenario of budgetFile: settings, phases, and what came of them.
type load struct {
	name           string
	every          int
	kernels, lanes float64
	phases         []phase
	result         string
}

// phase are steps of one kind. Times are nanoseconds.
type phase struct {
	steps  int
	hostNS int64
	// gpuNS is the part on the GPU where the host runs ahead of it; 0: the host waits,
	// and the lanes lie within its part.
	gpuNS    int64
	lanes    uint32
	launches uint32 // timed if the step is armed
	behind   int    // how many steps later lanes land; then the host waits for them
	idleNS   int64  // after each step
	jitter   int64  // of both parts, in per cent at most
	each     int    // the last of so many steps is longer, in both parts,
	times    int64  // by this
	ask      uint32 // steps asked for at its begin
}

func parseLoads(t *testing.T, b []byte) (loads []load) {
	t.Helper()
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		line := s.Text()
		word, rest, _ := strings.Cut(line, " ")
		var err error
		switch word {
		case "", "#":
			continue
		case "load":
			loads = append(loads, load{name: rest})
			continue
		}
		l := &loads[len(loads)-1]
		switch word {
		case "settings":
			_, err = fmt.Sscanf(rest, "every %d kernels %g lanes %g", &l.every, &l.kernels, &l.lanes)
		case "phase":
			var p phase
			_, err = fmt.Sscanf(rest, "steps %d host %d gpu %d lanes %d launches %d behind %d idle %d jitter %d each %d times %d ask %d",
				&p.steps, &p.hostNS, &p.gpuNS, &p.lanes, &p.launches, &p.behind, &p.idleNS, &p.jitter, &p.each, &p.times, &p.ask)
			l.phases = append(l.phases, p)
		case "result":
			l.result = rest
		default:
			err = fmt.Errorf("unknown word")
		}
		if err != nil {
			t.Fatalf("%s: %q: %v", budgetFile, line, err)
		}
	}
	return loads
}

// played is one step as it ran.
type played struct {
	armed, asked, untimed bool
	// stepNS is what it took, the longer of both parts; launchNS and laneNS what of it
	// the budgets for kernels and for lanes were charged with.
	stepNS, launchNS, laneNS int64
	beginNS, endNS           int64
	lanes                    uint32 // timed
	wouldNS                  int64  // what its lanes cost, timed or not
}

// play runs a load and says what came of it.
func (l *load) play() (steps []played, o *overhead, result string) {
	o = new(overhead)
	o.init(l.every, l.kernels, l.lanes)
	type landing struct {
		at       int
		from, to int64
	}
	var queue []landing
	var landed landing // its lanes are taken in when the next ones land
	var costs []*stepCost
	now, gpuFree, seed := int64(1_000_000_000), int64(0), uint64(1)
	decided, owed := fnv.New64a(), fnv.New64a()
	word := func(v int64) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(v)) }
	land := func() int64 {
		q := queue[0]
		queue = queue[1:]
		if steps[q.at].lanes == 0 {
			return q.to
		}
		if at := landed.at; landed.to != 0 {
			s := &steps[at]
			o.onGPU(costs[at], &landedStep{armed: s.armed, fromNS: landed.from, toNS: landed.to, endNS: s.endNS, nextNS: steps[at+1].beginNS})
		}
		landed = q
		return q.to
	}
	var armed, untimed int
	for _, p := range l.phases {
		o.arms.request(p.ask)
		for n := range p.steps {
			vary := func(ns int64) int64 {
				seed = seed*6364136223846793005 + 1442695040888963407
				return ns + ns/100*(int64(seed>>33)%(2*p.jitter+1)-p.jitter)
			}
			var s played
			s.armed, s.asked, s.untimed = o.begin(true)
			c := new(stepCost)
			lanes, launches := p.lanes, uint32(0)
			s.wouldNS = int64(lanes) * laneCostNS
			if s.untimed {
				lanes = 0
			}
			if s.armed {
				launches = p.launches
			}
			hostNS, gpuNS := vary(p.hostNS), vary(p.gpuNS)
			if n%p.each == p.each-1 {
				hostNS, gpuNS = hostNS*p.times, gpuNS*p.times
			}
			if p.gpuNS > 0 {
				gpuNS += int64(lanes)*laneCostNS + int64(launches)*launchCostNS
			} else {
				hostNS += int64(lanes)*laneCostNS + int64(launches)*launchCostNS
			}
			begin, end := now, now+hostNS
			s.beginNS, s.endNS = begin, end
			from, to := begin+hostNS/4, end
			gpuPart := int64(0)
			if p.gpuNS > 0 {
				from = max(begin+5000, gpuFree)
				to = from + gpuNS
				gpuPart = to - from
			}
			gpuFree = to
			s.stepNS = max(hostNS, gpuPart)
			s.launchNS = int64(launches) * launchCostNS
			switch {
			case s.armed && s.asked:
				s.launchNS = 0
			case s.armed && l.lanes > 0:
				s.launchNS += int64(lanes) * laneCostNS
			case !s.armed:
				s.laneNS = int64(lanes) * laneCostNS
			}
			o.ended(c, &endedStep{
				beginNS: begin, endNS: end, armed: s.armed, asked: s.asked, untimed: s.untimed, lanes: lanes, launches: launches,
			})
			if s.untimed {
				untimed++
			}
			if s.armed {
				armed++
			}
			s.lanes = lanes
			queue = append(queue, landing{len(steps), from, to})
			costs, steps = append(costs, c), append(steps, s)
			now = end
			for len(queue) > p.behind {
				now = max(now, land())
			}
			now += p.idleNS
			kind := int64(0)
			if s.armed {
				kind |= 1
			}
			if s.asked {
				kind |= 2
			}
			if s.untimed {
				kind |= 4
			}
			decided.Write(word(kind))
			owed.Write(word(o.arms.budget.owedNS.Load()))
			owed.Write(word(o.lanes.budget.owedNS.Load()))
		}
	}
	step := o.time.meanNS.load()
	return steps, o, fmt.Sprintf("armed %d untimed %d strides %d %d mean %d decided %016x owed %016x", armed, untimed,
		o.arms.stride(step), o.lanes.budget.stride(o.lanes.costNS.load(), step), int64(step), decided.Sum64(), owed.Sum64())
}

// worst is by how much, at most, what was spent in a run of steps up to and without a
// last one that spent exceeds the budget's share of the whole run's time: under 0 where
// there is always room. Nothing but the steps themselves goes into it.
func worst(steps []played, share float64, stepNS func(int) int64, spent func(*played) int64) float64 {
	most := -1e18
	// The sum from step 0 to before a, and the least of those so far.
	sum, least := 0.0, 0.0
	for i := range steps {
		s := &steps[i]
		sum -= share * float64(stepNS(i))
		if c := spent(s); c > 0 {
			most = max(most, sum-least)
			sum += float64(c)
		}
		least = min(least, sum)
	}
	return most
}

// oracle is what lanes would have been spent had the time of each step been known at
// its end.
func oracle(steps []played, share float64) (spentNS int64) {
	owed := 0.0
	for i := range steps {
		s := &steps[i]
		if owed <= 0 && !s.armed {
			spentNS += s.wouldNS
			owed = float64(s.wouldNS) / share
		}
		owed -= float64(s.stepNS)
	}
	return spentNS
}

// TestBudgets runs loads that change against the budgets: what was spent in any run of
// steps is within the budget's share of their time and the cost of one step, whatever
// the load does, and lanes have what of theirs can be spent.
func TestBudgets(t *testing.T) {
	b, err := os.ReadFile(budgetFile)
	if err != nil {
		t.Fatal(err)
	}
	loads := parseLoads(t, b)
	if len(loads) < 12 {
		t.Fatalf("%d loads", len(loads))
	}
	for i := range loads {
		l := &loads[i]
		t.Run(l.name, func(t *testing.T) {
			steps, _, result := l.play()
			if *update {
				l.result = result
			}
			if d := cmp.Diff(l.result, result); d != "" {
				t.Errorf("(-file +played):\n%s", d)
			}
			// What is in flight when a run begins may be paid for in it.
			var flightNS, timeNS, launchNS, laneNS, idleNS int64
			for _, p := range l.phases {
				if p.gpuNS > 0 {
					flightNS = max(flightNS, int64(p.behind+1)*(p.gpuNS*p.times+p.gpuNS*p.times*p.jitter/100+int64(p.launches)*launchCostNS+int64(p.lanes)*laneCostNS))
				}
				idleNS += p.idleNS
			}
			unarmed := 0
			for i := range steps {
				s := &steps[i]
				timeNS, launchNS, laneNS = timeNS+s.stepNS, launchNS+s.launchNS, laneNS+s.laneNS
				if s.armed && !s.asked {
					if i > 0 && unarmed < l.every-1 {
						t.Errorf("step %d is armed after %d others", i+1, unarmed)
					}
					unarmed = 0
				} else {
					unarmed++
				}
			}
			// 1 ns for each sum's rounding.
			slack := func(share float64) float64 { return share*float64(flightNS) + 1 }
			step := func(i int) int64 { return steps[i].stepNS }
			if l.lanes > 0 && idleNS > 0 {
				// How much of a pause is step time is reckoned; at most all of it.
				step = func(i int) int64 { return steps[min(i+1, len(steps)-1)].beginNS - steps[i].beginNS }
			}
			if w := worst(steps, l.kernels, step, func(s *played) int64 { return s.launchNS }); w > slack(l.kernels) {
				t.Errorf("kernels: %.0f ns beyond the budget in some run of steps, of which %.0f ns are explained", w, slack(l.kernels))
			}
			if l.lanes > 0 && l.lanes < 1 {
				if w := worst(steps, l.lanes, step, func(s *played) int64 { return s.laneNS }); w > slack(l.lanes) {
					t.Errorf("lanes: %.0f ns beyond the budget in some run of steps, of which %.0f ns are explained", w, slack(l.lanes))
				}
				known := oracle(steps, l.lanes)
				if least := known * 9 / 10; laneNS < least && idleNS == 0 {
					t.Errorf("lanes took %d ns, %d had the time of each step been known", laneNS, known)
				}
				if most := 1.1 * l.lanes * float64(timeNS); float64(laneNS) > most && idleNS > 0 {
					t.Errorf("lanes took %d ns of an engine that pauses, the budget is %.0f", laneNS, most)
				}
				t.Logf("lanes might have taken %.4f %%", 100*float64(known)/float64(timeNS))
			}
			t.Logf("kernels took %.4f %% of %.3f s, lanes %.4f %%", 100*float64(launchNS)/float64(timeNS), float64(timeNS)/1e9, 100*float64(laneNS)/float64(timeNS))
		})
	}
	if *update {
		writeLoads(t, b, loads)
	}
}

// writeLoads puts the results into the file.
func writeLoads(t *testing.T, b []byte, loads []load) {
	t.Helper()
	var out strings.Builder
	at := -1
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "result") {
			continue
		}
		if strings.HasPrefix(line, "load ") {
			at++
		}
		if strings.TrimSpace(line) == "" && at >= 0 {
			fmt.Fprintf(&out, "result %s\n", loads[at].result)
		}
		out.WriteString(line)
	}
	fmt.Fprintf(&out, "result %s\n", loads[at].result)
	if err := os.WriteFile(budgetFile, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestStepTime: the time of steps is the longer of both parts of each, and no moment of
// either counts twice.
func TestStepTime(t *testing.T) {
	type step struct {
		begin, end int64
		// Lanes landed so, in turn; before the end where it says so.
		gpu   [][2]int64
		early bool
		want  int64
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"the host waits", []step{{100, 200, [][2]int64{{120, 190}}, false, 100}, {300, 400, [][2]int64{{310, 400}}, false, 100}}},
		{"the host runs ahead", []step{{100, 110, [][2]int64{{105, 205}}, false, 100}, {120, 130, [][2]int64{{205, 305}}, false, 100}}},
		{"lanes land before the step ends", []step{{100, 200, [][2]int64{{120, 190}}, true, 100}, {200, 210, [][2]int64{{205, 305}}, true, 100}}},
		{"steps overlap on the host", []step{{100, 200, nil, false, 100}, {150, 250, nil, false, 50}, {160, 240, nil, false, 0}}},
		{"steps overlap on the GPU", []step{{100, 101, [][2]int64{{100, 200}}, false, 100}, {101, 102, [][2]int64{{150, 250}}, false, 50}}},
		{"one within the other", []step{{100, 101, [][2]int64{{100, 200}}, false, 100}, {101, 102, [][2]int64{{120, 180}}, false, 1}}},
		{"lanes of one step on two GPUs", []step{{100, 150, [][2]int64{{100, 200}, {100, 230}}, false, 130}}},
		{"idle between", []step{{100, 200, nil, false, 100}, {10_000, 10_050, [][2]int64{{10_010, 10_040}}, false, 50}}},
		{"a clock that places lanes late", []step{{100, 200, [][2]int64{{1_000, 1_010}}, false, 100}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var o overhead
			o.init(1, 1, 0)
			for i, s := range c.steps {
				var cost stepCost
				var got int64
				land := func() {
					for _, g := range s.gpu {
						got += o.onGPU(&cost, &landedStep{fromNS: g[0], toNS: g[1]})
					}
				}
				if s.early {
					land()
				}
				got += o.ended(&cost, &endedStep{beginNS: s.begin, endNS: s.end, lanes: uint32(len(s.gpu))})
				if !s.early {
					land()
				}
				if got != s.want {
					t.Errorf("step %d takes %d, want %d", i+1, got, s.want)
				}
			}
		})
	}
}

// TestLaneBudget: once the lanes of one step were timed, those of the next are not,
// within a budget that nothing pays for in a test's time. Untimed steps say so, make no
// driver call, and are steps in every other way; armed ones have lanes all the same.
func TestLaneBudget(t *testing.T) {
	r := newRig(t, Config{Level: "kernel", KernelSpanEvery: 4, KernelBudget: 1, LaneBudget: 1e-12, NoCalibration: true})
	a, b := r.hub.Lane("a"), r.hub.Lane("b")
	name := r.dev.Name(spanring.NameKernel, "k")
	for range 8 {
		s := r.hub.StepBegin()
		calls := r.hub.Ring().Counter(spanring.CtrDriverCalls)
		l := r.dev.LaneBegin(s, a, r.s)
		if x, timed := r.dev.LaunchBegin(spanring.KindKernel, r.s, name); timed {
			r.dev.LaunchEnd(x, r.drv.Launch(x.Pair, r.s, 5000))
			if !s.Armed() {
				t.Errorf("step %d: a launch is timed", s.ID())
			}
		}
		l = l.Next(b)
		l.End()
		if made := r.hub.Ring().Counter(spanring.CtrDriverCalls) - calls; s.untimed() != (made == 0) {
			t.Errorf("step %d, untimed %v: %d driver calls", s.ID(), s.untimed(), made)
		}
		s.End()
	}
	type step struct {
		Armed, Untimed bool
		Level          uint8
		Opened         uint32
	}
	got := map[uint64]step{}
	for _, e := range r.entries() {
		switch e.Words.Kind() {
		case spanring.KindStepBegin:
			s, err := e.Words.StepBegin()
			if err != nil {
				t.Fatal(err)
			}
			got[s.Step] = step{s.Armed, s.Untimed, s.Level, 0}
		case spanring.KindStepEnd:
			s, err := e.Words.StepEnd()
			if err != nil {
				t.Fatal(err)
			}
			x := got[s.Step]
			if s.Armed != x.Armed || s.Untimed != x.Untimed {
				t.Errorf("step %d: begin %+v, end %+v", s.Step, x, s)
			}
			x.Opened = s.Opened
			got[s.Step] = x
		}
	}
	untimed := step{Untimed: true, Level: uint8(LevelBasic)}
	armed := step{Armed: true, Level: uint8(LevelKernel), Opened: 3}
	want := map[uint64]step{
		1: {Level: uint8(LevelKernel), Opened: 2}, 2: untimed, 3: untimed, 4: armed, 5: untimed, 6: untimed, 7: untimed,
	}
	// The eighth is due, and comes once what the fourth cost is paid for.
	want[8] = got[8]
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	r.until("all lanes have landed", r.idle)
	c := r.hub.Ring().Counters()
	if n := c[spanring.CtrStepsUntimed]; n != 5 && n != 6 {
		t.Errorf("%d steps untimed", n)
	}
	if c.InFlight() != 0 {
		t.Errorf("the account does not balance: %s", counterText(c))
	}
	if c[spanring.CtrLaneCostNS] < 4*laneCostNS || c[spanring.CtrArmedCostNS] < launchCostNS || c[spanring.CtrStepTimeNS] == 0 {
		t.Errorf("costs %s", counterText(c))
	}
	rd, err := spanring.NewHeapReader(r.hub.Ring(), spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	info, err := rd.Info()
	if o := r.hub.Overhead(); err != nil || info.LaneEvery != o.LaneStride || info.LaneEvery < 1000 || info.KernelEvery != o.KernelStride {
		t.Errorf("%v: published strides %d and %d, in force %+v", err, info.KernelEvery, info.LaneEvery, o)
	}
	if o := r.hub.Overhead(); o.StepTime <= 0 || o.KernelShare <= 0 || o.LaneShare <= 0 {
		t.Errorf("%+v", o)
	}
	// At a level without lanes none are left out.
	if err := r.hub.SetLevel(LevelBasic); err != nil {
		t.Fatal(err)
	}
	s := r.hub.StepBegin()
	s.End()
	if info, _ := rd.Info(); s.untimed() || info.LaneEvery != 0 || r.hub.Overhead().LaneStride != 0 {
		t.Errorf("untimed %v, lanes of one step in %d", s.untimed(), info.LaneEvery)
	}
}

// TestLanesAreUnboundByDefault: without a budget every step has its lanes.
func TestLanesAreUnboundByDefault(t *testing.T) {
	r := newRig(t, Config{NoCalibration: true})
	lane := r.hub.Lane("a")
	for range 100 {
		s := r.hub.StepBegin()
		r.dev.LaneBegin(s, lane, r.s).End()
		s.End()
	}
	c := r.hub.Ring().Counters()
	if c[spanring.CtrStepsUntimed] != 0 || c[spanring.CtrLaneCostNS] != 100*laneCostNS {
		t.Errorf("%s", counterText(c))
	}
	if o := r.hub.Overhead(); o.LaneStride != 1 || o.KernelStride != 0 || o.LaneShare <= 0 {
		t.Errorf("%+v", o)
	}
}

// TestStepTimeOnTheGPU: what of a step's lanes runs on beyond its end on the host is step
// time, too, once the next step's have landed.
func TestStepTimeOnTheGPU(t *testing.T) {
	r := newRig(t, Config{NoCalibration: true})
	lane := r.hub.Lane("a")
	for range 4 {
		s := r.hub.StepBegin()
		l := r.dev.LaneBegin(s, lane, r.s)
		r.drv.Work(r.s, 20_000_000)
		l.End()
		s.End()
	}
	r.until("all lanes have landed", r.idle)
	// Three of four: the last is taken in with the next one's.
	if got := time.Duration(r.hub.Ring().Counter(spanring.CtrStepTimeNS)); got < 60*time.Millisecond {
		t.Errorf("step time %v, want three steps of 20 ms and the fourth's part on the host", got)
	}
}

// TestTimeBetweenSteps: with a budget for lanes, time in which the host waits for the
// GPU between two steps is step time, as far as the GPU works in it.
func TestTimeBetweenSteps(t *testing.T) {
	r := newRig(t, Config{NoCalibration: true, LaneBudget: 0.9})
	lane := r.hub.Lane("a")
	begun := spanring.MonoNS()
	for range 100 {
		s := r.hub.StepBegin()
		l := r.dev.LaneBegin(s, lane, r.s)
		r.drv.Work(r.s, 500_000)
		l.End()
		s.End()
		r.until("the lane has landed", r.idle)
	}
	all := time.Duration(spanring.MonoNS() - begun)
	got := time.Duration(r.hub.Ring().Counter(spanring.CtrStepTimeNS))
	// Most of it, unless this machine pauses.
	if got < 10*time.Millisecond || got > all {
		t.Errorf("step time %v of %v in which the GPU worked for 50 ms", got, all)
	}
	t.Logf("step time %v of %v", got, all)
	if m := r.hub.Overhead().StepTime; m < 50*time.Microsecond {
		t.Errorf("a mean step takes %v", m)
	}
}
