package agent

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

// What becomes of lanes and launches, and the account of each.
func TestHubAccount(t *testing.T) {
	for name, c := range map[string]struct {
		level   string
		env     []string
		script  string
		spans   []string
		counted map[string]uint64
		flight  int64
	}{
		"lanes nest and steps overlap": {
			level: "lane",
			script: `
				step 0 = 1 0
				begin 0 0 1 0 = 1
				begin 1 0 2 0 = 1
				step 1 = 2 0
				begin 2 1 1 0 = 1
				end 1
				end 0
				endstep 0
				end 2
				endstep 1
				drain = 0`,
			spans: []string{
				"begin step=1 level=2",
				"begin step=2 level=2",
				"end step=1 opened=2 dropped=0 linked=0",
				"end step=2 opened=1 dropped=0 linked=0",
				"lane a step=1 ordinal=1 parent=0 lane=1 stream=1 context=0",
				"lane b step=1 ordinal=2 parent=1 lane=2 stream=1 context=0",
				"lane a step=2 ordinal=1 parent=0 lane=1 stream=1 context=0",
			},
			counted: map[string]uint64{"begun": 5, "landed": 5, "steps_begun": 2, "steps_ended": 2},
		},
		"neighbours share an event": {
			level: "lane",
			script: `
				step 0
				begin 0 0 1 0 = 1
				next 1 0 2 = 1
				next 2 1 3 = 1
				end 2
				endstep 0
				drain = 0`,
			spans: []string{
				"begin step=1 level=2",
				"end step=1 opened=3 dropped=0 linked=0",
				"lane a step=1 ordinal=1 parent=0 lane=1 stream=1 context=0",
				"lane b step=1 ordinal=2 parent=0 lane=2 stream=1 context=0 shared",
				"lane c step=1 ordinal=3 parent=0 lane=3 stream=1 context=0 shared",
			},
			counted: map[string]uint64{"begun": 4, "landed": 4, "steps_begun": 1, "steps_ended": 1},
		},
		"a full pool drops": {
			level: "lane",
			env:   []string{"LANETRACE_PAIRS=2"},
			script: `
				stall 0 1
				step 0
				begin 0 0 1 0 = 1
				begin 1 0 2 0 = 1
				begin 2 0 3 0 = 0
				end 1
				end 0
				begin 3 0 3 0 = 0
				endstep 0
				harvest
				inflight = 2
				stall 0 0
				drain = 0`,
			spans: []string{
				"begin step=1 level=2",
				"end step=1 opened=2 dropped=2 linked=0",
				"lane a step=1 ordinal=1 parent=0 lane=1 stream=1 context=0",
				"lane b step=1 ordinal=2 parent=1 lane=2 stream=1 context=0",
			},
			counted: map[string]uint64{"begun": 5, "landed": 3, "dropped": 2, "steps_begun": 1, "steps_ended": 1},
		},
		"records refused": {
			level: "kernel",
			env:   []string{"LANETRACE_KERNEL_SPAN_EVERY=1"},
			script: `
				hold 1
				step 0 = 1 1
				fail cuEventRecord 700 0 1
				begin 0 0 1 0 = 0
				begin 1 0 2 0 = 1
				fail cuEventRecord 700 0 1
				end 1
				fail cuEventRecord 700 0 1
				launch 0 0 = 1
				fail cuEventRecord 700 1 1
				launch 0 0 = 1
				fail cuLaunchKernel 719 0 1
				launch 0 0 = 1
				endstep 0
				heal
				hold 0
				drain = 0`,
			spans: []string{
				"begin step=1 level=3 armed",
				"failed lane a step=1 ordinal=1 parent=0 lane=1 stream=0: record",
				"failed lane b step=1 ordinal=2 parent=0 lane=2 stream=1: record",
				"failed kernel work step=1 ordinal=3 parent=0 lane=0 stream=1: record",
				"failed kernel work step=1 ordinal=4 parent=0 lane=0 stream=1: record",
				"failed kernel work step=1 ordinal=5 parent=0 lane=0 stream=1: launch",
				"end step=1 opened=5 dropped=0 linked=0 armed",
			},
			counted: map[string]uint64{
				"begun": 6, "landed": 1, "failed_record": 4, "failed_launch": 1, "steps_begun": 1, "steps_ended": 1, "steps_armed": 1, "launches": 3,
			},
		},
		"captures": {
			level: "kernel",
			env:   []string{"LANETRACE_KERNEL_SPAN_EVERY=1"},
			script: `
				stream 1 0
				step 0 = 1 1
				begin 0 0 1 0 = 1
				capture 0 0 = 0
				begin 1 0 2 0 = 0
				launch 0 0 = 0
				begin 2 0 2 1 = 1
				end 2
				end 0
				endcapture 0 = 0
				begin 3 0 3 0 = 1
				graph 0 0 = 1
				end 3
				endstep 0
				drain = 0`,
			spans: []string{
				"begin step=1 level=3 armed",
				"failed lane a step=1 ordinal=1 parent=0 lane=1 stream=1: capture",
				"end step=1 opened=4 dropped=0 linked=0 armed",
				"lane c step=1 ordinal=5 parent=0 lane=3 stream=1 context=0 armed",
				"graph g/7/3 step=1 ordinal=6 parent=5 lane=3 stream=1 context=0 armed",
				"lane b step=1 ordinal=4 parent=0 lane=2 stream=2 context=0 armed",
			},
			counted: map[string]uint64{
				"begun": 5, "landed": 4, "failed_capture": 1, "capturing": 2, "steps_begun": 1, "steps_ended": 1, "steps_armed": 1, "launches": 2,
			},
		},
		"unreadable, abandoned, stale and misused": {
			level: "lane",
			script: `
				hold 1
				step 0
				begin 0 0 1 0 = 1
				begin 1 0 1 0 = 0
				begin 1 0 9 0 = 0
				end 0
				end 0
				sync
				fail cuEventElapsedTime_v2 719 0 0
				hold 0
				harvest
				heal
				begin 1 0 2 0 = 1
				abandon 0
				harvest
				end 1
				endstep 0
				endstep 0
				begin 2 0 1 0 = 0
				drain = 0`,
			spans: []string{
				"begin step=1 level=2",
				"failed lane a step=1 ordinal=1 parent=0 lane=1 stream=1: unreadable",
				"failed lane b step=1 ordinal=2 parent=0 lane=2 stream=1: abandoned",
				"end step=1 opened=2 dropped=0 linked=0",
			},
			counted: map[string]uint64{
				"begun": 3, "landed": 1, "failed_unreadable": 1, "failed_abandoned": 1, "stale_ends": 2, "misuse": 4, "steps_begun": 1, "steps_ended": 1,
			},
		},
		"kernels belong to the innermost lane, the bound step, the caller's, or nobody": {
			level: "kernel",
			env:   []string{"LANETRACE_KERNEL_SPAN_EVERY=1"},
			script: `
				step 0 = 1 1
				launch 0 -1 = 0
				launch 0 0 = 1
				bind 0 0
				launch 0 -1 = 1
				bind -1 0
				begin 0 0 1 0 = 1
				begin 1 0 2 0 = 1
				launch 0 -1 = 1
				end 1
				launch 0 -1 = 1
				end 0
				endstep 0
				launch 0 0 = 0
				drain = 0`,
			spans: []string{
				"begin step=1 level=3 armed",
				"end step=1 opened=6 dropped=0 linked=0 armed",
				"kernel work step=1 ordinal=1 parent=0 lane=0 stream=1 context=0 armed",
				"kernel work step=1 ordinal=2 parent=0 lane=0 stream=1 context=0 armed",
				"lane a step=1 ordinal=3 parent=0 lane=1 stream=1 context=0 armed",
				"lane b step=1 ordinal=4 parent=3 lane=2 stream=1 context=0 armed",
				"kernel work step=1 ordinal=5 parent=4 lane=2 stream=1 context=0 armed",
				"kernel work step=1 ordinal=6 parent=3 lane=1 stream=1 context=0 armed",
			},
			counted: map[string]uint64{
				"begun": 7, "landed": 7, "unattributed": 1, "steps_begun": 1, "steps_ended": 1, "steps_armed": 1, "launches": 5,
			},
		},
		"levels change between begin and end": {
			level: "lane",
			script: `
				step 0
				begin 0 0 1 0 = 1
				level 0 = 0
				step 1 = 0 0
				end 0
				endstep 0
				level 1 = 1
				step 2 = 2 0
				begin 1 2 1 0 = 0
				endstep 2
				level 3 = 3
				arm 1
				step 3 = 3 1
				timing = 1
				level 2 = 2
				launch 0 3 = 0
				endstep 3
				timing = 0
				drain = 0`,
			spans: []string{
				"begin step=1 level=2",
				"end step=1 opened=1 dropped=0 linked=0",
				"lane a step=1 ordinal=1 parent=0 lane=1 stream=1 context=0",
				"begin step=2 level=1",
				"end step=2 opened=0 dropped=0 linked=0",
				"begin step=3 level=3 armed asked",
				"end step=3 opened=0 dropped=0 linked=0 armed",
			},
			counted: map[string]uint64{"begun": 4, "landed": 4, "steps_begun": 3, "steps_ended": 3, "steps_armed": 1},
		},
		"attributes, links and requests": {
			level: "basic",
			script: `
				step 0
				attrs 0 4 5 6
				link 0 171 1 2
				link 0 0 1 1
				link 0 1 0 1
				link 0 2 1 200
				endstep 0
				link 0 3 1 1
				request 9 100 200
				request 0 100 200`,
			spans: append(append([]string{
				"begin step=1 level=1",
				"attrs step=1 4 5 6 replay",
			}, append(linkLines("ab", 2), linkLines("02", 126)...)...),
				"end step=1 opened=0 dropped=0 linked=202",
				"request 09000000000000000000000000000000 0900000000000000 100..200 3 4",
			),
			counted: map[string]uint64{"begun": 2, "landed": 2, "misuse": 1, "steps_begun": 1, "steps_ended": 1, "requests": 1},
		},
		"a thread's own default stream": {
			level: "lane",
			script: `
				stream 1 2
				stream 2 1
				stream 3 0
				step 0
				begin 0 0 1 1 = 1
				end 0
				begin 1 0 2 1 = 1
				endelsewhere 1
				begin 2 0 1 2 = 1
				end 2
				begin 3 0 1 3 = 1
				destroy 3 = 0
				end 3
				endstep 0
				drain = 0`,
			spans: []string{
				"begin step=1 level=2",
				"failed lane b step=1 ordinal=2 parent=0 lane=2 stream=1: record",
				"failed lane a step=1 ordinal=4 parent=0 lane=1 stream=3: record",
				"end step=1 opened=4 dropped=0 linked=0",
				"lane a step=1 ordinal=1 parent=0 lane=1 stream=1 context=0",
				"lane a step=1 ordinal=3 parent=0 lane=1 stream=2 context=0",
			},
			counted: map[string]uint64{"begun": 5, "landed": 3, "failed_record": 2, "steps_begun": 1, "steps_ended": 1},
		},
		"a context ends and comes again": {
			level: "lane",
			script: `
				step 0
				begin 0 0 1 0 = 1
				end 0
				begin 1 0 2 0 = 1
				reopen = 0
				end 1
				stream 0 0
				begin 2 0 3 0 = 1
				end 2
				endstep 0
				drain = 0`,
			spans: []string{
				"begin step=1 level=2",
				"lane a step=1 ordinal=1 parent=0 lane=1 stream=1 context=0",
				"failed lane b step=1 ordinal=2 parent=0 lane=2 stream=1: closed",
				"end step=1 opened=3 dropped=0 linked=0",
				"lane c step=1 ordinal=3 parent=0 lane=3 stream=2 context=0",
			},
			counted: map[string]uint64{"begun": 4, "landed": 3, "failed_closed": 1, "stale_ends": 1, "steps_begun": 1, "steps_ended": 1},
		},
		"a context ends during a launch": {
			level: "kernel",
			env:   []string{"LANETRACE_KERNEL_SPAN_EVERY=1", "LANETRACE_PAIRS=2"},
			script: `
				step 0 = 1 1
				halflaunch 0 0 0 = 1
				begin 0 0 1 0 = 1
				end 0
				drain = 0
				halflaunch 0 0 1 = 1
				begin 1 0 2 0 = 1
				end 1
				drain = 0
				begin 2 0 3 0 = 1
				end 2
				endstep 0
				drain = 0`,
			spans: []string{
				"begin step=1 level=3 armed",
				"failed kernel  step=1 ordinal=1 parent=0 lane=0 stream=1: record",
				"lane a step=1 ordinal=2 parent=0 lane=1 stream=2 context=0 armed",
				"failed kernel  step=1 ordinal=3 parent=0 lane=0 stream=2: record",
				"lane b step=1 ordinal=4 parent=0 lane=2 stream=3 context=0 armed",
				"lane c step=1 ordinal=5 parent=0 lane=3 stream=3 context=0 armed",
				"end step=1 opened=5 dropped=0 linked=0 armed",
			},
			counted: map[string]uint64{
				"begun": 6, "landed": 4, "failed_record": 2, "steps_begun": 1, "steps_ended": 1, "steps_armed": 1, "launches": 2,
			},
		},
		"a context ends while the GPU hangs": {
			level: "lane",
			script: `
				step 0
				begin 0 0 1 0 = 1
				end 0
				drain = 0
				stall 0 1
				begin 1 0 2 0 = 1
				launch 0 0
				end 1
				endstep 0
				close = 0
				inflight = 0
				live event = 0
				stall 0 0`,
			spans: []string{
				"begin step=1 level=2",
				"lane a step=1 ordinal=1 parent=0 lane=1 stream=1 context=0",
				"end step=1 opened=2 dropped=0 linked=0",
				"failed lane b step=1 ordinal=2 parent=0 lane=2 stream=1: closed",
			},
			counted: map[string]uint64{"begun": 3, "landed": 2, "failed_closed": 1, "steps_begun": 1, "steps_ended": 1},
		},
		"the process ends with spans in flight": {
			level: "lane",
			script: `
				stall 0 1
				step 0
				begin 0 0 1 0 = 1
				begin 1 0 2 0 = 1
				end 1
				step 1
				endstep 0
				stop = 0
				step 2 = 0 0
				end 0
				inflight = 0
				sleepms 20
				sincestop = 0
				stall 0 0`,
			spans: []string{
				"begin step=1 level=2",
				"begin step=2 level=2",
				"end step=1 opened=2 dropped=0 linked=0",
				"failed lane b step=1 ordinal=2 parent=1 lane=2 stream=1: closed",
				"failed lane a step=1 ordinal=1 parent=0 lane=1 stream=1: closed",
			},
			counted: map[string]uint64{"begun": 4, "landed": 1, "failed_closed": 2, "steps_begun": 2, "steps_ended": 1},
			flight:  1, // step 2 never ended
		},
		"the process ends while a lane begins": {
			level: "lane",
			script: `
				step 0
				beginstop 0
				end 0`,
			spans: []string{
				"begin step=1 level=2",
				"failed lane a step=1 ordinal=1 parent=0 lane=1 stream=1: closed",
			},
			counted: map[string]uint64{"begun": 2, "failed_closed": 1, "steps_begun": 1},
			flight:  1, // the step never ended
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newHubRig(t, hubOptions{level: c.level, env: append([]string{"LANETRACE_KERNEL_SPAN_EVERY=1000000"}, c.env...)})
			e.script(c.script)
			// What lands when depends on the time.
			if d := cmp.Diff(slices.Sorted(slices.Values(c.spans)), slices.Sorted(slices.Values(e.log()))); d != "" {
				t.Errorf("log (-want +got):\n%s", d)
			}
			e.counted(c.counted)
			e.balanced(c.flight)
		})
	}
}

