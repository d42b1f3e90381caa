package spanring

import (
	"fmt"
	"math"
	"math/bits"
)

// DeviceField is something that a device reports. Its number never changes its
// meaning within a layout version.
type DeviceField uint8

// The fields. Those up to DeviceFailed are read often, those from DeviceECCCorrected
// on, a device's health, seldom: a reading has only the ones or the others.
const (
	DevicePowerMilliwatts   DeviceField = 0
	DeviceEnergyMillijoules DeviceField = 1 // a counter: only differences mean something
	DeviceTemperatureC      DeviceField = 2 // signed
	DeviceSMClockMHz        DeviceField = 3
	DeviceMemoryClockMHz    DeviceField = 4
	DeviceHeldDown          DeviceField = 5 // the driver's bits of why clocks are held down
	DeviceMemoryUsed        DeviceField = 6 // bytes, as the next
	DeviceMemoryLimit       DeviceField = 7
	DeviceBusyPercent       DeviceField = 8
	DeviceMemoryBusyPercent DeviceField = 9
	DeviceFailed            DeviceField = 10 // what the driver failed to answer: four bits a query

	DeviceECCCorrected        DeviceField = 12
	DeviceECCUncorrected      DeviceField = 13
	DeviceRemappedCorrected   DeviceField = 14
	DeviceRemappedUncorrected DeviceField = 15
	DeviceRemapPending        DeviceField = 16 // 0 or 1, as the next
	DeviceRemapFailed         DeviceField = 17
	DevicePCIeReceive         DeviceField = 18 // bytes a second, as the next three
	DevicePCIeTransmit        DeviceField = 19
	DeviceNVLinkReceive       DeviceField = 20
	DeviceNVLinkTransmit      DeviceField = 21
	DeviceHealthFailed        DeviceField = 22 // as DeviceFailed

	// NumDeviceFields counts the places that have no field, too.
	NumDeviceFields = 24
)

const (
	// valuesPerPart is how many fields an entry has room for.
	valuesPerPart  = 3
	numDeviceParts = NumDeviceFields / valuesPerPart
	healthPart     = int(DeviceECCCorrected) / valuesPerPart

	// MaxDeviceEntries is how many entries a reading has at most.
	MaxDeviceEntries = numDeviceParts / 2

	flagDeviceMore = 0x80 // of the flags, whose other bits are the part
)

// deviceFieldMost is the largest value of each field; 0 is a place without one.
var deviceFieldMost = [NumDeviceFields]uint64{
	DevicePowerMilliwatts: math.MaxUint32 - 1, DeviceEnergyMillijoules: math.MaxUint64 - 1, DeviceTemperatureC: math.MaxUint64,
	DeviceSMClockMHz: math.MaxUint32 - 1, DeviceMemoryClockMHz: math.MaxUint32 - 1, DeviceHeldDown: math.MaxUint64 - 1,
	DeviceMemoryUsed: math.MaxInt64, DeviceMemoryLimit: math.MaxInt64, DeviceBusyPercent: 100, DeviceMemoryBusyPercent: 100,
	DeviceFailed:       math.MaxUint64,
	DeviceECCCorrected: math.MaxUint64 - 1, DeviceECCUncorrected: math.MaxUint64 - 1,
	DeviceRemappedCorrected: math.MaxInt64, DeviceRemappedUncorrected: math.MaxInt64, DeviceRemapPending: 1, DeviceRemapFailed: 1,
	DevicePCIeReceive: math.MaxInt64, DevicePCIeTransmit: math.MaxInt64, DeviceNVLinkReceive: math.MaxInt64, DeviceNVLinkTransmit: math.MaxInt64,
	DeviceHealthFailed: math.MaxUint64,
}

// Bounds of DeviceTemperatureC.
const (
	minDeviceC = -273
	maxDeviceC = 1000
)

// DeviceReading is what a device reported at one time. What it did not report is
// absent, which is not 0. It lies in as many entries as its fields need, one behind
// the other; an entry says whether another one follows. No producer writes readings:
// they have the layout of entries so that whoever reads devices can put them into a
// pipeline and into recordings.
//
//	word 0: kind | flags: part, 0x80 another follows | reason: which of the three
//	        fields are there | lane: interval in ms
//	1, 2:   the device's UUID, its first bytes lowest
//	3:      time, CLOCK_MONOTONIC
//	4 to 6: the fields 3 × part to 3 × part + 2
type DeviceReading struct {
	UUID   [16]byte // of the GPU, not of an instance on it
	MonoNS int64    // host, CLOCK_MONOTONIC
	// IntervalMS is how often the device is read, in ms, 0 for not known.
	IntervalMS uint16
	// Health: the fields are those from DeviceECCCorrected on.
	Health bool

	have   uint32
	values [NumDeviceFields]uint64
}

