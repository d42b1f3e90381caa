package device

import (
	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// failures are the queries that a driver failed to answer.
type failures [collector.NumDeviceQueries]uint64

// Of failures an entry has four bits a query: a reading asks nothing more often than
// that.
const (
	failedBits = 4
	failedMost = 1<<failedBits - 1
)

func put[T uint32 | uint64 | int32](e *spanring.DeviceReading, f spanring.DeviceField, o collector.Opt[T]) {
	if o.Known {
		e.Set(f, uint64(int64(o.Value)))
	}
}

func putRate(e *spanring.DeviceReading, f spanring.DeviceField, o collector.Opt[float64]) {
	if o.Known && o.Value >= 0 && o.Value < 1<<62 {
		e.Set(f, uint64(o.Value))
	}
}

func putBool(e *spanring.DeviceReading, f spanring.DeviceField, o collector.Opt[bool]) {
	if !o.Known {
		return
	}
	v := uint64(0)
	if o.Value {
		v = 1
	}
	e.Set(f, v)
}

func take[T uint32 | uint64 | int32 | float64](e *spanring.DeviceReading, f spanring.DeviceField) (o collector.Opt[T]) {
	if v, ok := e.Get(f); ok {
		o = collector.Some(T(int64(v)))
	}
	return o
}

func takeBool(e *spanring.DeviceReading, f spanring.DeviceField) (o collector.Opt[bool]) {
	if v, ok := e.Get(f); ok {
		o = collector.Some(v != 0)
	}
	return o
}

func putFailures(e *spanring.DeviceReading, f spanring.DeviceField, failed *failures) {
	var v uint64
	for q, n := range failed {
		v |= min(n, failedMost) << (failedBits * q)
	}
	if v != 0 {
		e.Set(f, v)
	}
}

func takeFailures(e *spanring.DeviceReading, f spanring.DeviceField) (failed failures) {
	v, _ := e.Get(f)
	for q := range failed {
		failed[q] = v >> (failedBits * q) & failedMost
	}
	return failed
}

// putReading and putHealth fill in what was read; takeReading and takeHealth get it
// back.
func putReading(e *spanring.DeviceReading, r *collector.DeviceReading, failed *failures) {
	put(e, spanring.DevicePowerMilliwatts, r.PowerMilliwatts)
	put(e, spanring.DeviceEnergyMillijoules, r.EnergyMillijoules)
	put(e, spanring.DeviceTemperatureC, r.TemperatureC)
	put(e, spanring.DeviceSMClockMHz, r.SMClockMHz)
	put(e, spanring.DeviceMemoryClockMHz, r.MemoryClockMHz)
	put(e, spanring.DeviceHeldDown, r.HeldDown)
	put(e, spanring.DeviceMemoryUsed, r.MemoryUsedBytes)
	put(e, spanring.DeviceMemoryLimit, r.MemoryLimitBytes)
	put(e, spanring.DeviceBusyPercent, r.BusyPercent)
	put(e, spanring.DeviceMemoryBusyPercent, r.MemoryBusyPercent)
	putFailures(e, spanring.DeviceFailed, failed)
}

func takeReading(e *spanring.DeviceReading) (r collector.DeviceReading, failed failures) {
	return collector.DeviceReading{
		PowerMilliwatts:   take[uint32](e, spanring.DevicePowerMilliwatts),
		EnergyMillijoules: take[uint64](e, spanring.DeviceEnergyMillijoules),
		TemperatureC:      take[int32](e, spanring.DeviceTemperatureC),
		SMClockMHz:        take[uint32](e, spanring.DeviceSMClockMHz),
		MemoryClockMHz:    take[uint32](e, spanring.DeviceMemoryClockMHz),
		HeldDown:          take[uint64](e, spanring.DeviceHeldDown),
		MemoryUsedBytes:   take[uint64](e, spanring.DeviceMemoryUsed),
		MemoryLimitBytes:  take[uint64](e, spanring.DeviceMemoryLimit),
		BusyPercent:       take[uint32](e, spanring.DeviceBusyPercent),
		MemoryBusyPercent: take[uint32](e, spanring.DeviceMemoryBusyPercent),
	}, takeFailures(e, spanring.DeviceFailed)
}

func putHealth(e *spanring.DeviceReading, h *collector.DeviceHealth, failed *failures) {
	put(e, spanring.DeviceECCCorrected, h.ECCCorrected)
	put(e, spanring.DeviceECCUncorrected, h.ECCUncorrected)
	put(e, spanring.DeviceRemappedCorrected, h.RemappedCorrected)
	put(e, spanring.DeviceRemappedUncorrected, h.RemappedUncorrected)
	putBool(e, spanring.DeviceRemapPending, h.RemapPending)
	putBool(e, spanring.DeviceRemapFailed, h.RemapFailed)
	putRate(e, spanring.DevicePCIeReceive, h.PCIeReceive)
	putRate(e, spanring.DevicePCIeTransmit, h.PCIeTransmit)
	putRate(e, spanring.DeviceNVLinkReceive, h.NVLinkReceive)
	putRate(e, spanring.DeviceNVLinkTransmit, h.NVLinkTransmit)
	putFailures(e, spanring.DeviceHealthFailed, failed)
}

func takeHealth(e *spanring.DeviceReading) (h collector.DeviceHealth, failed failures) {
	return collector.DeviceHealth{
		ECCCorrected:        take[uint64](e, spanring.DeviceECCCorrected),
		ECCUncorrected:      take[uint64](e, spanring.DeviceECCUncorrected),
		RemappedCorrected:   take[uint64](e, spanring.DeviceRemappedCorrected),
		RemappedUncorrected: take[uint64](e, spanring.DeviceRemappedUncorrected),
		RemapPending:        takeBool(e, spanring.DeviceRemapPending),
		RemapFailed:         takeBool(e, spanring.DeviceRemapFailed),
		PCIeReceive:         take[float64](e, spanring.DevicePCIeReceive),
		PCIeTransmit:        take[float64](e, spanring.DevicePCIeTransmit),
		NVLinkReceive:       take[float64](e, spanring.DeviceNVLinkReceive),
		NVLinkTransmit:      take[float64](e, spanring.DeviceNVLinkTransmit),
	}, takeFailures(e, spanring.DeviceHealthFailed)
}
