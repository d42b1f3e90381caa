// Package dl says whether a shared library can be loaded into this process, which
// only trying it can tell: it may be missing, or miss something that it needs.
package dl

import "errors"

// ErrNoCgo is returned where the binary was built without cgo, which loading a
// library needs.
var ErrNoCgo = errors.New("this binary was built without cgo")
