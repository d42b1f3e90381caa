//go:build cgo

package dl

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

static const char *lt_dl_probe(const char *name) {
  void *so = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  return so == NULL ? dlerror() : NULL;
}
*/
import "C"

import (
	"errors"
	"runtime"
	"unsafe"
)

// Probe loads the shared library of that name or path, as the dynamic linker finds
// it, and returns its words when it cannot. The library stays loaded: what it
// started in the process may not survive its unloading.
func Probe(name string) error {
	// dlerror's text is the thread's.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	if e := C.lt_dl_probe(s); e != nil {
		return errors.New(C.GoString(e))
	}
	return nil
}
