package main

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// sample is power at one time.
type sample struct {
	at    time.Time
	watts float64
}

// powerWatch is nvidia-smi telling power again and again.
type powerWatch struct {
	cancel  context.CancelFunc
	done    chan struct{}
	samples map[string][]sample // the reading goroutine's until done is closed
}

// watchPower begins to read power ten times a second. It waits for the first figure,
// unless nvidia-smi ends before.
func (f *flags) watchPower(ctx context.Context) (*powerWatch, error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, f.Command, "--query-gpu=uuid,power.draw.instant", "--format=csv,noheader,nounits", "-lms", "100")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("run %s: %w", f.Command, err)
	}
	w := &powerWatch{cancel: cancel, done: make(chan struct{}), samples: make(map[string][]sample)}
	first := make(chan struct{})
	go func() {
		defer close(w.done)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			uuid, text, _ := strings.Cut(sc.Text(), ", ")
			if v, ok := number(strings.TrimSpace(text)); ok {
				if len(w.samples) == 0 {
					close(first)
				}
				w.samples[uuid] = append(w.samples[uuid], sample{time.Now(), v})
			}
		}
		_ = cmd.Wait() // it was killed
	}()
	select {
	case <-first:
	case <-w.done:
	}
	return w, nil
}

// stop ends it and returns the samples by device. It may be called again.
func (w *powerWatch) stop() map[string][]sample {
	w.cancel()
	<-w.done
	return w.samples
}

// integrate is the energy in joules between two times, each sample holding until the
// next one.
func integrate(ss []sample, from, to time.Time) (joules float64) {
	for i, s := range ss {
		until := to
		if i+1 < len(ss) && ss[i+1].at.Before(to) {
			until = ss[i+1].at
		}
		since := s.at
		if since.Before(from) || i == 0 {
			since = from
		}
		if until.After(since) {
			joules += s.watts * until.Sub(since).Seconds()
		}
	}
	return joules
}
