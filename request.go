package lanetrace

import (
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/lanetrace/lanetrace/spanring"
)

// TraceContext names a request's span in the request's own trace, as W3C Trace
// Context carries it. ParseTraceparent makes one of a header; the ids of
// OpenTelemetry's SpanContext can be assigned to its fields. The zero
// TraceContext is none.
type TraceContext = spanring.TraceContext

// MaxLinks is how many requests a step is linked to; further ones are counted.
const MaxLinks = spanring.MaxStepLinks

// ErrTraceparent is wrapped by every error about a traceparent header.
var ErrTraceparent = errors.New("bad traceparent")

// traceparentLen is the length of version 00, and of what later versions begin
// with: version, trace id, parent id and flags in hexadecimal.
const traceparentLen = 2 + 1 + 32 + 1 + 16 + 1 + 2

// ParseTraceparent reads the value of a W3C traceparent header, strictly: lower
// case, no blanks, ids that are not zero. A version above 00 may go on behind a
// dash, which is ignored. It allocates for an error only.
func ParseTraceparent(s string) (c TraceContext, err error) {
	if len(s) < traceparentLen || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return c, fmt.Errorf("%w: %.80q is not version-trace-parent-flags", ErrTraceparent, s)
	}
	var version, flags [1]byte
	for _, f := range [...]struct {
		dst  []byte
		from string
	}{{version[:], s[:2]}, {c.TraceID[:], s[3:35]}, {c.SpanID[:], s[36:52]}, {flags[:], s[53:55]}} {
		if !lowerHex(f.dst, f.from) {
			return TraceContext{}, fmt.Errorf("%w: %.80q has a digit that is not lower-case hexadecimal", ErrTraceparent, s)
		}
	}
	switch rest := s[traceparentLen:]; {
	case version[0] == 0xff:
		err = fmt.Errorf("%w: %.80q has version ff, which there is not", ErrTraceparent, s)
	case version[0] == 0 && rest != "", rest != "" && rest[0] != '-':
		err = fmt.Errorf("%w: %.80q is too long for its version", ErrTraceparent, s)
	case !c.Valid():
		err = fmt.Errorf("%w: %.80q has an id that is zero", ErrTraceparent, s)
	}
	if err != nil {
		return TraceContext{}, err
	}
	c.Flags = flags[0]
	return c, nil
}

// lowerHex decodes s into dst and reports whether it could.
func lowerHex(dst []byte, s string) bool {
	for i := range len(s) {
		if s[i] >= 'A' && s[i] <= 'F' {
			return false
		}
	}
	_, err := hex.Decode(dst, []byte(s))
	return err == nil
}

// Link says that the step works for a request: the step's trace, when it is
// exported, links to the request's span, and the request's summary counts the
// step. Call it once a step for each request, before the step's end. It writes
// one log entry; of a step's links MaxLinks are written, and the rest counted. A
// zero context, and one whose sampled flag is not set, because its trace is
// recorded nowhere, does nothing. It does not block, allocate or call the driver.
func (s Step) Link(c TraceContext) {
	if s.hub != nil {
		s.link(&c)
	}
}

func (s Step) link(c *TraceContext) {
	if !c.Valid() || !c.Sampled() {
		return
	}
	st := s.state
	if st.id.Load() != s.ID() || st.opened.Load()&stepEnded != 0 {
		s.hub.ring.Add(spanring.CtrMisuse, 1)
		return
	}
	if st.linked.Add(1) > MaxLinks {
		return
	}
	e := (&spanring.StepLink{Step: s.ID(), TraceContext: *c}).Words()
	s.hub.ring.Append(&e)
}

// Request is a request that the engine has finished.
type Request struct {
	// Context is the request's span; without a valid one nothing is written.
	Context TraceContext
	// BeginMonoNS and EndMonoNS are when the engine took the request in and when it
	// was done with it, by spanring.MonoNS. 0, and an end before the begin, stand
	// for now; a begin of 0 for the end.
	BeginMonoNS, EndMonoNS int64
	PromptTokens           int
	OutputTokens           int
}

// RequestEnd says that a request is over, which lets its summary be made: one
// span in the request's own trace with the steps that were linked to it and the
// time that their lanes took on the GPU. Call it once a request, after the last
// step that it is linked to was begun; the steps need not have ended. It writes
// one log entry; at level off it is one load. It does not block, allocate or call
// the driver.
func (h *Hub) RequestEnd(r Request) {
	if h != nil && h.level.Load() != 0 {
		h.requestEnd(&r)
	}
}

func (h *Hub) requestEnd(r *Request) {
	if !r.Context.Valid() {
		return
	}
	end := r.EndMonoNS
	if end <= 0 || end < r.BeginMonoNS {
		end = spanring.MonoNS()
	}
	begin := r.BeginMonoNS
	if begin <= 0 {
		begin = end
	}
	e := (&spanring.RequestEnd{
		TraceContext: r.Context, BeginNS: min(begin, end), EndNS: end,
		PromptTokens: clamp32(r.PromptTokens), OutputTokens: clamp32(r.OutputTokens),
	}).Words()
	h.ring.Add(spanring.CtrBegun, 1)
	h.ring.Append(&e)
	h.ring.Add(spanring.CtrLanded, 1)
	h.ring.Add(spanring.CtrRequests, 1)
}
