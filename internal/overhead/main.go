package main

import (
	"bytes"
	"context"
	"encoding/json"
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

// options are the command's.
type options struct {
	decode  string
	backend string
	rounds  int
	time    time.Duration
	shapes  string
	cupti   string
	cuda    string
	raw     string
	from    string

	python, agent, llama string
	pythonRounds         int
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// command is the whole command: 0 when it has measured, 1 when something failed, 2
// for flags that cannot be.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	fs := flag.NewFlagSet("overhead", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprintln(stderr, "overhead measures what each level of telemetry, and CUPTI beside it, costs a step of examples/decode. It prints\nMarkdown tables. Flags:")
		fs.PrintDefaults()
	}
	fs.StringVar(&o.decode, "decode", "bin/decode", "the example engine")
	fs.StringVar(&o.backend, "backend", "cuda", "its GPU: cuda, or sim, whose figures mean nothing")
	fs.IntVar(&o.rounds, "rounds", 31, "rounds, at least 25")
	fs.DurationVar(&o.time, "time", 40*time.Millisecond, "of a round, under each condition")
	fs.StringVar(&o.shapes, "shapes", "short,middling,long", "kernels' lengths")
	fs.StringVar(&o.cupti, "cupti", "auto", "auto: made with gcc where CUPTI is installed; none; or a library made from internal/cubench/cupti")
	fs.StringVar(&o.cuda, "cuda", "", "the CUDA toolkit (default: CUDA_HOME, /usr/local/cuda*, /opt/cuda or /usr)")
	fs.StringVar(&o.raw, "raw", "", "a file for every round's figures, a JSON document a line")
	fs.StringVar(&o.from, "from", "", "print the tables of files that -raw wrote, separated by commas, and measure nothing: of each row the last")
	fs.StringVar(&o.python, "python", "", "Python with torch and transformers, for the attached model")
	fs.StringVar(&o.agent, "agent", "bin/liblanetrace.so", "the library that attaches to it")
	fs.StringVar(&o.llama, "llama", "examples/python/llama.py", "the model")
	fs.IntVar(&o.pythonRounds, "python-rounds", 25, "rounds of the attached model")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if err := o.check(fs); err != nil {
		fmt.Fprintln(stderr, "overhead:", err)
		return 2
	}
	if err := o.measure(ctx, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "overhead:", err)
		return 1
	}
	return 0
}

func (o *options) check(fs *flag.FlagSet) error {
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if o.rounds < 25 || o.pythonRounds < 25 {
		return errors.New("want at least 25 rounds: with fewer the interval of a median says little")
	}
	if o.time <= 0 {
		return fmt.Errorf("-time %v: want more than 0", o.time)
	}
	for _, s := range strings.Split(o.shapes, ",") {
		if !slices.ContainsFunc(shapes, func(x shape) bool { return x.name == s }) {
			return fmt.Errorf("-shapes: no shape %q", s)
		}
	}
	return nil
}

// measure prints what it measures as it comes, tables when all of theirs is there.
func (o *options) measure(ctx context.Context, w, stderr io.Writer) error {
	if o.from != "" {
		reports, err := read(strings.Split(o.from, ","))
		if err != nil {
			return err
		}
		show(w, reports)
		return nil
	}
	lib, err := o.profiler(ctx)
	if err != nil {
		fmt.Fprintf(w, "Left out, CUPTI: %v\n", err)
	}
	if lib != "" && lib != o.cupti {
		defer os.RemoveAll(filepath.Dir(lib))
	}
	var reports []*report
	for _, s := range shapes {
		if !slices.Contains(strings.Split(o.shapes, ","), s.name) {
			continue
		}
		for _, graph := range []bool{false, true} {
			begin := time.Now()
			r, err := o.runDecode(ctx, s, graph, lib)
			if err != nil {
				return err
			}
			fmt.Fprintf(stderr, "overhead: %s, graph %v: %.1f s\n", s.name, graph, time.Since(begin).Seconds())
			reports = append(reports, r)
		}
	}
	show(w, reports)
	return o.pythonTable(ctx, w)
}

// show prints the tables of decode's reports.
func show(w io.Writer, reports []*report) {
	var rows []row
	var dropped, failed uint64
	gpu := "nothing"
	for _, r := range reports {
		gpu = r.GPU + " (" + r.Backend + ")"
		dropped, failed = dropped+r.Dropped, failed+r.Failed
		rows = append(rows, r.rows()...)
	}
	fmt.Fprintf(w, "%s, spans dropped %d, failed %d\n", gpu, dropped, failed)
	levelTables(w, rows)
	profilerTable(w, rows)
}

// profiler is the library that switches CUPTI's records, "" with the reason why there
// is none.
func (o *options) profiler(ctx context.Context) (string, error) {
	switch o.cupti {
	case "none":
		return "", errors.New("not asked for")
	case "auto":
		dir, err := os.MkdirTemp("", "lanetrace-cupti-")
		if err != nil {
			return "", err
		}
		lib, err := cupti.Build(ctx, dir, o.cuda, cupti.Source)
		if err != nil {
			_ = os.RemoveAll(dir)
			return "", err
		}
		return lib, nil
	}
	return o.cupti, nil
}

// keep appends a document to the raw file, as one line.
func (o *options) keep(document []byte) error {
	if o.raw == "" {
		return nil
	}
	var line bytes.Buffer
	if err := json.Compact(&line, document); err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	f, err := os.OpenFile(o.raw, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	line.WriteByte('\n')
	_, err = f.Write(line.Bytes())
	return errors.Join(err, f.Close())
}
