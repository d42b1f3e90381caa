package recording

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// tapped is what a tap of devices gets.
type tapped []Reading

func (t *tapped) DeviceReading(d *collector.Device, entries []spanring.Words) {
	*t = append(*t, Reading{Device: *d, MonoNS: int64(entries[0][wordTime]), Entries: append([]spanring.Words(nil), entries...)})
}

const testWall = 1_700_000_000_000_000_000

func readingsOf(t testing.TB, d time.Duration) tapped {
	t.Helper()
	var want tapped
	o := synth.Options{Duration: d}
	o.Readings(&want)
	for i := range want {
		want[i].UnixNS = want[i].MonoNS + testWall
	}
	return want
}

func allReadings(r *Readings) (out tapped) {
	for {
		at, there := r.NextUnixNS()
		g, ok := r.Next()
		if ok != there || ok && at != g.UnixNS {
			panic(fmt.Sprint("the next is at ", at, " and ", g.UnixNS))
		}
		if !ok {
			return out
		}
		out = append(out, g)
	}
}

func readings(t testing.TB, f *File) (tapped, error) {
	t.Helper()
	r, err := f.Readings()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	return allReadings(r), r.Err()
}

// withReadings is a recording of an engine and its device.
func withReadings(t testing.TB, o Options, d time.Duration) []byte {
	t.Helper()
	var out bytes.Buffer
	o.WallOffsetNS = func() int64 { return testWall }
	w, err := NewWriter(&out, o)
	if err != nil {
		t.Fatal(err)
	}
	s := synth.Options{Duration: d, KernelEvery: -1}
	s.Readings(w)
	record(t, w, synth.New(s))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if st := w.Stats(); st.Readings != uint64(len(readingsOf(t, d))) {
		t.Errorf("%d readings written", st.Readings)
	}
	return out.Bytes()
}

// What devices reported comes out of a recording as it went in, and costs little room;
// the runs in it are as without.
func TestReadings(t *testing.T) {
	const d = 5 * time.Second
	want := readingsOf(t, d)
	// One of another device, that reported nothing, and words that are no reading.
	other := Reading{Device: collector.Device{UUID: [16]byte{1}, Name: strings.Repeat("x", 300)}, MonoNS: 7, UnixNS: 7 + testWall,
		Entries: []spanring.Words{{0xffff_ffff_ffff_7f0e, 1<<64 - 1, 5, 7, 1 << 63, 0, 9}}}
	for _, o := range []Options{{}, {FlushEntries: 1}, {FlushEvery: time.Second}} {
		f := openBytes(t, withReadings(t, o, d))
		got, err := readings(t, f)
		if diff := cmp.Diff(want, got); diff != "" || err != nil || !f.HasReadings() || f.Damage() != nil {
			t.Errorf("%+v: %v, -want +got:\n%s", o, err, diff)
		}
		if n := len(f.Runs()); n != 1 {
			t.Errorf("%d runs", n)
		}
	}
	var out bytes.Buffer
	w, err := NewWriter(&out, Options{WallOffsetNS: func() int64 { return testWall }})
	if err != nil {
		t.Fatal(err)
	}
	w.DeviceReading(&other.Device, nil)
	w.DeviceReading(&other.Device, other.Entries)
	w.DeviceReading(&want[0].Device, want[0].Entries)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w.DeviceReading(&want[0].Device, want[0].Entries) // after the end: nothing
	got, err := readings(t, openBytes(t, out.Bytes()))
	other.Device.Name = other.Device.Name[:maxDeviceName]
	if diff := cmp.Diff(tapped{other, want[0]}, got); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	without, _ := recordBytes(t, Options{}, synth.New(synth.Options{Duration: d, KernelEvery: -1}))
	if f := openBytes(t, without); f.HasReadings() {
		t.Error("a recording without readings has some")
	} else if got, err := readings(t, f); len(got) > 0 || err != nil {
		t.Errorf("%d readings, %v", len(got), err)
	}
	more := len(withReadings(t, Options{}, d)) - len(without)
	if per := float64(more) / float64(len(want)); per > 24 {
		t.Errorf("%.1f bytes a reading", per)
	} else {
		t.Logf("%.1f bytes a reading", per)
	}
}

// What is damaged costs the readings of its block on, never a wrong one.
func TestReadingsDamaged(t *testing.T) {
	whole := withReadings(t, Options{FlushEvery: time.Second}, 5*time.Second)
	want := readingsOf(t, 5*time.Second)
	at, typ := blockAt(t, whole)
	n := 0
	for i := range at {
		if typ[i] != blockReadings {
			continue
		}
		n++
		b := bytes.Clone(whole)
		b[at[i]+blockHeaderSize+5] ^= 0x10
		got, err := readings(t, openBytes(t, b))
		if len(got) >= len(want) || !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), fmt.Sprintf("damaged block at byte %d: ", at[i])) {
			t.Errorf("block %d: %d of %d readings, %v", i, len(got), len(want), err)
		}
		if diff := cmp.Diff(want[:len(got)], got); diff != "" && len(got) > 0 {
			t.Errorf("block %d: -want +got:\n%s", i, diff)
		}
		if entries, err := readAll(t, b); entries == 0 || err != nil {
			t.Errorf("block %d: the run has %d entries, %v", i, entries, err)
		}
	}
	if n < 4 {
		t.Errorf("%d blocks of readings", n)
	}
	for name, payload := range map[string]string{
		"empty": "", "no devices": "\x00\x00\x01\x00\x01\x0e\x00", "too many devices": "\x00\xff\xff\xff\x0f", "a reading of nothing": "\x00\x01" + strings.Repeat("u", 16) + "\x00\x01\x00\x00",
		"a clock that cannot be": "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00", "cut": "\x00\x01" + strings.Repeat("u", 16) + "\x00\x01\x00\x01\x0e",
	} {
		if parseReadings([]byte(payload), func(r *Reading) {
			if name != "cut" {
				t.Errorf("%s: %+v", name, r)
			}
		}) {
			t.Errorf("%s can be a block", name)
		}
	}
}

