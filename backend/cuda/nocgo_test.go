//go:build !cgo

package cuda

import (
	"errors"
	"strings"
	"testing"

	"github.com/lanetrace/lanetrace/backend"
)

func TestWithoutCgo(t *testing.T) {
	_, err := Open(Config{})
	if !errors.Is(err, backend.ErrNotSupported) || !strings.Contains(err.Error(), "without cgo") {
		t.Errorf("open: %v", err)
	}
}
