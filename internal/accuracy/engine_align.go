package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/spanring"
)

// phases of the alignment: launches in steady succession, a few after idling, and
// beside streams that are kept busy.
const (
	phaseSteady = "steady"
	phaseIdle   = "after idling"
	phaseBusy   = "beside busy streams"
)

const (
	// phaseLength is how long a phase lasts before the next.
	phaseLength = 20 * time.Second
	// pace is how far apart launches are.
	pace = 50 * time.Millisecond
	// quiet is the part of the time before other streams are busy.
	quiet = 0.7
)

// align lets kernels write words that this thread watches for as long as the flag
// says: phases in steady succession and of idling in turn, and at last busy ones.
func (e *engine) align() error {
	words, err := e.gpu.AllocHostPinned(2 * stampGap)
	if err != nil {
		return err
	}
	at, err := e.gpu.HostPtrToDevice(words)
	if err != nil {
		return err
	}
	a := &aligner{engine: e, words: words, at: at}
	begin := time.Now()
	calm := time.Duration(float64(e.o.align) * quiet)
	length := min(phaseLength, max(calm/2, 10*time.Millisecond))
	for first := true; first || time.Since(begin) < calm; first = false {
		if err := a.steady(min(length, calm-time.Since(begin))); err != nil {
			return err
		}
		if err := a.idle(min(length, calm-time.Since(begin))); err != nil {
			return err
		}
	}
	for first := true; first || time.Since(begin) < e.o.align; first = false {
		if err := a.busy(min(length, e.o.align-time.Since(begin))); err != nil {
			return err
		}
	}
	return e.gpu.FreeHostPinned(words)
}

type aligner struct {
	*engine
	words []byte
	at    backend.DevicePtr
	value uint64
}

func (a *aligner) steady(d time.Duration) error {
	for end := time.Now().Add(d); ; time.Sleep(min(pace, d/8)) {
		if err := a.one(phaseSteady); err != nil || !time.Now().Before(end) {
			return err
		}
	}
}

func (a *aligner) idle(d time.Duration) error {
	gap := min(idleFor, max(d, 0)/2)
	for end := time.Now().Add(d); ; {
		time.Sleep(gap)
		for range 5 {
			if err := a.one(phaseIdle); err != nil {
				return err
			}
		}
		if !time.Now().Before(end) {
			return nil
		}
	}
}

// busy keeps streams busy with kernels of about 250 µs, three deep.
func (a *aligner) busy(d time.Duration) (err error) {
	type lane struct {
		s  backend.Stream
		ev [2]backend.Event
	}
	streams := make([]lane, a.o.streams)
	for i := range streams {
		l := &streams[i]
		if l.s, err = a.gpu.CreateStream(); err != nil {
			return err
		}
		for k := range l.ev {
			if l.ev[k], err = a.gpu.CreateEvent(); err != nil {
				return err
			}
		}
	}
	stop := make(chan struct{})
	var feeder sync.WaitGroup
	var ferr error
	feeder.Go(func() {
		for n := 0; ; n++ {
			for i := range streams {
				l := &streams[i]
				select {
				case <-stop:
					return
				default:
				}
				if n >= 2 {
					done, err := a.gpu.EventQuery(l.ev[n%2])
					if err != nil {
						ferr = err
						return
					}
					if !done {
						continue
					}
				}
				err := a.gpu.Launch(a.k[spinName], &backend.Launch{
					Grid: backend.Dim3{1, 1, 1}, Block: backend.Dim3{1, 1, 1}, Stream: l.s,
					Args: []backend.Arg{backend.U64(cyclesFor(250_000))},
				})
				if err == nil {
					err = a.gpu.RecordEvent(l.ev[n%2], l.s)
				}
				if err != nil {
					ferr = err
					return
				}
			}
		}
	})
	for end := time.Now().Add(d); ; time.Sleep(min(pace, d/8)) {
		if err = a.one(phaseBusy); err != nil || !time.Now().Before(end) {
			break
		}
	}
	close(stop)
	feeder.Wait()
	err = errors.Join(err, ferr)
	for i := range streams {
		l := &streams[i]
		err = errors.Join(err, a.gpu.Synchronize(l.s))
		for k := range l.ev {
			err = errors.Join(err, a.gpu.DestroyEvent(l.ev[k]))
		}
		err = errors.Join(err, a.gpu.DestroyStream(l.s))
	}
	return err
}

// watchFor bounds how long a word is waited for that never comes.
const watchFor = time.Minute

// one launches a kernel that writes two words, behind a short plug, and watches.
func (a *aligner) one(phase string) error {
	a.value++
	j := a.job(row{Part: "align", Shape: phase, Mode: "queued", Clock: "warm"})
	if err := j.plug(80_000); err != nil {
		return err
	}
	j.begin()
	j.b.Ops = append(j.b.Ops, op{Kind: opKernel, Name: stampName, Ordinal: j.ordinal()})
	err := a.gpu.Launch(a.k[stampName], &backend.Launch{
		Grid: backend.Dim3{1, 1, 1}, Block: backend.Dim3{1, 1, 1}, Stream: a.s,
		Args: []backend.Arg{backend.Ptr(a.at), backend.U64(a.value), backend.U64(cyclesFor(20_000))},
	})
	if err != nil {
		return err
	}
	var s seen
	var ok bool
	if s.FirstBefore, s.FirstAt, ok = a.watch(0); ok {
		s.LastBefore, s.LastAt, ok = a.watch(stampGap)
	}
	if !ok {
		return fmt.Errorf("word %d was not written within %v", a.value, watchFor)
	}
	j.b.Seen = &s
	if err := j.end(false); err != nil {
		return err
	}
	return a.plan.flush() // for those who watch
}

// watch looks at a word until it holds the value. The write came into sight after
// beforeMonoNS and before seenMonoNS, whatever else this thread had to do:
// beforeMonoNS was read before the last look that saw nothing. It is 0 if the first
// look saw it.
func (a *aligner) watch(at int) (beforeMonoNS, seenMonoNS int64, ok bool) {
	w := a.words[at : at+8]
	before := spanring.MonoNS()
	end := before + int64(watchFor)
	for looked := int64(0); ; {
		there := binary.LittleEndian.Uint64(w) == a.value
		now := spanring.MonoNS()
		if there || now > end {
			return looked, now, there
		}
		looked, before = before, now
	}
}
