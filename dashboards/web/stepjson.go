package web

import (
	"encoding/json"
	"strconv"

	"github.com/lanetrace/lanetrace/collector"
)

// stepsJSON appends a batch of steps as JSON. Times are ns since base, so that
// the browser's 64-bit floats hold them exactly; durations are ns. Names stand
// once each in a table before the steps. The fields of a span are, in order: kind
// (lane, kernel, graph as numbers), name, lane (-1 for none), context, stream,
// ordinal, parent, start, raw, correction, lead, gap, calibration, uncertainty of
// the start, of the duration, flags (1 in a graph, 2 shares its start).
type stepsEncoder struct {
	index map[*collector.Name]int
	names []*collector.Name
}

func (e *stepsEncoder) name(n *collector.Name) int {
	if n == nil {
		return -1
	}
	i, ok := e.index[n]
	if !ok {
		i = len(e.names)
		e.index[n] = i
		e.names = append(e.names, n)
	}
	return i
}

// The kinds on the wire.
const (
	wireLane = iota
	wireKernel
	wireGraph
)

func wireKind(k uint8) int64 {
	switch k {
	case uint8(collector.KindKernel):
		return wireKernel
	case uint8(collector.KindGraph):
		return wireGraph
	}
	return wireLane
}

// append encodes p. skipped is how many steps between the last batch and this one
// are left out.
func (e *stepsEncoder) append(b []byte, p *picked, baseNS int64, skipped uint64) []byte {
	if e.index == nil {
		e.index = make(map[*collector.Name]int)
	}
	clear(e.index)
	e.names = e.names[:0]
	b = append(b, `{"skipped":`...)
	b = strconv.AppendUint(b, skipped, 10)
	b = append(b, `,"steps":[`...)
	for i := range p.steps {
		if i > 0 {
			b = append(b, ',')
		}
		b = e.step(b, &p.steps[i], p.spans, baseNS)
	}
	b = append(b, `],"names":[`...)
	for i, n := range e.names {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendName(b, n)
	}
	return append(b, "]}"...)
}

// appendName appends a name's title and, where that is another, its whole text.
func appendName(b []byte, n *collector.Name) []byte {
	title := collector.CutText(n.Title(), collector.MaxLabelBytes)
	b = append(b, '[')
	b = appendText(b, title)
	if title != n.Text {
		b = append(b, ',')
		b = appendText(b, n.Text)
	}
	return append(b, ']')
}

func appendText(b []byte, s string) []byte {
	t, err := json.Marshal(s)
	if err != nil { // a string always can be
		t = []byte(`""`)
	}
	return append(b, t...)
}

func (e *stepsEncoder) step(b []byte, s *step, spans []span, baseNS int64) []byte {
	num := func(key string, v int64) {
		b = append(b, ',', '"')
		b = append(b, key...)
		b = append(b, '"', ':')
		b = strconv.AppendInt(b, v, 10)
	}
	text := func(key, v string) {
		b = append(b, ',', '"')
		b = append(b, key...)
		b = append(b, '"', ':')
		b = appendText(b, v)
	}
	flag := func(key string, v bool) {
		if v {
			num(key, 1)
		}
	}
	b = append(b, `{"n":`...)
	b = strconv.AppendUint(b, s.number, 10)
	num("at", int64(s.at))
	num("a", s.startNS-baseNS)
	num("z", s.endNS-baseNS)
	if s.hasBegin {
		num("begin", s.beginNS-baseNS)
		num("host", s.hostNS)
	}
	flag("armed", s.armed)
	flag("asked", s.asked)
	flag("untimed", s.untimed)
	flag("slow", s.slow)
	flag("faulty", s.faulty)
	if s.incomplete != collector.Complete {
		text("incomplete", s.incomplete.String())
	}
	if s.dropped > 0 {
		num("dropped", int64(s.dropped))
	}
	if s.missing > 0 {
		num("missing", int64(s.missing))
	}
	if s.cut > 0 {
		num("cut", int64(s.cut))
	}
	if s.hasAttrs {
		num("batch", int64(s.batch))
		num("decode", int64(s.decode))
		num("prefill", int64(s.prefill))
		text("mode", s.mode)
	}
	d := &s.derived
	num("extent", d.ExtentNS)
	num("lanes", d.LaneNS)
	num("outside", d.OutsideNS)
	if d.HasBusy {
		num("busy", d.BusyNS)
		num("idle", d.LaneIdleNS)
		num("kernels", int64(d.Kernels))
		num("starved", int64(d.Starved))
	}
	if d.HasQueue {
		num("queue", d.QueueNS)
	}
	text("bound", d.Bound.String())
	if s.numFailed > 0 {
		num("failed", int64(s.numFailed))
		b = append(b, `,"f":[`...)
		for i := range min(s.numFailed, maxFailed) {
			f := &s.failed[i]
			if f.name == nil {
				break
			}
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, '[')
			b = strconv.AppendInt(b, wireKind(f.kind), 10)
			b = append(b, ',')
			b = strconv.AppendInt(b, int64(e.name(f.name)), 10)
			b = append(b, ',')
			b = appendText(b, f.reason)
			b = append(b, ',')
			b = strconv.AppendInt(b, f.enqueueNS-baseNS, 10)
			b = append(b, ']')
		}
		b = append(b, ']')
	}
	b = append(b, `,"s":[`...)
	for i := range s.spans {
		sp := &spans[s.from+uint64(i)]
		if i > 0 {
			b = append(b, ',')
		}
		flags := int64(0)
		if sp.inGraph {
			flags |= 1
		}
		if sp.shared {
			flags |= 2
		}
		b = append(b, '[')
		for j, v := range [...]int64{
			wireKind(sp.kind), int64(e.name(sp.name)), int64(e.name(sp.lane)), int64(sp.context), int64(sp.stream), int64(sp.ordinal), int64(sp.parent),
			sp.startNS - baseNS, sp.rawNS, sp.correctNS, sp.leadNS, int64(sp.gap), int64(sp.calib), sp.placeNS, sp.lengthNS, flags,
		} {
			if j > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, v, 10)
		}
		b = append(b, ']')
	}
	return append(b, "]}"...)
}
