package main

import (
	"context"
	"errors"
	"slices"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/collector/device"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/player"
)

// recordedStats are what the readings of GPUs in a recording come to: those of a
// sidecar that had read it live. All of its runs count, for all of them used energy.
func recordedStats(ctx context.Context, f *recording.File) (ds []collector.DeviceStats, refused uint64, err error) {
	if !f.HasReadings() {
		return nil, 0, nil
	}
	src, err := f.Readings()
	if err != nil {
		return nil, 0, err
	}
	defer src.Close()
	r := newReplayReadings(src)
	p := playing{clock: player.SystemClock{}, each: func(int64) error { return nil }, readings: r}
	for _, run := range runsOf(f) {
		p.waiting = append(p.waiting, &replayRun{playable: run})
	}
	err = errors.Join(p.play(ctx), bareRecording(src.Err()))
	return r.readings.Stats(), r.refused(), err
}

// reportedDevices are those that the engines reported on ran on, all where none of them
// is known.
func reportedDevices(ds []collector.DeviceStats, on []device.UUID) []collector.DeviceStats {
	var out []collector.DeviceStats
	for i := range ds {
		if u, ok := device.ParseUUID(ds[i].ID); ok && slices.ContainsFunc(on, func(o device.UUID) bool { return o.Is(u) }) {
			out = append(out, ds[i])
		}
	}
	if len(out) == 0 {
		return ds
	}
	return out
}
