package player

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// heard is what a tap of devices gets, and when.
type heard struct {
	clock    *manual
	readings []spanring.DeviceReading
	bad      int
}

func (h *heard) DeviceReading(d *collector.Device, entries []spanring.Words) {
	r, err := spanring.DecodeDevice(entries)
	if err != nil || r.UUID != d.UUID {
		h.bad++
		return
	}
	if h.clock != nil && (r.MonoNS > h.clock.now || h.clock.now-r.MonoNS > int64(time.Millisecond)) {
		h.bad++
	}
	h.readings = append(h.readings, r)
}

// energy is what the device's counter says in each reading that has it.
func (h *heard) energy() (mj []uint64) {
	for _, r := range h.readings {
		if v, ok := r.Get(spanring.DeviceEnergyMillijoules); ok {
			mj = append(mj, v)
		}
	}
	return mj
}

// Readings are played when they were made, on another clock, again and again; the
// energy counter goes on.
func TestDevices(t *testing.T) {
	o := synth.Options{Duration: 2 * time.Second}
	var out bytes.Buffer
	w, err := recording.NewWriter(&out, recording.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o.Readings(w)
	dev := o.Device()
	w.DeviceReading(&dev, []spanring.Words{{1: 1, 3: uint64(1_001_500_000_000)}}) // no reading
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := recording.NewReader(bytes.NewReader(out.Bytes()), int64(out.Len()), "x.ltrec")
	if err != nil {
		t.Fatal(err)
	}
	recorded := new(heard)
	o.Readings(recorded)

	const startNS = 77_000_000_000
	clock := &manual{now: startNS}
	got := &heard{clock: clock}
	d := NewDevices(got)
	first := recorded.readings[0].MonoNS
	for pass := range 2 {
		if err := d.Play(t.Context(), f, Options{Clock: clock, StartMonoNS: clock.now, StartAtNS: first + int64(pass)*500e6}); err != nil {
			t.Fatal(err)
		}
		clock.now += 100e6
		if pass > 0 {
			break
		}
		want := recorded.readings
		at := make([]int64, len(want))
		for i := range want {
			at[i] = want[i].MonoNS - first + startNS
		}
		var gotAt []int64
		for i := range got.readings {
			gotAt = append(gotAt, got.readings[i].MonoNS)
		}
		if diff := cmp.Diff(at, gotAt) + cmp.Diff(recorded.energy(), got.energy()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	if got.bad != 2 { // what is no reading, in each pass
		t.Errorf("%d readings are none, or not on time", got.bad)
	}
	mj := got.energy()
	if len(mj) != 20+15 || !slices.IsSorted(mj) || mj[19] != mj[20] || mj[len(mj)-1]-mj[20] != recorded.energy()[19]-recorded.energy()[5] {
		t.Errorf("energy %v", mj)
	}

	// Told to stop.
	stopped := &heard{}
	clock = &manual{now: startNS, stop: 4}
	if err := NewDevices(stopped).Play(t.Context(), f, Options{Clock: clock, StartMonoNS: startNS, StartAtNS: first}); err != nil {
		t.Error(err)
	}
	if n := len(stopped.readings); n != 5 { // one of its health at the beginning
		t.Errorf("%d readings", n)
	}
}
