package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/backend/sim"
)

// The CUDA source is compiled by gcc, run on the host thread by thread, and
// compared with the Go functions that stand for it on the sim: the same arena, the
// same launch, the same result.

// buildHostCUDA compiles kernels/decode.cu with its host harness.
func buildHostCUDA(t *testing.T) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("the CUDA source was not compared with the sim's kernels, there is no gcc")
	}
	bin := filepath.Join(t.TempDir(), "hostcuda")
	out, err := exec.Command(gcc, "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-o", bin,
		filepath.Join("testdata", "hostcuda", "hostcuda.c"), "-lm").CombinedOutput()
	if err != nil {
		t.Fatalf("compile: %v\n%s", err, out)
	}
	return bin
}

// bench is a launch of one kernel on buffers of words. Between the buffers lie
// gaps of NaNs, which show when they are read or written.
type bench struct {
	name        string
	grid, block backend.Dim3
	shared      int
	args        []any // *buffer, nil for a null pointer, int, float32 or uint32

	buffers []*buffer
}

type buffer struct {
	words []uint32
	float bool // compared within a tolerance
}

func (b *bench) floats(v ...float32) *buffer {
	buf := &buffer{float: true}
	for _, f := range v {
		buf.words = append(buf.words, math.Float32bits(f))
	}
	b.buffers = append(b.buffers, buf)
	return buf
}

func (b *bench) ints(v ...int32) *buffer {
	buf := &buffer{}
	for _, i := range v {
		buf.words = append(buf.words, uint32(i))
	}
	b.buffers = append(b.buffers, buf)
	return buf
}

const gapWords = 64

// onHost runs the launch in the harness, a block's threads forward or backward,
// and returns the buffers' words.
func (b *bench) onHost(t *testing.T, bin, order string) [][]uint32 {
	t.Helper()
	const gap = 0x7fc0dead
	var arena []uint32
	at := map[*buffer]int{}
	pad := func() {
		for range gapWords {
			arena = append(arena, gap)
		}
	}
	pad()
	for _, buf := range b.buffers {
		at[buf] = len(arena)
		arena = append(arena, buf.words...)
		for len(arena)%4 != 0 {
			arena = append(arena, gap)
		}
		pad()
	}
	args := []string{b.name}
	for _, d := range []backend.Dim3{b.grid, b.block} {
		args = append(args, fmt.Sprint(d[0]), fmt.Sprint(d[1]), fmt.Sprint(d[2]))
	}
	args = append(args, fmt.Sprint(b.shared), order)
	for _, a := range b.args {
		switch v := a.(type) {
		case *buffer:
			args = append(args, fmt.Sprintf("p:%d", 4*at[v]))
		case nil:
			args = append(args, "n")
		case int:
			args = append(args, fmt.Sprintf("i:%d", v))
		case uint32:
			args = append(args, fmt.Sprintf("i:%d", v))
		case float32:
			args = append(args, fmt.Sprintf("f:%d", math.Float32bits(v)))
		default:
			t.Fatalf("argument %T", a)
		}
	}
	in := make([]byte, 0, 4*len(arena))
	for _, w := range arena {
		in = binary.LittleEndian.AppendUint32(in, w)
	}
	cmd := exec.Command(bin, args...)
	cmd.Stdin = bytes.NewReader(in)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil || out.Len() != len(in) {
		t.Fatalf("%v: %v, %d bytes of %d: %s", args, err, out.Len(), len(in), &errs)
	}
	back := make([]uint32, len(arena))
	for i := range back {
		back[i] = binary.LittleEndian.Uint32(out.Bytes()[4*i:])
	}
	var got [][]uint32
	for _, buf := range b.buffers {
		got = append(got, back[at[buf]:][:len(buf.words)])
	}
	for i, w := range arena {
		if w == gap && back[i] != gap {
			t.Errorf("word %d between the buffers was written", i)
		}
	}
	return got
}

