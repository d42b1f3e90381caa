package collector

import (
	"fmt"

	"github.com/lanetrace/lanetrace/spanring"
)

// Device names a GPU.
type Device struct {
	UUID [16]byte
	Name string // what the driver calls its model
}

// ID is the UUID as the driver writes it.
func (d *Device) ID() string {
	u := &d.UUID
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// DeviceTap sees every reading of devices, as spanring's DeviceReading has it in
// entries. Its method may be called from any goroutine, must not block for long and
// keeps none of its arguments.
type DeviceTap interface {
	DeviceReading(d *Device, entries []spanring.Words)
}

// Opt is a value that may not be known. What a device does not report is absent,
// which is not 0. Its zero value is absent.
type Opt[T any] struct {
	Value T
	Known bool
}

// Some is a known value.
func Some[T any](v T) Opt[T] { return Opt[T]{v, true} }

// DeviceReading is what one device reported at one time.
type DeviceReading struct {
	PowerMilliwatts   Opt[uint32]
	EnergyMillijoules Opt[uint64] // since the driver was loaded: only its differences mean something
	SMClockMHz        Opt[uint32]
	MemoryClockMHz    Opt[uint32]
	TemperatureC      Opt[int32]
	// HeldDown has a bit for each of HeldDownReasons: why clocks are lower than they could be.
	HeldDown         Opt[uint64]
	MemoryUsedBytes  Opt[uint64] // by everybody on the device
	MemoryLimitBytes Opt[uint64]
	// BusyPercent is how much of the driver's last sampling period some kernel ran,
	// MemoryBusyPercent memory was read or written; 0 to 100.
	BusyPercent       Opt[uint32]
	MemoryBusyPercent Opt[uint32]
}

// DeviceHealth is what one device reported of its memory cells and its links.
type DeviceHealth struct {
	// Errors since the driver was loaded.
	ECCCorrected, ECCUncorrected Opt[uint64]
	// Rows that were replaced because of such errors.
	RemappedCorrected, RemappedUncorrected Opt[uint64]
	RemapPending, RemapFailed              Opt[bool]
	// Traffic in whole bytes a second, as the device sees it: of PCIe over the driver's
	// last 20 ms, of NVLink since the reading before.
	PCIeReceive, PCIeTransmit     Opt[float64]
	NVLinkReceive, NVLinkTransmit Opt[float64]
}

// HeldDownReasons are why a device's clocks are held down, in the order of the bits
// of DeviceReading.HeldDown. The driver's bits have this order.
var HeldDownReasons = [...]string{
	"idle", "application_clocks", "power_cap", "hardware_slowdown", "sync_boost", "software_thermal", "hardware_thermal", "power_brake",
	"display_clocks",
}

// NumHeldDownReasons is how many there are.
const NumHeldDownReasons = len(HeldDownReasons)

// DeviceQuery is something that a device is asked.
type DeviceQuery uint8

// The queries.
const (
	QueryPower DeviceQuery = iota
	QueryEnergy
	QuerySMClock
	QueryMemoryClock
	QueryTemperature
	QueryHeldDown
	QueryMemory
	QueryUtilization
	QueryECC
	QueryRemappedRows
	QueryPCIe
	QueryNVLink

	NumDeviceQueries
)

var deviceQueryText = [NumDeviceQueries]string{
	"power", "energy", "sm_clock", "memory_clock", "temperature", "held_down", "memory", "utilization",
	"ecc", "remapped_rows", "pcie", "nvlink",
}

// String is the query's name.
func (q DeviceQuery) String() string {
	if q < NumDeviceQueries {
		return deviceQueryText[q]
	}
	return "unknown"
}

// DeviceRefusal is why what was given as a reading of a device is none.
type DeviceRefusal uint8

// The reasons.
const (
	RefusedMalformed DeviceRefusal = iota // its entries cannot be, or do not belong together
	RefusedStale                          // it is older than the one before it

	NumDeviceRefusals
)

var deviceRefusalText = [NumDeviceRefusals]string{"malformed", "stale"}

// Work is what engines did, as far as they said so in the attributes of their steps.
type Work struct {
	Steps         uint64 // closed, with attributes or without
	DecodeTokens  uint64 // generated
	PrefillTokens uint64 // of prompts
}

// add adds what a step did.
func (w *Work) add(st *Step) {
	w.Steps++
	if st.HasAttrs {
		w.DecodeTokens += uint64(st.Attrs.DecodeTokens)
		w.PrefillTokens += uint64(st.Attrs.PrefillTokens)
	}
}

// EnergyBreak is why the energy counter of a device was started afresh.
type EnergyBreak uint8

// The reasons.
const (
	EnergyReset EnergyBreak = iota // it went back, or jumped further than any device could
	EnergyWrap                     // it ran over its end

	NumEnergyBreaks
)

var energyBreakText = [NumEnergyBreaks]string{"reset", "wrap"}

// String is the reason's name.
func (b EnergyBreak) String() string {
	if b < NumEnergyBreaks {
		return energyBreakText[b]
	}
	return "unknown"
}

// DeviceEnergy is what the differences of a device's energy counter came to.
type DeviceEnergy struct {
	Joules Opt[float64] // since reading began
	Breaks [NumEnergyBreaks]uint64
	// By token generated, and by all tokens worked on, those of prompts included:
	// over the last ten readings, and since reading began. Never 0, never infinite.
	LivePerGenerated, LivePerToken Opt[float64]
	PerGenerated, PerToken         Opt[float64]
	// PerStepEstimate is over at least a second: steps overlap and idling is in it.
	PerStepEstimate Opt[float64]
}

// DeviceStats are everything that is known of one device.
type DeviceStats struct {
	ID   string // its UUID, in the driver's notation
	Name string
	DeviceReading
	DeviceHealth
	DeviceEnergy
	Readings uint64
	Failed   [NumDeviceQueries]uint64
	Refused  [NumDeviceRefusals]uint64
	// HeldDownNS is for how long clocks were held down, by reason, if the device tells.
	HeldDownNS Opt[[NumHeldDownReasons]uint64]
	// Power is of all readings that had it.
	Power DevicePower
}

// DevicePower is what readings of power came to.
type DevicePower struct {
	SumMilliwatts, Readings uint64
	MostMilliwatts          uint32
}

// Add takes a reading.
func (p *DevicePower) Add(milliwatts uint32) {
	p.SumMilliwatts += uint64(milliwatts)
	p.Readings++
	p.MostMilliwatts = max(p.MostMilliwatts, milliwatts)
}

// ForgetLive makes absent what is of the latest readings only.
func (d *DeviceEnergy) ForgetLive() {
	d.LivePerGenerated, d.LivePerToken, d.PerStepEstimate = Opt[float64]{}, Opt[float64]{}, Opt[float64]{}
}
