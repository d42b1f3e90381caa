package collector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lanetrace/lanetrace/spanring"
)

// Options say which rings a Collector reads and what becomes of their steps.
type Options struct {
	// Dir is the ring directory; it must exist. Required.
	Dir spanring.Dir
	// Processor is what becomes of each ring's steps. Label and Selector are the
	// collector's to set.
	Processor ProcessorOptions
	// NewSelector makes the selector of one engine. Default NewLiveSelector(LiveOptions{}).
	NewSelector func() Selector

	// Rescan is how often engines are looked at of which no file event tells, and the
	// directory where there are no file events. With them the directory is looked at
	// with each event and, should one be missing, after 20 times as long. Default
	// 250 ms.
	Rescan time.Duration
	// GPUWait is how long an engine that has neither written an entry nor opened a
	// GPU is waited for, because its label names the GPU. Default 60 s.
	GPUWait time.Duration
	// Linger is how long an engine that ended is still known and its series shown,
	// so that their last values are scraped. An engine that takes over its label
	// ends that earlier. Default 5 min.
	Linger time.Duration
	// Cursors, when not nil, are where runs' cursors are kept: a ring that was read
	// before is read on from there, and steps that are open at the end are left to
	// who reads on. Default none: every ring is read from its oldest entry.
	Cursors *Cursors
	// RemoveDead removes dead rings beyond the newest two, as starting producers do,
	// once they have been read and OnEnd has returned: engines that crash and are not
	// started again would otherwise leave their rings in memory for good. Default they
	// stay.
	RemoveDead bool
	// OnAttach, when not nil, is told of each engine before its entries are read,
	// OnEnd after they all were. They are called on different goroutines.
	OnAttach func(e *Engine)
	OnEnd    func(e *Engine)

	// Logger takes what happens: engines that come and go, rings that cannot be
	// read. Default discards.
	Logger *slog.Logger
}

// maxRings bounds how many rings are known at once, those that are refused or over
// and still there too.
const maxRings = 1024

// Collector reads every ring of a directory: those that are there and those that
// appear later, of engines that live and of engines that died before they were
// read. Its methods may be called from any goroutine.
type Collector struct {
	o   Options
	ins *Instruments

	mu    sync.Mutex
	rings map[string]*ring // by path
	overs int              // how many rings it was done with so far

	watchDir func() (*spanring.Watch, error) // the directory's; tests have others

	watch       *spanring.Watch // nil for none; of the scanning goroutine, as are these
	watchFails  bool
	listNext    time.Time // when the directory is looked at without an event
	listFailed  string    // why it cannot be listed
	removeFails bool
	full        bool // and rings are left that are not looked at
	swept       int  // overs when the dead rings were removed last
}

// ring is one ring file.
type ring struct {
	path    string
	refused bool // cannot be read; not tried again while the file is there

	src       Source // until proc
	resume    *Cursor
	openedAt  time.Time
	stillborn bool // the engine was dead when its ring was found

	proc    *Processor
	base    string // the label without its number
	label   string
	ended   bool // the processor has ended
	endedAt time.Time
	gone    bool // forgotten; only the path is kept, so that it is not read again
}

// New checks the directory and returns a Collector that does not run yet.
func New(o Options) (*Collector, error) {
	if err := o.Dir.CheckReadable(); err != nil {
		return nil, err
	}
	if o.NewSelector == nil {
		o.NewSelector = func() Selector { return NewLiveSelector(LiveOptions{}) }
	}
	if o.Rescan == 0 {
		o.Rescan = 250 * time.Millisecond
	}
	if o.GPUWait == 0 {
		o.GPUWait = 60 * time.Second
	}
	if o.Linger == 0 {
		o.Linger = 5 * time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Processor.Logger = cmp.Or(o.Processor.Logger, o.Logger)
	return &Collector{o: o, ins: o.Processor.Instruments, rings: make(map[string]*ring), watchDir: o.Dir.Watch}, nil
}

// Run attaches to every ring, also to those that appear later, and reads them
// until ctx ends. Then it reads what is there, closes open steps as incomplete
// and returns nil. A directory that cannot be listed for a while costs a warning:
// the rings that are mapped are read on. Run may be called once.
func (c *Collector) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		t := time.NewTicker(c.o.Rescan)
		defer t.Stop()
		for list := true; ; {
			c.scan(ctx, g, list)
			select {
			case <-ctx.Done():
				// Engines that came since, and may be gone again.
				c.scan(ctx, g, true)
				return c.unwatch()
			case <-t.C:
				list = c.due()
			case _, ok := <-c.events():
				if list = true; !ok {
					c.lostWatch()
				}
			}
		}
	})
	if k := c.o.Cursors; k != nil {
		g.Go(func() error {
			k.run(ctx)
			return nil
		})
	}
	err := g.Wait()
	if k := c.o.Cursors; k != nil {
		k.write() // where everything ended
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.rings {
		if r.src != nil && r.proc == nil {
			err = errors.Join(err, r.src.Close())
		}
	}
	return err
}

