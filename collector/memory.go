package collector

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// AllocSource is a [Source] that knows its producer's live allocations too: a live
// ring, a recording. Of other sources memory is not tracked.
type AllocSource interface {
	// Allocs appends the live allocations to dst, as spanring.Reader.Allocs does. It
	// may be called while Poll runs.
	Allocs(dst []spanring.Alloc) ([]spanring.Alloc, spanring.AllocScan, error)
}

// memory is what is known of one engine's device memory.
type memory struct {
	mu     sync.Mutex
	growth *ledger.Growth
	every  int64 // ns between two looks at growth
	lookNS int64 // when growth was looked at last, of the source's time
	looked bool
	top    siteTop
	leaks  siteTop
}

func (m *memory) init(label string, topSites int, o ledger.GrowthOptions) {
	m.growth, m.every = ledger.NewGrowth(o), growthEvery.Nanoseconds()
	if o.Window > 0 {
		m.every = min(m.every, (o.Window / growthLooks).Nanoseconds())
	}
	attrs := func(site string) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(attribute.String(labelEngine, label), attribute.String(labelSite, site)))
	}
	m.top = siteTop{k: topSites, attrs: attrs, members: make(map[string]*topSite)}
	m.leaks = siteTop{k: topLeaks, attrs: attrs, members: make(map[string]*topSite)}
}

const (
	// DefaultTopSites is how many call sites of an engine have series of their own.
	DefaultTopSites = 50
	// topLeaks is how many suspected leaks of an engine do.
	topLeaks = 10
	// growthEvery is how often an engine's sites are looked at for growth; in a window
	// that is shorter than usual so often in all.
	growthEvery = 5 * time.Second
	growthLooks = 20
	// MaxViolations is how many violated guard bands of an engine are kept.
	MaxViolations = 64
)

// Memory is the engine's device memory, scanned now: of a full table that takes a
// millisecond or two. After the run's end it is that of its end. Not tracked is
// not the same as none.
func (e *Engine) Memory() ledger.Memory {
	return ask(e, func(k *known) *ledger.Memory { return &k.memory }, func() (ledger.Memory, error) {
		src, ok := e.src.(AllocSource)
		if !ok {
			return ledger.Memory{}, nil
		}
		as, s, err := src.Allocs(e.known.allocs[:0])
		if err != nil {
			return ledger.Memory{}, err
		}
		e.known.allocs = as
		m := ledger.FromRing(as, s, e.src.Name)
		e.known.labels.set(m.Sites)
		return m, nil
	})
}

// SuspectedLeaks are the call sites that did nothing but grow for a while, fastest
// first: see ledger.Growth.
func (e *Engine) SuspectedLeaks() []ledger.Suspect {
	e.mem.mu.Lock()
	defer e.mem.mu.Unlock()
	return e.mem.growth.Suspects()
}

// watchMemory looks at the engine's sites for growth, now and then. A picture that
// is not exact would look like a fall, so it is left out.
func (e *Engine) watchMemory(nowNS int64) {
	m := &e.mem
	m.mu.Lock()
	due := !m.looked || nowNS-m.lookNS >= m.every
	if due {
		m.looked, m.lookNS = true, nowNS
	}
	m.mu.Unlock()
	if !due {
		return
	}
	if _, ok := e.src.(AllocSource); !ok {
		return
	}
	mem := e.Memory()
	if mem.State != spanring.AllocsPublished || mem.Approximate {
		return
	}
	m.mu.Lock()
	m.growth.Observe(nowNS, mem.Sites)
	m.mu.Unlock()
}

// Violation is a guard band that was found changed.
type Violation struct {
	spanring.Violation
	// Site is the call site of the allocation, never nil.
	Site *Name
}

// Violations are the guard bands that were found changed, as far as their entries
// were received: the last MaxViolations, and how many there were in all.
func (e *Engine) Violations() (last []Violation, n uint64) {
	e.sum.mu.Lock()
	defer e.sum.mu.Unlock()
	return slices.Clone(e.sum.violations), e.sum.violated
}

// memEvent takes the entry of an allocation or a free. The table says what is
// live; the entry is only checked.
func (a *assembler) memEvent(w *spanring.Words) {
	if _, err := w.MemEvent(); err != nil {
		a.engine.sum.malformed++
	}
}

func (a *assembler) violation(w *spanring.Words) {
	v, err := w.Violation()
	if err != nil {
		a.engine.sum.malformed++
		return
	}
	s := &a.engine.sum
	s.violated++
	if len(s.violations) == MaxViolations {
		s.violations = slices.Delete(s.violations, 0, 1)
	}
	s.violations = append(s.violations, Violation{Violation: v, Site: a.names.get(v.Site)})
}

// memProblemCounters are the producer's counters behind memory.problems.
var memProblemCounters = []spanring.Counter{
	spanring.CtrAllocsFailed, spanring.CtrFreesFailed, spanring.CtrFreesUnknown, spanring.CtrAllocsUnlisted, spanring.CtrAllocsReplaced,
}

