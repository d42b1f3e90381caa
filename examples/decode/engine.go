package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
)

// engine serves requests with one model on one GPU. It is used by one goroutine.
type engine struct {
	hub   *lanetrace.Hub
	gpu   backend.GPU
	model *model
	sched *scheduler
	async bool

	admit, prefill, decode lanetrace.LaneID

	// Two plans take turns: one is being run while the next is made.
	plans [2]plan
	turn  int

	// What a step sampled is copied on a stream of its own, behind the step's
	// event, so that the copy is not queued behind the next step.
	copies  backend.Stream
	sampled [2]backend.Event

	readback    []byte
	first, next []int32

	stats stats

	// graphs, when it is set, holds the decode passes that are replayed.
	graphs *graphs
	plants plants

	// inspect, when it is set, is called after each pass is enqueued.
	inspect func(p *pass, of []*sequence) error
	// ended counts a request that is complete and hands it to served, if that is
	// set.
	ended  func(*request)
	served func(*request)
}

func newEngine(hub *lanetrace.Hub, gpu backend.GPU, m *model, async bool) (*engine, error) {
	s := &m.shape
	e := &engine{
		hub: hub, gpu: gpu, model: m, async: async, sched: newScheduler(s.slots, s.rows),
		admit: hub.Lane("admit"), prefill: hub.Lane("prefill"), decode: hub.Lane("decode"),
		readback: make([]byte, 4*(s.rows+s.slots)),
		first:    make([]int32, 0, s.rows), next: make([]int32, 0, s.slots),
	}
	e.ended = func(r *request) {
		e.stats.served++
		if r.trace.Valid() {
			e.hub.RequestEnd(lanetrace.Request{
				Context: r.trace, BeginMonoNS: r.tookNS, PromptTokens: len(r.prompt), OutputTokens: len(r.tokens),
			})
			e.stats.ended(r)
		}
		if e.served != nil {
			e.served(r)
		}
	}
	e.plans[1].parity = 1
	return e, e.makeCopies()
}

// makeCopies makes the stream and the events by which sampled tokens come back.
func (e *engine) makeCopies() (err error) {
	if e.copies, err = e.gpu.CreateStream(); err != nil {
		return fmt.Errorf("create stream for copies: %w", err)
	}
	for i := range e.sampled {
		if e.sampled[i], err = e.gpu.CreateEvent(); err != nil {
			return fmt.Errorf("create event: %w", err)
		}
	}
	return nil
}

// close frees what the engine made, the model aside.
func (e *engine) close() error {
	var errs []error
	if e.graphs != nil {
		errs = append(errs, e.graphs.forget())
	}
	if e.copies != 0 {
		for _, ev := range e.sampled {
			if ev != 0 {
				errs = append(errs, e.gpu.DestroyEvent(ev))
			}
		}
		errs = append(errs, e.gpu.DestroyStream(e.copies))
		e.copies = 0
	}
	return errors.Join(errs...)
}

// enqueue puts all of a plan's work on the model's stream and waits for none of
// it. It does not allocate.
func (e *engine) enqueue(step lanetrace.Step, p *plan) error {
	lanes := laneWalk{dev: e.gpu.Telemetry(), step: step, stream: e.model.stream}
	err := e.lanes(&lanes, p)
	// The step's own event comes before its last lane's end: on an H200 a timing
	// event just before one that another stream waits for, or before a copy, costs
	// the GPU 11 µs more than one after it (docs/h200.md).
	if err == nil {
		if err = e.gpu.RecordEvent(e.sampled[p.parity], e.model.stream); err != nil {
			err = fmt.Errorf("record the step's end: %w", err)
		}
	}
	lanes.end()
	return err
}

