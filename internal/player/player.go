// Package player plays a recorded run through a live ring, at its own pace and
// with its times moved to now, as if the engine ran on this machine: readers of
// the ring cannot tell the difference but for the run id, and for the trace contexts of
// its requests, which are others each time: a request is one trace, however often it is
// played.
package player

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/spanring"
)

// Clock is CLOCK_MONOTONIC and a way to wait on it: the machine's, or a test's.
type Clock interface {
	// MonoNS is the time.
	MonoNS() int64
	// Sleep waits for d, or returns ctx's error when it ends first.
	Sleep(ctx context.Context, d time.Duration) error
}

// SystemClock is this machine's clock.
type SystemClock struct{}

// MonoNS is CLOCK_MONOTONIC.
func (SystemClock) MonoNS() int64 { return spanring.MonoNS() }

// Sleep waits for d of real time.
func (SystemClock) Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// Options say how a run is played.
type Options struct {
	// Geometry of the ring that is made. Default: the ring's defaults.
	Geometry spanring.Geometry
	// Clock is the time that is played on. Default SystemClock.
	Clock Clock
	// StartMonoNS is when the recording's own time StartAtNS is now. Defaults: the
	// clock's time at the call, and the run's first moment. Runs that are played
	// together share both.
	StartMonoNS, StartAtNS int64
}

// batch is how many entries are written before the clock is looked at.
const batch = 128

// shortest is the shortest wait: entries that are due within it are written
// together, as a harvest lands many at once.
const shortest = time.Millisecond

// Play makes a ring in dir and writes the run that src reads into it, from first
// to last entry, each when it was received in the recording. It returns the ring
// once the run is over or ctx has ended, closed; its file is still there. An error
// of the recording comes after what could be read of it was played.
func Play(ctx context.Context, dir spanring.Dir, src *recording.Source, o Options) (*spanring.Writer, error) {
	if o.Clock == nil {
		o.Clock = SystemClock{}
	}
	info, err := src.Info()
	if err != nil {
		return nil, fmt.Errorf("play run: %w", err)
	}
	if o.StartMonoNS == 0 {
		o.StartMonoNS = o.Clock.MonoNS()
	}
	if o.StartAtNS == 0 {
		o.StartAtNS = src.NowMonoNS()
	}
	ring, err := spanring.Create(dir, spanring.Options{Geometry: o.Geometry, Info: spanring.Info{
		Executable: info.Executable, Service: info.Service, GPUUUID: info.GPUUUID, GPUName: info.GPUName,
		Rank: info.Rank, Producer: info.Producer, Model: info.Model, Level: info.Level,
	}})
	if err != nil {
		return nil, err
	}
	p := &play{
		ring: ring, src: src, shiftNS: o.StartMonoNS - o.StartAtNS,
		names: make(map[spanring.NameID]spanring.NameID), allocs: allocs{ring: ring},
	}
	p.mask = maskOf(ring.Info().RunID)
	src.OnState(p.state)
	err = p.run(ctx, o.Clock)
	if cerr := ring.Close(); err == nil {
		err = cerr
	}
	return ring, err
}

// play is one run being played.
type play struct {
	ring     *spanring.Writer
	src      *recording.Source
	shiftNS  int64
	names    map[spanring.NameID]spanring.NameID
	contexts [spanring.MaxContexts]bool
	ctrs     counters
	allocs   allocs
	mask     traceMask
}

// traceMask makes other trace contexts of those recorded: trace id and span id, each bit
// turned or not.
type traceMask [3]uint64

func maskOf(run spanring.RunID) (m traceMask) {
	m[0], m[1] = binary.LittleEndian.Uint64(run[:8]), binary.LittleEndian.Uint64(run[8:])
	m[2] = m[0] ^ m[1]
	return m
}

func (m *traceMask) turn(w []uint64) {
	for i, v := range m {
		w[i] ^= v
	}
}

