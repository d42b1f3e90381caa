package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/lanetrace/lanetrace/internal/cubench/cupti"
)

// allParts are what can be measured, in this order.
var allParts = []string{"constant", "kernels", "cold", "follow", "graphs", "lanes", "align"}

// options are the command's.
type options struct {
	parts     []string
	scale     float64
	processes int
	cold      int
	align     time.Duration
	streams   int
	activity  string
	cuda      string
	library   string
	json      string
	tmp       string

	engine    bool
	dir, plan string

	// fake writes an activity file in CUPTI's stead, where there is no GPU.
	fake func(r *result, path string) error
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	f := flag.NewFlagSet("accuracy", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprintln(stderr, "accuracy holds the times that lanetrace publishes against CUPTI's and the host's. It prints Markdown\ntables; status 1 says that something is wrong that cannot be noise. Flags:")
		f.PrintDefaults()
	}
	parts := f.String("parts", strings.Join(allParts, ","), "what to measure, separated by commas")
	f.Float64Var(&o.scale, "scale", 1, "samples a row, as a multiple of the usual 40 to 400")
	f.IntVar(&o.processes, "processes", 8, "part constant: in how many processes with CUPTI (and as many without)")
	f.IntVar(&o.cold, "cold", 6, "part cold: rounds of idling, four seconds each")
	f.DurationVar(&o.align, "align", 10*time.Minute, "part align: for how long")
	f.IntVar(&o.streams, "streams", 48, "part align: how many streams are kept busy")
	f.StringVar(&o.activity, "activity", "auto", "CUPTI's records: auto: a library made with gcc; a library made from cupti/activity.c; none: do without")
	f.StringVar(&o.cuda, "cuda", "", "the CUDA toolkit (default: CUDA_HOME, /usr/local/cuda*, /opt/cuda or /usr)")
	f.StringVar(&o.library, "library", "", "the driver's library (default: the system's)")
	f.StringVar(&o.json, "json", "", "write all values to this file")
	f.StringVar(&o.tmp, "tmp", "/dev/shm", "where rings and records lie meanwhile")
	f.BoolVar(&o.engine, "engine", false, "be the process that is measured")
	f.StringVar(&o.dir, "dir", "", "with -engine: the ring directory")
	f.StringVar(&o.plan, "plan", "", "with -engine: the file for what was enqueued")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.parts = strings.Split(*parts, ",")
	for _, p := range o.parts {
		if !slices.Contains(allParts, p) {
			return o, fmt.Errorf("-parts: %q is none of %s", p, strings.Join(allParts, ", "))
		}
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("%q is no flag", f.Arg(0))
	case !(o.scale > 0 && o.scale <= 100) || o.processes < 1 || o.cold < 0 || o.align <= 0 || o.streams < 0 || o.streams > 1000:
		return o, errors.New("a count is out of its range")
	}
	return o, nil
}

func main() { os.Exit(command(os.Args[1:], nil, os.Stdin, os.Stdout, os.Stderr)) }

// command runs the program and returns its status.
func command(args []string, fake func(*result, string) error, stdin io.Reader, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "accuracy:", err)
		return 2
	}
	o.fake = fake
	if o.engine {
		err = runEngine(o, stdin, stdout)
	} else {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		var r *report
		if r, err = measure(ctx, o, stdout, stderr); err == nil && len(r.wrong) > 0 {
			return 1
		}
	}
	if err != nil {
		fmt.Fprintln(stderr, "accuracy:", err)
		return 1
	}
	return 0
}

//go:embed cupti/activity.c
var activitySource string

// witness is the library that writes CUPTI's records, "" to do without.
func (o *options) witness(ctx context.Context) (library string, err error) {
	switch {
	case o.activity == "none" || o.fake != nil:
		return "", nil
	case o.activity == "auto":
		dir, err := os.MkdirTemp("", "lanetrace-cupti-")
		if err != nil {
			return "", err
		}
		if library, err = cupti.Build(ctx, dir, o.cuda, activitySource); err != nil {
			return "", errors.Join(fmt.Errorf("no CUPTI to hold times against: %w (-activity none does without)", err), os.RemoveAll(dir))
		}
		return library, nil
	}
	if library, err = filepath.Abs(o.activity); err == nil {
		_, err = os.Stat(library)
	}
	return library, err
}

// measure runs every part and prints what came of it.
func measure(ctx context.Context, o options, stdout, stderr io.Writer) (*report, error) {
	library, err := o.witness(ctx)
	if err != nil {
		return nil, err
	}
	if o.activity == "auto" && library != "" {
		defer os.RemoveAll(filepath.Dir(library))
	}
	o.activity = library
	r := new(report)
	witnesses := []bool{true, false}
	if o.activity == "" && o.fake == nil {
		witnesses = []bool{false}
	}
	// An engine that fails is said, and costs what it was to measure; unless it is the
	// first, which says that none can be.
	var none error
	run := func(name string, parts []string, witness bool) {
		began := time.Now()
		if !witness {
			name += ", alone"
		}
		if ctx.Err() != nil || none != nil {
			return
		}
		res, err := engineRun(ctx, o, name, parts, witness, stderr)
		switch {
		case err != nil && len(r.results) == 0:
			none = err
			return
		case err != nil:
			r.wrong = append(r.wrong, err.Error())
		default:
			r.add(res)
		}
		fmt.Fprintf(stderr, "accuracy: %s: %.1f s\n", name, time.Since(began).Seconds())
	}
	var together []string // parts that share a process
	for _, p := range o.parts {
		if p != "constant" && p != "align" {
			together = append(together, p)
		}
	}
	for _, witness := range witnesses {
		if slices.Contains(o.parts, "constant") {
			for i := range o.processes {
				run(fmt.Sprintf("constant %d", i+1), []string{"constant"}, witness)
			}
		}
		if len(together) > 0 {
			// The constant once more: it says how good this process's own is.
			run("all kinds", append([]string{"constant"}, together...), witness)
		}
	}
	if slices.Contains(o.parts, "align") {
		run("align", []string{"align"}, false)
	}
	if none != nil {
		return nil, none
	}
	r.print(stdout)
	if o.json != "" {
		return r, r.writeJSON(o.json)
	}
	return r, nil
}
