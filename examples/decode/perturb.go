package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
)

// The perturbation: of so many steps that enqueue the same work, one passes a
// kernel a width that is one too small.
const (
	perturbSteps  = 6
	perturbedStep = 4
	perturbCall   = "swiglu"
	perturbArg    = 2
	perturbBy     = -1
)

// perturbation is what the launch trace said of each step.
type perturbation struct {
	Backend  string          `json:"backend"`
	GPU      string          `json:"gpu"`
	Model    string          `json:"model"`
	Captured bool            `json:"captured"`
	Changed  string          `json:"changed"` // what was done
	Steps    []perturbedDiff `json:"steps"`
}

type perturbedDiff struct {
	Step     uint64 `json:"step"`
	Before   int    `json:"operations_before"`
	After    int    `json:"operations_after"`
	Inserted int    `json:"inserted"`
	Removed  int    `json:"removed"`
	Changed  int    `json:"changed"`
	Report   string `json:"report"`
}

// perturb runs the same full decode step again and again, changes one host value
// in one of them, and has the launch trace say what it noticed. With graphs each
// step captures its decode anew and replays it.
func (e *engine) perturb() (*perturbation, error) {
	var victim *launch
	for i := range e.model.dec.calls {
		if c := &e.model.dec.calls[i]; c.name == perturbCall {
			victim = c // the last layer's
		}
	}
	if victim == nil {
		return nil, fmt.Errorf("perturb: the decode pass launches no %s", perturbCall)
	}
	was := int32(victim.l.Args[perturbArg].Bits)
	out := &perturbation{
		Model: e.model.shape.name, Captured: e.graphs != nil,
		Changed: fmt.Sprintf("step %d of %d: argument %d of the last %s is %d, not %d", perturbedStep, perturbSteps, perturbArg, perturbCall, was+perturbBy, was),
	}
	region := e.gpu.LaunchTrace().Region("decode")
	defer region.Cancel()
	e.fixedPlans()
	for n := 1; n <= perturbSteps; n++ {
		if e.graphs != nil {
			if err := e.graphs.forget(); err != nil {
				return nil, err
			}
		}
		victim.l.Args[perturbArg] = backend.I32(was)
		if n == perturbedStep {
			victim.l.Args[perturbArg] = backend.I32(was + perturbBy)
		}
		step := e.hub.StepBegin()
		p := &e.plans[0]
		p.launches = 0
		step.SetAttrs(e.attrs(p))
		region.Begin(uint64(e.model.stream))
		err := e.enqueue(step, p)
		rep := region.End(step.ID(), -1)
		if err == nil {
			err = e.read(p)
		}
		step.End()
		if err != nil {
			victim.l.Args[perturbArg] = backend.I32(was)
			return nil, err
		}
		out.Steps = append(out.Steps, perturbedDiff{
			Step: step.ID(), Before: rep.Before, After: rep.After,
			Inserted: rep.Inserted, Removed: rep.Removed, Changed: rep.Changed, Report: rep.Text(),
		})
	}
	return out, nil
}

func (r *perturbation) close(*lanetrace.Hub) {}

func (r *perturbation) print(out io.Writer) error {
	w := bufio.NewWriter(out)
	how := "launched one by one"
	if r.Captured {
		how = "captured and replayed"
	}
	fmt.Fprintf(w, "%s (%s), model %s: decode steps %s\n%s\n\n", r.GPU, r.Backend, r.Model, how, r.Changed)
	for i := range r.Steps {
		fmt.Fprint(w, r.Steps[i].Report)
	}
	return w.Flush()
}

var errPerturbAsync = errors.New("--perturb: steps are compared one by one, not with --async")
