package conformance

import (
	"math"
	"time"

	"github.com/lanetrace/lanetrace/backend/sim"
)

// SimModules are the suite's kernels for the simulated GPU.
func SimModules() map[string]sim.Module {
	perWord := func(arg int) func(*sim.Call) time.Duration {
		return func(c *sim.Call) time.Duration { return time.Microsecond + time.Duration(c.U64(arg))/1000 }
	}
	return map[string]sim.Module{Module: {
		kFill: {
			Params: []uint8{8, 4, 4}, Cost: perWord(2), NTile: 64, CastsAToE4M3: true,
			Run: func(c *sim.Call) {
				p, v := c.U32s(0, int(c.U32(2))), c.U32(1)
				for i := range p {
					p[i] = v
				}
			},
		},
		kAdd: {
			Params: []uint8{8, 8, 8, 4}, Cost: perWord(3),
			Run: func(c *sim.Call) {
				n := int(c.U32(3))
				dst, a, b := c.U32s(0, n), c.U32s(1, n), c.U32s(2, n)
				for i := range dst {
					dst[i] = a[i] + b[i]
				}
			},
		},
		kScale: {
			Params: []uint8{8, 4, 4}, Cost: perWord(2),
			Run: func(c *sim.Call) {
				p, f := c.U32s(0, int(c.U32(2))), c.U32(1)
				for i := range p {
					p[i] *= f
				}
			},
		},
		kCopy8: {
			Params: []uint8{8, 8, 8}, Cost: perWord(2),
			Run: func(c *sim.Call) {
				n := int(c.U64(2))
				copy(c.Bytes(0, n), c.Bytes(1, n))
			},
		},
		kStore: {
			Params: []uint8{8, 8},
			Run:    func(c *sim.Call) { c.U64s(0, 1)[0] = c.U64(1) },
		},
		kArgs: {
			Params: []uint8{8, 1, 2, 4, 8, 4, 8, 1},
			Run: func(c *sim.Call) {
				copy(c.U64s(0, 7), []uint64{
					uint64(c.U8(1)), uint64(c.U16(2)), uint64(c.U32(3)), c.U64(4),
					uint64(math.Float32bits(c.F32(5))), math.Float64bits(c.F64(6)), uint64(c.U8(7)),
				})
			},
		},
		kSpin: sim.SpinKernel(),
	}}
}
