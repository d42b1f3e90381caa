package launchtrace_test

import (
	"fmt"

	"github.com/lanetrace/lanetrace/launchtrace"
)

// Two steps decode the same batch; in the second the host got a length wrong.
func Example() {
	const (
		stream    = 1
		attention = 0x55d0c0ffee00 // the handle that the driver gave
		kv        = 0x7f32a0000000
	)
	// A backend has the recorder, names what it looks up, and records what it
	// enqueues.
	rec := launchtrace.New(launchtrace.Options{
		Resolve: func(addr uint64) (launchtrace.Range, bool) {
			return launchtrace.Range{Base: kv, Bytes: 1 << 30, Site: "cache.go:41"}, addr-kv < 1<<30
		},
	})
	rec.Name(attention, "attention_decode")
	launch := func(args ...uint64) {
		if rec.On() {
			rec.Kernel(stream, attention, [3]uint32{16, 1, 1}, [3]uint32{128, 1, 1}, 4096, args)
		}
	}

	// The engine says where the region begins and ends.
	region := rec.Region("decode")
	for step, length := range []uint64{17, 17, 16} {
		region.Begin(stream)
		launch(kv, length)
		launch(kv+0x8000, 17)
		fmt.Print(region.End(uint64(step+1), 10).Text())
	}
	// Output:
	// region decode, step 1: 2 operations, the first execution, nothing to compare with
	// region decode, step 2 against step 1: 2 operations before, 2 after, no difference
	// region decode, step 3 against step 2: 2 operations before, 2 after: 0 inserted, 0 removed, 1 changed
	//   changed #0 kernel attention_decode: arg1 0x11 -> 0x10 (-1)
}
