package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// ErrUnavailable is in the error that [Options.Unavailable] is told.
var ErrUnavailable = errors.New("NVML is not available")

// How often devices may be read.
const (
	DefaultInterval = 100 * time.Millisecond
	MinInterval     = 10 * time.Millisecond
	MaxInterval     = 10 * time.Second
	// slowInterval is how often traffic and errors are read, at most. The driver counts
	// PCIe traffic for 20 ms a direction, busy all the while: at this interval 0.8 % of a
	// core for each device, where once a second was 4 %.
	slowInterval = 5 * time.Second
	// retryEvery is how often a driver that was not there is looked for.
	retryEvery = time.Minute
)

// Options say how devices are read.
type Options struct {
	// Interval is how often power, energy, clocks, temperature, memory and utilisation
	// are read, from MinInterval to MaxInterval. Default DefaultInterval.
	Interval time.Duration
	// Found is told of each device before it is read. Default nobody.
	Found func(*collector.Device)
	// Taps get every reading, each device's on a goroutine of its own. Default none.
	Taps []collector.DeviceTap
	// NowMonoNS is when something is read, CLOCK_MONOTONIC. Default this machine's.
	NowMonoNS func() int64
	// Unavailable is told, once, why there is nothing to read: an error that is
	// ErrUnavailable. A driver may be loaded later, so it is looked for again once a
	// minute. Default nobody.
	Unavailable func(error)
	// Logger gets a line for a device that can't be opened where others can, and one when
	// there is something to read after all. Default slog.DiscardHandler.
	Logger *slog.Logger
}

// gpu is one device. A value that is not reported stays absent; one that should have
// been is counted in failed.
type gpu interface {
	id() (uuid, name string)
	read(r *collector.DeviceReading, failed *failures)
	readHealth(h *collector.DeviceHealth, failed *failures)
}

// Sampler reads devices and hands on what they report.
type Sampler struct {
	o    Options
	open func(*slog.Logger) ([]gpu, func(), error)
}

// sampled is one device that is read.
type sampled struct {
	gpu    gpu
	device collector.Device
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
	if o.NowMonoNS == nil {
		o.NowMonoNS = spanring.MonoNS
	}
	if o.Found == nil {
		o.Found = func(*collector.Device) {}
	}
	if o.Unavailable == nil {
		o.Unavailable = func(error) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Sampler{o: o, open: open}, nil
}

// Run loads the driver's library and reads devices until ctx ends. A call into the
// driver that does not return delays it. It may be called once.
func (s *Sampler) Run(ctx context.Context) {
	ds, closeLib := s.await(ctx)
	if ds == nil {
		return
	}
	defer closeLib()
	for i := range ds {
		s.o.Found(&ds[i].device)
	}

	// One that hangs holds up no other.
	var running sync.WaitGroup
	for i := range ds {
		running.Go(func() { every(ctx, s.o.Interval, func() { s.read(&ds[i]) }) })
	}
	// Traffic is counted for one after the other: together they would take a core each.
	running.Go(func() {
		every(ctx, max(s.o.Interval, slowInterval), func() {
			for i := range ds {
				s.readHealth(&ds[i])
			}
		})
	})
	running.Wait()
}

// await waits until there are devices; none when ctx ended first.
func (s *Sampler) await(ctx context.Context) ([]sampled, func()) {
	for told := false; ctx.Err() == nil; told = true {
		ds, closeLib, err := s.find()
		if err == nil {
			if told {
				s.o.Logger.Info("GPUs are read from now on", "gpus", len(ds))
			}
			return ds, closeLib
		}
		if !told {
			s.o.Unavailable(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryEvery):
		}
	}
	return nil, nil
}

// find opens the devices that can be read.
func (s *Sampler) find() (ds []sampled, closeLib func(), err error) {
	gpus, closeLib, err := s.open(s.o.Logger)
	if err != nil {
		return nil, nil, err
	}
	var bad []string
	for _, g := range gpus {
		id, name := g.id()
		u, _ := ParseUUID(id)
		key, ok := u.bytes()
		if !ok || u.MIG {
			bad = append(bad, id)
			continue
		}
		ds = append(ds, sampled{g, collector.Device{UUID: key, Name: name}})
	}
	switch {
	case len(ds) == 0:
		closeLib()
		return nil, nil, fmt.Errorf("%w: it names no GPU but %q", ErrUnavailable, bad)
	case len(bad) > 0:
		s.o.Logger.Warn("GPUs cannot be read", "reason", "their UUIDs are none", "uuids", fmt.Sprintf("%q", bad))
	}
	return ds, closeLib, nil
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

func (s *Sampler) read(d *sampled) {
	var r collector.DeviceReading
	var failed failures
	d.gpu.read(&r, &failed)
	e := s.entry(d, s.o.Interval)
	putReading(&e, &r, &failed)
	s.tell(d, &e)
}

func (s *Sampler) readHealth(d *sampled) {
	var h collector.DeviceHealth
	var failed failures
	d.gpu.readHealth(&h, &failed)
	e := s.entry(d, max(s.o.Interval, slowInterval))
	e.Health = true
	putHealth(&e, &h, &failed)
	s.tell(d, &e)
}

// entry is a reading of now: what the device said may be as old as its answers took.
func (s *Sampler) entry(d *sampled, interval time.Duration) spanring.DeviceReading {
	return spanring.DeviceReading{UUID: d.device.UUID, MonoNS: s.o.NowMonoNS(), IntervalMS: uint16(interval.Milliseconds())}
}

func (s *Sampler) tell(d *sampled, e *spanring.DeviceReading) {
	var room [spanring.MaxDeviceEntries]spanring.Words
	entries := e.Append(room[:0])
	for _, t := range s.o.Taps {
		t.DeviceReading(&d.device, entries)
	}
}
