//go:build servers

package servers_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/collector/device"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/servers"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// eventful are the readings of a synthetic device to which more happens: its energy
// counter is reset, starts near the end of 32 bits and runs over it, memory cells and
// rows fail. Another device, which reports little, is read beside it.
type eventful struct {
	to       collector.DeviceTap
	readings int
	mj       uint64 // the counter as it is changed
	last     uint64 // as it was
}

var idleDevice = collector.Device{UUID: [16]byte{0x1d, 0x1e}, Name: "idle"}

func (e *eventful) DeviceReading(d *collector.Device, entries []spanring.Words) {
	r, err := spanring.DecodeDevice(entries)
	if err != nil {
		e.to.DeviceReading(d, entries)
		return
	}
	idle := spanring.DeviceReading{UUID: idleDevice.UUID, MonoNS: r.MonoNS, IntervalMS: r.IntervalMS, Health: r.Health}
	if r.Health {
		n := uint64(e.readings / 10)
		r.Set(spanring.DeviceECCUncorrected, n/3)
		r.Set(spanring.DeviceRemapFailed, min(n/8, 1))
		idle.Set(spanring.DeviceRemapPending, 0)
	} else {
		e.readings++
		mj, _ := r.Get(spanring.DeviceEnergyMillijoules)
		switch e.readings {
		case 1, 60: // the driver was loaded anew
			e.mj = 5_000
		case 100:
			e.mj = 1<<32 - 100_000
		default:
			e.mj = (e.mj + mj - e.last) % (1 << 32)
		}
		e.last = mj
		r.Set(spanring.DeviceEnergyMillijoules, e.mj)
		idle.Set(spanring.DevicePowerMilliwatts, 75_000+uint64(e.readings))
		idle.Set(spanring.DeviceHeldDown, 1)
	}
	e.to.DeviceReading(d, r.Append(nil))
	e.to.DeviceReading(&idleDevice, idle.Append(nil))
}

// gated is a recording that is read up to a time.
type gated struct {
	*recording.Source
	untilNS int64
}

func (g *gated) Poll(dst []spanring.Entry) (n int, done bool, err error) {
	return g.PollUntil(dst, g.untilNS)
}

