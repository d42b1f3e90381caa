//go:build cgo

package raw

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define ALL(X)                                                                    \
  X(cuDevicePrimaryCtxRelease_v2, (int))                                          \
  X(cuCtxCreate_v2, (void **, unsigned, int))                                     \
  X(cuCtxDestroy_v2, (void *))                                                    \
  X(cuCtxGetCurrent, (void **))                                                   \
  X(cuThreadExchangeStreamCaptureMode, (int *))

struct drv {
#define X(name, params) int (*name) params;
  ALL(X)
#undef X
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
static int create(struct drv *d, void **c) { return d->cuCtxCreate_v2(c, 0, 0); }
static int destroy(struct drv *d, void *c) { return d->cuCtxDestroy_v2(c); }
static int exchange(struct drv *d, int *mode) { return d->cuThreadExchangeStreamCaptureMode(mode); }

static int release(struct drv *d) { return d->cuDevicePrimaryCtxRelease_v2(0); }
*/
import "C" //nolint:depguard // only tests use this; the C is its purpose

import (
	"fmt"
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
