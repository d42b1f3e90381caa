// Package cuda is backend.GPU on the CUDA driver API.
//
// The driver's library is found at run time ([Config.Library]): nothing of CUDA
// is needed to build, and a program runs, without this backend, where there is no
// driver. What the library lacks is an error that says which entry point and what
// to do about it. Without cgo the package builds and [Open] fails.
//
// Each operation is one crossing into C, which makes the device's primary context
// the thread's and puts back what was there; so goroutines may move between
// threads and other libraries keep theirs. Launches do not allocate. A timed launch
// is one crossing too: capture status, record, launch, is the start still pending,
// record.
//
// Telemetry's own calls other than capture status, event record and elapsed time
// run with the thread's capture mode exchanged to RELAXED: they neither fail
// during anybody's capture nor spoil it.
package cuda
