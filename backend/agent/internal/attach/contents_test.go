package attach

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

// balanced fails the test unless every span that was begun has landed.
func (t telemetry) balanced(tb testing.TB) {
	tb.Helper()
	c := &t.Counters
	if c.InFlight() != 0 || c.Failed() != 0 || c[spanring.CtrDropped] != 0 || c[spanring.CtrLanded] == 0 {
		tb.Errorf("begun %d, landed %d, failed %d, dropped %d", c[spanring.CtrBegun], c[spanring.CtrLanded], c.Failed(), c[spanring.CtrDropped])
	}
	for _, n := range []spanring.Counter{spanring.CtrMisuse, spanring.CtrStaleEnds, spanring.CtrGivenUp, spanring.CtrUnattributed} {
		if c[n] != 0 {
			tb.Errorf("%v is %d, want 0", n, c[n])
		}
	}
}

// TestSteps runs two steps of prefill on two streams and decode as a graph with a
// launch behind it, through each way to the driver.
func TestSteps(t *testing.T) {
	var lanes, kernels []string
	for step := 1; step <= 2; step++ {
		for _, l := range []string{
			"step", "prefill < step", "step", "prefill < step", "decode < step", "sample < decode",
		} {
			lanes = append(lanes, fmt.Sprintf("%d: %s", step, l))
		}
		for _, k := range []string{
			"lt_test_fill < prefill", "nothing < prefill", "lt_test_fill < prefill",
			"graph 1 of 3 < decode", "lt_test_scale < sample",
		} {
			kernels = append(kernels, fmt.Sprintf("%d: %s", step, k))
		}
	}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			engine := compileEngine(t, "engine.c", way.linked)
			r := start(t, runOptions{settle: true, env: []string{"LANETRACE_STEP=step"}}, engine, way.how, "steps", "2")
			got := r.only(t)
			got.balanced(t)
			if diff := cmp.Diff(lanes, got.Lanes); diff != "" {
				t.Errorf("lanes (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(kernels, got.Kernels); diff != "" {
				t.Errorf("kernels (-want +got):\n%s", diff)
			}
			if r.stderr != "" {
				t.Errorf("standard error: %s", r.stderr)
			}
			for _, s := range got.Spans {
				if s.RawNS == 0 || s.RawNS > 20e9 || s.Gap != spanring.GapUnknown && s.Kind == spanring.KindLane {
					t.Errorf("span %+v", s)
				}
			}
		})
	}
}

// TestVariants launches through each variant of each call, on every kind of stream;
// none may be missed, merged or timed twice.
func TestVariants(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			engine := compileEngine(t, "engine.c", way.linked)
			got := start(t, runOptions{settle: true, env: []string{"LANETRACE_STEP=step"}}, engine, way.how, "variants").only(t)
			got.balanced(t)
			count := map[string]int{}
			for _, k := range got.Kernels {
				_, what, _ := strings.Cut(k, ": ")
				count[what]++
			}
			// Four streams: four plain launches of one kernel, three of the other.
			want := map[string]int{
				"lt_test_fill < variants": 16, "nothing < variants": 12,
				"graph 1 of 3 < replay": 2, "graph 2 of 3 < replay": 2, "graph 3 of 3 < replay": 2,
			}
			if diff := cmp.Diff(want, count); diff != "" {
				t.Errorf("launches (-want +got):\n%s", diff)
			}
			if n := got.Counters[spanring.CtrOverlapping]; n != 4 {
				t.Errorf("%d launches with a programmatic dependency counted, want 4", n)
			}
			streams := map[uint16]bool{}
			for _, s := range got.Spans {
				streams[s.Stream] = true
			}
			// Stream a, the legacy default and the per-thread default, however named.
			if len(streams) != 3 {
				t.Errorf("%d streams, want 3", len(streams))
			}
		})
	}
}

func TestMemory(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			engine := compileEngine(t, "engine.c", way.linked)
			got := start(t, runOptions{level: "basic", settle: true}, engine, way.how, "memory").only(t)
			const mib = 1 << 20
			m := got.Memory
			if m.LiveBytes != 8*mib || m.LiveCount != 4 {
				t.Errorf("%d bytes in %d allocations live, want %d in 4", m.LiveBytes, m.LiveCount, 8*mib)
			}
			if m.Allocs != 11 || m.Frees != 7 || m.AllocsFailed != 1 || m.FreesUnknown != 2 {
				t.Errorf("%d allocations, %d frees, %d failed, %d unknown; want 11, 7, 1, 2", m.Allocs, m.Frees, m.AllocsFailed, m.FreesUnknown)
			}
			var live []uint64
			for site, bytes := range got.Sites {
				live = append(live, bytes)
				if !strings.HasPrefix(site, "engine-linked-") || !strings.Contains(site, "+0x") || !strings.Contains(site, "(build ") {
					t.Errorf("site %q", site)
				}
			}
			slices.Sort(live)
			if diff := cmp.Diff([]uint64{mib, 2 * mib, 2 * mib, 3 * mib}, live); diff != "" {
				t.Errorf("live bytes by site (-want +got):\n%s", diff)
			}
		})
	}
}

// TestContexts makes and destroys contexts, which frees what was allocated in
// them, and retains the primary one twice.
func TestContexts(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			engine := compileEngine(t, "engine.c", way.linked)
			r := start(t, runOptions{settle: true}, engine, way.how, "contexts")
			got := r.only(t)
			if m := got.Memory; m.LiveBytes != 3<<20 || m.Allocs != 4 || m.Frees != 3 {
				t.Errorf("%d bytes live, %d allocations, %d frees; want 3 MiB, 4, 3", m.LiveBytes, m.Allocs, m.Frees)
			}
			if r.stderr != "" {
				t.Errorf("standard error: %s", r.stderr)
			}
		})
	}
}
