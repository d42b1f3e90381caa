package collector

import (
	"math/bits"

	"github.com/lanetrace/lanetrace/spanring"
)

// SlowOptions say which steps are slow within their class.
type SlowOptions struct {
	// Factor is how much longer than the 99th percentile of its class a slow step is
	// at least. Default 1.5. Negative: no step is slow.
	Factor float64
	// WarmUp is how many steps of a class are seen before one is called slow. Default
	// 256, so that the 99th percentile is no accident.
	WarmUp int
}

func (o SlowOptions) withDefaults() SlowOptions {
	if o.Factor == 0 {
		o.Factor = 1.5
	}
	if o.WarmUp == 0 {
		o.WarmUp = 256
	}
	return o
}

// slowDetector tells the steps of one engine that are slow within their class:
// longer than Factor times the 99th percentile of the class's last one to two
// thousand steps.
//
// The 99th percentile and not a median with its spread, because a class may hold two
// kinds of steps that nothing tells apart (an engine that says nothing of its
// steps has one class): what is the way of more than one step in a hundred is not
// slow but how the class is. It bounds the flood, too: of a class whose steps all
// become longer, one in a hundred of the window are called slow, at most 22, until
// the percentile is theirs. Its memory is bounded: maxSlowClasses
// histograms of half a KiB.
type slowDetector struct {
	o       SlowOptions
	classes map[stepClass]*slowClass
	used    uint64
}

// stepClass is what steps have in common that are held against each other.
type stepClass struct {
	untimed bool // its part on the GPU is not known
	said    bool // the engine said what the step worked on
	mode    spanring.GraphMode
	prefill bool
	size    uint8 // of its tokens, else sequences: two a power of two
}

func classOf(s *Step) stepClass {
	if !s.HasAttrs {
		return stepClass{untimed: s.Untimed}
	}
	a := &s.Attrs
	n := uint64(a.DecodeTokens) + uint64(a.PrefillTokens)
	if n == 0 {
		n = uint64(a.BatchSize)
	}
	return stepClass{untimed: s.Untimed, said: true, mode: a.GraphMode, prefill: a.PrefillTokens > 0, size: sizeBucket(n)}
}

// sizeBucket divides sizes at the powers of two and half way between them.
func sizeBucket(n uint64) uint8 {
	l := bits.Len64(n)
	if l < 2 {
		return uint8(2 * l)
	}
	return uint8(2*l) + uint8(n>>(l-2)&1)
}

const (
	maxSlowClasses = 128

	// A class's histogram divides powers of two into slowSub, from 1<<slowFrom ns
	// (1 µs) to 1<<slowTo ns (18 min); what is beyond goes to the ends.
	slowSubBits = 3
	slowSub     = 1 << slowSubBits
	slowFrom    = 10
	slowTo      = 40
	slowBuckets = (slowTo - slowFrom) * slowSub

	// A step counts slowUnit, so that it can be halved a few times before it is
	// forgotten. Everything is halved when slowWindow steps are counted: one to two
	// thousand of the last are remembered.
	slowUnit   = 16
	slowWindow = 2048
	// slowTail is the share above the percentile, as a divisor.
	slowTail = 100
)

// slowClass are the lengths of a class's last steps.
type slowClass struct {
	counts [slowBuckets]uint16 // under slowUnit*slowWindow
	total  uint32
	seen   int // up to the warm-up
	used   uint64
}

// slow takes the step in and reports whether it is slow. Steps that are armed or
// faulty, and those whose end is not known, are neither judged nor counted: the
// first are longer by their timing, of the others it is not known how long they
// are.
func (d *slowDetector) slow(s *Step) bool {
	if s.Armed || s.Faulty() || !s.HasEnd || d.o.Factor < 0 {
		return false
	}
	ns := judgedNS(s)
	if ns <= 0 {
		return false
	}
	c := d.class(classOf(s))
	is := c.seen >= d.o.WarmUp && float64(ns) > d.o.Factor*float64(c.percentile())
	c.count(ns)
	c.seen = min(c.seen+1, d.o.WarmUp)
	return is
}

// judgedNS is the length that is judged: the longer of the step's part on the host
// and of what its spans took on the GPU, from the first's start to the last's end. Not
// from the step's begin to its last span's end: with a host that runs ahead that
// holds the wait for the step before, and one slow step would make its successors
// slow.
func judgedNS(s *Step) int64 {
	ns := s.HostNS()
	if len(s.Spans) > 0 {
		a, b := s.Spans[0].StartMonoNS, s.Spans[0].EndMonoNS()
		for i := range s.Spans {
			a, b = min(a, s.Spans[i].StartMonoNS), max(b, s.Spans[i].EndMonoNS())
		}
		ns = max(ns, b-a)
	}
	return ns
}

// class finds a class; a new one takes the place of the one unused for longest
// when there are too many.
func (d *slowDetector) class(k stepClass) *slowClass {
	d.used++
	c := d.classes[k]
	if c == nil {
		if d.classes == nil {
			d.classes = make(map[stepClass]*slowClass)
		}
		if len(d.classes) >= maxSlowClasses {
			var old stepClass
			oldest := d.used
			for k, x := range d.classes {
				if x.used < oldest {
					old, oldest = k, x.used
				}
			}
			c = d.classes[old]
			delete(d.classes, old)
			*c = slowClass{}
		} else {
			c = new(slowClass)
		}
		d.classes[k] = c
	}
	c.used = d.used
	return c
}

// slowBucket is where a length in ns, over 0, is counted.
func slowBucket(ns int64) int {
	l := bits.Len64(uint64(ns)) - 1
	if l < slowFrom {
		return 0
	}
	i := (l-slowFrom)<<slowSubBits + int(uint64(ns)>>(l-slowSubBits)&(slowSub-1))
	return min(i, slowBuckets-1)
}

// upperNS is the upper end of a bucket in ns.
func upperNS(bucket int) int64 {
	l, sub := slowFrom+bucket>>slowSubBits, int64(bucket&(slowSub-1))
	return (slowSub + sub + 1) << (l - slowSubBits)
}

func (c *slowClass) count(ns int64) {
	c.counts[slowBucket(ns)] += slowUnit
	c.total += slowUnit
	if c.total < slowUnit*slowWindow {
		return
	}
	c.total = 0
	for i := range c.counts {
		c.counts[i] /= 2
		c.total += uint32(c.counts[i])
	}
}

// percentile is the upper end of the bucket that the 99th percentile lies in, in ns:
// up to an eighth more than it.
func (c *slowClass) percentile() int64 {
	var above uint32
	for i := slowBuckets - 1; i > 0; i-- {
		if above += uint32(c.counts[i]); above*slowTail > c.total {
			return upperNS(i)
		}
	}
	return upperNS(0)
}
