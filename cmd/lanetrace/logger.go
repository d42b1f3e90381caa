package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
)

// logger writes lines to standard error, each beginning with the program's name.
// It is a slog.Handler for what the packages have to say.
type logger struct {
	mu     *sync.Mutex
	w      io.Writer
	least  slog.Level
	attrs  string
	status *string // a progress line that stands on the terminal
}

func newLogger(w io.Writer) *logger {
	return &logger{mu: new(sync.Mutex), w: w, least: slog.LevelInfo, status: new(string)}
}

func (l *logger) line(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clearStatus()
	fmt.Fprintf(l.w, "lanetrace: %s\n", s)
}

// progress replaces the line that stands on the terminal, ASCII alone and cut at its
// width; the next line of the log takes it away.
func (l *logger) progress(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clearStatus()
	// What runs on into a second line could not be taken away.
	if width, ok := terminalSize(l.w); ok && width > 0 && len(s) >= width {
		s = s[:width-1]
	}
	fmt.Fprint(l.w, s)
	*l.status = s
}

func (l *logger) clearStatus() {
	if *l.status != "" {
		fmt.Fprint(l.w, "\r", strings.Repeat(" ", len(*l.status)), "\r")
		*l.status = ""
	}
}

// slog is the logger for packages; quiet leaves out all but warnings.
func (l *logger) slog(quiet bool) *slog.Logger {
	h := *l
	if quiet {
		h.least = slog.LevelWarn
	}
	return slog.New(&h)
}

// Enabled implements slog.Handler.
func (l *logger) Enabled(_ context.Context, level slog.Level) bool { return level >= l.least }

// Handle implements slog.Handler.
func (l *logger) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	if r.Level >= slog.LevelWarn {
		b.WriteString("warning: ")
	}
	b.WriteString(r.Message)
	b.WriteString(l.attrs)
	r.Attrs(func(at slog.Attr) bool {
		b.WriteString(attrText(at))
		return true
	})
	l.line(oneLine(b.String()))
	return nil
}

func attrText(at slog.Attr) string {
	v := at.Value.Resolve().String()
	if v == "" || strings.ContainsAny(v, " \"=\n\r\t") {
		v = fmt.Sprintf("%q", v)
	}
	return " " + at.Key + "=" + v
}

// WithAttrs implements slog.Handler.
func (l *logger) WithAttrs(attrs []slog.Attr) slog.Handler {
	h := *l
	for _, at := range attrs {
		h.attrs += attrText(at)
	}
	return &h
}

// WithGroup implements slog.Handler: groups are not told apart.
func (l *logger) WithGroup(string) slog.Handler { return l }
