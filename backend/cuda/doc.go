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
// is one crossing too: capture status, record, launch, record, is the start still
// pending.
//
// Telemetry's own calls other than capture status, event record and elapsed time
// run with the thread's capture mode exchanged to RELAXED: they neither fail
// during anybody's capture nor spoil it.
//
// # Memory
//
// Every allocation is on the GPU's ledger, under the first caller outside the
// library, and leaves it before the driver frees its address. Guard bands are
// filled and read on a stream of their own in mode RELAXED: a scan copies
// neighbouring bands at once, unless the driver refuses to copy over the borders
// of allocations, enqueues everything and waits once for each 16 MiB.
//
// Host memory that a copy still needs is page-locked memory of the driver's or
// pinned Go memory, until the stream was waited for.
//
// # Environment
//
// LANETRACE_LIBCUDA names the driver library, LANETRACE_REDZONE and its companions
// configure guard bands (package ledger), LANETRACE_DEBUG_SYNC_KERNELS=1 waits
// after every launch. They are read by [Open]; one that cannot be right is an error.
package cuda
