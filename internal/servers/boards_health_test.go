//go:build servers

package servers_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/spanring"
)

// ownFigures are what a test knows of a sidecar from outside.
type ownFigures struct {
	instance       string
	requests, sent int64 // that a receiver took, and their bytes
	before         processUse
	least, most    processUse // around the time of the comparison
	keptBytes      float64
}

// processUse is what a process uses, as the kernel says.
type processUse struct {
	cpu                 float64 // seconds
	resident, anonymous float64 // bytes
	descriptors         float64
}

// usedBy reads what a process uses.
func usedBy(pid int) (u processUse, err error) {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return u, err
	}
	// Behind the command's name, which may hold blanks, user and system time are the
	// twelfth and thirteenth, in hundredths of a second.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	for _, f := range fields[11:13] {
		ticks, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return u, err
		}
		u.cpu += ticks / 100
	}
	status, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		var kib float64
		if _, err := fmt.Sscanf(line, "VmRSS: %f kB", &kib); err == nil {
			u.resident = kib * 1024
		}
		if _, err := fmt.Sscanf(line, "RssAnon: %f kB", &kib); err == nil {
			u.anonymous = kib * 1024
		}
	}
	open, err := os.ReadDir(filepath.Join(proc, "fd"))
	u.descriptors = float64(len(open))
	return u, err
}

// watch looks at what a process uses until its end is called, which returns the least
// and the most of each.
func watch(t *testing.T, pid int) (end func() (least, most processUse)) {
	least, err := usedBy(pid)
	if err != nil {
		t.Fatal(err)
	}
	most := least
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			u, err := usedBy(pid)
			if err != nil {
				t.Error(err)
				return
			}
			least = processUse{min(least.cpu, u.cpu), min(least.resident, u.resident), min(least.anonymous, u.anonymous), min(least.descriptors, u.descriptors)}
			most = processUse{max(most.cpu, u.cpu), max(most.resident, u.resident), max(most.anonymous, u.anonymous), max(most.descriptors, u.descriptors)}
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	end = sync.OnceValues(func() (processUse, processUse) { close(done); <-stopped; return least, most })
	t.Cleanup(func() { end() })
	return end
}

// bytesIn is how large the files of a directory are.
func bytesIn(t *testing.T, dir string) (n float64) {
	t.Helper()
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		fi, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		n += float64(fi.Size())
	}
	return n
}

// nearly is by how much figures are off that are read at another moment.
const nearly = 1.3

