package lanetrace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// controlEvery is how often the control file is looked for.
const controlEvery = 250 * time.Millisecond

// Hub is one process's telemetry: its ring, its level, its steps, and the GPU
// contexts attached to it. Open makes one. A nil Hub does nothing.
type Hub struct {
	cfg  settled
	ring *spanring.Writer // nil when telemetry is off for good
	why  error            // then: why

	// level is the one word that every entry point loads.
	level atomic.Uint32
	// armedOpen counts armed steps that have not ended: launches are looked at
	// more closely only while it is not 0.
	armedOpen atomic.Int32

	steps stepTable
	over  overhead
	lanes laneTable

	mu      sync.Mutex
	devices atomic.Pointer[[]*Device]
	closed  bool
	// ledgers are those of every context that was not detached: the memory of one
	// that another has replaced is still there.
	ledgers []*ledger.Ledger

	stop chan struct{}
	done sync.WaitGroup
}

// Open makes a hub: the ring, its lock and the poller of its control file, at
// every level. It returns an error for a configuration that cannot be right.
// A ring that cannot be made is no error: it is warned of once, the hub is off
// for good, Disabled says why, and the engine runs on.
func Open(cfg Config) (*Hub, error) {
	h, err := newHub(cfg)
	if err != nil {
		return nil, err
	}
	if h.ring, err = makeRing(h.cfg); err != nil {
		h.why = err
		h.cfg.Logger.Warn("lanetrace: telemetry is off", "reason", err.Error())
		return h, nil
	}
	h.start()
	return h, nil
}

// OpenHeap is Open with a ring on the heap that no other process can read, for
// tests and benchmarks. The configuration's directory is not touched.
func OpenHeap(cfg Config) (*Hub, error) {
	h, err := newHub(cfg)
	if err != nil {
		return nil, err
	}
	if h.ring, err = spanring.NewHeap(h.cfg.ringOptions()); err != nil {
		return nil, fmt.Errorf("lanetrace: %w", err)
	}
	h.start()
	return h, nil
}

// newHub is a hub without a ring.
func newHub(cfg Config) (*Hub, error) {
	s, err := cfg.settle()
	if err != nil {
		return nil, fmt.Errorf("lanetrace: %w", err)
	}
	h := &Hub{cfg: s, stop: make(chan struct{})}
	h.devices.Store(new([]*Device))
	h.over.init(s.KernelSpanEvery, s.KernelBudget, s.LaneBudget)
	return h, nil
}

func (s *settled) ringOptions() spanring.Options {
	info := spanring.Info{Service: s.Service, Model: s.Model, Rank: spanring.NoRank, Producer: "lanetrace-go " + Version, Level: uint8(s.level)}
	if s.Rank != nil {
		info.Rank = *s.Rank
	}
	return spanring.Options{Geometry: s.geo, Info: info}
}

func makeRing(s settled) (*spanring.Writer, error) {
	// Only our own default directory is made; a missing one that was named is
	// more likely a mistake.
	if !s.named {
		if err := s.dir.Make(); err != nil {
			return nil, err
		}
	}
	return spanring.Create(s.dir, s.ringOptions())
}

func (h *Hub) start() {
	level := h.cfg.level
	h.lanes.init(h.ring)
	h.ring.SetLevel(uint8(level))
	h.level.Store(uint32(level))
	h.publishArming()
	if h.cfg.HarvestEvery > 0 {
		h.done.Go(h.harvestLoop)
	}
	if h.ring.Path() != "" {
		h.done.Go(h.controlLoop)
	}
}

// Disabled says why telemetry is off for good, nil if it is not.
func (h *Hub) Disabled() error {
	if h == nil {
		return nil
	}
	return h.why
}

// Ring is the hub's ring, nil when telemetry is off for good.
func (h *Hub) Ring() *spanring.Writer {
	if h == nil {
		return nil
	}
	return h.ring
}