func linkLines(hex string, n int) (out []string) {
	for range n {
		out = append(out, fmt.Sprintf("link step=1 %s %s 1", hex+strings.Repeat("0", 30), hex+strings.Repeat("0", 14)))
	}
	return out
}

// A capture of which nobody told the hub, in the mode that forbids the most, is neither
// joined nor spoilt by the harvest, the anchors, and lanes on other streams.
func TestHubForeignCapture(t *testing.T) {
	e := newHubRig(t, hubOptions{level: "lane"})
	e.script("stream 1 0\n step 0\n foreigncapture 1 0 = 0\n begin 0 0 1 1 = 0")
	for range 30 {
		e.script("begin 0 0 1 0 = 1\n launch 0 0\n end 0\n drain = 0\n sleepms 20")
	}
	e.script("foreignend 1 = 0\n begin 0 0 1 1 = 1\n end 0\n endstep 0\n drain = 0")
	if c := e.counters(); c[spanring.CtrAnchors] < 2 || c[spanring.CtrCapturing] != 1 {
		t.Errorf("%d anchors, %d not begun for the capture", c[spanring.CtrAnchors], c[spanring.CtrCapturing])
	}
	e.balanced(0)
}

// Values that cannot be are refused, each for its reason, and nothing is mended.
func TestHubRefusals(t *testing.T) {
	for how, reason := range map[int]string{1: "end_before_start", 2: "not_finite", 3: "zero", 4: "too_long", 5: "misplaced"} {
		e := newHubRig(t, hubOptions{level: "lane"})
		// The second span is held against an anchor that the first one brought.
		e.script("step 0\n begin 0 0 1 0 = 1\n launch 0 0\n end 0\n drain = 0\n hold 1\n begin 1 0 2 0 = 1\n launch 0 0\n end 1")
		e.script(fmt.Sprintf("lie 1 %d\n hold 0\n endstep 0\n drain = 0", how))
		e.counted(map[string]uint64{"begun": 3, "landed": 2, "failed_" + reason: 1, "steps_begun": 1, "steps_ended": 1})
		want := "failed lane b step=1 ordinal=2 parent=0 lane=2 stream=1: " + reason
		if got := e.log(); !slices.Contains(got, want) {
			t.Errorf("%s: %v, want %q", reason, got, want)
		}
	}
}

