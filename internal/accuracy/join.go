package main

import (
	"fmt"
	"slices"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// sample is one span beside what CUPTI says of the same work, if it was there.
type sample struct {
	row
	run                           string
	stream                        int
	witness                       bool
	cuptiNS                       int64 // a kernel's time; of a graph or lane from the first start to the last end
	rawNS                         int64
	corrNS                        int64
	uncNS                         int64
	takenNS                       int64 // what was taken off
	wholeNS                       int64 // the constant of its process
	gap                           spanring.Gap
	startNS, leadNS, cuptiStartNS int64
	plugged                       bool
	fromEnd                       int // how many pairs of its batch follow
}

// errNS is by how much the published time is off CUPTI's.
func (s *sample) errNS() int64 { return s.corrNS - s.cuptiNS }

// excessNS is what the pair measures beyond the work.
func (s *sample) excessNS() int64 { return s.rawNS - s.cuptiNS }

const (
	// farNS is how far a span's end may lie off its record's, next to the other
	// spans of its batch, to count as joined in time.
	farNS = 50_000
	// farShare is how many may lie further: a thread can lose its core between a
	// launch and the record behind it.
	farShare = 0.02
)

// join puts the spans of a run beside the records of the same launches. Everything
// that an engine enqueued is on one stream at a time and waited for, so the plan's
// order is the order of the records' starts. It is checked that each record is of
// the planned kind and name (or number of bytes), that none is left over, that
// correlation ids, which CUPTI gives out at the driver call, come in the same
// order, and that spans and records of queued work agree in time beside their
// neighbours. With an error come the samples before it.
func join(r *result) ([]sample, error) {
	rest := slices.DeleteFunc(slices.Clone(r.records), func(x record) bool { return x.Name == otherName })
	if r.Witness {
		at := -1
		for i := range rest {
			if rest[i].Kind == opKernel && rest[i].Name == beginName {
				if at >= 0 {
					return nil, fmt.Errorf("%s: two records of %s", r.Name, beginName)
				}
				at = i
			}
		}
		if at < 0 {
			return nil, fmt.Errorf("%s: no record of %s among %d", r.Name, beginName, len(rest))
		}
		rest = rest[at+1:]
	}
	var out []sample
	far, near := 0, 0
	last := uint32(0)
	for bi := range r.plan {
		b := &r.plan[bi]
		first := len(out)
		lanes := make([]record, len(b.Lanes))
		pairs := 0
		var ends []int64
		for oi := range b.Ops {
			o := &b.Ops[oi]
			var rec record
			if r.Witness {
				n := max(1, o.Nodes)
				if len(rest) < n {
					return out, fmt.Errorf("%s: the records end at operation %d of batch %d of %d", r.Name, oi, bi, len(r.plan))
				}
				for k := range n {
					x := &rest[k]
					if err := matches(o, x); err != nil {
						return out, fmt.Errorf("%s: batch %d (%s, %s), operation %d: %w", r.Name, bi, b.Part, b.Shape, oi, err)
					}
					if k == 0 && x.Correlation <= last {
						return out, fmt.Errorf("%s: batch %d, operation %d: correlation %d behind %d", r.Name, bi, oi, x.Correlation, last)
					}
					if k == 0 {
						rec = *x
					}
					rec.EndNS = max(rec.EndNS, x.EndNS)
					last = max(last, x.Correlation)
				}
				rest = rest[n:]
			}
			if o.Lane > 0 {
				l := &lanes[o.Lane-1]
				if l.Kind == "" {
					*l = rec
				}
				l.EndNS = max(l.EndNS, rec.EndNS)
			}
			if o.Ordinal == 0 {
				continue
			}
			pairs++
			want := spanring.KindKernel
			if o.Kind == opGraph {
				want = spanring.KindGraph
			}
			s, sp, err := r.sample(b, spanOf{b.Step, o.Ordinal}, want, rec)
			if err != nil {
				return out, err
			}
			if want == spanring.KindKernel && sp.Text.Text != o.Name {
				return out, fmt.Errorf("%s: step %d, span %d is %q, launched was %q", r.Name, b.Step, o.Ordinal, sp.Text.Text, o.Name)
			}
			if b.Seen != nil { // the host's clock is its witness
				continue
			}
			s.fromEnd = pairs
			out = append(out, s)
			ends = append(ends, sp.EndMonoNS()-rec.EndNS)
		}
		for li := range b.Lanes {
			s, sp, err := r.sample(b, spanOf{b.Lanes[li].Step, b.Lanes[li].Ordinal}, spanring.KindLane, lanes[li])
			if err != nil {
				return out, err
			}
			out = append(out, s)
			ends = append(ends, sp.EndMonoNS()-lanes[li].EndNS)
		}
		for k := first; k < len(out) && out[k].fromEnd > 0; k++ {
			out[k].fromEnd = pairs - out[k].fromEnd
		}
		if r.Witness && b.Mode == "queued" {
			m := int64(median(ends))
			for _, e := range ends {
				near++
				if e-m > farNS || m-e > farNS {
					far++
				}
			}
		}
	}
	if len(rest) > 0 {
		return out, fmt.Errorf("%s: %d records more than was planned, the first of %s %q", r.Name, len(rest), rest[0].Kind, rest[0].Name)
	}
	if float64(far) > farShare*float64(near) {
		return out, fmt.Errorf("%s: %d of %d spans end more than %d µs off their records", r.Name, far, near, farNS/1000)
	}
	return out, nil
}

func matches(o *op, x *record) error {
	switch o.Kind {
	case opKernel, opGraph:
		if x.Kind == opKernel && x.Name == o.Name {
			return nil
		}
		return fmt.Errorf("enqueued was %s %q, the record is of %s %q", o.Kind, o.Name, x.Kind, x.Name)
	default:
		if x.Kind == o.Kind && x.Bytes == o.Bytes {
			return nil
		}
		return fmt.Errorf("enqueued was a %s of %d bytes, the record is of %s %q, %d bytes", o.Kind, o.Bytes, x.Kind, x.Name, x.Bytes)
	}
}

// sample is a span beside a record.
func (r *result) sample(b *batch, of spanOf, want spanring.Kind, rec record) (sample, *collector.Span, error) {
	sp, ok := r.spans[of]
	if !ok || sp.Kind != want {
		return sample{}, nil, fmt.Errorf("%s: step %d has no span %d of a %v", r.Name, of.step, of.ordinal, want)
	}
	return sample{
		row: b.row, run: r.Name, stream: b.Stream, witness: r.Witness, cuptiNS: rec.EndNS - rec.StartNS,
		rawNS: int64(sp.RawNS), corrNS: int64(sp.DurationNS()), uncNS: int64(sp.DurationUncertaintyNS), gap: sp.Gap, plugged: b.Plugged,
		takenNS: int64(sp.CorrectionNS), wholeNS: int64(r.ConstantNS), startNS: sp.StartMonoNS, leadNS: sp.LeadNS, cuptiStartNS: rec.StartNS,
	}, &sp, nil
}
