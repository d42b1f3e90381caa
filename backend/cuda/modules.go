//go:build cgo

package cuda

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/lanetrace/lanetrace/backend"
)

// modules are a GPU's loaded modules, made afresh for each GPU. Handles on them
// can outlive it: the last to close unloads them, through a reference of its own
// to the device's primary context, which all GPUs of the process share.
type modules struct {
	lib     library
	ordinal int

	mu     sync.Mutex
	byName map[string]uintptr
	users  int     // the GPU and handles
	ctx    primary // a reference for handles; made for the first
	hasCtx bool
}

func newModules(lib library, ordinal int) *modules {
	return &modules{lib: lib, ordinal: ordinal, byName: make(map[string]uintptr), users: 1}
}

func (m *modules) get(name string) (uintptr, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h, ok := m.byName[name]
	return h, ok
}

// load loads an image that ends with a zero byte, under a name that is free.
func (m *modules) load(ctx primary, name string, image []byte) (log string, r Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.byName[name]; ok {
		return "", ErrInvalidValue
	}
	h, log, r := ctx.moduleLoad(image)
	if r == Success {
		m.byName[name] = h
	}
	return log, r
}

// handle is one more user's.
func (m *modules) handle() (*moduleHandle, Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.hasCtx {
		ctx, r := m.lib.retain(m.ordinal)
		if r != Success {
			return nil, r
		}
		m.ctx, m.hasCtx = ctx, true
	}
	m.users++
	return &moduleHandle{m: m}, Success
}

// unload unloads everything in ctx. The caller holds mu.
func (m *modules) unload(ctx primary) (errs []error) {
	for name, h := range m.byName {
		if r := ctx.moduleUnload(h); r != Success {
			errs = append(errs, m.lib.fail(fmt.Sprintf("unload module %q", name), r))
		}
	}
	clear(m.byName)
	return errs
}

// leave takes a user back; the last unloads.
func (m *modules) leave(ctx primary) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.users--
	if m.users > 0 {
		return nil
	}
	errs := m.unload(ctx)
	if m.hasCtx {
		m.hasCtx = false
		if r := m.ctx.release(); r != Success {
			errs = append(errs, m.lib.fail("release the context of modules", r))
		}
	}
	return errors.Join(errs...)
}

// moduleHandle is a backend.Modules.
type moduleHandle struct {
	m    *modules
	once sync.Once
	err  error
	mu   sync.Mutex
	gone bool
}

// Modules is a handle on the loaded modules.
func (g *GPU) Modules() (backend.Modules, error) {
	var h *moduleHandle
	if r := g.call(func() (r Result) {
		h, r = g.modules.handle()
		return r
	}); r != Success {
		return nil, g.fail(r, "take a handle on the modules")
	}
	return h, nil
}

// Names are the modules' names, sorted.
func (h *moduleHandle) Names() []string {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	return slices.Sorted(maps.Keys(h.m.byName))
}

// Function is the driver's handle of a function.
func (h *moduleHandle) Function(module, function string) (uintptr, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := ErrDeinitialized
	var fn uintptr
	if !h.gone {
		mod, ok := h.m.get(module)
		if r = ErrNotFound; ok {
			var sizes [1]uint32
			fn, _, r = h.m.ctx.function(mod, function, sizes[:])
		}
	}
	if r != Success {
		return 0, h.m.lib.fail(fmt.Sprintf("look up function %s in module %q", function, module), r)
	}
	return fn, nil
}

// Close gives the handle back.
func (h *moduleHandle) Close() error {
	h.once.Do(func() {
		h.mu.Lock()
		h.gone = true
		h.mu.Unlock()
		h.err = h.m.leave(h.m.ctx)
	})
	return h.err
}

// KernelNTile is the width of a kernel's tile of output columns.
func (g *GPU) KernelNTile(h backend.Kernel) (uint32, error) {
	k := g.kernel(h)
	if k == nil {
		return 0, g.fail(ErrInvalidHandle, "tile width of kernel %d", h)
	}
	if k.nTile == 0 {
		return 0, g.fail(ErrNotFound, "tile width of kernel %s, whose module publishes none in %s_n_tile", k.name, k.name)
	}
	return k.nTile, nil
}

// KernelCastsAToE4M3 reports whether a kernel casts its operand A without a scale.
func (g *GPU) KernelCastsAToE4M3(h backend.Kernel) bool {
	k := g.kernel(h)
	return k != nil && k.castsA
}

// kernel is a kernel by its handle, nil if there is none.
func (g *GPU) kernel(h backend.Kernel) *kernel {
	ks := *g.kernels.Load()
	if h == 0 || uint64(h) > uint64(len(ks)) {
		return nil
	}
	return ks[h-1]
}

// OpCache is the GPU's cache of kernels and scratch memory.
func (g *GPU) OpCache() *backend.OpCache { return g.ops }

// BindThread makes the context the calling thread's.
func (g *GPU) BindThread() error {
	if r := g.call(g.ctx.bind); r != Success {
		return g.fail(r, "make the context current")
	}
	return nil
}
