package lanetrace

import (
	"testing"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// TestLedgerFollowsTheLevel attaches ledgers at off, raises and lowers the level,
// and detaches; the ring's table says what they hold.
func TestLedgerFollowsTheLevel(t *testing.T) {
	hub, err := OpenHeap(Config{Level: "off", HarvestEvery: -1, NoCalibration: true})
	if err != nil {
		t.Fatal(err)
	}
	rd, err := spanring.NewHeapReader(hub.Ring(), spanring.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	want := func(what string, state spanring.AllocState, live uint64, n int) {
		t.Helper()
		list, sc, err := rd.Allocs(nil)
		if err != nil || sc.State != state || len(list) != n || sc.Totals.LiveBytes != live {
			t.Errorf("%s: %v, %d listed, %d bytes, %v; want %v, %d, %d", what, sc.State, len(list), sc.Totals.LiveBytes, err, state, n, live)
		}
	}
	want("no ledger", spanring.AllocsNotTracked, 0, 0)
	newLedger := func() *ledger.Ledger {
		l, err := ledger.New(ledger.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	devs := make([]*Device, 2)
	leds := make([]*ledger.Ledger, 2)
	for i := range devs {
		drv := scripted.New(scripted.Options{RealTime: true, Device: cudaevents.Device{Ordinal: i}})
		if devs[i], err = hub.Attach(drv); err != nil {
			t.Fatal(err)
		}
		leds[i] = newLedger()
		devs[i].AttachLedger(leds[i])
	}
	leds[0].Begin(spanring.AllocDevice, 100).Done(0x1000)
	leds[1].Begin(spanring.AllocDevice, 50).Done(0x9000)
	want("at off", spanring.AllocsStale, 0, 0)
	for _, s := range []struct {
		level Level
		state spanring.AllocState
	}{{LevelBasic, spanring.AllocsPublished}, {LevelLane, spanring.AllocsPublished}, {LevelOff, spanring.AllocsStale}, {LevelKernel, spanring.AllocsPublished}} {
		if err := hub.SetLevel(s.level); err != nil {
			t.Fatal(err)
		}
		want("at "+s.level.String(), s.state, 150, 2)
	}
	leds[0].Take(0x1000).Done(nil)
	if err := devs[0].Detach(t.Context()); err != nil {
		t.Error(err)
	}
	leds[0].Begin(spanring.AllocDevice, 7).Done(0x2000) // no longer the ring's business
	want("one detached", spanring.AllocsPublished, 50, 1)
	if err := hub.Close(t.Context()); err != nil {
		t.Error(err)
	}
	leds[1].Begin(spanring.AllocDevice, 7).Done(0x3000) // nor this
	if n, tracked := leds[1].LiveBytes(); n != 57 || !tracked {
		t.Errorf("the ledger itself: %d, %v", n, tracked)
	}
	// After that there is nothing to attach to.
	devs[1].AttachLedger(newLedger())
	var none *Device
	none.AttachLedger(leds[0])
}
