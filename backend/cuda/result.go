package cuda

import (
	"fmt"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/cudaevents"
)

// Result is the driver's result code (CUresult). Success is 0 and never an error.
type Result int32

// The codes that a program may want to tell apart; names has the rest.
const (
	Success               Result = 0
	ErrInvalidValue       Result = 1
	ErrOutOfMemory        Result = 2
	ErrNotInitialized     Result = 3
	ErrDeinitialized      Result = 4
	ErrNoDevice           Result = 100
	ErrInvalidDevice      Result = 101
	ErrInvalidImage       Result = 200
	ErrInvalidContext     Result = 201
	ErrInvalidPTX         Result = 218
	ErrUnsupportedPTX     Result = 222
	ErrInvalidHandle      Result = 400
	ErrIllegalState       Result = 401
	ErrNotFound           Result = 500
	ErrNotReady           Result = 600
	ErrIllegalAddress     Result = 700
	ErrLaunchFailed       Result = 719
	ErrNotSupported       Result = 801
	ErrUnsupportedDriver  Result = 803
	ErrCaptureUnsupported Result = 900
	ErrCaptureInvalidated Result = 901
	ErrCaptureUnjoined    Result = 904
	ErrCaptureIsolation   Result = 905
	ErrCapturedEvent      Result = 907
	ErrCaptureWrongThread Result = 908
)

// names are the driver's names, less the CUDA_ERROR_ that they begin with.
var names = map[Result]string{
	1: "INVALID_VALUE", 2: "OUT_OF_MEMORY", 3: "NOT_INITIALIZED", 4: "DEINITIALIZED",
	5: "PROFILER_DISABLED", 6: "PROFILER_NOT_INITIALIZED", 7: "PROFILER_ALREADY_STARTED",
	8: "PROFILER_ALREADY_STOPPED", 34: "STUB_LIBRARY", 36: "CALL_REQUIRES_NEWER_DRIVER",
	46:  "DEVICE_UNAVAILABLE",
	100: "NO_DEVICE", 101: "INVALID_DEVICE", 102: "DEVICE_NOT_LICENSED",
	200: "INVALID_IMAGE", 201: "INVALID_CONTEXT", 202: "CONTEXT_ALREADY_CURRENT",
	205: "MAP_FAILED", 206: "UNMAP_FAILED", 207: "ARRAY_IS_MAPPED", 208: "ALREADY_MAPPED",
	209: "NO_BINARY_FOR_GPU", 210: "ALREADY_ACQUIRED", 211: "NOT_MAPPED", 212: "NOT_MAPPED_AS_ARRAY",
	213: "NOT_MAPPED_AS_POINTER", 214: "ECC_UNCORRECTABLE", 215: "UNSUPPORTED_LIMIT",
	216: "CONTEXT_ALREADY_IN_USE", 217: "PEER_ACCESS_UNSUPPORTED", 218: "INVALID_PTX",
	219: "INVALID_GRAPHICS_CONTEXT", 220: "NVLINK_UNCORRECTABLE", 221: "JIT_COMPILER_NOT_FOUND",
	222: "UNSUPPORTED_PTX_VERSION", 223: "JIT_COMPILATION_DISABLED", 224: "UNSUPPORTED_EXEC_AFFINITY",
	225: "UNSUPPORTED_DEVSIDE_SYNC", 226: "CONTAINED",
	300: "INVALID_SOURCE", 301: "FILE_NOT_FOUND", 302: "SHARED_OBJECT_SYMBOL_NOT_FOUND",
	303: "SHARED_OBJECT_INIT_FAILED", 304: "OPERATING_SYSTEM",
	400: "INVALID_HANDLE", 401: "ILLEGAL_STATE", 402: "LOSSY_QUERY",
	500: "NOT_FOUND", 600: "NOT_READY",
	700: "ILLEGAL_ADDRESS", 701: "LAUNCH_OUT_OF_RESOURCES", 702: "LAUNCH_TIMEOUT",
	703: "LAUNCH_INCOMPATIBLE_TEXTURING", 704: "PEER_ACCESS_ALREADY_ENABLED", 705: "PEER_ACCESS_NOT_ENABLED",
	708: "PRIMARY_CONTEXT_ACTIVE", 709: "CONTEXT_IS_DESTROYED", 710: "ASSERT", 711: "TOO_MANY_PEERS",
	712: "HOST_MEMORY_ALREADY_REGISTERED", 713: "HOST_MEMORY_NOT_REGISTERED", 714: "HARDWARE_STACK_ERROR",
	715: "ILLEGAL_INSTRUCTION", 716: "MISALIGNED_ADDRESS", 717: "INVALID_ADDRESS_SPACE", 718: "INVALID_PC",
	719: "LAUNCH_FAILED", 720: "COOPERATIVE_LAUNCH_TOO_LARGE", 721: "TENSOR_MEMORY_LEAK",
	800: "NOT_PERMITTED", 801: "NOT_SUPPORTED", 802: "SYSTEM_NOT_READY", 803: "SYSTEM_DRIVER_MISMATCH",
	804: "COMPAT_NOT_SUPPORTED_ON_DEVICE", 805: "MPS_CONNECTION_FAILED", 806: "MPS_RPC_FAILURE",
	807: "MPS_SERVER_NOT_READY", 808: "MPS_MAX_CLIENTS_REACHED", 809: "MPS_MAX_CONNECTIONS_REACHED",
	810: "MPS_CLIENT_TERMINATED", 811: "CDP_NOT_SUPPORTED", 812: "CDP_VERSION_MISMATCH",
	900: "STREAM_CAPTURE_UNSUPPORTED", 901: "STREAM_CAPTURE_INVALIDATED", 902: "STREAM_CAPTURE_MERGE",
	903: "STREAM_CAPTURE_UNMATCHED", 904: "STREAM_CAPTURE_UNJOINED", 905: "STREAM_CAPTURE_ISOLATION",
	906: "STREAM_CAPTURE_IMPLICIT", 907: "CAPTURED_EVENT", 908: "STREAM_CAPTURE_WRONG_THREAD",
	909: "TIMEOUT", 910: "GRAPH_EXEC_UPDATE_FAILURE", 911: "EXTERNAL_DEVICE",
	912: "INVALID_CLUSTER_SIZE", 913: "FUNCTION_NOT_LOADED", 914: "INVALID_RESOURCE_TYPE",
	915: "INVALID_RESOURCE_CONFIGURATION", 916: "KEY_ROTATION", 999: "UNKNOWN",
}

