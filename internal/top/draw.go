package top

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/report"
	"github.com/lanetrace/lanetrace/spanring"
)

// Frame says what is drawn and how large.
type Frame struct {
	// Engines in the order in which they are drawn.
	Engines []*collector.Engine
	// Width and Height in cells. The layout needs 80 and 10: of a narrower frame the
	// right side is left out. A Height of 0 is as much as there is to say.
	Width, Height int
	// Now is shown in the first line.
	Now time.Time
	// None is said when there is no engine. Default "No engine has a ring here yet."
	None string
}

// The smallest layout.
const (
	minWidth  = 80
	minHeight = 10
)

// Draw writes one frame: at most Height lines of at most Width cells, each ended by
// a newline. There is no colour and no control sequence in it.
func (v *View) Draw(w io.Writer, f Frame) error {
	layout := f
	layout.Width = max(f.Width, minWidth)
	if f.Height > 0 {
		layout.Height = max(f.Height, minHeight)
	}
	v.mu.Lock()
	lines := v.lines(&layout)
	v.mu.Unlock()
	if f.Height > 0 && len(lines) > f.Height {
		lines = lines[:f.Height]
	}
	var b strings.Builder
	for _, l := range lines {
		if r := []rune(l); len(r) > f.Width {
			l = string(r[:f.Width])
		}
		b.WriteString(strings.TrimRight(l, " "))
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (v *View) lines(f *Frame) []string {
	noun := "engines"
	if len(f.Engines) == 1 {
		noun = "engine"
	}
	out := []string{fmt.Sprintf("lanetrace top   %d %s   %s", len(f.Engines), noun, f.Now.Format("15:04:05")), ""}
	if len(f.Engines) == 0 {
		return append(out, cmp.Or(f.None, "No engine has a ring here yet."))
	}
	name := max(20, f.Width-54)
	out = append(out, fmt.Sprintf("%-*s%-7s%-8s%9s%11s%11s%8s", name, "ENGINE", "STATE", "LEVEL", "STEPS/S", "LIVE", "SLACK", "DROPPED"))
	shown := f.Engines
	// Half of the frame at most is the list of engines.
	if most := f.Height/2 - len(out); f.Height > 0 && len(shown) > most {
		shown = shown[:max(1, most-1)]
	}
	for _, e := range shown {
		out = append(out, v.engineLine(e, name))
	}
	if n := len(f.Engines) - len(shown); n > 0 {
		out = append(out, fmt.Sprintf("and %d more: a taller terminal, or --engine, shows them", n))
	}
	// What is left of the frame is shared out evenly.
	for i, e := range shown {
		room := 1 << 20
		if f.Height > 0 {
			if room = (f.Height - len(out)) / (len(shown) - i); room < sectionLines {
				break
			}
		}
		out = append(out, v.section(e, f.Width, room)...)
	}
	return out
}

// sectionLines is the least that an engine's section needs: a blank line, its
// name with the heading of the lanes, and a lane.
const sectionLines = 3

func (v *View) engineLine(e *collector.Engine, width int) string {
	c := e.Counters()
	live, slack := "-", "-"
	if m := e.Memory(); m.State != spanring.AllocsNotTracked {
		t := m.Totals
		live, slack = byteText(t.LiveBytes), byteText(t.ChunkSlackBytes+t.RoundingSlackBytes)
		if m.State == spanring.AllocsStale {
			live, slack = "stale", "stale"
		}
	}
	rate := 0.0
	if h := v.engines[e]; h != nil {
		now := e.NowMonoNS() / int64(time.Second)
		from := max(now-nowSeconds, h.firstSecond())
		if now > from {
			_, _, steps, seconds := h.lanesOf(from, now-1)
			rate = float64(steps) / float64(seconds)
		}
	}
	return fmt.Sprintf("%-*s%-7s%-8s%9.1f%11s%11s%8d", width, cut(e.Label(), width-1), e.State(), collector.LevelText(e.Info().Level), rate, live, slack, c[spanring.CtrDropped])
}

// section is an engine's lanes and kernels in so many lines at the most.
func (v *View) section(e *collector.Engine, width, room int) []string {
	h := v.engines[e]
	name := width - 59
	out := []string{"", fmt.Sprintf("%-*s%10s%10s%10s%10s%8s%10s", name+1, cut(e.Label(), name), "NOW p50", "p99", "1 MIN p50", "p99", "SHARE", "LANES/S")}
	if h == nil || len(h.names) == 0 {
		return append(out, "no lane has landed yet")
	}
	sec := e.NowMonoNS() / int64(time.Second)
	first := h.firstSecond()
	now, _, _, _ := h.lanesOf(max(sec-nowSeconds, first), sec-1)
	minute, sums, _, seconds := h.lanesOf(max(sec-window, first), sec-1)
	seconds = max(seconds, 1)
	order := make([]int, len(h.names))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(sums[b], sums[a]) })
	ks := h.topKernels()
	// Kernels get what lanes leave, and at least a third if there are any.
	lanes := min(len(order), room-len(out))
	every := e.Info().LaneEvery
	if every > 1 && lanes > 1 {
		lanes = min(lanes, room-len(out)-1) // a line says so
	}
	if len(ks) > 0 && room >= 6 {
		lanes = min(lanes, max(1, room*2/3-len(out)))
	}
	for _, at := range order[:max(lanes, 0)] {
		out = append(out, fmt.Sprintf("  %-*s%10s%10s%10s%10s%8s%10.1f", name-1, cut(h.names[at], name-2),
			quantile(&now[at], 0.5), quantile(&now[at], 0.99), quantile(&minute[at], 0.5), quantile(&minute[at], 0.99),
			share(sums[at], uint64(seconds)*uint64(time.Second)), float64(minute[at].count())/float64(seconds)))
	}
	if every > 1 && len(out) < room {
		out = append(out, fmt.Sprintf("  timed are the lanes of 1 step in %s: SHARE and LANES/S are theirs", report.Count(uint64(every))))
	}
	if len(ks) == 0 || room-len(out) < 2 {
		return out
	}
	var all uint64
	for _, k := range ks {
		all += k.ns
	}
	kname := width - 31
	out = append(out, fmt.Sprintf("  %-*s%10s%10s%9s", kname, "KERNELS of armed steps, last minute", "MEAN", "COUNT", "SHARE"))
	for _, k := range ks[:min(len(ks), room-len(out))] {
		out = append(out, fmt.Sprintf("  %-*s%10s%10d%9s", kname, cut(k.name, kname-1), report.Duration(float64(k.ns)/float64(k.count)), k.count, share(k.ns, all)))
	}
	return out
}

