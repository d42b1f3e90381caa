//go:build !cgo

package device

import (
	"fmt"
	"log/slog"
)

func openNVML(*slog.Logger) ([]gpu, func(), error) {
	return nil, nil, fmt.Errorf("%w: this program was built without cgo", ErrUnavailable)
}
