//go:build !cgo

package cuda

import (
	"fmt"

	"github.com/lanetrace/lanetrace/backend"
)

// GPU is one device. Without cgo there is none.
type GPU struct{ backend.GPU }

// Open fails: the binary was built without cgo. The error wraps
// backend.ErrNotSupported.
func Open(Config) (*GPU, error) {
	return nil, fmt.Errorf("cuda: this binary was built without cgo (CGO_ENABLED=0), build it with cgo and a C compiler: %w", backend.ErrNotSupported)
}
