package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/top"
)

type topCmd struct {
	Once     bool        `help:"Draw what the rings hold once, and end."`
	Interval period      `help:"Draw anew so often (default ${default})." default:"1s" placeholder:"D"`
	Engine   engineMatch `help:"Only this engine: a service name, an executable or the beginning of a run id (default: all)." placeholder:"E"`
	dirFlags
}

// Sequences of terminals (ECMA-48 and the alternate screen that all of them have
// since): nothing else is written to one, and none of it into a pipe.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	eraseLine   = "\x1b[K"
	eraseBelow  = "\x1b[J"
)

// settle is how long the rings are read before the first frame: what they hold is
// read in much less.
const settle = 400 * time.Millisecond

// Run draws until a signal comes.
func (c *topCmd) Run(a *app) error {
	dir, err := c.readable()
	if err != nil {
		return err
	}
	v := top.New()
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	col, err := collector.New(collector.Options{
		Dir: dir, Processor: collector.ProcessorOptions{Observers: []collector.Observer{v}},
		Linger: 30 * time.Second, GPUWait: time.Millisecond,
	})
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- col.Run(ctx) }()
	err = c.draw(a, v, col)
	cancel()
	if rerr := <-done; err == nil {
		err = rerr
	}
	return err
}

// draw draws frames until the app ends, or one.
func (c *topCmd) draw(a *app, v *top.View, col *collector.Collector) (err error) {
	_, terminal := terminalSize(a.stdout)
	if terminal && !c.Once {
		if _, err := io.WriteString(a.stdout, enterScreen); err != nil {
			return err
		}
		defer func() {
			if _, werr := io.WriteString(a.stdout, leaveScreen); err == nil {
				err = werr
			}
		}()
	}
	wait := settle
	seen := make(map[*collector.Engine]bool)
	for first := true; ; first = false {
		select {
		case <-a.ctx.Done():
			return nil
		case <-time.After(wait):
		}
		wait = time.Duration(c.Interval)
		all := col.Engines()
		none := ""
		if len(all) > 0 {
			none = fmt.Sprintf("No engine %q here; engines that have a ring: %d.", string(c.Engine), len(all))
		}
		engines := slices.DeleteFunc(all, func(e *collector.Engine) bool { return !c.Engine.picks(e.Info()) })
		for e := range seen {
			if !slices.Contains(engines, e) {
				v.Forget(e)
				delete(seen, e)
			}
		}
		for _, e := range engines {
			seen[e] = true
		}
		f := top.Frame{Engines: engines, Width: a.widthOf(a.stdout), Now: time.Now(), None: none}
		if terminal {
			f.Height = terminalHeight(a.stdout)
		}
		var b bytes.Buffer
		if err := v.Draw(&b, f); err != nil {
			return err
		}
		out := b.Bytes()
		switch {
		case c.Once:
		case terminal:
			// The last line has no newline, lest the terminal scroll.
			out = bytes.ReplaceAll(bytes.TrimSuffix(out, []byte("\n")), []byte("\n"), []byte(eraseLine+"\n"))
			out = slices.Concat([]byte(home), out, []byte(eraseLine+eraseBelow))
		case !first:
			out = append([]byte("\n"), out...)
		}
		if _, err := a.stdout.Write(out); err != nil || c.Once {
			return err
		}
	}
}

// terminalHeight is the height of the terminal w, 24 when it does not say.
func terminalHeight(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && ws.Row > 0 {
			return int(ws.Row)
		}
	}
	return 24
}
