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
// pending.
//
// # Happens-before
//
// For the entry with sequence number s at place p = s mod LogEntries:
//
//	writer: CAS word(p): older published -> claimed(s)     (a)
//	writer: store the seven payload words                  (b)
//	writer: store word(p) = published(s)                   (c)
//	reader: load word(p) = published(s)                    (d)
//	reader: load the seven payload words                   (e)
//	reader: load word(p), equal to (d), else discard       (f)
//
// (c) before (d) makes (b) visible to (e). A later writer's (a) precedes its
// (b), so a reader whose (e) saw any of a later writer's words sees a changed
// word at (f).
//
// The package imports nothing else of this project: the layout has one
// definition, here.
package spanring
