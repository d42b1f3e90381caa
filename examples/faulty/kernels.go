package faulty

import (
	"time"

	"github.com/lanetrace/lanetrace/backend/sim"
)

const moduleName = "faulty"

// kernels only take their time, but for fill, which writes as many words as it is
// told to.
func kernels() sim.Module {
	takes := func(d time.Duration) func(*sim.Call) time.Duration {
		return func(*sim.Call) time.Duration { return d }
	}
	return sim.Module{
		"admit":     {Cost: takes(20 * time.Microsecond), Params: []uint8{8, 4}},
		"embed":     {Cost: takes(60 * time.Microsecond), Params: []uint8{8, 4}},
		"attention": {Cost: takes(400 * time.Microsecond), Params: []uint8{8, 4}},
		"mlp":       {Cost: takes(700 * time.Microsecond), Params: []uint8{8, 8, 4}},
		"sample":    {Cost: takes(80 * time.Microsecond), Params: []uint8{8, 4}},
		// A prompt that is far too long.
		"long_prefill": {Cost: takes(time.Hour), Params: []uint8{8, 4}},
		"fill": {Cost: takes(5 * time.Microsecond), Params: []uint8{8, 4}, Run: func(c *sim.Call) {
			for i, words := 0, c.U32s(0, int(c.U32(1))); i < len(words); i++ {
				words[i] = 0x6c616e65
			}
		}},
	}
}
