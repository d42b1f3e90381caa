//go:build cgo

package device

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/lanetrace/lanetrace/collector"
)

func openNVML(log *slog.Logger) ([]gpu, func(), error) { return openLibrary(nvml.New(), log) }

// openLibrary initialises lib and opens every device that it has. A device that
// can't be opened is left out, with a line if there are others.
func openLibrary(lib nvml.Interface, log *slog.Logger) ([]gpu, func(), error) {
	switch ret := lib.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, nil, fmt.Errorf("%w: the driver's library libnvidia-ml.so.1 is not there", ErrUnavailable)
	default:
		return nil, nil, fmt.Errorf("%w: initialise: %s", ErrUnavailable, returnText(ret))
	}
	shut := func() { _ = lib.Shutdown() } // nothing is left to do about a failure
	n, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS || n == 0 {
		shut()
		if ret != nvml.SUCCESS {
			return nil, nil, fmt.Errorf("%w: count devices: %s", ErrUnavailable, returnText(ret))
		}
		return nil, nil, fmt.Errorf("%w: it finds no GPU", ErrUnavailable)
	}
	// A function that an older library lacks must not be called at all.
	ext := lib.Extensions()
	has := make(map[string]bool)
	for _, sym := range symbols {
		has[sym] = ext.LookupSymbol(sym) == nil
	}
	var gpus []gpu
	var closed []int // devices that can't be opened
	var reason string
	for i := range n {
		d, ret := lib.DeviceGetHandleByIndex(i)
		var uuid string
		if ret == nvml.SUCCESS {
			uuid, ret = d.GetUUID()
		}
		if ret != nvml.SUCCESS {
			closed, reason = append(closed, i), returnText(ret)
			continue
		}
		name, ret := d.GetName()
		if ret != nvml.SUCCESS {
			name = ""
		}
		gpus = append(gpus, &nvmlGPU{dev: d, has: has, uuid: uuid, name: name})
	}
	if len(gpus) == 0 {
		shut()
		return nil, nil, fmt.Errorf("%w: none of %d GPUs can be opened: %s", ErrUnavailable, n, reason)
	}
	if len(closed) > 0 {
		log.Warn("GPUs cannot be read", "indexes", fmt.Sprint(closed), "reason", reason)
	}
	return gpus, shut, nil
}

// returnText is the driver's own text for a result.
func returnText(r nvml.Return) string { return fmt.Sprintf("%s (%d)", r.Error(), int32(r)) }

// Functions that not every library has.
const (
	symEnergy       = "nvmlDeviceGetTotalEnergyConsumption"
	symFields       = "nvmlDeviceGetFieldValues"
	symEventReasons = "nvmlDeviceGetCurrentClocksEventReasons"
	symThrottle     = "nvmlDeviceGetCurrentClocksThrottleReasons"
	symMemory2      = "nvmlDeviceGetMemoryInfo_v2"
	symRemappedRows = "nvmlDeviceGetRemappedRows"
	symPCIe         = "nvmlDeviceGetPcieThroughput"
)

var symbols = []string{symEnergy, symFields, symEventReasons, symThrottle, symMemory2, symRemappedRows, symPCIe}

// nvmlGPU is one device. read and readHealth are called by one goroutine each.
type nvmlGPU struct {
	dev        nvml.Device
	has        map[string]bool
	uuid, name string

	linkBytes [2]uint64 // NVLink's counters at the last reading, receive and transmit
	linkAt    time.Time // zero: none
}

func (g *nvmlGPU) id() (string, string) { return g.uuid, g.name }

// answered sorts a result: absent, or failed and counted, or a value.
func answered(ret nvml.Return, q collector.DeviceQuery, failed *failures) bool {
	switch ret {
	case nvml.SUCCESS:
		return true
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_ARGUMENT_VERSION_MISMATCH:
	default:
		failed[q]++
	}
	return false
}

const notAvailable = math.MaxUint32 // the driver's sign for a 32-bit value it does not have

