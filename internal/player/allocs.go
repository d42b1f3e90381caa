package player

import (
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/spanring"
)

// allocs carries the recorded engine's live allocations into the ring. The
// recording has the whole table now and then, which sets everything right; in
// between the entries tell what comes and goes. What the entries do not tell, the
// slack above all, is as of the last table.
type allocs struct {
	ring    *spanring.Writer
	atNS    int64 // of the last table
	state   spanring.AllocState
	places  map[allocKey]placed
	tracked bool // the ring says that there is a ledger
	writing bool // and that it writes
}

// allocKey tells allocations apart: addresses come again.
type allocKey struct {
	context uint8
	index   uint64
}

type placed struct {
	place int // notListed: the ring's table was full
	bytes uint64
	guard uint32
}

const notListed = -1

// table takes over a table of the recording, times and names moved.
func (p *allocs) table(s *recording.State, move func(a *spanring.Alloc)) {
	if s.AllocScan.State == spanring.AllocsNotTracked || s.AllocsMonoNS == p.atNS {
		return
	}
	p.atNS, p.state = s.AllocsMonoNS, s.AllocScan.State
	t := p.ring.Allocs()
	t.Lock()
	defer t.Unlock()
	for _, at := range p.places {
		if at.place != notListed {
			t.Remove(at.place)
		}
	}
	p.places = make(map[allocKey]placed, len(s.Allocs))
	var want spanring.Counters
	s.AllocScan.Totals.Put(&want)
	for k := range spanring.NumCounters {
		if k.IsMemory() {
			if have := p.ring.Counter(k); k.IsGauge() || want[k] > have {
				t.Add(k, int64(want[k]-have))
			}
		}
	}
	for i := range s.Allocs {
		a := s.Allocs[i]
		move(&a)
		p.put(t, &a)
	}
	p.track(t)
}

// track makes the ring's state that of the recording.
func (p *allocs) track(t *spanring.AllocTable) {
	ledgers, published := 0, 0
	if !p.tracked {
		ledgers, p.tracked = 1, true
	}
	if on := p.state == spanring.AllocsPublished; on != p.writing {
		published = 1
		if !on {
			published = -1
		}
		p.writing = on
	}
	t.Track(ledgers, published)
}

// put lists a. One that finds no place is among the unlisted, as the recorded
// engine's own are.
func (p *allocs) put(t *spanring.AllocTable, a *spanring.Alloc) {
	at := placed{place: notListed, bytes: a.Bytes, guard: a.GuardBytes}
	if place, ok := t.Put(a); ok {
		at.place = place
	} else {
		t.Add(spanring.CtrMemUnlistedBytes, int64(a.Bytes))
		t.Add(spanring.CtrMemUnlistedCount, 1)
	}
	p.places[allocKey{a.Context, a.Index}] = at
}

// entry follows an entry whose times and names have been moved. One that the last
// table knew of already changes nothing.
func (p *allocs) entry(w *spanring.Words) {
	if !p.writing {
		return
	}
	t := p.ring.Allocs()
	if w.Kind() == spanring.KindViolation {
		t.Lock()
		t.Add(spanring.CtrViolations, 1)
		t.Unlock()
		return
	}
	e, err := w.MemEvent()
	if err != nil {
		return
	}
	key := allocKey{e.Alloc.Context, e.Alloc.Index}
	at, there := p.places[key]
	if there == (e.Kind == spanring.KindAlloc) {
		return
	}
	t.Lock()
	defer t.Unlock()
	sign := int64(1)
	if e.Kind == spanring.KindAlloc {
		p.put(t, &e.Alloc)
		t.Add(spanring.CtrAllocs, 1)
		at.bytes, at.guard = e.Alloc.Bytes, e.Alloc.GuardBytes
	} else {
		sign = -1
		delete(p.places, key)
		if at.place != notListed {
			t.Remove(at.place)
		} else {
			t.Add(spanring.CtrMemUnlistedBytes, -int64(at.bytes))
			t.Add(spanring.CtrMemUnlistedCount, -1)
		}
		t.Add(spanring.CtrFrees, 1)
	}
	t.Add(spanring.CtrMemLiveBytes, sign*int64(at.bytes))
	t.Add(spanring.CtrMemLiveCount, sign)
	t.Add(spanring.CtrMemGuardBytes, sign*int64(at.guard))
	t.Raise(spanring.CtrMemPeakBytes, p.ring.Counter(spanring.CtrMemLiveBytes))
}
