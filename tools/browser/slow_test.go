package browser

import (
	"fmt"
	"regexp"
	"testing"
)

// judged has every third step slow, and every fifth one without lanes, as if the server
// had said so.
const judged = `
	const Real = EventSource;
	globalThis.EventSource = class extends Real {
		addEventListener(name, f) {
			super.addEventListener(name, name !== "steps" ? f : (e) => {
				const b = JSON.parse(e.data);
				for (const s of b.steps) {
					delete s.slow;
					if (s.n % 3 === 0) s.slow = 1;
					if (s.n % 5 === 0) s.untimed = 1;
				}
				f({ data: JSON.stringify(b) });
			});
		}
	};`

// Only slow steps are shown when asked for, all of them and the latest in view; a step
// says that it is slow, and that its lanes were left out.
func TestSlowSteps(t *testing.T) {
	addr, _ := start(t, "demo")
	b := newTab(t, "http://"+addr+"/", judged)
	b.until("slow steps", `globalThis.lanetrace?.held().filter((s) => s.slow).length > 10`)
	b.key("0") // what is held stays
	held := js[[]int64](b, `lanetrace.held().map((s) => s.n)`)
	var want []int64
	for _, n := range held {
		if n%3 == 0 {
			want = append(want, n)
		}
	}
	b.key("s")
	got := js[[]int64](b, `lanetrace.timeline.steps.map((s) => s.n)`)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("slow steps %v, want %v", got, want)
	}
	last := want[len(want)-1]
	if in := js[[]int64](b, `lanetrace.timeline.inView().map((s) => s.n)`); len(in) == 0 || in[len(in)-1] != last {
		t.Errorf("in view are %v, want %d", in, last)
	}
	shown := js[string](b, `document.getElementById("shown").textContent`)
	if m := regexp.MustCompile(fmt.Sprintf(`of %s steps · %s slow`, grouped(int64(len(held))), grouped(int64(len(want))))); !m.MatchString(shown) {
		t.Errorf("it says %q", shown)
	}
	// From one to the next, a slow one each.
	b.key("[")
	details := func() string { return js[string](b, `document.getElementById("details").textContent`) }
	if d := details(); !regexp.MustCompile(`^step [\d,]+ on the (host|GPU) .*\bslow\b`).MatchString(d) {
		t.Errorf("details: %q", d)
	}
	b.key("s")
	if n := js[int](b, `lanetrace.timeline.steps.length`); n != len(held) {
		t.Errorf("%d steps afterwards, want %d", n, len(held))
	}
	if text := js[string](b, `(() => {
		const t = lanetrace.timeline, s = t.steps.find((s) => s.n % 5 === 0);
		t.select(t.rows.find((r) => r.kind === "host" || r.kind === "extent").items.find((i) => i.step === s));
		return document.getElementById("details").textContent;
	})()`); !regexp.MustCompile(`lanes not timed, to stay within their budget`).MatchString(text) {
		t.Errorf("details of a step without lanes: %q", text)
	}
	b.clean()
}
