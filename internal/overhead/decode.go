package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// shape is a model and, unless it is the model's own, how full its batch is: short,
// middling and long kernels.
type shape struct {
	name, model string
	batch       int
}

var shapes = []shape{{"short", "tiny", 0}, {"middling", "small", 0}, {"long", "small", 256}}

func (s *shape) args() []string {
	args := []string{"--model", s.model}
	if s.batch > 0 {
		args = append(args, "--max-batch", strconv.Itoa(s.batch))
	}
	return args
}

// shape is the name of what was measured.
func (r *report) shape() string {
	name := ""
	for _, s := range shapes {
		if s.model == r.Model && (s.batch == r.Batch || s.batch == 0) {
			name = s.name
		}
	}
	return name
}

// rows are the table rows of a report.
func (r *report) rows() (out []row) {
	for i := range r.Modes {
		out = append(out, row{r.shape(), r.Launches, r.Graph, r.Rounds, &r.Modes[i]})
	}
	return out
}

// read reads what -raw kept: of each shape and way of launching the last.
func read(files []string) (out []*report, err error) {
	for _, s := range shapes {
		for _, graph := range []bool{false, true} {
			var last *report
			for _, f := range files {
				b, err := os.ReadFile(f)
				if err != nil {
					return nil, err
				}
				for line := range strings.Lines(string(b)) {
					var r report
					if err := json.Unmarshal([]byte(line), &r); err != nil {
						return nil, fmt.Errorf("%s: %w", f, err)
					}
					if len(r.Modes) > 0 && r.shape() == s.name && r.Graph == graph {
						last = &r
					}
				}
			}
			if last != nil {
				out = append(out, last)
			}
		}
	}
	return out, nil
}

// report is what decode --ab --json prints, as far as it is shown here. Times are
// nanoseconds a step.
type report struct {
	Backend  string `json:"backend"`
	GPU      string `json:"gpu"`
	Model    string `json:"model"`
	Graph    bool   `json:"graph"`
	Batch    int    `json:"batch"`
	Lanes    int    `json:"lanes_per_step"`
	Launches int    `json:"launches_per_step"`
	Rounds   int    `json:"rounds"`
	Modes    []mode `json:"modes"`
	Dropped  uint64 `json:"dropped_spans"`
	Failed   uint64 `json:"failed_spans"`
}

type mode struct {
	Async    bool    `json:"async"`
	Profiled bool    `json:"profiled"`
	Kernels  float64 `json:"profiler_kernels_per_step"`
	Steps    int     `json:"steps_per_round_and_level"`
	Stride   uint32  `json:"stride"`
	Lanes    uint32  `json:"lane_stride"`
	Levels   []struct {
		Level    string  `json:"level"`
		MedianNS float64 `json:"median_ns"`
	} `json:"levels"`
	Differences []difference `json:"differences"`
}

type difference struct {
	Of       string  `json:"of"`
	Over     string  `json:"over"`
	MedianNS float64 `json:"median_ns"`
	LowNS    float64 `json:"ci95_low_ns"`
	HighNS   float64 `json:"ci95_high_ns"`
	Share    float64 `json:"share"`
}

// level is the median step under a condition, 0 if there was none of that name.
func (m *mode) level(name string) float64 {
	for _, l := range m.Levels {
		if l.Level == name {
			return l.MedianNS
		}
	}
	return 0
}

// difference is that of two conditions, nil if it was not taken.
func (m *mode) difference(of, over string) *difference {
	for i := range m.Differences {
		if d := &m.Differences[i]; d.Of == of && d.Over == over {
			return d
		}
	}
	return nil
}

// runDecode measures one shape.
func (o *options) runDecode(ctx context.Context, s shape, graph bool, cupti string) (*report, error) {
	dir, err := os.MkdirTemp("", "lanetrace-overhead-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	args := append([]string{
		"--backend", o.backend, "--no-verify", "--json", "--dir", dir,
		"--ab", strconv.Itoa(o.rounds), "--ab-time", o.time.String(),
	}, s.args()...)
	if graph {
		args = append(args, "--graph")
	}
	if cupti != "" {
		args = append(args, "--ab-profiler", cupti)
	}
	cmd := exec.CommandContext(ctx, o.decode, args...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("decode %s: %w: %s", strings.Join(args, " "), err, lastLine(said.String()))
	}
	if err := o.keep(out.Bytes()); err != nil {
		return nil, err
	}
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return nil, fmt.Errorf("decode %s: %w", strings.Join(args, " "), err)
	}
	return &r, nil
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}
