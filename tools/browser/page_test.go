package browser

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
)

// pageStep is a step as the page holds it.
type pageStep struct {
	N     int64
	Armed int
	Spans []struct {
		Kind            int
		Name            string
		Raw, Correction int64
		Lead, Place     int64
	}
}

const heldSteps = `lanetrace.held().map((s) => ({ N: s.n, Armed: s.armed ?? 0, Spans: s.spans.map((p) => ({ Kind: p.kind, Name: p.name.full, Raw: p.raw, Correction: p.correction, Lead: p.lead, Place: p.place })) }))`

// The page shows the recording's lanes and kernels with the recording's numbers.
func TestNumbers(t *testing.T) {
	want, err := recording()
	if err != nil {
		t.Fatal(err)
	}
	addr, _ := start(t, "demo")
	b := newTab(t, "http://"+addr+"/")
	b.until("armed step", `globalThis.lanetrace?.held().some((s) => s.armed)`)

	kinds := []string{"lane", "kernel", "graph"}
	spans, kernels := 0, 0
	for _, s := range js[[]pageStep](b, heldSteps) {
		rec := want[s.N]
		if len(rec) != len(s.Spans) {
			t.Fatalf("step %d has %d spans, the recording %d", s.N, len(s.Spans), len(rec))
		}
		text := func(kind, name string, ns, lead, place int64) string {
			return fmt.Sprint(kind, " ", name, " ", ns, " ", lead, " ", place)
		}
		var is, should []string
		for i, sp := range s.Spans {
			is = append(is, text(kinds[sp.Kind], sp.Name, sp.Raw-sp.Correction, sp.Lead, sp.Place))
			should = append(should, text(rec[i].Kind, rec[i].Name, rec[i].NS, rec[i].QueueDelay, rec[i].PlaceUncertain))
			spans++
			if sp.Kind == 1 {
				kernels++
			}
		}
		slices.Sort(is)
		slices.Sort(should)
		if !slices.Equal(is, should) {
			t.Fatalf("step %d:\n%v\nthe recording:\n%v", s.N, is, should)
		}
	}
	if spans < 100 || kernels < 50 {
		t.Errorf("%d spans, %d kernels of them", spans, kernels)
	}

	// Quantiles and shares are those of some seconds, of a load that hardly changes.
	all := map[string][]float64{}
	for _, s := range want {
		armed := slices.ContainsFunc(s, func(r recordedSpan) bool { return r.Kind != "lane" })
		for _, r := range s {
			if r.Kind == "lane" && !armed {
				all[r.Name] = append(all[r.Name], float64(r.NS))
			}
		}
	}
	b.until("five seconds", `lanetrace.state().engine.seconds >= 5`)
	lanes := js[[]struct {
		Name          string
		P50, P99, Sum float64
		Count         int
	}](b, `lanetrace.state().engine.lanes`)
	var names []string
	for _, l := range lanes {
		names = append(names, l.Name)
		xs := all[l.Name]
		slices.Sort(xs)
		if len(xs) == 0 {
			t.Fatalf("lane %q is not in the recording", l.Name)
		}
		for q, got := range map[float64]float64{0.5: l.P50, 0.99: l.P99} {
			// Of short lanes too, a quantile of five seconds lies within the middle of the whole.
			low, high := xs[int(float64(len(xs))*max(0, q-0.3))], xs[min(len(xs)-1, int(float64(len(xs))*(q+0.3)))]
			if got < low*0.96 || got > high*1.04 {
				t.Errorf("lane %s: quantile %v is %v, the recording has %v to %v", l.Name, q, got, low, high)
			}
		}
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"admit", "decode", "prefill"}) {
		t.Errorf("lanes %q", names)
	}
	// What the table says is what came.
	if cells := js[[]string](b, `[...document.querySelectorAll("#lanes tbody td:first-child")].map((c) => c.textContent).sort()`); !slices.Equal(cells, names) {
		t.Errorf("table of lanes: %q", cells)
	}
	if cells := js[string](b, `document.querySelector("#kernels tbody").textContent`); !strings.Contains(cells, "matmul") || !strings.Contains(cells, "attention") {
		t.Errorf("table of kernels: %q", cells)
	}
	if text := js[string](b, `document.getElementById("health").textContent`); strings.Count(text, "lost 0") != 1 || strings.Count(text, "failed 0") != 1 || js[string](b, `document.getElementById("health-of").textContent`) != "nothing lost" {
		t.Errorf("health: %q", text)
	}
	b.until("three charts", `document.querySelectorAll(".chart canvas").length === 3`)
	b.until("memory by call site", `document.querySelector("#sites tbody").textContent.includes("model.go:171")`)

	// Pictures, of a page that has been looked at for a while.
	b.until("a while", `lanetrace.state().engine.seconds >= 12`)
	b.do(chromedp.Evaluate(`document.documentElement.dataset.theme === "dark" && document.getElementById("theme").click()`, nil))
	b.picture("live-page", "", 1200)
	b.key("a")
	for range 8 {
		b.key(".")
	}
	b.picture("live-timeline", "#timeline-card", 1200)
	b.key("t")
	b.picture("live-page-dark", "", 1200)
	b.clean()
}

