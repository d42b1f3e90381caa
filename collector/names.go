package collector

import (
	"fmt"
	"hash/fnv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lanetrace/lanetrace/spanring"
)

// Name is a text of a producer's table, cleaned once where it enters. Names are
// shared by all spans that carry them and never change.
type Name struct {
	ID   spanring.NameID
	Kind spanring.NameKind
	// Text is the whole recorded name, valid UTF-8 without control characters.
	Text string
	// Label is Text short enough for a metric label: of a kernel KernelLabel, of
	// a call site SiteLabel, at most MaxLabelBytes, with a hash in it when it was cut.
	Label string
	// GraphID and GraphNodes are of a graph.
	GraphID    uint64
	GraphNodes uint32

	// Where the engine's summary counts the name, so that a span costs no look-up.
	// Guarded by the summary's lock.
	lane     *laneSummary
	ranked   *ranked
	rankedIn *topK
}

// String is the name's text; of nil it is "".
func (n *Name) String() string {
	if n == nil {
		return ""
	}
	return n.Text
}

// Title is what a span of that name is called where people read it: a kernel's
// label, of everything else the text. Of nil it is "".
func (n *Name) Title() string {
	if n != nil && n.Kind == spanring.NameKernel {
		return n.Label
	}
	return n.String()
}

// MaxLabelBytes is where a metric label is cut.
const MaxLabelBytes = 120

// maxNames and maxNameBytes bound the cache of one engine's names; beyond them it
// begins anew. A ring of the default size has room for 1 MiB of names.
const (
	maxNames     = 16384
	maxNameBytes = 8 << 20
)

// unnamed is what a span is called whose name is not in the table.
const unnamed = "unnamed"

// CleanText makes s fit for every exporter: invalid UTF-8 is replaced by U+FFFD,
// control characters (line ends among them) by blanks, and the ends are trimmed.
// It returns s itself when nothing needs changing.
func CleanText(s string) string {
	clean := true
	for _, r := range s {
		if r == utf8.RuneError || unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			clean = false
			break
		}
	}
	if clean {
		return strings.TrimSpace(s)
	}
	s = strings.ToValidUTF8(s, "\ufffd")
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, s)
	return strings.TrimSpace(s)
}

// CutText shortens s to at most n bytes (n at least 24) on a rune's boundary,
// ending in "…" and a hash of the whole, so that different texts stay different.
func CutText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	mark := cutMark(s)
	return headOf(s, n-len(mark)) + mark
}

// CutSite shortens a call site as CutText does, n at least 48, but in its middle:
// a path's end names file and line, a symbol's end what was asked for there.
func CutSite(s string, n int) string {
	if len(s) <= n {
		return s
	}
	mark := cutMark(s) + "…"
	room := n - len(mark)
	from := len(s) - (room - room/3)
	for from < len(s) && !utf8.RuneStart(s[from]) {
		from++
	}
	return headOf(s, room/3) + mark + s[from:]
}

func cutMark(s string) string {
	h := fnv.New32a()
	h.Write([]byte(s))
	return fmt.Sprintf("…%08x", h.Sum32())
}

// headOf is as many whole runes of s as fit into n bytes, fewer than it has.
func headOf(s string, n int) string {
	i := max(0, n)
	for i > 0 && !utf8.RuneStart(s[i]) {
		i--
	}
	return s[:i]
}

// names is one engine's cache of cleaned names.
type names struct {
	src     Source
	m       map[spanring.NameID]*Name
	bytes   int
	unnamed *Name
}

func newNames(src Source) *names {
	return &names{src: src, m: make(map[spanring.NameID]*Name), unnamed: &Name{Text: unnamed, Label: unnamed}}
}

// get looks id up. A text that cannot be had yields unnamed and is asked for
// again the next time: in a live ring a name always stands before its first use,
// but the table of a recording may come in parts.
func (n *names) get(id spanring.NameID) *Name {
	if nm, ok := n.m[id]; ok {
		return nm
	}
	raw, ok := n.src.Name(id)
	if !ok {
		return n.unnamed
	}
	if len(n.m) >= maxNames || n.bytes >= maxNameBytes {
		clear(n.m)
		n.bytes = 0
	}
	n.bytes += len(raw.Text)
	nm := &Name{ID: id, Kind: raw.Kind, Text: CleanText(raw.Text), GraphID: raw.GraphID, GraphNodes: raw.GraphNodes}
	switch {
	case nm.Text != "":
	case nm.Kind == spanring.NameGraph: // graphs seldom have a name of their own
		nm.Text = fmt.Sprintf("%d (%d nodes)", nm.GraphID, nm.GraphNodes)
	default:
		nm.Text = unnamed
	}
	switch nm.Kind {
	case spanring.NameKernel:
		nm.Label = CutText(KernelLabel(nm.Text), MaxLabelBytes)
	case spanring.NameSite:
		nm.Label = CutSite(SiteLabel(nm.Text), MaxLabelBytes)
	default:
		nm.Label = CutText(nm.Text, MaxLabelBytes)
	}
	n.m[id] = nm
	return nm
}
