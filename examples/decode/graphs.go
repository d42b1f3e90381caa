package main

import (
	"errors"
	"fmt"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/spanring"
)

// graphs are the decode passes that were captured, by what a replay cannot change:
// the number of rows, which is in the launches' grids, and the set of output that
// they write. The rows themselves are read from memory.
type graphs struct {
	gpu backend.GPU
	of  map[graphKey]backend.Graph
}

type graphKey struct{ rows, parity int }

// replay enqueues the captured decode pass, which is captured first where there is
// none for its rows. It returns how many launches it made: one.
func (g *graphs) replay(m *model, parity int) (int, error) {
	key := graphKey{m.dec.rows, parity}
	gr, ok := g.of[key]
	if !ok {
		var err error
		if gr, err = g.capture(m, parity); err != nil {
			return 0, fmt.Errorf("capture the decode of %d rows: %w", key.rows, err)
		}
		g.of[key] = gr
	}
	if err := g.gpu.LaunchGraph(gr, m.stream); err != nil {
		return 0, fmt.Errorf("replay the decode of %d rows: %w", key.rows, err)
	}
	return 1, nil
}

func (g *graphs) capture(m *model, parity int) (backend.Graph, error) {
	if err := g.gpu.BeginCapture(m.stream); err != nil {
		return 0, err
	}
	if _, err := m.run(m.dec, parity); err != nil {
		g.gpu.AbortCapture(m.stream)
		return 0, err
	}
	return g.gpu.EndCapture(m.stream)
}

// forget destroys all of them: the next decode is captured anew.
func (g *graphs) forget() error {
	var errs []error
	for key, gr := range g.of {
		errs = append(errs, g.gpu.DestroyGraph(gr))
		delete(g.of, key)
	}
	return errors.Join(errs...)
}

// useGraphs makes the engine capture its decode passes and replay them.
func (e *engine) useGraphs() {
	e.graphs = &graphs{gpu: e.gpu, of: make(map[graphKey]backend.Graph)}
}

// runDecode enqueues a decode pass, as a graph if that was asked for. Nobody looks
// into the middle of a graph: a pass that is inspected is run launch by launch.
func (e *engine) runDecode(parity int) (int, error) {
	if e.graphs == nil || e.inspect != nil {
		return e.model.run(e.model.dec, parity)
	}
	return e.graphs.replay(e.model, parity)
}

// graphMode says how a step's kernels are launched.
func (e *engine) graphMode(p *plan) spanring.GraphMode {
	switch {
	case e.graphs == nil || len(p.decode) == 0:
		return spanring.GraphEager
	case len(p.slot) > 0 || len(p.admit) > 0:
		return spanring.GraphMixed
	}
	return spanring.GraphReplay
}
