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

// shape is a model and how full its batch is: short, middling and long kernels.
type shape struct {
	name string
	args []string
}

var shapes = []shape{
	{"short", []string{"--model", "tiny"}},
	{"middling", []string{"--model", "small"}},
	{"long", []string{"--model", "small", "--max-batch", "256"}},
}

// report is what decode --ab --json prints, as far as it is shown here. Times are
// nanoseconds a step.
type report struct {
	Backend  string `json:"backend"`
	GPU      string `json:"gpu"`
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
	}, s.args...)
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
