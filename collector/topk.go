package collector

import (
	"math"
	"time"

	"go.opentelemetry.io/otel/attribute"
)

// other is the label of what has no series of its own.
const other = "other"

const (
	// rankEvery is how often membership is looked at.
	rankEvery = 10 * time.Second
	// rankHalfLife is how fast past GPU time loses its weight.
	rankHalfLife = 5 * time.Minute
	// rankMargin is by how much a newcomer must exceed the weakest member, so that
	// two alike do not take turns.
	rankMargin = 1.5
	// forgotten is the score under which a label has not been seen for at least 19
	// half-lives, over an hour and a half.
	forgotten = 1e-6
	// maxRanked is how many labels compete; further ones go to other unnamed.
	maxRanked = 4096
)

// topK keeps histograms by label for the k labels that take the most time, and
// one for the others. A label's histogram counts while it is a member only, and
// continues where it was should the label become one again: so no series ever
// goes backwards, and the series together count everything once.
type topK struct {
	k       int
	max     int // maxRanked, less in tests
	byLabel map[string]*ranked
	members []*ranked
	other   ranked
	rankAt  time.Time
	newAttr func(label string) attribute.Set
}

// ranked is one label.
type ranked struct {
	label  string
	attrs  attribute.Set
	h      buckets // counts is nil until the label is first a member
	score  float64 // decayed ns
	member bool
	gone   bool // no longer in byLabel: whoever holds it looks the label up anew
	since  time.Time
}

func newTopK(k int, now time.Time, newAttr func(string) attribute.Set) *topK {
	return &topK{
		k: k, max: maxRanked, byLabel: make(map[string]*ranked), rankAt: now, newAttr: newAttr,
		other: ranked{label: other, attrs: newAttr(other), h: newBuckets(kernelBounds), member: true, since: now},
	}
}

// find returns the entry of a label, which the caller may keep and use until it
// is gone.
func (t *topK) find(label string, now func() time.Time) *ranked {
	if r, ok := t.byLabel[label]; ok {
		return r
	}
	if label == other || len(t.byLabel) >= t.max {
		return &t.other
	}
	r := &ranked{label: label}
	t.byLabel[label] = r
	if len(t.members) < t.k {
		t.admit(r, now())
	}
	return r
}

func (t *topK) admit(r *ranked, now time.Time) {
	if r.h.counts == nil {
		r.h = newBuckets(kernelBounds)
		r.attrs = t.newAttr(r.label)
		r.since = now
	}
	r.member = true
	t.members = append(t.members, r)
}

// observe counts a duration of r.
func (t *topK) observe(r *ranked, ns int64) {
	r.score += float64(ns) + 1 // a kernel of 0 ns was seen, too
	if r.member {
		r.h.observe(ns)
	} else {
		t.other.h.observe(ns)
	}
}

// rank lets the scores fade and swaps members for labels that clearly take more
// time now. It does so at most every rankEvery.
func (t *topK) rank(now time.Time) {
	d := now.Sub(t.rankAt)
	if d < rankEvery {
		return
	}
	t.rankAt = now
	fade := math.Exp2(-float64(d) / float64(rankHalfLife))
	for _, r := range t.byLabel {
		r.score *= fade
	}
	for len(t.members) > 0 {
		weak := 0
		for i, r := range t.members {
			if r.score < t.members[weak].score {
				weak = i
			}
		}
		var best *ranked
		for _, r := range t.byLabel {
			if !r.member && (best == nil || r.score > best.score || r.score == best.score && r.label < best.label) {
				best = r
			}
		}
		if best == nil || best.score <= rankMargin*t.members[weak].score {
			break
		}
		t.members[weak].member = false
		t.members = append(t.members[:weak], t.members[weak+1:]...)
		t.admit(best, now)
	}
	if len(t.byLabel) >= t.max {
		t.forget()
	}
}

// forget makes room for new labels: those go that are not members and have not
// been seen for many half-lives, or else all that have never been members. The
// histogram of one that was a member lately is kept, because its series would fall
// back to 0 should it become one again; of one that was not seen for hours the
// series has long ended everywhere, and a new one begins with its own start.
func (t *topK) forget() {
	for _, all := range []bool{false, true} {
		for l, r := range t.byLabel {
			if !r.member && (r.score < forgotten || all && r.h.counts == nil) {
				r.gone = true
				delete(t.byLabel, l)
			}
		}
		if len(t.byLabel) < t.max*3/4 {
			return
		}
	}
}
