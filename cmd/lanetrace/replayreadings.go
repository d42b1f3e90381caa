package main

import (
	"math"
	"slices"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/collector/device"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/report"
)

// replayReadings plays the readings of GPUs beside runs. A nil *replayReadings plays
// none.
type replayReadings struct {
	readings *device.Readings
	src      *recording.Readings // nil: the recording has none

	engines []*collector.Engine
	nowNS   int64 // of the reading that was played last
}

func newReplayReadings(src *recording.Readings) *replayReadings {
	r := &replayReadings{src: src}
	r.readings = device.NewReadings(device.ReadingsOptions{
		Engines: func() []*collector.Engine { return r.engines }, NowMonoNS: func() int64 { return r.nowNS },
	})
	return r
}

// upTo plays the readings up to a time: what came of runs so far came before them. r
// may be nil.
func (r *replayReadings) upTo(unixNS int64, runs []*replayRun) {
	if r == nil || r.src == nil {
		return
	}
	for _, run := range runs {
		if e := run.proc.Engine(); !slices.Contains(r.engines, e) {
			r.engines = append(r.engines, e)
		}
	}
	for {
		if at, ok := r.src.NextUnixNS(); !ok || at > unixNS {
			return
		}
		g, _ := r.src.Next()
		r.nowNS = max(r.nowNS, g.MonoNS)
		r.readings.DeviceReading(&g.Device, g.Entries)
		// What those that ended meanwhile did last has been seen now.
		r.engines = slices.DeleteFunc(r.engines, func(e *collector.Engine) bool {
			return !slices.ContainsFunc(runs, func(run *replayRun) bool { return run.proc.Engine() == e })
		})
	}
}

// rest plays the readings up to where playing ends, 0 for where they do.
func (r *replayReadings) rest(endUnixNS int64, runs []*replayRun) {
	if endUnixNS == 0 {
		endUnixNS = math.MaxInt64
	}
	r.upTo(endUnixNS, runs)
}

// refused is how many readings were none.
func (r *replayReadings) refused() (n uint64) {
	for _, k := range r.readings.Refused() {
		n += k
	}
	return n
}

// sayRefused says how many readings were none.
func (a *app) sayRefused(n uint64) {
	if n > 0 {
		a.say("warning: left out: %s of GPUs that cannot be", report.Plural(n, "reading"))
	}
}
