package cudaevents

import (
	"math"

	"github.com/lanetrace/lanetrace/spanring"
)

// tickNS is the step of the GPU's time stamps (measured on an H200).
const tickNS = 32

// quantumNS is the distance of the 32-bit floats around ms, in ns: a value that
// the driver gives as ms is that uncertain. It is NaN when ms is not finite.
func quantumNS(ms float32) float64 {
	ms = float32(math.Abs(float64(ms)))
	if ms == math.MaxFloat32 {
		return float64(ms-math.Nextafter32(ms, 0)) * 1e6
	}
	return float64(math.Nextafter32(ms, float32(math.Inf(1)))-ms) * 1e6
}

// checkDuration judges a pair's duration against the time on the host from before
// its enqueue until after it was seen complete. The two clocks' rates differ by
// maxRatePPB at most.
func checkDuration(ms float32, hostNS int64) spanring.Reason {
	d := float64(ms)
	switch {
	case math.IsNaN(d) || math.IsInf(d, 0):
		return spanring.FailNotFinite
	case d < 0:
		return spanring.FailEndBeforeStart
	case math.Round(d*1e6) == 0:
		return spanring.FailZero
	}
	slack := quantumNS(ms) + tickNS + float64(hostNS)*maxRatePPB/1e9
	if d*1e6 > float64(hostNS)+slack {
		return spanring.FailTooLong
	}
	return spanring.FailNone
}
