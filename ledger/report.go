package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lanetrace/lanetrace/spanring"
)

const mib = 1 << 20

// Report is m as text: the total and both kinds of slack, a line each; then up to
// topN call sites of at least minMiB MiB, largest first, and one line for the
// rest; then up to topN files, or modules of programs,
// largest first. It ends in a newline.
func (m *Memory) Report(topN, minMiB int) string {
	if m.State == spanring.AllocsNotTracked {
		return "device memory: not tracked\n"
	}
	t := &m.Totals
	if m.State == spanring.AllocsStale && t.ChunkBytes == 0 {
		return "device memory: not known, telemetry has been off from the start\n"
	}
	var b strings.Builder
	line := func(what string, bytes uint64, format string, args ...any) {
		fmt.Fprintf(&b, "%-16s%s  %s\n", what, size(bytes), fmt.Sprintf(format, args...))
	}
	line("device memory", t.LiveBytes, "in %s, peak %s", count(t.LiveCount, "allocation"), strings.TrimSpace(size(t.PeakBytes)))
	line("chunk slack", t.ChunkSlackBytes, "around allocations under %s, in the driver's chunks", chunkText(t.ChunkBytes))
	line("rounding slack", t.RoundingSlackBytes, "behind allocations of %s and more", chunkText(t.ChunkBytes))
	if t.GuardBytes > 0 {
		line("guard bands", t.GuardBytes, "behind the allocations, not counted in them")
	}
	if t.ArenaCount > 0 {
		line("arenas", t.ArenaBytes, "in %d, not counted above", t.ArenaCount)
	}
	if m.State == spanring.AllocsStale {
		b.WriteString("telemetry is off: this is as of the moment when it was switched off\n")
	}
	if m.Approximate {
		b.WriteString("approximate: allocations were made or freed while this was read\n")
	}
	for _, p := range []struct {
		n    uint64
		what string
	}{
		{t.Violations, "guard bands found changed"},
		{t.AllocsFailed, "allocations refused by the driver"},
		{t.FreesFailed, "frees refused by the driver"},
		{t.FreesUnknown, "frees of addresses not on the ledger"},
		{t.AllocsReplaced, "allocations at an address not freed through the backend before"},
	} {
		if p.n > 0 {
			fmt.Fprintf(&b, "%s: %d\n", p.what, p.n)
		}
	}
	m.sites(&b, max(topN, 0), int64(min(max(minMiB, 0), 1<<40))*mib)
	m.files(&b, max(topN, 0))
	return b.String()
}

func (m *Memory) sites(b *strings.Builder, topN int, least int64) {
	if len(m.Sites) == 0 && m.Totals.UnlistedCount == 0 {
		return
	}
	if least > 0 {
		fmt.Fprintf(b, "\ncall sites of %d MiB and more\n", least/mib)
	} else {
		b.WriteString("\ncall sites\n")
	}
	var rest SiteTotal
	others := 0
	for i, s := range m.Sites {
		if i < topN && s.Bytes >= least {
			row(b, s.Bytes, s.Count, s.Title())
			continue
		}
		rest.Bytes += s.Bytes
		rest.Count += s.Count
		others++
	}
	if others > 0 {
		row(b, rest.Bytes, rest.Count, count(uint64(others), "other call site"))
	}
	if m.Totals.UnlistedCount > 0 {
		row(b, int64(m.Totals.UnlistedBytes), int64(m.Totals.UnlistedCount), "call sites not known: the ring's table was full")
	}
}

func (m *Memory) files(b *strings.Builder, topN int) {
	if topN == 0 || len(m.Sites) == 0 {
		return
	}
	at := make(map[string]int)
	var files []SiteTotal
	for j := range m.Sites {
		s := &m.Sites[j]
		f, _ := s.File()
		i, ok := at[f]
		if !ok {
			i = len(files)
			at[f] = i
			files = append(files, SiteTotal{Site: f})
		}
		files[i].Bytes += s.Bytes
		files[i].Count += s.Count
	}
	slices.SortFunc(files, func(a, b SiteTotal) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Site, b.Site))
	})
	b.WriteString("\nfiles\n")
	for _, f := range files[:min(topN, len(files))] {
		row(b, f.Bytes, f.Count, f.Site)
	}
}

func row(b *strings.Builder, bytes, n int64, what string) {
	fmt.Fprintf(b, "%s %8d  %s\n", size(uint64(bytes)), n, printable(what))
}

// printable replaces what would move the cursor of a terminal: a call site can
// come from a hostile file.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '\ufffd'
		}
		return r
	}, s)
}

func size(bytes uint64) string {
	if bytes > 0 && bytes < mib {
		return fmt.Sprintf("%12.2f KiB", float64(bytes)/1024)
	}
	return fmt.Sprintf("%12.2f MiB", float64(bytes)/mib)
}

func chunkText(bytes uint64) string {
	switch {
	case bytes >= mib && bytes%mib == 0:
		return fmt.Sprintf("%d MiB", bytes/mib)
	case bytes%1024 == 0 && bytes > 0:
		return fmt.Sprintf("%d KiB", bytes/1024)
	}
	return "a chunk"
}

func count(n uint64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
