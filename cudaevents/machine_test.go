package cudaevents_test

import (
	"context"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
	"github.com/lanetrace/lanetrace/spanring"
)

// machine drives a recorder with random operations and faults. Whatever happens,
// the account balances after each of them, and in the end nothing is left.
type machine struct {
	*rig
	streams   []cudaevents.Stream
	capturing map[cudaevents.Stream]bool
	open      []cudaevents.Handle
	used      []cudaevents.Handle // ended, switched or stale
	reserved  []reserved
	step      uint64
	landed    int
	failed    map[spanring.Reason]int
}

type reserved struct {
	l cudaevents.Launch
	s cudaevents.Stream
}

func (m *machine) pick(t *rapid.T) cudaevents.Stream {
	return rapid.SampledFrom(m.streams).Draw(t, "stream")
}

func (m *machine) takeOpen(t *rapid.T) cudaevents.Handle {
	if len(m.open) == 0 {
		t.Skip("no open lane")
	}
	i := rapid.IntRange(0, len(m.open)-1).Draw(t, "handle")
	h := m.open[i]
	m.open = append(m.open[:i], m.open[i+1:]...)
	m.used = append(m.used, h)
	return h
}

func (m *machine) check(t *rapid.T) {
	spans, failed, _ := m.log()
	m.landed += len(spans)
	for _, f := range failed {
		m.failed[f.Reason]++
	}
	c := m.w.Counters()
	if got := c.InFlight(); got != int64(m.r.InFlight()) || got < 0 {
		t.Fatalf("begun %d - landed %d - failed %d - dropped %d = %d, but %d in flight",
			c[spanring.CtrBegun], c[spanring.CtrLanded], c.Failed(), c[spanring.CtrDropped], got, m.r.InFlight())
	}
	if int(c[spanring.CtrLanded]) != m.landed {
		t.Fatalf("%d landed, %d entries", c[spanring.CtrLanded], m.landed)
	}
	for why := spanring.FailRecord; int(why) < spanring.NumReasons; why++ {
		if c[why.Counter()] != uint64(m.failed[why]) {
			t.Fatalf("%d failed{%v}, %d entries", c[why.Counter()], why, m.failed[why])
		}
	}
	if c[spanring.CtrDriverCalls] != uint64(m.d.Calls()) {
		t.Fatalf("%d driver calls counted, %d made", c[spanring.CtrDriverCalls], m.d.Calls())
	}
	if n := m.busy(); n < m.r.InFlight() {
		t.Fatalf("%d slots busy, %d spans in flight", n, m.r.InFlight())
	}
	if v := m.d.Violations(); len(v) > 0 {
		t.Fatalf("%q", v)
	}
}

