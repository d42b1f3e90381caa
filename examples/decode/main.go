package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/examples/decode/buffers"
)

// flags are the command's. LANETRACE_* and OTEL_SERVICE_NAME mean what they mean
// to every engine; a flag of the same name comes first.
type flags struct {
	Level    string        `placeholder:"LEVEL" help:"What telemetry measures: off, basic, lane or kernel. Default: LANETRACE_LEVEL, else lane."`
	Async    bool          `help:"Run one step ahead: enqueue a step before what the last one sampled is read back."`
	Backend  string        `placeholder:"cuda|sim" help:"GPU to run on. Default: cuda, or sim where there is no CUDA driver."`
	Device   int           `default:"0" help:"Number of the GPU."`
	Duration time.Duration `placeholder:"10s" help:"How long new requests come; those that came are served to their end."`
	Requests int           `placeholder:"N" help:"How many requests come. With --duration: whichever ends first."`
	Rate     float64       `placeholder:"R" help:"Requests a second, on average. Default: the model's own, which keeps most of its batch full."`
	Trace    float64       `placeholder:"SHARE" help:"Share of requests, from 0 to 1, that come with a sampled W3C trace context, drawn from the seed. --json names them. Default: 0."`
	MaxBatch int           `placeholder:"N" help:"Sequences served at once. Default: the model's own."`
	Model    string        `placeholder:"tiny|small" help:"Size of the model. Default: small on cuda, tiny on the sim."`
	Seed     uint64        `default:"1" help:"Of weights, requests and arrivals."`
	Dir      string        `placeholder:"DIR" help:"Ring directory, which must exist. Default: LANETRACE_DIR, else /dev/shm/lanetrace-UID."`
	Verify   bool          `default:"true" negatable:"" help:"Compare the model's numbers with a CPU reference first."`
	Graph    bool          `help:"Capture decode passes and replay them as graphs."`
	Perturb  bool          `help:"Run the same decode step again and again, change one host value in one of them, print what the launch trace says, and serve nothing."`
	Leak     bool          `help:"Lose 64 KiB of device memory a step, for lanetrace report --memory to find."`
	Overrun  bool          `help:"Write past the end of an allocation once, with guard bands of 64 bytes unless LANETRACE_REDZONE says otherwise."`
	AB       int           `name:"ab" placeholder:"ROUNDS" help:"Measure what each level costs a step, in so many rounds, and serve nothing."`
	ABSteps  int           `name:"ab-steps" default:"200" help:"Steps of a round at each level."`
	ABTime   time.Duration `name:"ab-time" placeholder:"T" help:"Steps of a round instead: as many as take so long at level off."`
	ABProf   string        `name:"ab-profiler" placeholder:"LIBRARY" help:"Measure besides what a profiler's records cost, switched by a library made from internal/cubench/cupti."`
	JSON     bool          `help:"Print the summary or the measurement as JSON."`
}

// Exit statuses.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr, os.Getenv))
}

// run is the whole command. Errors are one line on stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, getenv func(string) string) int {
	var f flags
	helped := false
	parser, err := kong.New(&f, kong.Name("decode"), kong.Writers(stdout, stderr), kong.Exit(func(int) { helped = true }),
		kong.Description("A small serving engine that shows lanetrace at work."))
	if err == nil {
		_, err = parser.Parse(args)
	}
	if helped {
		return exitOK
	}
	var cfg lanetrace.Config
	var mem backend.MemoryConfig
	if err == nil {
		cfg, err = f.config(getenv)
	}
	if err == nil {
		mem, err = f.memory(getenv)
	}
	if err != nil {
		return fail(stderr, exitUsage, err)
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	cfg.Logger = log
	if err := f.serve(ctx, cfg, mem, log, stdout); err != nil {
		return fail(stderr, exitFailed, err)
	}
	return exitOK
}

func fail(w io.Writer, status int, err error) int {
	fmt.Fprintln(w, "decode:", strings.ReplaceAll(err.Error(), "\n", "; "))
	return status
}