// Values beyond these are no readings.
const (
	maxReadMilliwatts = maxMilliwatts
	maxReadMHz        = 100_000
	minReadC          = -100
	maxReadC          = 250
)

func (g *nvmlGPU) read(r *collector.DeviceReading, failed *failures) {
	if mw, ret := g.power(); answered(ret, collector.QueryPower, failed) && mw <= maxReadMilliwatts {
		r.PowerMilliwatts = collector.Some(mw)
	}
	if g.has[symEnergy] {
		if mj, ret := g.dev.GetTotalEnergyConsumption(); answered(ret, collector.QueryEnergy, failed) && mj != math.MaxUint64 {
			r.EnergyMillijoules = collector.Some(mj)
		}
	}
	r.SMClockMHz = g.clock(nvml.CLOCK_SM, collector.QuerySMClock, failed)
	r.MemoryClockMHz = g.clock(nvml.CLOCK_MEM, collector.QueryMemoryClock, failed)
	if c, ret := g.dev.GetTemperature(nvml.TEMPERATURE_GPU); answered(ret, collector.QueryTemperature, failed) {
		if c := int32(c); c >= minReadC && c <= maxReadC && c != nvml.VALUE_NOT_AVAILABLE {
			r.TemperatureC = collector.Some(c)
		}
	}
	if bits, ret := g.heldDown(); answered(ret, collector.QueryHeldDown, failed) && bits != math.MaxUint64 {
		r.HeldDown = collector.Some(bits)
	}
	g.memory(r, failed)
	if u, ret := g.dev.GetUtilizationRates(); answered(ret, collector.QueryUtilization, failed) {
		if u.Gpu <= 100 {
			r.BusyPercent = collector.Some(u.Gpu)
		}
		if u.Memory <= 100 {
			r.MemoryBusyPercent = collector.Some(u.Memory)
		}
	}
}

// power is the instantaneous draw where the device tells it, else the driver's own
// figure, which newer devices average over a second.
func (g *nvmlGPU) power() (uint32, nvml.Return) {
	if g.has[symFields] {
		v := []nvml.FieldValue{{FieldId: nvml.FI_DEV_POWER_INSTANT}}
		if g.dev.GetFieldValues(v) == nvml.SUCCESS {
			if mw, ok := fieldUint(&v[0]); ok && mw < notAvailable {
				return uint32(mw), nvml.SUCCESS
			}
		}
	}
	return g.dev.GetPowerUsage()
}

// fieldUint is the value of a field that counts something.
func fieldUint(v *nvml.FieldValue) (uint64, bool) {
	if nvml.Return(v.NvmlReturn) != nvml.SUCCESS {
		return 0, false
	}
	switch nvml.ValueType(v.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		n := binary.NativeEndian.Uint32(v.Value[:])
		return uint64(n), n != notAvailable
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		n := binary.NativeEndian.Uint64(v.Value[:])
		return n, n != math.MaxUint64
	}
	return 0, false
}

func (g *nvmlGPU) clock(c nvml.ClockType, q collector.DeviceQuery, failed *failures) (o collector.Opt[uint32]) {
	if mhz, ret := g.dev.GetClockInfo(c); answered(ret, q, failed) && mhz <= maxReadMHz {
		o = collector.Some(mhz)
	}
	return o
}

func (g *nvmlGPU) heldDown() (uint64, nvml.Return) {
	switch {
	case g.has[symEventReasons]:
		return g.dev.GetCurrentClocksEventReasons()
	case g.has[symThrottle]:
		return g.dev.GetCurrentClocksThrottleReasons()
	}
	return 0, nvml.ERROR_FUNCTION_NOT_FOUND
}

