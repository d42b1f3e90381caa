package otlp

import (
	"log/slog"
	"sync"
	"time"
)

// warnEvery is how often one message is logged at most.
const warnEvery = time.Minute

// warner logs each message at most once in warnEvery, with how often it was held
// back in between. What went wrong is counted elsewhere: this is for people.
type warner struct {
	log *slog.Logger

	mu   sync.Mutex
	said map[string]*saying
}

type saying struct {
	at   time.Time
	held int
}

func newWarner(l *slog.Logger) *warner { return &warner{log: l, said: make(map[string]*saying)} }

func (w *warner) say(msg string, args ...any) {
	w.mu.Lock()
	s := w.said[msg]
	now := time.Now()
	if s != nil && now.Sub(s.at) < warnEvery {
		s.held++
		w.mu.Unlock()
		return
	}
	held := 0
	if s != nil {
		held = s.held
	}
	w.said[msg] = &saying{at: now}
	w.mu.Unlock()
	if held > 0 {
		args = append(args, "not_logged_since", held)
	}
	w.log.Warn(msg, args...)
}
