package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// engineMatch picks engines by service name, executable or the beginning of the
// run id. The empty one picks all.
type engineMatch string

// shortestRunID is how much of a run id must be given: less would pick an engine
// by chance.
const shortestRunID = 4

func (m engineMatch) picks(i spanring.Info) bool {
	s := string(m)
	return s == "" || s == i.Service || s == i.Executable || s == collector.EngineName(i) ||
		len(s) >= shortestRunID && strings.HasPrefix(i.RunID.String(), strings.ToLower(s))
}

// nameOf says which engine it is, to somebody who looks for one.
func nameOf(i spanring.Info) string {
	return fmt.Sprintf("%s (run %s)", collector.EngineName(i), i.RunID.String()[:8])
}

// none is the error when no engine of those in what was picked.
func (m engineMatch) none(what string, there []spanring.Info) error {
	if len(there) == 0 {
		return fmt.Errorf("no engines in %s", what)
	}
	return fmt.Errorf("no engine %q in %s: there is %s; --engine takes a service name, an executable or the beginning of a run id", string(m), what, namesOf(there))
}

// namesOf says which engines there are.
func namesOf(there []spanring.Info) string {
	names := make([]string, 0, len(there))
	for _, i := range there {
		names = append(names, nameOf(i))
	}
	return strings.Join(names, ", ")
}

// readable is the ring directory, which must be there.
func (f *dirFlags) readable() (spanring.Dir, error) {
	d, named, err := f.ringDir()
	if err != nil {
		return d, err
	}
	err = d.CheckReadable()
	if errors.Is(err, spanring.ErrDirMissing) && !named {
		return d, fmt.Errorf("no engines: ring directory %s is not there; start an engine or give --dir", d.Path)
	}
	return d, err
}
