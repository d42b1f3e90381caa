package web

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/lanetrace/lanetrace/collector"
)

const (
	// eventWait is how long a viewer may take to accept one event.
	eventWait = 10 * time.Second
	// spansAtOnce is how many spans a viewer is sent at a time: of an engine that is
	// faster than that, steps are skipped.
	spansAtOnce = 4096
	// stateEvery is how many refreshes there are to one of everything else.
	stateEvery = 4
	// retryMS is how long a browser waits before it connects again.
	retryMS = 1000
)

// stream is one viewer.
type stream struct {
	p      *Page
	w      http.ResponseWriter
	rc     *http.ResponseController
	label  string // the engine asked for, "" for the first
	run    *collector.Engine
	baseNS int64
	seen   uint64 // steps of the run that were sent or skipped
	second int64  // lanes were sent up to here
	memory uint64 // samples that were sent

	enc  stepsEncoder
	pick picked
	buf  []byte
}

// events streams what the engine named by the query's engine does, until the
// viewer goes or the page is closed.
func (p *Page) events(w http.ResponseWriter, r *http.Request) {
	if !p.enter() {
		w.Header().Set("Retry-After", "5")
		http.Error(w, "too many viewers, or the page is closing: try again", http.StatusServiceUnavailable)
		return
	}
	defer p.leave()
	s := &stream{p: p, w: w, rc: http.NewResponseController(w), label: r.URL.Query().Get("engine")}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("X-Accel-Buffering", "no") // proxies that gather answers would hold events back
	if r.Method == http.MethodHead {
		return
	}
	// The server's own deadlines are for answers that end.
	if err := s.rc.SetReadDeadline(time.Time{}); err != nil {
		p.o.Logger.Debug("stream: no read deadline", "reason", err.Error())
	}
	s.buf = append(s.buf, "retry: "...)
	s.buf = strconv.AppendInt(s.buf, retryMS, 10)
	s.buf = append(s.buf, "\n\n"...)
	tick := time.NewTicker(p.o.Refresh)
	defer tick.Stop()
	for i := 0; ; i++ {
		if err := s.refresh(i%stateEvery == 0); err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-p.done:
			return
		case <-tick.C:
		}
	}
}

// choose is the run that the viewer wants to see now, nil for none.
func (s *stream) choose(es []*collector.Engine) *collector.Engine {
	var first, live *collector.Engine
	for _, e := range es {
		if s.label != "" && e.Label() != s.label {
			continue
		}
		if first == nil {
			first = e
		}
		if live == nil && e.State() == collector.EngineLive {
			live = e
		}
	}
	switch {
	case live != nil:
		return live
	case first != nil:
		return first
	}
	return nil
}

func (s *stream) refresh(state bool) error {
	es := s.p.o.Engines()
	if e := s.choose(es); e != s.run {
		s.run, s.seen, s.second, s.memory = e, 0, 0, 0
		state = true
		if e != nil {
			s.baseNS = e.NowMonoNS()
			if err := s.json("run", s.p.runState(e, s.baseNS)); err != nil {
				return err
			}
		}
	}
	if s.run != nil {
		s.steps()
	}
	if state {
		if err := s.json("state", s.state(es)); err != nil {
			return err
		}
	}
	if len(s.buf) == 0 {
		return nil
	}
	if err := s.rc.SetWriteDeadline(time.Now().Add(eventWait)); err != nil {
		s.p.o.Logger.Debug("stream: no write deadline", "reason", err.Error())
	}
	_, err := s.w.Write(s.buf)
	s.buf = s.buf[:0]
	if err == nil {
		err = s.rc.Flush()
	}
	return err
}

// steps adds an event with the steps that have closed since the last one.
func (s *stream) steps() {
	p := s.p
	p.mu.Lock()
	t := p.tracks[s.run]
	if t == nil || t.seen == s.seen {
		p.mu.Unlock()
		return
	}
	first := s.seen == 0
	limit := spansAtOnce
	if first {
		limit = maxSpans
	}
	t.since(&s.pick, s.seen, limit, first)
	total := t.seen
	p.mu.Unlock()
	skipped := total - s.seen
	for i := range s.pick.steps {
		if s.pick.steps[i].at > s.seen {
			skipped--
		}
	}
	s.seen = total
	if first {
		skipped = 0 // they were before this viewer's time
	}
	s.begin("steps")
	s.buf = s.enc.append(s.buf, &s.pick, s.baseNS, skipped)
	s.buf = append(s.buf, "\n\n"...)
}

func (s *stream) begin(event string) {
	s.buf = append(s.buf, "event: "...)
	s.buf = append(s.buf, event...)
	s.buf = append(s.buf, "\ndata: "...)
}

func (s *stream) json(event string, v any) error {
	b, err := json.Marshal(v) // one line
	if err != nil {
		return err
	}
	s.begin(event)
	s.buf = append(s.buf, b...)
	s.buf = append(s.buf, "\n\n"...)
	return nil
}
