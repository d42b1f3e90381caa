package launchtrace

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// Region is a named part of an engine's steps, such as its decode. It keeps its
// last execution to compare the next one with. Its methods may be called from any
// goroutine, one after the other; a nil Region does nothing.
type Region struct {
	rec  *Recorder
	name string
	id   spanring.NameID

	mu sync.Mutex // held before the recorder's

	// While it records, guarded by the recorder's lock.
	recording bool
	streams   []uint64
	every     bool
	cur       *Trace

	// Guarded by mu. before is there from an End to the next Begin.
	before, after *Trace
	spare         []*Trace // empty ones
	misses        map[uint64]struct{}
	comparison    comparison // the last one, used again
	saidNS        int64      // when a difference was last logged, 0: never
	unsaid        int        // differences since that were not
}

// Region is the region of that name, made when there is none. It takes a lock;
// call it at start-up. Beyond Options.MaxRegions, and for an empty name, it is nil
// and counted as misuse.
func (r *Recorder) Region(name string) *Region {
	if r == nil {
		return nil
	}
	name = cutName(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	if g, ok := r.regions[name]; ok {
		return g
	}
	if name == "" || len(r.regions) >= r.o.MaxRegions {
		r.count(spanring.CtrMisuse, 1)
		return nil
	}
	g := &Region{rec: r, name: strings.Clone(name), misses: make(map[uint64]struct{})}
	if r.o.Ring != nil {
		g.id = r.o.Ring.Name(spanring.NameOther, g.name)
	}
	r.regions[g.name] = g
	return g
}

// covers reports whether operations on a stream belong to g, which records. The
// caller holds the recorder's lock.
func (g *Region) covers(stream uint64) bool {
	if g.every {
		return true
	}
	for _, s := range g.streams {
		if s == stream {
			return true
		}
	}
	return false
}

// Begin starts an execution: from now on what is enqueued on the streams belongs
// to it, or on every stream if none is named. One that is being recorded is given
// up and starts afresh.
func (g *Region) Begin(streams ...uint64) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.rec
	r.mu.Lock()
	defer r.mu.Unlock()
	r.release(g.before)
	g.retire(&g.before)
	g.streams = append(g.streams[:0], streams...)
	g.every = len(streams) == 0
	if g.recording {
		r.release(g.cur)
		return
	}
	if n := len(g.spare); n > 0 {
		g.cur, g.spare = g.spare[n-1], g.spare[:n-1]
	} else {
		g.cur = &Trace{region: g.name}
	}
	g.recording = true
	r.open = append(r.open, g)
	r.on.Store(uint32(len(r.open)))
}

// retire keeps an emptied trace for another execution.
func (g *Region) retire(t **Trace) {
	if *t != nil {
		g.spare = append(g.spare, *t)
		*t = nil
	}
}

// stop ends recording and returns what was recorded, nil if nothing was. The
// caller holds mu.
func (g *Region) stop() *Trace {
	r := g.rec
	r.mu.Lock()
	defer r.mu.Unlock()
	if !g.recording {
		return nil
	}
	t := g.cur
	g.recording, g.cur = false, nil
	t.texts, t.table = r.names.texts, &r.names
	if i := slices.Index(r.open, g); i >= 0 {
		r.open = slices.Delete(r.open, i, i+1)
	}
	r.on.Store(uint32(len(r.open)))
	return t
}

// End ends the execution, compares it with the one before, and keeps it in that
// one's place. step is the step that it belongs to, 0 for none; details is how
// many differences the report tells in full, 0 for none and negative for all. It
// is nil, and counted as misuse, for a region that was not begun.
//
// It blocks for the comparison, on no lock that a launch needs: about 16 ns for an
// operation that is equal, 80 ns where arguments are looked up. It allocates the report, and more where something
// differs.
func (g *Region) End(step uint64, details int) *Report {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.rec
	t := g.stop()
	if t == nil {
		r.count(spanring.CtrMisuse, 1)
		return nil
	}
	t.step = step
	if r.o.Resolve != nil {
		t.resolve(r.o.Resolve, g.misses)
	}
	var rep *Report
	if g.after == nil {
		rep = first(t)
	} else {
		g.comparison.diff(g.after, t, DiffOptions{BySite: r.o.BySite})
		rep = g.comparison.Report(details)
	}
	g.before, g.after = g.after, t
	g.publish(rep)
	if rep.Differing() > 0 && r.o.Logger != nil {
		g.say(rep, spanring.MonoNS())
	}
	return rep
}

// sayEveryNS is how much time passes between two lines of the log.
const sayEveryNS = int64(time.Second)

// say logs a difference, unless one has been not long ago.
func (g *Region) say(p *Report, nowNS int64) {
	if g.saidNS != 0 && nowNS-g.saidNS < sayEveryNS {
		g.unsaid++
		return
	}
	g.rec.o.Logger.LogAttrs(context.Background(), slog.LevelInfo, "lanetrace: a region differs from its last execution",
		slog.String("region", p.Region), slog.Uint64("step", p.Step), slog.Uint64("before_step", p.BeforeStep),
		slog.Int("before", p.Before), slog.Int("after", p.After),
		slog.Int("inserted", p.Inserted), slog.Int("removed", p.Removed), slog.Int("changed", p.Changed), slog.Int("left_out", g.unsaid))
	g.saidNS, g.unsaid = nowNS, 0
}

// publish tells the ring of a comparison, if it is to be told.
func (g *Region) publish(p *Report) {
	if !g.rec.publishes() {
		return
	}
	w := g.rec.o.Ring
	d := spanring.LaunchDiff{
		Region: g.id, Step: p.Step, MonoNS: spanring.MonoNS(), First: p.First, Partial: p.Partial(), Block: p.Limited,
		Before: uint32(p.Before), After: uint32(p.After),
		Inserted: uint32(p.Inserted), Removed: uint32(p.Removed), Changed: uint32(p.Changed),
	}
	e := d.Words()
	w.Append(&e)
	w.Add(spanring.CtrLaunchExecutions, 1)
	if n := p.Differing(); n > 0 {
		w.Add(spanring.CtrLaunchDiffs, 1)
		w.Add(spanring.CtrLaunchDiffOps, uint64(n))
	}
}

// Cancel gives up the execution that is being recorded, as of a step that failed.
// The next one is compared with the last that ended.
func (g *Region) Cancel() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drop(g.stop())
}

// Forget gives up every execution: the next one is the first.
func (g *Region) Forget() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drop(g.stop())
	g.drop(g.before)
	g.drop(g.after)
	g.before, g.after = nil, nil
}

func (g *Region) drop(t *Trace) {
	if t == nil {
		return
	}
	g.rec.mu.Lock()
	g.rec.release(t)
	g.rec.mu.Unlock()
	g.spare = append(g.spare, t)
}

// Executions are copies of the two executions that the last End compared, for
// Diff and for files. before is nil after the first one, and again from the next
// Begin on; after is nil when there was none. It allocates.
func (g *Region) Executions() (before, after *Trace) {
	if g == nil {
		return nil, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.before != nil {
		before = g.before.clone()
	}
	if g.after != nil {
		after = g.after.clone()
	}
	return before, after
}

// Name is the region's name.
func (g *Region) Name() string {
	if g == nil {
		return ""
	}
	return g.name
}
