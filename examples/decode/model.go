package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/examples/decode/buffers"
)

// moduleName is the name under which the kernels are loaded, from PTX on a GPU
// and from simKernels on the sim.
const moduleName = "decode"

// model is the transformer on a device: its weights, the KV cache, the tokens of
// each slot, and the launches of its two passes.
type model struct {
	gpu    backend.GPU
	shape  shape
	stream backend.Stream

	kernels map[string]backend.Kernel
	mem     buffers.Set // and the first allocation, look-up or launch that failed

	embedding, norm, logitsW backend.DevicePtr
	layers                   [][layerTensors]backend.DevicePtr
	turn                     backend.DevicePtr

	kCache, vCache             []backend.DevicePtr // of each layer
	history, slotTopK, slotKey backend.DevicePtr

	// Values of a pass. Both passes use the same: they run on one stream.
	x, xn, qkv, att, gateUp, act, logits backend.DevicePtr

	// What the steps sample: two sets, so that one can be read while the next step
	// writes the other. A set is [rows of prefill][slots].
	out [2]backend.DevicePtr

	admits       launch
	admitBytes   []byte
	admitDev     backend.DevicePtr
	prefill, dec *pass
}

// launch is one kernel launch of a pass, made ready once: a step only sets what
// hangs on its number of rows.
type launch struct {
	kernel backend.Kernel
	l      backend.Launch
	name   string
	axis   int  // of the grid along which the rows lie
	per    int  // rows of a block
	count  int  // which argument is the number of rows, -1 for none
	picked bool // its rows are the selected ones
}

// pass is one run through the model for some rows.
type pass struct {
	calls    []launch
	capacity int // rows at most
	rows     int // of them uploaded last
	selected int // and sampled from
	// meta is [slot of each row][position of each row][selected rows].
	meta  []byte
	dev   backend.DevicePtr
	outAt int // where the pass's tokens lie in a set of output
}

// i32 is an argument of the kernels' type int.
func i32(n int) backend.Arg { return backend.I32(int32(n)) }

// newModel loads the kernels and makes the model on its GPU's default stream. It
// blocks until the weights are there. On failure nothing stays allocated.
func newModel(gpu backend.GPU, s shape, seed uint32, image []byte) (*model, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if err := gpu.LoadModule(moduleName, image); err != nil {
		return nil, fmt.Errorf("load kernels: %w", err)
	}
	m := &model{gpu: gpu, mem: buffers.Set{GPU: gpu}, shape: s, stream: gpu.DefaultStream(), kernels: make(map[string]backend.Kernel)}
	m.build(seed)
	if m.mem.Failed == nil {
		m.mem.Failed = gpu.Synchronize(m.stream)
	}
	if m.mem.Failed != nil {
		return nil, fmt.Errorf("make model %s: %w", s.name, errors.Join(m.mem.Failed, m.close()))
	}
	return m, nil
}

// close waits for the model's work and frees what it allocated. It goes on after a
// failure and returns the first.
func (m *model) close() error {
	err := m.gpu.Synchronize(m.stream)
	if e := m.mem.Free(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("free model: %w", err)
	}
	return nil
}

func (m *model) kernel(name string) backend.Kernel {
	if k, ok := m.kernels[name]; ok || m.mem.Failed != nil {
		return k
	}
	k, err := m.gpu.Kernel(moduleName, name)
	if err != nil {
		m.mem.Failed = err
		return 0
	}
	m.kernels[name] = k
	return k
}

func (m *model) call(name string, grid backend.Dim3, block uint32, args ...backend.Arg) launch {
	return launch{
		name: name, kernel: m.kernel(name), axis: 0, per: 1, count: -1,
		l: backend.Launch{Grid: grid, Block: backend.Dim3{block, 1, 1}, Stream: m.stream, Args: args},
	}
}

