//go:build cgo

package raw

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ALL(X)                                                                    \
  X(cuInit, (unsigned))                                                           \
  X(cuDevicePrimaryCtxRetain, (void **, int))                                     \
  X(cuDevicePrimaryCtxRelease_v2, (int))                                          \
  X(cuCtxCreate_v2, (void **, unsigned, int))                                     \
  X(cuCtxDestroy_v2, (void *))                                                    \
  X(cuCtxSetCurrent, (void *))                                                    \
  X(cuCtxGetCurrent, (void **))                                                   \
  X(cuThreadExchangeStreamCaptureMode, (int *))                                   \
  X(cuStreamCreate, (void **, unsigned))                                          \
  X(cuStreamDestroy_v2, (void *))                                                 \
  X(cuStreamSynchronize, (void *))                                                \
  X(cuEventCreate, (void **, unsigned))                                           \
  X(cuEventDestroy_v2, (void *))                                                  \
  X(cuEventRecord, (void *, void *))                                              \
  X(cuModuleLoadData, (void **, const void *))                                    \
  X(cuModuleUnload, (void *))                                                     \
  X(cuModuleGetFunction, (void **, void *, const char *))                         \
  X(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))

struct drv {
#define X(name, params) int (*name) params;
  ALL(X)
#undef X
  void *ctx, *stream, *events[2], *module, *fn;
};

static const char *load(const char *path, struct drv *d) {
  void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (so == NULL)
    return dlerror();
  void *p;
#define X(name, params)  \
  p = dlsym(so, #name);  \
  if (p == NULL)         \
    return "no " #name;  \
  memcpy(&d->name, &p, sizeof p);
  ALL(X)
#undef X
  return NULL;
}

static int current(struct drv *d, void **c) { return d->cuCtxGetCurrent(c); }
static int set_current(struct drv *d, void *c) { return d->cuCtxSetCurrent(c); }
static int create(struct drv *d, void **c) { return d->cuCtxCreate_v2(c, 0, 0); }
static int destroy(struct drv *d, void *c) { return d->cuCtxDestroy_v2(c); }
static int exchange(struct drv *d, int *mode) { return d->cuThreadExchangeStreamCaptureMode(mode); }

static int release(struct drv *d) { return d->cuDevicePrimaryCtxRelease_v2(0); }

static int bench_open(struct drv *d, const char *image, const char *kernel) {
  int r;
  if ((r = d->cuInit(0)) || (r = d->cuDevicePrimaryCtxRetain(&d->ctx, 0)) || (r = d->cuCtxSetCurrent(d->ctx)) ||
      (r = d->cuStreamCreate(&d->stream, 1)) || (r = d->cuEventCreate(&d->events[0], 0)) ||
      (r = d->cuEventCreate(&d->events[1], 0)) || (r = d->cuModuleLoadData(&d->module, image)) ||
      (r = d->cuModuleGetFunction(&d->fn, d->module, kernel)))
    return r;
  return 0;
}

static void bench_close(struct drv *d) {
  d->cuModuleUnload(d->module);
  d->cuEventDestroy_v2(d->events[0]);
  d->cuEventDestroy_v2(d->events[1]);
  d->cuStreamDestroy_v2(d->stream);
  d->cuCtxSetCurrent(NULL);
  d->cuDevicePrimaryCtxRelease_v2(0);
}

static int64_t mono_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

// bench does n rounds of records and, with launch, a launch between them, and
// returns their time in ns, or a negative result.
static int64_t bench(struct drv *d, int n, int records, int launch) {
  uint64_t cycles = 1;
  void *params[1] = {&cycles};
  int r = 0;
  int64_t begin = mono_ns();
  for (int i = 0; i < n && r == 0; i++) {
    if (records)
      r |= d->cuEventRecord(d->events[0], d->stream);
    if (launch)
      r |= d->cuLaunchKernel(d->fn, 1, 1, 1, 1, 1, 1, 0, d->stream, params, NULL);
    if (records)
      r |= d->cuEventRecord(d->events[1], d->stream);
  }
  int64_t ns = mono_ns() - begin;
  r |= d->cuStreamSynchronize(d->stream);
  return r != 0 ? -(int64_t)r : ns;
}
*/
import "C" //nolint:depguard // only tests use this; the C is its purpose

import (
	"fmt"
	"time"
	"unsafe" //nolint:depguard // for the strings that C is given
)

// Driver is a driver library, called as it comes. What concerns a thread concerns
// the caller's, which must be locked.
type Driver struct{ d C.struct_drv }

// Open loads a driver's library.
func Open(path string) (*Driver, error) {
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	d := new(Driver)
	if why := C.load(cpath, &d.d); why != nil {
		return nil, fmt.Errorf("raw: load %s: %s", path, C.GoString(why))
	}
	return d, nil
}

func check(what string, r C.int) error {
	if r != 0 {
		return fmt.Errorf("raw: %s: %d", what, r)
	}
	return nil
}

// Current is the thread's context, 0 for none.
func (d *Driver) Current() (uintptr, error) {
	var c unsafe.Pointer
	r := C.current(&d.d, &c)
	return uintptr(c), check("get the current context", r)
}

// WithContext runs f on the calling thread with a new context of device 0 as its
// current one.
func (d *Driver) WithContext(f func(ctx uintptr)) error {
	var c unsafe.Pointer
	if r := C.create(&d.d, &c); r != 0 {
		return check("create a context", r)
	}
	f(uintptr(c))
	return check("destroy a context", C.destroy(&d.d, c))
}

// ExchangeMode sets the thread's capture mode and returns what it was.
func (d *Driver) ExchangeMode(mode int) (int, error) {
	m := C.int(mode)
	r := C.exchange(&d.d, &m)
	return int(m), check("exchange the capture mode", r)
}

// ReleasePrimary gives a reference to device 0's primary context back.
func (d *Driver) ReleasePrimary() error { return check("release", C.release(&d.d)) }

// Bench is a stream, two events and a kernel of one u64 parameter on device 0.
type Bench struct{ d *Driver }

// Bench makes one; its context is the calling thread's until Close.
func (d *Driver) Bench(image []byte, kernel string) (*Bench, error) {
	ci, ck := C.CString(string(image)), C.CString(kernel)
	defer C.free(unsafe.Pointer(ci))
	defer C.free(unsafe.Pointer(ck))
	if r := C.bench_open(&d.d, ci, ck); r != 0 {
		return nil, check("set a benchmark up", r)
	}
	return &Bench{d}, nil
}

// Close takes it down.
func (b *Bench) Close() { C.bench_close(&b.d.d) }

// Bind makes the benchmark's context the calling thread's, as Driver.Bench left
// it.
func (b *Bench) Bind() error { return check("bind", C.set_current(&b.d.d, b.d.d.ctx)) }

// Unbind leaves the calling thread without a context.
func (b *Bench) Unbind() error { return check("unbind", C.set_current(&b.d.d, nil)) }

// Run does n rounds of two timed event records with a launch between them, or of
// only the one or the other, and returns how long the calls took.
func (b *Bench) Run(n int, records, launch bool) (time.Duration, error) {
	flag := func(v bool) C.int {
		if v {
			return 1
		}
		return 0
	}
	ns := C.bench(&b.d.d, C.int(n), flag(records), flag(launch))
	if ns < 0 {
		return 0, check("benchmark", C.int(-ns))
	}
	return time.Duration(ns), nil
}
