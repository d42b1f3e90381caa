// Package sim is a GPU in pure Go: kernels are Go functions, device memory is Go
// memory, and time on the GPU is computed, not measured. Engines written against
// backend.GPU run on it where there is no GPU, with telemetry and all.
//
// # Time
//
// What a kernel or copy takes comes from a cost model, when it starts from when it
// was enqueued and what is before it:
//
//	start = max(enqueued + launch latency, end of what is before it on its
//	            stream, ends of what it waits for)
//	end   = start + cost × time scale
//
// Event stamps are those times on the GPU's own clock, which runs at an offset
// and a rate of its own against CLOCK_MONOTONIC and steps in units of 32 ns. So
// they are exact however busy the machine is. Nothing is seen complete before the
// host's clock has reached its end and its body has run; a body that takes longer
// than its cost is seen complete late and its stamps stay what the model says.
//
// Streams really run: each has a goroutine that sleeps until the next end is due
// and runs the bodies. With a [ManualClock] time stands still until a test moves
// it.
//
// # What it does not model
//
// Streams never slow one another down; a graph's bodies run when the whole graph
// is over, in the order they were captured; priorities and caches do not exist.
package sim
