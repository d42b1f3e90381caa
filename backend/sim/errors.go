package sim

import (
	"fmt"

	"github.com/lanetrace/lanetrace/cudaevents"
)

// The driver's codes that the sim gives, with their meaning in the CUDA driver
// API. errors.Is finds them as cudaevents.Result.
const (
	errInvalidValue   code = 1
	errOutOfMemory    code = 2
	errClosed         code = 4
	errInvalidHandle  code = 400
	errIllegalState   code = 401
	errNotFound       code = 500
	errNotReady       code = 600
	errIllegalAddress code = 700
	errLaunchFailed   code = 719
	errCapture        code = 900
	errCaptureInvalid code = 901
	errUnjoined       code = 904
	errIsolation      code = 905
	errCaptured       code = 907
)

var codeText = map[code]string{
	errInvalidValue: "invalid value", errOutOfMemory: "out of memory", errClosed: "GPU is closed",
	errInvalidHandle: "invalid handle", errIllegalState: "illegal state", errNotFound: "not found",
	errNotReady: "not ready", errIllegalAddress: "illegal address", errLaunchFailed: "launch failed",
	errCapture: "not permitted while the stream is capturing", errCaptureInvalid: "the capture was invalidated",
	errUnjoined:  "the capture has streams that were not joined to its first",
	errIsolation: "event from outside the capture", errCaptured: "event recorded in a capture",
}

// code is a driver's result.
type code cudaevents.Result

func (c code) Error() string {
	if t, ok := codeText[c]; ok {
		return fmt.Sprintf("%s (%d)", t, int32(c))
	}
	return fmt.Sprintf("result %d", int32(c))
}

// Is finds the code as a cudaevents.Result.
func (c code) Is(target error) bool {
	r, ok := target.(cudaevents.Result)
	return ok && r == cudaevents.Result(c)
}

// result makes a driver's result of an error of the sim's.
func result(err error) cudaevents.Result {
	switch e := err.(type) {
	case nil:
		return cudaevents.Success
	case code:
		return cudaevents.Result(e)
	}
	return cudaevents.Result(errLaunchFailed)
}