// Several contexts: each has its part of the slots, its streams and its clock; a lane ends
// in the context where it began, whichever is current, and that one stays current. One
// more than fit is not timed, and that is said once.
func TestHubContexts(t *testing.T) {
	e := newHubRig(t, hubOptions{level: "lane", env: []string{"LANETRACE_TESTDRIVER_DEVICES=6"}})
	e.script(`
		stream 1 1
		step 0
		begin 0 0 1 0 = 1
		begin 1 0 2 1 = 1
		device 1 = 1
		stream 2 0
		begin 2 0 1 2 = 1
		begin 3 0 2 1 = 1
		end 0
		end 1
		current = 1
		nocontext = -1
		begin 4 0 3 2 = 0
		end 3
		end 2
		current = -1
		endstep 0
		device 2 = 2
		device 3 = 3
		device 4 = -1
		device 5 = -1
		stream 3 0
		step 1
		begin 4 1 1 3 = 0
		endstep 1
		drain = 0`)
	var got []string
	for _, l := range e.log() {
		if strings.HasPrefix(l, "lane") {
			got = append(got, l)
		}
	}
	slices.Sort(got)
	if d := cmp.Diff([]string{
		"lane a step=1 ordinal=1 parent=0 lane=1 stream=1 context=0",
		"lane a step=1 ordinal=3 parent=0 lane=1 stream=1 context=1",
		"lane b step=1 ordinal=2 parent=0 lane=2 stream=2 context=0",
		"lane b step=1 ordinal=4 parent=0 lane=2 stream=2 context=1",
	}, got); d != "" {
		t.Errorf("lanes (-want +got):\n%s", d)
	}
	e.counted(map[string]uint64{"begun": 6, "landed": 6, "steps_begun": 2, "steps_ended": 2})
	cs, err := e.read.Contexts()
	if err != nil || len(cs) != 4 {
		t.Fatalf("%d contexts, %v", len(cs), err)
	}
	uuids := map[[16]byte]bool{}
	for i, c := range cs {
		uuids[c.UUID] = true
		if int(c.Device) != i || int(c.FirstSlot) != 4096*i || c.Slots != 4096 {
			t.Errorf("context %d: %+v", i, c)
		}
	}
	if len(uuids) != 4 {
		t.Errorf("%d identities of 4 devices", len(uuids))
	}
	said := e.complaints()
	if len(said) != 1 || !strings.HasPrefix(said[0], "lanetrace: a GPU context is not timed: ") {
		t.Errorf("said %q, want once that a context is not timed", said)
	}
}

