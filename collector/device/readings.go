package device

import (
	"slices"
	"sync"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// ReadingsOptions say what readings are put together with.
type ReadingsOptions struct {
	// Engines are those that run on the devices; called at every reading. Default none:
	// no energy by token.
	Engines func() []*collector.Engine
	// NowMonoNS is the time on which readings grow old, CLOCK_MONOTONIC. Default this
	// machine's.
	NowMonoNS func() int64
}

// Readings are what is known of devices from their readings, be it from a [Sampler]
// or a recording. Both go through here, so both come to the same figures. Its methods
// may be called from any goroutine; none of them calls a driver.
type Readings struct {
	o ReadingsOptions

	mu      sync.Mutex
	devices []*known
	works   works
	refused [collector.NumDeviceRefusals]uint64 // of all devices
}

// maxDevices is how many devices are known at most: a recording can name any number.
const maxDevices = 256

// known is what is known of one device. Readings.mu guards it.
type known struct {
	key    [16]byte
	uuid   UUID
	stats  collector.DeviceStats
	energy energy
	last   [2]reading // by whether it was of the device's health
}

// reading is when a device was read last, and how often it is.
type reading struct {
	ns       int64 // 0: never
	interval time.Duration
}

// NewReadings returns readings of no device.
func NewReadings(o ReadingsOptions) *Readings {
	if o.Engines == nil {
		o.Engines = func() []*collector.Engine { return nil }
	}
	if o.NowMonoNS == nil {
		o.NowMonoNS = spanring.MonoNS
	}
	return &Readings{o: o}
}

// Found has a device among those that are known, read or not.
func (r *Readings) Found(d *collector.Device) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known(d)
}

// known is what is known of d, nil when too many are. The caller holds mu.
func (r *Readings) known(d *collector.Device) *known {
	for _, k := range r.devices {
		if k.key == d.UUID {
			return k
		}
	}
	if len(r.devices) == maxDevices {
		return nil
	}
	u, _ := ParseUUID(d.ID())
	k := &known{key: d.UUID, uuid: u, stats: collector.DeviceStats{ID: d.ID(), Name: d.Name}}
	r.devices = append(r.devices, k)
	return k
}

// DeviceReading takes one reading of d, as its entries. One that cannot be is refused
// and counted, and costs nothing else. It implements [collector.DeviceTap].
func (r *Readings) DeviceReading(d *collector.Device, entries []spanring.Words) {
	e, err := spanring.DecodeDevice(entries)
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.known(d)
	if err != nil || e.UUID != d.UUID || k == nil {
		r.refuse(k, collector.RefusedMalformed)
		return
	}
	last := &k.last[sort(&e)]
	if e.MonoNS < last.ns {
		r.refuse(k, collector.RefusedStale)
		return
	}
	if e.Health {
		k.health(&e)
	} else {
		r.works.update(r.o.Engines())
		k.reading(&e, r.works.on(k.uuid))
	}
	*last = reading{e.MonoNS, time.Duration(e.IntervalMS) * time.Millisecond}
}

func (r *Readings) refuse(k *known, why collector.DeviceRefusal) {
	r.refused[why]++
	if k != nil {
		k.stats.Refused[why]++
	}
}

func sort(e *spanring.DeviceReading) int {
	if e.Health {
		return 1
	}
	return 0
}

// reading takes power, energy and what else is read often.
func (k *known) reading(e *spanring.DeviceReading, work collector.Work) {
	now, failed := takeReading(e)
	st := &k.stats
	if now.HeldDown.Known {
		st.HeldDownNS.Known = true
		if last := k.last[0]; last.ns != 0 {
			// How long nobody looked is not known to have been held down.
			since := min(e.MonoNS-last.ns, int64(max(time.Second, 2*last.interval)))
			for i := range st.HeldDownNS.Value {
				if now.HeldDown.Value>>i&1 != 0 {
					st.HeldDownNS.Value[i] += uint64(since)
				}
			}
		}
	}
	if now.EnergyMillijoules.Known {
		k.energy.add(e.MonoNS, now.EnergyMillijoules.Value, work)
		st.DeviceEnergy = k.energy.stats()
	} else {
		st.ForgetLive()
	}
	if now.PowerMilliwatts.Known {
		st.Power.Add(now.PowerMilliwatts.Value)
	}
	st.DeviceReading = now
	st.Readings++
	count(st, &failed)
}

func (k *known) health(e *spanring.DeviceReading) {
	now, failed := takeHealth(e)
	k.stats.DeviceHealth = now
	count(&k.stats, &failed)
}

func count(st *collector.DeviceStats, failed *failures) {
	for q, n := range failed {
		st.Failed[q] += n
	}
}

// Stats are what is known of each device now. What was read too long ago, because the
// driver hangs or a recording is over, is absent; counters stay.
func (r *Readings) Stats() []collector.DeviceStats {
	now := r.o.NowMonoNS()
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]collector.DeviceStats, 0, len(r.devices))
	for _, k := range r.devices {
		st := k.stats
		if k.last[0].old(now, 0) {
			st.DeviceReading = collector.DeviceReading{}
			st.ForgetLive()
		}
		if k.last[1].old(now, slowInterval) {
			st.DeviceHealth = collector.DeviceHealth{}
		}
		out = append(out, st)
	}
	return slices.Clip(out)
}

// old reports whether a reading is no longer shown. least is how often the device is
// read at most.
func (l reading) old(nowNS int64, least time.Duration) bool {
	return nowNS-l.ns > int64(max(5*time.Second, 3*max(l.interval, least)))
}

// Refused is how many readings were none, by why.
func (r *Readings) Refused() [collector.NumDeviceRefusals]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused
}

var _ collector.DeviceTap = (*Readings)(nil)
