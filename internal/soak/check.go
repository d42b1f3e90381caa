package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// result is one line of the table.
type result struct {
	what, want, got string
	ok              bool
}

// results print as a table.
type results []result

func (rs *results) add(ok bool, what, want, format string, args ...any) {
	*rs = append(*rs, result{what, want, fmt.Sprintf(format, args...), ok})
}

func (rs results) ok() bool {
	return !slices.ContainsFunc(rs, func(r result) bool { return !r.ok })
}

func (rs results) print(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "\tWHAT\tWANTED\tFOUND")
	for _, r := range rs {
		mark := "ok"
		if !r.ok {
			mark = "FAILED"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", mark, r.what, r.want, r.got)
	}
	return t.Flush()
}

// Being written at a kill: a thread of the engine has written an entry and not counted
// it, or the other way round. The engine has two that write, and one of them counts
// what it has read in batches.
const atKill = 64

// tally is what the accounts came to.
type tally struct {
	runs, killed    int
	wrong           []string
	inFlightOff     int64  // at kills: in flight by the counters, less pairs and steps in flight
	receivedOff     int64  // at kills: spans received, less spans landed and steps open
	lost, missed    uint64 // entries
	compared, whole int    // runs with an account, and those of which nothing was lost or missed
}

// check holds what an engine left against what the sidecar's account said last. a is
// nil for a run that no sidecar saw to its end.
func (t *tally) check(f *final, a *collector.Account) {
	wrong := func(format string, args ...any) {
		t.wrong = append(t.wrong, fmt.Sprintf("%s %.8s: ", f.service, f.run)+fmt.Sprintf(format, args...))
	}
	t.runs++
	c := &f.counters
	open := int64(c[spanring.CtrStepsBegun]) - int64(c[spanring.CtrStepsEnded])
	if f.killed {
		t.killed++
		off := c.InFlight() - int64(f.busy) - open
		t.inFlightOff = widest(t.inFlightOff, off)
		if off > atKill || off < -atKill {
			wrong("%d in flight by the counters, %d pairs and %d steps are", c.InFlight(), f.busy, open)
		}
	} else if c.InFlight() != 0 || f.busy != 0 || open != 0 {
		wrong("ended with %d in flight, %d pairs, %d steps", c.InFlight(), f.busy, open)
	}
	if a == nil {
		return
	}
	t.compared++
	t.lost += a.Reader.Lost
	t.missed += a.Reader.MissedBeforeAttach
	for _, line := range a.Unbalanced() {
		wrong("the account's line of the %s does not balance: %+v", line, *a)
	}
	if a.Reader.Published != f.published || a.Reader.Pending != 0 {
		wrong("published %d, the account says %d with %d pending", f.published, a.Reader.Published, a.Reader.Pending)
	}
	if a.Producer.Begun != c[spanring.CtrBegun] || a.Producer.Landed != c[spanring.CtrLanded] {
		wrong("begun %d and landed %d, the account says %d and %d", c[spanring.CtrBegun], c[spanring.CtrLanded], a.Producer.Begun, a.Producer.Landed)
	}
	// What was received is what landed, where nothing was lost.
	holes := a.Reader.LostBy["hole"]
	if f.killed && a.Reader.Lost == holes && a.Reader.MissedBeforeAttach == 0 {
		t.whole++
		off := int64(a.Sidecar.Received) - int64(c[spanring.CtrLanded]) - open
		t.receivedOff = widest(t.receivedOff, off)
		if off > atKill || off < -atKill {
			wrong("killed, received %d, landed %d, %d steps open", a.Sidecar.Received, c[spanring.CtrLanded], open)
		}
	}
	if !f.killed && a.Reader.Lost == 0 && a.Reader.MissedBeforeAttach == 0 {
		t.whole++
		if a.Sidecar.Received != c[spanring.CtrLanded] {
			wrong("received %d, landed %d", a.Sidecar.Received, c[spanring.CtrLanded])
		}
	}
}

// widest is the one further from 0.
func widest(a, b int64) int64 {
	if max(b, -b) > max(a, -a) {
		return b
	}
	return a
}

// times are what calls took in each window, in ns.
type times struct{ p50, p99, p999 []int64 }

func (t *times) add(w window) {
	t.p50, t.p99, t.p999 = append(t.p50, w.P50NS), append(t.p99, w.P99NS), append(t.p999, w.P999NS)
}

// spread is the median and the range of some figures.
type spread struct{ lo, mid, hi int64 }

func spreadOf(v []int64) (s spread) {
	if len(v) == 0 {
		return s
	}
	v = slices.Clone(v)
	slices.Sort(v)
	return spread{v[0], v[len(v)/2], v[len(v)-1]}
}

func (s spread) String() string {
	return fmt.Sprintf("%s [%s to %s]", micros(s.mid), micros(s.lo), micros(s.hi))
}

func micros(ns int64) string { return fmt.Sprintf("%.2f µs", float64(ns)/1000) }

