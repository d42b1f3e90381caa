// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package control

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

#include "../csrc/control.h"

// One function pointer for each control call, filled by load.
struct controls {
#define ALL(X)                            \
  X(lt_testdriver_reset)                  \
  X(lt_testdriver_set_kernel_ns)          \
  X(lt_testdriver_set_spin_fixed_ns)      \
  X(lt_testdriver_set_clock)              \
  X(lt_testdriver_gpu_ns)                 \
  X(lt_testdriver_event_time)             \
  X(lt_testdriver_set_record_ns)          \
  X(lt_testdriver_set_after_record_ns)    \
  X(lt_testdriver_set_launch_latency_ns)  \
  X(lt_testdriver_set_copy_cost)          \
  X(lt_testdriver_set_call_ns)            \
  X(lt_testdriver_stall_stream)           \
  X(lt_testdriver_set_total_memory)       \
  X(lt_testdriver_set_integrated)         \
  X(lt_testdriver_set_swap_limit)         \
  X(lt_testdriver_fail)                   \
  X(lt_testdriver_clear_faults)           \
  X(lt_testdriver_set_sticky)             \
  X(lt_testdriver_hide)                   \
  X(lt_testdriver_calls)                  \
  X(lt_testdriver_calls_total)            \
  X(lt_testdriver_reset_calls)            \
  X(lt_testdriver_live)                   \
  X(lt_testdriver_log)
#define DECLARE(f) __typeof__(f) *f;
  ALL(DECLARE)
};

