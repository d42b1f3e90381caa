package faulty

import (
	"fmt"
	"strings"
)

// Fault is what an engine does wrong.
type Fault string

// The faults.
const (
	// Crash: a long prompt's prefill is on the GPU when the process ends. Whoever runs
	// the engine ends it; the engine only sees to it that there is work in flight.
	Crash Fault = "crash"
	// Hang: the GPU completes nothing any more, and the engine waits for it.
	Hang Fault = "hang"
	// Leak: each step keeps one buffer that nobody frees.
	Leak Fault = "leak"
	// Overrun: a kernel writes past the end of its buffer, once.
	Overrun Fault = "overrun"
	// Perturb: one step passes a kernel another number than all other steps.
	Perturb Fault = "perturb"
	// Drop: the host enqueues more lanes ahead of the GPU than there are event pairs.
	Drop Fault = "drop"
)

// Faults are all faults, in the order in which they are documented.
func Faults() []Fault { return []Fault{Crash, Hang, Leak, Overrun, Perturb, Drop} }

// UnmarshalText implements encoding.TextUnmarshaler. What is no fault is an error
// that lists them.
func (f *Fault) UnmarshalText(b []byte) error {
	var names []string
	for _, k := range Faults() {
		if string(k) == string(b) {
			*f = k
			return nil
		}
		names = append(names, string(k))
	}
	last := len(names) - 1
	return fmt.Errorf("want %s or %s, got %q", strings.Join(names[:last], ", "), names[last], b)
}
