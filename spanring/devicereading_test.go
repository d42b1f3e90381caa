package spanring

import (
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var readings = cmp.AllowUnexported(DeviceReading{})

// fullReading reports every field of its sort.
func fullReading(health bool) DeviceReading {
	r := DeviceReading{UUID: [16]byte{0x5e, 15: 0x78}, MonoNS: 1e15, IntervalMS: 100, Health: health}
	for f := range DeviceField(NumDeviceFields) {
		r.Set(f, min(deviceFieldMost[f], 1<<f))
	}
	return r
}

func TestDeviceRoundTrip(t *testing.T) {
	some := func(fs ...DeviceField) DeviceReading {
		r := DeviceReading{UUID: [16]byte{8: 1}, MonoNS: math.MaxInt64}
		for _, f := range fs {
			r.Health = f >= DeviceECCCorrected
			if !r.Set(f, 0) {
				t.Fatalf("field %d cannot be 0", f)
			}
		}
		return r
	}
	cold := some(DeviceTemperatureC)
	below := -40
	cold.Set(DeviceTemperatureC, uint64(below))
	for _, c := range []struct {
		name string
		r    DeviceReading
		n    int
	}{
		{"all", fullReading(false), 4}, {"all of its health", fullReading(true), 4},
		{"nothing", DeviceReading{UUID: [16]byte{1}}, 1}, {"nothing of its health", DeviceReading{UUID: [16]byte{1}, Health: true}, 1},
		{"a 0 is a value", some(DeviceBusyPercent), 1}, {"first and last", some(DevicePowerMilliwatts, DeviceFailed), 2},
		{"last of its health", some(DeviceHealthFailed), 1}, {"below zero", cold, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			ws := c.r.Append(nil)
			if len(ws) != c.n || c.n > MaxDeviceEntries {
				t.Errorf("%d entries, want %d", len(ws), c.n)
			}
			got, err := DecodeDevice(ws)
			if d := cmp.Diff(c.r, got, readings); d != "" || err != nil {
				t.Errorf("%v, -want +got:\n%s", err, d)
			}
			for f := range DeviceField(NumDeviceFields + 2) {
				v, ok := got.Get(f)
				w, have := c.r.Get(f)
				if v != w || ok != have {
					t.Errorf("field %d is %d, %v, want %d, %v", f, v, ok, w, have)
				}
			}
		})
	}
}

// A field that is not of the reading's sort, that there is not, or whose value cannot be
// stays absent.
func TestDeviceSet(t *testing.T) {
	frozen := -300
	for _, c := range []struct {
		health bool
		f      DeviceField
		v      uint64
		want   bool
	}{
		{false, DevicePowerMilliwatts, 700_000, true}, {false, DevicePowerMilliwatts, math.MaxUint32, false},
		{true, DevicePowerMilliwatts, 700_000, false}, {false, DeviceECCCorrected, 1, false}, {true, DeviceECCCorrected, 1, true},
		{false, DeviceBusyPercent, 100, true}, {false, DeviceBusyPercent, 101, false}, {false, 11, 0, false}, {true, 23, 0, false},
		{true, 24, 0, false}, {true, 255, 0, false}, {false, DeviceTemperatureC, uint64(frozen), false}, {false, DeviceTemperatureC, 1001, false},
		{true, DeviceRemapPending, 2, false}, {false, DeviceEnergyMillijoules, math.MaxUint64, false},
	} {
		r := DeviceReading{UUID: [16]byte{1}, Health: c.health}
		if got := r.Set(c.f, c.v); got != c.want {
			t.Errorf("health %v, field %d = %d: %v", c.health, c.f, c.v, got)
		}
		if _, ok := r.Get(c.f); ok != c.want {
			t.Errorf("health %v, field %d = %d is there: %v", c.health, c.f, c.v, ok)
		}
	}
}