// onSim runs the launch on the sim, where a step outside a buffer is a fault.
func (b *bench) onSim(t *testing.T, gpu *sim.GPU) [][]uint32 {
	t.Helper()
	ptr := map[*buffer]backend.DevicePtr{}
	for _, buf := range b.buffers {
		p, err := gpu.Alloc(4 * len(buf.words))
		if err != nil {
			t.Fatal(err)
		}
		defer gpu.Free(p)
		raw := make([]byte, 0, 4*len(buf.words))
		for _, w := range buf.words {
			raw = binary.LittleEndian.AppendUint32(raw, w)
		}
		if err := gpu.CopyHtoD(p, raw); err != nil {
			t.Fatal(err)
		}
		ptr[buf] = p
	}
	l := backend.Launch{Grid: b.grid, Block: b.block, SharedBytes: uint32(b.shared), Stream: gpu.DefaultStream()}
	for _, a := range b.args {
		switch v := a.(type) {
		case *buffer:
			l.Args = append(l.Args, backend.Ptr(ptr[v]))
		case nil:
			l.Args = append(l.Args, backend.Ptr(0))
		case int:
			l.Args = append(l.Args, i32(v))
		case uint32:
			l.Args = append(l.Args, backend.U32(v))
		case float32:
			l.Args = append(l.Args, backend.F32(v))
		}
	}
	k, err := gpu.Kernel(moduleName, b.name)
	if err != nil {
		t.Fatal(err)
	}
	if err := gpu.Launch(k, &l); err != nil {
		t.Fatal(err)
	}
	if err := gpu.Synchronize(l.Stream); err != nil {
		t.Fatal(err)
	}
	var got [][]uint32
	for _, buf := range b.buffers {
		raw := make([]byte, 4*len(buf.words))
		if err := gpu.CopyDtoH(raw, ptr[buf]); err != nil {
			t.Fatal(err)
		}
		words := make([]uint32, len(buf.words))
		for i := range words {
			words[i] = binary.LittleEndian.Uint32(raw[4*i:])
		}
		got = append(got, words)
	}
	return got
}

func (b *bench) compare(t *testing.T, host, onSim [][]uint32) {
	t.Helper()
	changed := false
	for i, buf := range b.buffers {
		for j := range buf.words {
			h, s := host[i][j], onSim[i][j]
			changed = changed || h != buf.words[j]
			if h == s {
				continue
			}
			x, y := float64(math.Float32frombits(h)), float64(math.Float32frombits(s))
			if !buf.float || !(math.Abs(x-y) <= 1e-5*max(1, math.Abs(x))) {
				t.Fatalf("buffer %d, word %d: CUDA source %#x (%v), sim %#x (%v)", i, j, h, x, s, y)
			}
		}
	}
	if !changed {
		t.Error("the kernel changed nothing")
	}
}

