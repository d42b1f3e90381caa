// Package chrome writes steps as Chrome's trace-event JSON, which Perfetto
// (https://ui.perfetto.dev) and chrome://tracing open.
//
// An engine is a process, numbered from 1. Its threads are a host track and one
// for each of its GPU's streams. The parts of a step on the host, its lanes, its
// kernels and graph launches are complete events ("X") on their tracks, each
// inside what is around it. Complete events of one track must nest or be apart: a
// lane that overlaps its neighbour in part lies, with its kernels, on a second or
// third track of the same stream, and what fits on none is an asynchronous event
// ("b" and "e") of the same name. So are the steps themselves, all called "step", because an
// asynchronous engine begins one before the last has ended on the GPU, and requests that ended and have
// a trace of their own, called "request": a step names those it worked for as trace
// and span id, and a request its steps. A request that was taken in more than a minute
// before the first step has times under 0. Spans that
// failed and launch diffs are instants ("i") on the host track. Device memory and
// its slack are counters ("C"), while the engine keeps a ledger.
//
// Times are microseconds with three decimals, exact to the nanosecond, counted
// from otherData.base_unix_ns: 64-bit floats, which the viewers read them as, hold
// nanoseconds for 104 days, but not since 1970. Within an engine they differ as
// CLOCK_MONOTONIC does, whatever was done to the wall clock meanwhile.
package chrome
