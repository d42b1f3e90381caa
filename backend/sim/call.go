package sim

import (
	"fmt"
	"math"

	"github.com/lanetrace/lanetrace/backend"
)

// Call is one launch as a kernel sees it. It is valid until the kernel returns.
// Reading an argument that does not exist, or memory that is not allocated, is
// the kernel's fault: the reader gets 0 or an empty slice, and every later call on
// the GPU fails.
type Call struct {
	Grid, Block backend.Dim3
	SharedBytes uint32

	gpu   *GPU
	name  string
	n     int
	args  [backend.MaxArgs]backend.Arg
	fault error
}

// NumArgs is the number of arguments.
func (c *Call) NumArgs() int { return c.n }

// Threads is the number of threads of the whole grid.
func (c *Call) Threads() uint64 {
	n := uint64(1)
	for i := range 3 {
		n *= uint64(c.Grid[i]) * uint64(c.Block[i])
	}
	return n
}

func (c *Call) arg(i int) uint64 {
	if uint(i) >= uint(c.n) {
		c.fail(fmt.Errorf("argument %d of %d", i, c.n))
		return 0
	}
	return c.args[i].Bits
}

func (c *Call) fail(err error) {
	if c.fault == nil {
		c.fault = err
	}
}

// U8 is argument i.
func (c *Call) U8(i int) uint8 { return uint8(c.arg(i)) }

// U16 is argument i.
func (c *Call) U16(i int) uint16 { return uint16(c.arg(i)) }

// U32 is argument i.
func (c *Call) U32(i int) uint32 { return uint32(c.arg(i)) }

// I32 is argument i.
func (c *Call) I32(i int) int32 { return int32(c.arg(i)) }

// U64 is argument i.
func (c *Call) U64(i int) uint64 { return c.arg(i) }

// I64 is argument i.
func (c *Call) I64(i int) int64 { return int64(c.arg(i)) }

// F32 is argument i.
func (c *Call) F32(i int) float32 { return math.Float32frombits(uint32(c.arg(i))) }

// F64 is argument i.
func (c *Call) F64(i int) float64 { return math.Float64frombits(c.arg(i)) }

// Ptr is argument i.
func (c *Call) Ptr(i int) backend.DevicePtr { return backend.DevicePtr(c.arg(i)) }

// Bytes is the n bytes of device memory that argument i points to.
func (c *Call) Bytes(i, n int) []byte {
	p := c.Ptr(i)
	if c.fault != nil || n == 0 {
		return nil
	}
	b, err := c.gpu.mem.bytes(p, n)
	if err != nil {
		c.fail(fmt.Errorf("argument %d: %w", i, err))
		return nil
	}
	return b
}

// U16s is n values at the memory that argument i points to.
func (c *Call) U16s(i, n int) []uint16 { return view[uint16](c, i, n) }

// U32s is n values at the memory that argument i points to.
func (c *Call) U32s(i, n int) []uint32 { return view[uint32](c, i, n) }

// I32s is n values at the memory that argument i points to.
func (c *Call) I32s(i, n int) []int32 { return view[int32](c, i, n) }

// U64s is n values at the memory that argument i points to.
func (c *Call) U64s(i, n int) []uint64 { return view[uint64](c, i, n) }

// F32s is n values at the memory that argument i points to.
func (c *Call) F32s(i, n int) []float32 { return view[float32](c, i, n) }
