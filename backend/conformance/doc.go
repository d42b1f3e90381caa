// Package conformance holds the tests that every backend.GPU has to pass: the
// simulated one, the CUDA backend over a stand-in driver, and the CUDA backend on
// a GPU. A test in the backend's own package calls [Run].
//
// Whatever is compared is a value: what a kernel wrote, what a copy brought, how
// long a span took against how long it was told to take. What only some backends
// can show is asked for by [Caps].
package conformance
