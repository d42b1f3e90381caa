package synth

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"

	"github.com/lanetrace/lanetrace/spanring"
)

// maxSteps is how many steps a request lasts at most.
const maxSteps = 60

// request is one that is being served.
type request struct {
	context        spanring.TraceContext
	beginNS        int64
	last           uint64 // its last step
	prompt, output uint32
}

// requestOf makes request number id, whose first step is first. It hangs on the
// seed and the number alone.
func (e *Engine) requestOf(id, first uint64, atNS int64) request {
	r := rand.New(rand.NewPCG(e.o.Seed^0x7e9e57, id))
	q := request{beginNS: atNS, prompt: 16 + uint32(r.IntN(1000)), output: 1 + uint32(r.IntN(maxSteps))}
	q.last = first + uint64(q.output) - 1
	binary.BigEndian.PutUint64(q.context.TraceID[:], r.Uint64()|1)
	binary.BigEndian.PutUint64(q.context.TraceID[8:], r.Uint64())
	binary.BigEndian.PutUint64(q.context.SpanID[:], r.Uint64()|1)
	q.context.Flags = 1
	return q
}

// linkRequests publishes which requests step n, which begins at atNS, works for,
// and returns how many.
func (e *Engine) linkRequests(n uint64, atNS int64) uint32 {
	if e.o.RequestEvery <= 0 {
		return 0
	}
	if every := uint64(e.o.RequestEvery); (n-1)%every == 0 {
		e.requests = append(e.requests, e.requestOf((n-1)/every, n, atNS))
	}
	for i := range min(len(e.requests), spanring.MaxStepLinks) {
		l := spanring.StepLink{Step: n, TraceContext: e.requests[i].context}
		e.push(atNS+1_000, l.Words(), nil)
	}
	return uint32(len(e.requests))
}

// endRequests publishes the ends of the requests of which step n was the last.
func (e *Engine) endRequests(n uint64, atNS int64) {
	for i := range e.requests {
		q := &e.requests[i]
		if q.last != n {
			continue
		}
		w := (&spanring.RequestEnd{TraceContext: q.context, BeginNS: q.beginNS, EndNS: atNS, PromptTokens: q.prompt, OutputTokens: q.output}).Words()
		e.push(atNS, w, func(c *spanring.Counters) {
			c[spanring.CtrBegun]++
			c[spanring.CtrLanded]++
			c[spanring.CtrRequests]++
		})
	}
	e.requests = slices.DeleteFunc(e.requests, func(q request) bool { return q.last == n })
}
