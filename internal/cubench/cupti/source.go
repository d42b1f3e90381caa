// Package cupti is the source, in C, of a library that asks CUPTI for activity
// records as a profiler does, so that measurements can set lanetrace's cost beside
// it; and compiles that and others that use CUPTI. Only measurements import it.
package cupti

import _ "embed"

// Source is inject.c.
//
//go:embed inject.c
var Source string

// Functions of the library, which take nothing and return an int: On and Off
// return 0 or what CUPTI answered, Kernels how many kernels have been recorded.
const (
	On      = "lanetrace_profiler_on"
	Off     = "lanetrace_profiler_off"
	Kernels = "lanetrace_profiler_kernels"
)
