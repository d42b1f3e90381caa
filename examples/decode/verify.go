package main

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"
)

// verdict is what a comparison with the reference came to.
type verdict struct {
	Sequences int     `json:"sequences"`
	Tokens    int     `json:"tokens"`
	MaxDiff   float64 `json:"max_logit_difference"`
	// Ties are tokens whose logit another one comes closer to than the tolerance:
	// either is right.
	Ties int `json:"ties"`
}

// tolerance is how far a logit may lie from the reference's. Logits are up to
// about 10 in size; float32 sums of the model's lengths differ by about 1e-5.
const tolerance = 2e-3

// checked is one sequence and the logits that each of its tokens came from.
type checked struct {
	req    *request
	logits [][]float32
}

// verify serves a few short requests, in synchronous mode and outside of any step
// of telemetry's, and compares every logit and every token with ref's.
func verify(e *engine, ref *reference, seed uint64) (verdict, error) {
	s := &e.model.shape
	wasAsync, wasStats := e.async, e.stats
	e.async = false
	bySeq := make(map[*request]*checked)
	var all []*checked
	e.inspect = func(p *pass, of []*sequence) error {
		b := make([]byte, 4*len(of)*s.vocab)
		if err := e.gpu.CopyDtoHOnStream(b, e.model.logits, e.model.stream); err != nil {
			return fmt.Errorf("read logits: %w", err)
		}
		for i, q := range of {
			row := make([]float32, s.vocab)
			for j := range row {
				row[j] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*(i*s.vocab+j):]))
			}
			bySeq[q.req].logits = append(bySeq[q.req].logits, row)
		}
		return nil
	}
	defer func() { e.inspect, e.async, e.stats = nil, wasAsync, wasStats }()

	for i, length := range []int{min(5, s.prompt[1]), 1, min(9, s.prompt[1])} {
		r := requestOf(s, ^seed, i)
		r.prompt = slices.Repeat(r.prompt, length)[:length]
		r.output = 4
		c := &checked{req: r}
		bySeq[r], all = c, append(all, c)
		e.sched.submit(r)
	}
	for !e.sched.idle() {
		p := &e.plans[0]
		e.sched.plan(p)
		if err := e.enqueue(noStep, p); err != nil {
			return verdict{}, err
		}
		if err := e.collect(p); err != nil {
			return verdict{}, err
		}
	}
	v := verdict{Sequences: len(all)}
	errs := make([]error, len(all))
	parts := make([]verdict, len(all))
	var wg sync.WaitGroup
	for i, c := range all {
		wg.Go(func() { parts[i], errs[i] = c.compare(ref) })
	}
	wg.Wait()
	for i := range all {
		v.Tokens += parts[i].Tokens
		v.Ties += parts[i].Ties
		v.MaxDiff = max(v.MaxDiff, parts[i].MaxDiff)
		if errs[i] != nil {
			return v, fmt.Errorf("numbers differ from the CPU reference: %w", errs[i])
		}
	}
	return v, nil
}

// compare runs the reference over the sequence's own tokens, so that one that
// differs does not make all later ones differ.
func (c *checked) compare(ref *reference) (v verdict, err error) {
	q := ref.sequence()
	var want []float64
	for _, token := range c.req.prompt {
		want = q.next(token)
	}
	if len(c.logits) != len(c.req.tokens) {
		return v, fmt.Errorf("request %d: %d tokens from %d rows of logits", c.req.id, len(c.req.tokens), len(c.logits))
	}
	for i, token := range c.req.tokens {
		for j, f := range c.logits[i] {
			d := math.Abs(float64(f) - want[j])
			if !(d <= tolerance) {
				return v, fmt.Errorf("request %d, token %d: logit %d is %v, want %.6f within %v", c.req.id, i, j, f, want[j], tolerance)
			}
			v.MaxDiff = max(v.MaxDiff, d)
		}
		tie, err := c.judge(token, len(c.req.prompt)-1+i, want, ref.shape.inverse)
		if err != nil {
			return v, fmt.Errorf("request %d, token %d: %w", c.req.id, i, err)
		}
		if tie {
			v.Ties++
		}
		v.Tokens++
		want = q.next(token)
	}
	return v, nil
}

// judge says whether token may be sampled from logits at pos.
func (c *checked) judge(token int32, pos int, logits []float64, inverse float32) (tie bool, err error) {
	if c.req.topK == 1 {
		best, margin := refGreedy(logits)
		tie = margin < 2*tolerance
		if token != best && !(tie && logits[token] > logits[best]-2*tolerance) {
			return false, fmt.Errorf("greedy sampling gave %d (logit %.6f), want %d (%.6f)", token, logits[token], best, logits[best])
		}
		return tie, nil
	}
	order := make([]int, len(logits))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(logits[b], logits[a]) })
	top := order[:c.req.topK]
	sum := 0.0
	weight := func(i int) float64 { return math.Exp((logits[i] - logits[top[0]]) * float64(inverse)) }
	for _, i := range top {
		sum += weight(i)
	}
	draw := float64(mix(mix(uint32(c.req.seed))^uint32(pos))>>8) / (1 << 24)
	var low float64
	for _, i := range top {
		high := low + weight(i)/sum
		if int(token) == i && draw >= low-tolerance && draw < high+tolerance {
			return draw < low || draw >= high, nil
		}
		low = high
	}
	return false, fmt.Errorf("sampling the top %d with a draw of %.6f gave %d", len(top), draw, token)
}