// healthily is what the board Pipeline health shows of those engines and their sidecar.
func healthily(runs map[string]*surveyed, at time.Time, own ownFigures) map[string][]of {
	by := func(f func(s *surveyed) map[string]float64) map[string]float64 {
		out := make(map[string]float64)
		for l, s := range runs {
			for k, v := range f(s) {
				out[strings.TrimSpace(l+" "+k)] = v
			}
		}
		return out
	}
	each := func(f func(s *surveyed) float64) map[string]float64 {
		return by(func(s *surveyed) map[string]float64 { return map[string]float64{"": f(s)} })
	}
	live := func(f func(s *surveyed) float64) map[string]float64 {
		return by(func(s *surveyed) map[string]float64 {
			if s.info.Clean {
				return nil
			}
			return map[string]float64{"": f(s)}
		})
	}
	rate := func(f func(s *surveyed) float64) map[string]float64 {
		return each(func(s *surveyed) float64 { return f(s) / rateWindow })
	}
	counted := func(c spanring.Counter, scale float64) map[string]float64 {
		return rate(func(s *surveyed) float64 { return float64(s.counters[c]) * scale })
	}
	reasons := func(f func(s *surveyed) map[string]float64) map[string]float64 {
		return by(func(s *surveyed) map[string]float64 {
			out := make(map[string]float64)
			for k, v := range f(s) {
				out[k] = v / rateWindow
			}
			return out
		})
	}
	failed := func(s *surveyed) (n float64) {
		for r := spanring.FailRecord; int(r) < spanring.NumReasons; r++ {
			n += float64(s.counters[r.Counter()])
		}
		return n
	}
	inFlight := func(s *surveyed) float64 {
		c := &s.counters
		return float64(c[spanring.CtrBegun]) - float64(c[spanring.CtrLanded]) - failed(s) - float64(c[spanring.CtrDropped])
	}
	zero := func(*surveyed) float64 { return 0 }
	var liveNow, ended float64
	for _, s := range runs {
		if s.info.Clean {
			ended++
		} else {
			liveNow++
		}
	}
	problems := map[string]spanring.Counter{
		"capturing": spanring.CtrCapturing, "stale_ends": spanring.CtrStaleEnds, "misuse": spanring.CtrMisuse, "given_up": spanring.CtrGivenUp,
		"names_full": spanring.CtrNamesFull, "unattributed": spanring.CtrUnattributed, "pools_failed": spanring.CtrPoolsFailed,
		"control_rejected": spanring.CtrControlRejected, "overlapping": spanring.CtrOverlapping,
	}
	here := func(v float64) map[string]float64 { return map[string]float64{own.instance: v} }
	// between is what lay between two figures around that time.
	between := func(query int, least, most float64) of {
		return of{query, "instance", here(math.Sqrt(least * most)), math.Sqrt(most/least) * nearly}
	}
	var entries float64
	for _, s := range runs {
		entries += float64(s.entries)
	}
	share := by(func(s *surveyed) map[string]float64 {
		c := &s.counters
		if c[spanring.CtrStepTimeNS] == 0 {
			return nil
		}
		of := float64(c[spanring.CtrStepTimeNS])
		return map[string]float64{"kernels": float64(c[spanring.CtrArmedCostNS]) / of, "lanes": float64(c[spanring.CtrLaneCostNS]) / of}
	})
	return map[string][]of{
		"health: Spans unaccounted for in engines":  {{0, "engine", each(zero), exactly}},
		"health: Entries unaccounted for":           {{0, "engine", each(zero), exactly}},
		"health: Spans unaccounted for in sidecars": {{0, "engine", each(zero), exactly}},
		"health: Spans dropped":                     {{0, "engine", each(func(s *surveyed) float64 { return float64(s.counters[spanring.CtrDropped]) }), exactly}},
		"health: Spans failed":                      {{0, "engine", each(failed), exactly}},
		"health: Entries lost":                      {{0, "engine", each(zero), exactly}},
		"health: Spans dropped by the sidecar":      {{0, "engine", each(func(s *surveyed) float64 { return s.sidecar.dropped }), exactly}},
		"health: Spans in the engine": {
			{0, "engine", counted(spanring.CtrBegun, 1), exactly}, {1, "engine", counted(spanring.CtrLanded, 1), exactly},
			{2, "engine,reason", reasons(func(s *surveyed) map[string]float64 { return map[string]float64{"record": failed(s)} }), exactly},
			{3, "engine,reason", reasons(func(s *surveyed) map[string]float64 {
				return map[string]float64{"pool_full": float64(s.counters[spanring.CtrDropped])}
			}), exactly},
		},
		"health: Spans in flight": {{0, "engine", each(inFlight), exactly}},
		"health: Oldest span in flight": {{0, "engine", each(func(s *surveyed) float64 {
			if s.oldestNS == 0 {
				return 0
			}
			return float64(at.UnixNano()-s.wallNS-s.oldestNS) / 1e9
		}), 1.1}},
		"health: Ring entries": {
			{0, "engine", rate(func(s *surveyed) float64 { return float64(s.account.Published) }), shortly},
			{1, "engine", rate(func(s *surveyed) float64 { return float64(s.entries) }), shortly},
			{2, "engine,reason", reasons(func(*surveyed) map[string]float64 {
				return map[string]float64{"overwritten": 0, "hole": 0, "unreadable": 0}
			}), exactly},
			{3, "engine", rate(zero), exactly},
		},
		"health: Lag": {{0, "engine", each(zero), exactly}, {1, "engine", each(func(s *surveyed) float64 { return s.openSteps }), exactly}},
		"health: Seconds that the ring holds": {{0, "engine", live(func(s *surveyed) float64 {
			perSecond := float64(s.account.Published) / (float64(at.UnixNano()-s.wallNS-s.info.CreatedMonoNS) / 1e9)
			return float64(spanring.DefaultGeometry.LogEntries) / perSecond
		}), nearly}},
		"health: Spans in the sidecar": {
			{0, "engine", rate(func(s *surveyed) float64 { return s.sidecar.received }), exactly},
			{1, "engine", rate(func(s *surveyed) float64 { return s.sidecar.exported }), exactly},
			{2, "engine,reason", reasons(func(s *surveyed) map[string]float64 { return map[string]float64{"one_in_n": s.sidecar.notSelected} }), exactly},
			{3, "engine", rate(zero), exactly},
			{4, "engine,reason", reasons(func(s *surveyed) map[string]float64 { return map[string]float64{"late": s.sidecar.dropped} }), exactly},
		},
		"health: Spans pending in the sidecar": {{0, "engine", each(func(s *surveyed) float64 { return s.sidecar.pending }), exactly}},
		"health: Entries ignored":              {{0, "engine,reason", reasons(func(s *surveyed) map[string]float64 { return s.ignored }), exactly}},
		"health: Requests evicted":             {{0, "engine", rate(zero), exactly}},
		"health: Engines live":                 {one(0, liveNow, exactly)},
		"health: Engines ended":                {{0, "reason", map[string]float64{"ended": ended, "died": 0}, exactly}},
		"health: Rings that cannot be read":    {{0, "reason", map[string]float64{"version": 0, "corrupt": 1, "truncated": 0, "unreadable": 0}, exactly}},
		"health: Flight records":               {{0, "reason", map[string]float64{"died": 0, "hung": 0}, exactly}, {1, "reason", map[string]float64{"died": 0, "hung": 0}, exactly}},
		"health: Engines up": {{0, "engine", each(func(s *surveyed) float64 {
			if s.info.Clean {
				return 0
			}
			return 1
		}), exactly}},
		"health: Level": {{0, "engine", each(func(s *surveyed) float64 { return float64(s.info.Level) }), exactly}},
		"health: Problems in engines": {{0, "engine,reason", reasons(func(s *surveyed) map[string]float64 {
			out := make(map[string]float64)
			for k, c := range problems {
				out[k] = float64(s.counters[c])
			}
			return out
		}), exactly}},
		"health: Steps and requests as engines count them": {
			{0, "engine,state", reasons(func(s *surveyed) map[string]float64 {
				c := &s.counters
				return map[string]float64{"begun": float64(c[spanring.CtrStepsBegun]), "ended": float64(c[spanring.CtrStepsEnded]), "armed": float64(c[spanring.CtrStepsArmed]), "untimed": float64(c[spanring.CtrStepsUntimed])}
			}), exactly},
			{1, "engine", rate(func(s *surveyed) float64 { return s.ended }), exactly},
			{2, "engine", counted(spanring.CtrControlApplied, 1), exactly},
		},
		"health: What telemetry costs engines: calls": {
			{0, "engine", counted(spanring.CtrDriverCalls, 1), exactly}, {1, "engine", counted(spanring.CtrHarvestCalls, 1), exactly}, {2, "engine", counted(spanring.CtrHarvests, 1), exactly},
		},
		"health: What telemetry costs engines: time":               {{0, "engine", counted(spanring.CtrHarvestNS, 1e-9), exactly}},
		"health: What telemetry costs engines: share of step time": {{0, "engine,kind", share, exactly}, {1, "engine,kind", share, exactly}},
		"health: Steps for each timed one": {
			{0, "engine", each(func(s *surveyed) float64 { return float64(s.info.KernelEvery) }), exactly},
			{1, "engine", each(func(s *surveyed) float64 { return float64(s.info.LaneEvery) }), exactly},
		},
		"health: Export queue":                           {{0, "instance", here(0), exactly}, {1, "instance", here(16 << 20), exactly}},
		"health: Export requests":                        {{0, "instance,reason", map[string]float64{own.instance + " ok": float64(own.requests) / rateWindow}, exactly}, {1, "instance", here(0), exactly}},
		"health: Sent":                                   {{0, "instance", here(float64(own.sent) / rateWindow), nearly}},
		"health: Recordings kept":                        {{0, "instance", here(own.keptBytes), nearly}, {1, "instance", here(1 << 30), exactly}},
		"health: Entries kept":                           {{0, "instance,reason", map[string]float64{own.instance + " written": entries / rateWindow, own.instance + " lost": 0}, shortly}},
		"health: Processor time of sidecars":             {{0, "instance", here((own.most.cpu - own.before.cpu) / rateWindow), 2}},
		"health: Memory of sidecars":                     {between(0, own.least.resident, own.most.resident), between(1, own.least.anonymous, own.most.anonymous)},
		"health: Descriptors and goroutines of sidecars": {between(0, own.least.descriptors, own.most.descriptors)},
		"health: Versions":                               {{0, "version", map[string]float64{lanetrace.Version: 1}, exactly}},
	}
}