// Streams that come and go are forgotten, and so are threads' own default streams; their
// memory is used again.
func TestHubStreamsComeAndGo(t *testing.T) {
	for _, what := range []string{"churn 1000", "threads 1000"} {
		t.Run(what, func(t *testing.T) {
			e := newHubRig(t, hubOptions{level: "lane"})
			known, err := strconv.Atoi(e.do(what))
			if err != nil || known > 500 {
				t.Errorf("%d streams remembered of 1,000 that are gone (%v)", known, err)
			}
			e.want("drain", "0")
			e.counted(map[string]uint64{"begun": 2000, "landed": 2000, "steps_begun": 1000, "steps_ended": 1000})
			numbers := map[uint16]bool{}
			for _, s := range e.landed() {
				numbers[s.Stream] = true
			}
			if len(numbers) != 1000 {
				t.Errorf("%d numbers for 1,000 streams", len(numbers))
			}
		})
	}
}

// The thread dozes while nothing is in flight, and wakes for what begins then.
func TestHubWakes(t *testing.T) {
	e := newHubRig(t, hubOptions{level: "lane"})
	for range 2 {
		e.script("sleepms 600\n step 0\n begin 0 0 1 0 = 1\n end 0\n endstep 0")
		e.until("inflight", "0")
	}
	e.balanced(0)
}

