package player

import (
	"context"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/spanring"
)

// Devices plays the readings of devices that recordings hold. Played again and again
// the devices' energy counters go on from where they were: those of a device do not go
// back.
type Devices struct {
	to      collector.DeviceTap
	energy  map[[16]byte]*energyCounter
	entries []spanring.Words
}

// energyCounter is one device's.
type energyCounter struct {
	lastMJ   uint64 // as played
	offsetMJ uint64 // as played less as recorded
	begun    bool   // in this pass
}

// NewDevices returns one that hands readings to a tap.
func NewDevices(to collector.DeviceTap) *Devices {
	return &Devices{to: to, energy: make(map[[16]byte]*energyCounter)}
}

// Play hands on the readings of f, each when it was made in the recording, on the clock
// that o says; those of before o.StartAtNS, which has no default here, are left out. It
// returns when there are no more of them, or ctx has ended.
func (d *Devices) Play(ctx context.Context, f *recording.File, o Options) error {
	if o.Clock == nil {
		o.Clock = SystemClock{}
	}
	rs, err := f.Readings()
	if err != nil {
		return err
	}
	defer rs.Close()
	for _, e := range d.energy {
		e.begun = false
	}
	for {
		g, ok := rs.Next()
		if !ok {
			return rs.Err()
		}
		if g.MonoNS < o.StartAtNS {
			continue
		}
		at := g.MonoNS - o.StartAtNS + o.StartMonoNS
		if wait := at - o.Clock.MonoNS(); wait > 0 && o.Clock.Sleep(ctx, time.Duration(wait)) != nil || ctx.Err() != nil {
			return nil // told to stop
		}
		d.to.DeviceReading(&g.Device, d.moved(&g, at))
	}
}

// moved are the entries of a reading at another time. Those that are none stay as they
// are: whoever takes them counts them.
func (d *Devices) moved(g *recording.Reading, monoNS int64) []spanring.Words {
	r, err := spanring.DecodeDevice(g.Entries)
	if err != nil {
		return g.Entries
	}
	r.MonoNS = monoNS
	if mj, ok := r.Get(spanring.DeviceEnergyMillijoules); ok {
		e := d.energy[r.UUID]
		if e == nil {
			e = new(energyCounter)
			d.energy[r.UUID] = e
		} else if !e.begun {
			e.offsetMJ = e.lastMJ - mj
		}
		e.begun = true
		e.lastMJ = mj + e.offsetMJ
		r.Set(spanring.DeviceEnergyMillijoules, e.lastMJ)
	}
	d.entries = r.Append(d.entries[:0])
	return d.entries
}
