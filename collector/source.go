package collector

import (
	"github.com/lanetrace/lanetrace/spanring"
)

// Source is one run of one producer, as entries and what surrounds them. A live
// ring ([NewRingSource]) is one, a recording is another.
//
// Poll and Close are called from one goroutine; every other method may be called
// at the same time from any. None of them blocks for long.
type Source interface {
	// Info says who the producer is, with what has changed since it began.
	Info() (spanring.Info, error)
	// Poll copies entries into dst and returns how many. 0 entries and not done
	// mean that there is nothing now. done means that there will never be more;
	// the entries of the same call still count. An error ends the source.
	Poll(dst []spanring.Entry) (n int, done bool, err error)
	// NowMonoNS is the source's own time, CLOCK_MONOTONIC of the producer's host:
	// for a ring it is now, for a recording how far it has been played.
	NowMonoNS() int64
	// WallOffsetNS added to a CLOCK_MONOTONIC time gives Unix time, both in ns.
	WallOffsetNS() int64
	// Name looks up a text of the producer's table; ok is false for none.
	Name(id spanring.NameID) (n spanring.Name, ok bool)
	// Counters are the producer's counters.
	Counters() (spanring.Counters, error)
	// Contexts are the GPU contexts that the producer uses.
	Contexts() ([]spanring.ContextState, error)
	// Account is the reader's side of the loss account, as of the last Poll.
	Account() spanring.Account
	// Busy are the pair slots in flight; a source that cannot tell returns none.
	Busy() ([]spanring.SlotEntry, error)
	// Alive reports whether the producer still runs, as far as is known.
	Alive() (bool, error)
	// Close ends reading. Methods called afterwards may fail.
	Close() error
}
