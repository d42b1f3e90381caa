// Package buffers is the engine's allocator. It is a package of its own so that
// the ledger, which is told that it is a library, shows who asked for memory and
// not that this was the one to hand it out.
package buffers

import "github.com/lanetrace/lanetrace/backend"

// Path is the package's import path, for backend.MemoryConfig.Libraries.
const Path = "github.com/lanetrace/lanetrace/examples/decode/buffers"

// Set is allocations that are freed together. After the first failure, its own or
// one that its user noted, it allocates nothing.
type Set struct {
	GPU    backend.GPU
	Failed error

	all []backend.DevicePtr
}

// Words allocates n words of 4 bytes, 0 after a failure.
func (s *Set) Words(n int) backend.DevicePtr {
	if s.Failed != nil {
		return 0
	}
	p, err := s.GPU.Alloc(4 * n)
	if err != nil {
		s.Failed = err
		return 0
	}
	s.all = append(s.all, p)
	return p
}

// Free frees all of it. It goes on after a failure and returns the first.
func (s *Set) Free() (err error) {
	for _, p := range s.all {
		if e := s.GPU.Free(p); err == nil {
			err = e
		}
	}
	s.all = nil
	return err
}
