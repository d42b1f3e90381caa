// Package otlp exports steps as OTLP traces: over gRPC or HTTP with a bounded
// queue and its own retry ([Exporter]), or as OTLP/JSON lines ([JSONWriter]). It also makes
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
// # Over the wire
//
// The standard variables say how: OTEL_EXPORTER_OTLP_PROTOCOL (grpc, the default,
// or http/protobuf), _ENDPOINT, _HEADERS, _COMPRESSION, _TIMEOUT, _CERTIFICATE,
// _CLIENT_CERTIFICATE and _CLIENT_KEY, and each with TRACES_ or METRICS_ before its
// last part for one signal. A protocol that is not spoken and a certificate that
// cannot be read are errors at once.
//
// Requests are retried as OTLP's specification says: over gRPC by status code, over
// HTTP after 429, 502, 503 and 504 and when there was no answer; RetryInfo and
// Retry-After are honoured. Other answers drop the spans, counted as refused.
//
// Each engine is a resource of its own, its service.instance.id the run id.
package otlp
