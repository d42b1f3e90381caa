package recording

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

// Readings of devices are in blocks of the file, not of a run: several runs may be on
// one device, or none. Readers that do not know them skip them.
//
//	block:   wall offset | number of devices | devices | number of readings | readings
//	device:  uuid [16] | name
//	reading: device, by its place | number of entries | entries
//	entry:   low 16 bits of the first word | every word as its difference from the
//	         device's last entry with the same such bits; the fourth word, which is the
//	         time, from the entry before
const (
	maxBlockDevices  = 1 << 10
	maxBlockReadings = 1 << 16
	maxDeviceName    = 256
	wordTime         = 3
	entryKeyBits     = 1<<16 - 1
)

// entryKey tells entries apart that have values alike.
type entryKey struct {
	device uint64
	low    uint64
}

// entryDeltas are what an entry is told from. Encoder and decoder keep them alike.
type entryDeltas struct {
	last map[entryKey]spanring.Words
	ns   uint64
}

func (d *entryDeltas) reset() {
	if d.last == nil {
		d.last = make(map[entryKey]spanring.Words)
	}
	clear(d.last)
	d.ns = 0
}

func (d *entryDeltas) append(b []byte, device uint64, w *spanring.Words) []byte {
	k := entryKey{device, w[0] & entryKeyBits}
	b = binary.AppendUvarint(b, k.low)
	last := d.last[k]
	for i, v := range w {
		switch i {
		case 0:
			b = appendInt(b, int64(v>>16-last[0]>>16))
		case wordTime:
			b = appendInt(b, int64(v-d.ns))
			d.ns = v
		default:
			b = appendInt(b, int64(v-last[i]))
		}
	}
	d.last[k] = *w
	return b
}

func (d *entryDeltas) parse(f *fields, device uint64) (w spanring.Words) {
	k := entryKey{device, f.uint() & entryKeyBits}
	last := d.last[k]
	for i := range w {
		v := uint64(f.int())
		switch i {
		case 0:
			w[0] = (v+last[0]>>16)<<16 | k.low
		case wordTime:
			d.ns += v
			w[i] = d.ns
		default:
			w[i] = v + last[i]
		}
	}
	d.last[k] = w
	return w
}

// readingLog gathers the readings of one block.
type readingLog struct {
	devices []collector.Device
	n       int // readings
	entries int
	b       []byte
	d       entryDeltas
	startNS int64 // of the first
}

func (l *readingLog) add(d *collector.Device, entries []spanring.Words) {
	if l.n == 0 {
		l.d.reset()
		l.startNS = int64(entries[0][wordTime])
	}
	at := slices.IndexFunc(l.devices, func(o collector.Device) bool { return o.UUID == d.UUID })
	if at < 0 {
		at = len(l.devices)
		l.devices = append(l.devices, *d)
	}
	l.b = binary.AppendUvarint(l.b, uint64(at))
	l.b = binary.AppendUvarint(l.b, uint64(len(entries)))
	for i := range entries {
		l.b = l.d.append(l.b, uint64(at), &entries[i])
	}
	l.n++
	l.entries += len(entries)
}

// payload appends the block's payload to b.
func (l *readingLog) payload(b []byte, wallOffsetNS int64) []byte {
	b = appendInt(b, wallOffsetNS)
	b = binary.AppendUvarint(b, uint64(len(l.devices)))
	for i := range l.devices {
		b = append(b, l.devices[i].UUID[:]...)
		b = appendText(b, l.devices[i].Name[:min(len(l.devices[i].Name), maxDeviceName)])
	}
	b = binary.AppendUvarint(b, uint64(l.n))
	return append(b, l.b...)
}

func (l *readingLog) reset() {
	l.devices, l.n, l.entries, l.b = l.devices[:0], 0, 0, l.b[:0]
}

// Reading is one reading of a device as it stands in a recording. Entries may be
// anything: whoever takes them in decodes them.
type Reading struct {
	Device  collector.Device
	MonoNS  int64 // on the machine's CLOCK_MONOTONIC
	UnixNS  int64
	Entries []spanring.Words
}

// parseReadings calls f with each reading of a block, and reports whether b can be
// one. The reading is valid during the call.
func parseReadings(b []byte, f func(r *Reading)) bool {
	p := fields{b: b}
	offset := p.int()
	n := p.uint()
	if p.bad || !saneNS(offset) || n > maxBlockDevices {
		return false
	}
	devices := make([]collector.Device, 0, min(n, 64))
	for range n {
		var d collector.Device
		copy(d.UUID[:], p.bytes(uint64(len(d.UUID))))
		d.Name = p.text(maxDeviceName)
		if devices = append(devices, d); p.bad {
			return false
		}
	}
	var deltas entryDeltas
	deltas.reset()
	n = p.uint()
	if n > maxBlockReadings {
		return false
	}
	var entries []spanring.Words
	for range n {
		at, m := p.uint(), p.uint()
		if p.bad || at >= uint64(len(devices)) || m == 0 || m > spanring.MaxDeviceEntries {
			return false
		}
		entries = entries[:0]
		for range m {
			entries = append(entries, deltas.parse(&p, at))
		}
		ns := int64(entries[0][wordTime])
		if p.bad || ns < 0 || !saneNS(ns) {
			return false
		}
		f(&Reading{devices[at], ns, ns + offset, entries})
	}
	return !p.bad
}

// DeviceReading records one reading of a device, whose entries must decode. It
// implements [collector.DeviceTap].
func (w *Writer) DeviceReading(d *collector.Device, entries []spanring.Words) {
	_ = w.appendReading(d, entries) // kept for Err
}

