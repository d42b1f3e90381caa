package backend

import "math"

// Ptr is a device pointer argument.
func Ptr(p DevicePtr) Arg { return Arg{Bits: uint64(p), Size: 8} }

// U8 is an argument of 1 byte.
func U8(v uint8) Arg { return Arg{Bits: uint64(v), Size: 1} }

// U16 is an argument of 2 bytes.
func U16(v uint16) Arg { return Arg{Bits: uint64(v), Size: 2} }

// U32 is an argument of 4 bytes.
func U32(v uint32) Arg { return Arg{Bits: uint64(v), Size: 4} }

// I32 is a signed argument of 4 bytes.
func I32(v int32) Arg { return Arg{Bits: uint64(uint32(v)), Size: 4} }

// U64 is an argument of 8 bytes.
func U64(v uint64) Arg { return Arg{Bits: v, Size: 8} }

// I64 is a signed argument of 8 bytes.
func I64(v int64) Arg { return Arg{Bits: uint64(v), Size: 8} }

// F32 is a single-precision argument.
func F32(v float32) Arg { return Arg{Bits: uint64(math.Float32bits(v)), Size: 4} }

// F64 is a double-precision argument.
func F64(v float64) Arg { return Arg{Bits: math.Float64bits(v), Size: 8} }

// MaxArgs is how many arguments a launch may have.
const MaxArgs = 64
