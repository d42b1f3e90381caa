// Package collector turns what engines write to their rings into steps, spans
// and instruments, decides which steps are exported as traces, and keeps the
// loss account.
//
//	Source ──► Processor: Assembler ──► Step ──► Selector ──► Exporter
//	                        │            ├─────► Observer …
//	                        └──► Ledger  └─────► Instruments
//
// A [Source] is one run of one engine: a live ring or a recording of one. A
// [Processor] reads one source; a [Collector] finds the rings of a directory and
// runs a Processor for each. A [Step] is handed, once it is closed, to every
// [Observer], and to the [Exporter] when a [Selector] chose it.
//
// What is guaranteed: a reader never writes to a ring; memory is bounded
// whatever arrives; an exporter that is slow or away never delays reading; and
// every span that was received is exported, not selected, rejected, dropped or
// pending, with a reason, exactly ([Account]).
//
// Time inside the package is CLOCK_MONOTONIC in nanoseconds as the source tells
// it: in a replay it is the recording's own, so that time-outs and rates do not
// depend on how fast it is played.
package collector
