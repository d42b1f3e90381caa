package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/collector/device"
	"github.com/lanetrace/lanetrace/exporters/recording"
)

// deviceFlags say whether and how often GPUs are read.
type deviceFlags struct {
	NVML         bool           `name:"nvml" help:"Read the machine's GPUs: power, energy, clocks, temperature, memory, errors, traffic (default ${default}; --nvml=false: not)." default:"true"`
	NVMLInterval deviceInterval `name:"nvml-interval" help:"Read them so often, 10ms to 10s (default ${default})." default:"100ms" placeholder:"D"`
}

// deviceInterval is how often devices are read.
type deviceInterval time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (i *deviceInterval) UnmarshalText(b []byte) error {
	d, err := time.ParseDuration(string(b))
	if err != nil || d < device.MinInterval || d > device.MaxInterval {
		return fmt.Errorf("want a duration from 10ms to 10s, got %q", b)
	}
	*i = deviceInterval(d)
	return nil
}

// devices are the readings of GPUs. A nil *devices has none.
type devices struct {
	readings *device.Readings
	sampler  *device.Sampler // nil: they come from a recording
	cancel   context.CancelFunc
	ended    chan struct{}
}

// devices makes them; they call no driver yet. engines are asked at each reading, and
// taps get each.
func (f *deviceFlags) devices(a *app, log *slog.Logger, engines func() []*collector.Engine, taps ...collector.DeviceTap) (*devices, error) {
	if !f.NVML {
		return nil, nil
	}
	d := recordedDevices(engines)
	var err error
	d.sampler, err = device.New(device.Options{
		Interval: time.Duration(f.NVMLInterval), Found: d.readings.Found, Taps: append(taps, d.readings), Logger: log,
		Unavailable: func(err error) { a.say("warning: GPUs are not read: %v", err) },
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// recordedDevices are those whose readings come from a recording.
func recordedDevices(engines func() []*collector.Engine) *devices {
	return &devices{readings: device.NewReadings(device.ReadingsOptions{Engines: engines})}
}

// keepTap is where readings are kept, if anywhere.
func keepTap(keep *recording.Store) []collector.DeviceTap {
	if keep == nil {
		return nil
	}
	return []collector.DeviceTap{keep}
}

// stats are what is known of each device.
func (d *devices) stats() []collector.DeviceStats {
	if d == nil {
		return nil
	}
	return d.readings.Stats()
}

// start begins to read, until ctx ends or stop is called. Loading the driver's library takes up to a second, which nobody
// waits for.
func (d *devices) start(ctx context.Context) {
	if d == nil || d.sampler == nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	d.cancel, d.ended = cancel, make(chan struct{})
	go func() {
		defer close(d.ended)
		d.sampler.Run(ctx)
	}()
}

// deviceDeadline is for how long a driver's call is waited for at the end.
const deviceDeadline = time.Second

// stop ends reading. A driver that hangs is left alone. It may be called again.
func (d *devices) stop() {
	if d == nil || d.cancel == nil {
		return
	}
	d.cancel()
	d.cancel = nil
	select {
	case <-d.ended:
	case <-time.After(deviceDeadline):
	}
}
