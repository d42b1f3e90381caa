package flight

import "github.com/lanetrace/lanetrace/collector"

// InFlight is a span that is in flight.
type InFlight = collector.InFlight

// Oldest is the span that has been in flight longest; ok is false when none is.
func Oldest(e *collector.Engine) (f InFlight, ok bool) { return e.OldestInFlight() }