func (m *model) build(seed uint32) {
	s := &m.shape
	weights := s.tensors(seed)
	at := 0
	next := func() backend.DevicePtr {
		t := &weights[at]
		at++
		return m.fill(t)
	}
	m.embedding, m.norm, m.logitsW = next(), next(), next()
	m.layers = make([][layerTensors]backend.DevicePtr, s.layers)
	cache := s.slots * s.ctx * s.hidden
	for l := range m.layers {
		for t := range m.layers[l] {
			m.layers[l][t] = next()
		}
		m.kCache = append(m.kCache, m.cleared(cache))
		m.vCache = append(m.vCache, m.cleared(cache))
	}
	m.turn = m.uploaded(rotations(s.ctx, s.headDim()))
	m.history = m.cleared(s.slots * s.ctx)
	m.slotTopK = m.cleared(s.slots)
	m.slotKey = m.cleared(s.slots)

	rows := max(s.rows, s.slots)
	picks := min(s.rows, s.slots) // a step ends at most one prompt a slot
	m.x, m.xn, m.att = m.mem.Words(rows*s.hidden), m.mem.Words(rows*s.hidden), m.mem.Words(rows*s.hidden)
	m.qkv = m.mem.Words(rows * 3 * s.hidden)
	m.gateUp, m.act = m.mem.Words(rows*2*s.ffn), m.mem.Words(rows*s.ffn)
	m.logits = m.mem.Words(max(picks, s.slots) * s.vocab)
	for i := range m.out {
		m.out[i] = m.cleared(s.rows + s.slots)
	}

	m.admitBytes = make([]byte, 4*s.slots*(4+s.ctx))
	m.admitDev = m.mem.Words(s.slots * (4 + s.ctx))
	m.admits = m.call("admit_slots", backend.Dim3{1, 1, 1}, 128,
		backend.Ptr(m.admitDev), backend.Ptr(m.history), backend.Ptr(m.slotTopK), backend.Ptr(m.slotKey), i32(s.ctx))
	m.prefill = m.newPass(s.rows, 0)
	m.dec = m.newPass(s.slots, s.rows)
}

// fill makes a tensor on the device.
func (m *model) fill(t *tensor) backend.DevicePtr {
	p := m.mem.Words(t.n)
	c := m.call("fill_uniform", backend.Dim3{uint32(min(1024, (t.n+255)/256)), 1, 1}, 256,
		backend.Ptr(p), i32(t.n), backend.U32(t.seed), backend.F32(t.step()), backend.F32(t.offset))
	if m.mem.Failed == nil {
		m.mem.Failed = m.gpu.Launch(c.kernel, &c.l)
	}
	return p
}

func (m *model) cleared(words int) backend.DevicePtr {
	p := m.mem.Words(words)
	if m.mem.Failed == nil {
		m.mem.Failed = m.gpu.MemsetAsync(p, 0, 4*words, m.stream)
	}
	return p
}

func (m *model) uploaded(values []float32) backend.DevicePtr {
	p := m.mem.Words(len(values))
	if m.mem.Failed == nil {
		b := make([]byte, 4*len(values))
		for i, v := range values {
			binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
		}
		m.mem.Failed = m.gpu.CopyHtoD(p, b)
	}
	return p
}

// rotations is cosine and sine of each position's angles, [ctx][half][2].
func rotations(ctx, headDim int) []float32 {
	half := headDim / 2
	out := make([]float32, 0, ctx*headDim)
	for pos := range ctx {
		for p := range half {
			sin, cos := math.Sincos(float64(pos) * math.Pow(10000, -float64(p)/float64(half)))
			out = append(out, float32(cos), float32(sin))
		}
	}
	return out
}

func (m *model) newPass(capacity, outAt int) *pass {
	s := &m.shape
	p := &pass{capacity: capacity, outAt: outAt, meta: make([]byte, 4*3*capacity), dev: m.mem.Words(3 * capacity)}
	word := func(n int) backend.Arg { return backend.Ptr(p.dev + backend.DevicePtr(4*n)) }
	slot, pos, pick := word(0), word(capacity), word(2*capacity)
	h, hd := s.hidden, s.headDim()
	one := backend.Dim3{1, 1, 1}
	rows := func(c launch, picked bool) { c.picked = picked; p.calls = append(p.calls, c) }
	norm := func(y, x, w backend.DevicePtr, pick backend.Arg, picked bool) {
		rows(m.call("rms_norm", one, 256, backend.Ptr(y), backend.Ptr(x), backend.Ptr(w), pick, i32(h), backend.F32(normEps)), picked)
	}
	product := func(c, a, w backend.DevicePtr, n, k, accumulate int, picked bool) {
		l := m.call("matmul", backend.Dim3{uint32(n / 32), 1, 1}, 256,
			backend.Ptr(c), backend.Ptr(a), backend.Ptr(w), i32(0), i32(n), i32(k), i32(accumulate))
		l.axis, l.per, l.count = 1, 16, 3
		rows(l, picked)
	}
	rows(m.call("embed_rows", one, 256, backend.Ptr(m.x), backend.Ptr(m.embedding), backend.Ptr(m.history), slot, pos, i32(h), i32(s.ctx)), false)
	for l := range m.layers {
		w := &m.layers[l]
		norm(m.xn, m.x, w[tNorm1], backend.Ptr(0), false)
		product(m.qkv, m.xn, w[tQKV], 3*h, h, 0, false)
		rows(m.call("rope_store", one, 256, backend.Ptr(m.qkv), backend.Ptr(m.kCache[l]), backend.Ptr(m.vCache[l]), backend.Ptr(m.turn),
			slot, pos, i32(s.heads), i32(hd), i32(s.ctx)), false)
		att := m.call("attention", backend.Dim3{uint32(s.heads), 1, 1}, 128, backend.Ptr(m.att), backend.Ptr(m.qkv), backend.Ptr(m.kCache[l]),
			backend.Ptr(m.vCache[l]), slot, pos, i32(s.heads), i32(hd), i32(s.ctx), backend.F32(float32(1/math.Sqrt(float64(hd)))))
		att.axis, att.l.SharedBytes = 1, uint32(4*s.ctx)
		rows(att, false)
		product(m.x, m.att, w[tOut], h, h, 1, false)
		norm(m.xn, m.x, w[tNorm2], backend.Ptr(0), false)
		product(m.gateUp, m.xn, w[tGateUp], 2*s.ffn, h, 0, false)
		act := m.call("swiglu", backend.Dim3{uint32(s.ffn+255) / 256, 1, 1}, 256, backend.Ptr(m.act), backend.Ptr(m.gateUp), i32(s.ffn))
		act.axis = 1
		rows(act, false)
		product(m.x, m.act, w[tDown], h, s.ffn, 1, false)
	}
	norm(m.xn, m.x, m.norm, pick, true)
	product(m.logits, m.xn, m.logitsW, s.vocab, h, 0, true)
	rows(m.call("sample", one, 256, backend.Ptr(0), backend.Ptr(m.history), backend.Ptr(m.logits), pick, slot, pos,
		backend.Ptr(m.slotTopK), backend.Ptr(m.slotKey), i32(s.vocab), i32(s.ctx), backend.F32(s.inverse)), true)
	return p
}