// At off no entry point asks the driver, writes, or counts.
func TestHubOff(t *testing.T) {
	e := newHubRig(t, hubOptions{level: "off"})
	before := e.do("allcalls")
	if n := e.do("calls cuEventCreate"); n != "0" {
		t.Errorf("%s events made at off", n)
	}
	e.script(`
		step 0 = 0 0
		begin 0 0 1 0 = 0
		end 0
		endstep 0
		attrs 0 1 2 3
		link 0 1 1 1
		request 1 0 0
		bind 0 0
		timing = 0
		level 0 = 0`)
	e.want("allcalls", before)
	e.counted(map[string]uint64{})
	if got := e.entries(); len(got) != 0 {
		t.Errorf("%d entries at off", len(got))
	}
	info, err := e.read.Info()
	if err != nil || info.Level != 0 || !strings.HasPrefix(info.Producer, "lanetrace-agent ") || !strings.HasPrefix(info.GPUUUID, "GPU-") {
		t.Errorf("header: %+v, %v", info, err)
	}
	// The first rise to lane makes the pool.
	e.script("onlevel = 0\n level 2 = 2\n seen = 2\n step 0 = 1 0\n begin 0 0 1 0 = 1\n end 0\n endstep 0\n drain = 0")
	e.balanced(0)
	if n := e.do("calls cuEventCreate"); n == "0" {
		t.Error("no events made at lane")
	}
}

