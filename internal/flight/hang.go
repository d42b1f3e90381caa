package flight

import (
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// InFlight is the span of an engine that has been in flight longest.
type InFlight struct {
	Slot spanring.Slot
	// Age is how long ago it was enqueued.
	Age time.Duration
}

// Oldest is the span that has been in flight longest: begun, and neither landed
// nor given up. ok is false when none is in flight, as in an engine that idles. It
// reads the ring's slots, whatever the GPU does or does not complete.
func Oldest(e *collector.Engine) (f InFlight, ok bool) {
	nowNS := e.NowMonoNS()
	for _, s := range e.Busy() {
		if s.State == spanring.SlotDrain || s.Slot.EnqueueMonoNS <= 0 {
			continue // given up already, and counted
		}
		if age := time.Duration(nowNS - s.Slot.EnqueueMonoNS); !ok || age > f.Age {
			f, ok = InFlight{s.Slot, age}, true
		}
	}
	return f, ok
}
