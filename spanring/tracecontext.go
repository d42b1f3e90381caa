package spanring

import "fmt"

// TraceContext is a W3C trace context: a span of somebody's trace. Its zero value
// is none.
type TraceContext struct {
	TraceID [16]byte // in the order in which it is written
	SpanID  [8]byte
	Flags   uint8 // the trace-flags of the context
}

// flagSampled is the W3C flag of a trace that is recorded.
const flagSampled = 0x01

// Valid reports whether c names a span: neither of its ids is all zero.
func (c *TraceContext) Valid() bool { return c.TraceID != [16]byte{} && c.SpanID != [8]byte{} }

// Sampled reports whether c's trace is recorded, as far as the flags say.
func (c *TraceContext) Sampled() bool { return c.Flags&flagSampled != 0 }

// words encodes the two ids, their first bytes lowest, as they lie in memory.
func (c *TraceContext) words() (t0, t1, s uint64) {
	for i := range 8 {
		t0 |= uint64(c.TraceID[i]) << (8 * i)
		t1 |= uint64(c.TraceID[8+i]) << (8 * i)
		s |= uint64(c.SpanID[i]) << (8 * i)
	}
	return t0, t1, s
}

func traceContext(t0, t1, s uint64, flags uint8) (c TraceContext) {
	for i := range 8 {
		c.TraceID[i], c.TraceID[8+i] = byte(t0>>(8*i)), byte(t1>>(8*i))
		c.SpanID[i] = byte(s >> (8 * i))
	}
	c.Flags = flags
	return c
}

// MaxStepLinks is how many trace contexts a producer writes for one step. The end
// of the step says how many it was asked to.
const MaxStepLinks = 128

// StepLink says that a step worked for a request, whose span is the context.
type StepLink struct {
	Step uint64
	TraceContext
}

// Words encodes l.
func (l *StepLink) Words() Words {
	t0, t1, s := l.words()
	return Words{head(KindTraceContext, l.Flags, 0, 0, 0, 0), l.Step, t0, t1, s}
}

// StepLink decodes the trace context of a step. One that names no step or no span
// is refused.
func (w *Words) StepLink() (StepLink, error) {
	l := StepLink{Step: w[1], TraceContext: traceContext(w[2], w[3], w[4], w.flags())}
	if w.Kind() != KindTraceContext || l.Step == 0 || !l.Valid() {
		return l, fmt.Errorf("%w: %v of step %d, trace %x, span %x", ErrEntry, w.Kind(), l.Step, l.TraceID, l.SpanID)
	}
	return l, nil
}

// RequestEnd says that a request is over, whose span in its own trace is the
// context.
type RequestEnd struct {
	TraceContext
	// BeginNS and EndNS are when the engine took the request in and when it was
	// done with it, host, CLOCK_MONOTONIC, in ns.
	BeginNS, EndNS int64
	PromptTokens   uint32
	OutputTokens   uint32
}

// Words encodes r.
func (r *RequestEnd) Words() Words {
	t0, t1, s := r.words()
	return Words{
		head(KindRequestEnd, r.Flags, 0, 0, 0, 0), t0, t1, s, uint64(r.BeginNS), uint64(r.EndNS),
		uint64(r.PromptTokens) | uint64(r.OutputTokens)<<32,
	}
}

// RequestEnd decodes the end of a request. One that names no span, or ends before
// it begins, is refused.
func (w *Words) RequestEnd() (RequestEnd, error) {
	r := RequestEnd{
		TraceContext: traceContext(w[1], w[2], w[3], w.flags()), BeginNS: int64(w[4]), EndNS: int64(w[5]),
		PromptTokens: uint32(w[6]), OutputTokens: uint32(w[6] >> 32),
	}
	if w.Kind() != KindRequestEnd || !r.Valid() || r.BeginNS < 0 || r.EndNS < r.BeginNS {
		return r, fmt.Errorf("%w: %v of trace %x, span %x from %d to %d ns", ErrEntry, w.Kind(), r.TraceID, r.SpanID, r.BeginNS, r.EndNS)
	}
	return r, nil
}