func TestDeviceRefused(t *testing.T) {
	whole, health := fullReading(false), fullReading(true)
	edit := func(r DeviceReading, f func(ws []Words) []Words) []Words { return f(r.Append(nil)) }
	word := func(i, j int, v uint64) []Words {
		return edit(whole, func(ws []Words) []Words { ws[i][j] = v; return ws })
	}
	later, faster, other := whole, whole, whole
	later.MonoNS++
	faster.IntervalMS = 10
	other.UUID[3] = 9
	for _, c := range []struct {
		name string
		ws   []Words
	}{
		{"nothing", nil},
		{"another kind", word(0, 0, uint64(KindAnchor))},
		{"a part that is not", word(0, 0, head(KindDevice, 8, 1, 0, 0, 0))},
		{"a place without a field", word(3, 0, head(KindDevice, 3, 4, 0, 100, 0))},
		{"a fourth field", word(0, 0, head(KindDevice, flagDeviceMore, 8, 0, 100, 0))},
		{"no device", edit(whole, func(ws []Words) []Words { ws[0][1], ws[0][2] = 0, 0; return ws })},
		{"before boot", word(0, 3, 1<<63)},
		{"busier than can be", word(2, 6, 101)},
		{"colder than can be", word(0, 6, 1<<63)},
		{"more in use than there is", edit(whole, func(ws []Words) []Words { ws[2][4], ws[2][5] = 5, 4; return ws })},
		{"cut", edit(whole, func(ws []Words) []Words { return ws[:3] })},
		{"goes on behind its end", edit(whole, func(ws []Words) []Words { return append(ws, ws[0]) })},
		{"turned round", edit(whole, func(ws []Words) []Words { ws[0], ws[1] = ws[1], ws[0]; return ws })},
		{"twice the same", edit(whole, func(ws []Words) []Words { ws[1] = ws[0]; return ws })},
		{"of two times", edit(whole, func(ws []Words) []Words { return append(ws[:1], later.Append(nil)[1:]...) })},
		{"of two intervals", edit(whole, func(ws []Words) []Words { return append(ws[:1], faster.Append(nil)[1:]...) })},
		{"of two devices", edit(whole, func(ws []Words) []Words { return append(ws[:1], other.Append(nil)[1:]...) })},
		{"of two sorts", edit(whole, func(ws []Words) []Words { return append(ws[:3], health.Append(nil)[3]) })},
	} {
		if r, err := DecodeDevice(c.ws); !errors.Is(err, ErrEntry) {
			t.Errorf("%s: %+v, %v", c.name, r, err)
		}
	}
}

// FuzzDevice takes any words for a reading; what is accepted is encoded to the same
// entries again, but for bits that no field uses.
func FuzzDevice(f *testing.F) {
	for _, health := range []bool{false, true} {
		r := fullReading(health)
		var b []byte
		for _, w := range r.Append(nil) {
			for _, v := range w {
				for i := range 8 {
					b = append(b, byte(v>>(8*i)))
				}
			}
		}
		f.Add(b)
		f.Add(b[:56])
		f.Add(append(b[56:112:112], b[:56]...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var ws []Words
		for ; len(b) >= 56 && len(ws) < 2*MaxDeviceEntries; b = b[56:] {
			var w Words
			for i := range w {
				for j := range 8 {
					w[i] |= uint64(b[8*i+j]) << (8 * j)
				}
			}
			ws = append(ws, w)
		}
		r, err := DecodeDevice(ws)
		if err != nil {
			if !errors.Is(err, ErrEntry) {
				t.Fatal(err)
			}
			return
		}
		again, err := DecodeDevice(r.Append(nil))
		if d := cmp.Diff(r, again, readings); d != "" || err != nil || len(ws) > MaxDeviceEntries {
			t.Fatalf("%d entries, again: %v\n%s", len(ws), err, d)
		}
		for f, v := range r.values {
			if v != 0 && r.have>>f&1 == 0 {
				t.Fatalf("field %d is absent and %d", f, v)
			}
		}
	})
}