// Set has r report a field. One that a reading of its sort does not have, or a
// value that the field cannot have, is left absent, and Set reports false.
func (r *DeviceReading) Set(f DeviceField, v uint64) bool {
	if !deviceFieldHolds(f, v) || r.Health != (int(f)/valuesPerPart >= healthPart) {
		return false
	}
	r.have |= 1 << f
	r.values[f] = v
	return true
}

// Get is the value of a field; ok is false when it is absent.
func (r *DeviceReading) Get(f DeviceField) (v uint64, ok bool) {
	if f >= NumDeviceFields || r.have>>f&1 == 0 {
		return 0, false
	}
	return r.values[f], true
}

func deviceFieldHolds(f DeviceField, v uint64) bool {
	if f >= NumDeviceFields || deviceFieldMost[f] == 0 || v > deviceFieldMost[f] {
		return false
	}
	return f != DeviceTemperatureC || int64(v) >= minDeviceC && int64(v) <= maxDeviceC
}

// Append appends the entries of r, from 1 to MaxDeviceEntries.
func (r *DeviceReading) Append(dst []Words) []Words {
	first := 0
	if r.Health {
		first = healthPart
	}
	const all = 1<<valuesPerPart - 1
	var u0, u1 uint64
	for i := range 8 {
		u0 |= uint64(r.UUID[i]) << (8 * i)
		u1 |= uint64(r.UUID[8+i]) << (8 * i)
	}
	before := len(dst)
	for p := first; p < first+MaxDeviceEntries; p++ {
		have := r.have >> (p * valuesPerPart) & all
		if have == 0 {
			continue
		}
		dst = append(dst, Words{
			head(KindDevice, uint8(p)|flagDeviceMore, uint8(have), 0, r.IntervalMS, 0), u0, u1, uint64(r.MonoNS),
			r.values[p*valuesPerPart], r.values[p*valuesPerPart+1], r.values[p*valuesPerPart+2],
		})
	}
	if len(dst) == before { // that nothing was reported is a reading, too
		dst = append(dst, Words{head(KindDevice, uint8(first), 0, 0, r.IntervalMS, 0), u0, u1, uint64(r.MonoNS)})
	}
	dst[len(dst)-1][0] &^= flagDeviceMore << 8
	return dst
}

// Device decodes one entry of a reading: more reports whether another one follows.
func (w *Words) Device() (r DeviceReading, more bool, err error) {
	part, have := int(w.flags()&^flagDeviceMore), uint32(w.reason())
	if w.Kind() != KindDevice || part >= numDeviceParts || bits.Len32(have) > valuesPerPart || w[1]|w[2] == 0 || int64(w[3]) < 0 {
		return r, false, fmt.Errorf("%w: %v, part %d, fields %#x, device %x %x at %d ns", ErrEntry, w.Kind(), part, have, w[1], w[2], int64(w[3]))
	}
	r.MonoNS, r.IntervalMS, r.Health = int64(w[3]), w.lane(), part >= healthPart
	for i := range 8 {
		r.UUID[i], r.UUID[8+i] = byte(w[1]>>(8*i)), byte(w[2]>>(8*i))
	}
	for i := range valuesPerPart {
		if have>>i&1 != 0 && !r.Set(DeviceField(part*valuesPerPart+i), w[4+i]) {
			return r, false, fmt.Errorf("%w: %v, part %d, field %d is %d", ErrEntry, w.Kind(), part, i, w[4+i])
		}
	}
	if used, ok := r.Get(DeviceMemoryUsed); ok {
		if limit, ok := r.Get(DeviceMemoryLimit); ok && used > limit {
			return r, false, fmt.Errorf("%w: %v, %d bytes of %d in use", ErrEntry, w.Kind(), used, limit)
		}
	}
	return r, w.flags()&flagDeviceMore != 0, nil
}

// DecodeDevice decodes the entries of one whole reading. Entries that do not belong
// together, are out of their order or too few are refused.
func DecodeDevice(entries []Words) (r DeviceReading, err error) {
	for i := range entries {
		e, more, err := entries[i].Device()
		if err != nil {
			return r, err
		}
		switch {
		case more != (i < len(entries)-1):
			return r, fmt.Errorf("%w: entry %d of a reading of %d", ErrEntry, i+1, len(entries))
		case i == 0:
			r = e
			continue
		case e.UUID != r.UUID || e.MonoNS != r.MonoNS || e.Health != r.Health || e.IntervalMS != r.IntervalMS ||
			e.have == 0 || r.have == 0 || bits.Len32(r.have) > bits.TrailingZeros32(e.have):
			return r, fmt.Errorf("%w: entry %d is none of the reading before it", ErrEntry, i+1)
		}
		r.have |= e.have
		for f := range e.values {
			r.values[f] |= e.values[f]
		}
	}
	if len(entries) == 0 {
		return r, fmt.Errorf("%w: a reading of no entries", ErrEntry)
	}
	return r, nil
}
