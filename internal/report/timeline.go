package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// TimelineOptions say how a step is drawn.
type TimelineOptions struct {
	// Width is the width of the drawing in cells, from 60. Default 80.
	Width int
	// Kernels is how many rows of kernels a lane has at most; the others are drawn
	// together in one more. Default 8; negative: none.
	Kernels int
}

func (o TimelineOptions) withDefaults() TimelineOptions {
	if o.Width == 0 {
		o.Width = 80
	}
	o.Width = max(60, o.Width)
	if o.Kernels == 0 {
		o.Kernels = 8
	}
	return o
}

// interval is a stretch of time in ns from the drawing's left edge.
type interval struct{ from, to int64 }

// row is one line of the drawing.
type row struct {
	label string
	depth int
	lane  bool       // drawn with sharp edges, and with its queueing
	bars  []interval // in order of begin
	wait  []interval // from enqueue to start, of lanes
	marks []int64    // places of spans that failed
	value string     // at the right
	count int        // launches, of kernels
	rule  bool       // a heading
}

// Timeline draws a step: the host's part, and below it the lanes on the GPU's
// clock, kernels under the lane that they ran in, one row for each name. A column
// stands for the same round stretch of time everywhere.
func Timeline(s *collector.Step, o TimelineOptions) string {
	o = o.withDefaults()
	start, end := s.Bounds()
	rows := rowsOf(s, o, start)

	labelW, valueW := 8, 6
	for _, r := range rows {
		labelW = max(labelW, width(r.text(1<<10)))
		valueW = max(valueW, width(r.value))
	}
	labelW = min(labelW, max(24, o.Width*3/8))
	plot := o.Width - labelW - valueW - 3
	column := niceColumn(end-start, plot)

	var b strings.Builder
	b.WriteString(title(s, o.Width, end-start) + "\n")
	axis(&b, labelW+1, plot, column, end-start)
	shaded, waited, failed := false, false, false
	for _, r := range rows {
		if r.rule {
			b.WriteString(r.label + "\n")
			continue
		}
		line := left(r.text(labelW), labelW) + " " + left(r.draw(plot, column), plot) + "  " + right(r.value, valueW)
		b.WriteString(strings.TrimRight(line, " ") + "\n")
		shaded = shaded || !r.lane && len(r.bars) > 0
		waited = waited || strings.ContainsRune(line, waitCell)
		failed = failed || len(r.marks) > 0
	}
	b.WriteString(legend(o.Width, column, shaded, waited, failed) + "\n")
	return b.String()
}

// title is the line above the drawing.
func title(s *collector.Step, w int, lengthNS int64) string {
	parts := []string{"step " + Count(s.Number)}
	if s.Armed {
		parts = append(parts, "armed")
	}
	if s.Untimed {
		parts = append(parts, "lanes not timed")
	}
	if s.HasAttrs {
		a := &s.Attrs
		parts = append(parts, "batch "+Count(uint64(a.BatchSize)))
		if a.PrefillTokens > 0 {
			parts = append(parts, Count(uint64(a.PrefillTokens))+" prefill tokens")
		}
		if a.DecodeTokens > 0 {
			parts = append(parts, Count(uint64(a.DecodeTokens))+" decode tokens")
		}
		if a.GraphMode != spanring.GraphUnknown {
			parts = append(parts, a.GraphMode.String())
		}
	}
	if s.Incomplete != collector.Complete {
		parts = append(parts, "incomplete ("+s.Incomplete.String()+")")
	}
	if s.FailedCount > 0 {
		parts = append(parts, fmt.Sprintf("%d failed", s.FailedCount))
	}
	if s.Dropped > 0 {
		parts = append(parts, fmt.Sprintf("%d dropped", s.Dropped))
	}
	t, d := strings.Join(parts, ", "), Duration(float64(lengthNS))
	t = clip(t, w-width(d)-2)
	return t + spaces(w-width(t)-width(d)) + d
}

// legend says what the drawing's characters mean, in as many lines as it takes.
func legend(w int, column int64, shaded, waited, failed bool) string {
	parts := []string{"one column is " + ticks(column, unitOf(column))}
	if waited {
		parts = append(parts, string(waitCell)+" enqueued, not begun")
	}
	if shaded {
		parts = append(parts, "░▒▓█ share of a column")
	}
	if failed {
		parts = append(parts, string(failCell)+" failed")
	}
	text, line := "", ""
	for _, p := range parts {
		if line != "" && width(line)+2+width(p) > w {
			text, line = text+line+"\n", ""
		}
		if line != "" {
			line += "  "
		}
		line += p
	}
	return text + line
}

// niceColumn is the smallest round length of a column with which length fits into
// n of them.
func niceColumn(length int64, n int) int64 {
	least := (max(1, length)-1)/int64(n) + 1 // rounded up; no product that could overflow
	for num, den := int64(1), int64(100); ; {
		for _, m := range [...]int64{100, 125, 150, 200, 250, 300, 400, 500, 600, 800} {
			if c := m * num / den; m*num%den == 0 && c >= least {
				return c
			}
		}
		if den > 1 {
			den /= 10
		} else {
			num *= 10
		}
	}
}

