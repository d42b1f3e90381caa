package agent

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// memTotals is a line of testdata/ledgerscript.c.
type memTotals struct {
	Live, Count, Peak, Allocs, Frees, AllocsFailed, FreesFailed, FreesUnknown, Replaced uint64
}

// playLedger plays the lines and returns the ring and the totals after each.
func playLedger(t *testing.T, lines []string) (string, []memTotals) {
	t.Helper()
	bin := buildProgram(t, "ledgerscript.c", ringSources, "-fsanitize=undefined")
	cmd := exec.Command(bin)
	cmd.Env = []string{"LANETRACE_DIR=" + privateDir(t).Path}
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil || errs.Len() > 0 {
		t.Fatalf("%v: %s", err, errs.Bytes())
	}
	sc := bufio.NewScanner(bytes.NewReader(out))
	sc.Scan()
	ring := sc.Text()
	var ts []memTotals
	for sc.Scan() {
		var m memTotals
		if _, err := fmt.Sscan(sc.Text(), &m.Live, &m.Count, &m.Peak, &m.Allocs, &m.Frees, &m.AllocsFailed, &m.FreesFailed, &m.FreesUnknown, &m.Replaced); err != nil {
			t.Fatalf("%q: %v", sc.Text(), err)
		}
		ts = append(ts, m)
	}
	if len(ts) != len(lines) {
		t.Fatalf("%d answers to %d lines", len(ts), len(lines))
	}
	return ring, ts
}

// ringMemory is what a reader makes of a ledger.
type ringMemory struct {
	Scan   spanring.AllocScan
	Allocs map[uint64]spanring.Alloc
	Events []spanring.MemEvent
}

func readMemory(t *testing.T, path string) (m ringMemory) {
	t.Helper()
	r := open(t, path)
	list, scan, err := r.Allocs(nil)
	if err != nil {
		t.Fatal(err)
	}
	m.Scan, m.Allocs = scan, map[uint64]spanring.Alloc{}
	for _, a := range list {
		m.Allocs[a.Addr] = a
	}
	buf := make([]spanring.Entry, 1<<14)
	n, err := r.Poll(buf, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range buf[:n] {
		e, err := buf[i].Words.MemEvent()
		if err != nil {
			t.Fatal(err)
		}
		m.Events = append(m.Events, e)
	}
	return m
}

// TestLedgerAgainstGo plays the same random life through both ledgers: totals
// after each operation, and at the end table, totals and log as a reader has them.
func TestLedgerAgainstGo(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 2))
			w, err := spanring.Create(privateDir(t), spanring.Options{Geometry: spanring.Geometry{LogEntries: 1 << 14, Slots: 16, NameBytes: 64 << 10, Allocs: 32}})
			if err != nil {
				t.Fatal(err)
			}
			l, err := ledger.New(ledger.Options{})
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			var want []memTotals
			step := func(line string, play func()) {
				play()
				m, _ := l.Totals()
				lines = append(lines, line)
				want = append(want, memTotals{
					m.LiveBytes, m.LiveCount, m.PeakBytes, m.Allocs, m.Frees, m.AllocsFailed, m.FreesFailed, m.FreesUnknown, m.AllocsReplaced,
				})
			}
			step("attach 1", func() { l.Attach(w, 0, true) })
			var held [2]ledger.Taken
			var holds [2]bool
			for range 3000 {
				addr := 512 * uint64(1+r.IntN(400)) << r.IntN(16)
				switch k := r.IntN(20); {
				case k < 9:
					kind, bytes := spanring.AllocKind(1+r.IntN(2)), int64(1+r.IntN(1<<uint(r.IntN(24))))
					step(fmt.Sprintf("alloc 0 %d 0 %d %d 0", kind, addr, bytes), func() { l.Begin(kind, bytes).Done(addr) })
				case k < 16:
					// Two frees can overlap, and an allocation may come in between.
					i := r.IntN(2)
					if !holds[i] {
						step(fmt.Sprintf("take %d %d", i, addr), func() { held[i] = l.Take(addr) })
						holds[i] = true
						continue
					}
					var refused error
					if r.IntN(4) == 0 {
						refused = errors.New("refused")
					}
					step(fmt.Sprintf("freed %d %d", i, b2u(refused != nil)), func() { held[i].Done(refused) })
					holds[i] = false
				case k == 16:
					step("failed", func() { l.Begin(spanring.AllocDevice, 5).Failed() })
				default:
					// Off, basic, lane: the level says whether it publishes.
					level := r.IntN(3)
					step(fmt.Sprintf("publish %d", level), func() { l.SetPublishing(level > 0) })
				}
			}
			switch seed % 3 {
			case 0:
				step("publish 1", func() { l.SetPublishing(true) })
			case 1:
				step("publish 0", func() { l.SetPublishing(false) })
				step("detach", l.Detach)
			case 2:
				step("publish 3", func() { l.SetPublishing(true) })
				step("detach", l.Detach)
			}
			path, got := playLedger(t, lines)
			for i := range got {
				if got[i] != want[i] {
					t.Fatalf("after operation %d, %s:\n C %+v\nGo %+v", i, lines[i], got[i], want[i])
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			// The indexes differ: Go gives one to an allocation that fails too.
			ignore := cmp.Options{cmpopts.IgnoreFields(spanring.Alloc{}, "Site", "MonoNS", "Index")}
			c, g := readMemory(t, path), readMemory(t, w.Path())
			if d := cmp.Diff(g, c, ignore); d != "" {
				t.Errorf("a reader sees another ledger than Go's (-Go +C):\n%s", d)
			}
			if len(c.Events) < 100 || len(c.Allocs) == 0 {
				t.Errorf("too little to compare: %d events, %d listed", len(c.Events), len(c.Allocs))
			}
		})
	}
}

