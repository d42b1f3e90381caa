//go:build cgo

package device

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
)

// field fills in one field's value.
func field(v *nvml.FieldValue, n uint64) {
	v.NvmlReturn, v.ValueType = uint32(nvml.SUCCESS), uint32(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG)
	binary.NativeEndian.PutUint64(v.Value[:], n)
}

// healthy is a device that answers everything.
func healthy() *mock.Device {
	kib := uint64(0)
	return &mock.Device{
		GetUUIDFunc: func() (string, nvml.Return) { return testUUID, nvml.SUCCESS },
		GetNameFunc: func() (string, nvml.Return) { return "NVIDIA H200", nvml.SUCCESS },
		GetFieldValuesFunc: func(v []nvml.FieldValue) nvml.Return {
			for i := range v {
				switch v[i].FieldId {
				case nvml.FI_DEV_POWER_INSTANT:
					v[i].ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_INT)
					binary.NativeEndian.PutUint32(v[i].Value[:], 650_123)
				case nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX:
					kib += 1000
					field(&v[i], kib)
				case nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX:
					field(&v[i], 2*kib)
				}
			}
			return nvml.SUCCESS
		},
		GetPowerUsageFunc:             func() (uint32, nvml.Return) { return 600_000, nvml.SUCCESS },
		GetTotalEnergyConsumptionFunc: func() (uint64, nvml.Return) { return 123_456_789, nvml.SUCCESS },
		GetClockInfoFunc: func(c nvml.ClockType) (uint32, nvml.Return) {
			if c == nvml.CLOCK_SM {
				return 1980, nvml.SUCCESS
			}
			return 3201, nvml.SUCCESS
		},
		GetTemperatureFunc:                  func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 61, nvml.SUCCESS },
		GetCurrentClocksEventReasonsFunc:    func() (uint64, nvml.Return) { return nvml.ClocksEventReasonSwPowerCap, nvml.SUCCESS },
		GetCurrentClocksThrottleReasonsFunc: func() (uint64, nvml.Return) { return nvml.ClocksThrottleReasonHwSlowdown, nvml.SUCCESS },
		GetMemoryInfo_v2Func: func() (nvml.Memory_v2, nvml.Return) {
			return nvml.Memory_v2{Total: 150 << 30, Reserved: 1 << 30, Used: 90 << 30}, nvml.SUCCESS
		},
		GetMemoryInfoFunc:       func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 150 << 30, Used: 91 << 30}, nvml.SUCCESS },
		GetUtilizationRatesFunc: func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 97, Memory: 55}, nvml.SUCCESS },
		GetTotalEccErrorsFunc: func(e nvml.MemoryErrorType, c nvml.EccCounterType) (uint64, nvml.Return) {
			if e == nvml.MEMORY_ERROR_TYPE_CORRECTED {
				return 7, nvml.SUCCESS
			}
			return 0, nvml.SUCCESS
		},
		GetRemappedRowsFunc: func() (int, int, bool, bool, nvml.Return) { return 2, 1, true, false, nvml.SUCCESS },
		GetPcieThroughputFunc: func(c nvml.PcieUtilCounter) (uint32, nvml.Return) {
			if c == nvml.PCIE_UTIL_RX_BYTES {
				return 30, nvml.SUCCESS
			}
			return 40, nvml.SUCCESS
		},
	}
}

// library has the devices, and all symbols but some.
func library(lacks []string, ds ...nvml.Device) *mock.Interface {
	return &mock.Interface{
		InitFunc:           func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:       func() nvml.Return { return nvml.SUCCESS },
		DeviceGetCountFunc: func() (int, nvml.Return) { return len(ds), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			if ds[i] == nil {
				return nil, nvml.ERROR_GPU_IS_LOST
			}
			return ds[i], nvml.SUCCESS
		},
		ExtensionsFunc: func() nvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(s string) error {
				if slices.Contains(lacks, s) {
					return errors.New("no such symbol")
				}
				return nil
			}}
		},
	}
}

