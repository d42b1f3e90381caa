package backend

import (
	"errors"
	"fmt"
	"sync"
)

// OpCache remembers what an operation of an engine looks up once: kernels, and
// scratch memory that is used again. Each GPU has one, so that nothing in it
// outlives its GPU. Its methods may be called from any goroutine.
type OpCache struct {
	mu      sync.Mutex
	gpu     GPU
	kernels map[[2]string]Kernel
	scratch map[string]scratch
}

type scratch struct {
	at    DevicePtr
	bytes int
}

// NewOpCache makes the cache of a GPU; backends call it.
func NewOpCache(gpu GPU) *OpCache {
	return &OpCache{gpu: gpu, kernels: make(map[[2]string]Kernel), scratch: make(map[string]scratch)}
}

// Kernel is GPU.Kernel, asked once for each kernel. Failures are not remembered.
func (c *OpCache) Kernel(module, function string) (Kernel, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := [2]string{module, function}
	if k, ok := c.kernels[key]; ok {
		return k, nil
	}
	k, err := c.gpu.Kernel(module, function)
	if err == nil {
		c.kernels[key] = k
	}
	return k, err
}

// Scratch is device memory of at least so many bytes, the same for the same name
// until more is asked for: then it is replaced, which waits for work that uses it.
// Nothing of what it held stays. Users of one name must order their work.
func (c *OpCache) Scratch(name string, bytes int) (DevicePtr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.scratch[name]
	if old.at != 0 && old.bytes >= bytes {
		return old.at, nil
	}
	p, err := c.gpu.Alloc(bytes)
	if err != nil {
		return 0, fmt.Errorf("scratch memory %q: %w", name, err)
	}
	c.scratch[name] = scratch{p, bytes}
	if err := c.gpu.Free(old.at); err != nil {
		return 0, fmt.Errorf("scratch memory %q, replaced: %w", name, err)
	}
	return p, nil
}

// Release forgets everything and frees the scratch memory with free, which is the
// backend's: it does so when it is closed.
func (c *OpCache) Release(free func(p DevicePtr) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, s := range c.scratch {
		errs = append(errs, free(s.at))
	}
	clear(c.scratch)
	clear(c.kernels)
	return errors.Join(errs...)
}
