package recording

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

// counter is an io.Writer that only counts.
type counter struct{ n int64 }

func (c *counter) Write(b []byte) (int, error) { c.n += int64(len(b)); return len(b), nil }

func BenchmarkWrite(b *testing.B) {
	e := synth.New(synth.Options{Duration: 5 * time.Second})
	p, err := play(b, e, 256, nil)
	if err != nil {
		b.Fatal(err)
	}
	var out counter
	w, err := NewWriter(&out, Options{})
	if err != nil {
		b.Fatal(err)
	}
	r, err := w.Begin(e)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		at := n % len(p.Entries)
		chunk := p.Entries[at:min(at+256, len(p.Entries))]
		if err := r.Append(chunk); err != nil {
			b.Fatal(err)
		}
		n += len(chunk)
	}
	b.StopTimer()
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/entry")
	b.ReportMetric(float64(out.n)/float64(n), "B/entry")
}

func BenchmarkRead(b *testing.B) {
	file, want := recordBytes(b, Options{}, synth.New(synth.Options{Duration: 5 * time.Second}))
	f, err := NewReader(bytes.NewReader(file), int64(len(file)), "x.ltrec")
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]spanring.Entry, 256)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		s, err := f.Source(0)
		if err != nil {
			b.Fatal(err)
		}
		for {
			k, done, err := s.Poll(buf)
			if n += k; done || err != nil {
				break
			}
		}
		s.Close()
	}
	if n%len(want[0].Entries) != 0 {
		b.Fatalf("%d entries read, %d a pass", n, len(want[0].Entries))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/entry")
}

var _ io.Writer = (*counter)(nil)