func open(t *testing.T, lib nvml.Interface) gpu {
	t.Helper()
	gs, shut, err := openLibrary(lib, slog.New(slog.DiscardHandler))
	if err != nil || len(gs) != 1 {
		t.Fatalf("%d devices, %v", len(gs), err)
	}
	t.Cleanup(shut)
	return gs[0]
}

func whole() collector.DeviceReading {
	return collector.DeviceReading{
		PowerMilliwatts: collector.Some(uint32(650_123)), EnergyMillijoules: collector.Some(uint64(123_456_789)),
		SMClockMHz: collector.Some(uint32(1980)), MemoryClockMHz: collector.Some(uint32(3201)), TemperatureC: collector.Some(int32(61)),
		HeldDown: collector.Some(uint64(4)), MemoryUsedBytes: collector.Some(uint64(90 << 30)), MemoryLimitBytes: collector.Some(uint64(150 << 30)),
		BusyPercent: collector.Some(uint32(97)), MemoryBusyPercent: collector.Some(uint32(55)),
	}
}

func TestReading(t *testing.T) {
	bad := nvml.ERROR_UNKNOWN
	for _, c := range []struct {
		name   string
		lacks  []string
		change func(d *mock.Device)
		want   func(r *collector.DeviceReading)
		failed failures
	}{
		{name: "all"},
		{name: "an old library", lacks: symbols, want: func(r *collector.DeviceReading) {
			r.PowerMilliwatts.Value, r.MemoryUsedBytes.Value = 600_000, 91<<30
			r.EnergyMillijoules, r.HeldDown = collector.Opt[uint64]{}, collector.Opt[uint64]{}
		}},
		{name: "the older name of reasons", lacks: []string{symEventReasons}, want: func(r *collector.DeviceReading) { r.HeldDown.Value = 8 }},
		{name: "not supported", change: func(d *mock.Device) {
			d.GetTotalEnergyConsumptionFunc = func() (uint64, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
			d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, nvml.ERROR_NOT_SUPPORTED }
		}, want: func(r *collector.DeviceReading) {
			r.EnergyMillijoules, r.BusyPercent, r.MemoryBusyPercent = collector.Opt[uint64]{}, collector.Opt[uint32]{}, collector.Opt[uint32]{}
		}},
		{name: "failing", change: func(d *mock.Device) {
			d.GetFieldValuesFunc = func([]nvml.FieldValue) nvml.Return { return bad }
			d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 0, bad }
			d.GetTotalEnergyConsumptionFunc = func() (uint64, nvml.Return) { return 0, bad }
			d.GetClockInfoFunc = func(nvml.ClockType) (uint32, nvml.Return) { return 0, bad }
			d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 0, nvml.ERROR_GPU_IS_LOST }
			d.GetCurrentClocksEventReasonsFunc = func() (uint64, nvml.Return) { return 0, bad }
			d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{}, bad }
			d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, bad }
		}, want: func(r *collector.DeviceReading) { *r = collector.DeviceReading{} },
			failed: failures{1, 1, 1, 1, 1, 1, 1, 1}},
		{name: "sentinels", change: func(d *mock.Device) {
			d.GetFieldValuesFunc = func(v []nvml.FieldValue) nvml.Return {
				v[0].ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_INT)
				binary.NativeEndian.PutUint32(v[0].Value[:], math.MaxUint32)
				return nvml.SUCCESS
			}
			d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return math.MaxUint32, nvml.SUCCESS }
			d.GetTotalEnergyConsumptionFunc = func() (uint64, nvml.Return) { return math.MaxUint64, nvml.SUCCESS }
			d.GetClockInfoFunc = func(nvml.ClockType) (uint32, nvml.Return) { return math.MaxUint32, nvml.SUCCESS }
			d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return math.MaxUint32, nvml.SUCCESS }
			d.GetCurrentClocksEventReasonsFunc = func() (uint64, nvml.Return) { return math.MaxUint64, nvml.SUCCESS }
			d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
				return nvml.Memory_v2{Total: math.MaxUint64, Used: math.MaxUint64}, nvml.SUCCESS
			}
			d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) {
				return nvml.Utilization{Gpu: math.MaxUint32, Memory: math.MaxUint32}, nvml.SUCCESS
			}
		}, want: func(r *collector.DeviceReading) { *r = collector.DeviceReading{} }},
		{name: "zeros that are values", change: func(d *mock.Device) {
			d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 0, nvml.SUCCESS }
			d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, nvml.SUCCESS }
		}, want: func(r *collector.DeviceReading) {
			r.TemperatureC, r.BusyPercent, r.MemoryBusyPercent = collector.Some(int32(0)), collector.Some(uint32(0)), collector.Some(uint32(0))
		}},
		{name: "no instantaneous power", change: func(d *mock.Device) {
			d.GetFieldValuesFunc = func(v []nvml.FieldValue) nvml.Return {
				v[0].NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
				return nvml.SUCCESS
			}
		}, want: func(r *collector.DeviceReading) { r.PowerMilliwatts.Value = 600_000 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := healthy()
			if c.change != nil {
				c.change(d)
			}
			want := whole()
			if c.want != nil {
				c.want(&want)
			}
			var got collector.DeviceReading
			var failed failures
			open(t, library(c.lacks, d)).read(&got, &failed)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			if failed != c.failed {
				t.Errorf("failed %v, want %v", failed, c.failed)
			}
		})
	}
}

