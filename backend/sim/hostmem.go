package sim

import (
	"fmt"
	"slices"
	"sync"

	"github.com/lanetrace/lanetrace/backend"
)

// hostMemory is what AllocHostPinned gave.
type hostMemory struct {
	mu  sync.Mutex
	all [][]byte
}

// AllocHostPinned allocates plain host memory on a border of 64 bytes.
func (g *GPU) AllocHostPinned(bytes int) ([]byte, error) {
	err := g.enter("AllocHostPinned")
	g.mu.Unlock()
	if err == nil && bytes <= 0 {
		err = errInvalidValue
	}
	if err != nil {
		return nil, fmt.Errorf("sim: allocate %d bytes of host memory: %w", bytes, err)
	}
	b := backend.AlignedBytes(bytes)
	g.pinned.mu.Lock()
	g.pinned.all = append(g.pinned.all, b)
	g.pinned.mu.Unlock()
	return b, nil
}

// FreeHostPinned takes it back.
func (g *GPU) FreeHostPinned(b []byte) error {
	err := g.enter("FreeHostPinned")
	g.mu.Unlock()
	if err == nil {
		g.pinned.mu.Lock()
		defer g.pinned.mu.Unlock()
		i := slices.IndexFunc(g.pinned.all, func(x []byte) bool { return len(b) > 0 && backend.SameMemory(b, &x[0], len(x)) })
		if i >= 0 {
			g.pinned.all = slices.Delete(g.pinned.all, i, i+1)
			return nil
		}
		err = errInvalidValue
	}
	return fmt.Errorf("sim: free %d bytes of host memory: %w", len(b), err)
}

// HostPtrToDevice is not supported: kernels of the sim see device memory alone.
func (g *GPU) HostPtrToDevice([]byte) (backend.DevicePtr, error) {
	return 0, fmt.Errorf("sim: a device address of host memory: %w", backend.ErrNotSupported)
}

// BindThread does nothing: there is no context to bind.
func (g *GPU) BindThread() error {
	err := g.enter("")
	g.mu.Unlock()
	if err != nil {
		return fmt.Errorf("sim: bind thread: %w", err)
	}
	return nil
}

// Modules is not supported: there is no driver whose handles it could give.
func (g *GPU) Modules() (backend.Modules, error) {
	return nil, fmt.Errorf("sim: a handle on the modules: %w", backend.ErrNotSupported)
}

// OpCache is the GPU's cache of kernels and scratch memory.
func (g *GPU) OpCache() *backend.OpCache { return g.ops }

// DebugSyncKernels reports whether every launch is waited for.
func (g *GPU) DebugSyncKernels() bool { return g.debugSync }

// launched waits for a launch, but for one that was captured.
func (g *GPU) launched(h backend.Stream) error {
	s, err := g.enterStream("", h)
	capturing := err == nil && s.cap != nil
	g.mu.Unlock()
	if err != nil || capturing {
		return err
	}
	return g.Synchronize(h)
}

func (g *GPU) kernel(h backend.Kernel) *kernel {
	ks := *g.kernels.Load()
	if h == 0 || uint64(h) > uint64(len(ks)) {
		return nil
	}
	return ks[h-1]
}

// KernelNTile is Function.NTile.
func (g *GPU) KernelNTile(h backend.Kernel) (uint32, error) {
	k := g.kernel(h)
	switch {
	case k == nil:
		return 0, fmt.Errorf("sim: tile width of kernel %d: %w", h, errInvalidHandle)
	case k.fn.NTile == 0:
		return 0, fmt.Errorf("sim: tile width of kernel %s, which publishes none: %w", k.name, errNotFound)
	}
	return k.fn.NTile, nil
}

// KernelCastsAToE4M3 is Function.CastsAToE4M3.
func (g *GPU) KernelCastsAToE4M3(h backend.Kernel) bool {
	k := g.kernel(h)
	return k != nil && k.fn.CastsAToE4M3
}