// scan looks at the engines and, if list says so, at the directory.
func (c *Collector) scan(ctx context.Context, g *errgroup.Group, list bool) {
	var paths []string
	if list {
		paths, list = c.list()
	}
	now := time.Now()
	c.mu.Lock()
	if list {
		c.look(paths, now)
	}
	c.forgetOld(now)
	attached := c.ready(now)
	for _, r := range attached {
		c.attach(r)
	}
	var over map[string]bool
	if c.o.RemoveDead && c.overs != c.swept {
		c.swept, over = c.overs, c.over()
	}
	c.mu.Unlock()
	if over != nil {
		c.removeDead(over)
	}
	for _, r := range attached {
		if r.proc != nil {
			c.read(ctx, g, r)
		}
	}
}

// over are the rings with which nothing is to be done any more, by path.
func (c *Collector) over() map[string]bool {
	over := make(map[string]bool)
	for p, r := range c.rings {
		if r.ended || r.gone || r.refused {
			over[p] = true
		}
	}
	return over
}

// removeDead removes dead rings that are over. It is called when another one is:
// asking for every lock again and again is not free.
func (c *Collector) removeDead(over map[string]bool) {
	n, err := c.o.Dir.RemoveDead(func(p string) bool { return over[p] })
	if n > 0 {
		c.o.Logger.Info("dead rings removed", "rings", n)
	}
	if (err != nil) != c.removeFails {
		c.removeFails = err != nil
		if err != nil {
			c.o.Logger.Warn("dead rings stay, and fill the memory that the ring directory is in", "reason", err.Error())
		}
	}
}

// look forgets the paths that are gone and opens new rings.
func (c *Collector) look(paths []string, now time.Time) {
	there := make(map[string]bool, len(paths))
	for _, p := range paths {
		there[p] = true
	}
	for p, r := range c.rings {
		if !there[p] && (r.refused || r.gone) {
			delete(c.rings, p)
		}
	}
	left := 0
	for _, p := range paths {
		switch {
		case c.rings[p] != nil:
		case len(c.rings) < maxRings:
			c.open(p, now)
		default:
			left++
		}
	}
	if left > 0 && !c.full {
		c.o.Logger.Warn("too many rings, the others wait until some are gone", "most", maxRings, "left", left)
	}
	c.full = left > 0
}

// forgetOld forgets engines that have lingered.
func (c *Collector) forgetOld(now time.Time) {
	for _, r := range c.rings {
		if r.ended && !r.gone && now.Sub(r.endedAt) >= c.o.Linger {
			c.forget(r)
		}
	}
}

// open maps a ring that was not seen before.
func (c *Collector) open(path string, now time.Time) {
	rd, err := spanring.Open(path, spanring.ReaderOptions{})
	if errors.Is(err, fs.ErrNotExist) {
		return // removed meanwhile
	}
	r := &ring{path: path, openedAt: now}
	c.rings[path] = r
	if err != nil {
		c.refuse(r, err)
		return
	}
	if rd = c.resume(r, rd); rd == nil {
		return
	}
	r.src = NewRingSource(rd)
	alive, err := r.src.Alive()
	r.stillborn = err == nil && !alive
}

// resume is a reader of r that begins where an earlier one left off, or rd if there
// was none; nil when the ring is refused.
func (c *Collector) resume(r *ring, rd *spanring.Reader) *spanring.Reader {
	if c.o.Cursors == nil {
		return rd
	}
	i, err := rd.Info()
	if err == nil {
		r.resume = c.o.Cursors.get(i.RunID, rd.Account().Published)
	}
	if err == nil && r.resume == nil {
		return rd
	}
	if err = errors.Join(err, rd.Close()); err == nil {
		rd, err = spanring.Open(r.path, spanring.ReaderOptions{FromSeq: r.resume.From})
	}
	if err != nil {
		c.refuse(r, err)
		return nil
	}
	return rd
}

// refuse gives a ring up for good, said and counted once.
func (c *Collector) refuse(r *ring, err error) {
	r.refused = true
	c.overs++
	c.ins.ringFailed(ringFailureOf(err))
	c.o.Logger.Warn("cannot read ring", "ring", filepath.Base(r.path), "reason", err.Error())
	if r.src != nil && r.proc == nil {
		r.src.Close()
		r.src = nil
	}
}

