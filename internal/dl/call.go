//go:build cgo

package dl

/*
#include <dlfcn.h>
#include <stdlib.h>

static const char *lt_dl_call(const char *library, const char *function, int *result) {
  void *so = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  if (so == NULL)
    return dlerror();
  int (*f)(void) = (int (*)(void))dlsym(so, function);
  if (f == NULL)
    return dlerror();
  *result = f();
  return NULL;
}
*/
import "C"

import (
	"errors"
	"runtime"
	"unsafe"
)

// Call loads the shared library of that name or path, which stays loaded, and
// calls its function of that name, which takes nothing and returns an int. An
// error has the dynamic linker's words. It is for measurements: nothing checks
// that the function is one of that kind.
func Call(library, function string) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l, f := C.CString(library), C.CString(function)
	defer C.free(unsafe.Pointer(l))
	defer C.free(unsafe.Pointer(f))
	var result C.int
	if e := C.lt_dl_call(l, f, &result); e != nil {
		return 0, errors.New(C.GoString(e))
	}
	return int(result), nil
}
