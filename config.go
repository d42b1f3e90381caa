package lanetrace

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// Config says what a hub measures and where its ring lies. The zero value of a
// field takes its default; every field with a name in parentheses can also be
// set by that variable, through [Config.FromEnv].
type Config struct {
	// Level is the level to start at (LANETRACE_LEVEL). Default "lane".
	Level string
	// Dir is the ring directory, which must exist (LANETRACE_DIR). Default
	// /dev/shm/lanetrace-UID, made when it is missing.
	Dir string
	// Group, when not empty, is the number of the group that may read the ring
	// (LANETRACE_GROUP).
	Group string
	// Service is the engine's name in metrics and traces (OTEL_SERVICE_NAME).
	// Default: the executable's base name, filled in by readers.
	Service string
	// Model is the served model's name, cut at spanring.MaxNameBytes
	// (LANETRACE_MODEL). Default: none until Hub.SetModel.
	Model string
	// Rank is the engine's place in its parallel groups, each from 0, -1 for none
	// (LANETRACE_RANK_DATA, LANETRACE_RANK_TENSOR, LANETRACE_RANK_PIPELINE,
	// LANETRACE_RANK_EXPERT; those not set are -1). Nil: none.
	Rank *spanring.Rank
	// RingBytes bounds the ring file's size, from 64 KiB (LANETRACE_RING_BYTES).
	// Default 0: spanring.DefaultGeometry, 7 MiB.
	RingBytes int64
	// Pairs is the number of event pairs of each context (LANETRACE_PAIRS).
	// Default 4,096, or a quarter of the ring's slots if those are fewer.
	Pairs int
	// KernelSpanEvery arms one step in so many at level kernel
	// (LANETRACE_KERNEL_SPAN_EVERY). Default 64.
	KernelSpanEvery int
	// KernelBudget is the share of step time that armed work may cost, from 0 to 1
	// (LANETRACE_KERNEL_BUDGET): a step is armed only once the time of steps has covered
	// the cost of the last armed one. Steps that are asked for come on top. 1 is without
	// bound. Default 0.003.
	KernelBudget float64
	// LaneBudget is the share of step time that timing lanes may cost, from 0 to 1
	// (LANETRACE_LANE_BUDGET). Where lanes would cost more, only those of one step in so
	// many are timed; the other steps say so. Default 0: as 1 without bound, every
	// step's lanes are timed.
	LaneBudget float64
	// HarvestEvery is how often a goroutine reads completed pairs. Default 5 ms;
	// negative: never, the engine calls Harvest.
	HarvestEvery time.Duration
	// Abandon is how long after its step's end a lane that was never ended is
	// given up. Default 10 s.
	Abandon time.Duration
	// NoCalibration leaves out the measurement of the machine's constant when the
	// pool is made: kernel times stay raw.
	NoCalibration bool
	// Logger gets warnings, each said once. Default: slog.Default().
	Logger *slog.Logger
	// RemoveOnClose removes the ring file when the hub is closed; otherwise it
	// stays for readers to drain.
	RemoveOnClose bool
}

const (
	defaultKernelSpanEvery = 64
	defaultKernelBudget    = 0.003
	defaultHarvestEvery    = 5 * time.Millisecond
	defaultPairs           = 4096
)

