package cudaevents

// Streams is how many streams r knows, those destroyed and not yet forgotten
// among them.
func Streams(r *Recorder) int { return len(r.streams.Load().all) - 1 }
