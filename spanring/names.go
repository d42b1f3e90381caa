package spanring

import (
	"fmt"
	"hash/fnv"
	"strings"
	"sync"
	"sync/atomic"
)

// NameKind says what a text in the table of names stands for.
type NameKind uint8

// The kinds of names.
const (
	NameLane   NameKind = 1
	NameKernel NameKind = 2
	NameSite   NameKind = 3 // a call site, file:line or module+offset
	NameGraph  NameKind = 4 // text is the graph's label; see GraphName
	NameOther  NameKind = 5
)

// Name is a text of the ring's table. A Reader returns valid UTF-8, and a Kind
// that may be none of those above.
type Name struct {
	Kind NameKind
	Text string
	// Graph id and node count of a NameGraph.
	GraphID    uint64
	GraphNodes uint32
}

// A record of the table of names: one header word, then the payload, padded to
// 16 bytes. The table only grows: offNamesUsed is stored after the record.
//
//	header: u16 payload bytes | u8 kind | u8 mark | u32 FNV-1a of the payload
const nameMark = 0xa5

// graphPayload is the number of bytes before a graph's label.
const graphPayload = 16

type nameKey struct {
	kind  NameKind
	text  string
	graph uint64
	nodes uint32
}

type nameTable struct {
	m    memory
	off  int64
	size int64

	ids sync.Map // nameKey -> NameID
	mu  sync.Mutex
}

func (t *nameTable) init(m memory, off int64, size int) { t.m, t.off, t.size = m, off, int64(size) }

// Name interns a text and returns its id: the same id for the same text and
// kind. Texts over MaxNameBytes are cut on a rune's boundary and end in a hash of
// the whole. A text need not be UTF-8: it is stored as it is, and readers replace
// what is not. A full table gives 0 and counts the call in CtrNamesFull.
//
// A text seen before takes no lock and, up to MaxNameBytes, does not allocate; a
// new one does both, and so does one that a full table has no room for. So
// intern at start-up and keep the id.
func (w *Writer) Name(kind NameKind, text string) NameID {
	return w.intern(nameKey{kind: kind, text: text})
}

// GraphName interns a graph's label with its id and node count, otherwise like
// Name.
func (w *Writer) GraphName(id uint64, nodes uint32, label string) NameID {
	return w.intern(nameKey{kind: NameGraph, text: label, graph: id, nodes: nodes})
}

func (w *Writer) intern(k nameKey) NameID {
	t := &w.names
	k.text = cutName(k.text)
	if id, ok := t.ids.Load(k); ok {
		return id.(NameID)
	}
	// The table of ids outlives the caller's text, which may be a small part of
	// something large.
	k.text = strings.Clone(k.text)
	t.mu.Lock()
	defer t.mu.Unlock()
	if id, ok := t.ids.Load(k); ok {
		return id.(NameID)
	}
	id, ok := t.add(k)
	if !ok {
		w.Add(CtrNamesFull, 1)
		return 0
	}
	t.ids.Store(k, id)
	return id
}

// add writes the record of k, whose text is cut. The caller holds mu.
func (t *nameTable) add(k nameKey) (NameID, bool) {
	n := int64(len(k.text))
	if k.kind == NameGraph {
		n += graphPayload
	}
	used := int64(t.m.load(offNamesUsed))
	need := (8 + n + nameAlign - 1) / nameAlign * nameAlign
	if used+need > t.size {
		return 0, false
	}
	var p []byte
	if k.kind == NameGraph {
		p = make([]byte, graphPayload, graphPayload+len(k.text))
		for i := range 8 {
			p[i] = byte(k.graph >> (8 * i))
		}
		for i := range 4 {
			p[8+i] = byte(k.nodes >> (8 * i))
		}
	}
	p = append(p, k.text...)
	at := t.off + used
	padded := int(need - 8)
	t.m.storeBytes(at+8, padded, p)
	t.m.store(at, uint64(len(p))|uint64(k.kind)<<16|uint64(nameMark)<<24|uint64(hash32(p))<<32)
	atomic.StoreUint64(t.m.word(offNamesUsed), uint64(used+need))
	return NameID(used/nameAlign) + 1, true
}

// cutName shortens s to MaxNameBytes, ending in "…" and a hash of the whole.
func cutName(s string) string {
	if len(s) <= MaxNameBytes {
		return s
	}
	h := fnv.New64a()
	h.Write([]byte(s))
	tail := fmt.Sprintf("…%016x", h.Sum64())
	return string(clip(s, MaxNameBytes-len(tail))) + tail
}

func hash32(b []byte) uint32 {
	h := fnv.New32a()
	h.Write(b)
	return h.Sum32()
}

// readName reads the record id. ok is false when there is no such record, or
// what is there cannot be one.
func readName(m memory, off, size int64, id NameID) (n Name, ok bool) {
	used := min(int64(m.load(offNamesUsed)&(1<<40-1)), size)
	at := (int64(id) - 1) * nameAlign
	if id == 0 || at+8 > used {
		return n, false
	}
	h := m.load(off + at)
	l := int64(h & 0xffff)
	if h>>24&0xff != nameMark || at+8+l > used || l > MaxNameBytes+graphPayload {
		return n, false
	}
	p := m.loadBytes(nil, off+at+8, int((l+7)/8*8))[:l]
	if hash32(p) != uint32(h>>32) {
		return n, false
	}
	n.Kind = NameKind(h >> 16)
	if n.Kind == NameGraph {
		if l < graphPayload {
			return n, false
		}
		for i := range 8 {
			n.GraphID |= uint64(p[i]) << (8 * i)
		}
		for i := range 4 {
			n.GraphNodes |= uint32(p[8+i]) << (8 * i)
		}
		p = p[graphPayload:]
	}
	n.Text = clean(string(p))
	return n, true
}
