package conformance

import (
	_ "embed"
	"log/slog"
	"testing"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
)

// Open opens the GPU under test with telemetry to hub, which may be nil. Run
// closes it.
type Open func(t *testing.T, hub *lanetrace.Hub) backend.GPU

// Caps say what a backend's tests can rely on.
type Caps struct {
	// MinCyclesPerUS and MaxCyclesPerUS bound the rate of the clock that lt_spin
	// counts.
	MinCyclesPerUS, MaxCyclesPerUS float64
	// ExactTimes: durations follow from the model alone, however busy the machine
	// is.
	ExactTimes bool
	// Driverless: there is no driver whose handles and addresses could be had.
	Driverless bool
	// Images: LoadModule reads its image, and refuses nonsense.
	Images bool
	// OpenGlobal opens the same device once more, without a hub, with captures that
	// forbid every thread what they cannot hold. Nil: there is no such thing.
	OpenGlobal func(t *testing.T) backend.GPU
	// OpenMemory opens the GPU with a configuration of its memory, and a log.
	OpenMemory func(t *testing.T, hub *lanetrace.Hub, c backend.MemoryConfig, log *slog.Logger) backend.GPU
	// OpenGraphLanes opens the GPU with lanes inside captured graphs.
	OpenGraphLanes Open
	// Calls counts the calls of each function of the driver's so far. Nil: nobody
	// can.
	Calls func() map[string]uint64
	// LaunchBusy makes every launch call take the host at least so many
	// microseconds, until it is called with 0. Nil: nobody can.
	LaunchBusy func(t *testing.T, gpu backend.GPU, us int)
}

// Run runs the suite.
func Run(t *testing.T, open Open, caps Caps) {
	s := &suite{open, caps}
	for _, part := range []struct {
		name  string
		tests []test
	}{
		{"memory", memoryTests},
		{"accounts", accountTests},
		{"launch", launchTests},
		{"launch trace", traceTests},
		{"the whole interface", wholeTests},
		{"costs", costTests},
		{"stream", streamTests},
		{"graph", graphTests},
		{"lanes inside graphs", graphLaneTests},
		{"driver", driverTests},
		{"telemetry", telemetryTests},
		{"close", closeTests},
	} {
		t.Run(part.name, func(t *testing.T) {
			for _, c := range part.tests {
				t.Run(c.name, func(t *testing.T) { c.run(s, t) })
			}
		})
	}
}

type suite struct {
	open Open
	caps Caps
}

type test struct {
	name string
	run  func(s *suite, t *testing.T)
}

// Module is the name of the module that holds the suite's kernels.
const Module = "lanetrace_conformance"

// Image is the module's PTX.
//
//go:embed kernels.ptx
var Image []byte

// The suite's kernels.
const (
	kFill  = "lt_test_fill"
	kAdd   = "lt_test_add"
	kScale = "lt_test_scale"
	kCopy8 = "lt_test_copy8"
	kStore = "lt_test_store"
	kArgs  = "lt_test_args"
	kSpin  = "lt_spin"
)
