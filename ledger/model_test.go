package ledger

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lanetrace/lanetrace/spanring"
)

// modelAlloc is an allocation as the model has it.
type modelAlloc struct {
	addr  uint64
	bytes int64
	guard int64
	index uint64
	kind  spanring.AllocKind // arena too
	site  int
}

// model is the ledger's specification, reckoned from scratch each time.
type model struct {
	live  map[uint64]modelAlloc
	next  uint64
	chunk int64
	first uint64
	guard int64

	peak                                                             int64
	allocs, frees, allocsFailed, freesFailed, freesUnknown, replaced uint64
}

// slack is both kinds of slack by brute force: every chunk is looked at.
func (m *model) slack() (chunks, rounding int64) {
	held := map[uint64]bool{}
	small := int64(0)
	for _, a := range m.live {
		if a.kind != device {
			continue
		}
		size := a.bytes + a.guard
		if size >= m.chunk {
			rounding += (size+m.chunk-1)/m.chunk*m.chunk - size
			continue
		}
		small += size
		for at := a.addr; at < a.addr+uint64(size); at++ {
			held[at/uint64(m.chunk)] = true
			// No need to look at every byte: the border of the next chunk, or the end.
			at = min(at/uint64(m.chunk)*uint64(m.chunk)+uint64(m.chunk), a.addr+uint64(size)) - 1
		}
	}
	return int64(len(held))*m.chunk - small, rounding
}

func (m *model) totals() spanring.MemoryTotals {
	t := spanring.MemoryTotals{
		ChunkBytes: uint64(m.chunk), PeakBytes: uint64(m.peak), Allocs: m.allocs, Frees: m.frees,
		AllocsFailed: m.allocsFailed, FreesFailed: m.freesFailed, FreesUnknown: m.freesUnknown, AllocsReplaced: m.replaced,
	}
	for _, a := range m.live {
		if a.kind == arena {
			t.ArenaBytes += uint64(a.bytes)
			t.ArenaCount++
			continue
		}
		t.LiveBytes += uint64(a.bytes)
		t.LiveCount++
		t.GuardBytes += uint64(a.guard)
	}
	c, r := m.slack()
	t.ChunkSlackBytes, t.RoundingSlackBytes = uint64(c), uint64(r)
	return t
}

func (m *model) add(a modelAlloc) {
	m.live[a.addr] = a
	live := int64(0)
	for _, a := range m.live {
		if a.kind != arena {
			live += a.bytes
		}
	}
	m.peak = max(m.peak, live)
}

// sites are call sites of the test's own: one function, so one line, each.
var sites = []func(p Pending, addr uint64){
	func(p Pending, addr uint64) { p.Done(addr) },
	func(p Pending, addr uint64) { p.Done(addr) },
	func(p Pending, addr uint64) { p.Done(addr) },
}