// Of two GPUs one is lost, comes back with its counter at zero, and hangs: the other is
// read all the while.
func TestOneOfTwoFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lastUUID = "GPU-ffff0000-1234-5678-9abc-def012345678"
		began := time.Now()
		since := func(d time.Duration) bool { return time.Since(began) >= d }
		joules := func() (uint64, nvml.Return) {
			return 1e9 + uint64(time.Since(began)/time.Millisecond)*500, nvml.SUCCESS
		}
		first, second := healthy(), healthy()
		second.GetUUIDFunc = func() (string, nvml.Return) { return lastUUID, nvml.SUCCESS }
		first.GetTotalEnergyConsumptionFunc = joules
		lost := func() bool { return since(2*time.Second) && !since(3*time.Second) }
		second.GetTotalEnergyConsumptionFunc = func() (uint64, nvml.Return) {
			mJ, ret := joules()
			switch {
			case lost():
				return 0, nvml.ERROR_GPU_IS_LOST
			case since(3 * time.Second):
				mJ -= 1e9
			}
			return mJ, ret
		}
		second.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
			if lost() {
				return nvml.Memory_v2{}, nvml.ERROR_GPU_IS_LOST
			}
			return nvml.Memory_v2{Total: 150 << 30, Used: 90 << 30}, nvml.SUCCESS
		}
		hang := make(chan struct{})
		second.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) {
			if since(5 * time.Second) {
				<-hang
			}
			return nvml.Utilization{Gpu: 97, Memory: 55}, nvml.SUCCESS
		}
		rs := runOpened(t, Options{}, func(log *slog.Logger) ([]gpu, func(), error) {
			return openLibrary(library(nil, first, second), log)
		})
		lostReadings := failures{collector.QueryEnergy: 10, collector.QueryMemory: 10}
		for _, c := range []struct {
			at     time.Duration
			joules float64 // of the first, as if it were alone
			want   func(st *collector.DeviceStats)
		}{
			{1950 * time.Millisecond, 950, func(st *collector.DeviceStats) { st.Joules = some(950) }},
			{2950 * time.Millisecond, 1450, func(st *collector.DeviceStats) {
				st.Joules, st.Failed = some(950), lostReadings
				st.EnergyMillijoules, st.MemoryUsedBytes, st.MemoryLimitBytes = collector.Opt[uint64]{}, collector.Opt[uint64]{}, collector.Opt[uint64]{}
			}},
			// One reading less: across the counter's start nothing is counted.
			{4950 * time.Millisecond, 2450, func(st *collector.DeviceStats) {
				st.Joules, st.Failed, st.Breaks = some(950+950), lostReadings, [2]uint64{collector.EnergyReset: 1}
			}},
			{11050 * time.Millisecond, 5500, func(st *collector.DeviceStats) {
				st.Joules, st.Failed, st.Breaks = some(950+950), lostReadings, [2]uint64{collector.EnergyReset: 1}
				st.DeviceReading, st.Readings = collector.DeviceReading{}, 50
			}},
		} {
			time.Sleep(c.at - time.Since(began))
			synctest.Wait()
			sts := rs.Stats()
			alone := sts[0]
			if alone.ID != testUUID || alone.Joules != some(c.joules) || alone.Readings != uint64(c.at/DefaultInterval)+1 || alone.Failed != (failures{}) || !alone.BusyPercent.Known {
				t.Errorf("%v: the one that works: %+v", c.at, alone)
			}
			want := alone
			want.ID, want.DeviceHealth, want.Power, want.HeldDownNS = lastUUID, sts[1].DeviceHealth, sts[1].Power, sts[1].HeldDownNS
			if want.EnergyMillijoules.Known && c.at > 3*time.Second {
				want.EnergyMillijoules.Value -= 1e9
			}
			c.want(&want)
			if d := cmp.Diff(want, sts[1]); d != "" {
				t.Errorf("%v: -want +got:\n%s", c.at, d)
			}
		}
		close(hang)
	})
}

