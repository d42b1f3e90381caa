package main

import (
	"testing"

	"pgregory.net/rapid"
)

// TestSchedulerInvariants drives a scheduler with any arrivals, any tokens and one
// step ahead or not, and holds it to what the engine and the kernels rely on.
func TestSchedulerInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots, rows := rapid.IntRange(1, 5).Draw(t, "slots"), rapid.IntRange(1, 7).Draw(t, "rows")
		async := rapid.Bool().Draw(t, "async")
		todo := rapid.IntRange(1, 12).Draw(t, "requests")
		s := newScheduler(slots, rows)
		fed := map[*request]int{}        // positions fed, in order
		slotOf := map[*request]int{}     // of each admitted request
		ended := map[*request]bool{}     //
		tokens := map[*request][]int32{} // what was sampled while it was not ended
		var order, admitted []*request   // of arrival, of admission
		pending, came := (*plan)(nil), 0 //
		plans, turn := [2]plan{}, 0      //
		const vocab = 4                  // so that stop tokens are frequent
		accept := func(p *plan) {        //
			var first, next []int32
			draw := func(q *sequence) int32 {
				v := rapid.Int32Range(0, vocab-1).Draw(t, "token")
				if !ended[q.req] {
					tokens[q.req] = append(tokens[q.req], v)
				}
				return v
			}
			// A sequence is in a plan at most once, so drawing all before accepting
			// sees the same endings as accepting one by one.
			for _, q := range p.pickOf {
				first = append(first, draw(q))
			}
			for _, q := range p.decode {
				next = append(next, draw(q))
			}
			err := s.accept(p, first, next, vocab, func(r *request) {
				if ended[r] {
					t.Fatalf("request %d ended twice", r.id)
				}
				ended[r] = true
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		for step := 0; ; step++ {
			if step > 10000 {
				t.Fatalf("%d of %d requests ended after %d steps", len(ended), came, step)
			}
			for came < todo && s.hasRoom() && rapid.Bool().Draw(t, "comes") {
				r := &request{id: came, prompt: make([]int32, rapid.IntRange(1, 9).Draw(t, "prompt")), output: rapid.IntRange(1, 6).Draw(t, "output")}
				came++
				order = append(order, r)
				s.submit(r)
			}
			if !s.ready() {
				if pending != nil {
					accept(pending)
					pending = nil
				} else if came == todo && s.idle() {
					break
				}
				continue
			}
			p := &plans[turn&1]
			turn++
			s.plan(p)
			if len(p.slot) == 0 && len(p.decode) == 0 {
				t.Fatal("ready, and the plan is empty")
			}
			if len(p.slot) > rows || len(p.slot) != len(p.pos) || len(p.decode) > slots || len(p.picks) != len(p.pickOf) {
				t.Fatalf("plan %+v of %d slots and %d rows", p, slots, rows)
			}
			for _, q := range p.admit {
				admitted = append(admitted, q.req)
				slotOf[q.req] = q.slot
			}
			occupant := map[int32]*request{}
			for r, slot := range slotOf {
				if ended[r] {
					continue
				}
				if o := occupant[int32(slot)]; o != nil {
					t.Fatalf("slot %d has requests %d and %d", slot, o.id, r.id)
				}
				occupant[int32(slot)] = r
			}
			feed := func(slot, pos int32) *request {
				r := occupant[slot]
				if r == nil {
					t.Fatalf("a row for slot %d, which nobody has", slot)
				}
				if int(pos) != fed[r] {
					t.Fatalf("request %d gets position %d after %d", r.id, pos, fed[r])
				}
				if int(pos) > len(r.prompt)+r.output-2 {
					t.Fatalf("request %d of %d and %d tokens gets position %d", r.id, len(r.prompt), r.output, pos)
				}
				fed[r]++
				return r
			}
			// The kernels run prefill before decode.
			pick := 0
			for i := range p.slot {
				r := feed(p.slot[i], p.pos[i])
				if last := int(p.pos[i]) == len(r.prompt)-1; last != (pick < len(p.picks) && int(p.picks[pick]) == i) {
					t.Fatalf("request %d at position %d: picks %v", r.id, p.pos[i], p.picks)
				} else if last {
					if p.pickOf[pick].req != r {
						t.Fatalf("pick %d is of request %d, want %d", pick, p.pickOf[pick].req.id, r.id)
					}
					pick++
				}
			}
			sampledNow := map[*request]bool{}
			for _, q := range p.pickOf {
				sampledNow[q.req] = true
			}
			for i, q := range p.decode {
				if r := feed(p.decSlot[i], p.decPos[i]); r != q.req || sampledNow[r] {
					t.Fatalf("decode row %d is of request %d, want %d not in this prefill", i, q.req.id, r.id)
				}
			}
			if !async {
				accept(p)
				continue
			}
			if pending != nil {
				accept(pending)
			}
			pending = p
		}
		if len(ended) != todo {
			t.Fatalf("%d of %d requests ended", len(ended), todo)
		}
		for i, r := range order {
			if admitted[i] != r {
				t.Fatalf("request %d admitted before %d", admitted[i].id, r.id)
			}
			n := len(r.tokens)
			if n != len(tokens[r]) || n == 0 || n > r.output {
				t.Fatalf("request %d has %d tokens of %d, %d sampled", r.id, n, r.output, len(tokens[r]))
			}
			for j, v := range r.tokens {
				if v != tokens[r][j] || (v == stopToken) != (j == n-1 && n < r.output) && !(v == stopToken && j == n-1) {
					t.Fatalf("request %d: tokens %v, sampled %v", r.id, r.tokens, tokens[r])
				}
			}
		}
	})
}

func TestAcceptRefusesWhatCannotBe(t *testing.T) {
	s := newScheduler(1, 4)
	s.submit(&request{prompt: []int32{1, 2}, output: 2})
	var p plan
	s.plan(&p)
	nobody := func(*request) { t.Error("a request ended") }
	if err := s.accept(&p, nil, nil, 8, nobody); err == nil {
		t.Error("no token for the prompt's end was accepted")
	}
	for _, token := range []int32{-1, 8} {
		if err := s.accept(&p, []int32{token}, nil, 8, nobody); err == nil {
			t.Errorf("token %d of a vocabulary of 8 was accepted", token)
		}
	}
}