// load returns NULL, or what is missing.
static const char *load(const char *path, struct controls *c) {
  // Stays open: the code under test has its own handle, and goes on using it.
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (lib == NULL)
    return dlerror();
#define LOAD(f)                          \
  *(void **)&c->f = dlsym(lib, #f);      \
  if (c->f == NULL)                      \
    return "no " #f " in this library";
  ALL(LOAD)
  return NULL;
}

static void c_reset(struct controls *c) { c->lt_testdriver_reset(); }
static int c_set_kernel_ns(struct controls *c, const char *name, int64_t ns) { return c->lt_testdriver_set_kernel_ns(name, ns); }
static void c_set_spin_fixed_ns(struct controls *c, int64_t ns) { c->lt_testdriver_set_spin_fixed_ns(ns); }
static void c_set_clock(struct controls *c, int64_t offset, int64_t ppb) { c->lt_testdriver_set_clock(offset, ppb); }
static int64_t c_gpu_ns(struct controls *c, int64_t mono) { return c->lt_testdriver_gpu_ns(mono); }
static int c_event_time(struct controls *c, uintptr_t event, int64_t *mono, int64_t *gpu) {
  return c->lt_testdriver_event_time((void *)event, mono, gpu);
}
static void c_set_record_ns(struct controls *c, int64_t ns) { c->lt_testdriver_set_record_ns(ns); }
static void c_set_after_record_ns(struct controls *c, int64_t ns) { c->lt_testdriver_set_after_record_ns(ns); }
static void c_set_launch_latency_ns(struct controls *c, int64_t ns) { c->lt_testdriver_set_launch_latency_ns(ns); }
static void c_set_copy_cost(struct controls *c, int64_t ns, int64_t per_us) { c->lt_testdriver_set_copy_cost(ns, per_us); }
static int c_set_call_ns(struct controls *c, const char *fn, int64_t ns) { return c->lt_testdriver_set_call_ns(fn, ns); }
static int c_stall_stream(struct controls *c, uintptr_t stream, int on) { return c->lt_testdriver_stall_stream((void *)stream, on); }
static void c_set_total_memory(struct controls *c, uint64_t bytes) { c->lt_testdriver_set_total_memory(bytes); }
static void c_set_integrated(struct controls *c, int on) { c->lt_testdriver_set_integrated(on); }
static void c_set_swap_limit(struct controls *c, int times) { c->lt_testdriver_set_swap_limit(times); }
static int c_fail(struct controls *c, const char *fn, int result, int skip, int times) {
  return c->lt_testdriver_fail(fn, result, skip, times);
}
static void c_clear_faults(struct controls *c) { c->lt_testdriver_clear_faults(); }
static void c_set_sticky(struct controls *c, int result) { c->lt_testdriver_set_sticky(result); }
static int c_hide(struct controls *c, const char *symbol, int on) { return c->lt_testdriver_hide(symbol, on); }
static uint64_t c_calls(struct controls *c, const char *fn) { return c->lt_testdriver_calls(fn); }
static uint64_t c_calls_total(struct controls *c) { return c->lt_testdriver_calls_total(); }
static void c_reset_calls(struct controls *c) { c->lt_testdriver_reset_calls(); }
static uint64_t c_live(struct controls *c, const char *kind) { return c->lt_testdriver_live(kind); }
static int c_log(struct controls *c, const char *path) { return c->lt_testdriver_log(path); }
*/
import "C" //nolint:depguard // only tests use this; the cgo is its purpose

import (
	"fmt"
	"math"
	"syscall"
	"time"
	"unsafe" //nolint:depguard // for freeing the strings that C was given
)

// Driver is the stand-in driver of this process. Its methods may be called
// from any goroutine.
type Driver struct{ c C.struct_controls }

// Result is a driver result; 0 is success.
type Result int32

// Open finds the control calls in the library at path, loading it if nobody
// has. An error says that this is no stand-in driver.
func Open(path string) (*Driver, error) {
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	d := new(Driver)
	if msg := C.load(cpath, &d.c); msg != nil {
		return nil, fmt.Errorf("control: opening %s: %s", path, C.GoString(msg))
	}
	return d, nil
}

func withString[T any](s string, f func(*C.char) T) T {
	cs := C.CString(s)
	defer C.free(unsafe.Pointer(cs))
	return f(cs)
}

func unknown(code C.int, function string) error {
	if code != 0 {
		return fmt.Errorf("control: the driver has no function %q", function)
	}
	return nil
}

// Reset puts settings, faults, counters and kernels back to what they were at
// loading, and closes the log.
func (d *Driver) Reset() { C.c_reset(&d.c) }

// SetKernelTime sets how long kernels of that name take on the GPU; an empty
// name those without a time of their own, a negative time takes the setting
// back.
func (d *Driver) SetKernelTime(name string, t time.Duration) {
	if name == "" {
		C.c_set_kernel_ns(&d.c, nil, C.int64_t(t))
		return
	}
	withString(name, func(cs *C.char) C.int { return C.c_set_kernel_ns(&d.c, cs, C.int64_t(t)) })
}

// SetSpinFixed sets what lt_spin takes beyond its cycles (523 ns).
func (d *Driver) SetSpinFixed(t time.Duration) { C.c_set_spin_fixed_ns(&d.c, C.int64_t(t)) }

// SetClock makes the GPU's clock CLOCK_MONOTONIC plus offset, drifting from now
// on by so many parts in 10^9.
func (d *Driver) SetClock(offset time.Duration, driftPPB int64) {
	C.c_set_clock(&d.c, C.int64_t(offset), C.int64_t(driftPPB))
}

// GPUTime is what the GPU's clock reads at a time of CLOCK_MONOTONIC, both in
// nanoseconds.
func (d *Driver) GPUTime(monoNS int64) (gpuNS int64) {
	return int64(C.c_gpu_ns(&d.c, C.int64_t(monoNS)))
}

// EventTime says when a complete timed event was recorded on both clocks; it is
// the truth to hold a clock mapping against.
func (d *Driver) EventTime(event uintptr) (monoNS, gpuNS int64, r Result) {
	var m, g C.int64_t
	r = Result(C.c_event_time(&d.c, C.uintptr_t(event), &m, &g))
	return int64(m), int64(g), r
}

// SetRecordTime sets how long a timed record occupies its stream (1,460 ns).
func (d *Driver) SetRecordTime(t time.Duration) { C.c_set_record_ns(&d.c, C.int64_t(t)) }

// SetAfterRecord sets how much later a kernel right behind a timed record
// starts (0; 1,580 ns make a pair's excess that of an H200).
func (d *Driver) SetAfterRecord(t time.Duration) { C.c_set_after_record_ns(&d.c, C.int64_t(t)) }

// SetLaunchLatency sets how long after its enqueue work starts at the earliest
// (4 µs).
func (d *Driver) SetLaunchLatency(t time.Duration) { C.c_set_launch_latency_ns(&d.c, C.int64_t(t)) }

// SetCopyCost sets what copies and sets take: a fixed time and a rate in bytes
// a microsecond.
func (d *Driver) SetCopyCost(fixed time.Duration, bytesPerUS int64) {
	C.c_set_copy_cost(&d.c, C.int64_t(fixed), C.int64_t(bytesPerUS))
}

// SetCallTime makes each call of a driver function take the host at least t.
func (d *Driver) SetCallTime(function string, t time.Duration) error {
	return unknown(withString(function, func(cs *C.char) C.int { return C.c_set_call_ns(&d.c, cs, C.int64_t(t)) }), function)
}

// StallStream makes a stream complete nothing until it is called with false.
// The default streams (0, 1, 2) are those of the calling thread's context.
func (d *Driver) StallStream(stream uintptr, on bool) Result {
	return Result(C.c_stall_stream(&d.c, C.uintptr_t(stream), cbool(on)))
}

func cbool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// SetTotalMemory sets the memory of all devices, in bytes.
func (d *Driver) SetTotalMemory(bytes uint64) { C.c_set_total_memory(&d.c, C.uint64_t(bytes)) }

// SetIntegrated sets what the devices say about being integrated.
func (d *Driver) SetIntegrated(on bool) { C.c_set_integrated(&d.c, cbool(on)) }

// SetSwapLimit sets after how many swaps of a graph node's event elapsed times
// are refused; a negative number is never.
func (d *Driver) SetSwapLimit(times int) { C.c_set_swap_limit(&d.c, C.int(times)) }

// Fail makes calls of the exported driver function ("cuMemAlloc_v2"; "*" is
// every one) return result: the first skip calls pass, then times fail, 0
// being all.
func (d *Driver) Fail(function string, result Result, skip, times int) error {
	return unknown(withString(function, func(cs *C.char) C.int {
		return C.c_fail(&d.c, cs, C.int(result), C.int(skip), C.int(times))
	}), function)
}

// ClearFaults takes back Fail and SetSticky.
func (d *Driver) ClearFaults() { C.c_clear_faults(&d.c) }

// SetSticky makes contexts answer everything with result, as after an illegal
// address.
func (d *Driver) SetSticky(result Result) { C.c_set_sticky(&d.c, C.int(result)) }

// Hide makes cuGetProcAddress not find a symbol.
func (d *Driver) Hide(symbol string, on bool) {
	withString(symbol, func(cs *C.char) C.int { return C.c_hide(&d.c, cs, cbool(on)) })
}

// Calls counts the calls of an exported driver function, failed ones included.
// It panics on a name that the driver does not have: a test that misspells one
// must not pass.
func (d *Driver) Calls(function string) uint64 {
	n := withString(function, func(cs *C.char) C.uint64_t { return C.c_calls(&d.c, cs) })
	if n == math.MaxUint64 {
		panic(unknown(-1, function))
	}
	return uint64(n)
}

// TotalCalls counts the calls of all driver functions.
func (d *Driver) TotalCalls() uint64 { return uint64(C.c_calls_total(&d.c)) }

// ResetCalls sets the counters to 0.
func (d *Driver) ResetCalls() { C.c_reset_calls(&d.c) }

// Live counts living objects of a kind: "context", "stream", "event", "module",
// "function", "library", "kernel", "graph", "exec", "node", "pool",
// "allocation", "physical". It panics on another word.
func (d *Driver) Live(kind string) uint64 {
	n := withString(kind, func(cs *C.char) C.uint64_t { return C.c_live(&d.c, cs) })
	if n == math.MaxUint64 {
		panic(fmt.Sprintf("control: no objects of kind %q", kind))
	}
	return uint64(n)
}

// Log writes a line to the file for each launch, copy, record, allocation and
// free from now on; an empty path ends it.
func (d *Driver) Log(path string) error {
	if path == "" {
		C.c_log(&d.c, nil)
		return nil
	}
	if errno := withString(path, func(cs *C.char) C.int { return C.c_log(&d.c, cs) }); errno != 0 {
		return fmt.Errorf("control: logging to %s: %w", path, syscall.Errno(errno))
	}
	return nil
}
