package synth

import (
	"math"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// How often the synthetic device is read.
const (
	readEvery   = 100 * time.Millisecond
	healthEvery = time.Second
)

// Device is the device that engines run on.
func (o Options) Device() collector.Device {
	return collector.Device{UUID: deviceUUID, Name: o.withDefaults().GPUName}
}

var deviceUUID = [16]byte{0x5e, 0x1f, 6: 0x40, 8: 0x80}

// Readings hands to what a sidecar would have read of the device while the engine ran:
// ten times a second power from 500 to 700 W, and once its health. The first half of
// the time the power cap holds clocks down, the second half the hardware does for heat;
// one reading in 16 has no utilisation, which the driver failed to answer.
func (o Options) Readings(to collector.DeviceTap) {
	o = o.withDefaults()
	d := o.Device()
	mj, half := 1e12, int64(o.Duration)/2
	var room [spanring.MaxDeviceEntries]spanring.Words
	for i, ns := 0, int64(0); ns < int64(o.Duration); i, ns = i+1, ns+int64(readEvery) {
		watts := math.Round(600 + 100*math.Sin(float64(ns)/2e9))
		if mj += watts * 1000 * readEvery.Seconds(); i == 0 {
			mj = 1e12
		}
		r := spanring.DeviceReading{UUID: d.UUID, MonoNS: o.StartMonoNS + ns, IntervalMS: uint16(readEvery.Milliseconds())}
		held, clock := uint64(4), uint64(1980)
		if ns >= half {
			held, clock = 4|8|64, 1200
		}
		fields := map[spanring.DeviceField]uint64{
			spanring.DevicePowerMilliwatts: uint64(watts) * 1000, spanring.DeviceEnergyMillijoules: uint64(mj), spanring.DeviceTemperatureC: 60 + uint64(ns/1e9)%20,
			spanring.DeviceSMClockMHz: clock, spanring.DeviceMemoryClockMHz: 3201, spanring.DeviceHeldDown: held,
			spanring.DeviceMemoryUsed: 90 << 30, spanring.DeviceMemoryLimit: 141 << 30, spanring.DeviceBusyPercent: 97, spanring.DeviceMemoryBusyPercent: 55,
		}
		if i%16 == 15 {
			delete(fields, spanring.DeviceBusyPercent)
			delete(fields, spanring.DeviceMemoryBusyPercent)
			fields[spanring.DeviceFailed] = 1 << (4 * collector.QueryUtilization)
		}
		give(to, &d, &r, fields, room[:0])
		if ns%int64(healthEvery) != 0 {
			continue
		}
		h := spanring.DeviceReading{UUID: d.UUID, MonoNS: r.MonoNS, IntervalMS: uint16(healthEvery.Milliseconds()), Health: true}
		give(to, &d, &h, map[spanring.DeviceField]uint64{
			spanring.DeviceECCCorrected: uint64(ns / 1e9), spanring.DeviceECCUncorrected: 0,
			spanring.DeviceRemappedCorrected: 2, spanring.DeviceRemappedUncorrected: 1, spanring.DeviceRemapPending: 1, spanring.DeviceRemapFailed: 0,
			spanring.DevicePCIeReceive: 30_000_000, spanring.DevicePCIeTransmit: 4_000_000,
			spanring.DeviceNVLinkReceive: 5_000_000_000, spanring.DeviceNVLinkTransmit: 6_000_000_000,
		}, room[:0])
	}
}

func give(to collector.DeviceTap, d *collector.Device, r *spanring.DeviceReading, fields map[spanring.DeviceField]uint64, room []spanring.Words) {
	for f, v := range fields {
		r.Set(f, v)
	}
	to.DeviceReading(d, r.Append(room))
}
