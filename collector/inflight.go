package collector

import (
	"sync/atomic"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// InFlight is a span that is in flight: begun, and neither landed nor given up.
type InFlight struct {
	Slot spanring.Slot
	// Age is how long ago it was enqueued.
	Age time.Duration
}

// OldestInFlight is the span of the engine that has been in flight longest. ok is
// false when none is, as in an engine that idles. It reads the ring's slots, whatever
// the GPU does or does not complete. Steps have no slot: a step outside of any lane is
// not in flight here.
func (e *Engine) OldestInFlight() (f InFlight, ok bool) {
	return OldestOf(e.Busy(), e.NowMonoNS())
}

// OldestOf is OldestInFlight of the slots that a ring's reader found busy, at the time
// nowNS of the engine's clock.
func OldestOf(busy []spanring.SlotEntry, nowNS int64) (f InFlight, ok bool) {
	for _, s := range busy {
		if s.State == spanring.SlotDrain || s.Slot.EnqueueMonoNS <= 0 {
			continue // given up already, and counted
		}
		if age := time.Duration(nowNS - s.Slot.EnqueueMonoNS); !ok || age > f.Age {
			f, ok = InFlight{s.Slot, age}, true
		}
	}
	return f, ok
}

// Flight is why a flight record is made.
type Flight uint8

// Why flight records are made.
const (
	FlightDied Flight = iota
	FlightHung

	numFlights
)

var flightText = [numFlights]string{"died", "hung"}

// flightCount counts flight records of one reason.
type flightCount struct{ written, failed atomic.Uint64 }

// CountFlight counts a flight record that was written or, not ok, could not be. It may
// be called from any goroutine.
func (i *Instruments) CountFlight(f Flight, ok bool) {
	switch {
	case i == nil || f >= numFlights:
	case ok:
		i.flights[f].written.Add(1)
	default:
		i.flights[f].failed.Add(1)
	}
}
