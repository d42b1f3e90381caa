package report

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// A run is judged for leaks as a whole, from what is live at its end: its first
// quarter is warm-up. Of what a site made in each quarter of the rest, something
// has to be live still, and no entry may say that the site freed anything then.
// Of a ring only the last entries are there, of a recording all.
const (
	leakParts = 4
	leakLeast = 64 << 10    // less growth is no leak
	leakSpan  = time.Second // of a shorter run nothing is said
)

// survivor is an allocation that is live at the end.
type survivor struct {
	madeNS int64
	bytes  int64
}

// maxSwept bounds how many swept allocations are remembered one by one.
const maxSwept = 1 << 17

// memEvent remembers when a site last freed something, and what nobody freed: the
// engine's end swept that, and it counts as live at the end.
func (r *Run) memEvent(en *collector.Engine, e *spanring.MemEvent) {
	r.memoryNS = max(r.memoryNS, e.Alloc.MonoNS)
	if e.Kind == spanring.KindFree && e.Swept {
		if r.sweptCount++; r.sweptCount > maxSwept {
			return
		}
		site := "unknown"
		if n, ok := en.Source().Name(e.Alloc.Site); ok && n.Text != "" {
			site = n.Text
		}
		if r.swept == nil {
			r.swept = make(map[string][]survivor)
		}
		r.swept[site] = append(r.swept[site], survivor{e.Alloc.MonoNS, int64(e.Alloc.Bytes)})
		return
	}
	if e.Kind != spanring.KindFree || len(r.fell) >= maxNames {
		return
	}
	if r.fell == nil {
		r.fell = make(map[spanring.NameID]int64)
	}
	r.fell[e.Alloc.Site] = max(r.fell[e.Alloc.Site], e.Alloc.MonoNS)
}

// Ended implements [collector.Tap]: it keeps what is live at the end.
func (r *Run) Ended(e *collector.Engine) {
	src, ok := e.Source().(collector.AllocSource)
	if !ok {
		return
	}
	as, _, err := src.Allocs(nil)
	if err != nil {
		return
	}
	text := func(id spanring.NameID) string {
		if n, ok := e.Source().Name(id); ok && n.Text != "" {
			return n.Text
		}
		return "unknown"
	}
	r.survivors, r.fellAt = make(map[string][]survivor), make(map[string]int64)
	texts := make(map[spanring.NameID]string)
	for i := range as {
		a := &as[i]
		if _, ok := texts[a.Site]; !ok {
			texts[a.Site] = text(a.Site)
		}
		r.survivors[texts[a.Site]] = append(r.survivors[texts[a.Site]], survivor{a.MonoNS, int64(a.Bytes)})
		r.memoryNS = max(r.memoryNS, a.MonoNS)
		if r.oldestNS == 0 || a.MonoNS < r.oldestNS {
			r.oldestNS = a.MonoNS
		}
	}
	for site, s := range r.swept {
		r.survivors[site] = append(r.survivors[site], s...)
	}
	for id, ns := range r.fell {
		t := text(id)
		r.fellAt[t] = max(r.fellAt[t], ns)
	}
}

// leaks are the suspects, fastest first: within the run as it was read, and as the
// engine has been watched.
func (r *Run) leaks(e *collector.Engine) []ledger.Suspect {
	out := e.SuspectedLeaks()
	from, to := e.Info().CreatedMonoNS, max(r.lastNS, r.memoryNS)
	if r.o.Recorded {
		from = max(from, r.firstNS)
	} else if r.oldestNS != 0 {
		from = min(from, r.oldestNS) // the engine may have allocated before it had a ring
	}
	if !r.seen || to-from < int64(leakSpan) {
		return out
	}
	warm := from + (to-from)/4
	for site, made := range r.survivors {
		var parts [leakParts]int64
		held, grown := int64(0), int64(0)
		for _, s := range made {
			held += s.bytes
			if s.madeNS > warm {
				grown += s.bytes
				parts[(s.madeNS-warm)/((to-warm)/leakParts+1)] += s.bytes
			}
		}
		if slices.Min(parts[:]) == 0 || grown < leakLeast || r.fellAt[site] > warm ||
			slices.ContainsFunc(out, func(o ledger.Suspect) bool { return o.Site == site }) {
			continue
		}
		over := time.Duration(to - warm)
		out = append(out, ledger.Suspect{Site: site, Bytes: held, Grown: grown, Over: over, BytesPerSecond: float64(grown) / over.Seconds()})
	}
	slices.SortFunc(out, func(a, b ledger.Suspect) int {
		return cmp.Or(cmp.Compare(b.BytesPerSecond, a.BytesPerSecond), strings.Compare(a.Site, b.Site))
	})
	return out
}

// freesUnseen reports whether the engine may have freed something, in the time
// that leaks judges, of which the entries that were read do not tell.
func (r *Run) freesUnseen(e *collector.Engine) bool {
	a := e.ReaderAccount()
	return a.Lost > 0 || a.Missed > 0 && !r.o.Recorded
}

// sweptSites are the call sites whose allocations the engine's end swept, largest
// first.
func (r *Run) sweptSites() (sites []ledger.SiteTotal, all ledger.SiteTotal) {
	for site, made := range r.swept {
		t := ledger.SiteTotal{Site: site, Count: int64(len(made))}
		for _, s := range made {
			t.Bytes += s.bytes
		}
		all.Bytes += t.Bytes
		all.Count += t.Count
		sites = append(sites, t)
	}
	slices.SortFunc(sites, func(a, b ledger.SiteTotal) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), strings.Compare(a.Site, b.Site))
	})
	return sites, all
}
