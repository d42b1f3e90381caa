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
	// Found is told of each device before it is read. Default nobody.
	Found func(*collector.Device)
	// Taps get every reading. Default none.
	Taps []collector.DeviceTap
	// NowMonoNS is when something is read, CLOCK_MONOTONIC. Default this machine's.
	NowMonoNS func() int64
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
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Sampler{o: o, open: open}, nil
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
	var ds []sampled
	for _, g := range gpus {
		id, name := g.id()
		u, _ := ParseUUID(id)
		key, ok := u.bytes()
		if !ok || u.MIG {
			s.o.Logger.Warn("a GPU cannot be read", "reason", "its UUID is none", "uuid", id)
			continue
		}
		d := sampled{g, collector.Device{UUID: key, Name: name}}
		if ds = append(ds, d); s.o.Found != nil {
			s.o.Found(&d.device)
		}
	}

	var running sync.WaitGroup
	running.Go(func() {
		every(ctx, s.o.Interval, func() {
			for i := range ds {
				s.read(&ds[i])
			}
		})
	})
	running.Go(func() {
		every(ctx, max(s.o.Interval, slowInterval), func() {
			for i := range ds {
				s.readHealth(&ds[i])
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
