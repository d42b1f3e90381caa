// Package device reads GPUs through NVML, in the sidecar and whatever the levels of
// its engines: power, energy, clocks, temperature, memory, utilisation, errors, traffic.
//
// It guarantees that what a device or its driver does not report is absent, never 0;
// that a driver that fails is counted and asked again; and that calls which take long
// (traffic) delay no others. Energy comes from the differences of the device's own
// counter. Nothing here calls into an engine or writes a ring.
//
// Without cgo the package builds and [Sampler.Run] tells that there is no NVML.
package device
