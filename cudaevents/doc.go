// Package cudaevents times spans on a GPU with pairs of CUDA events that nobody
// waits for, and places them on the host's clock.
//
// A [Recorder] owns a fixed pool of event pairs for one GPU context. A span takes
// a slot, records its start and later its end on the engine's stream, and is
// forgotten by the thread that serves. [Recorder.Harvest], on a goroutine of its
// own, reads the pairs that have completed and writes them to the ring. Nothing
// here grows, blocks on the GPU or synchronises with it; a span that finds its
// slot in flight is dropped and counted.
//
// # Slots
//
// A slot's word in the ring holds generation and state and is changed by one
// atomic operation at a time. Handles carry the generation.
//
//	         take              start recorded            End
//	┌──────┐ CAS  ┌───────┐ fill  ┌──────┐      CAS     ┌────────┐ push   stream's
//	│ FREE ├─────►│ DRAIN ├──────►│ OPEN ├─────────────►│ CLOSED ├───────► queue
//	└──────┘      └───────┘       └──┬───┘              └───┬────┘           │
//	   ▲                             │ sweep: abandoned     │ end failed     │ Harvest
//	   │                             ▼ CAS                  ▼                ▼
//	   │                          ┌─────────────────────────────┐  landed or refused
//	   └──────────────────────────┤ DRAIN: accounted for, an    │◄───────────┤
//	      last event complete     │ event pending or still used │  shared    │
//	   ▲                          └─────────────────────────────┘  event     │
//	   └─────────────────────────────────────────────────────────────────────┘
//
// Whoever makes the change out of FREE or OPEN owns the slot until it is FREE or
// OPEN again; CLOSED and DRAIN slots belong to the one who closed them and, once
// pushed, to the harvester. So no slot is ever read, failed and reused by two
// parties, whatever ends, sweeps and closes race.
//
// # Happens-before
//
//	owner:     write slot and cell                        (a)
//	owner:     CAS the stream's stack head to this slot   (b)
//	harvester: swap the stack head with empty             (c)
//	harvester: read slot and cell, write the log, free    (d)
//	taker:     CAS the word from FREE                     (e)
//
// (b) before (c) makes (a) visible to (d); the store of FREE in (d) before (e)
// gives the slot back whole.
//
// # The clock
//
// Event stamps are known only relative to one another. Anchors (events recorded
// on a stream of our own between two readings of CLOCK_MONOTONIC) are chained to
// one timeline a context, and every observation is a bound on how that timeline
// lies on the host's clock: an anchor from both sides, a span's start from below
// (it cannot precede its enqueue), its end from above (it cannot follow the
// moment it was seen complete). What all bounds leave open is the uncertainty
// that each span carries. See clock.
package cudaevents