func (w *Writer) appendReading(d *collector.Device, entries []spanring.Words) error {
	if len(entries) == 0 || len(entries) > spanring.MaxDeviceEntries {
		return nil // it would make the block unreadable, and is no reading
	}
	w.readingsMu.Lock()
	defer w.readingsMu.Unlock()
	l := &w.readings
	if l.n >= w.o.FlushEntries/spanring.MaxDeviceEntries+1 || l.n > 0 && int64(entries[0][wordTime])-l.startNS >= int64(w.o.FlushEvery) || len(l.devices) >= maxBlockDevices {
		if err := w.flushReadings(); err != nil {
			return err
		}
	}
	l.add(d, entries)
	return w.Err()
}

// flushReadings writes the readings that are gathered. The caller holds readingsMu.
func (w *Writer) flushReadings() error {
	l := &w.readings
	if l.n == 0 {
		return w.Err()
	}
	n := l.n
	w.readingsRaw = l.payload(w.readingsRaw[:0], w.o.WallOffsetNS())
	err := w.put(blockHeader{typ: blockReadings, flags: flagOptional}, w.readingsRaw, l.entries)
	l.reset()
	if err == nil {
		w.mu.Lock()
		w.stats.Readings += uint64(n)
		w.mu.Unlock()
	}
	return err
}

// wallClock is this machine's offset from CLOCK_MONOTONIC to Unix time. It stays as it
// is while it is as good as any that can be measured.
type wallClock struct {
	mu   sync.Mutex
	last int64
}

// sameOffsetNS is within what two measurements of the offset are one.
const sameOffsetNS = 1e6

func (c *wallClock) offsetNS() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now().UnixNano() - spanring.MonoNS(); max(now-c.last, c.last-now) > sameOffsetNS {
		c.last = now
	}
	return c.last
}

// Readings reads the readings of devices that a recording holds, in their order.
type Readings struct {
	open  func() (*File, []int64, bool) // the next file, and its blocks
	f     *File
	close bool // f is ours
	p     *payloads
	at    []int64
	queue []Reading
	last  map[readingOf]int64
	err   error
}

// repeatedNS is within what two readings are one: devices are read every 10 ms at
// most, and two recorders differ by less in where they place it in Unix time.
const repeatedNS = 5e6

// readingOf is what readings follow each other of.
type readingOf struct {
	uuid [16]byte
	part bool // of the second half of the parts: health
}

// HasReadings reports whether the recording holds readings of devices.
func (f *File) HasReadings() bool { return len(f.readings) > 0 }

// Readings begins to read them. The caller closes it.
func (f *File) Readings() (*Readings, error) {
	given := false
	return newReadings(func() (*File, []int64, bool) {
		if given {
			return nil, nil, false
		}
		given = true
		return f, f.readings, true
	}, false)
}

func newReadings(open func() (*File, []int64, bool), closes bool) (*Readings, error) {
	p, err := newPayloads()
	if err != nil {
		return nil, err
	}
	return &Readings{open: open, close: closes, p: p, last: make(map[readingOf]int64)}, nil
}

// fill has the next reading in the queue, if there is one. What is damaged ends the
// recording that it is in.
func (r *Readings) fill() {
	for len(r.queue) == 0 {
		if len(r.at) == 0 {
			r.release()
			var ok bool
			if r.f, r.at, ok = r.open(); !ok {
				return
			}
			continue
		}
		at := r.at[0]
		r.at = r.at[1:]
		if err := r.read(r.f, at); err != nil {
			r.queue, r.at = nil, nil
			r.note(err)
		}
	}
}

func (r *Readings) note(err error) {
	if r.err == nil {
		r.err = err
	}
}

// read queues the readings of a block.
func (r *Readings) read(f *File, at int64) error {
	b := blocks{f: f, offset: at}
	h, err := b.header()
	if err != nil {
		return err
	}
	p, err := r.p.read(&b, &h)
	if err != nil {
		return err
	}
	if !parseReadings(p, r.take) {
		return f.damagedAt(at, "its readings cannot be")
	}
	return nil
}

// take queues a reading, unless an earlier recording had it.
func (r *Readings) take(g *Reading) {
	k := readingOf{g.Device.UUID, g.Entries[0][0]>>8&0x7f >= uint64(spanring.MaxDeviceEntries)}
	if last, ok := r.last[k]; ok && r.close && g.UnixNS < last+repeatedNS {
		return
	}
	r.last[k] = g.UnixNS
	c := *g
	c.Entries = slices.Clone(g.Entries)
	r.queue = append(r.queue, c)
}

// NextUnixNS is when the next reading was, in Unix time. ok is false when there is
// none.
func (r *Readings) NextUnixNS() (ns int64, ok bool) {
	if r.fill(); len(r.queue) == 0 {
		return 0, false
	}
	return r.queue[0].UnixNS, true
}

// Next returns the next reading; ok is false when there is none. Err says whether
// there should have been.
func (r *Readings) Next() (g Reading, ok bool) {
	if r.fill(); len(r.queue) == 0 {
		return g, false
	}
	g = r.queue[0]
	r.queue = r.queue[1:]
	return g, true
}

// Err is the first damage that was met, nil while there is none.
func (r *Readings) Err() error { return r.err }

func (r *Readings) release() {
	if r.f != nil && r.close {
		r.note(r.f.Close())
	}
	r.f = nil
}

// Close ends reading. It leaves a file that it was given open.
func (r *Readings) Close() {
	r.release()
	r.at, r.queue, r.open = nil, nil, func() (*File, []int64, bool) { return nil, nil, false }
	r.p.close()
}

var _ collector.DeviceTap = (*Writer)(nil)
