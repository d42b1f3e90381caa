// Package cudaevents times spans on a GPU with pairs of CUDA events that nobody
// waits for, and places them on the host's clock.
//
// A [Recorder] owns a fixed pool of event pairs for one GPU context. A span takes
// a slot, records its start and later its end on the engine's stream, and is
// forgotten by the thread that serves. [Recorder.Harvest], on a goroutine of its
// own, reads the pairs that have completed and writes them to the ring. Nothing
// here grows, blocks on the GPU or synchronises with it; a span that finds its
// slot in flight is dropped and counted. What the package needs of the driver is
// [Driver]; it knows no CUDA.
//
// # The account
//
// Whenever nothing is moving, the ring's counters say exactly
//
//	begun = landed + failed{reason} + dropped + in flight
//
// and each landed or failed span has an entry in the log. Values that cannot be
// are refused and counted by reason, never mended.
//
// # Slots
//
// A slot's word in the ring holds generation and state, and each change of it is
// one atomic operation. Handles carry the generation.
//
//	        take           fill           End, Launched        push
//	┌──────┐ CAS ┌───────┐ store ┌──────┐ CAS  ┌────────┐  on the stream's
//	│ FREE ├────►│ DRAIN ├──────►│ OPEN ├─────►│ CLOSED ├──────► queue
//	└──────┘     └───────┘       └──┬───┘      └───┬────┘          │
//	    ▲                 abandoned │   end failed │       Harvest │
//	    │                           ▼ CAS          ▼               ▼
//	    │  events     ┌───────────────────────────────┐   ┌──────────────────┐
//	    ├─────────────┤ DRAIN: accounted for, while an│◄──┤ landed or refused│
//	    │  complete   │ event is pending, or is still │   └────────┬─────────┘
//	    │             │ the start of the next lane    │ shared end │
//	    │             └───────────────────────────────┘            │
//	    └──────────────────────────────────────────────────────────┘
//
// A begin on a stream that turns out to be capturing, or that the driver refuses,
// goes straight back to FREE: nothing was recorded.
//
// Whoever makes the change out of FREE or OPEN owns the slot: the taker until it
// is OPEN, the closer until it is pushed, then the harvester until it is FREE. So
// no two parties ever read, fail or reuse the same span, whatever begins, ends,
// sweeps and closes race. A taken slot is shown as OPEN only once it is filled: a
// reader of the ring never sees half of two spans.
//
// # Happens-before
//
//	closer:    write slot and cell                        (a)
//	closer:    CAS the stream's stack head to this slot   (b)
//	harvester: swap the stack head with empty             (c)
//	harvester: read slot and cell, write the log          (d)
//	harvester: store the word as FREE                     (e)
//	taker:     CAS the word from FREE                     (f)
//	taker:     write slot and cell                        (g)
//
// (b) before (c) makes (a) visible to (d); (e) before (f) keeps (g) behind (d).
//
// # The clock
//
// Event stamps are known only relative to one another. Anchors (events recorded
// on a stream of our own between two readings of CLOCK_MONOTONIC) are chained to
// one timeline a context, and every observation bounds how that timeline lies on
// the host's clock: an anchor from both sides, a span's start from below (it
// cannot precede its enqueue), its end from above (it cannot follow the moment it
// was seen complete). What all bounds together leave open is the uncertainty that
// each span carries.
package cudaevents