func TestCUDASourceAgreesWithSim(t *testing.T) {
	bin := buildHostCUDA(t)
	gpu, err := sim.Open(sim.Config{Modules: map[string]sim.Module{moduleName: simKernels()}})
	if err != nil {
		t.Fatal(err)
	}
	defer gpu.Close()
	if err := gpu.LoadModule(moduleName, nil); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(rng.NormFloat64())
		}
		return v
	}
	below := func(n, top int) []int32 {
		v := make([]int32, n)
		for i := range v {
			v[i] = int32(rng.IntN(top))
		}
		return v
	}
	x := func(n int) backend.Dim3 { return backend.Dim3{uint32(n), 1, 1} }
	xy := func(n, m int) backend.Dim3 { return backend.Dim3{uint32(n), uint32(m), 1} }

	var all []*bench
	add := func(name string, grid, block backend.Dim3, make func(b *bench)) *bench {
		b := &bench{name: name, grid: grid, block: block}
		make(b)
		all = append(all, b)
		return b
	}
	for _, n := range []int{1, 1000} {
		add("fill_uniform", x(3), x(64), func(b *bench) {
			b.args = []any{b.floats(random(n)...), n, uint32(0xfedcba98), float32(1.0 / (1 << 23)), float32(0.5)}
		})
	}
	add("admit_slots", x(2), x(32), func(b *bench) {
		const ctx, slots = 40, 3
		a := below(2*(4+ctx), 1000)
		copy(a, []int32{2, 7, 1, -5})
		copy(a[4+ctx:], []int32{0, 40, 8, 99})
		b.args = []any{b.ints(a...), b.ints(below(slots*ctx, 9)...), b.ints(0, 0, 0), b.ints(0, 0, 0), ctx}
	})
	add("embed_rows", x(3), x(64), func(b *bench) {
		const hidden, ctx, vocab = 96, 8, 20
		b.args = []any{b.floats(random(3 * hidden)...), b.floats(random(vocab * hidden)...), b.ints(below(2*ctx, vocab)...),
			b.ints(0, 1, 1), b.ints(7, 0, 3), hidden, ctx}
	})
	for _, hidden := range []int{64, 1024} {
		add("rms_norm", x(3), x(256), func(b *bench) {
			b.args = []any{b.floats(random(3 * hidden)...), b.floats(random(3 * hidden)...), b.floats(random(hidden)...), nil, hidden, float32(normEps)}
		})
		add("rms_norm", x(2), x(256), func(b *bench) {
			b.args = []any{b.floats(random(2 * hidden)...), b.floats(random(5 * hidden)...), b.floats(random(hidden)...), b.ints(4, 1), hidden, float32(normEps)}
		})
	}
	for _, d := range [][3]int{{1, 32, 16}, {5, 64, 48}, {16, 96, 64}, {17, 32, 128}, {33, 64, 160}, {8, 32, 2816}} {
		for _, accumulate := range []int{0, 1} {
			m, n, k := d[0], d[1], d[2]
			add("matmul", xy(n/32, (m+15)/16), x(256), func(b *bench) {
				w := random(k * n)
				for i := range w {
					w[i] /= float32(math.Sqrt(float64(k))) // as a model's are
				}
				b.args = []any{b.floats(random(m * n)...), b.floats(random(m * k)...), b.floats(w...), m, n, k, accumulate}
			})
		}
	}
	for _, d := range [][2]int{{4, 16}, {16, 64}, {1, 128}, {2, 2}} {
		heads, headDim := d[0], d[1]
		const ctx, slots, rows = 24, 3, 4
		slot, pos := []int32{2, 0, 0, 1}, []int32{23, 0, 9, 1}
		cache := slots * heads * headDim * ctx
		add("rope_store", x(rows), x(64), func(b *bench) {
			b.args = []any{b.floats(random(rows * 3 * heads * headDim)...), b.floats(random(cache)...), b.floats(random(cache)...),
				b.floats(rotations(ctx, headDim)...), b.ints(slot...), b.ints(pos...), heads, headDim, ctx}
		})
		add("attention", xy(heads, rows), x(128), func(b *bench) {
			b.shared = 4 * ctx
			b.args = []any{b.floats(random(rows * heads * headDim)...), b.floats(random(rows * 3 * heads * headDim)...), b.floats(random(cache)...),
				b.floats(random(cache)...), b.ints(slot...), b.ints(pos...), heads, headDim, ctx, float32(0.3)}
		})
	}
	add("attention", xy(2, 1), x(128), func(b *bench) { // more positions than threads
		const ctx, headDim = 256, 64
		b.shared = 4 * ctx
		b.args = []any{b.floats(random(2 * headDim)...), b.floats(random(6 * headDim)...), b.floats(random(2 * ctx * headDim)...),
			b.floats(random(2 * ctx * headDim)...), b.ints(0), b.ints(250), 2, headDim, ctx, float32(0.125)}
	})
	add("attention", xy(1, 1), x(128), func(b *bench) { // scores that only a soft-max less its maximum survives
		const ctx, headDim = 64, 32
		b.shared = 4 * ctx
		b.args = []any{b.floats(random(headDim)...), b.floats(random(3 * headDim)...), b.floats(random(ctx * headDim)...),
			b.floats(random(ctx * headDim)...), b.ints(0), b.ints(63), 1, headDim, ctx, float32(40)}
	})
	for _, ffn := range []int{160, 2816} {
		add("swiglu", xy((ffn+255)/256, 3), x(256), func(b *bench) {
			b.args = []any{b.floats(random(3 * ffn)...), b.floats(random(3 * 2 * ffn)...), ffn}
		})
	}
	for _, vocab := range []int{32, 256, 1000} {
		add("sample", x(6), x(256), func(b *bench) {
			const ctx, slots = 12, 6
			logits := random(6 * vocab)
			for i := range vocab { // ties, and no number at all
				logits[i] = float32(i % 5)
				logits[5*vocab+i] = float32(math.NaN())
			}
			b.args = []any{b.ints(-1, -1, -1, -1, -1, -1), b.ints(below(slots*ctx, vocab)...), b.floats(logits...), b.ints(0, 2, 3, 4, 1, 6),
				b.ints(3, 1, 5, 0, 2, 4, 4), b.ints(5, 9, 11, 3, 0, 2, 1), b.ints(1, 8, 16, 3, 8, 99), b.ints(below(slots, 1<<30)...),
				vocab, ctx, float32(0.8)}
		})
	}
	covered := map[string]bool{}
	for i, b := range all {
		covered[b.name] = true
		t.Run(fmt.Sprintf("%s_%d", b.name, i), func(t *testing.T) {
			want := b.onSim(t, gpu)
			for _, order := range []string{"0", "1"} {
				b.compare(t, b.onHost(t, bin, order), want)
			}
		})
	}
	for name := range simKernels() {
		if !covered[name] {
			t.Errorf("kernel %s is not compared", name)
		}
	}
}