// String is the driver's name for the code, or its number if it has none here.
func (r Result) String() string {
	if r == Success {
		return "CUDA_SUCCESS"
	}
	if n, ok := names[r]; ok {
		return "CUDA_ERROR_" + n
	}
	return fmt.Sprintf("CUDA error %d", int32(r))
}

// Error is the driver's name for the code and its number.
func (r Result) Error() string {
	if _, ok := names[r]; ok {
		return fmt.Sprintf("%s (%d)", r.String(), int32(r))
	}
	return r.String()
}

// Is makes errors.Is find the code as a cudaevents.Result, which every backend's
// errors carry, and backend.ErrNotSupported in the driver's own.
func (r Result) Is(target error) bool {
	if target == backend.ErrNotSupported {
		return r == ErrNotSupported
	}
	t, ok := target.(cudaevents.Result)
	return ok && int32(t) == int32(r)
}

// Error is a refused call of the driver's. errors.Is and errors.As find Result in
// it.
type Error struct {
	Op     string // what was tried, and on what
	Result Result
	// Name is the driver's own name for a code that this package does not know.
	Name string
	// Detail is what the driver said beyond the code: a compiler's message.
	Detail string
}

func (e *Error) Error() string {
	s := "cuda: " + e.Op + ": "
	if _, ok := names[e.Result]; !ok && e.Name != "" {
		s += fmt.Sprintf("%s (%d)", e.Name, int32(e.Result))
	} else {
		s += e.Result.Error()
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap returns the Result.
func (e *Error) Unwrap() error { return e.Result }

// LibraryError is a driver library that cannot be used.
type LibraryError struct {
	Path   string
	Symbol string // the entry point that it lacks, empty if it could not be loaded
	Detail string // the loader's words
}

func (e *LibraryError) Error() string {
	if e.Symbol != "" {
		return fmt.Sprintf("cuda: %s has no %s: it is no CUDA driver library of version 11.4 or later; update the NVIDIA driver, or name another file in %s", e.Path, e.Symbol, LibraryEnv)
	}
	return fmt.Sprintf("cuda: cannot load the CUDA driver library %s: %s; install the NVIDIA driver, or name the file in %s", e.Path, e.Detail, LibraryEnv)
}

// Is makes errors.Is find ErrNoDriver.
func (e *LibraryError) Is(target error) bool { return target == ErrNoDriver }

// orNil is r as an error, nil for success.
func (r Result) orNil() error {
	if r == Success {
		return nil
	}
	return r
}
