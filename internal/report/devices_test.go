package report

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
)

// whole reports everything, part only that it was read; of none there is no reading.
func someDevices() (whole, part, none collector.DeviceStats) {
	whole = collector.DeviceStats{ID: "GPU-5e1f0000-0000-4000-8000-000000000000", Name: "NVIDIA\x1bH200", Readings: 1201}
	for _, mw := range []uint32{500_000, 700_123, 600_000} {
		whole.Power.Add(mw)
	}
	whole.Joules = collector.Some(16_856.4)
	whole.PerGenerated, whole.PerToken = collector.Some(1.25), collector.Some(0.0162)
	whole.Breaks[collector.EnergyWrap] = 2
	whole.HeldDownNS.Known = true
	whole.HeldDownNS.Value[0] = 1_000_000_000
	whole.HeldDownNS.Value[2], whole.HeldDownNS.Value[6] = 16_900_000_000, 400_000_000
	part = collector.DeviceStats{ID: "GPU-5e1f0000-0000-4000-8000-000000000001", Readings: 1}
	none = collector.DeviceStats{ID: "GPU-5e1f0000-0000-4000-8000-000000000002", Name: "NVIDIA H200"}
	return whole, part, none
}

func TestDevicesText(t *testing.T) {
	whole, part, none := someDevices()
	cool := part
	cool.HeldDownNS.Known = true
	cool.Joules = collector.Some(0.)
	for _, c := range []struct {
		ds    []collector.DeviceStats
		width int
		want  string
	}{
		{nil, 0, ""},
		{[]collector.DeviceStats{none}, 0, ""},
		{[]collector.DeviceStats{part, none, whole}, 100, `GPUS
  GPU-5e1f0000-0000-4000-8000-000000000001
  NVIDIA H200  GPU-5e1f0000-0000-4000-8000-000000000000
    power   600 W mean, 700 W largest, of 3 readings
    energy  16,856 J, 1.25 J by token generated, 16.2 mJ by token of any kind
            missing what was used across breaks of its counter, 2 wrap
    clocks  held down: idle 1.00 s, power_cap 16.9 s, hardware_thermal 400 ms
`},
		{[]collector.DeviceStats{cool}, 60, `GPUS
  GPU-5e1f0000-0000-4000-8000-000000000001
    energy  0.00 J
    clocks  never held down
`},
		{[]collector.DeviceStats{whole}, 60, `GPUS
  NVIDIA H200  GPU-5e1f0000-0000-4000-8000-000000000000
    power   600 W mean, 700 W largest, of 3 readings
    energy  16,856 J, 1.25 J by token generated,
            16.2 mJ by token of any kind
            missing what was used across breaks of its counter,
            2 wrap
    clocks  held down: idle 1.00 s, power_cap 16.9 s,
            hardware_thermal 400 ms
`},
	} {
		got := DevicesText(c.ds, c.width)
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("width %d, -want +got:\n%s", c.width, d)
		}
	}
}

// What a device did not report is null; of one that reports it every reason is there.
func TestDevicesForMachines(t *testing.T) {
	whole, part, none := someDevices()
	b, err := json.Marshal(Devices([]collector.DeviceStats{whole, none, part}))
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"uuid":"GPU-5e1f0000-0000-4000-8000-000000000000","name":"NVIDIA H200","readings":1201,` +
		`"power":{"mean_watts":600.041,"max_watts":700.123},"energy_joules":16856.4,"energy_breaks":{"reset":0,"wrap":2},` +
		`"joules_per_generated_token":1.25,"joules_per_token":0.0162,"clocks_held_down_seconds":{"application_clocks":0,"display_clocks":0,` +
		`"hardware_slowdown":0,"hardware_thermal":0.4,"idle":1,"power_brake":0,"power_cap":16.9,"software_thermal":0,"sync_boost":0}},` +
		`{"uuid":"GPU-5e1f0000-0000-4000-8000-000000000001","name":"","readings":1,"power":null,"energy_joules":null,"energy_breaks":null,` +
		`"joules_per_generated_token":null,"joules_per_token":null,"clocks_held_down_seconds":null}]`
	if d := cmp.Diff(strings.Split(want, ","), strings.Split(string(b), ",")); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if b, err := json.Marshal(Devices(nil)); err != nil || string(b) != "[]" {
		t.Errorf("%s, %v", b, err)
	}
}
