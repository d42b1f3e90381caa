package collector

import (
	"context"
	"fmt"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Labels of devices.
const (
	labelHWID      = "hw.id"
	labelHWName    = "hw.name"
	labelHWType    = "hw.type"
	labelTask      = "hw.gpu.task"
	labelErrorType = "error.type"
	labelDirection = "network.io.direction"
	labelClock     = "clock"
	labelQuery     = "query"
)

// tokenKinds are the values of the label kind of tokens and of energy per token.
var (
	tokenKinds    = []string{"generated", "prompt"}
	perTokenKinds = []string{"generated", "all"}
)

// deviceAttrs are the attributes of one device's instruments, built once.
type deviceAttrs struct {
	id, typed, info                  metric.MeasurementOption
	sm, memory                       metric.MeasurementOption
	task                             metric.MeasurementOption
	receive, transmit                metric.MeasurementOption
	corrected, uncorrected           metric.MeasurementOption
	typedCorrected, typedUncorrected metric.MeasurementOption
	held, breaks, queries, perToken  []metric.MeasurementOption
	refusals                         []metric.MeasurementOption
}

func newDeviceAttrs(id, name string) *deviceAttrs {
	with := func(kv ...string) metric.MeasurementOption {
		as := []attribute.KeyValue{attribute.String(labelHWID, CleanText(id))}
		for i := 0; i < len(kv); i += 2 {
			as = append(as, attribute.String(kv[i], kv[i+1]))
		}
		return metric.WithAttributeSet(attribute.NewSet(as...))
	}
	each := func(key string, values []string) (o []metric.MeasurementOption) {
		for _, v := range values {
			o = append(o, with(key, v))
		}
		return o
	}
	return &deviceAttrs{
		id: with(), typed: with(labelHWType, "gpu"), info: with(labelHWName, CleanText(name)),
		sm: with(labelClock, "sm"), memory: with(labelClock, "memory"), task: with(labelTask, "general"),
		receive: with(labelDirection, "receive"), transmit: with(labelDirection, "transmit"),
		corrected: with(labelErrorType, "corrected"), uncorrected: with(labelErrorType, "uncorrected"),
		typedCorrected:   with(labelHWType, "gpu", labelErrorType, "corrected"),
		typedUncorrected: with(labelHWType, "gpu", labelErrorType, "uncorrected"),
		held:             each(labelReason, HeldDownReasons[:]),
		breaks:           each(labelReason, energyBreakText[:]),
		queries:          each(labelQuery, deviceQueryText[:]),
		perToken:         each(labelKind, perTokenKinds),
		refusals:         each(labelReason, deviceRefusalText[:]),
	}
}

// RegisterDevices makes the instruments of devices on m; stats is called at each
// collection. What a device does not report has no series.
func RegisterDevices(m metric.Meter, stats func() []DeviceStats) error {
	var ms []*Metric
	for _, d := range metrics {
		if d.Device() {
			ms = append(ms, d)
		}
	}
	r, err := makeObservables(m, ms)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	attrs := make(map[string]*deviceAttrs)
	_, err = m.RegisterCallback(func(_ context.Context, ob metric.Observer) error {
		o, ds := observation{ob, r}, stats()
		mu.Lock()
		defer mu.Unlock()
		for i := range ds {
			d := &ds[i]
			a := attrs[d.ID]
			if a == nil {
				a = newDeviceAttrs(d.ID, d.Name)
				attrs[d.ID] = a
			}
			d.observe(o, a)
		}
		return nil
	}, r.all...)
	if err != nil {
		return fmt.Errorf("register device instruments: %w", err)
	}
	return nil
}

func observeInt[T uint32 | uint64](o observation, m *Metric, v Opt[T], a metric.MeasurementOption) {
	if v.Known {
		o.n(m, uint64(v.Value), a)
	}
}

func observeFloat[T uint32 | int32 | float64](o observation, m *Metric, v Opt[T], scale float64, a metric.MeasurementOption) {
	if v.Known {
		o.f(m, float64(v.Value)*scale, a)
	}
}

func observeBool(o observation, m *Metric, v Opt[bool], a metric.MeasurementOption) {
	if v.Known {
		o.n(m, uint64(b2i(v.Value)), a)
	}
}

func (d *DeviceStats) observe(o observation, a *deviceAttrs) {
	o.n(mDeviceInfo, 1, a.info)
	o.n(mDeviceReadings, d.Readings, a.id)
	for i, n := range d.Failed {
		o.n(mDeviceFailed, n, a.queries[i])
	}
	for i, n := range d.Refused {
		o.n(mDeviceRefused, n, a.refusals[i])
	}

	observeFloat(o, mDevicePower, d.PowerMilliwatts, 1e-3, a.typed)
	observeFloat(o, mDeviceTemperature, d.TemperatureC, 1, a.id)
	observeFloat(o, mDeviceClock, d.SMClockMHz, 1e6, a.sm)
	observeFloat(o, mDeviceClock, d.MemoryClockMHz, 1e6, a.memory)
	observeInt(o, mDeviceMemoryUsage, d.MemoryUsedBytes, a.id)
	observeInt(o, mDeviceMemoryLimit, d.MemoryLimitBytes, a.id)
	observeFloat(o, mDeviceUtilization, d.BusyPercent, 1e-2, a.task)
	observeFloat(o, mDeviceMemoryBusy, d.MemoryBusyPercent, 1e-2, a.id)
	if d.HeldDownNS.Known {
		for i, ns := range d.HeldDownNS.Value {
			o.f(mDeviceHeldDown, float64(ns)/1e9, a.held[i])
		}
	}

	observeInt(o, mDeviceErrors, d.ECCCorrected, a.typedCorrected)
	observeInt(o, mDeviceErrors, d.ECCUncorrected, a.typedUncorrected)
	observeInt(o, mDeviceRows, d.RemappedCorrected, a.corrected)
	observeInt(o, mDeviceRows, d.RemappedUncorrected, a.uncorrected)
	observeBool(o, mDeviceRemapPending, d.RemapPending, a.id)
	observeBool(o, mDeviceRemapFailed, d.RemapFailed, a.id)
	observeFloat(o, mDevicePCIe, d.PCIeReceive, 1, a.receive)
	observeFloat(o, mDevicePCIe, d.PCIeTransmit, 1, a.transmit)
	observeFloat(o, mDeviceNVLink, d.NVLinkReceive, 1, a.receive)
	observeFloat(o, mDeviceNVLink, d.NVLinkTransmit, 1, a.transmit)

	if d.Joules.Known {
		o.f(mDeviceEnergy, d.Joules.Value, a.typed)
		for i, n := range d.Breaks {
			o.n(mDeviceEnergyBreaks, n, a.breaks[i])
		}
	}
	observeFloat(o, mDevicePerTokenLive, d.LivePerGenerated, 1, a.perToken[0])
	observeFloat(o, mDevicePerTokenLive, d.LivePerToken, 1, a.perToken[1])
	observeFloat(o, mDevicePerToken, d.PerGenerated, 1, a.perToken[0])
	observeFloat(o, mDevicePerToken, d.PerToken, 1, a.perToken[1])
	observeFloat(o, mDevicePerStep, d.PerStepEstimate, 1, a.id)
}