func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := open(t, library(nil, healthy()))
		want := collector.DeviceHealth{
			ECCCorrected: collector.Some(uint64(7)), ECCUncorrected: collector.Some(uint64(0)),
			RemappedCorrected: collector.Some(uint64(2)), RemappedUncorrected: collector.Some(uint64(1)),
			RemapPending: collector.Some(true), RemapFailed: collector.Some(false),
			PCIeReceive: some(30_000), PCIeTransmit: some(40_000),
		}
		var failed failures
		for i := range 2 {
			var got collector.DeviceHealth
			g.readHealth(&got, &failed)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("reading %d, -want +got:\n%s", i, d)
			}
			time.Sleep(2 * time.Second)
			// The first has nothing to compare with.
			want.NVLinkReceive, want.NVLinkTransmit = some(512_000), some(1_024_000)
		}
		if failed != (failures{}) {
			t.Errorf("failed %v", failed)
		}
	})
}

// Across a counter of links that goes back, or is not told, there is no traffic: no 0,
// and nothing negative.
func TestNVLinkCounters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const no = math.MaxUint64
		var rx, tx uint64
		d := healthy()
		d.GetFieldValuesFunc = func(v []nvml.FieldValue) nvml.Return {
			field(&v[0], rx)
			field(&v[1], tx)
			return nvml.SUCCESS
		}
		g := open(t, library(nil, d))
		for i, c := range []struct {
			rx, tx     uint64 // KiB
			rate, sent opt
		}{
			{1000, 2000, opt{}, opt{}},
			{1000, 2001, some(0), some(1024)},
			{500, 2002, opt{}, some(1024)}, // reset
			{501, 2002, some(1024), some(0)},
			{502, no, opt{}, opt{}},
			{503, 2003, opt{}, opt{}}, // nothing to compare with
			{504, 2004, some(1024), some(1024)},
		} {
			rx, tx = c.rx, c.tx
			var got collector.DeviceHealth
			var failed failures
			if g.readHealth(&got, &failed); got.NVLinkReceive != c.rate || got.NVLinkTransmit != c.sent || failed != (failures{}) {
				t.Errorf("%d: %+v and %+v, failed %v", i, got.NVLinkReceive, got.NVLinkTransmit, failed)
			}
			time.Sleep(time.Second)
		}
	})
}

