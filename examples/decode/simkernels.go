package main

import (
	"math"
	"time"

	"github.com/lanetrace/lanetrace/backend/sim"
)

// simKernels are the kernels of kernels/decode.cu as Go functions: the same
// names, arguments and grids, each over the whole grid at once. They compute in
// float32, as the GPU does, though not in the same order.
func simKernels() sim.Module {
	return sim.Module{
		"fill_uniform": {Run: simFillUniform, Params: params(8, 4, 4, 4, 4), Cost: func(c *sim.Call) time.Duration { return work(int(c.U32(1))) }},
		"admit_slots":  {Run: simAdmitSlots, Params: params(8, 8, 8, 8, 4), Cost: rowCost(4)},
		"embed_rows":   {Run: simEmbedRows, Params: params(8, 8, 8, 8, 8, 4, 4), Cost: rowCost(5)},
		"rms_norm":     {Run: simRMSNorm, Params: params(8, 8, 8, 8, 4, 4), Cost: rowCost(4)},
		"matmul": {Run: simMatmul, Params: params(8, 8, 8, 4, 4, 4, 4), Cost: func(c *sim.Call) time.Duration {
			return work(int(c.I32(3)) * int(c.I32(4)) * int(c.I32(5)))
		}},
		"rope_store": {Run: simRopeStore, Params: params(8, 8, 8, 8, 8, 8, 4, 4, 4), Cost: func(c *sim.Call) time.Duration {
			return work(4 * int(c.Grid[0]) * int(c.I32(6)) * int(c.I32(7)))
		}},
		// Half the context stands for the rows' positions, which only the device knows.
		"attention": {Run: simAttention, Params: params(8, 8, 8, 8, 8, 8, 4, 4, 4, 4), Cost: func(c *sim.Call) time.Duration {
			return work(int(c.Grid[1]) * int(c.I32(6)) * int(c.I32(7)) * int(c.I32(8)))
		}},
		"swiglu": {Run: simSwiGLU, Params: params(8, 8, 4), Cost: func(c *sim.Call) time.Duration { return work(16 * int(c.Grid[1]) * int(c.I32(2))) }},
		"sample": {Run: simSample, Params: params(8, 8, 8, 8, 8, 8, 8, 8, 4, 4, 4), Cost: rowCost(8)},
	}
}

func params(sizes ...uint8) []uint8 { return sizes }

// The cost model is a small slow GPU: a fixed part as on a real one, and a rate
// that two cores keep up with, so that what the sim says took a time did.
const (
	fixedCost   = 3 * time.Microsecond
	opsPerMicro = 1500
)

func work(ops int) time.Duration {
	return fixedCost + time.Duration(ops)*time.Microsecond/opsPerMicro
}

// rowCost is the cost of a kernel with a block a row and a few operations for each
// element of a row, whose width is argument i.
func rowCost(i int) func(*sim.Call) time.Duration {
	return func(c *sim.Call) time.Duration { return work(4 * int(c.Grid[0]) * int(c.I32(i))) }
}

func simHash(x uint32) uint32 {
	x ^= x >> 16
	x *= 0x85ebca6b
	x ^= x >> 13
	x *= 0xc2b2ae35
	x ^= x >> 16
	return x
}

// extent is how many elements an array must have in which rows of width each are
// indexed by at.
func extent(at []int32, width int) int {
	top := -1
	for _, i := range at {
		top = max(top, int(i))
	}
	return (top + 1) * width
}

func simFillUniform(c *sim.Call) {
	n, seed, step, offset := int(c.U32(1)), c.U32(2), c.F32(3), c.F32(4)
	key := simHash(seed)
	for i, dst := 0, c.F32s(0, n); i < len(dst); i++ {
		s := int32(simHash(key^uint32(i))>>8) - 8388608
		dst[i] = offset + step*float32(s)
	}
}

