//go:build cgo

// Package cubench measures, in C and without anything of lanetrace's, what the
// driver itself takes for the calls that lanetrace makes: the denominator of the
// ratios in docs/h200.md. Only benchmarks import it.
package cubench

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

typedef int (*fn_void)(unsigned);
typedef int (*fn_dev)(int *, int);
typedef int (*fn_ctx)(void **, int);
typedef int (*fn_set)(void *);
typedef int (*fn_create)(void **, unsigned);
typedef int (*fn_record)(void *, void *);
typedef int (*fn_load)(void **, const void *);
typedef int (*fn_getfn)(void **, void *, const char *);
typedef int (*fn_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

static fn_record cu_record;
static fn_launch cu_launch;
static fn_set cu_sync, cu_setctx;
static void *cb_ctx, *cb_stream, *cb_fn, *cb_ev[2];
static const char *cb_what = "";

#define SYM(v, t, name) t v = (t)dlsym(h, name); if (!v) { cb_what = name; return -1; }
#define TRY(call) do { int r_ = (call); if (r_) { cb_what = #call; return r_; } } while (0)

static int cb_open(const char *lib, const char *ptx) {
	void *h = dlopen(lib, RTLD_NOW);
	if (!h) { cb_what = "dlopen"; return -1; }
	SYM(init, fn_void, "cuInit")
	SYM(dev, fn_dev, "cuDeviceGet")
	SYM(retain, fn_ctx, "cuDevicePrimaryCtxRetain")
	SYM(screate, fn_create, "cuStreamCreate")
	SYM(ecreate, fn_create, "cuEventCreate")
	SYM(load, fn_load, "cuModuleLoadData")
	SYM(getfn, fn_getfn, "cuModuleGetFunction")
	cu_setctx = (fn_set)dlsym(h, "cuCtxSetCurrent");
	cu_sync = (fn_set)dlsym(h, "cuStreamSynchronize");
	cu_record = (fn_record)dlsym(h, "cuEventRecord");
	cu_launch = (fn_launch)dlsym(h, "cuLaunchKernel");
	if (!cu_setctx || !cu_sync || !cu_record || !cu_launch) { cb_what = "dlsym"; return -1; }
	int d; void *mod;
	TRY(init(0));
	TRY(dev(&d, 0));
	TRY(retain(&cb_ctx, d));
	TRY(cu_setctx(cb_ctx));
	TRY(screate(&cb_stream, 1));
	TRY(ecreate(&cb_ev[0], 0));
	TRY(ecreate(&cb_ev[1], 0));
	TRY(load(&mod, ptx));
	TRY(getfn(&cb_fn, mod, "lt_spin"));
	return 0;
}

static int64_t cb_now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

// what: 0 two records; 1 record, launch, record; 2 launch.
static int cb_run(int what, int n, uint64_t cycles, double *ns) {
	void *args[1] = {&cycles};
	TRY(cu_setctx(cb_ctx));
	TRY(cu_sync(cb_stream));
	int64_t t0 = cb_now();
	for (int i = 0; i < n; i++) {
		int r = 0;
		if (what != 2) r |= cu_record(cb_ev[0], cb_stream);
		if (what != 0) r |= cu_launch(cb_fn, 1, 1, 1, 1, 1, 1, 0, cb_stream, args, 0);
		if (what != 2) r |= cu_record(cb_ev[1], cb_stream);
		if (r) { cb_what = "loop"; return r; }
	}
	*ns = (double)(cb_now() - t0) / n;
	TRY(cu_sync(cb_stream));
	return 0;
}

static const char *cb_error(void) { return cb_what; }
*/
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"
)

// What is measured.
const (
	Records     = 0 // two event records
	TimedLaunch = 1 // record, launch, record
	Launch      = 2 // a launch
)

// Open loads the driver at lib, makes a stream, two timing events and the kernel
// lt_spin of ptx in the first device's primary context.
func Open(lib string, ptx []byte) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l := C.CString(lib)
	defer C.free(unsafe.Pointer(l))
	p := C.CString(string(ptx))
	defer C.free(unsafe.Pointer(p))
	if r := C.cb_open(l, p); r != 0 {
		return fmt.Errorf("cubench: %s: driver result %d", C.GoString(C.cb_error()), int(r))
	}
	return nil
}

// Run calls what n times in a C loop on an empty stream and returns the host's
// time for each, in ns.
func Run(what, n int, cycles uint64) (float64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var ns C.double
	if r := C.cb_run(C.int(what), C.int(n), C.uint64_t(cycles), &ns); r != 0 {
		return 0, fmt.Errorf("cubench: %s: driver result %d", C.GoString(C.cb_error()), int(r))
	}
	return float64(ns), nil
}
