package main

import "github.com/lanetrace/lanetrace/collector"

// placing is one kernel whose words the host watched, beside its span.
type placing struct {
	phase               string
	startNS, endNS, unc int64
	seen
}

// sharpNS is how far apart the bounds of a launch's error may lie for it to be among
// the sharp ones: launching and ending take 3.5 µs together when the launch was
// queued and the host looked in time.
const sharpNS = 4_500

// earlyNS and lateNS are what the watched words say about the placement. The kernel
// writes the first word after the span's start, so that the start can't lie after the
// moment it was seen, whatever the bus and the host took: earlyNS is what is left,
// and under -unc the placement is beyond its uncertainty. The kernel ends behind a
// fence of the whole system, so that the end can't lie before the last look that did
// not see its last word, unless the word was still under way on the bus: lateNS is
// what is left, and under -unc the bus took longer, or the placement is beyond its
// uncertainty. The smaller both are, the sharper the witness.
func (p *placing) earlyNS() int64 { return p.FirstAt - p.startNS }
func (p *placing) lateNS() int64  { return p.endNS - p.LastBefore }

// violated: the placement is beyond its uncertainty, so far as the words can tell. A
// last word that was late for certain tells nothing; one that may have been late does,
// or a span that is placed too early would never be found.
func (p *placing) violated() bool {
	return p.earlyNS() < -p.unc || p.underWayNS() > 0 && !p.contradictory()
}

// underWayNS is how long the last word must have been under way after the kernel's
// end for the placement to be within its uncertainty; 0 mostly.
func (p *placing) underWayNS() int64 {
	if p.LastBefore == 0 {
		return 0
	}
	return max(0, -p.lateNS()-p.unc)
}

// beyondNS is by how much the placement is beyond its uncertainty; 0 mostly.
func (p *placing) beyondNS() int64 {
	if !p.violated() {
		return 0
	}
	return max(-p.earlyNS()-p.unc, p.underWayNS())
}

// contradictory: the words came into sight further apart than the whole span took by
// the GPU's own clock, so that the last one was under way for certain, wherever the
// span is placed.
func (p *placing) contradictory() bool {
	return p.LastBefore != 0 && p.LastBefore-p.FirstAt > p.endNS-p.startNS
}

// placings are the aligning launches of a plan. That each has its span is the join's
// to check.
func placings(plan []batch, spans map[spanOf]collector.Span) []placing {
	var out []placing
	for i := range plan {
		b := &plan[i]
		if b.Seen == nil {
			continue
		}
		sp, ok := spans[spanOf{b.Step, 1}]
		if !ok {
			continue
		}
		out = append(out, placing{b.Shape, sp.StartMonoNS, sp.EndMonoNS(), int64(sp.PlaceUncertaintyNS), *b.Seen})
	}
	return out
}