func simAdmitSlots(c *sim.Call) {
	n, ctx := int(c.Grid[0]), int(c.I32(4))
	admitted := c.I32s(0, n*(4+ctx))
	for len(admitted) > 0 {
		a := admitted[:4+ctx]
		admitted = admitted[4+ctx:]
		slot, length := int(a[0]), int(a[1])
		c.I32s(2, slot+1)[slot] = a[2]
		c.I32s(3, slot+1)[slot] = a[3]
		history := c.I32s(1, (slot+1)*ctx)[slot*ctx:]
		for i := range history {
			history[i] = 0
			if i < length {
				history[i] = a[4+i]
			}
		}
	}
}

func simEmbedRows(c *sim.Call) {
	rows, hidden, ctx := int(c.Grid[0]), int(c.I32(5)), int(c.I32(6))
	x, slot, pos := c.F32s(0, rows*hidden), c.I32s(3, rows), c.I32s(4, rows)
	history := c.I32s(2, extent(slot, ctx))
	for r := range rows {
		token := int(history[int(slot[r])*ctx+int(pos[r])])
		copy(x[r*hidden:][:hidden], c.F32s(1, (token+1)*hidden)[token*hidden:])
	}
}

func simRMSNorm(c *sim.Call) {
	rows, hidden, eps := int(c.Grid[0]), int(c.I32(4)), c.F32(5)
	y, w := c.F32s(0, rows*hidden), c.F32s(2, hidden)
	x := c.F32s(1, rows*hidden)
	var pick []int32
	if c.Ptr(3) != 0 {
		pick = c.I32s(3, rows)
		x = c.F32s(1, extent(pick, hidden))
	}
	for r := range rows {
		from := r
		if pick != nil {
			from = int(pick[r])
		}
		in, out := x[from*hidden:][:hidden], y[r*hidden:][:hidden]
		sum := float32(0)
		for _, v := range in {
			sum += v * v
		}
		scale := 1 / float32(math.Sqrt(float64(sum/float32(hidden)+eps)))
		for i, v := range in {
			out[i] = v * scale * w[i]
		}
	}
}

func simMatmul(c *sim.Call) {
	m, n, k, accumulate := int(c.I32(3)), int(c.I32(4)), int(c.I32(5)), c.I32(6) != 0
	out, a, w := c.F32s(0, m*n), c.F32s(1, m*k), c.F32s(2, k*n)
	if !accumulate {
		clear(out)
	}
	for r := range m {
		row := out[r*n:][:n]
		in := a[r*k:][:k]
		// Four rows of w at once: the sums are loaded and stored a quarter as often.
		for kk := 0; kk+4 <= k; kk += 4 {
			a0, a1, a2, a3 := in[kk], in[kk+1], in[kk+2], in[kk+3]
			w0, w1, w2, w3 := w[kk*n:][:n], w[(kk+1)*n:][:n], w[(kk+2)*n:][:n], w[(kk+3)*n:][:n]
			for j := range row {
				row[j] += a0*w0[j] + a1*w1[j] + a2*w2[j] + a3*w3[j]
			}
		}
	}
}

func simRopeStore(c *sim.Call) {
	rows, heads, headDim, ctx := int(c.Grid[0]), int(c.I32(6)), int(c.I32(7)), int(c.I32(8))
	half, hidden := headDim/2, heads*headDim
	qkv, slot, pos := c.F32s(0, rows*3*hidden), c.I32s(4, rows), c.I32s(5, rows)
	size := extent(slot, hidden*ctx)
	kCache, vCache, turn := c.F32s(1, size), c.F32s(2, size), c.F32s(3, extent(pos, headDim))
	for r := range rows {
		q := qkv[r*3*hidden:][:hidden]
		k := qkv[r*3*hidden+hidden:][:hidden]
		v := qkv[r*3*hidden+2*hidden:][:hidden]
		for head := range heads {
			at := ((int(slot[r])*heads+head)*ctx + int(pos[r])) * headDim
			for p := range half {
				co, si := turn[(int(pos[r])*half+p)*2], turn[(int(pos[r])*half+p)*2+1]
				lo, hi := head*headDim+p, head*headDim+p+half
				q[lo], q[hi] = q[lo]*co-q[hi]*si, q[hi]*co+q[lo]*si
				kCache[at+p], kCache[at+p+half] = k[lo]*co-k[hi]*si, k[hi]*co+k[lo]*si
				vCache[at+p], vCache[at+p+half] = v[lo], v[hi]
			}
		}
	}
}

