package launchtrace

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"
)

func BenchmarkOff(b *testing.B) {
	r := New(Options{})
	args := make([]uint64, 8)
	b.ReportAllocs()
	for b.Loop() {
		if r.On() {
			r.Kernel(1, fnNorm, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0, args)
		}
	}
}

// BenchmarkRecord is one launch of eight arguments, in the steady state.
func BenchmarkRecord(b *testing.B) {
	for _, regions := range []int{1, 2} {
		b.Run(fmt.Sprintf("regions=%d", regions), func(b *testing.B) {
			r := New(Options{})
			for i := range uint64(50) {
				r.Name(fnNorm+i, fmt.Sprint("kernel", i))
			}
			var gs []*Region
			for i := range regions {
				gs = append(gs, r.Region(fmt.Sprint(i)))
			}
			var args [8]uint64
			const step = 1000 // launches of an execution
			i := uint64(0)
			begin := func() {
				for _, g := range gs {
					g.Begin(1)
				}
			}
			begin()
			b.ReportAllocs()
			for b.Loop() {
				args[2] = i
				r.Kernel(1, fnNorm+i%50, [3]uint32{132, 1, 1}, [3]uint32{256, 1, 1}, 1024, args[:])
				if i++; i%step == 0 {
					// Begun afresh without a comparison: that is BenchmarkEnd's.
					begin()
				}
			}
		})
	}
}

// BenchmarkRecordParallel is the same from all processors at once.
func BenchmarkRecordParallel(b *testing.B) {
	r := New(Options{})
	r.Name(fnNorm, "norm")
	g := r.Region("r")
	g.Begin()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		var args [8]uint64
		for i := 0; pb.Next(); i++ {
			r.Kernel(1, fnNorm, [3]uint32{132, 1, 1}, [3]uint32{256, 1, 1}, 1024, args[:])
			if i%5000 == 4999 {
				g.Begin()
			}
		}
	})
}

// BenchmarkEnd is the comparison of an execution of 1,000 launches that does not
// differ.
func BenchmarkEnd(b *testing.B) {
	for _, resolve := range []bool{false, true} {
		b.Run(fmt.Sprintf("resolve=%v", resolve), func(b *testing.B) {
			o := Options{}
			if resolve {
				o.Resolve = func(a uint64) (Range, bool) { return Range{a &^ 0xffff, 0x10000, "kv.go:12"}, a > 1<<32 }
			}
			r := New(o)
			r.Name(fnNorm, "norm")
			g := r.Region("r")
			execute := func() {
				g.Begin()
				for i := range uint64(1000) {
					args := [8]uint64{0x7f0000000000 + i<<10, i, 3, 4, 5, 6, 0x7f0000000000, 8}
					r.Kernel(1, fnNorm, [3]uint32{132, 1, 1}, [3]uint32{256, 1, 1}, 1024, args[:])
				}
			}
			execute()
			g.End(0, 0)
			b.ReportAllocs()
			var spent time.Duration
			n := 0
			for b.Loop() {
				execute()
				start := time.Now()
				if p := g.End(0, 10); p.Differing() != 0 {
					b.Fatal(p.Text())
				}
				spent += time.Since(start)
				n++
			}
			b.ReportMetric(float64(spent.Nanoseconds())/float64(n)/1000, "ns/op-of-End")
		})
	}
}

// large is 100,000 operations of a model of many layers, and the same with a
// hundred differences of every sort.
func large(tb testing.TB) (a, b *Trace) {
	ops := layers(20_000)
	changed := slices.Clone(ops)
	for i := range 100 {
		at := 500 + i*990
		switch i % 4 {
		case 0:
			changed = slices.Insert(changed, at, kernel("gemm", 0xabc, 5))
		case 1:
			changed = slices.Delete(changed, at, at+1)
		case 2:
			changed[at].Args = append(slices.Clone(changed[at].Args), 7)
		default:
			changed = slices.Insert(changed, at, kernel("new", uint64(i)))
		}
	}
	return trace(tb, ops...), trace(tb, changed...)
}

// BenchmarkDiff100k: a hundred differences in 100,000 operations, well under a
// second.
func BenchmarkDiff100k(b *testing.B) {
	x, y := large(b)
	b.ReportAllocs()
	for b.Loop() {
		p := Diff(x, y, DiffOptions{}).Report(100)
		if p.Differing() != 100 {
			b.Fatal(p.Text())
		}
	}
}

// BenchmarkDiffWorst: sequences that have little in common, of few functions, so
// that every path is followed to the limit.
func BenchmarkDiffWorst(b *testing.B) {
	mk := func(k uint64) *Trace {
		return trace(b, repeat(100_000, func(i int) Op {
			k = k*6364136223846793005 + 1442695040888963407
			return kernel(fmt.Sprint("k", k>>61), k>>40)
		})...)
	}
	x, y := mk(1), mk(2)
	for b.Loop() {
		if s := Diff(x, y, DiffOptions{}); !s.Limited() {
			b.Fatal("not limited")
		}
	}
}

func BenchmarkFile100k(b *testing.B) {
	x, _ := large(b)
	file := encoded(b, x)
	b.Run("write", func(b *testing.B) {
		b.ReportMetric(float64(len(file)), "bytes")
		for b.Loop() {
			if err := Encode(&bytes.Buffer{}, x, ""); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			if _, err := Decode(bytes.NewReader(file), ""); err != nil {
				b.Fatal(err)
			}
		}
	})
}
