package device

import "github.com/lanetrace/lanetrace/collector"

// works adds up what the engines on each device did. Engines come and go; the sums
// only grow.
type works struct {
	last map[*collector.Engine]collector.Work
	next map[*collector.Engine]collector.Work // last, once it is full
	by   map[UUID]*collector.Work
}

// update adds what engines did since the last call to the devices they are on. What
// an engine had done when it is first seen does not count: it was before.
func (w *works) update(engines []*collector.Engine) {
	if w.next == nil {
		w.next = make(map[*collector.Engine]collector.Work, len(engines))
	}
	next := w.next
	for _, e := range engines {
		now := e.Work()
		next[e] = now
		before, known := w.last[e]
		if !known || now == before {
			continue
		}
		for _, u := range DevicesOf(e) {
			if w.by == nil {
				w.by = make(map[UUID]*collector.Work)
			}
			s := w.by[u]
			if s == nil {
				s = new(collector.Work)
				w.by[u] = s
			}
			s.Steps += now.Steps - before.Steps
			s.DecodeTokens += now.DecodeTokens - before.DecodeTokens
			s.PrefillTokens += now.PrefillTokens - before.PrefillTokens
		}
	}
	clear(w.last)
	w.last, w.next = next, w.last
}

// on is what was done on a device.
func (w *works) on(device UUID) (sum collector.Work) {
	for u, s := range w.by {
		if u.Is(device) {
			sum.Steps += s.Steps
			sum.DecodeTokens += s.DecodeTokens
			sum.PrefillTokens += s.PrefillTokens
		}
	}
	return sum
}

// DevicesOf are the devices that an engine has contexts on, else the one in its header.
func DevicesOf(e *collector.Engine) (us []UUID) {
	add := func(text string) {
		u, ok := ParseUUID(text)
		for _, have := range us {
			ok = ok && have != u
		}
		if ok {
			us = append(us, u)
		}
	}
	for _, c := range e.Contexts() {
		add(c.UUIDText())
	}
	if len(us) == 0 {
		add(e.Info().GPUUUID)
	}
	return us
}
