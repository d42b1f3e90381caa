package attach

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// BenchmarkCost is what the hooks add to calls of a driver that does nothing: a
// launch, a range without a launch in it, an allocation with its free twenty frames
// deep.
func BenchmarkCost(b *testing.B) {
	dir := b.TempDir()
	driver := filepath.Join(dir, "libcuda.so.1")
	program := filepath.Join(dir, "cost")
	for _, args := range [][]string{
		{"-fPIC", "-shared", "-Wl,-soname,libcuda.so.1", "-o", driver, "testdata/emptydriver.c"},
		{"-o", program, "testdata/cost.c", "-ldl"},
	} {
		if said, err := exec.Command("gcc", append([]string{"-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"}, args...)...).CombinedOutput(); err != nil {
			b.Fatalf("gcc: %v\n%s", err, said)
		}
	}
	for _, what := range []struct {
		name string
		n    int
	}{{"launch", 5_000_000}, {"range", 500_000}, {"alloc", 20_000}} {
		for _, level := range []string{"without", "off", "basic", "lane"} {
			b.Run(what.name+"/"+level, func(b *testing.B) {
				best := 0.0
				for b.Loop() {
					o := runOptions{without: level == "without", level: level, driver: driver, env: []string{"LANETRACE_STEP=none"}}
					r := start(b, o, program, what.name, strconv.Itoa(what.n))
					ns, err := strconv.ParseFloat(strings.TrimSpace(r.stdout), 64)
					if err != nil || r.code != 0 {
						b.Fatalf("exit code %d, %s%s", r.code, r.stdout, r.stderr)
					}
					if best == 0 || ns < best {
						best = ns
					}
				}
				b.ReportMetric(best, "ns/call")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
