package browser

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// linear is the light of a colour's part, of 0 to 255.
func linear(v float64) float64 {
	if v /= 255; v <= 0.04045 {
		return v / 12.92
	}
	return math.Pow((v+0.055)/1.055, 2.4)
}

// contrast is how far apart two colours are, as the rules for legible pages reckon it:
// 1 for the same, 21 for black and white.
func contrast(a, b [3]float64) float64 {
	light := func(c [3]float64) float64 { return 0.2126*linear(c[0]) + 0.7152*linear(c[1]) + 0.0722*linear(c[2]) }
	x, y := light(a), light(b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

// seenBy are what eyes without one kind of cones see of a colour, in linear light
// (Machado, Oliveira and Fernandes, 2009), and what others do.
var seenBy = map[string][9]float64{
	"all cones":       {1, 0, 0, 0, 1, 0, 0, 0, 1},
	"no long cones":   {0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998},
	"no middle cones": {0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.011820, 0.042940, 0.968881},
	"no short cones":  {1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.303900},
}

// lab is a colour as an eye sees it, in CIE L*a*b*.
func lab(c [3]float64, eye [9]float64) (out [3]float64) {
	for i, v := range c {
		c[i] = linear(v)
	}
	var s [3]float64
	for i := range s {
		s[i] = min(1, max(0, eye[3*i]*c[0]+eye[3*i+1]*c[1]+eye[3*i+2]*c[2]))
	}
	f := func(r, g, b, white float64) float64 {
		if v := (r*s[0] + g*s[1] + b*s[2]) / white; v > 0.008856 {
			return math.Cbrt(v)
		} else {
			return 7.787*v + 16.0/116
		}
	}
	x, y, z := f(0.4124, 0.3576, 0.1805, 0.9505), f(0.2126, 0.7152, 0.0722, 1), f(0.0193, 0.1192, 0.9505, 1.089)
	return [3]float64{116*y - 16, 500 * (x - y), 200 * (y - z)}
}

// The colours of names are told apart by all eyes, stand out from the card, and the text
// on each is legible.
func TestPalettes(t *testing.T) {
	addr, _ := start(t, "demo")
	b := newTab(t, "http://"+addr+"/")
	type named struct {
		Hex, Ink string
		RGB      [3]float64
	}
	palettes := later[map[string][]named](b, `import("/live/colors.js").then((m) => Object.fromEntries(Object.entries(m.palettes).map(([theme, p]) =>
		[theme, p.map((c) => ({ Hex: c, Ink: m.inkOn(c), RGB: [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16)) }))])))`)
	cards := map[string][3]float64{"light": {255, 255, 255}, "dark": {0x17, 0x1d, 0x24}}
	inks := map[string][3]float64{"#fff": {255, 255, 255}, "#000": {}}
	for theme, card := range cards {
		p := palettes[theme]
		if len(p) != 8 {
			t.Fatalf("%s has %d colours", theme, len(p))
		}
		for i, c := range p {
			if v := contrast(c.RGB, card); v < 3 {
				t.Errorf("%s: %s on its card has a contrast of %.2f", theme, c.Hex, v)
			}
			if v := contrast(c.RGB, inks[c.Ink]); v < 4.5 {
				t.Errorf("%s: text in %s on %s has a contrast of %.2f", theme, c.Ink, c.Hex, v)
			}
			for _, d := range p[:i] {
				for eye, m := range seenBy {
					x, y := lab(c.RGB, m), lab(d.RGB, m)
					if far := math.Hypot(math.Hypot(x[0]-y[0], x[1]-y[1]), x[2]-y[2]); far < 15 {
						t.Errorf("%s: %s and %s are %.0f apart with %s", theme, c.Hex, d.Hex, far, eye)
					}
				}
			}
		}
	}
	b.clean()
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