// TestModel runs random operations against the model: small and large
// allocations, on and across chunk borders, at addresses that come again, with
// guard bands, a table that is too small, a level that goes up and down, frees
// that the driver refuses, addresses that nobody knows, and a ring that is
// changed for another.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		places := rapid.IntRange(1, 12).Draw(t, "places")
		m := &model{live: map[uint64]modelAlloc{}, chunk: 4096}
		rz := Redzone{}
		if rapid.Bool().Draw(t, "guard bands") {
			rz = Redzone{Bytes: 40, First: 3}
			m.guard, m.first = 48, 3
		}
		l, err := New(Options{ChunkBytes: m.chunk, Redzone: rz})
		if err != nil {
			t.Fatal(err)
		}
		geo := spanring.Geometry{LogEntries: 1024, Slots: 1, NameBytes: 4096, Allocs: places}
		var w *spanring.Writer
		var r *spanring.Reader
		attach := func(publish bool) {
			if w, err = spanring.NewHeap(spanring.Options{Geometry: geo}); err != nil {
				t.Fatal(err)
			}
			if r, err = spanring.NewHeapReader(w, spanring.ReaderOptions{}); err != nil {
				t.Fatal(err)
			}
			l.Attach(w, 3, publish)
		}
		publishing := rapid.Bool().Draw(t, "publishing")
		attach(publishing)
		// Addresses around a few borders.
		addr := rapid.Custom(func(t *rapid.T) uint64 {
			return uint64(rapid.IntRange(1, 4).Draw(t, "chunk"))*4096 + uint64(int64(rapid.SampledFrom([]int{-512, -1, 0, 1, 512, 2048}).Draw(t, "offset")))
		})
		size := rapid.SampledFrom([]int64{1, 2, 511, 512, 513, 4047, 4048, 4049, 4095, 4096, 4097, 8191, 8192, 8193, 1 << 20})
		kind := rapid.SampledFrom([]spanring.AllocKind{device, device, spanring.AllocManaged})
		var frozen []modelAlloc        // what the ring's table holds since the fall
		var last spanring.MemoryTotals // and its totals

		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				k, n, a, s := kind.Draw(t, "kind"), size.Draw(t, "bytes"), addr.Draw(t, "address"), rapid.IntRange(0, len(sites)-1).Draw(t, "site")
				p := l.Begin(k, n)
				g := int64(0)
				if m.next >= m.first {
					g = m.guard
				}
				if off, gn, fill := p.Guard(); p.Index() != m.next || p.AskBytes() != n+g || gn != g || g > 0 && (off != n || fill != 0xa5) {
					t.Fatalf("pending %+v", p)
				}
				ma := modelAlloc{addr: a, bytes: n, guard: g, index: m.next, kind: k, site: s}
				m.next++
				if rapid.IntRange(0, 9).Draw(t, "refused") == 0 {
					p.Failed()
					m.allocsFailed++
					return
				}
				sites[s](p, a)
				m.replace(a)
				m.add(ma)
				m.allocs++
			},
			"arena": func(t *rapid.T) {
				a, n := addr.Draw(t, "address"), size.Draw(t, "bytes")
				l.Arena(a, n)
				m.replace(a)
				m.add(modelAlloc{addr: a, bytes: n, kind: arena})
			},
			"free": func(t *rapid.T) {
				a := addr.Draw(t, "address")
				tk := l.Take(a)
				ma, known := m.live[a]
				if tk.Known() != known || tk.Bytes() != ma.bytes {
					t.Fatalf("take %#x: %v, want %v", a, tk, ma)
				}
				delete(m.live, a)
				var err error
				if rapid.IntRange(0, 4).Draw(t, "refused") == 0 {
					err = errors.New("refused")
				}
				tk.Done(err)
				switch {
				case !known:
					m.freesUnknown++
				case ma.kind == arena:
					if err != nil {
						m.live[a] = ma
					}
				case err != nil:
					m.frees++
					m.freesFailed++
					m.live[a] = ma
				default:
					m.frees++
				}
			},
			"taken and handed out again": func(t *rapid.T) {
				a := addr.Draw(t, "address")
				ma, known := m.live[a]
				if !known || ma.kind == arena {
					t.Skip("nothing there")
				}
				tk := l.Take(a)
				p := l.Begin(device, 700)
				sites[0](p, a) // before the driver's answer is known
				tk.Done(nil)
				delete(m.live, a)
				m.frees++
				g := int64(0)
				if m.next >= m.first {
					g = m.guard
				}
				m.add(modelAlloc{addr: a, bytes: 700, guard: g, index: m.next, kind: device})
				m.next++
				m.allocs++
			},
			"level": func(t *rapid.T) {
				publishing = !publishing
				l.SetPublishing(publishing)
				l.SetPublishing(publishing)
			},
			"chunk": func(t *rapid.T) {
				m.chunk = rapid.SampledFrom([]int64{4096, 8192}).Draw(t, "chunk")
				if err := l.SetChunkBytes(m.chunk); err != nil {
					t.Fatal(err)
				}
			},
			"another ring": func(t *rapid.T) {
				l.Detach()
				frozen, last = nil, spanring.MemoryTotals{}
				attach(publishing)
			},
			"drain": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "really") > 0 {
					t.Skip("not now")
				}
				left := l.Drain()
				want := slices.DeleteFunc(m.sorted(), func(a modelAlloc) bool { return a.kind == arena })
				if d := gocmp.Diff(want, fromAllocations(left.Allocations), gocmp.AllowUnexported(modelAlloc{})); d != "" {
					t.Fatal(d)
				}
				m.frees += uint64(len(want))
				maps.DeleteFunc(m.live, func(_ uint64, a modelAlloc) bool { return a.kind != arena })
			},
			"": func(t *rapid.T) {
				want := m.totals()
				got, tracked := l.Totals()
				got.UnlistedBytes, got.UnlistedCount, got.AllocsUnlisted = 0, 0, 0 // of the ring
				if d := gocmp.Diff(want, got); d != "" || !tracked {
					t.Fatalf("totals (-want +got):\n%s", d)
				}
				live, _ := l.LiveAllocations()
				wantLive := slices.DeleteFunc(m.sorted(), func(a modelAlloc) bool { return a.kind == arena })
				if d := gocmp.Diff(wantLive, fromAllocations(live), gocmp.AllowUnexported(modelAlloc{})); d != "" {
					t.Fatalf("live (-want +got):\n%s", d)
				}
				m.checkSites(t, l.Memory())

				// The ring.
				as, s, err := r.Allocs(nil)
				if err != nil || s.Approximate {
					t.Fatalf("%+v, %v", s, err)
				}
				if !publishing {
					if s.State != spanring.AllocsStale {
						t.Fatalf("state %v while nothing is written", s.State)
					}
					// Since the fall nothing has changed.
					if d := gocmp.Diff(frozen, fromRing(as), gocmp.AllowUnexported(modelAlloc{})); d != "" && len(frozen)+len(as) > 0 {
						t.Fatalf("stale table (-want +got):\n%s", d)
					}
					if last != s.Totals {
						t.Fatalf("stale totals: %s", gocmp.Diff(last, s.Totals))
					}
					return
				}
				if s.State != spanring.AllocsPublished {
					t.Fatalf("state %v", s.State)
				}
				frozen, last = fromRing(as), s.Totals
				if uint64(len(as))+s.Totals.UnlistedCount != want.LiveCount {
					t.Fatalf("%d listed and %d not, of %d", len(as), s.Totals.UnlistedCount, want.LiveCount)
				}
				sum := uint64(0)
				for _, a := range frozen {
					ma, ok := m.live[a.addr]
					ma.site = 0
					if !ok || ma != a {
						t.Fatalf("on the table: %+v, live: %+v", a, ma)
					}
					sum += uint64(a.bytes)
				}
				if sum+s.Totals.UnlistedBytes != want.LiveBytes {
					t.Fatalf("%d bytes listed and %d not, of %d", sum, s.Totals.UnlistedBytes, want.LiveBytes)
				}
				rt := s.Totals
				rt.UnlistedBytes, rt.UnlistedCount, rt.AllocsUnlisted = 0, 0, 0
				if d := gocmp.Diff(want, rt); d != "" {
					t.Fatalf("the ring's totals (-want +got):\n%s", d)
				}
				if rt.Allocs+rt.FreesFailed != rt.Frees+rt.AllocsReplaced+rt.LiveCount {
					t.Fatalf("does not balance: %+v", rt)
				}
			},
		})
	})
}

