package ledger

import (
	"testing"

	"pgregory.net/rapid"
)

// TestAddrMapModel compares with Go's map, with keys that meet often.
func TestAddrMapModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m addrMap
		want := map[uint64]uint32{}
		key := rapid.OneOf(rapid.Uint64Range(1, 40), rapid.Uint64Min(1))
		spread := rapid.Uint64Range(1, 1<<40).Draw(t, "spread") | 1
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				k, v := key.Draw(t, "key")*spread, rapid.Uint32().Draw(t, "value")
				if k == 0 {
					k = 1
				}
				m.put(k, v)
				want[k] = v
			},
			"delete": func(t *rapid.T) {
				k := key.Draw(t, "key") * spread
				if at, ok := m.find(k); ok {
					m.deleteAt(at)
				}
				delete(want, k)
			},
			"": func(t *rapid.T) {
				if m.used != len(want) {
					t.Fatalf("%d used, want %d", m.used, len(want))
				}
				for k, v := range want {
					if got, ok := m.get(k); !ok || got != v {
						t.Fatalf("%#x: %d, %v, want %d", k, got, ok, v)
					}
				}
				full := 0
				for _, c := range m.cells {
					if c.key != 0 {
						full++
						if _, ok := want[c.key]; !ok {
							t.Fatalf("%#x is left behind", c.key)
						}
					}
				}
				if full != len(want) {
					t.Fatalf("%d cells in use, want %d", full, len(want))
				}
				if _, ok := m.get(0); ok {
					t.Fatal("0 is a key")
				}
			},
		})
	})
}

// TestAddrMapStays: a map whose size stays the same keeps its memory, whatever
// keys come and go.
func TestAddrMapStays(t *testing.T) {
	var m addrMap
	for i := range uint64(1000) {
		m.put(i+1, 1)
	}
	next := uint64(1000)
	if n := testing.AllocsPerRun(100, func() {
		for range 1000 {
			at, _ := m.find(next - 999)
			m.deleteAt(at)
			next++
			m.put(next, 1)
		}
	}); n != 0 {
		t.Errorf("allocates %v times", n)
	}
	if len(m.cells) != 2048 || m.used != 1000 {
		t.Errorf("%d cells, %d used", len(m.cells), m.used)
	}
}
