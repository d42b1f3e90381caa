package collector

import (
	"context"
	"time"
)

// How long a reader waits between polls: busyPoll while entries come, growing to
// idlePoll while none do, and burstPoll after a poll that returned many.
const (
	burstPoll = 5 * time.Millisecond
	busyPoll  = 20 * time.Millisecond
	idlePoll  = 100 * time.Millisecond
)

// pacer decides how long to wait between polls, so that an idle engine costs ten
// wake-ups a second and a busy one is read before its log comes round.
type pacer struct {
	timer *time.Timer
	next  time.Duration
	full  int // full polls in a row
}

func newPacer() *pacer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &pacer{timer: t, next: busyPoll}
}

func (p *pacer) stop() { p.timer.Stop() }

// after returns how long to wait after a poll of n out of most entries; 0 is not
// at all.
func (p *pacer) after(n, most int) time.Duration {
	switch {
	case n >= most:
		p.full++
		p.next = burstPoll
		return 0
	case p.full > 0:
		p.full = 0
		return p.next
	case n > 0:
		p.next = busyPoll
		return p.next
	}
	d := p.next
	p.next = min(p.next*5/4, idlePoll)
	return d
}

// wait waits, or returns ctx's error when it ends first.
func (p *pacer) wait(ctx context.Context, n, most int) error {
	d := p.after(n, most)
	if d == 0 {
		return ctx.Err()
	}
	p.timer.Reset(d)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-p.timer.C:
		return nil
	}
}