func simAttention(c *sim.Call) {
	rows, heads, headDim, ctx, scale := int(c.Grid[1]), int(c.I32(6)), int(c.I32(7)), int(c.I32(8)), c.F32(9)
	hidden := heads * headDim
	out, qkv := c.F32s(0, rows*hidden), c.F32s(1, rows*3*hidden)
	slot, pos := c.I32s(4, rows), c.I32s(5, rows)
	size := extent(slot, hidden*ctx)
	kCache, vCache := c.F32s(2, size), c.F32s(3, size)
	score := make([]float32, c.SharedBytes/4)
	for r := range rows {
		n := int(pos[r]) + 1
		for head := range heads {
			base := (int(slot[r])*heads + head) * ctx * headDim
			q := qkv[r*3*hidden+head*headDim:][:headDim]
			best := float32(math.Inf(-1))
			for j := range n {
				key := kCache[base+j*headDim:][:headDim]
				dot := float32(0)
				for i, v := range q {
					dot += v * key[i]
				}
				score[j] = dot * scale
				best = max(best, score[j])
			}
			total := float32(0)
			for j := range n {
				score[j] = float32(math.Exp(float64(score[j] - best)))
				total += score[j]
			}
			o := out[r*hidden+head*headDim:][:headDim]
			clear(o)
			for j := range n {
				for i, v := range vCache[base+j*headDim:][:headDim] {
					o[i] += score[j] * v
				}
			}
			for i := range o {
				o[i] /= total
			}
		}
	}
}

func simSwiGLU(c *sim.Call) {
	rows, ffn := int(c.Grid[1]), int(c.I32(2))
	y, in := c.F32s(0, rows*ffn), c.F32s(1, rows*2*ffn)
	for r := range rows {
		gate, up := in[r*2*ffn:][:ffn], in[r*2*ffn+ffn:][:ffn]
		for i, g := range gate {
			y[r*ffn+i] = g / (1 + float32(math.Exp(float64(-g)))) * up[i]
		}
	}
}

func simSample(c *sim.Call) {
	rows, vocab, ctx, inverse := int(c.Grid[0]), int(c.I32(8)), int(c.I32(9)), c.F32(10)
	out, logits, pick := c.I32s(0, rows), c.F32s(2, rows*vocab), c.I32s(3, rows)
	slots, positions := c.I32s(4, extent(pick, 1)), c.I32s(5, extent(pick, 1))
	for r := range rows {
		slot, pos := int(slots[pick[r]]), int(positions[pick[r]])
		k := min(max(int(c.I32s(6, slot+1)[slot]), 1), maxTopK)
		token := simDraw(logits[r*vocab:][:vocab], k, uint32(c.I32s(7, slot+1)[slot]), uint32(pos), inverse)
		out[r] = token
		if pos+1 < ctx {
			c.I32s(1, slot*ctx+pos+2)[slot*ctx+pos+1] = token
		}
	}
}

func simDraw(logits []float32, k int, seed, pos uint32, inverse float32) int32 {
	var value [maxTopK]float32
	var index [maxTopK]int32
	n := 0
	for i, v := range logits {
		if n == k && !(v > value[n-1]) || v != v {
			continue
		}
		if n < k {
			n++
		}
		at := n - 1
		for ; at > 0 && v > value[at-1]; at-- {
			value[at], index[at] = value[at-1], index[at-1]
		}
		value[at], index[at] = v, int32(i)
	}
	if n == 0 {
		return 0 // no logit was a number
	}
	if k == 1 {
		return index[0]
	}
	first, sum := value[0], float32(0)
	for i := range n {
		value[i] = float32(math.Exp(float64((value[i] - first) * inverse)))
		sum += value[i]
	}
	draw := float32(simHash(simHash(seed)^pos)>>8) / 16777216 * sum
	token := index[0]
	for i := range n {
		token = index[i]
		if draw -= value[i]; draw < 0 {
			break
		}
	}
	return token
}