// The driver's answers at the pool's making.
func TestHubNoPool(t *testing.T) {
	e := newHubRig(t, hubOptions{level: "off"})
	e.script(`
		fail cuEventCreate 2 100 1
		level 2 = 2
		step 0 = 1 0
		begin 0 0 1 0 = 0
		endstep 0
		level 2 = 2
		live event = 0`)
	e.counted(map[string]uint64{"begun": 1, "landed": 1, "steps_begun": 1, "steps_ended": 1, "pools_failed": 1})
	if want := "lanetrace: GPU spans are off: "; strings.Count(e.said.String(), want) != 1 {
		t.Errorf("said %q, want %q once", e.said, want)
	}
}

// A pool waits for captures to end.
func TestHubPoolWaitsForCapture(t *testing.T) {
	e := newHubRig(t, hubOptions{level: "off"})
	e.script("stream 1 0\n capture 1 0 = 0\n level 2 = 2\n step 0\n begin 0 0 1 0 = 0")
	if n := e.do("calls cuEventCreate"); n != "0" {
		t.Errorf("%s events made during a capture", n)
	}
	e.script("endcapture 1 = 0\n endstep 0\n step 1")
	e.until("begin 1 1 1 0", "1") // the thread makes it
	e.script("end 1\n endstep 1\n drain = 0")
	e.balanced(0)
}