// SetModel says which model is served, for engines that learn it after Open. Call
// it before the first step, and seldom: the ring keeps every name it ever had.
func (h *Hub) SetModel(model string) {
	if h != nil && h.ring != nil {
		h.ring.SetModel(model)
	}
}

// Level is the level in force.
func (h *Hub) Level() Level {
	if h == nil {
		return LevelOff
	}
	return Level(h.level.Load())
}

// SetLevel changes the level; steps and lanes already begun end as they began.
// The first rise to lane makes each context's pool of event pairs (driver calls,
// some milliseconds with calibration). It fails when telemetry is off for good.
func (h *Hub) SetLevel(l Level) error {
	if l >= numLevels {
		return fmt.Errorf("lanetrace: unknown level %d", l)
	}
	if h == nil || h.ring == nil {
		return fmt.Errorf("lanetrace: level stays off: %w", h.Disabled())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return errors.New("lanetrace: hub is closed")
	}
	if l >= LevelLane {
		for _, d := range *h.devices.Load() {
			d.ensurePool()
		}
	}
	h.level.Store(uint32(l))
	h.ring.SetLevel(uint8(l))
	h.publishArming()
	for _, m := range h.ledgers {
		m.SetPublishing(l >= LevelBasic)
	}
	return nil
}

// dropLedger ends a ledger's writing to the ring. The caller holds mu.
func (h *Hub) dropLedger(l *ledger.Ledger) {
	if i := slices.Index(h.ledgers, l); i >= 0 {
		h.ledgers = slices.Delete(h.ledgers, i, i+1)
		l.Detach()
	}
}

// Arm asks for the next n steps to be armed. They are armed at level kernel
// only; requests add up.
func (h *Hub) Arm(n uint32) {
	if h == nil || h.ring == nil {
		return
	}
	h.over.arms.request(n)
	h.publishArming()
}

// publishArming publishes both strides, and how many steps are asked for.
func (h *Hub) publishArming() {
	kernels, lanes := h.strides()
	h.ring.SetArming(kernels, h.over.arms.requested())
	h.over.lanes.published.Store(lanes)
	h.ring.SetLanes(lanes)
}

// Harvest reads the pairs that have completed since the last time and writes
// them to the ring. It is for engines that set HarvestEvery to a negative value,
// and for tests. It makes driver calls but waits for nothing except, now and
// then, a clock anchor of at most 200 µs.
func (h *Hub) Harvest() {
	if h == nil {
		return
	}
	for _, d := range *h.devices.Load() {
		d.rec.Harvest()
	}
}

func (h *Hub) harvestLoop() {
	t := time.NewTicker(h.cfg.HarvestEvery)
	defer t.Stop()
	for {
		select {
		case <-h.stop:
			return
		case <-t.C:
			h.Harvest()
		}
	}
}

func (h *Hub) controlLoop() {
	t := time.NewTicker(controlEvery)
	defer t.Stop()
	var last string
	for {
		select {
		case <-h.stop:
			return
		case <-t.C:
			last = h.applyControl(last)
		}
	}
}

// applyControl acts on a control request with another ID than the last one, and
// counts what it did or refused. It returns the ID that was last looked at.
func (h *Hub) applyControl(last string) string {
	c, err := spanring.ReadControl(h.ring.Path())
	if errors.Is(err, spanring.ErrNoControl) {
		return last
	}
	id := c.ID
	if err != nil {
		// Each different nonsense counts once, not once a poll.
		id = "error: " + err.Error()
	}
	if id == last || id == "" {
		return last
	}
	if err == nil {
		err = h.apply(c)
	}
	if err != nil {
		h.ring.Add(spanring.CtrControlRejected, 1)
		h.cfg.Logger.Warn("lanetrace: control request refused", "reason", err.Error())
	} else {
		h.ring.Add(spanring.CtrControlApplied, 1)
	}
	return id
}

