package lanetrace

import (
	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
)

// inert is a scripted driver whose records and reads do nothing and allocate
// nothing: every pair is complete at once.
type inert struct{ *scripted.Driver }

var inertLaunch = cudaevents.LaunchResult{StartRecorded: true, EndRecorded: true, Pending: true}

func (inert) Record(cudaevents.Event, cudaevents.Stream) cudaevents.Recorded {
	return cudaevents.Recorded{Calls: 2}
}

func (inert) Elapsed(_ cudaevents.Event, pairs []cudaevents.Pair, out []cudaevents.Times) (int, cudaevents.Result, int) {
	for i := range pairs {
		out[i] = cudaevents.Times{DurationMS: 1e-6}
	}
	return len(pairs), cudaevents.Success, 2 * len(pairs)
}
