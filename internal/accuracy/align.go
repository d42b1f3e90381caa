package main

// placing is one kernel whose words the host watched, beside its span.
type placing struct {
	phase               string
	startNS, endNS, unc int64
	seen
}

// earlyNS and lateNS are what the watched words say about the placement, whatever
// the bus and the host took. The kernel writes the first word after the span's
// start, so that the start can't lie after the moment it was seen: earlyNS is what
// is left, and under -unc the placement is beyond its uncertainty. The kernel ends
// only when its last word is visible, so that the end can't lie before the last
// look that did not see it: lateNS is likewise. The smaller both are, the sharper
// the witness.
func (p *placing) earlyNS() int64 { return p.FirstAt - p.startNS }
func (p *placing) lateNS() int64  { return p.endNS - p.LastBefore }

// offNS is by how much the span's middle is off the middle of what was seen: its
// error, if launching and ending took as long on their ways.
func (p *placing) offNS() int64 { return (p.startNS+p.endNS)/2 - (p.FirstAt+p.LastAt)/2 }

func (p *placing) violated() bool {
	return p.earlyNS() < -p.unc || p.LastBefore != 0 && p.lateNS() < -p.unc
}

// placings are the aligning launches of a run.
func placings(r *result) []placing {
	var out []placing
	for i := range r.plan {
		b := &r.plan[i]
		if b.Seen == nil {
			continue
		}
		sp, ok := r.spans[spanOf{b.Step, 1}]
		if !ok {
			r.wrong = append(r.wrong, "a watched launch has no span")
			continue
		}
		out = append(out, placing{b.Shape, sp.StartMonoNS, sp.EndMonoNS(), int64(sp.PlaceUncertaintyNS), *b.Seen})
	}
	return out
}
