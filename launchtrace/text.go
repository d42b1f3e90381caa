package launchtrace

import (
	"fmt"
	"strconv"
	"strings"
)

// Text is the report for people: a line that sums it up, then a line for each
// detail. It ends in a line end and holds no control characters.
func (p *Report) Text() string {
	var b strings.Builder
	b.WriteString(p.Summary())
	b.WriteByte('\n')
	if p == nil {
		return b.String()
	}
	for i := range p.Details {
		b.WriteString("  " + p.Details[i].Text() + "\n")
	}
	if n := p.Differences - len(p.Details); n > 0 && len(p.Details) > 0 {
		fmt.Fprintf(&b, "  and %d more\n", n)
	}
	if p.Limited {
		fmt.Fprintf(&b, "  more than %d insertions and removals: what comes after them is one replaced block\n", MaxEdits)
	}
	if p.Partial() {
		fmt.Fprintf(&b, "  not recorded for want of memory, and not compared: the last %d operations before, the last %d after\n", p.BeforeDropped, p.AfterDropped)
	}
	return b.String()
}

// Summary is the report in one line.
func (p *Report) Summary() string {
	if p == nil {
		return "not recorded"
	}
	s := "region " + clean(p.Region)
	if p.Step != 0 {
		s += ", step " + strconv.FormatUint(p.Step, 10)
	}
	switch {
	case p.First:
		return fmt.Sprintf("%s: %d operations, the first execution, nothing to compare with", s, p.After)
	case p.BeforeStep != 0:
		s += " against step " + strconv.FormatUint(p.BeforeStep, 10)
	}
	if p.Differing() == 0 {
		return fmt.Sprintf("%s: %d operations before, %d after, no difference", s, p.Before, p.After)
	}
	return fmt.Sprintf("%s: %d operations before, %d after: %d inserted, %d removed, %d changed", s, p.Before, p.After, p.Inserted, p.Removed, p.Changed)
}

// Text is the difference in one line.
func (d *Detail) Text() string {
	switch d.Kind {
	case EditInsert:
		return fmt.Sprintf("inserted #%d %s: %s", d.After, opName(d.New), opText(d.New, d.NewSites))
	case EditRemove:
		return fmt.Sprintf("removed #%d %s: %s", d.Before, opName(d.Old), opText(d.Old, d.OldSites))
	case EditReplace:
		return fmt.Sprintf("replaced %s by %s", run(d.Before, d.Removed), run(d.After, d.Inserted))
	}
	place := "#" + strconv.Itoa(d.Before)
	if d.After != d.Before {
		place += " -> #" + strconv.Itoa(d.After)
	}
	return fmt.Sprintf("changed %s %s: %s", place, opName(d.New), d.changes())
}

func run(from, n int) string {
	switch n {
	case 0:
		return "nothing"
	case 1:
		return fmt.Sprintf("#%d", from)
	}
	return fmt.Sprintf("#%d to #%d (%d operations)", from, from+n-1, n)
}

func opName(o *Op) string {
	if n := clean(o.FuncName()); n != "" {
		return o.Kind.String() + " " + n
	}
	return o.Kind.String()
}

func dims(d [3]uint32) string { return fmt.Sprintf("(%d,%d,%d)", d[0], d[1], d[2]) }

// opText is everything about one operation.
func opText(o *Op, sites []string) string {
	var parts []string
	if o.Kind == KindKernel {
		parts = append(parts, "grid "+dims(o.Grid), "block "+dims(o.Block), fmt.Sprintf("shared %d", o.SharedBytes))
	}
	switch {
	case o.ArgsUnknown:
		parts = append(parts, "args unknown")
	case len(o.Args) == 0:
		parts = append(parts, "no args")
	}
	for i, a := range o.Args {
		s := fmt.Sprintf("arg%d %#x", i, a)
		if site := nth(sites, i); site != "" {
			s += " " + site
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, "; ")
}

// changes is what differs between two operations of one kind and function.
func (d *Detail) changes() string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	o, n := d.Old, d.New
	if o.Grid != n.Grid {
		add("grid %s -> %s", dims(o.Grid), dims(n.Grid))
	}
	if o.Block != n.Block {
		add("block %s -> %s", dims(o.Block), dims(n.Block))
	}
	if o.SharedBytes != n.SharedBytes {
		add("shared %d -> %d", o.SharedBytes, n.SharedBytes)
	}
	for i := range d.Args {
		parts = append(parts, d.Args[i].Text())
	}
	switch {
	case o.ArgsUnknown && n.ArgsUnknown:
		add("args unknown")
	case o.ArgsUnknown || n.ArgsUnknown || len(o.Args) != len(n.Args):
		add("%s -> %s", argCount(o), argCount(n))
		for i := min(len(o.Args), len(n.Args)); i < max(len(o.Args), len(n.Args)); i++ {
			if i < len(o.Args) {
				parts = append(parts, oneArg(i, o.Args[i], "", " -> none", nth(d.OldSites, i)))
			} else {
				parts = append(parts, oneArg(i, n.Args[i], "none -> ", "", nth(d.NewSites, i)))
			}
		}
	}
	return strings.Join(parts, "; ")
}

func argCount(o *Op) string {
	switch {
	case o.ArgsUnknown:
		return "args unknown"
	case len(o.Args) == 1:
		return "1 arg"
	}
	return fmt.Sprintf("%d args", len(o.Args))
}

func oneArg(i int, v uint64, before, after, site string) string {
	s := fmt.Sprintf("arg%d %s%#x%s", i, before, v, after)
	if site != "" {
		s += " " + site
	}
	return s
}

// Text is the argument as "arg2 0x10 -> 0x11 (+1)", with the allocations behind it.
func (c *ArgChange) Text() string {
	s := fmt.Sprintf("arg%d %#x -> %#x (%s)", c.Arg, c.Old, c.New, c.Delta())
	if c.OldSite != "" || c.NewSite != "" {
		s += " " + siteText(c.OldSite) + " -> " + siteText(c.NewSite)
	}
	return s
}

func siteText(s string) string {
	if s == "" {
		return "no allocation"
	}
	return s
}

// delta is y - x with its sign. It has 65 bits.
func delta(x, y uint64) string {
	if y >= x {
		return "+" + strconv.FormatUint(y-x, 10)
	}
	return "-" + strconv.FormatUint(x-y, 10)
}
