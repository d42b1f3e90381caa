package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/spanring"
)

// request is one sequence to be generated.
type request struct {
	id      int
	prompt  []int32
	output  int // tokens to generate at most; stopToken ends it earlier
	topK    int // 1 is greedy
	seed    int32
	arrived time.Duration // since the engine's start
	tookNS  int64         // when it was taken in, CLOCK_MONOTONIC
	trace   lanetrace.TraceContext

	tokens []int32 // generated so far, as the host has read them
}

// requestOf makes request id: it hangs on the seed and the id alone, never on
// when it comes. Every other one is sampled greedily.
func requestOf(s *shape, seed uint64, id int) *request {
	r := rand.New(rand.NewPCG(seed, uint64(id)))
	between := func(b [2]int) int { return b[0] + r.IntN(b[1]-b[0]+1) }
	q := &request{id: id, prompt: make([]int32, between(s.prompt)), output: between(s.output), topK: 1, seed: int32(r.Uint32())}
	if id%2 == 1 {
		q.topK = 8
	}
	for i := range q.prompt {
		q.prompt[i] = int32(1 + r.IntN(s.vocab-1))
	}
	q.tokens = make([]int32, 0, q.output)
	return q
}

// traceOf is the trace context that request id came with, none for requests
// beyond the share that a gateway samples. It hangs on the seed, the number and
// the share alone.
func traceOf(seed uint64, id int, share float64) (c lanetrace.TraceContext) {
	r := rand.New(rand.NewPCG(seed, 1<<62|uint64(id)))
	if r.Float64() >= share {
		return c
	}
	binary.BigEndian.PutUint64(c.TraceID[:], r.Uint64())
	binary.BigEndian.PutUint64(c.TraceID[8:], r.Uint64()|1)
	binary.BigEndian.PutUint64(c.SpanID[:], r.Uint64()|1)
	c.Flags = 1
	return c
}

// traced is a request with a trace context, as the summary shows it.
type traced struct {
	ID           int    `json:"id"`
	Traceparent  string `json:"traceparent"`
	PromptTokens int    `json:"prompt_tokens"`
	OutputTokens int    `json:"output_tokens"`
}

func newTraced(q *request) traced {
	return traced{
		ID: q.id, Traceparent: fmt.Sprintf("00-%x-%x-%02x", q.trace.TraceID, q.trace.SpanID, q.trace.Flags),
		PromptTokens: len(q.prompt), OutputTokens: len(q.tokens),
	}
}

// arrivals is a Poisson process of requests. When the engine cannot take one in,
// the process stands still.
type arrivals struct {
	shape *shape
	seed  uint64
	gaps  *rand.Rand
	mean  time.Duration
	next  time.Duration
	count int

	share float64       // of requests with a trace context
	limit int           // requests in all, 0 without a limit
	until time.Duration // none comes later, 0 without an end
	ended bool
}

func newArrivals(s *shape, seed uint64, rate float64, limit int, until time.Duration) *arrivals {
	return &arrivals{
		shape: s, seed: seed, gaps: rand.New(rand.NewPCG(seed, 1<<63)), limit: limit, until: until,
		mean: time.Duration(float64(time.Second) / rate),
	}
}

// over reports whether no more requests will come.
func (a *arrivals) over(now time.Duration) bool {
	if a.limit > 0 && a.count >= a.limit || a.until > 0 && now >= a.until {
		a.ended = true
	}
	return a.ended
}

// take returns the next request if it has come by now.
func (a *arrivals) take(now time.Duration) *request {
	if a.over(now) || a.next > now {
		return nil
	}
	q := requestOf(a.shape, a.seed, a.count)
	q.arrived, q.tookNS, q.trace = a.next, spanring.MonoNS(), traceOf(a.seed, a.count, a.share)
	a.count++
	a.next += time.Duration(a.gaps.ExpFloat64() * float64(a.mean))
	return q
}

// wake is when the engine has to look again: at the next arrival, or when none
// will come any more.
func (a *arrivals) wake() time.Duration {
	if a.until > 0 {
		return min(a.next, a.until)
	}
	return a.next
}

// hold lets the process stand still until now.
func (a *arrivals) hold(now time.Duration) { a.next = max(a.next, now) }
