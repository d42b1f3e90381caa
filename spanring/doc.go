// Package spanring is the ring file through which an engine process hands its
// telemetry to any number of readers.
//
// One engine process owns one file and maps it read-write; every reader maps it
// read-only. So a reader can neither slow nor corrupt an engine, several can
// read at once, and what the engine wrote last is still there when it has died.
//
//	0        4 KiB                                                        fileBytes
//	┌────────┬───────────────────┬──────────────┬──────────────┬──────────────┐
//	│ header │ log               │ slots        │ names, sites │ allocations  │
//	│        │ 64 B × LogEntries │ 64 B × Slots │ NameBytes    │ 64 B × Allocs│
//	└────────┴───────────────────┴──────────────┴──────────────┴──────────────┘
//
// The log is lossy by design: a writer never waits. It takes a sequence number,
// claims the place by compare-and-swap, writes and publishes; what it cannot
// claim it gives up and counts. Old entries are overwritten. The reader accounts
// for every sequence number: received, lost, missed before it attached, or
// pending. It never waits on one that is missing, and never receives one that it
// has counted lost.
//
// # Happens-before
//
// For the entry with sequence number s at place p = s mod LogEntries, N being
// LogEntries:
//
//	writer: add 1 to head, which gives s                   (n)
//	writer: CAS word(p): older published -> claimed(s)     (a)
//	writer: store the seven payload words                  (b)
//	writer: store word(p) = published(s)                   (c)
//	reader: load head > s                                  (h)
//	reader: load word(p) = published(s)                    (d)
//	reader: load the seven payload words                   (e)
//	reader: load word(p), equal to (d), else discard       (f)
//
// published(s) = 2s + 2 and claimed(s) = 2s + 3, so the word of a place only
// grows and says which writer has it. 0 is a place never used.
//
// (n), (a), (c) and all of the reader's loads are atomic operations, which Go
// orders in one sequence; (b) is too, except on amd64 without the race detector.
// There the stores of (b) are plain: the processor makes stores visible in
// program order, (a) and (c) are locked instructions that none of them passes,
// and the compiler moves no store across an atomic operation. On arm64 a plain
// (b) could become visible before (a), which is why it is atomic there.
//
// So: (c) before (d) makes (b) visible to (e). A later writer of the same place,
// of s + N or beyond, has its (a) before its (b), and its word never shows
// published(s) again; so a reader whose (e) saw any of its words sees at (f) a
// word that is not (d). What (f) lets pass is the payload of s whole.
//
// Two writers are never in one place: (a) succeeds from a published word only.
// A writer that stalls between (a) and (c) keeps its place for as long, and
// writers of later laps give that place up. One that stalls between (n) and (a)
// finds, when it goes on, an older published word, and writes, or another word,
// and gives up.
//
// A reader that loads head at (h) and finds another word at (d) than published(s)
// knows from it alone what has become of s: a word beyond claimed(s) means
// overwritten; claimed(s) or one below it means not yet, or never. It reads on and
// comes back to those for a second, or until the producer is dead.
//
// # Allocations
//
// The table of live allocations and the memory counters change together, under
// the producer's lock:
//
//	writer: add 1 to mutations, now odd                     (m)
//	writer: store a place's payload, then its word; counters
//	writer: add 1 to mutations, now even                    (o)
//	reader: load mutations                                  (q)
//	reader: load counters and places
//	reader: load mutations, even and equal to (q), else try again
//
// A place's word holds its generation, which grows each time the place is taken,
// so that even in a table that never rests no allocation is read as a mixture: its
// word is loaded before and after its payload.
//
// # Trust
//
// A reader trusts nothing in a file: offsets, sizes, kinds, states and the head
// are checked, texts are made UTF-8, and memory and work are bounded by the
// file's size. Times, durations and counters can be any number that their field
// holds.
//
// The package imports nothing else of this project: the layout has one
// definition, here.
package spanring