// physical is the model of physical memory: references and mappings, counted by
// hand.
type physical struct {
	objects  []*object
	byHandle map[uint64]*object
	mapped   map[uint64]*mapping // by address
	plain    map[uint64]uint64
}

type object struct {
	bytes, handle uint64
	refs          int
}

type mapping struct {
	o    *object
	size uint64
}

func (p *physical) live() (bytes, count uint64) {
	for _, n := range p.plain {
		bytes, count = bytes+n, count+1
	}
	for _, o := range p.objects {
		there := o.refs > 0
		for _, m := range p.mapped {
			there = there || m.o == o
		}
		if there && o.bytes > 0 {
			bytes, count = bytes+o.bytes, count+1
		}
	}
	return bytes, count
}

func (p *physical) overlaps(at, size uint64) bool {
	for a, m := range p.mapped {
		if a < at+size && at < a+m.size {
			return true
		}
	}
	return false
}

func (p *physical) release(h uint64) bool {
	o := p.byHandle[h]
	if o == nil {
		return false
	}
	if o.refs--; o.refs == 0 {
		delete(p.byHandle, h)
	}
	return true
}

// TestPhysicalMemory plays virtual-memory calls in every order against the model:
// live bytes are those of the objects that a reference or a mapping holds.
func TestPhysicalMemory(t *testing.T) {
	const chunk = 2 << 20
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			p := &physical{byHandle: map[uint64]*object{}, mapped: map[uint64]*mapping{}, plain: map[uint64]uint64{}}
			var lines []string
			var want [][2]uint64
			step := func(format string, args ...any) {
				lines = append(lines, fmt.Sprintf(format, args...))
				b, n := p.live()
				want = append(want, [2]uint64{b, n})
			}
			step("attach 1")
			for range 2500 {
				h := uint64(1 + r.IntN(12)) // few, so that values come again
				at := uint64(1+r.IntN(24)) << 32
				switch r.IntN(9) {
				case 0, 1:
					if p.byHandle[h] != nil {
						continue // the driver does not hand out what it still has
					}
					o := &object{bytes: uint64(r.IntN(4)) * chunk, handle: h, refs: 1}
					p.objects = append(p.objects, o)
					p.byHandle[h] = o
					step("create %d %d %d 0", r.IntN(2), h, o.bytes)
				case 2, 3:
					if o := p.byHandle[h]; o != nil && p.mapped[at] == nil {
						size := uint64(chunk * (1 + r.IntN(3)))
						// Now and then what follows the mapping before, so that one call unmaps both.
						if before := p.mapped[at-1<<32]; before != nil && r.IntN(2) == 0 && p.mapped[at-1<<32+before.size] == nil {
							at = at - 1<<32 + before.size
						}
						if p.overlaps(at, size) {
							continue
						}
						p.mapped[at] = &mapping{o, size}
						step("map %d %d %d", at, size, h)
					}
				case 4, 5:
					// The range of one mapping or of those behind it.
					m := p.mapped[at]
					if m == nil {
						step("unmap 0 %d %d", at, chunk)
						step("unmapped 0 1")
						continue
					}
					size := m.size
					for next := p.mapped[at+size]; next != nil && r.IntN(3) > 0; next = p.mapped[at+size] {
						size += next.size
					}
					step("unmap 0 %d %d", at, size)
					if r.IntN(5) == 0 {
						step("unmapped 0 1")
						continue
					}
					for a := at; a < at+size; {
						n := p.mapped[a].size
						delete(p.mapped, a)
						a += n
					}
					step("unmapped 0 0")
				case 6, 7:
					step("release 1 %d", h)
					refused := r.IntN(6) == 0
					if !refused {
						refused = !p.release(h) // a second release
					}
					step("released 1 %d", b2u(refused))
				case 8:
					m := p.mapped[at]
					if m == nil {
						continue
					}
					// The driver gives the handle that the memory had, or one that is free.
					if m.o.refs == 0 {
						if p.byHandle[h] != nil {
							continue
						}
						m.o.handle = h
						p.byHandle[h] = m.o
					}
					m.o.refs++
					step("retain %d %d", at+uint64(r.IntN(int(m.size))), m.o.handle)
				}
			}
			step("contextend 0") // physical memory belongs to no context
			path, got := playLedger(t, lines)
			for i := range got {
				if g := got[i]; g.Live != want[i][0] || g.Count != want[i][1] {
					t.Fatalf("after operation %d, %s: %d bytes in %d, want %d in %d", i, lines[i], g.Live, g.Count, want[i][0], want[i][1])
				}
				if g := got[i]; g.Allocs+g.FreesFailed != g.Frees+g.Replaced+g.Count {
					t.Fatalf("after operation %d, %s: %+v does not balance", i, lines[i], g)
				}
			}
			m := readMemory(t, path)
			if last := got[len(got)-1]; m.Scan.Totals.LiveBytes != last.Live || last.FreesUnknown == 0 || last.Peak < 6*chunk {
				t.Errorf("ring %+v, ledger %+v", m.Scan.Totals, last)
			}
		})
	}
}