// replace drops what is live at an address that comes again.
func (m *model) replace(addr uint64) {
	if a, ok := m.live[addr]; ok && a.kind != arena {
		m.replaced++
	}
	delete(m.live, addr)
}

func (m *model) sorted() []modelAlloc {
	out := make([]modelAlloc, 0, len(m.live))
	for _, a := range m.live {
		a.site = 0
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b modelAlloc) int { return cmp.Compare(a.index, b.index) })
	return out
}

func (m *model) checkSites(t *rapid.T, got Memory) {
	t.Helper()
	bySite := map[int]SiteTotal{}
	for _, a := range m.live {
		if a.kind != arena {
			s := bySite[a.site]
			s.Bytes += a.bytes
			s.Count++
			bySite[a.site] = s
		}
	}
	var want, have []SiteTotal
	for _, s := range bySite {
		want = append(want, s)
	}
	for _, s := range got.Sites {
		have = append(have, SiteTotal{Bytes: s.Bytes, Count: s.Count})
	}
	sortSites(want)
	sortSites(have)
	if d := gocmp.Diff(want, have); d != "" {
		t.Fatalf("sites (-want +got):\n%s", d)
	}
}

func fromAllocations(as []Allocation) []modelAlloc {
	out := make([]modelAlloc, 0, len(as))
	for _, a := range as {
		out = append(out, modelAlloc{addr: a.Addr, bytes: a.Bytes, guard: a.GuardBytes, index: a.Index, kind: a.Kind})
	}
	return out
}

// fromRing sorts by creation.
func fromRing(as []spanring.Alloc) []modelAlloc {
	out := make([]modelAlloc, 0, len(as))
	for _, a := range as {
		out = append(out, modelAlloc{addr: a.Addr, bytes: int64(a.Bytes), guard: int64(a.GuardBytes), index: a.Index, kind: a.Kind})
	}
	slices.SortFunc(out, func(a, b modelAlloc) int { return cmp.Compare(a.index, b.index) })
	return out
}