// What devices report is on the board as it stands in a recording of readings and of the
// engine on one of them.
func TestBoardsShowDevices(t *testing.T) {
	o := synthetic
	o.Duration, o.StepEvery, o.FailEvery, o.DropEvery = 14*time.Second, 20*time.Millisecond, 0, 0
	path := filepath.Join(t.TempDir(), "devices.ltrec")
	w, err := recording.Create(path, recording.Options{Writer: "test", FlushEvery: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	o.Readings(&eventful{to: w})
	p, err := collector.NewProcessor(synth.New(o), collector.ProcessorOptions{Taps: []collector.Tap{w}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Drain(), p.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}

	// What a sidecar makes of it, whose time is that of the reading at hand.
	f, src := firstRun(t, path)
	play := &gated{src, 0}
	if p, err = collector.NewProcessor(play, collector.ProcessorOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	var now atomic.Int64
	readings := device.NewReadings(device.ReadingsOptions{Engines: func() []*collector.Engine { return []*collector.Engine{p.Engine()} }, NowMonoNS: now.Load})
	synthetic := o.Device()
	readings.Found(&synthetic)
	readings.Found(&idleDevice)
	m := servers.StartPrometheus(t, servers.PrometheusOptions{Targets: []string{servers.ServeDevices(t, readings.Stats)}})
	scraped := func(query string, series int) {
		t.Helper()
		servers.Poll(t, query, func() error {
			ss, err := m.Query(t.Context(), query, time.Time{})
			if err == nil && len(ss) != series {
				err = fmt.Errorf("%d series", len(ss))
			}
			return err
		})
	}
	scraped("lanetrace_device_readings_total == 0", 2)
	rs, err := f.Readings()
	if err != nil {
		t.Fatal(err)
	}
	defer rs.Close()
	given := 0
	for r, ok := rs.Next(); ok; r, ok = rs.Next() {
		play.untilNS = r.MonoNS
		for {
			n, _, err := p.Poll()
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				break
			}
		}
		now.Store(r.MonoNS)
		readings.DeviceReading(&r.Device, r.Entries)
		if given++; given == 4 { // the first of either sort of both
			scraped("hw_energy_joules_total == 0", 1)
			scraped(`hw_errors_total == 0`, 2)
		}
	}
	if err := rs.Err(); err != nil || given < 300 {
		t.Fatal(given, err)
	}
	bad := (&spanring.DeviceReading{UUID: synthetic.UUID}).Append(nil)
	for range 3 {
		readings.DeviceReading(&synthetic, bad) // of long ago
	}
	readings.DeviceReading(&idleDevice, bad) // of another device
	at := scrapedDevicesAfter(t, m, time.Now().Add(2*time.Second))

	want := surveyDevices(t, path)
	want["device: Readings"] = append(want["device: Readings"], of{2, "hw_id,reason", map[string]float64{
		synthetic.ID() + " stale": 3 / rateWindow, idleDevice.ID() + " malformed": 1 / rateWindow,
	}, exactly})
	compare(t, m, at, want)
	panels, _ := servers.Boards(t)
	for i := range panels {
		if w := panels[i].Where(); panels[i].Board == "device" && want[w] == nil && !slices.Contains(rare, w) && w != timeInLanes {
			t.Errorf("%s: compared with nothing", w)
		}
	}
}

// timeInLanes is the panel of the board Device that TestBoardsShowTheRecording compares.
const timeInLanes = "device: Time of GPUs in lanes"

// scrapedDevicesAfter waits for a scrape of devices after a time.
func scrapedDevicesAfter(t *testing.T, m *servers.Prometheus, after time.Time) (at time.Time) {
	t.Helper()
	servers.Poll(t, "scrapes after the end", func() error {
		v, err := m.Value(t.Context(), "max(timestamp(lanetrace_device_readings_total))")
		if at = time.UnixMilli(int64(v * 1e3)); err == nil && at.Before(after) {
			err = errors.New("not yet")
		}
		return err
	})
	return at
}

// doneWork is what an engine had done at a time.
type doneWork struct{ steps, generated, prompt float64 }

func (w doneWork) less(o doneWork) doneWork {
	return doneWork{w.steps - o.steps, w.generated - o.generated, w.prompt - o.prompt}
}

// readDevice is what a pass over the readings of one device finds.
type readDevice struct {
	name     string
	last     [2]spanring.DeviceReading // often, seldom
	readings float64
	failed   map[string]float64
	held     map[int]float64 // seconds by bit
	first    spanring.DeviceReading
	joules   float64
	breaks   map[string]float64
	work     doneWork // that counts
	points   []devicePoint
	lastMJ   float64
}

// devicePoint is where a device stood at one reading, since the last break of its
// counter.
type devicePoint struct {
	ns     int64
	joules float64
	work   doneWork
}

// surveyDevices is what the board Device is to show at the end of a recording, by code
// that shares nothing with the collector but the words.
func surveyDevices(t *testing.T, path string) map[string][]of {
	t.Helper()
	f, src := firstRun(t, path)

	// Steps count when all of them is there, unless they ended before reading began.
	beganNS := src.NowMonoNS()
	type step struct {
		opened, landed uint32
		ended          bool
		endNS          int64
		attrs          spanring.StepAttrs
	}
	steps := make(map[uint64]*step)
	get := func(n uint64) *step {
		if steps[n] == nil {
			steps[n] = &step{}
		}
		return steps[n]
	}
	var work doneWork
	workAt := func(ns int64) doneWork {
		buf := make([]spanring.Entry, 1)
		for {
			n, _, err := src.PollUntil(buf, ns)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				return work
			}
			var st *step
			switch w := &buf[0].Words; w.Kind() {
			case spanring.KindStepAttrs:
				a, err := w.StepAttrs()
				if err != nil {
					t.Fatal(err)
				}
				st = get(a.Step)
				st.attrs = a
			case spanring.KindLane, spanring.KindKernel:
				s, err := w.Span()
				if err != nil {
					t.Fatal(err)
				}
				st = get(s.Step)
				st.landed++
				st.endNS = max(st.endNS, s.EndMonoNS())
			case spanring.KindStepEnd:
				e, err := w.StepEnd()
				if err != nil {
					t.Fatal(err)
				}
				st = get(e.Step)
				st.ended, st.opened = true, e.Opened
				st.endNS = max(st.endNS, e.MonoNS)
			}
			if st != nil && st.ended && st.landed == st.opened && st.endNS > beganNS {
				work.steps++
				work.generated += float64(st.attrs.DecodeTokens)
				work.prompt += float64(st.attrs.PrefillTokens)
			}
		}
	}

	queries := []string{"power", "energy", "sm_clock", "memory_clock", "temperature", "held_down", "memory", "utilization", "ecc", "remapped_rows", "pcie", "nvlink"}
	devices := make(map[string]*readDevice)
	rs, err := f.Readings()
	if err != nil {
		t.Fatal(err)
	}
	defer rs.Close()
	var workLast doneWork // at the reading before, of the device with an engine
	for g, ok := rs.Next(); ok; g, ok = rs.Next() {
		r, err := spanring.DecodeDevice(g.Entries)
		if err != nil {
			t.Fatal(err)
		}
		u := r.UUID
		id := fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
		d := devices[id]
		if d == nil {
			d = &readDevice{name: g.Device.Name, failed: make(map[string]float64), held: make(map[int]float64), breaks: map[string]float64{"reset": 0, "wrap": 0}}
			devices[id] = d
		}
		failures, failed := r.Get(spanring.DeviceFailed)
		if r.Health {
			failures, failed = r.Get(spanring.DeviceHealthFailed)
			if d.last[1].MonoNS == 0 {
				d.first = r
			}
			d.last[1] = r
		}
		for q := range queries {
			if n := failures >> (4 * q) & 15; failed && n > 0 {
				d.failed[queries[q]] += float64(n)
			}
		}
		if r.Health {
			continue
		}
		before := d.last[0]
		d.last[0] = r
		d.readings++
		if bits, ok := r.Get(spanring.DeviceHeldDown); ok && before.MonoNS != 0 {
			for b := range 9 {
				if bits>>b&1 != 0 {
					d.held[b] += float64(min(r.MonoNS-before.MonoNS, int64(time.Second))) / 1e9
				}
			}
		}
		mj, ok := r.Get(spanring.DeviceEnergyMillijoules)
		if !ok {
			continue
		}
		now := workAt(r.MonoNS)
		switch seconds, grown := float64(r.MonoNS-before.MonoNS)/1e9, float64(mj)-d.lastMJ; {
		case before.MonoNS == 0:
			d.points = []devicePoint{{r.MonoNS, 0, doneWork{}}}
		case grown >= 0 && grown <= 5e6*(seconds+1):
			d.joules += grown / 1e3
			w := now.less(workLast)
			d.work = doneWork{d.work.steps + w.steps, d.work.generated + w.generated, d.work.prompt + w.prompt}
			d.points = append(d.points, devicePoint{r.MonoNS, d.joules, d.work})
		default:
			why := "reset"
			if grown < 0 && grown+(1<<32) <= 5e6*(seconds+1) {
				why = "wrap"
			}
			d.breaks[why]++
			d.points = []devicePoint{{r.MonoNS, d.joules, d.work}}
		}
		d.lastMJ, workLast = float64(mj), now
	}
	if err := rs.Err(); err != nil {
		t.Fatal(err)
	}

	by := func(f func(d *readDevice) map[string]float64) map[string]float64 {
		out := make(map[string]float64)
		for id, d := range devices {
			for k, v := range f(d) {
				out[strings.TrimSpace(id+" "+k)] = v
			}
		}
		return out
	}
	// now is the last reading's value of some fields, by what their series is called.
	now := func(scale float64, fields map[string]spanring.DeviceField) map[string]float64 {
		return by(func(d *readDevice) map[string]float64 {
			out := make(map[string]float64)
			for k, f := range fields {
				for _, r := range d.last {
					if v, ok := r.Get(f); ok {
						out[k] = float64(int64(v)) * scale
					}
				}
			}
			return out
		})
	}
	plain := func(scale float64, f spanring.DeviceField) of {
		return of{0, "hw_id", now(scale, map[string]spanring.DeviceField{"": f}), exactly}
	}
	second := func(o of, query int) of { o.query = query; return o }
	energetic := func(f func(d *readDevice) map[string]float64) map[string]float64 {
		return by(func(d *readDevice) map[string]float64 {
			if len(d.points) == 0 {
				return nil
			}
			return f(d)
		})
	}
	perToken := func(joules float64, w doneWork) map[string]float64 {
		return map[string]float64{"generated": joules / w.generated, "all": joules / (w.generated + w.prompt)}
	}
	reasons := []string{"idle", "application_clocks", "power_cap", "hardware_slowdown", "sync_boost", "software_thermal", "hardware_thermal", "power_brake", "display_clocks"}
	return map[string][]of{
		"device: Power": {plain(1e-3, spanring.DevicePowerMilliwatts)},
		"device: Power by the energy counter": {{0, "hw_id", energetic(func(d *readDevice) map[string]float64 {
			return map[string]float64{"": d.joules / rateWindow}
		}), exactly}},
		"device: Energy by token": {{0, "hw_id,kind", energetic(func(d *readDevice) map[string]float64 {
			first, last := d.points[len(d.points)-10], d.points[len(d.points)-1]
			return perToken(last.joules-first.joules, last.work.less(first.work))
		}), exactly}},
		"device: Energy by token since the start": {{0, "hw_id,kind", energetic(func(d *readDevice) map[string]float64 {
			return perToken(d.joules, d.work)
		}), exactly}},
		"device: Energy by step, estimated": {{0, "hw_id", energetic(func(d *readDevice) map[string]float64 {
			last := d.points[len(d.points)-1]
			i := len(d.points) - 1
			for last.ns-d.points[i].ns < int64(time.Second) {
				i--
			}
			return map[string]float64{"": (last.joules - d.points[i].joules) / (last.work.steps - d.points[i].work.steps)}
		}), exactly}},
		"device: Breaks of the energy counter": {{0, "hw_id,reason", energetic(func(d *readDevice) map[string]float64 {
			return map[string]float64{"reset": d.breaks["reset"] / rateWindow, "wrap": d.breaks["wrap"] / rateWindow}
		}), exactly}},
		"device: Clocks": {{0, "hw_id,clock", now(1e6, map[string]spanring.DeviceField{"sm": spanring.DeviceSMClockMHz, "memory": spanring.DeviceMemoryClockMHz}), exactly}},
		"device: Clocks held down": {{0, "hw_id,reason", by(func(d *readDevice) map[string]float64 {
			out := make(map[string]float64)
			for b, s := range d.held {
				out[reasons[b]] = s / rateWindow
			}
			return out
		}), exactly}},
		"device: Temperature":          {plain(1, spanring.DeviceTemperatureC)},
		"device: Busy":                 {plain(0.01, spanring.DeviceBusyPercent), second(plain(0.01, spanring.DeviceMemoryBusyPercent), 1)},
		"device: Device memory in use": {plain(1, spanring.DeviceMemoryUsed), second(plain(1, spanring.DeviceMemoryLimit), 1)},
		"device: ECC errors": {{0, "hw_id,error_type", by(func(d *readDevice) map[string]float64 {
			out := make(map[string]float64)
			for k, f := range map[string]spanring.DeviceField{"corrected": spanring.DeviceECCCorrected, "uncorrected": spanring.DeviceECCUncorrected} {
				if v, ok := d.last[1].Get(f); ok {
					was, _ := d.first.Get(f)
					out[k] = float64(v-was) / rateWindow
				}
			}
			return out
		}), exactly}},
		"device: Remapped rows": {
			{0, "hw_id,error_type", now(1, map[string]spanring.DeviceField{"corrected": spanring.DeviceRemappedCorrected, "uncorrected": spanring.DeviceRemappedUncorrected}), exactly},
			second(plain(1, spanring.DeviceRemapPending), 1), second(plain(1, spanring.DeviceRemapFailed), 2),
		},
		"device: Traffic": {
			{0, "hw_id,network_io_direction", now(1, map[string]spanring.DeviceField{"receive": spanring.DevicePCIeReceive, "transmit": spanring.DevicePCIeTransmit}), exactly},
			{1, "hw_id,network_io_direction", now(1, map[string]spanring.DeviceField{"receive": spanring.DeviceNVLinkReceive, "transmit": spanring.DeviceNVLinkTransmit}), exactly},
		},
		"device: Readings": {
			{0, "hw_id", by(func(d *readDevice) map[string]float64 { return map[string]float64{"": d.readings / rateWindow} }), exactly},
			{1, "hw_id,query", by(func(d *readDevice) map[string]float64 {
				out := make(map[string]float64)
				for q, n := range d.failed {
					out[q] = n / rateWindow
				}
				return out
			}), exactly},
		},
		"device: GPUs": {{0, "hw_id,hw_name", by(func(d *readDevice) map[string]float64 { return map[string]float64{d.name: 1} }), exactly}},
	}
}
