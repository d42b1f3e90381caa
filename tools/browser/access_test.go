package browser

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// contrast is how far apart two colours are, as the rules for legible pages reckon it:
// 1 for the same, 21 for black and white.
func contrast(a, b [3]float64) float64 {
	light := func(c [3]float64) float64 {
		for i, v := range c {
			if v /= 255; v <= 0.04045 {
				c[i] = v / 12.92
			} else {
				c[i] = math.Pow((v+0.055)/1.055, 2.4)
			}
		}
		return 0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2]
	}
	x, y := light(a), light(b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

// Text is legible light and dark, everything that can be used has a name, and all of it
// can be used without a mouse.
func TestAccessible(t *testing.T) {
	addr, _ := start(t, "demo")
	b := newTab(t, "http://"+addr+"/")
	b.until("steps and tables", `globalThis.lanetrace?.held().length > 8 && document.querySelectorAll("#lanes tbody tr").length > 0`)

	// 4.5 is what text of this size needs.
	for _, theme := range []string{"light", "dark"} {
		if js[string](b, `document.documentElement.dataset.theme`) != theme {
			b.key("t")
		}
		b.until("theme "+theme, `document.documentElement.dataset.theme === "`+theme+`"`)
		colors := js[map[string][3]float64](b, `(() => {
			const out = {}, g = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
			for (const n of ["bg", "card", "ink", "quiet", "accent", "bad", "ok", "warn"]) {
				g.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--" + n).trim();
				g.fillRect(0, 0, 1, 1);
				out[n] = [...g.getImageData(0, 0, 1, 1).data].slice(0, 3);
			}
			return out;
		})()`)
		if len(colors) != 8 {
			t.Fatalf("%d colours", len(colors))
		}
		for _, ink := range []string{"ink", "quiet", "accent", "bad", "ok", "warn"} {
			for _, on := range []string{"bg", "card"} {
				if c := contrast(colors[ink], colors[on]); c < 4.5 {
					t.Errorf("%s: %s on %s has a contrast of %.2f", theme, ink, on, c)
				}
			}
		}
	}

	// Names as assistive programs hear them.
	unnamed := js[[]string](b, `[...document.querySelectorAll("button, select, a, canvas, table, dialog, section, [role=img]")].filter((e) => {
		const by = e.getAttribute("aria-labelledby");
		const label = e.getAttribute("aria-label") || (by && document.getElementById(by)?.textContent) || e.labels?.[0]?.textContent || (e.matches("button, a") ? e.textContent : "");
		return !label?.trim() && !e.closest("dialog table") && !e.closest("[role=img] *");
	}).map((e) => e.outerHTML.slice(0, 80))`)
	if len(unnamed) > 0 {
		t.Errorf("without a name:\n%s", strings.Join(unnamed, "\n"))
	}

	// The tabulator comes to every control, each shows that it is there, and a key works
	// it.
	all := js[[]string](b, `[...document.querySelectorAll("header button, header select, main button, #timeline")].filter((e) => !e.disabled && !e.hidden).map((e) => e.id)`)
	if len(all) < 12 {
		t.Fatalf("controls %q", all)
	}
	seen := make(map[string]bool)
	b.do(chromedp.Evaluate(`document.activeElement.blur()`, nil))
	for range 2 * len(all) {
		b.key(kb.Tab)
		at := js[[2]string](b, `[document.activeElement.id, getComputedStyle(document.activeElement).outlineStyle]`)
		if seen[at[0]] = true; at[0] != "" && at[1] == "none" {
			t.Errorf("%s has the focus, and nothing shows it", at[0])
		}
		if at[0] == "slow" && js[string](b, `document.activeElement.getAttribute("aria-pressed")`) == "false" {
			b.key(" ")
			b.until("slow steps by the blank key", `document.getElementById("slow").getAttribute("aria-pressed") === "true"`)
			b.key(kb.Enter)
			b.until("all steps by the enter key", `document.getElementById("slow").getAttribute("aria-pressed") === "false"`)
		}
	}
	for _, id := range all {
		if !seen[id] {
			t.Errorf("the tabulator does not come to %s", id)
		}
	}
	b.key("?")
	b.until("the list of keys", `document.getElementById("help").open`)
	b.key(kb.Escape)
	b.until("no list of keys", `!document.getElementById("help").open`)

	// What a mouse would hover over is said to who selects by keys.
	b.key("[")
	b.key(".")
	b.until("details of a span", fmt.Sprintf(`/queue delay [\d,-]+ ns/.test(document.getElementById("details").textContent) && %q === document.getElementById("details").getAttribute("aria-live")`, "polite"))
	b.clean()
}
