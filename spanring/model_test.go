package spanring

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// cell is what the model knows of a place in the log: which sequence number has
// it, and whether that one is published.
type cell struct {
	used, published bool
	seq             uint64
}

// ringModel is a ring and its readers as the package comment describes them,
// without any of its mechanics: one map for the log, one for what each reader has
// seen of each sequence number.
type ringModel struct {
	w     *Writer
	size  uint64
	head  uint64
	cells map[uint64]cell // by place

	numbered []uint64 // took a number and stalled
	claimed  map[uint64]*[8]uint64
	givenUp  uint64

	now     int64
	readers []*readerModel
}

type readerModel struct {
	r       *Reader
	missed  uint64
	next    uint64
	waiting map[uint64]int64 // since when
	got     map[uint64]bool
	lost    map[uint64]bool
	over    uint64
	holes   uint64
	dead    bool
}

func (m *ringModel) claim(seq uint64) bool {
	c := m.cells[seq%m.size]
	if c.used && (!c.published || c.seq >= seq) {
		m.givenUp++
		return false
	}
	m.cells[seq%m.size] = cell{used: true, seq: seq}
	return true
}

func (m *ringModel) publish(seq uint64) {
	m.cells[seq%m.size] = cell{used: true, published: true, seq: seq}
}

func (m *ringModel) append(t *rapid.T, n uint64) {
	for range n {
		seq := m.head
		m.head++
		ok := m.claim(seq)
		if ok {
			m.publish(seq)
		}
		e := sealed(2, seq)
		if m.w.Append(&e) != ok {
			t.Fatalf("Append of %d returned %v", seq, !ok)
		}
	}
}

// poll predicts what one call returns.
func (m *ringModel) poll(rm *readerModel, room int) (want []uint64) {
	look := func(seq uint64) {
		c := m.cells[seq%m.size]
		switch {
		case c.used && c.published && c.seq == seq:
			want = append(want, seq)
			rm.got[seq] = true
			delete(rm.waiting, seq)
		case c.used && c.seq > seq || m.head-seq > m.size:
			rm.lost[seq] = true
			rm.over++
			delete(rm.waiting, seq)
		default:
			since, ok := rm.waiting[seq]
			if !ok || m.now < since {
				since = m.now
			}
			rm.waiting[seq] = since
			if rm.dead || m.now-since >= int64(time.Second) {
				rm.lost[seq] = true
				rm.holes++
				delete(rm.waiting, seq)
			}
		}
	}
	var old []uint64
	for seq := range rm.waiting {
		old = append(old, seq)
	}
	slices.Sort(old)
	for _, seq := range old {
		if len(want) == room {
			break
		}
		if m.head-seq > m.size { // not looked at any more, wherever its place is
			rm.lost[seq] = true
			rm.over++
			delete(rm.waiting, seq)
			continue
		}
		look(seq)
	}
	for ; m.head-rm.next > m.size; rm.next++ {
		rm.lost[rm.next] = true
		rm.over++
	}
	for ; rm.next < m.head && len(want) < room; rm.next++ {
		look(rm.next)
	}
	return want
}

func (m *ringModel) pollBoth(t *rapid.T, rm *readerModel, room int) int {
	seen := len(rm.got)
	lost := len(rm.lost)
	want := m.poll(rm, room)
	buf := make([]Entry, room)
	n, err := rm.r.Poll(buf, m.now)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, seqs(buf[:n])); d != "" {
		t.Fatalf("received (-want +got):\n%s", d)
	}
	for _, e := range buf[:n] {
		if e.Words != sealed(2, e.Seq) {
			t.Fatalf("entry %d is not what was written: %x", e.Seq, e.Words)
		}
		if rm.lost[e.Seq] {
			t.Fatalf("entry %d had been counted lost", e.Seq)
		}
		if e.Seq < rm.missed {
			t.Fatalf("entry %d lies before the attach", e.Seq)
		}
	}
	if len(rm.got) != seen+n {
		t.Fatalf("some of %v came twice", want)
	}
	if len(rm.lost) < lost {
		t.Fatal("something lost was found again")
	}
	a := rm.r.Account()
	if d := cmp.Diff(Account{
		Published: m.head, Received: uint64(len(rm.got)), Missed: rm.missed,
		Lost: rm.over + rm.holes, Overwritten: rm.over, Holes: rm.holes,
		Pending: uint64(len(rm.waiting)) + m.head - rm.next,
	}, a); d != "" {
		t.Fatalf("account (-want +got):\n%s", d)
	}
	if a.Published != a.Received+a.Lost+a.Missed+a.Pending {
		t.Fatalf("does not balance: %+v", a)
	}
	// A reader that had room has read all that is there and was not counted lost.
	if n < room {
		for _, c := range m.cells {
			if c.published && c.seq >= rm.missed && !rm.got[c.seq] && !rm.lost[c.seq] {
				t.Fatalf("entry %d is there and was not received", c.seq)
			}
		}
	}
	return n
}

