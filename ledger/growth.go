package ledger

import (
	"cmp"
	"slices"
	"time"
)

// GrowthOptions say what counts as a suspected leak. The zero value of a field is
// its default.
type GrowthOptions struct {
	// WarmUp is how long after the first observation nothing is judged: an engine
	// loads its model then. Default 2 min; negative: none.
	WarmUp time.Duration
	// Window is for how long a site has to do nothing but grow. Default 10 min.
	Window time.Duration
	// LeastBytes is by how much a site has to grow within the window. Default
	// 1 MiB.
	LeastBytes int64
}

// growthParts divides the window: a site has to grow in each part, so that one
// large allocation is no leak.
const growthParts = 4

// Growth watches call sites for leaks: a site whose live bytes, from one
// observation to the next, never fell for a whole window and rose in each quarter
// of it. It is fed by whoever looks at memory now and then, in the engine or
// outside; what a site frees and allocates again between two observations it does
// not see. It is not safe for concurrent use.
type Growth struct {
	warmUp, window int64
	least          int64
	begun          bool
	startNS        int64
	lastNS         int64
	sites          map[string]*growing
}

// growing is a site since it last fell.
type growing struct {
	bytes int64
	seen  bool
	// What was held when each of the last parts began, oldest first; the last one
	// has not ended.
	marks []mark
}

type mark struct {
	monoNS int64
	bytes  int64
}

// Suspect is a call site that only ever grows.
type Suspect struct {
	Site           string
	Bytes          int64         // live now
	Grown          int64         // by so much over
	Over           time.Duration // at least the window
	BytesPerSecond float64
}

// NewGrowth makes a watch.
func NewGrowth(o GrowthOptions) *Growth {
	if o.WarmUp == 0 {
		o.WarmUp = 2 * time.Minute
	}
	if o.Window <= 0 {
		o.Window = 10 * time.Minute
	}
	if o.LeastBytes == 0 {
		o.LeastBytes = mib
	}
	return &Growth{warmUp: int64(max(o.WarmUp, 0)), window: int64(o.Window), least: o.LeastBytes, sites: make(map[string]*growing)}
}

// Observe takes in what the sites hold at a time of any monotonic clock in ns. A
// site that is missing holds nothing. An observation that is no later than the one
// before counts for nothing. Not for approximate pictures: what one misses looks
// like a fall.
func (g *Growth) Observe(nowNS int64, sites []SiteTotal) {
	if !g.begun {
		g.begun, g.startNS = true, nowNS
	} else if nowNS <= g.lastNS {
		return
	}
	g.lastNS = nowNS
	if nowNS-g.startNS < g.warmUp {
		return
	}
	for _, s := range sites {
		w := g.sites[s.Site]
		if w == nil {
			w = &growing{}
			g.sites[s.Site] = w
		}
		w.observe(nowNS, s.Bytes, g.window/growthParts)
	}
	for text, w := range g.sites {
		if !w.seen {
			delete(g.sites, text) // it fell to nothing
		}
		w.seen = false
	}
}

func (w *growing) observe(nowNS, bytes, part int64) {
	w.seen = true
	n := len(w.marks)
	switch {
	case n == 0 || bytes < w.bytes:
		w.marks = append(w.marks[:0], mark{nowNS, bytes})
	case nowNS-w.marks[n-1].monoNS >= part:
		// A part has ended. One without growth ends the run.
		if bytes == w.marks[n-1].bytes {
			w.marks = append(w.marks[:0], mark{nowNS, bytes})
			break
		}
		if n > growthParts {
			w.marks = slices.Delete(w.marks, 0, 1)
		}
		w.marks = append(w.marks, mark{nowNS, bytes})
	}
	w.bytes = bytes
}

// Suspects are the sites that have only grown for a window, fastest first.
func (g *Growth) Suspects() []Suspect {
	var out []Suspect
	for text, w := range g.sites {
		n := len(w.marks)
		if n <= growthParts {
			continue
		}
		first, last := w.marks[n-1-growthParts], w.marks[n-1]
		grown, over := last.bytes-first.bytes, last.monoNS-first.monoNS
		if grown < g.least || over <= 0 {
			continue
		}
		out = append(out, Suspect{
			Site: text, Bytes: w.bytes, Grown: grown, Over: time.Duration(over),
			BytesPerSecond: float64(grown) / time.Duration(over).Seconds(),
		})
	}
	slices.SortFunc(out, func(a, b Suspect) int {
		return cmp.Or(cmp.Compare(b.BytesPerSecond, a.BytesPerSecond), cmp.Compare(a.Site, b.Site))
	})
	return out
}
