package main

import (
	"path/filepath"

	"github.com/lanetrace/lanetrace/launchtrace"
)

// makeTraces records three executions of a region and writes them to dir. Each
// has its buffer elsewhere; the second is of another length.
func makeTraces(dir string) error {
	var live launchtrace.Range
	r := launchtrace.New(launchtrace.Options{Resolve: func(addr uint64) (launchtrace.Range, bool) {
		return live, addr-live.Base < live.Bytes
	}})
	r.Name(0x55d0, "model.attention")
	g := r.Region("decode")
	for i, name := range []string{"a", "b", "c"} {
		live = launchtrace.Range{Base: 0x7f0000000000 + uint64(i)<<32, Bytes: 1 << 20, Site: "kv.go:31"}
		length := uint64(0x10)
		if name == "b" {
			length++
		}
		g.Begin()
		r.Memset(1, live.Base, 0, 4096)
		r.Kernel(1, 0x55d0, [3]uint32{132, 1, 1}, [3]uint32{128, 1, 1}, 0, []uint64{live.Base, 64, length})
		g.End(uint64(17+i), 0)
		_, t := g.Executions()
		if err := launchtrace.WriteFile(filepath.Join(dir, name+launchtrace.FileSuffix), t, program); err != nil {
			return err
		}
	}
	return nil
}