func (m *ringModel) attach(t *rapid.T, o ReaderOptions) {
	r, err := NewHeapReader(m.w, o)
	if err != nil {
		t.Fatal(err)
	}
	from := min(o.FromSeq, m.head)
	if o.FromNow {
		from = m.head
	}
	if m.head > m.size {
		from = max(from, m.head-m.size)
	}
	m.readers = append(m.readers, &readerModel{
		r: r, missed: from, next: from,
		waiting: map[uint64]int64{}, got: map[uint64]bool{}, lost: map[uint64]bool{},
	})
}

func (m *ringModel) reader(t *rapid.T) *readerModel {
	return rapid.SampledFrom(m.readers).Draw(t, "reader")
}

// claimStalled lets a writer that has only its number go on to its claim.
func (m *ringModel) claimStalled(t *rapid.T, i int) {
	seq := m.numbered[i]
	m.numbered = slices.Delete(m.numbered, i, i+1)
	ok := m.claim(seq)
	p := m.w.claim(seq)
	if (p != nil) != ok {
		t.Fatalf("claim of %d succeeded: %v", seq, !ok)
	}
	if ok {
		m.claimed[seq] = p
	}
}

func (m *ringModel) publishStalled(seq uint64) {
	p := m.claimed[seq]
	delete(m.claimed, seq)
	e := sealed(2, seq)
	putWords(p, &e)
	atomic.StoreUint64(&p[0], published(seq))
	m.publish(seq)
}

// TestModel runs writers that stall anywhere, and readers, against the model.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, err := NewHeap(Options{Geometry: smallGeometry})
		if err != nil {
			t.Fatal(err)
		}
		m := &ringModel{w: w, size: 64, cells: map[uint64]cell{}, claimed: map[uint64]*[8]uint64{}, now: rapid.Int64Range(-5e9, 5e9).Draw(t, "now")}
		m.attach(t, ReaderOptions{})
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) { m.append(t, rapid.Uint64Range(1, 20).Draw(t, "n")) },
			"laps":   func(t *rapid.T) { m.append(t, rapid.Uint64Range(50, 200).Draw(t, "n")) },
			"number": func(t *rapid.T) {
				m.numbered = append(m.numbered, atomic.AddUint64(w.head, 1)-1)
				m.head++
			},
			"claim": func(t *rapid.T) {
				if len(m.numbered) == 0 {
					t.Skip("none has only its number")
				}
				m.claimStalled(t, rapid.IntRange(0, len(m.numbered)-1).Draw(t, "which"))
			},
			"publish": func(t *rapid.T) {
				if len(m.claimed) == 0 {
					t.Skip("none has claimed")
				}
				var claimed []uint64
				for seq := range m.claimed {
					claimed = append(claimed, seq)
				}
				slices.Sort(claimed)
				m.publishStalled(rapid.SampledFrom(claimed).Draw(t, "which"))
			},
			"poll":     func(t *rapid.T) { m.pollBoth(t, m.reader(t), rapid.IntRange(0, 20).Draw(t, "room")) },
			"poll all": func(t *rapid.T) { m.pollBoth(t, m.reader(t), 200) },
			"time": func(t *rapid.T) {
				m.now += rapid.SampledFrom([]int64{1, 4e8, 1e9 - 1, 1e9, 2e9, -3e9}).Draw(t, "passes")
			},
			"attach": func(t *rapid.T) {
				if len(m.readers) == 4 {
					t.Skip("readers enough")
				}
				m.attach(t, ReaderOptions{FromSeq: rapid.Uint64Range(0, m.head+5).Draw(t, "from"), FromNow: rapid.IntRange(0, 3).Draw(t, "now") == 0})
			},
			"dead": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "dies") > 0 {
					t.Skip("lives on")
				}
				rm := m.reader(t)
				rm.dead = true
				rm.r.MarkDead()
			},
			"": func(t *rapid.T) {
				if got := w.Counter(CtrGivenUp); got != m.givenUp {
					t.Fatalf("%d given up, want %d", got, m.givenUp)
				}
				if got := w.Published(); got != m.head {
					t.Fatalf("%d handed out, want %d", got, m.head)
				}
			},
		})
		// At rest nothing is pending, and each sequence number is accounted for by
		// name.
		for len(m.numbered) > 0 {
			m.claimStalled(t, 0)
		}
		for seq := range m.claimed {
			m.publishStalled(seq)
		}
		for _, rm := range m.readers {
			m.pollBoth(t, rm, 200)
			m.now += int64(2 * time.Second)
			for m.pollBoth(t, rm, 50) > 0 {
			}
			if a := rm.r.Account(); a.Pending != 0 {
				t.Fatalf("at rest: %+v", a)
			}
			for seq := rm.missed; seq < m.head; seq++ {
				if rm.got[seq] == rm.lost[seq] {
					t.Fatalf("%d: received %v, lost %v", seq, rm.got[seq], rm.lost[seq])
				}
			}
		}
	})
}
