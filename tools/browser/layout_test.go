package browser

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// later evaluates an expression that promises something.
func later[T any](b *tab, expression string) (v T) {
	b.t.Helper()
	b.do(chromedp.Evaluate(expression, &v, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	return v
}

// Steps that overlap on the GPU lie in rows of their own, lanes within lanes below
// them, streams apart; neighbours that overlap by less than the clock is sure of do
// not.
func TestLayout(t *testing.T) {
	addr, _ := start(t, "demo")
	b := newTab(t, "http://"+addr+"/")
	got := later[[]string](b, `import("/live/model.js").then((m) => {
		const names = [["outer"], ["inner"], ["k", "the whole k"]];
		//           kind name lane ctx stream ord par start raw corr lead gap cal place length flags
		const steps = m.decode({ names, steps: [
			{ n: 1, a: 0, z: 1000, begin: 0, host: 300, s: [
				[0, 0, -1, 0, 1, 1, 0, 100, 900000, 0, 5, 0, 0, 40, 32, 0], [0, 1, -1, 0, 1, 2, 1, 200, 1000, 0, 5, 0, 0, 40, 32, 0],
				[1, 2, 0, 0, 1, 3, 1, 2000, 5000, 3000, 7, 2, 1, 40, 32, 3]] },
			{ n: 2, a: 500000, z: 1400000, begin: 310, host: 300, s: [
				[0, 0, -1, 0, 2, 1, 0, 500000, 800000, 0, 5, 0, 0, 40, 32, 0]] },
			{ n: 3, a: 1299990, z: 1500000, begin: 620, host: -1, f: [[0, 1, "capture", 700000]], s: [
				[0, 0, -1, 0, 2, 1, 0, 1299900, 100000, 0, 5, 0, 0, 40, 32, 2]] },
		] });
		const k = steps[0].spans[2];
		return [
			...m.layout(steps).map((r) => r.kind + " " + (r.label || "-") + " " + r.items.map((i) => i.step.n).join("")),
			[k.raw, k.t1 - k.t0, m.gaps[k.gap], m.calibrations[k.calibration], k.inGraph, k.shared, k.name.title, k.name.full, k.lane.title].join(" "),
			steps[2].failures[0].name.title + " " + steps[2].failures[0].reason,
		];
	})`)
	want := []string{
		"host host 12",
		"extent steps on GPU 13", "extent - 2",
		"lane stream 1 1", "lane - 1", "kernel kernels 1",
		"lane stream 2 23", // they overlap by 100 ns
		"5000 2000 starved measured true true k the whole k outer",
		"inner capture",
	}
	if !slices.Equal(got, want) {
		t.Errorf("rows:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	b.clean()
}

// What was lost is red, and said with its reason; an account that does not add up at
// the moment says by how much.
func TestHealthOfLosses(t *testing.T) {
	addr, _ := start(t, "demo")
	b := newTab(t, "http://"+addr+"/")
	got := later[map[string]string](b, `import("/live/tables.js").then((m) => {
		m.showHealth({ state: "died", level: "lane", kernel_every: 0, lane_every: 4, overhead: { kernels: 0.003, lanes: 0.0125 }, busy: 3, clocks: [{ device: 0, uncertainty_ns: 0, constant_ns: 0, calibration: "none" }], gpu_time: { lane: 3, within: 1, between: 0, untimed: 0 }, account: {
			producer: { begun: 1000000, landed: 999990, failed: { capture: 2, zero: 0 }, dropped: 5, in_flight: 3 },
			reader: { published: 100, received: 90, lost: 10, lost_by_reason: { overwritten: 10, hole: 0 }, missed_before_attach: 0, pending: 0 },
			sidecar: { received: 90, exported: 40, not_selected: { one_in_n: 40 }, rejected: 0, dropped: { late: 0 }, pending: 3 },
		} });
		const text = (q) => [...document.querySelectorAll(q)].map((e) => e.textContent).join("; ");
		const bad = getComputedStyle(document.documentElement).getPropertyValue("--bad").trim();
		return { of: text("#health-of .bad"), bad: text("#health .parts .bad"), sums: text("#health .sum span:last-child"),
			red: [...document.querySelectorAll("#health rect")].filter((r) => r.getAttribute("fill") === bad && Number(r.getAttribute("width")) >= 6).length + "", facts: text("#facts .bad"), costs: text("#facts dd") };
	})`)
	for k, want := range map[string]string{
		"of": "17 lost", "bad": "failed 2 (capture 2); dropped 5; lost 10 (overwritten 10)", "sums": "adds up; adds up; 7 on the way", "red": "3", "facts": "died", "costs": "died; lane; 1 step in 4; 1.3 %; 0.3 %; 3; 75.0 %; 25.0 %; 0.0 %",
	} {
		if got[k] != want {
			t.Errorf("%s: %q, want %q", k, got[k], want)
		}
	}
	b.clean()
}

// What is wrong stands at the page's top, marked as such, and what is merely so does not
// look like it.
func TestNotes(t *testing.T) {
	addr, _ := start(t, "demo")
	b := newTab(t, "http://"+addr+"/")
	got := later[[][]string](b, `import("/live/tables.js").then((m) => [
		{ state: "live", level: "kernel", memory: { violations: 0 } },
		{ state: "live", level: "basic", memory: { violations: 0 } },
		{ state: "died", level: "lane", busy: 2, memory: { violations: 3 } },
		{ state: "live", level: "lane", oldest: { step: 1234, age: 77.8e9 }, memory: { violations: 0 }, diffs: [{ region: "decode", executions: 4500, differing: 1, step: 2250 }] },
	].map((engine) => m.notes({ engines: [{}], engine }, [{}], "").map(([text, wrong]) => (wrong ? "wrong: " : "") + text.split(".")[0])))`)
	want := [][]string{
		{},
		{"This engine's level is basic: steps are timed on the host only"},
		{"wrong: This engine died without a clean end", "wrong: Something wrote past the end of an allocation: guard bands violated: 3"},
		{"wrong: A span of step 1,234 has been in flight for 77", "wrong: Region decode: 1 of 4,500 executions enqueued other operations than the one before, last in step 2,250"},
	}
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("notes\n%q\nwant\n%q", got, want)
	}
	b.clean()
}

// The mouse on a chart has its values said, of one moment, and not when it is elsewhere.
func TestChartValues(t *testing.T) {
	addr, _ := start(t, "demo")
	b := newTab(t, "http://"+addr+"/")
	b.until("four seconds", `globalThis.lanetrace?.state()?.engine?.seconds >= 4 && document.querySelectorAll(".chart canvas").length === 3`)
	for id, want := range map[string]string{
		"lanes-time":  `^(now|−\d+ s)\n.*decode p50: [\d.]+ .s\n.*prefill p99: [\d.]+ .s$`,
		"lanes-share": `^(now|−\d+ s)\n.*decode: [\d.]+ %\n`,
		"memory-time": `^(now|−\d+ s)\nwith slack: 72\d MiB\nlive: 716 MiB\n.*model.go:171: 456 MiB\npeak: 716 MiB$`,
	} {
		b.do(chromedp.Evaluate(`document.getElementById("`+id+`").scrollIntoView({ block: "center" })`, nil))
		at := js[[2]float64](b, `((r) => [r.x + r.width * 0.8, r.y + r.height / 2])(document.querySelector("#`+id+` .u-over").getBoundingClientRect())`)
		poll(t, "values of "+id, func() bool { // a chart that is made anew waits for the mouse
			b.mouse(input.MouseMoved, at[0]-1, at[1], nil)
			b.mouse(input.MouseMoved, at[0], at[1], nil)
			return js[bool](b, fmt.Sprintf(`!document.getElementById("tip").hidden && new RegExp(%q, "s").test(document.getElementById("tip").textContent)`, want))
		})
		b.mouse(input.MouseMoved, 2, 2, nil)
		b.until("nothing said of "+id, `document.getElementById("tip").hidden`)
	}
	b.clean()
}

// The picker shows the engine that is picked, and a reload does too.
func TestPicker(t *testing.T) {
	dir := t.TempDir()
	start(t, "demo", "--dir", dir+"/rings")
	addr, _ := start(t, "demo", "--dir", dir+"/rings")
	b := newTab(t, "http://"+addr+"/")
	b.until("two engines", `document.querySelectorAll("#engines option").length === 2 && lanetrace.held().length > 0`)
	labels := js[[]string](b, `[...document.querySelectorAll("#engines option")].map((o) => o.value)`)
	if labels[1] != labels[0]+"-2" {
		t.Fatalf("engines %q", labels)
	}
	run := func() string {
		return js[string](b, `document.getElementById("about").title`)
	}
	runs := js[[]string](b, `lanetrace.state().engines.map((e) => "run " + e.run)`)
	for i, l := range labels {
		b.do(chromedp.Evaluate(`(() => { const s = document.getElementById("engines"); s.value = "`+l+`"; s.dispatchEvent(new Event("change")); })()`, nil))
		poll(t, "run of "+l, func() bool { return run() == runs[i] })
		b.until("steps of "+l, `lanetrace.held().length > 0`)
	}
	b.do(chromedp.Reload())
	b.until("the same engine again", `globalThis.lanetrace?.held().length > 0 && document.getElementById("engines").value === "`+labels[1]+`"`)
	b.clean()
}
