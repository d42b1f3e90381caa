package collector

import "github.com/lanetrace/lanetrace/spanring"

// maxTraceBytes is more than a trace is encoded to.
const maxTraceBytes = 1 << 20

// Sizes of OTLP messages in bytes without their names, taken from what the encoder
// makes; its tests hold the estimate.
const (
	rootBytes       = 250
	rootAttrsBytes  = 150
	derivedBytes    = 205 // of a step with spans
	busyBytes       = 70  // of one with kernels
	hostBytes       = 97
	laneBytes       = 238
	kernelBytes     = 380
	failedBytes     = 190
	launchDiffBytes = 330
	linkBytes       = 40
	requestBytes    = 450
)

// EstimateBytes is about how long a step's trace is in OTLP, in bytes: within an
// eighth of what exporters/otlp encodes, before compression. It does not allocate.
func EstimateBytes(s *Step) int {
	n := rootBytes
	if s.HasAttrs {
		n += rootAttrsBytes
	}
	if s.HasEnd {
		n += hostBytes
	}
	if len(s.Spans) > 0 {
		n += derivedBytes
	}
	if s.Derived.HasBusy {
		n += busyBytes
	}
	n += failedBytes*len(s.Failed) + launchDiffBytes*len(s.LaunchDiffs) + linkBytes*len(s.Links)
	for i := range s.Spans {
		sp := &s.Spans[i]
		if sp.Kind == spanring.KindLane {
			n += laneBytes
		} else {
			n += kernelBytes
		}
		// A span is called by its title, and has its lane's name; a kernel its recorded
		// one, too.
		if sp.Text != nil {
			n += len(sp.Text.Title())
			if sp.Kind == spanring.KindKernel {
				n += len(sp.Text.Text)
			}
		}
		if sp.LaneText != nil {
			n += len(sp.LaneText.Text)
		}
		if n > maxTraceBytes {
			return maxTraceBytes
		}
	}
	return min(n, maxTraceBytes)
}