// FromEnv fills fields that are still zero from their variables. getenv is
// os.Getenv or a test's. An error names the variable; what a level is called, Open
// checks.
func (c Config) FromEnv(getenv func(string) string) (Config, error) {
	text := func(dst *string, name string) {
		if *dst == "" {
			*dst = getenv(name)
		}
	}
	text(&c.Level, "LANETRACE_LEVEL")
	text(&c.Dir, "LANETRACE_DIR")
	text(&c.Group, "LANETRACE_GROUP")
	text(&c.Service, "OTEL_SERVICE_NAME")
	text(&c.Model, "LANETRACE_MODEL")
	var errs []error
	number := func(zero bool, name string, lo, hi int64, set func(int64)) {
		v := getenv(name)
		if !zero || v == "" {
			return
		}
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < lo || n > hi {
			errs = append(errs, fmt.Errorf("%s=%q: want a whole number from %d to %d", name, v, lo, hi))
			return
		}
		set(n)
	}
	number(c.RingBytes == 0, "LANETRACE_RING_BYTES", 64<<10, spanring.MaxFileBytes, func(n int64) { c.RingBytes = n })
	number(c.Pairs == 0, "LANETRACE_PAIRS", 1, 1<<20, func(n int64) { c.Pairs = int(n) })
	number(c.KernelSpanEvery == 0, "LANETRACE_KERNEL_SPAN_EVERY", 1, math.MaxInt32, func(n int64) { c.KernelSpanEvery = int(n) })
	rank, ranked := spanring.NoRank, false
	for _, r := range [...]struct {
		name string
		dst  *int32
	}{
		{"LANETRACE_RANK_DATA", &rank.Data}, {"LANETRACE_RANK_TENSOR", &rank.Tensor},
		{"LANETRACE_RANK_PIPELINE", &rank.Pipeline}, {"LANETRACE_RANK_EXPERT", &rank.Expert},
	} {
		number(c.Rank == nil, r.name, 0, math.MaxInt32, func(n int64) { *r.dst, ranked = int32(n), true })
	}
	if ranked {
		c.Rank = &rank
	}
	for _, b := range [...]struct {
		name string
		dst  *float64
	}{{"LANETRACE_KERNEL_BUDGET", &c.KernelBudget}, {"LANETRACE_LANE_BUDGET", &c.LaneBudget}} {
		v := getenv(b.name)
		if v == "" || *b.dst != 0 {
			continue
		}
		f, err := strconv.ParseFloat(v, 64)
		if err != nil || !(f > 0 && f <= 1) {
			errs = append(errs, fmt.Errorf("%s=%q: want a share over 0 and at most 1", b.name, v))
			continue
		}
		*b.dst = f
	}
	return c, errors.Join(errs...)
}

// settled is a configuration with every default filled in and every value
// checked.
type settled struct {
	Config
	level Level
	dir   spanring.Dir
	named bool
	geo   spanring.Geometry
}

func (c Config) settle() (s settled, err error) {
	s.Config = c
	s.level = DefaultLevel
	if c.Level != "" {
		if s.level, err = ParseLevel(c.Level); err != nil {
			return s, err
		}
	}
	env := map[string]string{"LANETRACE_DIR": c.Dir, "LANETRACE_GROUP": c.Group}
	if s.dir, s.named, err = spanring.DefaultDir(func(k string) string { return env[k] }); err != nil {
		return s, err
	}
	if c.RingBytes != 0 {
		if s.geo, err = spanring.GeometryForBytes(c.RingBytes); err != nil {
			return s, err
		}
	}
	s.geo = s.geo.WithDefaults()
	switch {
	case c.Pairs < 0 || c.Pairs > s.geo.Slots:
		return s, fmt.Errorf("%d event pairs: want from 1 to the ring's %d slots", c.Pairs, s.geo.Slots)
	case c.KernelSpanEvery < 0:
		return s, fmt.Errorf("KernelSpanEvery %d: want 1 or more", c.KernelSpanEvery)
	case !(c.KernelBudget >= 0 && c.KernelBudget <= 1):
		return s, fmt.Errorf("KernelBudget %v: want a share from 0 to 1", c.KernelBudget)
	case !(c.LaneBudget >= 0 && c.LaneBudget <= 1):
		return s, fmt.Errorf("LaneBudget %v: want a share from 0 to 1", c.LaneBudget)
	}
	if s.Pairs == 0 {
		s.Pairs = min(defaultPairs, max(1, s.geo.Slots/4))
	}
	if s.KernelSpanEvery == 0 {
		s.KernelSpanEvery = defaultKernelSpanEvery
	}
	if s.KernelBudget == 0 {
		s.KernelBudget = defaultKernelBudget
	}
	if s.HarvestEvery == 0 {
		s.HarvestEvery = defaultHarvestEvery
	}
	if s.Abandon <= 0 {
		s.Abandon = 10 * time.Second
	}
	if s.Logger == nil {
		s.Logger = slog.Default()
	}
	return s, nil
}
