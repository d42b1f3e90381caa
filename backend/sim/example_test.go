package sim_test

import (
	"fmt"
	"log"
	"time"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/backend/sim"
)

// A kernel is a Go function and what it costs.
func Example() {
	gpu, err := sim.Open(sim.Config{
		Modules: map[string]sim.Module{"math": {
			"double": {
				Params: []uint8{8, 4}, // a pointer and a count
				Run: func(c *sim.Call) {
					for i, v := range c.F32s(0, int(c.U32(1))) {
						c.F32s(0, int(c.U32(1)))[i] = 2 * v
					}
				},
				Cost: func(c *sim.Call) time.Duration { return 2*time.Microsecond + time.Duration(c.U32(1)) },
			},
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer gpu.Close() //nolint:errcheck // at the end of the program

	if err := gpu.LoadModule("math", nil); err != nil {
		log.Fatal(err)
	}
	double, err := gpu.Kernel("math", "double")
	if err != nil {
		log.Fatal(err)
	}
	p, err := gpu.Alloc(8)
	if err != nil {
		log.Fatal(err)
	}
	s := gpu.DefaultStream()
	one := backend.Dim3{1, 1, 1}
	var host [8]byte
	for _, err := range []error{
		gpu.CopyHtoDAsync(p, []byte{0, 0, 0x80, 0x3f, 0, 0, 0x40, 0x40}, s), // 1 and 3
		gpu.Launch(double, &backend.Launch{Grid: one, Block: one, Stream: s, Args: []backend.Arg{backend.Ptr(p), backend.U32(2)}}),
		gpu.CopyDtoHOnStream(host[:], p, s),
	} {
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Printf("% x\n", host)
	// Output: 00 00 00 40 00 00 c0 40
}
