package ledger

import (
	"context"
	"fmt"
	"log/slog"
)

// sweepSites is how many call sites a sweep's warning names.
const sweepSites = 5

// Leftover is what was never freed.
type Leftover struct {
	Allocations []Allocation // in order of creation
	Bytes       int64
	Sites       []SiteTotal // the five largest
}

// Drain takes everything off the ledger that is on it, for the driver to free.
// Arenas stay. While guard bands are being scanned it waits.
func (l *Ledger) Drain() Leftover {
	left, _ := l.drain(func(e *entry) bool { return e.kind != arena })
	return left
}

// DrainArenas takes the arenas' total back and returns them, for the driver to
// free: what a backend does when it is closed.
func (l *Ledger) DrainArenas() []Allocation {
	left, _ := l.drain(func(e *entry) bool { return e.kind == arena })
	return left.Allocations
}

func (l *Ledger) drain(want func(e *entry) bool) (left Leftover, taken []Taken) {
	if l == nil {
		return left, nil
	}
	l.bands.RLock()
	defer l.bands.RUnlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sweeping = true // the log says of these that nobody freed them
	defer func() { l.sweeping = false }()
	left.Allocations = l.live(want)
	sites := make(map[string]int)
	for _, a := range left.Allocations {
		left.Bytes += a.Bytes
		i, ok := sites[a.Site]
		if !ok {
			i = len(left.Sites)
			sites[a.Site] = i
			left.Sites = append(left.Sites, SiteTotal{Site: a.Site})
		}
		left.Sites[i].Bytes += a.Bytes
		left.Sites[i].Count++
		taken = append(taken, l.take(a.Addr))
	}
	sortSites(left.Sites)
	left.Sites = left.Sites[:min(sweepSites, len(left.Sites))]
	return left, taken
}

// Sweep frees everything on the ledger with free, which is the driver's, and
// returns how many allocations that were. If there were any it warns once, with
// their total and the five largest call sites. What the driver refuses to free is
// back on the ledger, and in the error.
func (l *Ledger) Sweep(free func(addr uint64) error) (n int, err error) {
	left, taken := l.drain(func(e *entry) bool { return e.kind != arena })
	if len(taken) == 0 {
		return 0, nil
	}
	refused := 0
	for _, t := range taken {
		e := free(t.e.addr)
		t.Done(e)
		if e != nil {
			if refused++; refused == 1 {
				err = e
			}
		}
	}
	if err != nil {
		err = fmt.Errorf("ledger: sweep: the driver refused %d of %s, the first: %w", refused, count(uint64(len(taken)), "free"), err)
	}
	attrs := []slog.Attr{slog.Int("allocations", len(taken)), slog.Int64("bytes", left.Bytes)}
	for i, s := range left.Sites {
		attrs = append(attrs, slog.String(fmt.Sprintf("site%d", i+1), fmt.Sprintf("%s: %d bytes in %s", s.Site, s.Bytes, count(uint64(s.Count), "allocation"))))
	}
	l.log.LogAttrs(context.Background(), slog.LevelWarn, "lanetrace: device memory was never freed", attrs...)
	return len(taken), err
}
