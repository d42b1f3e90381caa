// Package flight keeps flight records: what an engine was doing when it died or
// hung. A record is two files of one name in a directory of its own: a recording
// of everything the engine's ring still held (.ltrec), which every other tool
// reads, and a page of text (.txt) with the spans in flight, the last steps, the
// report and the counters. The ring is read with a reader of its own, so whoever
// else reads it is not disturbed.
//
// Records are bounded by number and by size; the oldest go first. One run gets one
// record of each reason, also over restarts.
package flight
