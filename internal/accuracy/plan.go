package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Kinds of operations, which are also the kinds of activity records.
const (
	opKernel = "kernel"
	opCopy   = "copy"
	opMemset = "memset"
	opGraph  = "graph" // in a plan only: as many kernels as it has nodes
)

// beginName is the kernel that an engine launches once, before everything that its
// plan tells: records up to it are set-up.
const beginName = "lt_acc_begin"

// op is one thing that an engine enqueued on its stream.
type op struct {
	Kind  string `json:"k"`
	Name  string `json:"n,omitempty"` // of a kernel
	Bytes int64  `json:"b,omitempty"` // of a copy or memset
	Nodes int    `json:"g,omitempty"` // of a graph
	// Ordinal is that of the op's own span in its batch's step, 0 for none.
	Ordinal uint32 `json:"o,omitempty"`
	// Lane is the index in the batch's lanes, plus 1, of the lane around it.
	Lane int `json:"l,omitempty"`
}

// row says what a measurement is of: samples of equal rows belong together.
type row struct {
	Part     string `json:"part"`
	Shape    string `json:"shape"`
	TargetNS int64  `json:"target_ns"`
	// Mode is queued (behind a plug that outlived the enqueueing), drained (the
	// stream was waited for before each) or edge (neither).
	Mode   string `json:"mode"`
	Clock  string `json:"clock"`            // warm or cold
	Follow string `json:"follow,omitempty"` // what was enqueued behind each pair
}

// laneOf is one lane of a batch, by the step and ordinal of its span.
type laneOf struct {
	Step    uint64 `json:"s"`
	Ordinal uint32 `json:"o"`
}

// batch is what an engine enqueued on one stream between two waits for it.
type batch struct {
	row
	Step   uint64   `json:"step"`
	Stream int      `json:"stream"`
	Ops    []op     `json:"ops,omitempty"`
	Lanes  []laneOf `json:"lanes,omitempty"`
	// Plugged: the plug was still running when all of the batch had been enqueued.
	Plugged bool `json:"plugged,omitempty"`
	// Seen are the watched words of an aligning launch.
	Seen *seen `json:"seen,omitempty"`
}

// seen says when the host saw the two words that a kernel writes, first thing and
// last. All are CLOCK_MONOTONIC in ns: a word was not there yet when it was looked
// at Before, and there At.
type seen struct {
	FirstBefore int64 `json:"fb"`
	FirstAt     int64 `json:"fa"`
	LastBefore  int64 `json:"lb"`
	LastAt      int64 `json:"la"`
}

// planWriter writes batches as lines of JSON.
type planWriter struct {
	f   *os.File
	w   *bufio.Writer
	enc *json.Encoder
}

func newPlanWriter(path string) (*planWriter, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("make the plan: %w", err)
	}
	w := bufio.NewWriter(f)
	return &planWriter{f, w, json.NewEncoder(w)}, nil
}

func (p *planWriter) add(b *batch) error {
	if err := p.enc.Encode(b); err != nil {
		return fmt.Errorf("write the plan: %w", err)
	}
	return nil
}

func (p *planWriter) flush() error {
	if err := p.w.Flush(); err != nil {
		return fmt.Errorf("write the plan: %w", err)
	}
	return nil
}

func (p *planWriter) close() error {
	return errors.Join(p.flush(), p.f.Close())
}

func readPlan(r io.Reader) ([]batch, error) {
	var out []batch
	d := json.NewDecoder(r)
	for {
		var b batch
		switch err := d.Decode(&b); err {
		case nil:
			out = append(out, b)
		case io.EOF:
			return out, nil
		default:
			return out, fmt.Errorf("read the plan, batch %d: %w", len(out)+1, err)
		}
	}
}
