package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// attached is a way in which llama.py decodes.
type attached struct {
	name  string
	args  []string
	steps int // of a round
}

var attachedSteps = []attached{
	{"graph replay, the host runs ahead", []string{"--graph", "--asynchronous"}, 60},
	{"graph replay, the host waits for each", []string{"--graph"}, 60},
	{"eager, the host waits for each", nil, 15},
}

// pythonReport is what llama.py --ab prints, as far as it is shown here.
type pythonReport struct {
	Torch string `json:"torch"`
	AB    struct {
		StepUS       map[string]float64    `json:"step_us"`
		DifferenceUS map[string][3]float64 `json:"difference_us"` // median, and the bounds of its 95 % interval
	} `json:"ab"`
}

// python measures the attached model and prints a table. What is missing is one
// line, and no error.
func (o *options) pythonTable(ctx context.Context, w io.Writer) error {
	if why := o.pythonMissing(ctx); why != nil {
		fmt.Fprintf(w, "\nLeft out, the attached PyTorch model: %v\n", why)
		return nil
	}
	head := "\n| step | at off, µs | lane - off, µs | kernel - lane, µs | rounds × steps |\n| --- | --- | --- | --- | --- |\n"
	for _, a := range attachedSteps {
		r, err := o.runPython(ctx, a, "off,lane,kernel", true)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s| %s | %.1f | %s | %s | %d × %d |\n", head, a.name, r.AB.StepUS["off"], r.us("lane - off"), r.us("kernel - lane"), o.pythonRounds, a.steps)
		head = ""
	}
	head = "\n| step | without a profiler, µs | with PyTorch's (CUPTI), µs more |\n| --- | --- | --- |\n"
	for _, a := range attachedSteps {
		r, err := o.runPython(ctx, a, "plain,profiler", false)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s| %s | %.1f | %s |\n", head, a.name, r.AB.StepUS["plain"], r.us("profiler - plain"))
		head = ""
	}
	return nil
}

func (r *pythonReport) us(of string) string {
	d, ok := r.AB.DifferenceUS[of]
	if !ok {
		return "-"
	}
	return fmt.Sprintf("%+.1f [%+.1f to %+.1f]", d[0], d[1], d[2])
}

// pythonMissing says what keeps the attached model from being measured.
func (o *options) pythonMissing(ctx context.Context) error {
	if o.python == "" {
		return errors.New("no -python was given")
	}
	for _, f := range []string{o.agent, o.llama} {
		if _, err := os.Stat(f); err != nil {
			return err
		}
	}
	if said, err := exec.CommandContext(ctx, o.python, "-c", "import torch, transformers; assert torch.cuda.is_available(), 'torch sees no GPU'").CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", o.python, err, lastLine(string(said)))
	}
	return nil
}

func (o *options) runPython(ctx context.Context, a attached, conditions string, attach bool) (*pythonReport, error) {
	dir, err := os.MkdirTemp("", "lanetrace-overhead-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	args := append([]string{
		o.llama, "--ab", conditions, "--rounds", strconv.Itoa(o.pythonRounds), "--ab-steps", strconv.Itoa(a.steps),
	}, a.args...)
	cmd := exec.CommandContext(ctx, o.python, args...)
	cmd.Env = os.Environ()
	if attach {
		agent, err := filepath.Abs(o.agent)
		if err != nil {
			return nil, err
		}
		cmd.Env = append(cmd.Env, "LANETRACE_DIR="+dir, "LANETRACE_LEVEL=lane", "LANETRACE_STEP=step", "LANETRACE_LANES=decode",
			"LD_PRELOAD="+agent, "NVTX_INJECTION64_PATH="+agent)
	}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, lastLine(said.String()))
	}
	document := []byte(lastLine(out.String()))
	if err := o.keep(document); err != nil {
		return nil, err
	}
	var r pythonReport
	if err := json.Unmarshal(document, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return &r, nil
}