func TestHubFork(t *testing.T) {
	e := newHubRig(t, hubOptions{level: "lane"})
	e.script("step 0\n begin 0 0 1 0 = 1\n fork = 0\n end 0\n endstep 0\n drain = 0")
	e.counted(map[string]uint64{"begun": 2, "landed": 2, "steps_begun": 1, "steps_ended": 1})
	if alive, err := e.read.Alive(); err != nil || !alive {
		t.Errorf("alive %v, %v", alive, err)
	}
}

// The exit fails what is in flight, closes the ring and asks the driver nothing.
func TestHubExit(t *testing.T) {
	e := newHubRig(t, hubOptions{level: "lane"})
	e.script("stall 0 1\n step 0\n begin 0 0 1 0 = 1\n end 0\n endstep 0")
	if _, err := e.in.Write([]byte("exit\n")); err != nil {
		t.Fatal(err)
	}
	e.end()
	e.counted(map[string]uint64{"begun": 2, "landed": 1, "failed_closed": 1, "steps_begun": 1, "steps_ended": 1})
	if info, err := e.read.Info(); err != nil || !info.Clean {
		t.Errorf("%+v, %v: not closed cleanly", info, err)
	}
	if said := e.complaints(); said != nil {
		t.Errorf("said %q", said)
	}
}

// Bad settings are one line each, and no ring.
func TestHubBadSetting(t *testing.T) {
	for name, env := range map[string]string{
		"LANETRACE_LEVEL":         "LANETRACE_LEVEL=full",
		"LANETRACE_KERNEL_BUDGET": "LANETRACE_KERNEL_BUDGET=2",
		"LANETRACE_PAIRS":         "LANETRACE_PAIRS=-1",
	} {
		e := newHubRig(t, hubOptions{level: "lane", env: []string{env}, idle: true})
		e.script("start = -1\n start = -1\n open = -1\n step 0 = 0 0\n timing = 0\n inflight = 0\n stop = 0")
		e.end()
		said := e.said.String()
		if strings.Count(said, "\n") != 1 || !strings.HasPrefix(said, "lanetrace: telemetry is off: ") || !strings.Contains(said, name) {
			t.Errorf("%s: said %q", env, said)
		}
	}
}

// A control request changes the level and arms between begin and end.
func TestHubControl(t *testing.T) {
	e := newHubRig(t, hubOptions{level: "lane", env: []string{"LANETRACE_KERNEL_SPAN_EVERY=1000000"}})
	e.script("step 0 = 1 0\n begin 0 0 1 0 = 1")
	path := e.read.Path()
	request := func(c spanring.Control, counter spanring.Counter, n uint64) {
		t.Helper()
		if err := spanring.WriteControl(path, c); err != nil {
			t.Fatal(err)
		}
		for range 2000 {
			if e.counters()[counter] >= n {
				return
			}
			e.do("sleepms 5")
		}
		t.Fatalf("request %+v: nothing was done", c)
	}
	request(spanring.Control{ID: "1", Level: "kernel", ArmSteps: 1}, spanring.CtrControlApplied, 1)
	e.script("getlevel = 3\n stream 1 0\n step 1 = 2 1\n launch 0 1 = 0\n launch 1 1 = 1\n endstep 1")
	request(spanring.Control{ID: "2", Level: "basic"}, spanring.CtrControlApplied, 2)
	request(spanring.Control{ID: "3", Level: "loud"}, spanring.CtrControlRejected, 1)
	request(spanring.Control{ID: "4", Level: "kernel", ArmSteps: 1_000_001}, spanring.CtrControlRejected, 2)
	e.script("getlevel = 1\n end 0\n endstep 0\n drain = 0")
	e.counted(map[string]uint64{
		"begun": 4, "landed": 4, "steps_begun": 2, "steps_ended": 2, "steps_armed": 1, "launches": 2,
		"control_applied": 2, "control_rejected": 2,
	})
}