// view is from where to where the timeline shows.
type view struct{ A, Z float64 }

func (b *tab) view() view {
	b.t.Helper()
	return js[view](b, `({ A: lanetrace.timeline.a, Z: lanetrace.timeline.z })`)
}

func near(a, b, by float64) bool { return math.Abs(a-b) <= by }

// Zoom, moving, selecting and hovering do what they say, by keys and by mouse.
func TestZoom(t *testing.T) {
	want, err := recording()
	if err != nil {
		t.Fatal(err)
	}
	addr, _ := start(t, "demo")
	b := newTab(t, "http://"+addr+"/")
	b.denyDownloads()
	b.until("armed step", `globalThis.lanetrace?.held().filter((s) => s.armed).length > 1`)
	pressed := func(id string) bool {
		return js[bool](b, `document.getElementById("`+id+`").getAttribute("aria-pressed") === "true"`)
	}
	if !pressed("follow") {
		t.Error("the newest steps are not followed")
	}
	b.key("+")
	if pressed("follow") {
		t.Error("the view was changed, and is followed nevertheless")
	}
	v := b.view()
	b.key("+")
	if w := b.view(); !near(w.Z-w.A, (v.Z-v.A)/2, 2) || !near(w.A+w.Z, v.A+v.Z, 4) {
		t.Errorf("+: from %v to %v", v, w)
	}
	b.key("-")
	if w := b.view(); !near(w.A, v.A, 4) || !near(w.Z, v.Z, 4) {
		t.Errorf("+ and -: from %v to %v", v, w)
	}
	b.key("x") // no key of ours
	if w := b.view(); !near(w.A, v.A, 4) {
		t.Errorf("another key moved the view to %v", w)
	}
	// The wheel keeps what is under the mouse where it is.
	type box struct{ X, Y, Width, Height float64 }
	canvas := js[box](b, `(({ x, y, width, height }) => ({ X: x, Y: y, Width: width, Height: height }))(document.getElementById("timeline").getBoundingClientRect())`)
	x := math.Round(canvas.X + canvas.Width*0.7)
	at := func() float64 { return js[float64](b, fmt.Sprintf(`lanetrace.timeline.timeAt(%v)`, x-canvas.X)) }
	before, v := at(), b.view()
	b.mouse(input.MouseWheel, x, canvas.Y+40, func(p *input.DispatchMouseEventParams) { p.DeltaY = -120 })
	b.until("zoom by the wheel", fmt.Sprintf(`lanetrace.timeline.z - lanetrace.timeline.a < %v`, (v.Z-v.A)*0.9))
	if after := at(); !near(before, after, (v.Z-v.A)/1000) {
		t.Errorf("the wheel moved what is under it from %v to %v", before, after)
	}
	// Dragging moves by as much as the mouse.
	v, before = b.view(), at()
	b.mouse(input.MousePressed, x, canvas.Y+40, func(p *input.DispatchMouseEventParams) { p.Button, p.ClickCount = input.Left, 1 })
	b.mouse(input.MouseMoved, x-100, canvas.Y+40, func(p *input.DispatchMouseEventParams) { p.Button = input.Left })
	b.mouse(input.MouseReleased, x-100, canvas.Y+40, func(p *input.DispatchMouseEventParams) { p.Button = input.Left })
	if now := js[float64](b, fmt.Sprintf(`lanetrace.timeline.timeAt(%v)`, x-100-canvas.X)); !near(now, before, (v.Z-v.A)/500) {
		t.Errorf("dragged from %v to %v", before, now)
	}

	// Only armed steps; the mouse on a kernel says its times to the nanosecond.
	b.key("a")
	if !pressed("armed") || js[int](b, `lanetrace.timeline.steps.filter((s) => !s.armed).length`) != 0 {
		t.Error("steps that are not armed are shown")
	}
	b.key("]")
	spot := js[struct {
		X, Y        float64
		N, Raw, Cor int64
		Name        string
		Lead        int64
	}](b, `(() => {
		const t = lanetrace.timeline, row = t.rows.find((r) => r.kind === "kernel");
		const it = row.items.filter((i) => i.t0 > t.a && i.t1 < t.z).sort((p, q) => q.raw - p.raw)[0];
		const box = t.canvas.getBoundingClientRect(), mid = (it.t0 + it.t1) / 2;
		return { X: box.x + 104 + ((mid - t.a) / (t.z - t.a)) * t.width, Y: box.y + row.y + row.height / 2, N: it.step.n, Raw: it.raw, Cor: it.raw - it.correction, Name: it.name.title, Lead: it.lead };
	})()`)
	if !slices.ContainsFunc(want[spot.N], func(r recordedSpan) bool { return r.Kind == "kernel" && r.NS == spot.Cor && r.Name == spot.Name }) {
		t.Errorf("%+v is not in the recording", spot)
	}
	b.mouse(input.MouseMoved, spot.X, spot.Y, nil)
	b.until("tip", `!document.getElementById("tip").hidden`)
	tip := js[string](b, `document.getElementById("tip").textContent`)
	for _, text := range []string{spot.Name, "corrected " + grouped(spot.Cor) + " ns", "raw " + grouped(spot.Raw) + " ns", "queue delay " + grouped(spot.Lead) + " ns", "step " + grouped(spot.N)} {
		if !strings.Contains(tip, text) {
			t.Errorf("the tip does not say %q:\n%s", text, tip)
		}
	}
	if !strings.Contains(tip, "queued: no host gap inside") && !strings.Contains(tip, "starved: ") {
		t.Errorf("the tip does not say queued or starved:\n%s", tip)
	}
	// A click selects it, a step further another one.
	b.do(chromedp.MouseClickXY(spot.X, spot.Y))
	if d := js[string](b, `document.getElementById("details").textContent`); !strings.HasPrefix(d, spot.Name) {
		t.Errorf("details: %q", d)
	}
	b.key(".")
	if d := js[string](b, `document.getElementById("details").textContent`); d == "" || strings.Contains(d, grouped(spot.Cor)+" ns ±") && strings.Contains(d, grouped(spot.Lead)+" ns ·") {
		t.Errorf("details of the span after it: %q", d)
	}

	// What is shown can be had as files.
	for _, format := range []string{"chrome", "recording"} {
		b.do(chromedp.Evaluate(`document.getElementById("details").textContent = ""`, nil), chromedp.Click("#get-"+format, chromedp.ByQuery))
		b.until("download of "+format, `document.getElementById("details").textContent === "Steps written: 1."`)
	}

	// Following again shows the newest, and the steps that are slow are none here or
	// are marked as such.
	b.key("a")
	b.key("s")
	if !pressed("slow") || js[int](b, `lanetrace.timeline.steps.filter((s) => !s.slow).length`) != 0 {
		t.Error("steps that are not slow are shown")
	}
	b.key("s")
	b.key("f")
	n := js[int64](b, `lanetrace.held().at(-1).n`)
	b.until("newer steps in view", fmt.Sprintf(`lanetrace.held().at(-1).n > %d && lanetrace.timeline.z >= lanetrace.held().at(-1).z`, n))
	b.clean()
}