// memory prefers the second form, which does not count what the driver reserves.
func (g *nvmlGPU) memory(r *collector.DeviceReading, failed *failures) {
	var total, used uint64
	ret := nvml.ERROR_FUNCTION_NOT_FOUND
	if g.has[symMemory2] {
		var m nvml.Memory_v2
		m, ret = g.dev.GetMemoryInfo_v2()
		total, used = m.Total, m.Used
	}
	if ret == nvml.ERROR_FUNCTION_NOT_FOUND || ret == nvml.ERROR_ARGUMENT_VERSION_MISMATCH {
		var m nvml.Memory
		m, ret = g.dev.GetMemoryInfo()
		total, used = m.Total, m.Used
	}
	if !answered(ret, collector.QueryMemory, failed) || total == 0 || total == math.MaxUint64 {
		return
	}
	r.MemoryLimitBytes = collector.Some(total)
	if used <= total {
		r.MemoryUsedBytes = collector.Some(used)
	}
}

func (g *nvmlGPU) readHealth(h *collector.DeviceHealth, failed *failures) {
	ecc := func(t nvml.MemoryErrorType) (o collector.Opt[uint64]) {
		if n, ret := g.dev.GetTotalEccErrors(t, nvml.VOLATILE_ECC); answered(ret, collector.QueryECC, failed) && n != math.MaxUint64 {
			o = collector.Some(n)
		}
		return o
	}
	h.ECCCorrected = ecc(nvml.MEMORY_ERROR_TYPE_CORRECTED)
	h.ECCUncorrected = ecc(nvml.MEMORY_ERROR_TYPE_UNCORRECTED)
	if g.has[symRemappedRows] {
		if c, u, pending, failure, ret := g.dev.GetRemappedRows(); answered(ret, collector.QueryRemappedRows, failed) && c >= 0 && u >= 0 {
			h.RemappedCorrected, h.RemappedUncorrected = collector.Some(uint64(c)), collector.Some(uint64(u))
			h.RemapPending, h.RemapFailed = collector.Some(pending), collector.Some(failure)
		}
	}
	if g.has[symPCIe] {
		h.PCIeReceive = g.pcie(nvml.PCIE_UTIL_RX_BYTES, failed)
		h.PCIeTransmit = g.pcie(nvml.PCIE_UTIL_TX_BYTES, failed)
	}
	g.nvlink(h, failed)
}

// pcie blocks for the 20 ms over which the driver counts.
func (g *nvmlGPU) pcie(c nvml.PcieUtilCounter, failed *failures) (o collector.Opt[float64]) {
	if kb, ret := g.dev.GetPcieThroughput(c); answered(ret, collector.QueryPCIe, failed) && kb != notAvailable {
		o = collector.Some(float64(kb) * 1000) // the driver's KB/s
	}
	return o
}

// nvlink takes the difference of the counters of all links since the last call.
func (g *nvmlGPU) nvlink(h *collector.DeviceHealth, failed *failures) {
	before, at := g.linkBytes, g.linkAt
	g.linkAt = time.Time{}
	if !g.has[symFields] {
		return
	}
	v := []nvml.FieldValue{
		{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ScopeId: math.MaxUint32},
		{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ScopeId: math.MaxUint32},
	}
	if !answered(g.dev.GetFieldValues(v), collector.QueryNVLink, failed) {
		return
	}
	now := time.Now()
	for i := range v {
		kib, ok := fieldUint(&v[i])
		if !ok {
			if ret := nvml.Return(v[i].NvmlReturn); ret != nvml.SUCCESS && ret != nvml.ERROR_INVALID_ARGUMENT {
				answered(ret, collector.QueryNVLink, failed) // a device without links refuses the argument
			}
			return
		}
		g.linkBytes[i] = kib << 10
	}
	g.linkAt = now
	if at.IsZero() || !now.After(at) {
		return
	}
	for i, o := range []*collector.Opt[float64]{&h.NVLinkReceive, &h.NVLinkTransmit} {
		if g.linkBytes[i] >= before[i] {
			*o = collector.Some(math.Round(float64(g.linkBytes[i]-before[i]) / now.Sub(at).Seconds()))
		}
	}
}
