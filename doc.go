// Package lanetrace is what an engine calls to have its steps, lanes and kernels
// timed on the GPU's own clock.
//
// An engine opens one [Hub] for its process, attaches each GPU context (the
// packages under backend do that), and marks its work:
//
//	hub, err := lanetrace.Open(lanetrace.Config{Service: "decode"})
//	decode := hub.Lane("decode")
//	...
//	step := hub.StepBegin()
//	lane := gpu.Telemetry().LaneBegin(step, decode, stream)
//	... launches ...
//	lane.End()
//	step.End()
//
// Nothing here waits for the GPU or for a reader, nothing grows, and nothing
// fails loudly: misuse is ignored and counted, and a ring that cannot be made
// leaves an engine that runs as before with telemetry off. All types may be used
// from many goroutines; a nil Hub, a nil Device and the zero Step and Lane do
// nothing.
package lanetrace

// Version is the version of this library, as it stands in a ring's header.
const Version = "0.1.0"
