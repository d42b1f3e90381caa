package sim

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/lanetrace/lanetrace/backend"
)

// firstAddress is where device memory begins.
const firstAddress backend.DevicePtr = 0x7f00_0000_0000

// unit is what addresses are multiples of.
const unit = 512

// memory is the device's memory: allocations, each of its own Go memory, at
// addresses with a hole behind each, so that a step past the end is found.
type memory struct {
	mu    sync.RWMutex
	total int64
	used  int64 // in whole units
	live  []allocation
	next  backend.DevicePtr
	free  map[int64][]backend.DevicePtr // given back, by size in units; last in, first out
}

type allocation struct {
	at   backend.DevicePtr
	data []byte
}

func byAddress(a allocation, p backend.DevicePtr) int { return cmp.Compare(a.at, p) }

func units(bytes int) int64 { return (int64(bytes) + unit - 1) / unit }

func (m *memory) alloc(bytes int) (backend.DevicePtr, error) {
	if bytes <= 0 {
		return 0, errInvalidValue
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := units(bytes)
	if n*unit > m.total-m.used {
		return 0, errOutOfMemory
	}
	var p backend.DevicePtr
	if l := m.free[n]; len(l) > 0 {
		p, m.free[n] = l[len(l)-1], l[:len(l)-1]
	} else {
		p = m.next
		m.next += backend.DevicePtr((n + 1) * unit)
	}
	m.used += n * unit
	i, _ := slices.BinarySearchFunc(m.live, p, byAddress)
	m.live = slices.Insert(m.live, i, allocation{p, aligned(bytes)})
	return p, nil
}

func (m *memory) release(p backend.DevicePtr) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, ok := slices.BinarySearchFunc(m.live, p, byAddress)
	if !ok {
		return errInvalidValue
	}
	n := units(len(m.live[i].data))
	m.used -= n * unit
	m.live = slices.Delete(m.live, i, i+1)
	m.free[n] = append(m.free[n], p)
	return nil
}

// bytes is the memory from p on. It stays valid, though no longer the device's,
// when it is freed.
func (m *memory) bytes(p backend.DevicePtr, n int) ([]byte, error) {
	if n < 0 {
		return nil, errInvalidValue
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	i, ok := slices.BinarySearchFunc(m.live, p, byAddress)
	if !ok {
		i--
	}
	if i >= 0 {
		a := m.live[i]
		if off := uint64(p - a.at); off <= uint64(len(a.data)) && uint64(n) <= uint64(len(a.data))-off {
			return a.data[off:][:n:n], nil
		}
	}
	return nil, fmt.Errorf("%d bytes at %#x: %w", n, p, errIllegalAddress)
}

func (m *memory) figures() (total, free int64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.total, m.total - m.used
}

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
