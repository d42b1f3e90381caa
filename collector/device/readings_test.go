package device

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

func testDevice(t testing.TB) *collector.Device {
	u, _ := ParseUUID(testUUID)
	key, ok := u.bytes()
	if d := (&collector.Device{UUID: key}).ID(); !ok || d != testUUID {
		t.Fatalf("%s is %s", testUUID, d)
	}
	return &collector.Device{UUID: key, Name: "NVIDIA H200"}
}

// wholeHealth is a health of which everything is reported.
var wholeHealth = collector.DeviceHealth{
	ECCCorrected: collector.Some(uint64(7)), ECCUncorrected: collector.Some(uint64(0)),
	RemappedCorrected: collector.Some(uint64(2)), RemappedUncorrected: collector.Some(uint64(1)),
	RemapPending: collector.Some(true), RemapFailed: collector.Some(false),
	PCIeReceive: some(30_000), PCIeTransmit: some(40_000), NVLinkReceive: some(0), NVLinkTransmit: some(1e12),
}

var wholeReading = collector.DeviceReading{
	PowerMilliwatts: collector.Some(uint32(650_123)), EnergyMillijoules: collector.Some(uint64(1 << 50)),
	SMClockMHz: collector.Some(uint32(1980)), MemoryClockMHz: collector.Some(uint32(3201)), TemperatureC: collector.Some(int32(-5)),
	HeldDown: collector.Some(uint64(4)), MemoryUsedBytes: collector.Some(uint64(90 << 30)), MemoryLimitBytes: collector.Some(uint64(150 << 30)),
	BusyPercent: collector.Some(uint32(0)), MemoryBusyPercent: collector.Some(uint32(100)),
}

// What is put into entries comes out of them, and what is absent stays absent.
func TestEntries(t *testing.T) {
	d := testDevice(t)
	var some failures
	for q := range some {
		some[q] = uint64(q % 3)
	}
	for i, c := range []struct {
		r      collector.DeviceReading
		h      collector.DeviceHealth
		failed failures
	}{
		{wholeReading, wholeHealth, some},
		{failed: some},
		{},
		{collector.DeviceReading{PowerMilliwatts: collector.Some(uint32(0))}, collector.DeviceHealth{RemapFailed: collector.Some(true)}, failures{}},
	} {
		e := spanring.DeviceReading{UUID: d.UUID, MonoNS: 5}
		putReading(&e, &c.r, &c.failed)
		h := spanring.DeviceReading{UUID: d.UUID, MonoNS: 5, Health: true}
		putHealth(&h, &c.h, &c.failed)
		e, err := spanring.DecodeDevice(e.Append(nil))
		h, herr := spanring.DecodeDevice(h.Append(nil))
		gotR, failedR := takeReading(&e)
		gotH, failedH := takeHealth(&h)
		if err := errors.Join(err, herr); err != nil || failedR != c.failed || failedH != c.failed {
			t.Errorf("%d: failed %v and %v, want %v; %v", i, failedR, failedH, c.failed, err)
		}
		if diff := cmp.Diff(c.r, gotR) + cmp.Diff(c.h, gotH); diff != "" {
			t.Errorf("%d: -want +got:\n%s", i, diff)
		}
	}
}

// Whoever takes the entries of a sampler comes to what is known where it ran.
func TestReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		live := run(t, Options{}, &scripted{
			r: func(n int64, r *collector.DeviceReading, failed *failures) {
				*r = wholeReading
				r.EnergyMillijoules.Value += 30_000 * uint64(n)
				if n%7 == 0 {
					r.PowerMilliwatts, failed[collector.QueryPower] = collector.Opt[uint32]{}, 1
				}
			},
			h: func(h *collector.DeviceHealth) { *h = wholeHealth },
		})
		after(3 * time.Second)
		var now int64
		again := NewReadings(ReadingsOptions{NowMonoNS: func() int64 { return now }})
		const shift = 1 << 40 // another machine's clock
		for _, ws := range live.words {
			for i := range ws {
				ws[i][3] += shift
			}
			now = int64(ws[0][3])
			again.DeviceReading(testDevice(t), ws)
		}
		want := live.Stats()
		if d := cmp.Diff(want, again.Stats()); d != "" {
			t.Errorf("-live +again:\n%s", d)
		}
		if want[0].Readings != 31 || want[0].Failed[collector.QueryPower] != 4 || want[0].DeviceHealth != wholeHealth || want[0].Joules != some(900) {
			t.Errorf("%+v", want)
		}
		now += int64(6 * time.Second)
		if st := again.Stats()[0]; st.DeviceReading != (collector.DeviceReading{}) || st.DeviceHealth != wholeHealth || st.Joules != some(900) {
			t.Errorf("six seconds after the last reading: %+v", st)
		}
		now += int64(10 * time.Second)
		if st := again.Stats()[0]; st.DeviceHealth != (collector.DeviceHealth{}) || st.Joules != some(900) {
			t.Errorf("sixteen seconds after: %+v", st)
		}
	})
}