// TestHandlesAndAddressesComeAgain plays two threads in turn: what the first is
// giving back is handed out to the second before the first has had its answer.
func TestHandlesAndAddressesComeAgain(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		name  string
		lines []string
		live  uint64
		frees uint64
	}{
		{"release", []string{"create 0 7 1048576", "release 0 7", "create 0 7 2097152", "released 0 0"}, 2 * mib, 1},
		{"release while mapped", []string{"create 0 7 1048576", "map 4096 1048576 7", "release 0 7", "create 0 7 2097152", "released 0 0"}, 3 * mib, 0},
		{"unmap", []string{
			"create 0 7 1048576", "map 4096 1048576 7", "release 0 7", "released 0 0", "create 0 8 2097152",
			"unmap 0 4096 1048576", "map 4096 1048576 8", "unmapped 0 0",
		}, 2 * mib, 1},
		{"unmap and the same again", []string{
			"create 0 7 1048576", "map 4096 1048576 7", "unmap 0 4096 1048576", "map 4096 1048576 7", "unmapped 0 0", "release 0 7", "released 0 0",
		}, mib, 0},
		{"free", []string{"alloc 0 1 0 4096 1048576 0", "take 0 4096", "alloc 0 1 0 4096 2097152 0", "freed 0 0"}, 2 * mib, 1},
		{"two releases at once", []string{"create 0 7 1048576", "release 0 7", "release 1 7", "released 0 0", "released 1 1"}, 0, 1},
		{"imported twice", []string{"create 0 7 0", "create 0 7 0", "release 0 7", "released 0 0", "release 0 7", "released 0 0", "release 0 7", "released 0 1"}, 0, 0},
		{"context ends", []string{
			"alloc 0 1 0 4096 1048576 0", "alloc 1 1 0 8192 1048576 0", "alloc 1 2 1 12288 1048576 0", "create 1 7 1048576", "contextend 1", "take 0 8192", "freed 0 1",
		}, 2 * mib, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, got := playLedger(t, append([]string{"attach 1"}, c.lines...))
			last := got[len(got)-1]
			if last.Live != c.live || last.Frees != c.frees || last.Allocs+last.FreesFailed != last.Frees+last.Replaced+last.Count {
				t.Errorf("%+v, want %d live and %d freed", last, c.live, c.frees)
			}
		})
	}
}

// TestTableFull: what finds no place is in the totals nevertheless.
func TestTableFull(t *testing.T) {
	lines := []string{"attach 1"}
	for i := range 50 {
		lines = append(lines, fmt.Sprintf("alloc 0 1 2 %d 1000 0", 4096*(i+1)))
	}
	lines = append(lines, "detach")
	path, _ := playLedger(t, lines)
	m := readMemory(t, path)
	if m.Scan.Totals.LiveBytes != 50_000 || m.Scan.Totals.UnlistedBytes != 18_000 || m.Scan.Totals.UnlistedCount != 18 || len(m.Allocs) != 32 || len(m.Events) != 50 {
		t.Errorf("%d listed, %d events, %+v", len(m.Allocs), len(m.Events), m.Scan.Totals)
	}
	if m.Scan.Totals.ChunkSlackBytes != 0 {
		t.Errorf("slack %d of memory whose packing nobody knows", m.Scan.Totals.ChunkSlackBytes)
	}
}
