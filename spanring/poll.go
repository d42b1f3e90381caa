package spanring

import (
	"fmt"
	"sync/atomic"
	"time"
)

// holeWait is how long a reader waits for a sequence number that was handed out
// but not published, before it counts it lost.
const holeWait = time.Second

// maxHoles is how many of them a reader waits for at once; more are counted lost
// without waiting. Each needs a writer stalled between two instructions, or a
// place that such a writer blocks, so this many are a hostile file's.
const maxHoles = 1 << 16

// Account is a reader's side of the loss account, in sequence numbers. At any
// time
//
//	published = received + lost + missed before attach + pending
//
// and whenever nothing is moving, holes have had their second and all was read,
// nothing is pending. What was counted lost is never received later.
type Account struct {
	Published uint64 // handed out, as of the last Poll
	Received  uint64
	Lost      uint64 // Overwritten + Holes + Unreadable
	Missed    uint64 // before attach
	Pending   uint64 // holes still waited for, and entries not yet read

	Overwritten uint64 // their place belongs to a later one
	Holes       uint64 // not published: given up, late, or the producer died writing
	Unreadable  uint64 // pending when the file was found truncated or corrupt
}

type hole struct {
	seq   uint64
	since int64 // the caller's clock, ns
}

// Poll copies published entries into dst, in order of sequence except that a
// hole filled late comes when it is filled, and returns how many. 0 entries mean
// that there is nothing to read now. An error comes without entries: those read
// before it was found are returned first, the error by the next call.
//
// now is any clock in ns that the caller keeps to; a hole is given a second of
// it, begun anew should the clock go back. With an empty dst nothing is read.
//
// It does not wait, and allocates only when holes grow. One call looks at no
// more than LogEntries places and maxHoles holes, whatever the file says.
func (r *Reader) Poll(dst []Entry, now int64) (n int, err error) {
	err = r.locked(func() error { return r.poll(dst, now, &n) })
	if n > 0 {
		return n, nil
	}
	return 0, err
}

// loadHead loads the head, which no producer counts backwards or to maxSeq.
func (r *Reader) loadHead() (uint64, error) {
	head := r.m.load(offHead)
	if head < r.acc.Published || head > maxSeq {
		return 0, r.fail(fmt.Errorf("%w: %s: head %d after %d", ErrCorrupt, r.path, head, r.acc.Published))
	}
	r.acc.Published = head
	return head, nil
}

// poll counts into n while it reads, so that a fault takes away nothing that was
// read before it.
func (r *Reader) poll(dst []Entry, now int64, n *int) error {
	head, err := r.loadHead()
	if err != nil {
		return err
	}
	size := uint64(r.geo.LogEntries)
	r.pollHoles(dst, head, now, n)
	if head-r.next > size {
		skip := head - size - r.next
		r.acc.Overwritten += skip
		r.next += skip
	}
	for ; r.next < head && *n < len(dst); r.next++ {
		switch r.take(r.next, &dst[*n]) {
		case taken:
			*n++
			r.acc.Received++
		case overtaken:
			r.acc.Overwritten++
		case absent:
			if r.dead || len(r.holes) == maxHoles {
				r.acc.Holes++
			} else {
				r.holes = append(r.holes, hole{r.next, now})
			}
		}
	}
	return nil
}

// pollHoles looks at the holes again, oldest first. A hole whose place belongs
// to a later sequence number by now is overwritten, even if the later writer has
// not come to it yet: so the holes are never more than the log's places.
func (r *Reader) pollHoles(dst []Entry, head uint64, now int64, n *int) {
	if len(r.holes) == 0 {
		return
	}
	size := uint64(r.geo.LogEntries)
	kept := r.holes[:0]
	for i, h := range r.holes {
		if *n == len(dst) {
			kept = append(kept, r.holes[i:]...)
			break
		}
		if head-h.seq > size {
			r.acc.Overwritten++
			continue
		}
		switch r.take(h.seq, &dst[*n]) {
		case taken:
			*n++
			r.acc.Received++
		case overtaken:
			r.acc.Overwritten++
		case absent:
			if now < h.since {
				h.since = now
			}
			if r.dead || uint64(now)-uint64(h.since) >= uint64(holeWait) {
				r.acc.Holes++
			} else {
				kept = append(kept, h)
			}
		}
	}
	r.holes = kept
}

type outcome uint8

const (
	taken outcome = iota
	overtaken
	absent
)

// take copies the entry seq if it is there: the reader's side of the protocol in
// the package comment. A place that its writer has claimed but not published is
// absent, like one that an older writer still holds; both may yet change.
func (r *Reader) take(seq uint64, e *Entry) outcome {
	p := r.m.words8(r.geo.logOff() + int64(seq&r.mask)*EntrySize)
	want := published(seq)
	w := atomic.LoadUint64(&p[0])
	if w != want {
		if w > want|wordClaimed {
			return overtaken
		}
		return absent
	}
	e.Seq = seq
	for i := range e.Words {
		e.Words[i] = atomic.LoadUint64(&p[i+1])
	}
	if atomic.LoadUint64(&p[0]) != want {
		return overtaken
	}
	return taken
}

// Account is the reader's account as of the last Poll. It can be had after Close
// too.
func (r *Reader) Account() Account {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.acc
	a.Lost = a.Overwritten + a.Holes + a.Unreadable
	a.Pending = uint64(len(r.holes)) + (a.Published - r.next)
	return a
}

// Unsettled says where reading stands, so that it can go on after a restart: next is
// NextSeq, and holes are the sequence numbers before it that are still waited for, in
// order, no more than fit into dst's capacity. It does not allocate.
func (r *Reader) Unsettled(dst []uint64) (next uint64, holes []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	holes = dst[:0]
	for _, h := range r.holes[:min(len(r.holes), cap(dst))] {
		holes = append(holes, h.seq)
	}
	return r.next, holes
}

// NextSeq is the first sequence number not looked at yet: what a restarted
// reader passes as FromSeq. Holes still waited for lie before it.
func (r *Reader) NextSeq() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next
}
