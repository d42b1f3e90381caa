package main

import (
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Widths of what is drawn for people.
const (
	minWidth     = 60
	defaultWidth = 80
	maxWidth     = 160
)

// terminalSize is the width of w when it is a terminal.
func terminalSize(w io.Writer) (width int, ok bool) {
	f, isFile := w.(*os.File)
	if !isFile {
		return 0, false
	}
	ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	return int(ws.Col), true
}

// widthOf is how wide to draw on w: a terminal's width, what COLUMNS says, or 80.
func (a *app) widthOf(w io.Writer) int {
	n, ok := terminalSize(w)
	if !ok || n == 0 {
		n, _ = strconv.Atoi(a.getenv("COLUMNS"))
	}
	if n <= 0 {
		n = defaultWidth
	}
	return min(n, maxWidth)
}
