package main

import (
	"fmt"

	"github.com/lanetrace/lanetrace/backend"
)

// plants are faults that an engine is asked to have, to be found by telemetry.
type plants struct {
	leak    bool
	overrun bool

	leaked   int64
	overran  bool
	scratch  backend.DevicePtr
	violated int
}

const (
	// A leak loses so much a step, up to a bound, so that the engine goes on.
	leakBytes = 64 << 10
	leakMost  = 1 << 30

	// An overrun writes so many words past the end of an allocation.
	overrunWords = 3
	scratchWords = 1000

	// overrunBand is the guard band that --overrun asks for where no other was.
	overrunBand = 64
)

// plant does to a step what was asked for. It is called when the step is enqueued.
func (e *engine) plant() error {
	p := &e.plants
	if p.leak && p.leaked < leakMost {
		if _, err := e.gpu.Alloc(leakBytes); err != nil {
			return fmt.Errorf("leak: %w", err)
		}
		p.leaked += leakBytes
	}
	if p.overrun && !p.overran {
		p.overran = true
		if err := e.overrunOnce(); err != nil {
			return fmt.Errorf("overrun: %w", err)
		}
	}
	return nil
}

// overrunOnce fills a scratch buffer and a little more, and looks for what it did
// as an engine would: with a scan.
func (e *engine) overrunOnce() (err error) {
	m := e.model
	if e.plants.scratch = m.mem.Words(scratchWords); m.mem.Failed != nil {
		return m.mem.Failed
	}
	c := m.call("fill_uniform", backend.Dim3{4, 1, 1}, 256,
		backend.Ptr(e.plants.scratch), i32(scratchWords+overrunWords), backend.U32(1), backend.F32(1), backend.F32(0))
	if m.mem.Failed != nil {
		return m.mem.Failed
	}
	if err := m.launch(&c); err != nil {
		return err
	}
	return e.scan()
}

// scan reads the guard bands back, where there are any.
func (e *engine) scan() error {
	n, err := e.gpu.ScanRedzones()
	e.plants.violated += n
	return err
}
