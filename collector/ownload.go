package collector

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// cpuModes are the values of the label cpu.mode.
var cpuModes = []string{"user", "system"}

// observeProcess reports what this process uses. What the kernel does not tell has
// no series.
func observeProcess(o observation) {
	o.n(mGoroutines, uint64(runtime.NumGoroutine()))
	var ru syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &ru) == nil {
		for i, t := range [...]syscall.Timeval{ru.Utime, ru.Stime} {
			o.f(mCPU, float64(t.Nano())/1e9, metric.WithAttributes(attribute.String(labelCPUMode, cpuModes[i])))
		}
	}
	if b, err := os.ReadFile("/proc/self/status"); err == nil {
		if v, ok := statusBytes(string(b), "VmRSS:"); ok {
			o.n(mMemory, v)
		}
		if v, ok := statusBytes(string(b), "RssAnon:"); ok {
			o.n(mAnonymous, v)
		}
	}
	if n, ok := openFDs(); ok {
		o.n(mFDs, n)
	}
}

// statusBytes is a size in /proc/self/status, in bytes.
func statusBytes(status, key string) (uint64, bool) {
	for l := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(l, key); ok {
			n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return n << 10, err == nil
		}
	}
	return 0, false
}

// openFDs counts file descriptors, without the one that counting needs.
func openFDs() (uint64, bool) {
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return 0, false
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	return uint64(max(0, len(names)-1)), err == nil
}
