package launchtrace

// Report says how an execution of a region differs from the one before. A nil
// Report is that of nothing.
type Report struct {
	// Region is the region's name.
	Region string
	// Step and BeforeStep are the steps of both executions, 0 for none.
	Step, BeforeStep uint64
	// First: there was no execution to compare with.
	First bool
	// Before and After are the numbers of operations: Before - Removed + Inserted =
	// After, unless First.
	Before, After              int
	Inserted, Removed, Changed int
	// BeforeDropped and AfterDropped are how many operations of each were not
	// recorded, for want of memory, and are in none of the other numbers.
	BeforeDropped, AfterDropped uint64
	// Limited: after more than MaxEdits insertions and removals the rest is one
	// replaced block.
	Limited bool
	// Differences is how many details there would be: one for each operation
	// changed, inserted or removed, and one for a replaced block.
	Differences int
	// Details are the first of them, as many as were asked for.
	Details []Detail
}

// Detail is one difference.
type Detail struct {
	Kind EditKind
	// Before and After are where it is in each execution. Of an insertion Before,
	// and of a removal After, is where it would be.
	Before, After int
	// Removed and Inserted are how many operations it concerns on each side: one or
	// none, but for a replaced block.
	Removed, Inserted int
	// Old and New are the operations, nil where there is none, and of a block.
	Old, New *Op
	// OldSites and NewSites are, for each argument, the allocation that it lies in,
	// as site+offset, "" for none. They are nil where no argument lies in any.
	OldSites, NewSites []string
	// Args are the arguments of a change that differ, by number from 0. Where one
	// has more arguments, those are not among them.
	Args []ArgChange
}

// ArgChange is one argument that differs.
type ArgChange struct {
	Arg      int
	Old, New uint64
	// OldSite and NewSite are the allocations that they lie in, as site+offset, ""
	// for none.
	OldSite, NewSite string
}

// Delta is the new value less the old one, signed: from -18446744073709551615 to
// +18446744073709551615, "+0" for equal ones.
func (c *ArgChange) Delta() string { return delta(c.Old, c.New) }

// Differing is how many operations differ: inserted, removed or changed.
func (p *Report) Differing() int {
	if p == nil {
		return 0
	}
	return p.Inserted + p.Removed + p.Changed
}

// Partial reports whether operations of either execution were not recorded.
func (p *Report) Partial() bool { return p != nil && p.BeforeDropped+p.AfterDropped > 0 }

// first is the report of a first execution.
func first(t *Trace) *Report {
	return &Report{Region: t.region, Step: t.step, First: true, After: t.n, AfterDropped: t.dropped}
}

// Report makes a report with at most so many details, 0 for none and negative for
// all. It needs nothing of the executions afterwards.
func (s *Script) Report(details int) *Report {
	p := &Report{
		Region: s.after.region, Step: s.after.step, BeforeStep: s.before.step, Before: s.before.n, After: s.after.n,
		Inserted: s.inserted, Removed: s.removed, Changed: s.changed,
		BeforeDropped: s.before.dropped, AfterDropped: s.after.dropped, Limited: s.limited,
	}
	for _, e := range s.edits {
		if e.kind == EditReplace {
			p.Differences++
		} else {
			p.Differences += int(max(e.an, e.bn))
		}
	}
	if details < 0 || details > p.Differences {
		details = p.Differences
	}
	if details == 0 {
		return p
	}
	p.Details = make([]Detail, 0, details)
	for _, e := range s.edits {
		for i := range max(e.an, e.bn) {
			if len(p.Details) == details {
				return p
			}
			p.Details = append(p.Details, s.detail(e, i))
			if e.kind == EditReplace {
				break
			}
		}
	}
	return p
}

// detail is the i-th of an edit's differences.
func (s *Script) detail(e edit, i int32) Detail {
	d := Detail{Kind: e.kind, Before: int(e.a), After: int(e.b), Removed: int(e.an), Inserted: int(e.bn)}
	if e.kind == EditReplace {
		return d
	}
	if e.an > 0 {
		d.Before, d.Removed = int(e.a+i), 1
		d.Old, d.OldSites = s.before.shown(s.a[d.Before])
	}
	if e.bn > 0 {
		d.After, d.Inserted = int(e.b+i), 1
		d.New, d.NewSites = s.after.shown(s.b[d.After])
	}
	if e.kind != EditChange {
		return d
	}
	for i := range min(len(d.Old.Args), len(d.New.Args)) {
		x, y := d.Old.Args[i], d.New.Args[i]
		if !s.sameArg(x, y) {
			d.Args = append(d.Args, ArgChange{i, x, y, nth(d.OldSites, i), nth(d.NewSites, i)})
		}
	}
	return d
}

func nth(s []string, i int) string {
	if s == nil {
		return ""
	}
	return s[i]
}

// shown is an operation with the places that its arguments lie in.
func (t *Trace) shown(ref uint32) (*Op, []string) {
	o := t.op(t.ref(ref))
	var sites []string
	for i, a := range o.Args {
		if s := t.site(a); s != "" {
			if sites == nil {
				sites = make([]string, len(o.Args))
			}
			sites[i] = s
		}
	}
	return &o, sites
}
