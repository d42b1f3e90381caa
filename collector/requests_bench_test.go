package collector

import (
	"testing"

	"github.com/lanetrace/lanetrace/spanring"
)

// BenchmarkLinks is a step with as many links as are kept and three lanes, whose
// requests go on from step to step, per entry.
func BenchmarkLinks(b *testing.B) {
	src := newMemSource("decode")
	p, err := NewProcessor(src, ProcessorOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	var step []spanring.Entry
	add := func(w wordser) { step = append(step, spanring.Entry{Words: w.Words()}) }
	add(begin(1, 1000))
	for i := range MaxLinks {
		add(link(1, i))
	}
	for o := range uint32(3) {
		add(lane(1, o+1, 1, 2000+int64(o)*100, 100))
	}
	add(linkedEnd(1, 1000, 5000, 3, MaxLinks))
	b.ReportAllocs()
	n := 0
	for n < b.N {
		p.assemble(step)
		p.handOver()
		n += len(step)
		for i := range step {
			step[i].Words[1]++ // the next step's number
		}
		for i := range 3 { // and its lanes
			step[1+MaxLinks+i].Words[2] += 10_000
		}
	}
	if c := p.Engine().Requests(); c.Open != MaxLinks || c.Evicted != 0 {
		b.Errorf("%+v", c)
	}
}
