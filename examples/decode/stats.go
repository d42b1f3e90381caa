package main

import (
	"math"
	"time"
)

// stats is what an engine has done, on the host's clock.
type stats struct {
	came, served  int // requests
	steps         int
	launches      int
	prefillTokens int
	tokens        int // generated and read
	stopped       int // sequences that sampled the stop token
	stale         int // rows run for a sequence that had ended
	traced        []traced
	tracedCount   int
	elapsed       time.Duration
	step          durations
}

func (s *stats) collected(p *plan) {
	s.steps++
	s.launches += p.launches
	s.prefillTokens += len(p.slot)
	s.tokens += p.news
	s.stopped += p.stop
	s.stale += p.stale
}

// maxTraced is how many traced requests the summary names.
const maxTraced = 10_000

// ended counts a request that had a trace context.
func (s *stats) ended(q *request) {
	s.tracedCount++
	if len(s.traced) < maxTraced {
		s.traced = append(s.traced, newTraced(q))
	}
}

// durations is a histogram of fixed size with buckets 2 % wide, from 1 µs.
type durations struct {
	buckets [1024]uint32
	count   int
	longest time.Duration
}

var bucketLog = math.Log(1.02)

func (d *durations) observe(v time.Duration) {
	i := 0
	if us := float64(v) / 1e3; us > 1 {
		i = min(len(d.buckets)-1, int(math.Log(us)/bucketLog))
	}
	d.buckets[i]++
	d.count++
	d.longest = max(d.longest, v)
}

// quantile is the middle of the bucket in which the q-quantile lies, q from 0 to
// 1; 0 when nothing was observed.
func (d *durations) quantile(q float64) time.Duration {
	rank := int(math.Ceil(q * float64(d.count)))
	for i, n := range d.buckets {
		if rank -= int(n); rank <= 0 && d.count > 0 {
			us := math.Exp((float64(i) + 0.5) * bucketLog)
			return min(d.longest, time.Duration(us*1e3))
		}
	}
	return d.longest
}
