package main

import "fmt"

// sequence is a request that has a slot.
type sequence struct {
	req  *request
	slot int
	// fed is how many prompt tokens steps have been planned for, planned how many
	// tokens have been sampled or will be by a planned step.
	fed, planned int
	done         bool
}

// plan is what one step does. Its slices are used again.
type plan struct {
	admit []*sequence

	// Prompt tokens to be processed, a row each; picks are the rows that end a
	// prompt, from which the first token is sampled for pickOf.
	slot, pos []int32
	picks     []int32
	pickOf    []*sequence

	// Sequences that get one more token.
	decode            []*sequence
	decSlot, decPos   []int32
	works             []*sequence // all that get a row
	launches          int         // made for it
	parity            int         // which of the two sets of output it writes
	stale, stop, news int         // filled in by accept
}

func (p *plan) reset() {
	p.admit, p.pickOf, p.decode = p.admit[:0], p.pickOf[:0], p.decode[:0]
	p.slot, p.pos, p.picks = p.slot[:0], p.pos[:0], p.picks[:0]
	p.decSlot, p.decPos = p.decSlot[:0], p.decPos[:0]
	p.works = p.works[:0]
	p.launches, p.stale, p.stop, p.news = 0, 0, 0, 0
}

// scheduler decides what each step does. It may plan a step before the outcome of
// the one before is known: a sequence that turns out to have ended then gets a
// row too many, whose token is thrown away. It knows nothing of the GPU.
type scheduler struct {
	slots    []*sequence
	rows     int // prompt tokens of a step at most
	waiting  []*request
	prefills []*sequence // prompts not fully fed, in order of admission
	active   int
}

func newScheduler(slots, rows int) *scheduler {
	return &scheduler{slots: make([]*sequence, slots), rows: rows}
}

// hasRoom reports whether another request can wait: twice as many as are served.
func (s *scheduler) hasRoom() bool { return len(s.waiting) < 2*len(s.slots) }

func (s *scheduler) submit(r *request) { s.waiting = append(s.waiting, r) }

// idle reports whether there is nothing to plan and nothing outstanding.
func (s *scheduler) idle() bool { return s.active == 0 && len(s.waiting) == 0 }

// ready reports whether a step planned now would have something to do.
func (s *scheduler) ready() bool {
	if len(s.prefills) > 0 {
		return true
	}
	for _, q := range s.slots {
		if q == nil && len(s.waiting) > 0 || q != nil && q.decodes() {
			return true
		}
	}
	return false
}

// decodes reports whether the sequence gets another token in the next step.
func (q *sequence) decodes() bool {
	return !q.done && q.fed == len(q.req.prompt) && q.planned < q.req.output
}

// plan fills p with the next step.
func (s *scheduler) plan(p *plan) {
	p.reset()
	for slot, q := range s.slots {
		if q == nil {
			if len(s.waiting) == 0 {
				continue
			}
			q = &sequence{req: s.waiting[0], slot: slot}
			s.waiting = append(s.waiting[:0], s.waiting[1:]...)
			s.slots[slot] = q
			s.active++
			s.prefills = append(s.prefills, q)
			p.admit = append(p.admit, q)
			continue
		}
		if !q.decodes() {
			continue
		}
		p.decode = append(p.decode, q)
		p.works = append(p.works, q)
		p.decSlot = append(p.decSlot, int32(slot))
		p.decPos = append(p.decPos, int32(len(q.req.prompt)+q.planned-1))
		q.planned++
	}
	for len(s.prefills) > 0 && len(p.slot) < s.rows {
		q := s.prefills[0]
		p.works = append(p.works, q)
		for q.fed < len(q.req.prompt) && len(p.slot) < s.rows {
			p.slot = append(p.slot, int32(q.slot))
			p.pos = append(p.pos, int32(q.fed))
			q.fed++
		}
		if q.fed < len(q.req.prompt) {
			break
		}
		p.picks = append(p.picks, int32(len(p.slot)-1))
		p.pickOf = append(p.pickOf, q)
		q.planned = 1
		s.prefills = append(s.prefills[:0], s.prefills[1:]...)
	}
}

// accept takes in what the step sampled: first for pickOf, then for decode. Plans
// are accepted in the order in which they were made. ended is called for each
// request that is complete. It fails for a token that cannot be.
func (s *scheduler) accept(p *plan, first, next []int32, vocab int, ended func(*request)) error {
	if len(first) != len(p.pickOf) || len(next) != len(p.decode) {
		return fmt.Errorf("step sampled %d and %d tokens: want %d and %d", len(first), len(next), len(p.pickOf), len(p.decode))
	}
	for i, q := range p.pickOf {
		if err := s.token(p, q, first[i], vocab, ended); err != nil {
			return err
		}
	}
	for i, q := range p.decode {
		if err := s.token(p, q, next[i], vocab, ended); err != nil {
			return err
		}
	}
	return nil
}

func (s *scheduler) token(p *plan, q *sequence, token int32, vocab int, ended func(*request)) error {
	if q.done {
		// It ended in the step before, which was not known when this was planned.
		p.stale++
		return nil
	}
	if token < 0 || int(token) >= vocab {
		return fmt.Errorf("request %d: sampled token %d of a vocabulary of %d", q.req.id, token, vocab)
	}
	q.req.tokens = append(q.req.tokens, token)
	p.news++
	if token == stopToken {
		p.stop++
	}
	if token != stopToken && len(q.req.tokens) < q.req.output {
		return nil
	}
	q.done = true
	s.slots[q.slot] = nil
	s.active--
	ended(q.req)
	return nil
}
