package report

import (
	"fmt"
	"strings"

	"github.com/lanetrace/lanetrace/collector"
)

// overheadText writes what timing is reckoned to have cost, nothing of a producer that
// does not say.
func overheadText(b *strings.Builder, o collector.Overhead, w int) {
	if o.StepTime <= 0 {
		return
	}
	kernels, lanes := o.Shares()
	row := func(name string, ns, share float64, more string) []string {
		return []string{name, Duration(ns), fmt.Sprintf("%.3f %%", 100*share), more}
	}
	armed, timed := "none armed now", ""
	if o.KernelStride > 0 {
		armed = "1 step in " + Count(uint64(o.KernelStride)) + " armed"
	}
	switch {
	case o.LaneStride == 1:
		timed = "every step's"
	case o.LaneStride > 1:
		timed = "of 1 step in " + Count(uint64(o.LaneStride))
	}
	b.WriteByte('\n')
	table(b, "  ", w, []string{"OVERHEAD (reckoned)", "time", "of steps", "now"}, [][]string{
		row("lanes", float64(o.Lanes), lanes, timed),
		row("launches of armed steps", float64(o.Kernels), kernels, armed),
	})
}
