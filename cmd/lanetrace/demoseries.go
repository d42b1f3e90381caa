package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// series picks a line of the exposition: by its name, by parts of its labels and by
// its value.
type series struct {
	name   string
	labels []string
	says   func(float64) bool
}

func isZero(v float64) bool     { return v == 0 }
func isPositive(v float64) bool { return v > 0 }

// line is the first line of text that is meant, "" for none.
func (s *series) line(text string) string {
next:
	for l := range strings.Lines(text) {
		l = strings.TrimSpace(l)
		rest, ok := strings.CutPrefix(l, s.name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		for _, part := range s.labels {
			if !strings.Contains(rest, part) {
				continue next
			}
		}
		if v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64); err == nil && s.says(v) {
			return l
		}
	}
	return ""
}

// allSeries are the lines of all that are wanted, "" as long as one is missing.
func allSeries(text string, want []series) string {
	var b strings.Builder
	for i := range want {
		l := want[i].line(text)
		if l == "" {
			return ""
		}
		fmt.Fprintln(&b, l)
	}
	return b.String()
}

// scrape is what /metrics answers, asked without the way over the network, which may
// want a password.
func (s *service) scrape() (string, error) {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "/metrics", nil)
	if err != nil {
		return "", err
	}
	w := answer{header: make(http.Header), code: http.StatusOK}
	s.handler().ServeHTTP(&w, r)
	if w.code != http.StatusOK {
		return "", fmt.Errorf("/metrics: HTTP status %d", w.code)
	}
	return w.body.String(), nil
}

// answer keeps what a handler writes.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(code int)        { a.code = code }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }

// linesKept keeps lines that are written, whole ones at a time as loggers do.
type linesKept struct {
	mu   sync.Mutex
	text strings.Builder
}

// maxLinesKept bounds what is kept; what comes later is not.
const maxLinesKept = 1 << 20

// Write implements io.Writer.
func (k *linesKept) Write(b []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.text.Len()+len(b) <= maxLinesKept {
		k.text.Write(b)
	}
	return len(b), nil
}

// with is the first line that has text in it, "" for none.
func (k *linesKept) with(text string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	for l := range strings.Lines(k.text.String()) {
		if strings.Contains(l, text) && strings.HasSuffix(l, "\n") {
			return strings.TrimSpace(l)
		}
	}
	return ""
}

// all is everything that was kept.
func (k *linesKept) all() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.text.String()
}
