package backend

import "unsafe"

// Param is the address of a kernel parameter's value, for GPU.LaunchUntyped. It
// must stay valid and unchanged until that returns, no longer.
type Param = unsafe.Pointer

// ParamOf is the parameter whose value v points to: a number, an array or a struct
// of them laid out as the kernel's. What it points to must hold no Go pointers.
func ParamOf[T any](v *T) Param { return Param(v) }

// ParamBytes is the size bytes that a parameter points to, for backends.
func ParamBytes(p Param, size int) []byte { return unsafe.Slice((*byte)(p), size) }

// SameMemory reports whether b is the n bytes at p, for backends that hand memory
// out and take it back.
func SameMemory(b []byte, p *byte, n int) bool { return unsafe.SliceData(b) == p && len(b) == n }

// WithinMemory reports whether b lies in whole.
func WithinMemory(b, whole []byte) bool {
	at, from := uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(unsafe.SliceData(whole)))
	return at >= from && at+uintptr(len(b)) <= from+uintptr(len(whole))
}

// Misaligned reports whether b does not begin on a border of that many bytes.
func Misaligned(b []byte, border uintptr) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%border != 0
}

// AlignedBytes makes n zero bytes on a border of 64: host memory for backends that
// have no better.
func AlignedBytes(n int) []byte {
	const line = 64
	b := make([]byte, n+line-1)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (line - 1)
	return b[skip:][:n:n]
}
