package main

import (
	"errors"
	"io/fs"
	"iter"

	"github.com/lanetrace/lanetrace/spanring"
)

// foundRing is a ring file that was found, and opened if it could be.
type foundRing struct {
	path             string
	*spanring.Reader               // to be closed by who gets it; nil if err is not
	info             spanring.Info // as it was then
	err              error
}

// openRings opens the rings of a directory one after the other, the oldest first. Files
// that are removed meanwhile, as dead rings are at any time, are passed over.
func openRings(dir spanring.Dir) (iter.Seq[foundRing], error) {
	paths, err := dir.List()
	if err != nil {
		return nil, err
	}
	return func(yield func(foundRing) bool) {
		for _, p := range paths {
			if f := openRing(p); !errors.Is(f.err, fs.ErrNotExist) && !yield(f) {
				return
			}
		}
	}, nil
}

func openRing(path string) foundRing {
	f := foundRing{path: path}
	r, err := spanring.Open(path, spanring.ReaderOptions{})
	if err != nil {
		f.err = err
		return f
	}
	if f.info, err = r.Info(); err != nil {
		f.err = errors.Join(err, r.Close())
		return f
	}
	f.Reader = r
	return f
}
