package collector

import (
	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// The ring's and the ledger's words that are part of the model, so that exporters
// and pages need know nothing of rings.
type (
	// RunID is the random identity of one run of one producer.
	RunID = spanring.RunID
	// Info says who a producer is.
	Info = spanring.Info
	// TraceContext is a request's span in its own trace.
	TraceContext = spanring.TraceContext
	// Memory is an engine's device memory at one moment.
	Memory = ledger.Memory
)

// The kinds of spans.
const (
	KindLane   = spanring.KindLane
	KindKernel = spanring.KindKernel
	KindGraph  = spanring.KindGraph
)

// MemoryPublished is the state of an engine's memory whose totals are kept up to
// date.
const MemoryPublished = spanring.AllocsPublished
