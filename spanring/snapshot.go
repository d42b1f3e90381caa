package spanring

import (
	"encoding/binary"
	"sync/atomic"
)

// Snapshot copies the ring file, as a flight record keeps it; NewBytesReader
// reads the copy. The producer may write meanwhile: an entry or context record
// that changes under the copy is in it as one being written, never as a mixture.
// It allocates the size of the file.
func (r *Reader) Snapshot() (b []byte, err error) {
	err = r.locked(func() error {
		b = snapshot(r.m, r.geo)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// snapshot copies the head before the log, so that what is published during the
// copy is at most missing at its old end, and the names' use before the names.
func snapshot(m memory, geo Geometry) []byte {
	b := m.loadBytes(make([]byte, 0, geo.FileBytes()), 0, offContexts)
	for i := range MaxContexts {
		seq, w, ok := loadContext(m, i)
		if !ok && seq != 0 {
			seq |= 1
		}
		b = binary.LittleEndian.AppendUint64(b, seq)
		for _, v := range w {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	b = m.loadBytes(b, int64(len(b)), int(geo.logOff())-len(b))
	for i := range int64(geo.LogEntries) {
		p := m.words8(geo.logOff() + i*EntrySize)
		before := atomic.LoadUint64(&p[0])
		var w Words
		for j := range w {
			w[j] = atomic.LoadUint64(&p[j+1])
		}
		// Overtaken: a claim of the entry that is there now.
		if after := atomic.LoadUint64(&p[0]); after != before {
			before = after | wordClaimed
		}
		b = binary.LittleEndian.AppendUint64(b, before)
		for _, v := range w {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	b = m.loadBytes(b, geo.slotOff(), int(geo.allocOff()-geo.slotOff()))
	return appendAllocs(b, m, geo)
}

// appendAllocs appends the table of allocations, and copies once more what of
// the header belongs to it: the memory counters, and the mutation counter, made
// odd where the table changed during every try.
func appendAllocs(b []byte, m memory, geo Geometry) []byte {
	const ctrOff = offCounters + 8*int64(ctrMemFirst)
	n := len(b)
	for try := range allocTries {
		b = b[:n]
		before := m.load(offAllocMut)
		m.loadBytes(b[:ctrOff], ctrOff, 8*int(ctrMemEnd-ctrMemFirst))
		m.loadBytes(b[:offAllocMut], offAllocMut, 16)
		for i := range int64(geo.Allocs) {
			p := m.words8(geo.allocOff() + i*AllocSize)
			word := atomic.LoadUint64(&p[0])
			at := len(b)
			b = binary.LittleEndian.AppendUint64(b, word)
			for j := range 7 {
				b = binary.LittleEndian.AppendUint64(b, atomic.LoadUint64(&p[j+1]))
			}
			if atomic.LoadUint64(&p[0]) != word {
				binary.LittleEndian.PutUint64(b[at:], word&^allocWordMask)
			}
		}
		after := m.load(offAllocMut)
		if before == after && before&1 == 0 {
			binary.LittleEndian.PutUint64(b[offAllocMut:], before)
			break
		}
		if try == allocTries-1 {
			binary.LittleEndian.PutUint64(b[offAllocMut:], after|1)
		}
	}
	return b
}