// LaunchUntyped launches a kernel with parameters by address, of up to 8 bytes
// each, whose sizes must be in its Function.
func (g *GPU) LaunchUntyped(h backend.Kernel, l *backend.Launch, params []backend.Param) error {
	k := g.kernel(h)
	if k == nil {
		return fmt.Errorf("sim: launch kernel %d: %w", h, errInvalidHandle)
	}
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("sim: launch %s: "+format+": %w", append(append([]any{k.name}, args...), errInvalidValue)...)
	}
	switch {
	case len(l.Args) > 0:
		return refuse("%d typed arguments of an untyped launch", len(l.Args))
	case k.fn.Params == nil:
		return fmt.Errorf("sim: launch %s, whose parameters are not declared: %w", k.name, backend.ErrNotSupported)
	case len(params) != len(k.fn.Params):
		return refuse("%d parameters, it has %d", len(params), len(k.fn.Params))
	}
	typed := *l
	typed.Args = make([]backend.Arg, len(params))
	for i, p := range params {
		if p == nil {
			return refuse("parameter %d has no address", i)
		}
		size := k.fn.Params[i]
		for j, b := range backend.ParamBytes(p, int(size)) {
			typed.Args[i].Bits |= uint64(b) << (8 * j)
		}
		typed.Args[i].Size = size
	}
	return g.Launch(h, &typed)
}

// CopyHtoDAsyncRetained enqueues a copy; the memory is read when it runs.
func (g *GPU) CopyHtoDAsyncRetained(dst backend.DevicePtr, src []byte, s backend.Stream) error {
	d, err := g.device(dst, len(src))
	if err == nil {
		err = g.keptCopy("CopyHtoDAsyncRetained", s, src, func() { copy(d, src) })
	}
	return wrapCopy(err, "host to device", 0, dst, len(src))
}

// CopyDtoHAsync enqueues a copy; the memory is written when it runs.
func (g *GPU) CopyDtoHAsync(dst []byte, src backend.DevicePtr, s backend.Stream) error {
	b, err := g.device(src, len(dst))
	if err == nil {
		err = g.keptCopy("CopyDtoHAsync", s, dst, func() { copy(dst, b) })
	}
	return wrapCopy(err, "device to host", src, 0, len(dst))
}

// keptCopy enqueues a copy from or to host memory that the copy itself keeps. In a
// capture that must be the GPU's own.
func (g *GPU) keptCopy(method string, h backend.Stream, host []byte, body func()) error {
	g.mu.Lock()
	s := g.byHandle[h]
	capturing := s != nil && s.cap != nil
	g.mu.Unlock()
	if capturing && len(host) > 0 && !g.pinned.holds(host) {
		return errCapture
	}
	return g.do(method, h, len(host), g.cfg.HostBytesPerUS, false, body)
}

// holds reports whether b lies in memory that was handed out.
func (m *hostMemory) holds(b []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.all, func(x []byte) bool { return backend.WithinMemory(b, x) })
}

// CopyDtoD2DAsync enqueues a copy of rows within the device.
func (g *GPU) CopyDtoD2DAsync(dst backend.DevicePtr, dstPitch int, src backend.DevicePtr, srcPitch, width, height int, s backend.Stream) error {
	if width == 0 || height == 0 {
		return nil
	}
	err := error(errInvalidValue)
	if width > 0 && height > 0 && dstPitch >= width && srcPitch >= width {
		var to, from []byte
		if to, err = g.device(dst, (height-1)*dstPitch+width); err == nil {
			from, err = g.device(src, (height-1)*srcPitch+width)
		}
		if err == nil {
			err = g.do("CopyDtoD2DAsync", s, width*height, g.cfg.DeviceBytesPerUS, false, func() {
				for y := range height {
					copy(to[y*dstPitch:][:width], from[y*srcPitch:])
				}
			})
		}
		if err == nil {
			g.trc.CopyRows(uint64(s), uint64(dst), uint64(dstPitch), uint64(src), uint64(srcPitch), uint64(width), uint64(height))
		}
	}
	return wrapCopy(err, "in rows within the device", src, dst, width*height)
}
