// Package otlp exports steps as OTLP traces: over gRPC with a bounded queue and
// its own retry ([Exporter]), or as OTLP/JSON lines ([JSONWriter]). It also makes
// the reader that sends metrics over OTLP ([NewMetricReader]).
//
// Spans are encoded by hand straight from the collector's model into the wire
// format. The bytes travel as unknown fields of an empty ResourceSpans message,
// which protobuf writes as they are; so the client is OpenTelemetry's own, and
// the cost of a span is that of writing its bytes once.
//
// # What a trace holds
//
// One trace a step, its id [collector.StepTraceID]. The root span "step" covers
// the host's part and every landed span. Its children are "host", the step on
// the host, and the lanes, graphs and kernels; those that ran in a lane are the
// lane's children. A span ends at its start and its corrected duration. Spans
// that failed are events of the root. Start and end are placed on the wall clock
// with one offset for the whole trace and never moved to fit.
//
// Each engine is a resource of its own, its service.instance.id the run id.
package otlp
