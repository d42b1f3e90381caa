package collector

import (
	"encoding/binary"
	"testing"

	"github.com/lanetrace/lanetrace/spanring"
)

// FuzzEntries feeds words that nobody checked: nothing panics, what is kept stays
// within its bounds, and the account balances.
func FuzzEntries(f *testing.F) {
	add := func(es ...wordser) {
		var b []byte
		for _, e := range es {
			for _, w := range e.Words() {
				b = binary.LittleEndian.AppendUint64(b, w)
			}
		}
		f.Add(b)
	}
	add(armedStep()...)
	add(begin(1, 5), launchDiff(1, 1, 3, 2, 1), end(1, 5, 9, 0), launchDiff(1, 1, 0, 0, 1))
	add(begin(1, 5), end(1, 5, 9, 1<<31), lane(1, 1, 1, 6, 2), lane(1, 1, 1, 6, 2))
	add(end(1<<63, 0, 0, 0), begin(1, 5), lane(1<<63+4096, 1, 1, 6, 2))
	add(begin(1, 5), link(1, 1), link(1, 1), link(1, 2), requestEnd(1, 4, 9), requestEnd(1, 4, 9), linkedEnd(1, 5, 9, 0, 1<<31), requestEnd(2, 9, 9))
	f.Fuzz(func(t *testing.T, b []byte) {
		src := newMemSource("a", "b")
		for len(b) >= 56 {
			var w spanring.Words
			for i := range w {
				w[i] = binary.LittleEndian.Uint64(b[8*i:])
			}
			src.queue = append(src.queue, w)
			b = b[56:]
		}
		src.done = true
		most := 0
		p, err := NewProcessor(src, ProcessorOptions{
			MaxOpenSteps: 4, MaxSpansPerStep: 8, MaxOpenSpans: 16, MaxOpenRequests: 3,
			Exporter: exporterFunc(func(s *Step, _ ExportReason) {
				most = max(most, len(s.Spans))
				for i := range s.Spans {
					if j := s.ParentOf(i); j >= i {
						t.Errorf("span %d lies in span %d", i, j)
					}
				}
				if a, b := s.Bounds(); b < a {
					t.Errorf("step from %d to %d", a, b)
				}
				s.Engine.Ledger().Export(s.Units())
			}),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Drain(); err != nil {
			t.Fatal(err)
		}
		if most > 8 {
			t.Errorf("a step of %d spans", most)
		}
		c := p.Engine().Ledger().Counts()
		if c.Pending != 0 {
			t.Errorf("%d pending: %+v", c.Pending, c)
		}
		if a := p.Engine().Account(); len(a.Unbalanced()) > 0 {
			t.Errorf("unbalanced %v", a.Unbalanced())
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