func TestRandomOperationsBalance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		so := scripted.Options{DriftPPM: 10, CallNS: rapid.SampledFrom([]int64{0, 200, 3000}).Draw(t, "callNS")}
		o := cudaevents.Options{Pairs: rapid.IntRange(1, 40).Draw(t, "pairs"), Abandon: 2 * time.Second}
		m := &machine{rig: newRig(t, so, o), capturing: map[cudaevents.Stream]bool{}, failed: map[spanring.Reason]int{}, step: 1}
		m.streams = []cudaevents.Stream{0, m.d.NewStream()}
		codes := rapid.SampledFrom([]cudaevents.Result{1, 400, 700, 999})

		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				s := m.pick(t)
				h, out := m.r.Begin(s, m.lane(m.step))
				if out == cudaevents.BeginOK {
					m.open = append(m.open, h)
				}
				if (out == cudaevents.BeginCapturing) && !m.capturing[s] || out == cudaevents.BeginOK && m.capturing[s] {
					t.Fatalf("begin: %v, capturing %v", out, m.capturing[s])
				}
			},
			"work": func(t *rapid.T) {
				if s := m.pick(t); !m.capturing[s] {
					m.d.Work(s, rapid.Int64Range(0, 20*ms).Draw(t, "ns"))
				}
			},
			"end": func(t *rapid.T) { m.r.End(m.takeOpen(t)) },
			"end a stale one": func(t *rapid.T) {
				if len(m.used) == 0 {
					t.Skip("none")
				}
				stale := m.w.Counter(spanring.CtrStaleEnds)
				if m.r.End(rapid.SampledFrom(m.used).Draw(t, "handle")) || m.w.Counter(spanring.CtrStaleEnds) != stale+1 {
					t.Fatal("a stale handle ended something, or was not counted")
				}
			},
			"switch": func(t *rapid.T) {
				if h, out := m.r.Switch(m.takeOpen(t), m.lane(m.step)); out == cudaevents.BeginOK {
					m.open = append(m.open, h)
				}
			},
			"reserve": func(t *rapid.T) {
				s := m.pick(t)
				if l, out := m.r.Reserve(s, m.kernel(m.step)); out == cudaevents.BeginOK {
					m.reserved = append(m.reserved, reserved{l, s})
				}
			},
			"launch": func(t *rapid.T) {
				if len(m.reserved) == 0 {
					t.Skip("none")
				}
				i := rapid.IntRange(0, len(m.reserved)-1).Draw(t, "launch")
				l := m.reserved[i]
				m.reserved = append(m.reserved[:i], m.reserved[i+1:]...)
				m.r.Launched(l.l, m.d.Launch(l.l.Pair, l.s, rapid.Int64Range(0, ms).Draw(t, "ns")))
			},
			"time passes": func(t *rapid.T) { m.d.Advance(rapid.Int64Range(0, 100*ms).Draw(t, "ns")) },
			"a long time": func(t *rapid.T) { m.d.Advance(rapid.Int64Range(0, 10e9).Draw(t, "ns")) },
			"harvest":     func(t *rapid.T) { m.r.Harvest() },
			"stall":       func(t *rapid.T) { m.d.Stall(m.pick(t)) },
			"stall all":   func(t *rapid.T) { m.d.StallAll() },
			"release":     func(t *rapid.T) { m.d.Release(m.pick(t)) },
			"release all": func(t *rapid.T) { m.d.ReleaseAll() },
			"step": func(t *rapid.T) {
				m.stepEnded[m.step] = m.d.Now()
				m.step++
			},
			"capture": func(t *rapid.T) {
				s := m.pick(t)
				m.capturing[s] = true
				if rapid.Bool().Draw(t, "known") {
					m.d.BeginCapture(s, scripted.Global)
				} else {
					m.d.BeginForeignCapture(s, scripted.Global)
				}
			},
			"end capture": func(t *rapid.T) {
				s := m.pick(t)
				if !m.capturing[s] {
					t.Skip("none")
				}
				m.capturing[s] = false
				if err := m.d.EndCapture(s); err != nil {
					t.Fatal(err)
				}
			},
			"new stream": func(t *rapid.T) {
				if len(m.streams) < 5 {
					m.streams = append(m.streams, m.d.NewStream())
				}
			},
			"stream goes": func(t *rapid.T) {
				i := rapid.IntRange(0, len(m.streams)-1).Draw(t, "stream")
				s := m.streams[i]
				for _, r := range m.reserved { // a launch on a destroyed stream is the engine's fault
					if r.s == s {
						t.Skip("a launch is on its way")
					}
				}
				if s == 0 || m.capturing[s] {
					t.Skip("cannot go")
				}
				m.r.StreamDestroyed(s)
				m.d.DropStream(s)
				m.streams = append(m.streams[:i], m.streams[i+1:]...)
			},
			"fault": func(t *rapid.T) {
				method := rapid.SampledFrom([]scripted.Method{
					scripted.Record, scripted.Elapsed, scripted.Launch, scripted.Pending,
					scripted.Since, scripted.Anchor, scripted.StreamID,
				}).Draw(t, "method")
				m.d.Fail(method, rapid.IntRange(1, 3).Draw(t, "nth"), codes.Draw(t, "code"))
			},
			"": m.check,
		})

		// Everything ends: what is open is abandoned, what is queued completes.
		for s, c := range m.capturing {
			if c {
				if err := m.d.EndCapture(s); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, method := range []scripted.Method{
			scripted.Record, scripted.Elapsed, scripted.Launch, scripted.Pending, scripted.Since, scripted.Anchor, scripted.StreamID,
		} {
			m.d.Heal(method)
		}
		m.d.ReleaseAll()
		for _, l := range m.reserved {
			m.r.Launched(l.l, m.d.Launch(l.l.Pair, l.s, 1000))
		}
		m.stepEnded[m.step] = m.d.Now()
		for range 5 {
			m.d.Finish()
			m.r.Harvest()
			m.d.Advance(3e9)
		}
		m.r.Harvest()
		m.check(t)
		if n := m.r.InFlight(); n != 0 || m.busy() != 0 {
			t.Fatalf("%d spans in flight and %d slots busy at the end", n, m.busy())
		}
		if err := m.r.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		m.check(t)
		if n := m.d.LiveEvents(); n != 0 {
			t.Fatalf("%d events left", n)
		}
	})
}
