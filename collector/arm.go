package collector

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// ArmOptions say how slow steps arm the steps after them.
type ArmOptions struct {
	// Steps is how many of the next steps a slow one arms. Default 8; negative: none.
	Steps int
	// Every is how long, of the engine's time, nothing is asked for after a request.
	// Default 10 s.
	Every time.Duration
	// Logger takes that a request cannot be written, once. Default discards.
	Logger *slog.Logger
}

// ArmOutcome is what became of a slow step's request for armed steps.
type ArmOutcome uint8

// What becomes of a slow step's request.
const (
	ArmAsked   ArmOutcome = iota // it was written
	ArmLimited                   // another one was written a moment ago
	ArmLevel                     // below level kernel nothing is armed
	ArmPending                   // an operator's request was not acted on yet, or arms steps already
	ArmStale                     // the step ended too long ago: its like would not come
	ArmFailed                    // the control file could not be read or written
	ArmNoRing                    // the engine's source is no live ring
	ArmOff                       // slow steps arm none

	numArmOutcomes
)

// NumArmOutcomes is the number of outcomes.
const NumArmOutcomes = int(numArmOutcomes)

var armText = [NumArmOutcomes]string{"asked", "limited", "level", "pending", "stale", "failed", "no_ring", "off"}

// String is the outcome in lower case.
func (o ArmOutcome) String() string {
	if int(o) < NumArmOutcomes {
		return armText[o]
	}
	return "unknown"
}

const (
	// armStale is how old a slow step may be: a collector that begins to read finds
	// minutes of the past in a ring.
	armStale = 5 * time.Second
	// requestAge is when an engine has seen a request at the latest: it looks four
	// times a second. levelAge is how long a level that the engine does not have is
	// nevertheless taken to be wanted.
	requestAge = 2 * time.Second
	levelAge   = time.Minute
)

// Armer asks one engine, after a slow step, to time the kernels of the next ones,
// so that its like is seen kernel by kernel. It does so through the ring's control
// file, and leaves alone what an operator asked for there: a request that the
// engine has not acted on yet stays, and so does the level of one that it has.
type Armer struct {
	o       ArmOptions
	askedNS int64
	asked   bool
	said    bool
}

// NewArmer makes the armer of one engine.
func NewArmer(o ArmOptions) *Armer {
	if o.Steps == 0 {
		o.Steps = 8
	}
	if o.Every == 0 {
		o.Every = 10 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Armer{o: o}
}

// SlowSteps are the engine's slow steps by what became of arming the next ones.
func (e *Engine) SlowSteps() (n [NumArmOutcomes]uint64) {
	for i := range e.slowSteps {
		n[i] = e.slowSteps[i].Load()
	}
	return n
}

// Slow is told of a slow step; it is LiveOptions.OnSlow. It reads and writes one
// small file at most once in ArmOptions.Every.
func (a *Armer) Slow(s *Step) {
	o, err := ArmOff, error(nil)
	if a.o.Steps > 0 {
		o, err = a.slow(s)
	}
	s.Engine.slowSteps[o].Add(1)
	if err != nil && !a.said {
		a.said = true
		a.o.Logger.Warn("slow steps cannot arm the next ones", "engine", s.Engine.Label(), "reason", err.Error())
	}
}

func (a *Armer) slow(s *Step) (ArmOutcome, error) {
	e := s.Engine
	ring, ok := e.src.(interface{ Path() string })
	if !ok {
		return ArmNoRing, nil
	}
	now := e.NowMonoNS()
	if a.asked && now-a.askedNS < int64(a.o.Every) {
		return ArmLimited, nil
	}
	if now-s.EndMonoNS > int64(armStale) {
		return ArmStale, nil
	}
	i := e.Info()
	if i.Level != levelKernel {
		return ArmLevel, nil
	}
	if i.ArmedRequested > 0 {
		return ArmPending, nil
	}
	c, pending, err := present(ring.Path(), i.Level)
	switch {
	case err != nil:
		a.asked, a.askedNS = true, now // not tried again at every slow step
		return ArmFailed, err
	case pending:
		return ArmPending, nil
	}
	a.asked, a.askedNS = true, now
	c.ArmSteps, c.ID = uint32(a.o.Steps), "slow-"+rand.Text()
	if err := spanring.WriteControl(ring.Path(), c); err != nil {
		return ArmFailed, err
	}
	return ArmAsked, nil
}

// present is what of the ring's present request is to stay, and whether all of it
// must because the engine may not have acted on it. A level that the engine has
// left since is not asked for again.
func present(ring string, level uint8) (c spanring.Control, pending bool, err error) {
	fi, err := os.Lstat(ring + spanring.ControlSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return c, false, nil
	}
	if err != nil {
		return c, false, err
	}
	// The age first: a request that comes in between looks older than it is only if
	// it comes in this very moment.
	age := time.Since(fi.ModTime())
	old, err := spanring.ReadControl(ring)
	if errors.Is(err, spanring.ErrNoControl) {
		return c, false, nil
	}
	if err != nil {
		return c, false, err
	}
	same := old.Level == LevelText(level)
	if age < requestAge || old.Level != "" && !same && age < levelAge {
		return c, true, nil
	}
	if same {
		c.Level = old.Level
	}
	return c, false, nil
}
