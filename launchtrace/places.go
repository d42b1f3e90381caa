package launchtrace

import (
	"fmt"
	"sort"
)

// Range is one device allocation.
type Range struct {
	// Base is its address, Bytes its size.
	Base, Bytes uint64
	// Site is where it was made, such as file:line.
	Site string
}

// Resolver finds the live allocation that an address lies in. It is called at the
// end of an execution, for each argument that might be an address, and must not
// call back into the recorder. It may allocate.
type Resolver func(addr uint64) (Range, bool)

// maxRanges is how many allocations of an execution are told apart, and
// maxMisses how many words are remembered not to be addresses.
const (
	maxRanges = 1 << 16
	maxMisses = 1 << 16
)

func (r *Range) holds(addr uint64) bool { return addr-r.Base < r.Bytes }

// after is the index of the first range whose base is beyond addr.
func (t *Trace) after(addr uint64) int {
	return sort.Search(len(t.ranges), func(i int) bool { return t.ranges[i].Base > addr })
}

// place is the allocation that an address lies in, nil for none.
func (t *Trace) place(addr uint64) *Range {
	if i := t.after(addr); i > 0 && t.ranges[i-1].holds(addr) {
		return &t.ranges[i-1]
	}
	return nil
}

// addRange takes a range in unless it is empty, wraps around or overlaps another.
func (t *Trace) addRange(r Range) bool {
	if r.Bytes == 0 || r.Base+(r.Bytes-1) < r.Base || len(t.ranges) >= maxRanges {
		return false
	}
	i := t.after(r.Base)
	if i > 0 && t.ranges[i-1].holds(r.Base) || i < len(t.ranges) && r.holds(t.ranges[i].Base) {
		return false
	}
	t.ranges = append(t.ranges, Range{})
	copy(t.ranges[i+1:], t.ranges[i:])
	t.ranges[i] = r
	return true
}

// resolve finds the ranges of all arguments while the allocations are still there:
// when the execution is compared, the older one's buffers may be gone. misses is
// scratch.
func (t *Trace) resolve(find Resolver, misses map[uint64]struct{}) {
	clear(misses)
	for w := range t.words() {
		for _, a := range w.args() {
			if a == 0 || t.place(a) != nil {
				continue
			}
			if _, ok := misses[a]; ok {
				continue
			}
			if r, ok := find(a); ok && r.holds(a) {
				r.Site = cutName(r.Site)
				if t.addRange(r) {
					continue
				}
			}
			if len(misses) < maxMisses {
				misses[a] = struct{}{}
			}
		}
	}
}

// site is how reports show an address: site+offset, "" outside allocations.
func (t *Trace) site(addr uint64) string {
	if r := t.place(addr); r != nil {
		return fmt.Sprintf("%s+%#x", clean(r.Site), addr-r.Base)
	}
	return ""
}

// samePlace reports whether x of t and y of u lie at the same place of
// allocations of one site.
func (t *Trace) samePlace(x uint64, u *Trace, y uint64) bool {
	r := t.place(x)
	if r == nil {
		return false
	}
	s := u.place(y)
	return s != nil && r.Site == s.Site && x-r.Base == y-s.Base
}
