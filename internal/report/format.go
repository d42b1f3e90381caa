package report

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Duration is ns with three significant digits and its unit: "312 ns",
// "4.31 µs", "43.1 ms", "431 s".
func Duration(ns float64) string {
	if ns < 0 {
		return "-" + Duration(-ns)
	}
	for _, u := range [...]struct {
		ns   float64
		name string
	}{{1, "ns"}, {1e3, "µs"}, {1e6, "ms"}, {1e9, "s"}} {
		v := ns / u.ns
		if u.name != "s" && v >= 999.5 {
			continue
		}
		switch {
		case u.ns == 1:
			return strconv.FormatFloat(v, 'f', 0, 64) + " ns"
		case v < 9.995:
			return strconv.FormatFloat(v, 'f', 2, 64) + " " + u.name
		case v < 99.95:
			return strconv.FormatFloat(v, 'f', 1, 64) + " " + u.name
		}
		return grouped(strconv.FormatFloat(v, 'f', 0, 64)) + " " + u.name
	}
	return "" // not reached
}

// ticks is a round number of ns without needless zeros: "0", "150 µs", "1.2 ms".
func ticks(ns int64, unitNS int64) string {
	if ns == 0 {
		return "0"
	}
	unit := map[int64]string{1: "ns", 1e3: "µs", 1e6: "ms", 1e9: "s"}[unitNS]
	return strconv.FormatFloat(float64(ns)/float64(unitNS), 'f', -1, 64) + " " + unit
}

// Count is n with its thousands set off by commas.
func Count(n uint64) string { return grouped(strconv.FormatUint(n, 10)) }

// Plural is how many there are of something that takes an s when it is not one.
func Plural(n uint64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return Count(n) + " " + what + "s"
}

func grouped(s string) string {
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// rate is a frequency with three significant digits or more.
func rate(v float64) string {
	switch {
	case v >= 99.95:
		return grouped(strconv.FormatFloat(v, 'f', 0, 64))
	case v >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// percent is a share, "-" when there is nothing to share.
func percent(part, whole float64) string {
	if whole <= 0 {
		return "-"
	}
	p := 100 * part / whole
	if p > 0 && p < 0.05 {
		return "<0.1 %"
	}
	return strconv.FormatFloat(p, 'f', 1, 64) + " %"
}

func width(s string) int { return utf8.RuneCountInString(s) }

// left and right pad s to n cells.
func left(s string, n int) string  { return s + spaces(n-width(s)) }
func right(s string, n int) string { return spaces(n-width(s)) + s }
func spaces(n int) string          { return strings.Repeat(" ", max(0, n)) }

// clip shortens s to n cells, ending in "…".
func clip(s string, n int) string {
	if width(s) <= n {
		return s
	}
	r := []rune(s)
	return string(r[:max(0, n-1)]) + "…"
}

// clipMiddle shortens s to n cells from its middle: names of kernels that belong
// together begin alike and end differently.
func clipMiddle(s string, n int) string {
	if width(s) <= n {
		return s
	}
	r := []rune(s)
	tail := max(0, n-1) / 2
	return string(r[:max(0, n-1-tail)]) + "…" + string(r[len(r)-tail:])
}

// table writes rows whose columns line up: the first column to the left, the
// others to the right. Long first columns are clipped so that a row stays within
// width.
func table(b *strings.Builder, indent string, maxWidth int, head []string, rows [][]string) {
	w := make([]int, len(head))
	for _, r := range append([][]string{head}, rows...) {
		for i, c := range r {
			w[i] = max(w[i], width(c))
		}
	}
	rest := 0
	for _, n := range w[1:] {
		rest += n + 2
	}
	w[0] = min(w[0], max(8, maxWidth-len(indent)-rest))
	// The first column takes up what is left, so that tables of one report line up.
	w[0] = max(w[0], min(30, maxWidth-len(indent)-rest))
	for i, r := range append([][]string{head}, rows...) {
		var line strings.Builder
		if i > 0 {
			line.WriteString(indent)
		}
		line.WriteString(left(clipMiddle(r[0], w[0]), w[0]))
		if i == 0 {
			line.WriteString(indent)
		}
		for j, c := range r[1:] {
			line.WriteString("  " + right(c, w[j+1]))
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}

func finite(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return v
}
