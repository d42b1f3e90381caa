package top

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/report"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watched is a view of a synthetic engine that was read to its end, and the times
// of its unarmed lanes and of its kernels, by name.
func watched(t *testing.T, o synth.Options) (v *View, e *collector.Engine, lanes map[string][]float64, kernels map[string]float64, steps int) {
	t.Helper()
	v = New()
	lanes, kernels = make(map[string][]float64), make(map[string]float64)
	count := collector.ObserverFunc(func(s *collector.Step) {
		steps++
		for i := range s.Spans {
			sp := &s.Spans[i]
			if sp.Kind == spanring.KindLane && !s.Armed {
				lanes[sp.Text.Label] = append(lanes[sp.Text.Label], float64(sp.DurationNS()))
			} else if sp.Kind == spanring.KindKernel {
				kernels[sp.Text.Label] += float64(sp.DurationNS())
			}
		}
	})
	p, err := collector.NewProcessor(synth.New(o), collector.ProcessorOptions{Observers: []collector.Observer{v, count}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Drain(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return v, p.Engine(), lanes, kernels, steps
}

func exact(xs []float64, q float64) float64 {
	slices.Sort(xs)
	return xs[max(0, int(math.Ceil(q*float64(len(xs))))-1)]
}

func drawn(t *testing.T, v *View, f Frame) []string {
	t.Helper()
	var b bytes.Buffer
	if err := v.Draw(&b, f); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	if !strings.HasSuffix(text, "\n") || strings.ContainsAny(text, "\x1b\r\t") {
		t.Errorf("%q", text)
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if f.Height > 0 && len(lines) > f.Height {
		t.Errorf("%d lines, want %d at most:\n%s", len(lines), f.Height, text)
	}
	for _, l := range lines {
		if n := utf8.RuneCountInString(l); n > f.Width {
			t.Errorf("%d cells, want %d at most: %q", n, f.Width, l)
		}
	}
	return lines
}

// parseDuration reads what report.Duration wrote, in ns.
func parseDuration(t *testing.T, value, unit string) float64 {
	t.Helper()
	d, err := time.ParseDuration(strings.ReplaceAll(value, ",", "") + unit)
	if err != nil {
		t.Fatal(err)
	}
	return float64(d)
}

func TestDrawShowsTheLanesOfAnEngine(t *testing.T) {
	v, e, lanes, kernels, steps := watched(t, synth.Options{Duration: 4 * time.Second, Memory: true, Outlives: true})
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	lines := drawn(t, v, Frame{Engines: []*collector.Engine{e}, Width: 80, Height: 24, Now: at})
	text := strings.Join(lines, "\n")
	if lines[0] != "lanetrace top   1 engine   03:04:05" {
		t.Errorf("%q", lines[0])
	}
	// The run is over: its last, broken second is not among the full ones.
	f := strings.Fields(lines[3])
	if f[0] != e.Label() && !strings.HasPrefix(e.Label(), strings.Split(f[0], "…")[0]) || f[1] != "live" || f[2] != "lane" && f[2] != "kernel" {
		t.Errorf("%q", lines[3])
	}
	var rate float64
	if _, err := fmt.Sscan(f[3], &rate); err != nil || math.Abs(rate-float64(steps)/4) > float64(steps)/4*0.05 {
		t.Errorf("%s steps a second of %d in 4 s: %v", f[3], steps, err)
	}
	for name, xs := range lanes {
		var l string
		for _, line := range lines {
			if strings.HasPrefix(line, "  "+name+" ") {
				l = line
			}
		}
		f := strings.Fields(l)
		if len(f) < 10 {
			t.Errorf("lane %s: %q in\n%s", name, l, text)
			continue
		}
		for i, q := range []float64{0.5, 0.99, 0.5, 0.99} {
			got, want := parseDuration(t, f[1+2*i], f[2+2*i]), exact(xs, q)
			if math.Abs(got-want) > want*0.08 {
				t.Errorf("lane %s, p%v: %s %s, want %s", name, 100*q, f[1+2*i], f[2+2*i], report.Duration(want))
			}
		}
	}
	longest, most := "", 0.0
	for k, ns := range kernels {
		if ns > most {
			longest, most = k, ns
		}
	}
	i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "  KERNELS of armed steps") })
	if i < 0 || i+1 >= len(lines) || !strings.HasPrefix(strings.TrimSpace(lines[i+1]), longest[:min(len(longest), 20)]) {
		t.Errorf("want kernel %q on top in\n%s", longest, text)
	}
}

// Where lanes are left out to stay within their budget, what is shown of lanes is of
// those that were timed, and says so.
func TestDrawSaysThatLanesAreLeftOut(t *testing.T) {
	const said = "  timed are the lanes of 1 step in 4: SHARE and LANES/S are theirs"
	for _, every := range []int{0, 1, 4} {
		v, e, _, _, _ := watched(t, synth.Options{Duration: 2 * time.Second, Outlives: true, LaneEvery: every})
		for height := range 30 {
			lines := drawn(t, v, Frame{Engines: []*collector.Engine{e}, Width: 80, Height: height})
			if got := slices.Contains(lines, said); every != 4 && got || every == 4 && !got && height >= 12 {
				t.Errorf("one in %d, %d lines:\n%s", every, height, strings.Join(lines, "\n"))
			}
		}
	}
}

func TestDrawFitsWhateverThereIs(t *testing.T) {
	v, a, _, _, _ := watched(t, synth.Options{Duration: time.Second, Service: strings.Repeat("ß", 120)})
	es := []*collector.Engine{a}
	for range 40 {
		es = append(es, a)
	}
	for _, f := range []Frame{{Width: 80, Height: 24}, {Width: 40, Height: 5}, {Width: 200, Height: 60}, {Width: 80}} {
		for _, n := range []int{0, 1, 2, 5, 41} {
			f.Engines = es[:n]
			lines := drawn(t, v, f)
			if n == 0 && lines[2] != "No engine has a ring here yet." {
				t.Errorf("%q", lines)
			}
			if n == 41 && f.Height == 24 && !slices.Contains(lines, "and 33 more: a taller terminal, or --engine, shows them") {
				t.Errorf("%d engines in %d lines:\n%s", n, f.Height, strings.Join(lines, "\n"))
			}
		}
	}
}

func TestNamesAreBounded(t *testing.T) {
	e := &engine{lanes: make(map[string]int)}
	for i := range 100 {
		e.lane(fmt.Sprint("lane", i))
	}
	if len(e.names) != maxLanes+1 || e.names[maxLanes] != other || e.lane("lane99") != maxLanes || e.lane("lane3") != 3 {
		t.Errorf("%d lanes, the last %q", len(e.names), e.names[len(e.names)-1])
	}
	k := kernels{byName: make(map[string]kernelTime)}
	for i := range 3 * maxKernels {
		k.add(fmt.Sprint("kernel", i), 2)
	}
	if len(k.byName) != maxKernels+1 || k.byName[other] != (kernelTime{4 * maxKernels, 2 * maxKernels}) {
		t.Errorf("%d kernels, other %v", len(k.byName), k.byName[other])
	}
}

func TestBinsAreUsedAgain(t *testing.T) {
	e := &engine{lanes: make(map[string]int)}
	e.bin(100).steps = 7
	if e.bin(100).steps != 7 || e.bin(100+window).steps != 0 || e.bin(100) != nil {
		t.Error("a bin was not used again, or an old second found one")
	}
	now := e.half(10)
	now.add("k", 5)
	if e.half(11) == nil || e.half(10) != &e.kernels[1] || e.kernels[1].byName["k"].ns != 5 {
		t.Errorf("half minutes: %+v", e.kernels)
	}
}

func TestQuantilesOfHistogram(t *testing.T) {
	var h histogram
	for ns := uint64(1); ns <= 100_000; ns++ {
		h[bucket(ns)]++
	}
	for _, q := range []float64{0.01, 0.5, 0.99, 1} {
		if got, want := h.quantile(q), q*100_000; math.Abs(got-want) > want*0.035 {
			t.Errorf("q%v: %v, want %v", q, got, want)
		}
	}
	// What is longer than anything has a bucket, too.
	h = histogram{}
	h[bucket(math.MaxUint64)]++
	if got := h.quantile(0.5); got < 1<<42 {
		t.Errorf("the longest time is %v", got)
	}
	if got := new(histogram).quantile(0.5); got != 0 {
		t.Errorf("the median of nothing is %v", got)
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 999: "999 B", 1000: "0.98 KiB", 1 << 20: "1.00 MiB", 150 << 30: "150 GiB", 12345678: "11.8 MiB"} {
		if got := byteText(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
