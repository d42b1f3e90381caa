package cudaevents

import (
	"reflect"

	"github.com/lanetrace/lanetrace/spanring"
)

// CellBytes is the size of a slot's part in Go memory.
var CellBytes = reflect.TypeFor[cell]().Size()

// Streams is how many streams r remembers, those destroyed and not yet forgotten
// among them.
func Streams(r *Recorder) int {
	s := r.streams.Load()
	return max(len(s.all)-1, len(s.byHandle), len(s.byID))
}

// SetGeneration makes gen the generation of a free slot.
func SetGeneration(r *Recorder, slot int, gen uint32) {
	r.slots.Store(slot, spanring.MakeSlotWord(gen, spanring.SlotFree))
}

// Generation is the generation of h.
func Generation(h Handle) uint32 { return h.gen }

// TakeLate takes a slot as a caller does who saw r open, and was overtaken by its
// closing before it came to the slot.
func TakeLate(r *Recorder) Outcome {
	p := r.pool.Load()
	p.closed.Store(true)
	defer p.closed.Store(false)
	_, _, o := r.take(p)
	return o
}

// ShutWhileTaken reports whether closing could take a slot from a caller who has
// taken and not yet opened it.
func ShutWhileTaken(r *Recorder) bool {
	p := r.pool.Load()
	i, gen, _ := r.take(p)
	defer p.release(i, gen)
	return r.shutSlot(p, i)
}

// SetStreamNumber makes n the number that was given last.
func SetStreamNumber(r *Recorder, n uint16) { r.streamNum = n }