// alike reports whether two medians are no further apart than the figures of either are
// from each other, or than two of the histogram's buckets.
func alike(a, b spread) bool {
	return max(a.mid-b.mid, b.mid-a.mid) <= max(a.hi-a.lo, b.hi-b.lo, a.mid/16)
}

// judgedRounds is how many turns without and with a sidecar tell noise from a difference:
// of simulated calls, equal in both, one quantile in 300 differed by chance, and one in
// 60 with a round less.
const judgedRounds = 5

// latencies compares the engines' calls without and with a sidecar. Few rounds tell no
// more than that calls do not take twice as long; the tail of a busy machine's calls
// not even that.
func latencies(rs *results, rounds int, without, with *times) {
	for _, q := range []struct {
		name    string
		without []int64
		with    []int64
	}{{"p50", without.p50, with.p50}, {"p99", without.p99, with.p99}, {"p99.9", without.p999, with.p999}} {
		a, b := spreadOf(q.without), spreadOf(q.with)
		ok, want := alike(a, b), "alike within the windows' noise"
		switch {
		case rounds >= judgedRounds:
		case q.name == "p50":
			ok, want = ok || b.mid <= 2*a.mid, "at most twice as long"
		default:
			ok, want = true, fmt.Sprintf("shown; judged from %d rounds on", judgedRounds)
		}
		rs.add(ok, "a lane's calls, "+q.name, want, "%s without, %s with a sidecar", a, b)
	}
}

// Bounds of what a sidecar may hold.
const (
	maxAnonKiB    = 40 << 10 // as it mostly is
	maxPeakKiB    = 48 << 10 // with a queue full of what the receiver or the disk does not take
	anonGrowthKiB = 8 << 10
	fdGrowth      = 8
	routineGrowth = 12

	warm    = 10 * time.Second // from 6 MiB at its start to 20 takes it two, on an idle machine
	watched = 30 * time.Second // beyond that; memory saws as the queues fill and empty
)

// memory looks at what every sidecar held while it lived, and whether the one that lived
// longest went on growing once it was warm: the first third of that time is compared
// with the last.
func memory(rs *results, lives [][]held) {
	mib := func(kib int) string { return fmt.Sprintf("%.1f MiB", float64(kib)/1024) }
	typical, most := 0, 0
	var longest []held
	for _, l := range lives {
		if len(l) == 0 {
			continue // killed before it was looked at
		}
		typical = max(typical, middle(l))
		most = max(most, slices.MaxFunc(l, func(a, b held) int { return cmp.Compare(a.kib, b.kib) }).kib)
		if longest == nil || l[len(l)-1].age > longest[len(longest)-1].age {
			longest = l
		}
	}
	rs.add(longest != nil && typical <= maxAnonKiB && most <= maxPeakKiB, "a sidecar's RssAnon", "mostly under "+mib(maxAnonKiB)+", peaks under "+mib(maxPeakKiB),
		"%s, %s at most; %d were looked at", mib(typical), mib(most), len(lives))

	const what = "its RssAnon once it is warm"
	var age time.Duration
	if longest != nil {
		age = longest[len(longest)-1].age
	}
	if age < warm+watched {
		rs.add(true, what, "shown; judged from "+(warm+watched).String()+" on", "none was watched for longer than %v", age.Round(time.Second))
		return
	}
	third := (age - warm) / 3
	early := slices.DeleteFunc(slices.Clone(longest), func(h held) bool { return h.age < warm || h.age > warm+third })
	late := slices.DeleteFunc(slices.Clone(longest), func(h held) bool { return h.age < age-third })
	if len(early) == 0 {
		rs.add(false, what, "flat", "was not to be seen between %v and %v", warm, warm+third)
		return
	}
	from, to := middle(early), middle(late)
	rs.add(to <= from+anonGrowthKiB, what, "flat", "%s in the first third of %v, %s in the last", mib(from), (age - warm).Round(time.Second), mib(to))
}

// flat compares what a sidecar had open at first and at last.
func flat(rs *results, first, last resources) {
	rs.add(last.goroutines <= first.goroutines+routineGrowth, "the sidecar's goroutines", "no more", "%d at first, %d at last", first.goroutines, last.goroutines)
	rs.add(last.fds <= first.fds+fdGrowth, "the sidecar's descriptors", "no more", "%d at first, %d at last", first.fds, last.fds)
}

// middle is the median.
func middle(v []held) int {
	v = slices.Clone(v)
	slices.SortFunc(v, func(a, b held) int { return cmp.Compare(a.kib, b.kib) })
	return v[len(v)/2].kib
}

// print says what went wrong, a line each, the first of many.
func (t *tally) print(out io.Writer) {
	const most = 20
	slices.SortFunc(t.wrong, cmp.Compare[string])
	for i, w := range t.wrong {
		if i == most {
			fmt.Fprintf(out, "and %d more\n", len(t.wrong)-most)
			return
		}
		fmt.Fprintln(out, strings.TrimSpace(w))
	}
}
