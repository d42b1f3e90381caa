package main

import (
	"math/rand/v2"
	"time"
)

// request is one sequence to be generated.
type request struct {
	id      int
	prompt  []int32
	output  int // tokens to generate at most; stopToken ends it earlier
	topK    int // 1 is greedy
	seed    int32
	arrived time.Duration // since the engine's start

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

// arrivals is a Poisson process of requests. When the engine cannot take one in,
// the process stands still.
type arrivals struct {
	shape *shape
	seed  uint64
	gaps  *rand.Rand
	mean  time.Duration
	next  time.Duration
	count int

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
	q.arrived = a.next
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