func (e *engine) lanes(w *laneWalk, p *plan) error {
	m := e.model
	if len(p.slot) > 0 {
		if err := m.upload(m.prefill, p.slot, p.pos, p.picks, false); err != nil {
			return err
		}
	}
	if len(p.decode) > 0 {
		if err := m.upload(m.dec, p.decSlot, p.decPos, nil, true); err != nil {
			return err
		}
	}
	if len(p.admit) > 0 {
		w.enter(e.admit)
		if err := m.admit(p.admit); err != nil {
			return err
		}
		p.launches++
	}
	if len(p.slot) > 0 {
		w.enter(e.prefill)
		n, err := m.run(m.prefill, p.parity)
		p.launches += n
		if err == nil && e.inspect != nil && len(p.picks) > 0 {
			err = e.inspect(m.prefill, p.pickOf)
		}
		if err != nil {
			return err
		}
	}
	if len(p.decode) > 0 {
		w.enter(e.decode)
		n, err := e.runDecode(p.parity)
		p.launches += n
		if err == nil && e.inspect != nil {
			err = e.inspect(m.dec, p.decode)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// laneWalk goes from lane to lane of a step: neighbours share an event.
type laneWalk struct {
	dev    *lanetrace.Device
	step   lanetrace.Step
	stream backend.Stream
	lane   lanetrace.Lane
	inside bool
}

func (w *laneWalk) enter(id lanetrace.LaneID) {
	if w.inside {
		w.lane = w.lane.Next(id)
		return
	}
	w.lane, w.inside = w.dev.LaneBegin(w.step, id, w.stream), true
}

func (w *laneWalk) end() { w.lane.End() }

// collect waits until the plan's step is through, reads what it sampled and tells
// the scheduler.
func (e *engine) collect(p *plan) error {
	if err := e.read(p); err != nil {
		return err
	}
	e.first, e.next = e.first[:0], e.next[:0]
	for i := range p.pickOf {
		e.first = append(e.first, e.token(e.model.prefill, i))
	}
	for i := range p.decode {
		e.next = append(e.next, e.token(e.model.dec, i))
	}
	if err := e.sched.accept(p, e.first, e.next, e.model.shape.vocab, e.ended); err != nil {
		return err
	}
	e.stats.collected(p)
	return nil
}

func (e *engine) token(p *pass, i int) int32 {
	return int32(binary.LittleEndian.Uint32(e.readback[4*(p.outAt+i):]))
}

func (e *engine) read(p *plan) error {
	if err := e.gpu.StreamWaitEvent(e.copies, e.sampled[p.parity]); err != nil {
		return fmt.Errorf("wait for the step's end: %w", err)
	}
	if err := e.gpu.CopyDtoHOnStream(e.readback, e.model.out[p.parity], e.copies); err != nil {
		return fmt.Errorf("read sampled tokens: %w", err)
	}
	return nil
}

// attrs says what a step works on.
func (e *engine) attrs(p *plan) lanetrace.Attrs {
	a := lanetrace.Attrs{
		BatchSize: len(p.decode), DecodeTokens: len(p.decode) + len(p.picks), PrefillTokens: len(p.slot),
		GraphMode: e.graphMode(p),
	}
	last := int32(-1)
	for _, slot := range p.slot { // a prompt's rows are neighbours
		if slot != last {
			a.BatchSize++
			last = slot
		}
	}
	return a
}

// serve runs steps until the requests have ended and all are served, or ctx ends:
// then the step that is running is the last. Requests that were cut short are
// left where they are.
func (e *engine) serve(ctx context.Context, src *arrivals) error {
	start := time.Now()
	var pending *plan // enqueued and not read: asynchronous mode
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		now := time.Since(start)
		e.take(src, now)
		if !e.sched.ready() {
			if pending != nil {
				if err := e.collect(pending); err != nil {
					return err
				}
				pending = nil
				continue
			}
			if e.sched.idle() && src.over(now) {
				break
			}
			timer.Reset(max(0, src.wake()-time.Since(start)))
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
			continue
		}
		begin := time.Now()
		p, err := e.step()
		if err == nil && e.async {
			if pending != nil {
				err = e.collect(pending)
			}
			pending = p
		}
		if err != nil {
			return err
		}
		e.stats.step.observe(time.Since(begin))
	}
	if pending != nil {
		if err := e.collect(pending); err != nil {
			return err
		}
	}
	e.stats.elapsed = time.Since(start)
	return e.scan()
}

func (e *engine) take(src *arrivals, now time.Duration) {
	for e.sched.hasRoom() {
		r := src.take(now)
		if r == nil {
			return
		}
		e.stats.came++
		e.sched.submit(r)
	}
	src.hold(now)
}

// step runs one step: in synchronous mode to its end, in asynchronous mode until
// it is enqueued.
func (e *engine) step() (*plan, error) {
	p := &e.plans[e.turn&1]
	e.turn++
	step := e.hub.StepBegin()
	defer step.End()
	e.sched.plan(p)
	step.SetAttrs(e.attrs(p))
	for _, q := range p.works {
		step.Link(q.req.trace)
	}
	if err := e.enqueue(step, p); err != nil {
		return p, err
	}
	if err := e.plant(); err != nil {
		return p, err
	}
	if e.async {
		return p, nil
	}
	return p, e.collect(p)
}
