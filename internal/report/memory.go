package report

import (
	"fmt"
	"strings"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// Entries implements [collector.Tap]: what the steps do not tell.
func (r *Run) Entries(en *collector.Engine, entries []spanring.Entry) {
	for i := range entries {
		w := &entries[i].Words
		if k := w.Kind(); k != spanring.KindAlloc && k != spanring.KindFree {
			continue
		}
		if e, err := w.MemEvent(); err == nil {
			r.memEvent(en, &e)
		}
	}
}

// MemoryText is the report on the run's device memory alone: the ledger's own,
// with up to Options.Top call sites of at least minMiB MiB, then what was found
// wrong.
func (r *Run) MemoryText(e *collector.Engine, minMiB int) string {
	var b strings.Builder
	r.header(&b, e)
	b.WriteByte('\n')
	m := e.Memory()
	b.WriteString(m.Report(r.o.Top, minMiB))
	if vs, n := e.Violations(); n > 0 {
		b.WriteString("\nchanged guard bands")
		if n > uint64(len(vs)) {
			fmt.Fprintf(&b, ", the last %d of %s", len(vs), Count(n))
		}
		b.WriteByte('\n')
		for i := range vs {
			for _, l := range violationText(&vs[i], r.o.Width-2) {
				b.WriteString(clip("  "+l, r.o.Width) + "\n")
			}
		}
	}
	if sites, all := r.sweptSites(); len(sites) > 0 {
		fmt.Fprintf(&b, "\nnever freed, swept at the end: %s in %s\n", mibs(uint64(all.Bytes)), Plural(uint64(all.Count), "allocation"))
		for _, s := range sites[:min(len(sites), r.o.Top)] {
			b.WriteString("  " + sweptText(&s, r.o.Width-2) + "\n")
		}
	}
	if leaks := r.leaks(e); len(leaks) > 0 {
		b.WriteString("\nsuspected leaks: call sites that did nothing but grow\n")
		for i := range leaks {
			b.WriteString("  " + leakText(&leaks[i], r.o.Width-2) + "\n")
		}
		if r.freesUnseen(e) {
			b.WriteString("what they freed before the oldest entry that was read is not known\n")
		}
	}
	return b.String()
}

// memoryTable is what the whole report says of memory: nothing where it is not
// tracked.
func (r *Run) memoryTable(b *strings.Builder, e *collector.Engine) {
	m := e.Memory()
	vs, n := e.Violations()
	if m.State == spanring.AllocsNotTracked && n == 0 {
		return
	}
	b.WriteString("\nMEMORY\n")
	line := func(s string) { b.WriteString(clip("  "+s, r.o.Width) + "\n") }
	t := &m.Totals
	switch {
	case m.State == spanring.AllocsNotTracked:
		line("not tracked")
	case t.ChunkBytes == 0:
		line("not known: telemetry has been off from the start")
	default:
		s := fmt.Sprintf("%s live, allocations: %s, peak: %s", mibs(t.LiveBytes), Count(t.LiveCount), mibs(t.PeakBytes))
		if m.State == spanring.AllocsStale {
			s += ", as of the fall to off"
		}
		line(s)
		line(fmt.Sprintf("chunk slack: %s, rounding slack: %s", mibs(t.ChunkSlackBytes), mibs(t.RoundingSlackBytes)))
		if t.ArenaCount > 0 {
			line(fmt.Sprintf("arenas: %s in %s, not counted above", mibs(t.ArenaBytes), Count(t.ArenaCount)))
		}
	}
	if n > 0 {
		line(fmt.Sprintf("guard bands found changed: %s; the last:", Count(n)))
		for _, l := range violationText(&vs[len(vs)-1], r.o.Width-4) {
			line("  " + l)
		}
	}
	if sites, all := r.sweptSites(); len(sites) > 0 {
		line(fmt.Sprintf("never freed, swept at the end: %s in %s; the most:", mibs(uint64(all.Bytes)), Plural(uint64(all.Count), "allocation")))
		line("  " + sweptText(&sites[0], r.o.Width-4))
	}
	leaks := r.leaks(e)
	for i := range leaks {
		const what = "suspected leak: "
		line(what + leakText(&leaks[i], r.o.Width-2-len(what)))
	}
}

func sweptText(s *ledger.SiteTotal, cells int) string {
	return siteLine(s.Site, fmt.Sprintf(": %s in %s", mibs(uint64(s.Bytes)), Plural(uint64(s.Count), "allocation")), cells)
}

// siteLine shortens a call site so that what is said of it has room, but for a
// site's end, which names the line.
func siteLine(site, says string, cells int) string {
	return clipMiddle(collector.SiteLabel(collector.CleanText(site)), max(cells-width(says), leastSite)) + says
}

const leastSite = 16

// violationText says which guard band was changed, and how.
func violationText(v *collector.Violation, cells int) [2]string {
	return [2]string{
		siteLine(v.Site.Text, fmt.Sprintf(", allocation %d, %s bytes", v.Index, Count(v.Bytes)), cells),
		fmt.Sprintf("  %s of its band's %s bytes, from %d to %d, the first is %#02x, not %#02x",
			Count(uint64(v.Changed)), Count(uint64(v.GuardBytes)), v.First, v.Last, v.Value, v.Fill),
	}
}

// leakText leaves out over how long it was before it shortens the call site.
func leakText(s *ledger.Suspect, cells int) string {
	says := fmt.Sprintf(": %s live, +%s/s", mibs(uint64(s.Bytes)), mibs(uint64(s.BytesPerSecond)))
	if over := " over " + Duration(float64(s.Over)); width(collector.SiteLabel(s.Site)+says+over) <= cells {
		says += over
	}
	return siteLine(s.Site, says, cells)
}

// mibs is bytes in MiB, or in a smaller unit below one.
func mibs(n uint64) string {
	if n < 1024 {
		return Count(n) + " B"
	}
	if n < 1<<20 {
		return fmt.Sprintf("%.2f KiB", float64(n)/1024)
	}
	return fmt.Sprintf("%.2f MiB", float64(n)/(1<<20))
}

var _ collector.Tap = (*Run)(nil)