// admit enqueues the set-up of the slots of new sequences: their prompts go to
// the device.
func (m *model) admit(seqs []*sequence) error {
	width := 4 * (4 + m.shape.ctx)
	for i, q := range seqs {
		b := m.admitBytes[i*width : (i+1)*width]
		put := func(word int, v int32) { binary.LittleEndian.PutUint32(b[4*word:], uint32(v)) }
		put(0, int32(q.slot))
		put(1, int32(len(q.req.prompt)))
		put(2, int32(q.req.topK))
		put(3, q.req.seed)
		for j, token := range q.req.prompt {
			put(4+j, token)
		}
	}
	if err := m.gpu.CopyHtoDAsync(m.admitDev, m.admitBytes[:len(seqs)*width], m.stream); err != nil {
		return fmt.Errorf("upload %d prompts: %w", len(seqs), err)
	}
	m.admits.l.Grid[0] = uint32(len(seqs))
	return m.launch(&m.admits)
}

func (m *model) launch(c *launch) error {
	if err := m.gpu.Launch(c.kernel, &c.l); err != nil {
		return fmt.Errorf("launch %s: %w", c.name, err)
	}
	return nil
}

// upload enqueues the copy of a pass's rows to the device, given by slot and
// position; picks are the rows to sample from, nil for all. It does not allocate.
//
// It is a call of its own so that a step's copies come before its first lane, and
// lanes hold launches alone.
func (m *model) upload(p *pass, slot, pos, picks []int32, all bool) error {
	p.rows, p.selected = len(slot), len(picks)
	if all {
		p.selected = len(slot)
	}
	for i := range slot {
		binary.LittleEndian.PutUint32(p.meta[4*i:], uint32(slot[i]))
		binary.LittleEndian.PutUint32(p.meta[4*(p.capacity+i):], uint32(pos[i]))
	}
	for i := range p.selected {
		row := int32(i)
		if !all {
			row = picks[i]
		}
		binary.LittleEndian.PutUint32(p.meta[4*(2*p.capacity+i):], uint32(row))
	}
	if err := m.gpu.CopyHtoDAsync(p.dev, p.meta, m.stream); err != nil {
		return fmt.Errorf("upload %d rows: %w", len(slot), err)
	}
	return nil
}

// run enqueues a pass over the rows that were uploaded last. It returns how many
// launches it made. It does not allocate.
func (m *model) run(p *pass, parity int) (launches int, err error) {
	for i := range p.calls {
		c := &p.calls[i]
		n := p.rows
		if c.picked {
			if n = p.selected; n == 0 {
				continue
			}
		}
		c.l.Grid[c.axis] = uint32((n + c.per - 1) / c.per)
		if c.count >= 0 {
			c.l.Args[c.count] = i32(n)
		}
		if i == len(p.calls)-1 {
			c.l.Args[0] = backend.Ptr(m.out[parity] + backend.DevicePtr(4*p.outAt))
		}
		if err := m.launch(c); err != nil {
			return launches, err
		}
		launches++
	}
	return launches, nil
}