var memProblemReasons = func() (r []string) {
	for _, c := range memProblemCounters {
		r = append(r, c.String())
	}
	return r
}()

var slackKinds = []string{"chunk", "rounding"}

// observeMemory reports the engine's memory. The counters are there from the
// start; the gauges only while a ledger keeps them, since no figure is better than
// a wrong one.
func (e *Engine) observeMemory(o observation, c *spanring.Counters) {
	a := &e.attrs
	o.n(mMemAllocs, c[spanring.CtrAllocs], a.engine)
	o.n(mMemFrees, c[spanring.CtrFrees], a.engine)
	for i, ctr := range memProblemCounters {
		o.n(mMemProblems, c[ctr], a.memProblems[i])
	}
	o.n(mMemViolations, c[spanring.CtrViolations], a.engine)
	o.n(mMemScans, c[spanring.CtrRedzoneScans], a.engine)

	m := e.Memory()
	tracked := m.State == spanring.AllocsPublished
	o.n(mMemTracked, uint64(b2i(tracked)), a.engine)
	e.mem.mu.Lock()
	defer e.mem.mu.Unlock()
	if tracked {
		t := &m.Totals
		o.n(mMemLive, t.LiveBytes, a.engine)
		o.n(mMemPeak, t.PeakBytes, a.engine)
		o.n(mMemCount, t.LiveCount, a.engine)
		o.n(mMemGuard, t.GuardBytes, a.engine)
		o.n(mMemArenas, t.ArenaBytes, a.engine)
		o.n(mMemSlack, t.ChunkSlackBytes, a.slack[0])
		o.n(mMemSlack, t.RoundingSlackBytes, a.slack[1])
		for _, s := range e.mem.top.pick(m.Sites, int64(min(t.UnlistedBytes, math.MaxInt64))) {
			o.n(mMemSite, uint64(s.bytes), s.attrs)
		}
	}
	var leaks []ledger.SiteTotal
	for _, s := range e.mem.growth.Suspects() {
		leaks = append(leaks, ledger.SiteTotal{Site: s.Site, Label: SiteLabel(CleanText(s.Site)), Bytes: int64(min(s.BytesPerSecond, math.MaxInt64/2))})
	}
	for _, s := range e.mem.leaks.pick(leaks, 0) {
		o.f(mMemGrowth, float64(s.bytes), s.attrs)
	}
}

// siteTop gives the k largest call sites a series each and one to the others. A
// site keeps its series, at 0 too, until another one needs it that is clearly
// larger: so few series come and go.
type siteTop struct {
	k       int
	attrs   func(site string) metric.MeasurementOption
	members map[string]*topSite
	others  *topSite
}

type topSite struct {
	label string
	attrs metric.MeasurementOption
	bytes int64
}

// pick returns the series with their values now: members in order of label, then
// the others, to which rest is added.
func (t *siteTop) pick(sites []ledger.SiteTotal, rest int64) []*topSite {
	if t.others == nil {
		t.others = &topSite{label: other, attrs: t.attrs(other)}
	}
	t.others.bytes = rest
	for _, m := range t.members {
		m.bytes = 0
	}
	bytes := make(map[string]int64)
	for i := range sites {
		label := CutSite(CleanText(sites[i].Title()), MaxLabelBytes)
		switch m := t.members[label]; {
		case m != nil:
			m.bytes += sites[i].Bytes
		case label == other:
			t.others.bytes += sites[i].Bytes
		default:
			bytes[label] += sites[i].Bytes
		}
	}
	type candidate struct {
		label string
		bytes int64
	}
	var cs []candidate
	for l, b := range bytes {
		cs = append(cs, candidate{l, b})
	}
	slices.SortFunc(cs, func(a, b candidate) int { return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.label, b.label)) })
	for _, c := range cs {
		if !t.admit(c.label, c.bytes) {
			t.others.bytes += c.bytes
		}
	}
	out := slices.SortedFunc(maps.Values(t.members), func(a, b *topSite) int { return cmp.Compare(a.label, b.label) })
	return append(out, t.others)
}

// admit makes label a member if there is room, or a member that it clearly
// exceeds, whose bytes then are the others'.
func (t *siteTop) admit(label string, bytes int64) bool {
	if len(t.members) >= t.k {
		var weak *topSite
		for _, m := range t.members {
			if weak == nil || m.bytes < weak.bytes || m.bytes == weak.bytes && m.label > weak.label {
				weak = m
			}
		}
		if weak == nil || float64(bytes) <= rankMargin*float64(weak.bytes) {
			return false
		}
		delete(t.members, weak.label)
		t.others.bytes += weak.bytes
	}
	t.members[label] = &topSite{label: label, attrs: t.attrs(label), bytes: bytes}
	return true
}