// Of a recording in a directory whose readings are damaged the runs are there, and the
// damage is said.
func TestKeptReadingsDamaged(t *testing.T) {
	b := withReadings(t, Options{FlushEvery: time.Second}, 5*time.Second)
	dir := t.TempDir()
	at, typ := blockAt(t, b)
	for i := range at {
		if typ[i] == blockReadings {
			b[at[i]+blockHeaderSize+5] ^= 0x10
			break
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "a"+Suffix), b, 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(k.Runs(0, 0)); n != 1 || !errors.Is(k.Damage(), ErrDamaged) {
		t.Errorf("%d runs, damage %v", n, k.Damage())
	}
	if r, err := k.Readings(0, 0); r != nil || err != nil {
		t.Errorf("readings %v, %v", r, err)
	}
}

// A store keeps readings in segments of their own, which go on where the last one ended
// and are read as one; what two of them hold is there once.
func TestKeptReadings(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kept")
	want := readingsOf(t, 6*time.Second)
	for i := range 2 { // the second one begins again with the last second of the first
		s, err := NewStore(StoreOptions{Dir: dir, SegmentAge: time.Nanosecond, FlushEvery: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range want[i*22 : 33+i*33] {
			s.DeviceReading(&r.Device, r.Entries)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		st := s.Stats()
		n := uint64(0)
		for _, r := range want[i*22 : 33+i*33] {
			n += uint64(len(r.Entries))
		}
		if st.Written != n || st.Lost != 0 {
			t.Errorf("%+v, want %d", st, n)
		}
		s.DeviceReading(&want[0].Device, want[0].Entries)
		if got := s.Stats().Lost; got != uint64(len(want[0].Entries)) {
			t.Errorf("after the end %d entries are lost", got)
		}
	}
	names, err := filepath.Glob(filepath.Join(dir, "*-"+strings.Repeat("0", 32)+Suffix))
	if err != nil || len(names) < 4 {
		t.Fatalf("%d segments, %v", len(names), err)
	}
	k, err := OpenDir(dir)
	if err != nil || k.Damage() != nil || len(k.Runs(0, 0)) != 0 {
		t.Fatalf("%v, %v, %d runs", err, k.Damage(), len(k.Runs(0, 0)))
	}
	read := func(since, until int64) tapped {
		t.Helper()
		r, err := k.Readings(since, until)
		if err != nil {
			t.Fatal(err)
		}
		if r == nil {
			return nil
		}
		defer r.Close()
		got := allReadings(r)
		if r.Err() != nil {
			t.Error(r.Err())
		}
		return got
	}
	got := read(0, 0)
	for i := range got {
		got[i].UnixNS = want[min(i, len(want)-1)].UnixNS // this machine's
	}
	if diff := cmp.Diff(want[:66], got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	now := time.Now().Add(48 * time.Hour).UnixNano()
	if got := read(now, 0); got != nil {
		t.Errorf("%d readings of what is to come", len(got))
	}
	// One that is being written, or was not written to its end.
	b, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(names[0], b[:len(b)-3], 0o600); err != nil {
		t.Fatal(err)
	}
	if k, err = OpenDir(dir); err != nil || k.Damage() != nil {
		t.Fatal(err, k.Damage())
	}
	if again := read(0, 0); len(again) != len(got) {
		t.Errorf("%d readings of %d, with one cut behind them", len(again), len(got))
	}
}

// FuzzReadingsBlock takes anything for a block of readings.
func FuzzReadingsBlock(f *testing.F) {
	var l readingLog
	for _, r := range readingsOf(f, 300*time.Millisecond) {
		l.add(&r.Device, r.Entries)
	}
	b := l.payload(nil, testWall)
	f.Add(b)
	f.Add(b[:len(b)/2])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var l readingLog
		wall := int64(0)
		var got tapped
		if !parseReadings(b, func(r *Reading) {
			if len(r.Entries) == 0 || len(r.Entries) > spanring.MaxDeviceEntries || r.MonoNS < 0 || len(r.Device.Name) > maxDeviceName {
				t.Fatalf("%+v", r)
			}
			wall = r.UnixNS - r.MonoNS
			got.DeviceReading(&r.Device, r.Entries)
			l.add(&r.Device, r.Entries)
		}) || len(got) == 0 {
			return
		}
		i := 0
		if !parseReadings(l.payload(nil, wall), func(r *Reading) {
			if i >= len(got) || r.Device.UUID != got[i].Device.UUID || cmp.Diff(got[i].Entries, r.Entries) != "" || r.UnixNS != r.MonoNS+wall {
				t.Fatalf("reading %d is %+v", i, r)
			}
			i++
		}) || i != len(got) {
			t.Fatalf("%d of %d readings", i, len(got))
		}
	})
}