// unitOf is the largest unit that ns is at least one of.
func unitOf(ns int64) int64 {
	unit := int64(1)
	for unit < 1e9 && ns >= unit*1000 {
		unit *= 1000
	}
	return unit
}

// axis draws the scale: a label at every tenth column.
func axis(b *strings.Builder, indent, plot int, column, length int64) {
	used := min(plot, int((length+column-1)/column))
	unit := unitOf(length)
	labels, line := []rune(spaces(plot+12)), []rune(spaces(plot))
	for c := range used {
		line[c] = '─'
	}
	for c := 0; c <= used && c < plot; c += 10 {
		line[c] = '┼'
		t := []rune(ticks(int64(c)*column, unit))
		if c+len(t) <= plot+8 {
			copy(labels[c:], t)
		}
	}
	if used > 0 {
		line[0] = '├'
	}
	// A tick stands at the left edge of its column, and so does the end.
	if used > 0 && used < plot {
		line[used] = '┤'
	}
	b.WriteString(strings.TrimRight(spaces(indent)+string(labels), " ") + "\n")
	b.WriteString(strings.TrimRight(spaces(indent)+string(line), " ") + "\n")
}

func (r *row) text(n int) string {
	pad := spaces(2 * r.depth)
	count := ""
	if r.count > 1 {
		count = fmt.Sprintf(" %d×", r.count)
	}
	return pad + clipMiddle(r.label, max(4, n-len(pad)-width(count))) + count
}

const (
	waitCell = '·'
	failCell = '×'
)

// draw fills the row's n cells.
func (r *row) draw(n int, column int64) string {
	cells := []rune(spaces(n))
	for _, w := range r.wait {
		for c := w.from / column; c <= (w.to-1)/column && c < int64(n); c++ {
			cells[max(0, c)] = waitCell
		}
	}
	bars := merged(r.bars, int64(n)*column)
	if r.lane {
		sharp(cells, bars, column)
	} else {
		shade(cells, bars, column)
	}
	for _, m := range r.marks {
		if c := m / column; c >= 0 && c < int64(n) {
			cells[c] = failCell
		}
	}
	return strings.TrimRight(string(cells), " ")
}

// merged joins intervals that touch or overlap. One of no length becomes 1 ns long,
// before endNS, so that it is seen.
func merged(in []interval, endNS int64) []interval {
	var out []interval
	for _, i := range in {
		i.from = min(i.from, endNS-1)
		i.to = max(i.to, i.from+1)
		if k := len(out) - 1; k >= 0 && i.from <= out[k].to {
			out[k].to = max(out[k].to, i.to)
			continue
		}
		out = append(out, i)
	}
	return out
}

// covered is how many of the ns from a to b lie in bars, which are merged.
func covered(bars []interval, a, b int64) (ns int64) {
	for _, i := range bars {
		if lo, hi := max(a, i.from), min(b, i.to); hi > lo {
			ns += hi - lo
		}
	}
	return ns
}

// sharp draws bars with edges on half columns. A bar too short for a half is
// drawn as the half that holds its middle.
func sharp(cells []rune, bars []interval, column int64) {
	half := make([]bool, 2*len(cells))
	for h := range half {
		a, b := int64(h)*column/2, int64(h+1)*column/2
		half[h] = 2*covered(bars, a, b) >= b-a && b > a
	}
	for _, i := range bars {
		seen := false
		lo, hi := max(0, 2*i.from/column), min(int64(len(half))-1, 2*(i.to-1)/column)
		for h := lo; h <= hi; h++ {
			seen = seen || half[h]
		}
		if m := (i.from + i.to) / column; !seen && m >= 0 && m < int64(len(half)) {
			half[m] = true
		}
	}
	for c := range cells {
		switch l, r := half[2*c], half[2*c+1]; {
		case l && r:
			cells[c] = '█'
		case l:
			cells[c] = '▌'
		case r:
			cells[c] = '▐'
		}
	}
}

// shade draws each cell as dark as the share of its time that bars cover.
func shade(cells []rune, bars []interval, column int64) {
	for c := range cells {
		ns := covered(bars, int64(c)*column, int64(c+1)*column)
		switch share := float64(ns) / float64(column); {
		case ns == 0:
		case share < 0.375:
			cells[c] = '░'
		case share < 0.625:
			cells[c] = '▒'
		case share < 0.875:
			cells[c] = '▓'
		default:
			cells[c] = '█'
		}
	}
}

// node is a row in the making: the spans of one name at one place in the tree of
// lanes.
type node struct {
	kind     spanring.Kind
	text     string
	context  uint8
	stream   uint16
	spans    []int
	children []*node
}