// config checks the flags and makes telemetry's configuration of them.
func (f *flags) config(getenv func(string) string) (lanetrace.Config, error) {
	cfg, err := lanetrace.Config{Level: f.Level, Dir: f.Dir}.FromEnv(getenv)
	if err != nil {
		return cfg, err
	}
	if cfg.Level != "" {
		if _, err := lanetrace.ParseLevel(cfg.Level); err != nil {
			return cfg, err
		}
	}
	if cfg.Service == "" {
		cfg.Service = "decode"
	}
	switch {
	case !slices.Contains([]string{"", "cuda", "sim"}, f.Backend):
		err = fmt.Errorf("unknown backend %q: want cuda or sim", f.Backend)
	case f.Model != "" && shapes[f.Model].name == "":
		err = fmt.Errorf("unknown model %q: want tiny or small", f.Model)
	case f.Duration < 0:
		err = fmt.Errorf("--duration %v: want a time from now on", f.Duration)
	case f.Requests < 0:
		err = fmt.Errorf("--requests %d: want 1 or more", f.Requests)
	case f.Rate < 0 || math.IsInf(f.Rate, 0) || math.IsNaN(f.Rate):
		err = fmt.Errorf("--rate %v: want more than 0 requests a second", f.Rate)
	case !(f.Trace >= 0 && f.Trace <= 1):
		err = fmt.Errorf("--trace %v: want a share from 0 to 1", f.Trace)
	case f.MaxBatch < 0 || f.MaxBatch > 256:
		err = fmt.Errorf("--max-batch %d: want from 1 to 256", f.MaxBatch)
	case f.Device < 0:
		err = fmt.Errorf("--device %d: want 0 or more", f.Device)
	case f.AB != 0 && f.AB < minRounds:
		err = fmt.Errorf("--ab %d: want at least %d rounds", f.AB, minRounds)
	case f.Perturb && f.Async:
		err = errPerturbAsync
	case f.Perturb && f.AB != 0:
		err = fmt.Errorf("--perturb and --ab: want one of them")
	case f.ABSteps < 1:
		err = fmt.Errorf("--ab-steps %d: want 1 or more", f.ABSteps)
	case f.ABTime < 0:
		err = fmt.Errorf("--ab-time %v: want a time", f.ABTime)
	}
	return cfg, err
}

// memory is how the backend is to account for memory. A guard band that cannot be
// is an error.
func (f *flags) memory(getenv func(string) string) (m backend.MemoryConfig, err error) {
	m.Libraries = []string{buffers.Path}
	if m.Redzone, err = m.Redzone.FromEnv(getenv); err != nil {
		return m, err
	}
	if f.Overrun && m.Redzone.Bytes == 0 {
		m.Redzone.Bytes = overrunBand
	}
	return m, nil
}

// serve opens everything, does what the flags ask for, and closes everything.
func (f *flags) serve(ctx context.Context, cfg lanetrace.Config, mem backend.MemoryConfig, log *slog.Logger, stdout io.Writer) (err error) {
	hub, err := lanetrace.Open(cfg)
	if err != nil {
		return err
	}
	closeHub := func() error {
		c, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return hub.Close(c)
	}
	dev, err := openDevice(f.Backend, f.Device, hub, mem, log)
	if err != nil {
		return errors.Join(err, closeHub())
	}
	result, err := f.engine(ctx, hub, dev, log)
	err = errors.Join(err, dev.gpu.Close(), closeHub())
	if err != nil || result == nil {
		return err
	}
	result.close(hub)
	if f.JSON {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(result)
	}
	return result.print(stdout)
}

// outcome is what a run came to, printed when everything is closed.
type outcome interface {
	close(hub *lanetrace.Hub)
	print(w io.Writer) error
}

func (f *flags) engine(ctx context.Context, hub *lanetrace.Hub, dev device, log *slog.Logger) (_ outcome, err error) {
	name := f.Model
	if name == "" {
		name = dev.model
	}
	s := shapes[name]
	if hub.Ring() != nil && hub.Ring().Info().Model == "" {
		hub.SetModel("decode-" + name)
	}
	if f.MaxBatch > 0 {
		s.slots = f.MaxBatch
	}
	if f.Rate > 0 {
		s.rate = f.Rate
	}
	m, err := newModel(dev.gpu, s, uint32(f.Seed), dev.image)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	e, err := newEngine(hub, dev.gpu, m, f.Async)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	if f.Graph {
		e.useGraphs()
	}
	if f.Perturb {
		r, err := e.perturb()
		if err != nil {
			return nil, err
		}
		r.Backend, r.GPU = dev.backend, dev.gpu.Name()
		return r, nil
	}
	e.plants.leak, e.plants.overrun = f.Leak, f.Overrun
	if f.Verify {
		v, err := verify(e, newReference(s, uint32(f.Seed)), f.Seed)
		if err != nil {
			return nil, err
		}
		log.Info("numbers agree with the CPU reference", "sequences", v.Sequences, "tokens", v.Tokens,
			"max_logit_difference", v.MaxDiff, "ties", v.Ties)
	}
	if f.AB > 0 {
		if err := hub.Disabled(); err != nil {
			return nil, fmt.Errorf("nothing to measure, telemetry is off: %w", err)
		}
		r, err := e.measure(abOptions{
			rounds: f.AB, steps: f.ABSteps, time: f.ABTime, profiler: f.ABProf, stop: func() bool { return ctx.Err() != nil },
		})
		r.Backend, r.GPU = dev.backend, dev.gpu.Name()
		return &r, err
	}
	until := f.Duration
	if until == 0 && f.Requests == 0 {
		until = defaultDuration
	}
	src := newArrivals(&m.shape, f.Seed, s.rate, f.Requests, until)
	src.share = f.Trace
	if err := e.serve(ctx, src); err != nil {
		return nil, err
	}
	r := newSummary(e, dev)
	r.Interrupted = ctx.Err() != nil
	return r, nil
}