type namedKernel struct {
	name string
	kernelTime
}

// topKernels are the kernels of the last half minute to minute, the longest in all
// first.
func (e *engine) topKernels() []namedKernel {
	sum := maps.Clone(e.kernels[0].byName)
	for n, t := range e.kernels[1].byName {
		s := sum[n]
		sum[n] = kernelTime{s.ns + t.ns, s.count + t.count}
	}
	out := make([]namedKernel, 0, len(sum))
	for n, t := range sum {
		out = append(out, namedKernel{n, t})
	}
	slices.SortFunc(out, func(a, b namedKernel) int {
		return cmp.Or(cmp.Compare(b.ns, a.ns), strings.Compare(a.name, b.name))
	})
	return out
}

func quantile(h *histogram, q float64) string {
	if h.count() == 0 {
		return "-"
	}
	return report.Duration(h.quantile(q))
}

func share(part, whole uint64) string {
	if whole == 0 {
		return "-"
	}
	return strconv.FormatFloat(100*float64(part)/float64(whole), 'f', 1, 64) + " %"
}

// byteText is n with three significant digits and its unit.
func byteText(n uint64) string {
	v, unit := float64(n), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v < 1000 {
			break
		}
		v, unit = v/1024, u
	}
	digits := 0
	if unit != "B" && v < 9.995 {
		digits = 2
	} else if unit != "B" && v < 99.95 {
		digits = 1
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + " " + unit
}

// cut is s in at most n cells, what is cut off in the middle shown as one.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	r := []rune(s)
	head := n * 2 / 3
	return string(r[:head]) + "…" + string(r[len(r)-(n-head-1):])
}