// Readings that cannot be are refused and counted, and cost nothing else.
func TestRefused(t *testing.T) {
	d := testDevice(t)
	rs := NewReadings(ReadingsOptions{NowMonoNS: func() int64 { return 10e9 }})
	at := func(ns int64) []spanring.Words {
		e := spanring.DeviceReading{UUID: d.UUID, MonoNS: ns}
		putReading(&e, &wholeReading, &failures{})
		return e.Append(nil)
	}
	rs.DeviceReading(d, at(9e9))
	want := rs.Stats()
	bad := at(9_500_000_000)
	bad[0][0] |= 0xff << 16
	other := *d
	other.UUID[0]++
	for _, c := range []struct {
		d  *collector.Device
		ws []spanring.Words
	}{{d, nil}, {d, bad}, {d, at(9_500_000_000)[:2]}, {&other, at(9_500_000_000)}, {d, at(9e9 - 1)}, {d, at(1)}} {
		rs.DeviceReading(c.d, c.ws)
	}
	if n := rs.Refused(); n != [...]uint64{collector.RefusedMalformed: 4, collector.RefusedStale: 2} {
		t.Errorf("refused %v", n)
	}
	want[0].Refused = [...]uint64{3, 2}
	got := rs.Stats()
	if n := len(got); n != 2 || got[1].Refused != [...]uint64{1, 0} || got[1].Readings != 0 {
		t.Errorf("%d devices, the other %+v", n, got[n-1])
	}
	if diff := cmp.Diff(want, got[:1]); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
}

// A recording can name any number of devices: some are too many.
func TestTooManyDevices(t *testing.T) {
	rs := NewReadings(ReadingsOptions{})
	for i := range uint64(maxDevices + 5) {
		e := spanring.DeviceReading{UUID: [16]byte{byte(i), byte(i >> 8), 15: 1}}
		rs.DeviceReading(&collector.Device{UUID: e.UUID}, e.Append(nil))
	}
	if n := len(rs.Stats()); n != maxDevices || rs.Refused() != [...]uint64{5, 0} {
		t.Errorf("%d devices, refused %v", n, rs.Refused())
	}
}

// Seconds are counted for the interval at which the recorded sampler read.
func TestHeldDownAtItsInterval(t *testing.T) {
	d := testDevice(t)
	for _, c := range []struct {
		interval, gap, want time.Duration
	}{{0, 10 * time.Second, time.Second}, {10 * time.Second, 10 * time.Second, 10 * time.Second}, {10 * time.Second, time.Minute, 20 * time.Second}} {
		rs := NewReadings(ReadingsOptions{})
		for i := range 2 {
			e := spanring.DeviceReading{UUID: d.UUID, MonoNS: 1 + int64(i)*int64(c.gap), IntervalMS: uint16(c.interval.Milliseconds())}
			e.Set(spanring.DeviceHeldDown, 4)
			rs.DeviceReading(d, e.Append(nil))
		}
		if got := rs.Stats()[0].HeldDownNS.Value[2]; got != uint64(c.want) {
			t.Errorf("every %v, %v apart: %d ns", c.interval, c.gap, got)
		}
	}
}

// FuzzReadings takes anything for entries of a device.
func FuzzReadings(f *testing.F) {
	d := testDevice(f)
	e := spanring.DeviceReading{UUID: d.UUID, MonoNS: 5, IntervalMS: 100}
	putReading(&e, &wholeReading, &failures{1, 2, 3})
	h := spanring.DeviceReading{UUID: d.UUID, MonoNS: 6, Health: true}
	putHealth(&h, &wholeHealth, &failures{})
	for _, ws := range [][]spanring.Words{e.Append(nil), h.Append(nil), append(e.Append(nil), h.Append(nil)...)} {
		var b []byte
		for _, w := range ws {
			for _, v := range w {
				for i := range 8 {
					b = append(b, byte(v>>(8*i)))
				}
			}
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		rs := NewReadings(ReadingsOptions{NowMonoNS: func() int64 { return 7 }})
		var ws []spanring.Words
		given, refused := 0, uint64(0)
		give := func() {
			rs.DeviceReading(d, ws)
			given, ws = given+1, nil
		}
		for ; len(b) >= 56; b = b[56:] {
			var w spanring.Words
			for i := range 56 {
				w[i/8] |= uint64(b[i]) << (8 * (i % 8))
			}
			if ws = append(ws, w); w[0]&0x8000 == 0 {
				give()
			}
		}
		give()
		for _, n := range rs.Refused() {
			refused += n
		}
		st := rs.Stats()
		if refused == 0 || refused > uint64(given) || len(st) > 1 || len(st) != 1 || st[0].Refused != rs.Refused() {
			t.Fatalf("%d given, %d refused, %+v", given, refused, st)
		}
		if slices.ContainsFunc(st, func(s collector.DeviceStats) bool {
			return s.BusyPercent.Known && s.BusyPercent.Value > 100 || s.MemoryUsedBytes.Value > s.MemoryLimitBytes.Value && s.MemoryLimitBytes.Known || s.Readings > uint64(given)
		}) {
			t.Fatalf("%+v", st)
		}
	})
}