// apply does all that a request asks for or, with an error, nothing.
func (h *Hub) apply(c spanring.Control) error {
	if c.ArmSteps > maxArmRequest {
		return fmt.Errorf("%d armed steps asked for, at most %d", c.ArmSteps, maxArmRequest)
	}
	if c.Level != "" {
		l, err := ParseLevel(c.Level)
		if err != nil {
			return err
		}
		if err := h.SetLevel(l); err != nil {
			return err
		}
	}
	h.Arm(c.ArmSteps)
	return nil
}

// Attach puts a GPU context under the hub. At level lane and above it makes the
// context's pool of event pairs; one that cannot be made is logged once and
// leaves GPU spans off. Attaching a context of the same device again drains the
// first for at most a second and replaces it; counters go on. It fails only when
// the ring has no room for another context. Attaching to a nil or disabled hub
// gives a nil Device.
func (h *Hub) Attach(drv cudaevents.Driver) (*Device, error) {
	if h == nil || h.ring == nil {
		return nil, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, errors.New("lanetrace: hub is closed")
	}
	info := drv.Device()
	old := *h.devices.Load()
	opts := cudaevents.Options{
		Pairs: h.cfg.Pairs, Abandon: h.cfg.Abandon, Calibrate: !h.cfg.NoCalibration,
		Logger: h.cfg.Logger, StepEnded: h.steps.ended,
	}
	d := &Device{hub: h}
	opts.Landed = d.landed
	at := slices.IndexFunc(old, func(o *Device) bool {
		i := o.rec.Device()
		return i.UUID == info.UUID && i.Ordinal == info.Ordinal
	})
	var err error
	if at < 0 {
		d.rec, err = cudaevents.New(drv, h.ring, opts)
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), replaceDrain)
		old[at].gone.Store(true)
		err = old[at].rec.Close(ctx)
		cancel()
		if err != nil {
			h.cfg.Logger.Warn("lanetrace: replaced context did not drain", "reason", err.Error())
		}
		d.rec, err = cudaevents.NewReplacing(old[at].rec, drv, opts)
	}
	if err != nil {
		return nil, fmt.Errorf("lanetrace: attach %s: %w", info.Name, err)
	}
	d.streams.Store(new(streamMap))
	next := slices.Clone(old)
	if at < 0 {
		next = append(next, d)
	} else {
		next[at] = d
	}
	if d.rec.ContextIndex() == 0 {
		cs := spanring.ContextState{UUID: info.UUID, MIG: info.MIG}
		h.ring.SetGPU(cs.UUIDText(), info.Name)
	}
	if h.Level() >= LevelLane {
		d.ensurePool()
	}
	h.devices.Store(&next)
	return d, nil
}

// replaceDrain bounds how long Attach waits for a replaced context's spans, and
// closeDrain how long Close does when its context has no deadline: a hung GPU
// must not keep an engine from ending.
const (
	replaceDrain = time.Second
	closeDrain   = 5 * time.Second
)

// Close drains what is in flight until ctx ends (5 s when ctx has no deadline),
// fails the rest, and closes the ring. Spans still open are failed{closed}.
// Closing twice does nothing.
func (h *Hub) Close(ctx context.Context) error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	if h.closed || h.ring == nil {
		h.closed = true
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	h.level.Store(uint32(LevelOff))
	devs, ledgers := *h.devices.Load(), h.ledgers
	h.ledgers = nil
	h.mu.Unlock()
	for _, l := range ledgers {
		l.Detach()
	}
	close(h.stop)
	h.done.Wait()
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, closeDrain)
		defer cancel()
	}
	var errs []error
	for _, d := range devs {
		errs = append(errs, d.detach(ctx))
	}
	if h.cfg.RemoveOnClose {
		errs = append(errs, h.ring.Remove())
	} else {
		errs = append(errs, h.ring.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("lanetrace: close: %w", err)
	}
	return nil
}
