package otlp

import (
	"bytes"
	"sync"

	"github.com/lanetrace/lanetrace/collector"
)

// engineState is what the exporter keeps of one engine.
type engineState struct {
	engine   *collector.Engine
	resource []byte

	mu  sync.Mutex
	enc encoder
}

// item is one chunk of one step, waiting to be sent.
type item struct {
	chunk
	eng  *engineState
	note *collector.TraceNote // of the whole step; nil for none, or when it was forgotten
}

// queue holds items in order of arrival, bounded by the bytes in them. The
// sender takes the oldest; until it has settled them they count as queued. When
// room is needed the oldest items go, except those on their way at that moment. The
// notes beside them are bounded too: the oldest are forgotten, and those traces become
// no exemplars, for which the latest are wanted anyway.
type queue struct {
	mu      sync.Mutex
	items   []item // a ring: n items from head
	head, n int

	taken   []item // older than all of items
	onWay   bool   // taken is in a request now
	bytes   int    // of items and taken
	limit   int
	notes   int // bytes of the notes of items and taken, once for each of a step's items
	bare    int // how many of items, from head on, have no note for certain
	closed  bool
	dropped [collector.NumDropReasons]uint64 // units, ever

	free     [][]byte
	freeSize int
}

const (
	// freeBytes is how much emptied memory is kept for reuse.
	freeBytes = 1 << 20
	newBytes  = 8 << 10
	// roomyBytes is how much may wait in buffers as they come: most hold far less
	// than they have room for. What waits beyond it, as during an outage, is moved
	// to memory of its own length.
	roomyBytes = 256 << 10
	// noteLimit bounds the notes: some seven thousand steps of two lanes.
	noteLimit = 1 << 20
)

func newQueue(limit int) *queue { return &queue{limit: limit, items: make([]item, 64)} }

// buffer is an empty buffer to encode into.
func (q *queue) buffer() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.free); n > 0 {
		b := q.free[n-1]
		q.free = q.free[:n-1]
		q.freeSize -= cap(b)
		return b[:0]
	}
	return make([]byte, 0, newBytes)
}

// unused takes back a buffer that was not pushed.
func (q *queue) unused(b []byte) {
	q.mu.Lock()
	q.give(b)
	q.mu.Unlock()
}

func (q *queue) give(b []byte) {
	if q.freeSize+cap(b) <= freeBytes {
		q.free = append(q.free, b)
		q.freeSize += cap(b)
	}
}

// push appends it, dropping older items until it fits, and reports whether it
// now waits: an item that does not fit is dropped itself, and so is every item
// once the queue is closed.
func (q *queue) push(it item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		q.drop(it, collector.DropShutdown)
		return false
	}
	for q.bytes+len(it.buf) > q.limit {
		old, ok := q.pop()
		if !ok {
			q.drop(it, collector.DropQueueFull)
			return false
		}
		q.drop(old, collector.DropQueueFull)
	}
	if q.bytes > roomyBytes && 2*len(it.buf) < cap(it.buf) {
		own := bytes.Clone(it.buf)
		q.give(it.buf)
		it.buf = own
	}
	if q.n == len(q.items) {
		grown := make([]item, 2*q.n)
		copy(grown[copy(grown, q.items[q.head:]):], q.items[:q.head])
		q.items, q.head = grown, 0
	}
	q.items[(q.head+q.n)%len(q.items)] = it
	q.n++
	q.bytes += len(it.buf)
	q.notes += it.note.Bytes()
	for q.notes > noteLimit && q.bare < q.n {
		old := &q.items[(q.head+q.bare)%len(q.items)]
		q.notes -= old.note.Bytes()
		old.note = nil
		q.bare++
	}
	return true
}

// pop removes the oldest item that is not on its way.
func (q *queue) pop() (it item, ok bool) {
	switch {
	case len(q.taken) > 0 && !q.onWay:
		it, q.taken[0] = q.taken[0], item{}
		q.taken = q.taken[1:]
	case q.n > 0:
		it = q.popWaiting()
	default:
		return it, false
	}
	q.bytes -= len(it.buf)
	q.notes -= it.note.Bytes()
	return it, true
}

// popWaiting removes the oldest of items, of which there must be one. Its bytes
// and its note still count.
func (q *queue) popWaiting() (it item) {
	it, q.items[q.head] = q.items[q.head], item{}
	q.head = (q.head + 1) % len(q.items)
	q.n--
	q.bare = max(0, q.bare-1)
	return it
}

func (q *queue) drop(it item, r collector.DropReason) {
	it.eng.engine.Ledger().Drop(r, it.units)
	q.dropped[r] += uint64(it.units)
	q.give(it.buf)
}

// take returns the items of the next request, which are on their way from now
// on: those that were released before, else as many of the oldest as fit into
// most bytes, counted with size, and at least one. nil means that the queue is
// empty. The slice is the queue's own; settle or release ends its use.
func (q *queue) take(most int, size func(item) int) []item {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.taken) == 0 {
		q.taken = q.taken[:0]
		for sum := 0; q.n > 0; {
			sum += size(q.items[q.head])
			if len(q.taken) > 0 && sum > most {
				break
			}
			q.taken = append(q.taken, q.popWaiting())
		}
	}
	q.onWay = len(q.taken) > 0
	return q.taken
}

// release says that the request did not go out: its items wait again.
func (q *queue) release() {
	q.mu.Lock()
	q.onWay = false
	q.mu.Unlock()
}

// settle removes the items of the request.
func (q *queue) settle() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.taken {
		q.bytes -= len(q.taken[i].buf)
		q.notes -= q.taken[i].note.Bytes()
		q.give(q.taken[i].buf)
		q.taken[i] = item{}
	}
	q.taken, q.onWay = q.taken[:0], false
}

// size is how many bytes and items wait or are on their way.
func (q *queue) size() (bytes, items int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes, q.n + len(q.taken)
}

// lost is how many units were dropped for a reason, ever.
func (q *queue) lost(r collector.DropReason) uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.dropped[r]
}

// close drops what is left and returns how many units that was; later pushes are
// dropped too. Nothing may be on its way.
func (q *queue) close() (units int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.onWay = true, false
	for {
		it, ok := q.pop()
		if !ok {
			return units
		}
		units += it.units
		q.drop(it, collector.DropShutdown)
	}
}