func TestHealthAbsent(t *testing.T) {
	for _, c := range []struct {
		ret, link nvml.Return
		failed    failures
	}{
		{nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_INVALID_ARGUMENT, failures{}},
		{nvml.ERROR_UNKNOWN, nvml.ERROR_UNKNOWN, failures{collector.QueryECC: 2, collector.QueryRemappedRows: 1, collector.QueryPCIe: 2, collector.QueryNVLink: 1}},
	} {
		d := healthy()
		d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 0, c.ret }
		d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 0, 0, false, false, c.ret }
		d.GetPcieThroughputFunc = func(nvml.PcieUtilCounter) (uint32, nvml.Return) { return 0, c.ret }
		d.GetFieldValuesFunc = func(v []nvml.FieldValue) nvml.Return {
			for i := range v {
				v[i].NvmlReturn = uint32(c.link)
			}
			return nvml.SUCCESS
		}
		var got collector.DeviceHealth
		var failed failures
		open(t, library(nil, d)).readHealth(&got, &failed)
		if got != (collector.DeviceHealth{}) || failed != c.failed {
			t.Errorf("%+v, failed %v", got, failed)
		}
	}
}

func TestOpen(t *testing.T) {
	lost := &mock.Interface{InitFunc: func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND }}
	driver := &mock.Interface{InitFunc: func() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED }}
	counts := library(nil)
	counts.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
	for _, c := range []struct {
		lib  *mock.Interface
		want string
	}{
		{lost, "NVML is not available: the driver's library libnvidia-ml.so.1 is not there"},
		{driver, "NVML is not available: initialise: ERROR_DRIVER_NOT_LOADED (9)"},
		{counts, "NVML is not available: count devices: ERROR_UNKNOWN (999)"},
		{library(nil), "NVML is not available: it finds no GPU"},
		{library(nil, nil, nil), "NVML is not available: none of 2 GPUs can be opened: ERROR_GPU_IS_LOST (15)"},
	} {
		var log bytes.Buffer
		_, _, err := openLibrary(c.lib, slog.New(slog.NewTextHandler(&log, nil)))
		if err == nil || err.Error() != c.want || !errors.Is(err, ErrUnavailable) || log.Len() > 0 {
			t.Errorf("%v, want %s; log %q", err, c.want, log.String())
		}
		if init := c.lib.InitFunc() == nvml.SUCCESS; init != (len(c.lib.ShutdownCalls()) == 1) {
			t.Errorf("%s: shut down %d times", c.want, len(c.lib.ShutdownCalls()))
		}
	}
	// One of two is lost: the other is read.
	var log bytes.Buffer
	gs, _, err := openLibrary(library(nil, nil, healthy()), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil || len(gs) != 1 || strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "indexes=[0] reason=\"ERROR_GPU_IS_LOST (15)\"") {
		t.Errorf("%d devices, %v, log %q", len(gs), err, log.String())
	}
	if id, name := gs[0].id(); id != testUUID || name != "NVIDIA H200" {
		t.Errorf("%s %s", id, name)
	}
}

// The driver's bits are in the order of the reasons' names.
func TestReasonsAreTheDriversBits(t *testing.T) {
	for i, bit := range []int{
		nvml.ClocksEventReasonGpuIdle, nvml.ClocksEventReasonApplicationsClocksSetting, nvml.ClocksEventReasonSwPowerCap,
		nvml.ClocksThrottleReasonHwSlowdown, nvml.ClocksEventReasonSyncBoost, nvml.ClocksEventReasonSwThermalSlowdown,
		nvml.ClocksThrottleReasonHwThermalSlowdown, nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, nvml.ClocksEventReasonDisplayClockSetting,
	} {
		if bit != 1<<i {
			t.Errorf("%s is bit %#x, not %d", collector.HeldDownReasons[i], bit, i)
		}
	}
}
