package agent

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/spanring"
)

// TestConfig reads the environment with both libraries.
func TestConfig(t *testing.T) {
	bin := buildProgram(t, "ringproc.c", ringSources)
	run := func(env ...string) string {
		t.Helper()
		cmd := exec.Command(bin, "config")
		cmd.Env = env
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSuffix(string(out), "\n")
	}
	dir, _, err := spanring.DefaultDir(func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		env  []string
		want string
	}{
		{nil, "lane " + dir.Path + " 0 -1   0 4096 64 0.003 0 -1 -1 -1 -1"},
		{[]string{"LANETRACE_LEVEL=", "LANETRACE_PAIRS=", "LANETRACE_KERNEL_BUDGET="}, "lane " + dir.Path + " 0 -1   0 4096 64 0.003 0 -1 -1 -1 -1"},
		{
			[]string{
				"LANETRACE_LEVEL=kernel", "LANETRACE_DIR=/x", "LANETRACE_GROUP=7", "OTEL_SERVICE_NAME=s", "LANETRACE_MODEL=m", "LANETRACE_RING_BYTES=+70000",
				"LANETRACE_PAIRS=16", "LANETRACE_KERNEL_SPAN_EVERY=8", "LANETRACE_KERNEL_BUDGET=2.5e-2", "LANETRACE_LANE_BUDGET=.001", "LANETRACE_RANK_TENSOR=3",
			}, "kernel /x 1 7 s m 70000 16 8 0.025 0.001 -1 3 -1 -1",
		},
		{[]string{"LANETRACE_DIR=/x", "LANETRACE_RING_BYTES=65536"}, "lane /x 1 -1   65536 32 64 0.003 0 -1 -1 -1 -1"},
	} {
		if got := run(c.env...); got != c.want {
			t.Errorf("%v: %q, want %q", c.env, got, c.want)
		}
	}
	// What Go refuses, C refuses and names it too; what it takes, C takes.
	for _, v := range []struct{ name, value string }{
		{"LANETRACE_LEVEL", "Lane"}, {"LANETRACE_LEVEL", "off"}, {"LANETRACE_LEVEL", "kernel "}, {"LANETRACE_GROUP", "-1"},
		{"LANETRACE_GROUP", "4294967295"}, {"LANETRACE_GROUP", "4294967294"}, {"LANETRACE_GROUP", "x"}, {"LANETRACE_RING_BYTES", "65535"},
		{"LANETRACE_RING_BYTES", "1073741825"}, {"LANETRACE_RING_BYTES", "1073741824"}, {"LANETRACE_RING_BYTES", "0x10000"},
		{"LANETRACE_PAIRS", "0"}, {"LANETRACE_PAIRS", "1"}, {"LANETRACE_PAIRS", "16384"}, {"LANETRACE_PAIRS", "16385"}, {"LANETRACE_PAIRS", " 5"},
		{"LANETRACE_PAIRS", "18446744073709551617"}, {"LANETRACE_KERNEL_SPAN_EVERY", "2147483647"}, {"LANETRACE_KERNEL_SPAN_EVERY", "2147483648"},
		{"LANETRACE_KERNEL_BUDGET", "0"}, {"LANETRACE_KERNEL_BUDGET", "1"}, {"LANETRACE_KERNEL_BUDGET", "1.0001"}, {"LANETRACE_KERNEL_BUDGET", "-1"},
		{"LANETRACE_KERNEL_BUDGET", "NaN"}, {"LANETRACE_KERNEL_BUDGET", "."}, {"LANETRACE_KERNEL_BUDGET", ".5"}, {"LANETRACE_KERNEL_BUDGET", "5."},
		{"LANETRACE_KERNEL_BUDGET", "1e"}, {"LANETRACE_KERNEL_BUDGET", "1e-1x"}, {"LANETRACE_KERNEL_BUDGET", "0,5"}, {"LANETRACE_LANE_BUDGET", "0"}, {"LANETRACE_LANE_BUDGET", "1"}, {"LANETRACE_LANE_BUDGET", "2"},
		{"LANETRACE_LANE_BUDGET", "1e-3"},
		{"LANETRACE_RANK_DATA", "-1"}, {"LANETRACE_RANK_DATA", "0"}, {"LANETRACE_RANK_EXPERT", "2147483648"},
	} {
		err := goRefuses(v.name, v.value)
		got := run(v.name + "=" + v.value)
		if cErr, refused := strings.CutPrefix(got, "error "); refused != (err != nil) {
			t.Errorf("%s=%q: C %q, Go %v", v.name, v.value, got, err)
		} else if refused && v.value != "16385" && !strings.Contains(cErr, v.name) {
			t.Errorf("%s=%q: %q does not name the variable", v.name, v.value, cErr)
		}
	}
}

// goRefuses is the Go library's answer to one variable.
func goRefuses(name, value string) error {
	c, err := lanetrace.Config{}.FromEnv(func(k string) string {
		if k == name {
			return value
		}
		return ""
	})
	if err != nil {
		return err
	}
	// The directory is no part of it: none that could be made is named.
	h, err := lanetrace.OpenHeap(c)
	if err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	return h.Close(context.Background())
}