func (n *node) child(sp *collector.Span) *node {
	for _, c := range n.children {
		if c.kind == sp.Kind && c.text == sp.Text.Title() && c.context == sp.Context && c.stream == sp.Stream {
			return c
		}
	}
	c := &node{kind: sp.Kind, text: sp.Text.Title(), context: sp.Context, stream: sp.Stream}
	n.children = append(n.children, c)
	return c
}

// rowsOf puts a step's spans into rows.
func rowsOf(s *collector.Step, o TimelineOptions, start int64) (rows []row) {
	if s.HasEnd {
		rows = append(rows, row{
			label: "host", lane: true, value: Duration(float64(s.HostNS())),
			bars: []interval{{s.BeginMonoNS - start, s.EndMonoNS - start}},
		})
	}
	root := new(node)
	of := make([]*node, len(s.Spans)) // of lanes
	for i := range s.Spans {
		parent := root
		if p := s.ParentOf(i); p >= 0 {
			parent = of[p]
		}
		n := parent.child(&s.Spans[i])
		n.spans = append(n.spans, i)
		of[i] = n
	}
	type streamKey struct {
		context uint8
		stream  uint16
	}
	var streams []streamKey
	for _, n := range root.children {
		if k := (streamKey{n.context, n.stream}); !slices.Contains(streams, k) {
			streams = append(streams, k)
		}
	}
	slices.SortFunc(streams, func(a, b streamKey) int {
		return cmp.Or(cmp.Compare(a.context, b.context), cmp.Compare(a.stream, b.stream))
	})
	contexts := slices.ContainsFunc(streams, func(k streamKey) bool { return k.context != streams[0].context })
	for _, k := range streams {
		if len(streams) > 1 {
			label := fmt.Sprintf("stream %d", k.stream)
			if contexts {
				label = fmt.Sprintf("context %d, stream %d", k.context, k.stream)
			}
			rows = append(rows, row{label: label, rule: true})
		}
		var on []*node
		for _, n := range root.children {
			if n.context == k.context && n.stream == k.stream {
				on = append(on, n)
			}
		}
		rows = appendNodes(rows, s, o, start, on, 0)
	}
	for i := range s.Failed {
		f := &s.Failed[i]
		rows = append(rows, row{
			label: f.Text.Title() + " failed", value: f.Reason.String(), marks: []int64{f.EnqueueMonoNS - start},
		})
	}
	return rows
}

// appendNodes appends the rows of nodes at one depth: lanes with what is in them,
// and the longest kernels.
func appendNodes(rows []row, s *collector.Step, o TimelineOptions, start int64, nodes []*node, depth int) []row {
	nodes = slices.Clone(nodes)
	first := func(n *node) int64 {
		t := s.Spans[n.spans[0]].StartMonoNS
		for _, i := range n.spans {
			t = min(t, s.Spans[i].StartMonoNS)
		}
		return t
	}
	slices.SortStableFunc(nodes, func(a, b *node) int { return cmp.Compare(first(a), first(b)) })

	var kernels []*node
	for _, n := range nodes {
		if n.kind != spanring.KindLane {
			kernels = append(kernels, n)
		}
	}
	longest := slices.Clone(kernels)
	slices.SortStableFunc(longest, func(a, b *node) int { return cmp.Compare(total(s, b), total(s, a)) })
	shown := max(0, o.Kernels)
	if len(longest) == shown+1 && shown > 0 {
		shown++ // one left over takes a row in any case
	}
	rest := longest[min(shown, len(longest)):]

	for _, n := range nodes {
		if slices.Contains(rest, n) {
			continue
		}
		rows = append(rows, rowOf(s, start, depth, n.text, n.kind == spanring.KindLane, n))
		if len(n.children) > 0 {
			rows = appendNodes(rows, s, o, start, n.children, depth+1)
		}
	}
	if len(rest) > 0 && o.Kernels > 0 {
		rows = append(rows, rowOf(s, start, depth, fmt.Sprintf("%d other kernels", len(rest)), false, rest...))
	}
	return rows
}

func total(s *collector.Step, n *node) (ns uint64) {
	for _, i := range n.spans {
		ns += s.Spans[i].DurationNS()
	}
	return ns
}

func rowOf(s *collector.Step, start int64, depth int, label string, lane bool, nodes ...*node) row {
	r := row{label: label, depth: depth, lane: lane}
	var ns uint64
	for _, n := range nodes {
		ns += total(s, n)
		r.count += len(n.spans)
		for _, i := range n.spans {
			sp := &s.Spans[i]
			from := sp.StartMonoNS - start
			r.bars = append(r.bars, interval{from, from + int64(sp.DurationNS())})
			if lane && sp.LeadNS > 0 {
				r.wait = append(r.wait, interval{max(0, from-sp.LeadNS), from})
			}
		}
	}
	slices.SortFunc(r.bars, func(a, b interval) int { return cmp.Compare(a.from, b.from) })
	r.value = Duration(float64(ns))
	return r
}