// ready are the rings that can be attached to now, in order of their engines'
// starts: their labels are known for good and free.
func (c *Collector) ready(now time.Time) []*ring {
	type candidate struct {
		*ring
		madeNS int64
	}
	var cs []candidate
	for _, r := range c.rings {
		if r.src == nil || r.proc != nil || r.refused {
			continue
		}
		i, err := r.src.Info()
		if err == nil {
			// A poll without room reads nothing but how much was published.
			_, _, err = r.src.Poll(nil)
		}
		if err != nil {
			c.refuse(r, err)
			continue
		}
		known := i.GPUUUID != "" || r.src.Account().Published > 0 || r.stillborn || i.Clean || now.Sub(r.openedAt) >= c.o.GPUWait
		r.base = EngineName(i)
		if known && !c.dyingNamesake(r.base) {
			cs = append(cs, candidate{r, i.CreatedUnixNS})
		}
	}
	slices.SortFunc(cs, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.madeNS, b.madeNS), strings.Compare(a.path, b.path))
	})
	// Behind one that is dead its namesakes wait, as they do for one that dies: found
	// together with it, the engine that lives would be the second of its name.
	out, dying := make([]*ring, 0, len(cs)), map[string]bool{}
	for _, x := range cs {
		if dying[x.base] {
			continue
		}
		out = append(out, x.ring)
		if alive, err := x.src.Alive(); err != nil || !alive {
			dying[x.base] = true
		}
	}
	return out
}

// dyingNamesake reports whether an engine of that name is dead and still being
// drained: its label will be free in a moment.
func (c *Collector) dyingNamesake(base string) bool {
	for _, r := range c.rings {
		if r.proc == nil || r.ended || r.base != base {
			continue
		}
		if alive, err := r.src.Alive(); err != nil || !alive {
			return true
		}
	}
	return false
}

// attach gives a ring its label and makes its processor.
func (c *Collector) attach(r *ring) {
	live := func(label string) bool {
		for _, o := range c.rings {
			if o.proc != nil && !o.ended && o.label == label {
				return true
			}
		}
		return false
	}
	r.label = r.base
	for n := 2; live(r.label); n++ {
		r.label = fmt.Sprintf("%s-%d", r.base, n)
	}
	for _, o := range c.rings {
		if o.proc != nil && o.ended && o.label == r.label {
			c.forget(o) // two runs must not share a series
		}
	}
	po := c.o.Processor
	po.Selector, po.Label = c.o.NewSelector(), r.label
	po.Resume = r.resume
	if k := c.o.Cursors; k != nil {
		i, err := r.src.Info()
		path, err2 := filepath.Abs(r.path)
		if errors.Join(err, err2) == nil {
			po.SaveCursor = func(c Cursor) { k.put(i.RunID, path, c) }
		}
	}
	p, err := NewProcessor(r.src, po)
	if err != nil {
		c.refuse(r, err)
		return
	}
	r.proc = p
}

// read starts the goroutine that reads a ring.
func (c *Collector) read(ctx context.Context, g *errgroup.Group, r *ring) {
	e := r.proc.engine
	i := e.Info()
	c.o.Logger.Info("engine attached", "engine", e.label, "run_id", e.runID.String(), "pid", i.PID, "level", LevelText(i.Level))
	if c.o.OnAttach != nil {
		c.o.OnAttach(e)
	}
	g.Go(func() error {
		err := r.proc.Run(ctx)
		c.end(r, err)
		return nil
	})
}

// end follows a processor's end.
func (c *Collector) end(r *ring, err error) {
	e := r.proc.engine
	state := e.State()
	if err != nil {
		c.ins.ringFailed(ringFailureOf(err))
		c.o.Logger.Warn("ring given up", "engine", e.label, "reason", err.Error())
	}
	if err := r.proc.Close(); err != nil {
		c.o.Logger.Warn("ring not closed cleanly", "engine", e.label, "reason", err.Error())
	}
	if c.o.OnEnd != nil {
		c.o.OnEnd(e)
	}
	if state != EngineLive {
		a := e.ReaderAccount()
		c.o.Logger.Info("engine "+state.String(), "engine", e.label, "run_id", e.runID.String(), "in_flight", len(e.Busy()), "entries_lost", a.Lost)
		// Of an engine that was found dead the end is news only where an earlier reader
		// left it alive.
		if !r.stillborn || r.resume != nil && !r.resume.Ended {
			c.ins.engineEnded(state)
		}
	}
	c.mu.Lock()
	r.ended, r.endedAt = true, time.Now()
	c.overs++
	c.mu.Unlock()
}

// forget ends the series of an engine that has ended.
func (c *Collector) forget(r *ring) {
	r.proc.Forget()
	r.gone, r.proc, r.src = true, nil, nil
}

// Engines are the runs known now, those that ended and still linger included, in
// order of label.
func (c *Collector) Engines() []*Engine {
	c.mu.Lock()
	var es []*Engine
	for _, r := range c.rings {
		if r.proc != nil {
			es = append(es, r.proc.engine)
		}
	}
	c.mu.Unlock()
	slices.SortFunc(es, func(a, b *Engine) int {
		return cmp.Or(strings.Compare(a.label, b.label), strings.Compare(a.runID.String(), b.runID.String()))
	})
	return es
}

// Accounts are the loss accounts of Engines.
func (c *Collector) Accounts() []Account {
	es := c.Engines()
	as := make([]Account, len(es))
	for i, e := range es {
		as[i] = e.Account()
	}
	return as
}
