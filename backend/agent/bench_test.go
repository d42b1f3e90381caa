package agent

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/spanring"
)

// BenchmarkRing is what the C writer's calls cost, in ns each; append/go is the Go
// writer's in the same run.
func BenchmarkRing(b *testing.B) {
	bin := buildProgram(b, "ringproc.c", ringSources)
	w, err := spanring.Create(privateDir(b), spanring.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Remove()
	var e spanring.Words
	const appends = 1_000_000
	for range appends / 10 {
		w.Append(&e)
	}
	start := time.Now()
	for range appends {
		w.Append(&e)
	}
	goNS := float64(time.Since(start)) / appends
	sum := map[string]float64{}
	n := 0
	for b.Loop() {
		cmd := exec.Command(bin, "bench")
		cmd.Env = []string{"LANETRACE_DIR=" + privateDir(b).Path}
		out, err := cmd.Output()
		if err != nil {
			b.Fatal(err)
		}
		n++
		for l := range bytes.Lines(out) {
			var what string
			var ns float64
			if _, err := fmt.Sscan(string(l), &what, &ns); err == nil && !strings.HasPrefix(what, "/") {
				sum[what] += ns
			}
		}
	}
	for what, ns := range sum {
		b.ReportMetric(ns/float64(n), "ns/"+what)
	}
	b.ReportMetric(goNS, "ns/append/go")
	b.ReportMetric(0, "ns/op")
}
