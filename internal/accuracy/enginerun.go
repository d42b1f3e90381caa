package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// activityEnv names the file for the activity records; it is also what tells
// cupti/activity.c that it is wanted.
const activityEnv = "LANETRACE_ACTIVITY_FILE"

// spanOf is a span by the step and ordinal under which it was opened.
type spanOf struct {
	step    uint64
	ordinal uint32
}

// result is what one engine process left.
type result struct {
	Name    string `json:"name"`
	Witness bool   `json:"cupti"`
	// Context is the GPU context's record at the end.
	Calibration string `json:"calibration"`
	ConstantNS  uint32 `json:"constant_ns"`
	SpreadNS    uint32 `json:"spread_ns"`
	AnchorsLost uint64 `json:"anchors_given_up"`

	mu        sync.Mutex // guards spans and wrong while the engine runs
	plan      []batch
	records   []record // nil without witness
	spans     map[spanOf]collector.Span
	structure structure
	wrong     []string // what cannot be, of the account
}

// engineRun runs one engine to its end and reads its ring meanwhile.
func engineRun(ctx context.Context, o options, name string, parts []string, witness bool, log io.Writer) (*result, error) {
	tmp, err := os.MkdirTemp(o.tmp, "lanetrace-accuracy-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the engine: %w", err)
	}
	defer os.RemoveAll(tmp)
	dir := filepath.Join(tmp, "ring")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the ring directory: %w", err)
	}
	plan, activity := filepath.Join(tmp, "plan"), filepath.Join(tmp, "activity")
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-engine", "-dir", dir, "-plan", plan, "-parts", strings.Join(parts, ","),
		"-scale", fmt.Sprint(o.scale), "-cold", fmt.Sprint(o.cold), "-align", o.align.String(), "-streams", fmt.Sprint(o.streams),
		"-library", o.library)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	if witness && o.fake == nil {
		cmd.Env = append(cmd.Env, activityEnv+"="+activity, "CUDA_INJECTION64_PATH="+o.activity)
	}
	var words bytes.Buffer
	cmd.Stderr = &words
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the engine: %w", err)
	}
	line, _, rerr := bufio.NewReader(out).ReadLine()
	if string(line) != ready {
		err := cmd.Wait()
		return nil, fmt.Errorf("engine %s did not begin: %w: %s", name, errors.Join(err, rerr), lastLine(words.String()))
	}
	r := &result{Name: name, Witness: witness}
	read, err := r.read(ctx, dir)
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, err
	}
	stop := r.progress(plan, log)
	_, werr := io.WriteString(in, proceed+"\n")
	cerr := cmd.Wait()
	stop()
	rerr = read()
	if cerr != nil { // then what was read is no wonder
		return nil, fmt.Errorf("engine %s: %w: %s", name, cerr, lastLine(words.String()))
	}
	if err := errors.Join(werr, rerr); err != nil {
		return nil, fmt.Errorf("engine %s: %w", name, err)
	}
	if _, err := log.Write(words.Bytes()); err != nil {
		return nil, err
	}
	f, err := os.Open(plan)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if r.plan, err = readPlan(f); err != nil {
		return nil, err
	}
	if !witness {
		return r, nil
	}
	if o.fake != nil {
		if err := o.fake(r, activity); err != nil {
			return nil, err
		}
	}
	a, err := os.Open(activity)
	if err != nil {
		return nil, fmt.Errorf("engine %s wrote no activity records: %w", name, err)
	}
	defer a.Close()
	if r.records, err = readActivity(a); err != nil {
		return nil, err
	}
	return r, nil
}

// progressEvery is how often a long engine says how far it is.
const progressEvery = time.Minute

// progress writes what the placement has come to so far, now and then, until it is
// stopped.
func (r *result) progress(plan string, log io.Writer) (stop func()) {
	done := make(chan struct{})
	var g sync.WaitGroup
	g.Go(func() {
		t := time.NewTicker(progressEvery)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
			}
			f, err := os.Open(plan)
			if err != nil {
				continue
			}
			b, _ := readPlan(f) // the last line may be half written
			f.Close()
			r.mu.Lock()
			placed := placings(b, r.spans)
			r.mu.Unlock()
			printPlacing(log, placed)
		}
	})
	return func() {
		close(done)
		g.Wait()
	}
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

// read begins to read the only ring in dir, as the sidecar does, and returns a
// function that waits until the engine is gone and all has been read.
func (r *result) read(ctx context.Context, dir string) (wait func() error, err error) {
	paths, err := spanring.Dir{Path: dir}.List()
	if err != nil {
		return nil, fmt.Errorf("look for the engine's ring: %w", err)
	}
	if len(paths) != 1 {
		return nil, fmt.Errorf("%d rings in %s, want 1", len(paths), dir)
	}
	ring, err := spanring.Open(paths[0], spanring.ReaderOptions{})
	if err != nil {
		return nil, fmt.Errorf("open the engine's ring: %w", err)
	}
	src := collector.NewRingSource(ring)
	r.spans = make(map[spanOf]collector.Span)
	p, err := collector.NewProcessor(src, collector.ProcessorOptions{
		StepTimeout: time.Minute,
		Observers:   []collector.Observer{&r.structure, collector.ObserverFunc(r.observe)},
	})
	if err != nil {
		return nil, errors.Join(err, src.Close())
	}
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	return func() error {
		err := <-done
		r.structure.finish()
		cs, cerr := src.Contexts()
		if cerr == nil && len(cs) != 1 {
			cerr = fmt.Errorf("%d GPU contexts, want 1", len(cs))
		}
		if err = errors.Join(err, cerr); err == nil {
			r.Calibration, r.ConstantNS, r.SpreadNS = cs[0].Calibration.String(), cs[0].ConstantNS, cs[0].SpreadNS
			if c, err := src.Counters(); err == nil {
				r.AnchorsLost = c[spanring.CtrAnchorsGivenUp]
			}
			a := p.Engine().Account()
			for _, w := range a.Unbalanced() {
				r.wrong = append(r.wrong, fmt.Sprintf("%s: the account does not balance: %s", r.Name, w))
			}
		}
		return errors.Join(err, p.Close())
	}, nil
}

func (r *result) observe(s *collector.Step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.Faulty() {
		r.wrong = append(r.wrong, fmt.Sprintf("%s: step %d is incomplete (%q), %d spans failed, %d dropped, %d left out",
			r.Name, s.Number, s.Incomplete, s.FailedCount, s.Dropped, s.LeftOut))
	}
	for i := range s.Spans {
		r.spans[spanOf{s.Number, s.Spans[i].Ordinal}] = s.Spans[i]
	}
}

// flushActivity asks the library that writes the activity file to finish it, and
// waits until it has. Without a file there is nothing to do.
func flushActivity(path string) error {
	if path == "" {
		return nil
	}
	if err := os.WriteFile(path+".flush", nil, 0o600); err != nil {
		return fmt.Errorf("ask for the activity records: %w", err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		if time.Now().After(end) {
			return errors.New("the activity records did not come within a minute")
		}
	}
}