func (p *play) run(ctx context.Context, clock Clock) error {
	buf := make([]spanring.Entry, batch)
	for {
		n, done, err := p.src.PollUntil(buf, clock.MonoNS()-p.shiftNS)
		for i := range buf[:n] {
			w := &buf[i].Words
			p.ctrs.entry(p.ring, w)
			p.move(w)
			switch w.Kind() {
			case spanring.KindAlloc, spanring.KindFree, spanring.KindViolation:
				p.allocs.entry(w)
			}
			p.ring.Append(w)
		}
		if done || err != nil {
			return err
		}
		if n == len(buf) {
			if ctx.Err() != nil {
				return nil
			}
			continue
		}
		wait := shortest
		if next, ok := p.src.NextMonoNS(); ok {
			wait = max(wait, time.Duration(next+p.shiftNS-clock.MonoNS()))
		}
		if clock.Sleep(ctx, wait) != nil {
			return nil // told to stop: not the run's failure
		}
	}
}

// state takes over what the recording says between entries.
func (p *play) state(s recording.State) {
	p.ctrs.state(p.ring, &s.Counters, s.End)
	p.allocs.table(&s, func(a *spanring.Alloc) {
		a.MonoNS = max(0, a.MonoNS+p.shiftNS)
		a.Site = p.name(a.Site)
	})
	p.ring.SetLevel(s.Info.Level)
	p.ring.SetArming(s.Info.KernelEvery, s.Info.ArmedRequested)
	p.ring.SetLanes(s.Info.LaneEvery)
	if s.Info.Model != "" {
		p.ring.SetModel(s.Info.Model)
	}
	if s.Info.GPUUUID != "" || s.Info.GPUName != "" {
		p.ring.SetGPU(s.Info.GPUUUID, s.Info.GPUName)
	}
	for _, c := range s.Contexts {
		// A clock without an anchor has no times to move.
		if c.UpdatedMonoNS != 0 {
			c.UpdatedMonoNS += p.shiftNS
			c.HostRefNS += p.shiftNS
		}
		if !p.contexts[c.Index] {
			// Records are reserved in order: those of a recording have no gaps.
			recorded := c.Index
			if _, err := p.ring.NewContext(&c, max(1, min(int(c.Slots), p.ring.Geometry().Slots/spanring.MaxContexts))); err != nil || c.Index != recorded {
				continue
			}
			p.contexts[c.Index] = true
			continue
		}
		p.ring.SetContext(&c)
	}
}

// move moves an entry's times to the clock that is played on, its name to the ring's
// own table and its trace context to the pass's. Kinds that are not known go as they are.
func (p *play) move(w *spanring.Words) {
	add := func(i int) { w[i] = uint64(int64(w[i]) + p.shiftNS) }
	switch w.Kind() {
	case spanring.KindStepBegin, spanring.KindAnchor:
		add(2)
	case spanring.KindStepEnd:
		add(2)
		add(3)
	case spanring.KindLane, spanring.KindKernel, spanring.KindGraph, spanring.KindSpanFailed, spanring.KindLaunchDiff:
		add(2)
		w[5] = w[5]&^0xffffffff | uint64(p.name(spanring.NameID(w[5])))
	case spanring.KindTraceContext:
		p.mask.turn(w[2:5])
	case spanring.KindRequestEnd:
		p.mask.turn(w[1:4])
		add(4)
		add(5)
	case spanring.KindAlloc, spanring.KindFree, spanring.KindViolation:
		add(5)
		w[3] = w[3]&0xffffffff | uint64(p.name(spanring.NameID(w[3]>>32)))<<32
	}
}

func (p *play) name(id spanring.NameID) spanring.NameID {
	if id == 0 {
		return 0
	}
	if to, ok := p.names[id]; ok {
		return to
	}
	n, ok := p.src.Name(id)
	if !ok {
		return 0
	}
	to := spanring.NameID(0)
	if n.Kind == spanring.NameGraph {
		to = p.ring.GraphName(n.GraphID, n.GraphNodes, n.Text)
	} else {
		to = p.ring.Name(n.Kind, n.Text)
	}
	p.names[id] = to
	return to
}
