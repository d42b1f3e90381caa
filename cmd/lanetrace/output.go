package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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

// setAside puts what is at path out of the way of what is to be written there. back
// puts it in its place again if nothing was, and else removes it. Only files are
// written over.
func setAside(path string) (back func() error, err error) {
	switch st, err := os.Lstat(path); {
	case err != nil: // nothing is there
		return func() error { return nil }, nil
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file, and not written over: give another --out", path)
	}
	old, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".before-*")
	if err != nil {
		return nil, bareOpen(path, err)
	}
	if err := errors.Join(old.Close(), os.Rename(path, old.Name())); err != nil {
		return nil, errors.Join(bareOpen(path, err), os.Remove(old.Name()))
	}
	return func() error {
		if _, err := os.Lstat(path); err == nil {
			return os.Remove(old.Name())
		}
		return os.Rename(old.Name(), path)
	}, nil
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
