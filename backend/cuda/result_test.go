package cuda

import (
	"errors"
	"fmt"
	"testing"

	"github.com/lanetrace/lanetrace/cudaevents"
)

func TestResults(t *testing.T) {
	for r, want := range map[Result]string{
		Success: "CUDA_SUCCESS", ErrInvalidValue: "CUDA_ERROR_INVALID_VALUE (1)",
		ErrNotReady: "CUDA_ERROR_NOT_READY (600)", 999: "CUDA_ERROR_UNKNOWN (999)", 4321: "CUDA error 4321",
	} {
		if got := r.Error(); got != want {
			t.Errorf("%d is %q, want %q", r, got, want)
		}
	}
	err := fmt.Errorf("around: %w", &Error{Op: "launch k", Result: ErrInvalidHandle, Detail: "look"})
	for _, target := range []error{ErrInvalidHandle, cudaevents.Result(400)} {
		if !errors.Is(err, target) {
			t.Errorf("%v is not %v", err, target)
		}
	}
	if errors.Is(err, ErrNotReady) || errors.Is(err, cudaevents.NotReady) {
		t.Errorf("%v is what it is not", err)
	}
	var r Result
	if !errors.As(err, &r) || r != ErrInvalidHandle {
		t.Errorf("the code in %v is %v", err, r)
	}
	if want := "around: cuda: launch k: CUDA_ERROR_INVALID_HANDLE (400): look"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
	// The driver's own name for a code that this package does not know.
	if got, want := (&Error{Op: "x", Result: 4321, Name: "CUDA_ERROR_NEW"}).Error(), "cuda: x: CUDA_ERROR_NEW (4321)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