// grouped is a number with its thousands apart.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// 10,000 spans in view cost what there are pixels, not what there are spans: a frame
// that moves or zooms is drawn in a few milliseconds, which the log says.
func TestTenThousandSpans(t *testing.T) {
	addr, _ := start(t, "demo")
	b := newTab(t, "http://"+addr+"/")
	b.until("page", `globalThis.lanetrace !== undefined && lanetrace.held().length > 0`)
	b.key("+") // nothing new comes in
	type frames struct {
		Median, Worst float64
		Drawn, Spans  int
		Fills, Pixels int // filled rectangles of one frame, and pixels of the rows' widths
	}
	got := js[frames](b, `(() => {
		const t = lanetrace.timeline, steps = [];
		for (let n = 0; n < 100; n++) {
			const s = { n: n + 1, at: n + 1, a: n * 1e6, z: n * 1e6 + 9e5, begin: n * 1e6, host: 2e5, armed: 1, bound: "gpu", lanes: 8e5, outside: 0, failures: [], spans: [] };
			const span = (kind, name, ordinal, parent, t0, raw) => s.spans.push({ step: s, kind, name: { title: name, full: name }, lane: null, context: 0, stream: 1, ordinal, parent, t0, t1: t0 + raw, raw, correction: 0, lead: 1000, gap: 1, calibration: 1, place: 100, length: 32 });
			span(0, "decode", 1, 0, s.a + 1e5, 8e5);
			for (let k = 0; k < 99; k++) span(1, "kernel " + (k % 7), k + 2, 1, s.a + 1e5 + k * 8e3, 7e3);
			steps.push(s);
		}
		t.set(steps);
		let fills = 0, most = 0;
		const proto = CanvasRenderingContext2D.prototype, fill = proto.fillRect;
		proto.fillRect = function (...a) { fills++; fill.apply(this, a); };
		const ms = [];
		const [drawn, all] = [[], 100 * 100];
		for (let f = 0; f < 60; f++) { // zooms and moves, all in view at first
			t.show(f * 1e5, 100e6 - f * 1e6, true);
			fills = 0;
			t.draw();
			most = Math.max(most, fills);
			ms.push(t.drawnIn);
			drawn.push(Number(t.canvas.dataset.spans));
		}
		proto.fillRect = fill;
		ms.sort((x, y) => x - y);
		return { Median: ms[30], Worst: ms[59], Drawn: Math.max(...drawn), Spans: all, Fills: most, Pixels: Math.ceil(t.rows.length * t.width) };
	})()`)
	if got.Drawn < got.Spans {
		t.Errorf("%d spans were in view, want %d", got.Drawn, got.Spans)
	}
	t.Logf("%d spans in view: a frame takes %.1f ms in the median, %.1f ms at most", got.Drawn, got.Median, got.Worst)
	if got.Fills > got.Pixels/2 || got.Fills < 100 {
		t.Errorf("a frame of %d pixels fills %d rectangles", got.Pixels, got.Fills)
	}
	b.clean()
}
