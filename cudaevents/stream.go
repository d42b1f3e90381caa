package cudaevents

import (
	"maps"
	"slices"
	"sync/atomic"
)

// stream is one stream by identity, with the queue of its closed slots.
//
// Closers push on a stack of slot indices (stack, linked through cell.next); the
// harvester takes the whole stack with one swap, reverses it and appends it to
// its own list. Slots are only pushed singly and taken all at once, so a head
// that is seen again is as good as one that never changed.
type stream struct {
	id   uint64
	num  uint16 // 0 in no stream
	gone atomic.Bool

	// stack is slot + 1 of the last pushed, 0 when empty, retired when nobody
	// harvests this stream any more.
	stack atomic.Uint32

	head, tail uint32 // the harvester's list, oldest first; slot + 1
	seen       bool   // the sweep's mark
	lastEndNS  int64  // the harvester's: the latest end of a span so far, CLOCK_MONOTONIC

	// untimedNS is when a kernel without a pair was last launched, CLOCK_MONOTONIC, as
	// far as the recorder is told.
	untimedNS atomic.Int64
}

const retired = ^uint32(0)

// streamSet is the streams at one moment. It is never changed: a new one takes
// its place.
type streamSet struct {
	byHandle map[Stream]*stream
	byID     map[uint64]*stream
	all      []*stream // those destroyed with spans in flight too
	orphans  *stream   // first of all; takes what is pushed on a retired stream
}

func newStreamSet() *streamSet {
	o := new(stream)
	return &streamSet{byHandle: map[Stream]*stream{}, byID: map[uint64]*stream{}, all: []*stream{o}, orphans: o}
}

func (s *streamSet) clone() *streamSet {
	return &streamSet{
		byHandle: maps.Clone(s.byHandle), byID: maps.Clone(s.byID),
		all: slices.Clone(s.all), orphans: s.orphans,
	}
}

// lookup finds the stream behind a handle, nil before its identity was asked. It
// takes no lock.
func (r *Recorder) lookup(s Stream) *stream { return r.streams.Load().byHandle[s] }

// identify asks the identity of a stream that has just been seen not to capture.
// It happens once a handle, and allocates.
func (r *Recorder) identify(s Stream) *stream {
	r.identMu.Lock()
	defer r.identMu.Unlock()
	old := r.streams.Load()
	if st := old.byHandle[s]; st != nil {
		return st
	}
	id, err := r.drv.StreamID(s)
	r.count(1)
	set := old.clone()
	st := set.byID[id]
	if err != nil || st == nil {
		st = &stream{id: id, num: r.nextStreamNum(old)}
		set.all = append(set.all, st)
		if err == nil {
			set.byID[id] = st
		} else if !r.loggedID {
			r.loggedID = true
			r.log.Warn("a stream's identity cannot be had; it is known by its handle", "context", r.index, "error", err)
		}
	}
	set.byHandle[s] = st
	r.streams.Store(set)
	return st
}

// nextStreamNum is a number that no stream in set has. After 65,535 streams the
// numbers of streams long gone are given again.
func (r *Recorder) nextStreamNum(set *streamSet) uint16 {
	for range 1 << 16 {
		r.streamNum++
		free := r.streamNum != 0
		for _, st := range set.all {
			free = free && st.num != r.streamNum
		}
		if free {
			break
		}
	}
	return r.streamNum
}

// StreamDestroyed forgets a stream's handle, which the driver may give to another
// stream from now on. Call it before the stream is destroyed. Spans whose end was
// recorded still land; one still open fails when it is ended. It makes no driver
// call.
func (r *Recorder) StreamDestroyed(s Stream) {
	r.identMu.Lock()
	defer r.identMu.Unlock()
	old := r.streams.Load()
	st := old.byHandle[s]
	if st == nil {
		return
	}
	st.gone.Store(true)
	set := old.clone()
	delete(set.byHandle, s)
	if set.byID[st.id] == st {
		delete(set.byID, st.id)
	}
	r.streams.Store(set)
}

// push hands an owned slot to the harvester.
func (r *Recorder) push(p *pool, st *stream, i uint32) {
	c := &p.cells[i]
	for {
		h := st.stack.Load()
		if h == retired {
			st = r.streams.Load().orphans
			continue
		}
		c.next = h
		if st.stack.CompareAndSwap(h, i+1) {
			break
		}
	}
	if p.closed.Load() {
		r.pushedLate(p)
	}
}

// collect moves what was pushed to the end of the harvester's list.
func (st *stream) collect(p *pool) {
	if h := st.stack.Load(); h == 0 || h == retired {
		return
	}
	var first uint32
	h := st.stack.Swap(0)
	last := h
	for h != 0 {
		c := &p.cells[h-1]
		h, c.next, first = c.next, first, h
	}
	if st.tail == 0 {
		st.head = first
	} else {
		p.cells[st.tail-1].next = first
	}
	st.tail = last
}

// append adds an owned slot to the harvester's list; only the harvester may.
func (st *stream) append(p *pool, i uint32) {
	p.cells[i].next = 0
	if st.tail == 0 {
		st.head = i + 1
	} else {
		p.cells[st.tail-1].next = i + 1
	}
	st.tail = i + 1
}

// pop takes the oldest slot off the harvester's list, which is not empty.
func (st *stream) pop(p *pool) uint32 {
	i := st.head - 1
	st.head = p.cells[i].next
	if st.head == 0 {
		st.tail = 0
	}
	return i
}

// retire takes destroyed streams off the list once nothing refers to them. The
// caller is the sweep: it has marked the streams of all slots that are not free.
func (r *Recorder) retire() {
	r.identMu.Lock()
	defer r.identMu.Unlock()
	old := r.streams.Load()
	n := 0
	for _, st := range old.all {
		if st.gone.Load() && !st.seen && st.head == 0 && st.stack.CompareAndSwap(0, retired) {
			n++
		}
	}
	if n == 0 {
		return
	}
	set := old.clone()
	set.all = slices.DeleteFunc(set.all, func(st *stream) bool { return st.stack.Load() == retired })
	r.streams.Store(set)
}
