// Package launchtrace records what a region of an engine's step enqueues on the
// GPU and compares two executions of it, operation by operation. A region that is
// captured once and replayed must enqueue the same work each time: where a host
// value differs between two steps (a length, a pointer, a flag), the comparison
// names the launch and the argument.
//
//	Recorder ──► Region.Begin … End ──► Report (counts, details, text), ring entry
//	               │                      ▲
//	               └─► Trace ─────────► Diff ──► Script ──► edits that can be applied
//	                     │  ▲
//	                     ▼  │
//	                   .ltops files
//
// # Recording
//
// A backend has a [Recorder] and calls it for every kernel launch, asynchronous
// memset and copy within the device, also on a stream that is being captured. A
// graph launch is no operation: what is in a graph was recorded when it was
// captured. Until a [Region] is begun, [Recorder.On] is one relaxed load and
// nothing is stored. Recording an operation takes a lock and copies some words; in
// the steady state it does not allocate. It never calls the driver.
//
// Memory is bounded by [Options.MaxBytes]. An operation that finds no room is
// counted and left out, and so is the rest of its execution: what was recorded is
// always the beginning.
//
// # Comparing
//
// Two executions are aligned on kind and function, with the fewest operations
// inserted and removed; among such alignments one is taken that makes operations
// meet that are equal in everything. So one inserted launch is one insertion, and
// no difference in everything behind it. A function is its name where it was
// named, because handles change when a module is loaded again, else its handle.
// Beyond [MaxEdits] operations inserted and removed the rest is one replaced
// block.
//
// The same two executions always give the same report.
package launchtrace
