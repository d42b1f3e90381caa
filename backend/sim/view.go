package sim

import (
	"fmt"
	"unsafe"
)

type word interface {
	~uint16 | ~uint32 | ~int32 | ~uint64 | ~float32
}

// view is Bytes as n values of another type. Device memory is 8-byte aligned and
// keeps no Go pointers, and both sides have the machine's byte order.
func view[T word](c *Call, i, n int) []T {
	var zero T
	size := int(unsafe.Sizeof(zero))
	if n < 0 || n > 1<<40 {
		c.fail(fmt.Errorf("argument %d: %d values", i, n))
		return nil
	}
	b := c.Bytes(i, n*size)
	if len(b) == 0 {
		return nil
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)%uintptr(size) != 0 {
		c.fail(fmt.Errorf("argument %d: address %#x is not aligned to %d", i, c.Ptr(i), size))
		return nil
	}
	return unsafe.Slice((*T)(p), n)
}

// aligned makes n zero bytes that are 8-byte aligned. They cost no memory until
// they are touched.
func aligned(n int) []byte {
	w := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), n)
}
