package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"
)

// event is something that goes wrong.
type event int

const (
	killEngine event = iota
	stopEngine
	killSidecar
	stopSidecar
	receiverAway
	diskFull

	numEvents
)

var eventText = [numEvents]string{"engine killed", "engine stopped", "sidecar killed", "sidecar stopped", "OTLP receiver away", "disk full"}

func (e event) String() string { return eventText[e] }

// deck deals events in turns: all kinds come once, in random order, and then again.
type deck struct {
	rnd  *rand.Rand
	left []event
}

func (d *deck) next() event {
	if len(d.left) == 0 {
		for e := range numEvents {
			d.left = append(d.left, e)
		}
		d.rnd.Shuffle(len(d.left), func(i, j int) { d.left[i], d.left[j] = d.left[j], d.left[i] })
	}
	e := d.left[0]
	d.left = d.left[1:]
	return e
}

// between is a random time.
func (d *deck) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(d.rnd.Int64N(int64(hi-lo)+1))
}

// pause waits, less long when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// awaitEnd waits until the sidecar has shown that a run has ended and all of it was sent,
// or ten seconds: the receiver may be away.
func (s *soak) awaitEnd(ctx context.Context, run string) {
	_ = until(ctx, "", 10*time.Second, func() bool {
		_, _ = s.sidecar.look(ctx)
		a := s.accountOf(run)
		return a != nil && a.Sidecar.Pending == 0
	})
}

// happen does an event and undoes it. Every sidecar from the first one on is killed
// only in the run's first half, so that one is left whose memory can be watched.
func (s *soak) happen(ctx context.Context, e event) error {
	if e == killSidecar && s.events[killSidecar] > 0 && s.begun() > s.o.spans/2 {
		e = stopSidecar
	}
	s.events[e]++
	length := s.deck.between(s.o.shortest, s.o.longest)
	i := s.deck.rnd.IntN(len(s.engines))
	s.say("%s for %v", e, length.Round(time.Millisecond))
	switch e {
	case killEngine:
		if err := s.endEngine(i, true); err != nil {
			return err
		}
		// An engine that takes over the label ends the account of the one before, so now
		// and then that is waited for.
		if s.deck.rnd.IntN(3) > 0 {
			s.awaitEnd(ctx, s.ended[len(s.ended)-1].run)
		}
		pause(ctx, length/4)
		return s.runEngine(i)
	case stopEngine:
		if err := s.engines[i].signal(syscall.SIGSTOP); err != nil {
			return err
		}
		pause(ctx, length)
		return s.engines[i].signal(syscall.SIGCONT)
	case killSidecar:
		s.watch(nil)
		if err := s.sidecar.end(true); err != nil {
			return err
		}
		pause(ctx, length/4)
		return s.runSidecar()
	case stopSidecar:
		if err := s.sidecar.signal(syscall.SIGSTOP); err != nil {
			return err
		}
		pause(ctx, length)
		return s.sidecar.signal(syscall.SIGCONT)
	case receiverAway:
		s.receiver.stop()
		pause(ctx, length)
		s.takenBefore = s.receiver.spans.Load()
		return s.receiver.start(context.WithoutCancel(ctx))
	case diskFull:
		if err := s.disk.fill(); err != nil {
			return err
		}
		pause(ctx, length)
		return s.disk.empty()
	}
	return fmt.Errorf("no such event: %d", e)
}
