package main

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// standardOutput is how a file is named that is none.
const standardOutput = "-"

// output is a file to write to: standard output if none is named. What is there is
// written over, but no recording and no ring, of which there is only the one.
func (a *app) output(path string) (w io.Writer, closeOut func() error, err error) {
	if path == "" || path == standardOutput {
		return a.stdout, func() error { return nil }, nil
	}
	if _, err := fileKind(path); err == nil {
		return nil, nil, fmt.Errorf("%s is a recording or a ring, which is not written over: name another file", path)
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, nil, bareOpen(path, err)
	}
	return f, f.Close, nil
}

// errWriteFailed is in noting what could not be written.
var errWriteFailed = errors.New("nothing more can be written")

// noting notes that a write failed, for who goes on making what is written.
type noting struct {
	io.Writer
	failed error // errWriteFailed
}

func (n *noting) Write(b []byte) (int, error) {
	k, err := n.Writer.Write(b)
	if err != nil {
		n.failed = errWriteFailed
	}
	return k, err
}
