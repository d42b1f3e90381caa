package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/lanetrace/lanetrace/collector"
)

// ErrUnavailable is in the error of [Sampler.Run] when there is no NVML, or no device.
var ErrUnavailable = errors.New("NVML is not available")

// How often devices may be read.
const (
	DefaultInterval = 100 * time.Millisecond
	MinInterval     = 10 * time.Millisecond
	MaxInterval     = 10 * time.Second
	// slowInterval is how often traffic and errors are read, at most.
	slowInterval = time.Second
)

// Options say how devices are read.
type Options struct {
	// Interval is how often power, energy, clocks, temperature, memory and utilisation
	// are read, from MinInterval to MaxInterval. Default DefaultInterval.
	Interval time.Duration
	// Engines are those that run on the devices; called at every reading. Default none:
	// no energy by token.
	Engines func() []*collector.Engine
	// Logger gets a line for a device that can't be opened. Default slog.DiscardHandler.
	Logger *slog.Logger
}

// gpu is one device. A value that is not reported stays absent; one that should have
// been is counted in failed.
type gpu interface {
	id() (uuid, name string)
	read(r *collector.DeviceReading, failed *failures)
	readHealth(h *collector.DeviceHealth, failed *failures)
}

// failures are the queries that a driver failed to answer.
type failures [collector.NumDeviceQueries]uint64

// Sampler reads devices.
type Sampler struct {
	o     Options
	open  func(*slog.Logger) ([]gpu, func(), error)
	start time.Time

	mu      sync.Mutex
	devices []*sampled
}

// sampled is one device and what is known of it. Sampler.mu guards it.
type sampled struct {
	gpu    gpu
	uuid   UUID
	stats  collector.DeviceStats
	energy energy
	lastNS int64 // of the last reading, since the sampler's start
	slowNS int64 // of the last reading of its health
}

// New returns a sampler that has read nothing. It calls no driver. An interval out of
// range is an error.
func New(o Options) (*Sampler, error) { return newSampler(o, openNVML) }

func newSampler(o Options, open func(*slog.Logger) ([]gpu, func(), error)) (*Sampler, error) {
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	if o.Interval < MinInterval || o.Interval > MaxInterval {
		return nil, fmt.Errorf("read devices every %v: want %v to %v", o.Interval, MinInterval, MaxInterval)
	}
	if o.Engines == nil {
		o.Engines = func() []*collector.Engine { return nil }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Sampler{o: o, open: open, start: time.Now()}, nil
}

// Run loads the driver's library and reads devices until ctx ends. It returns an
// error that is ErrUnavailable when there is nothing to read. A call into the driver
// that does not return delays it. It may be called once.
func (s *Sampler) Run(ctx context.Context) error {
	gpus, closeLib, err := s.open(s.o.Logger)
	if err != nil {
		return err
	}
	defer closeLib()
	s.mu.Lock()
	for _, g := range gpus {
		id, name := g.id()
		u, _ := ParseUUID(id)
		s.devices = append(s.devices, &sampled{gpu: g, uuid: u, stats: collector.DeviceStats{ID: id, Name: name}})
	}
	ds := s.devices
	s.mu.Unlock()

	var w works
	var running sync.WaitGroup
	running.Go(func() {
		every(ctx, s.o.Interval, func() {
			w.update(s.o.Engines())
			for _, d := range ds {
				s.read(d, &w)
			}
		})
	})
	running.Go(func() {
		every(ctx, max(s.o.Interval, slowInterval), func() {
			for _, d := range ds {
				s.readHealth(d)
			}
		})
	})
	running.Wait()
	return nil
}

// every calls f at once and then at each interval until ctx ends.
func every(ctx context.Context, interval time.Duration, f func()) {
	t := time.NewTicker(interval)
	defer t.Stop()
	for ctx.Err() == nil {
		f()
		select {
		case <-ctx.Done():
		case <-t.C:
		}
	}
}

// read reads d outside of the lock: the driver may take its time.
func (s *Sampler) read(d *sampled, w *works) {
	var r collector.DeviceReading
	var failed failures
	d.gpu.read(&r, &failed)
	ns := int64(time.Since(s.start))
	work := w.on(d.uuid)

	s.mu.Lock()
	defer s.mu.Unlock()
	st := &d.stats
	if r.HeldDown.Known {
		// How long nobody looked is not known to have been held down.
		since := min(ns-d.lastNS, max(int64(time.Second), 2*int64(s.o.Interval)))
		if st.Readings == 0 {
			since = 0
		}
		st.HeldDownNS.Known = true
		for i := range st.HeldDownNS.Value {
			if r.HeldDown.Value>>i&1 != 0 {
				st.HeldDownNS.Value[i] += uint64(since)
			}
		}
	}
	if r.EnergyMillijoules.Known {
		d.energy.add(ns, r.EnergyMillijoules.Value, work)
		st.DeviceEnergy = d.energy.stats()
	} else {
		st.LivePerGenerated, st.LivePerToken, st.PerStepEstimate = collector.Opt[float64]{}, collector.Opt[float64]{}, collector.Opt[float64]{}
	}
	st.DeviceReading = r
	st.Readings++
	count(st, &failed)
	d.lastNS = ns
}

func (s *Sampler) readHealth(d *sampled) {
	var h collector.DeviceHealth
	var failed failures
	d.gpu.readHealth(&h, &failed)
	s.mu.Lock()
	defer s.mu.Unlock()
	d.stats.DeviceHealth = h
	count(&d.stats, &failed)
	d.slowNS = int64(time.Since(s.start))
}

// Stats are what is known of each device now. What was read too long ago, because the
// driver hangs, is absent; counters stay. It may be called from any goroutine and
// calls no driver.
func (s *Sampler) Stats() []collector.DeviceStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns := int64(time.Since(s.start))
	out := make([]collector.DeviceStats, 0, len(s.devices))
	for _, d := range s.devices {
		st := d.stats
		if ns-d.lastNS > s.oldNS(s.o.Interval) {
			st.DeviceReading = collector.DeviceReading{}
			st.LivePerGenerated, st.LivePerToken, st.PerStepEstimate = collector.Opt[float64]{}, collector.Opt[float64]{}, collector.Opt[float64]{}
		}
		if ns-d.slowNS > s.oldNS(max(s.o.Interval, slowInterval)) {
			st.DeviceHealth = collector.DeviceHealth{}
		}
		out = append(out, st)
	}
	return slices.Clip(out)
}

// oldNS is after how long a reading is no longer shown.
func (s *Sampler) oldNS(interval time.Duration) int64 {
	return max(int64(5*time.Second), 3*int64(interval))
}

func count(st *collector.DeviceStats, failed *failures) {
	for q, n := range failed {
		st.Failed[q] += n
	}
}
