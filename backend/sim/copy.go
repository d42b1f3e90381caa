package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/lanetrace/lanetrace/backend"
)

// device is device memory that a copy or memset was asked to touch. What a
// kernel would fault on is the caller's bad argument here.
func (g *GPU) device(p backend.DevicePtr, bytes int) ([]byte, error) {
	b, err := g.mem.bytes(p, bytes)
	if err != nil {
		return nil, errInvalidValue
	}
	return b, nil
}

// do enqueues body on a stream and, with sync, waits for it.
func (g *GPU) do(method string, h backend.Stream, bytes int, perUS int64, sync bool, body func()) error {
	if bytes == 0 {
		return nil
	}
	s, err := g.enterStream(method, h)
	defer g.mu.Unlock()
	if err != nil {
		return err
	}
	dur := g.scaled(g.cfg.CopyCost + time.Duration(float64(bytes)*1e3/float64(perUS)))
	if s.cap != nil {
		if sync {
			return errCapture
		}
		return s.cap.add(s, &node{body: body, durNS: dur})
	}
	o := g.newOp(opFunc)
	o.body, o.durNS = body, dur
	g.enqueue(s, o)
	if sync {
		return g.wait(o)
	}
	return nil
}

// CopyHtoD copies to the device on the default stream and waits for it.
func (g *GPU) CopyHtoD(dst backend.DevicePtr, src []byte) error {
	d, err := g.device(dst, len(src))
	if err == nil {
		err = g.do("CopyHtoD", g.host, len(src), g.cfg.HostBytesPerUS, true, func() { copy(d, src) })
	}
	return wrapCopy(err, "host to device", 0, dst, len(src))
}

// CopyDtoH copies from the device on the default stream and waits for it.
func (g *GPU) CopyDtoH(dst []byte, src backend.DevicePtr) error {
	return g.copyDtoH("CopyDtoH", dst, src, g.host)
}

// CopyDtoHOnStream copies from the device behind the work on a stream and waits
// for it.
func (g *GPU) CopyDtoHOnStream(dst []byte, src backend.DevicePtr, s backend.Stream) error {
	return g.copyDtoH("CopyDtoHOnStream", dst, src, s)
}

func (g *GPU) copyDtoH(method string, dst []byte, src backend.DevicePtr, s backend.Stream) error {
	b, err := g.device(src, len(dst))
	if err == nil {
		err = g.do(method, s, len(dst), g.cfg.HostBytesPerUS, true, func() { copy(dst, b) })
	}
	return wrapCopy(err, "device to host", src, 0, len(dst))
}

// CopyHtoDAsync enqueues a copy of what src holds now.
func (g *GPU) CopyHtoDAsync(dst backend.DevicePtr, src []byte, s backend.Stream) error {
	d, err := g.device(dst, len(src))
	if err == nil {
		staged := slices.Clone(src)
		err = g.do("CopyHtoDAsync", s, len(src), g.cfg.HostBytesPerUS, false, func() { copy(d, staged) })
	}
	return wrapCopy(err, "host to device", 0, dst, len(src))
}

// CopyDtoD copies within the device on the default stream and waits for it.
func (g *GPU) CopyDtoD(dst, src backend.DevicePtr, bytes int) error {
	return g.copyDtoD("CopyDtoD", dst, src, bytes, g.host, true)
}

// CopyDtoDAsync enqueues a copy within the device.
func (g *GPU) CopyDtoDAsync(dst, src backend.DevicePtr, bytes int, s backend.Stream) error {
	return g.copyDtoD("CopyDtoDAsync", dst, src, bytes, s, false)
}

func (g *GPU) copyDtoD(method string, dst, src backend.DevicePtr, bytes int, s backend.Stream, sync bool) error {
	to, err := g.device(dst, bytes)
	if err == nil {
		var from []byte
		if from, err = g.device(src, bytes); err == nil {
			err = g.do(method, s, bytes, g.cfg.DeviceBytesPerUS, sync, func() { copy(to, from) })
			if err == nil && !sync && bytes > 0 {
				g.trc.Copy(uint64(s), uint64(dst), uint64(src), uint64(bytes))
			}
		}
	}
	return wrapCopy(err, "within the device", src, dst, bytes)
}

func wrapCopy(err error, what string, src, dst backend.DevicePtr, bytes int) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("sim: copy %d bytes %s (from %#x to %#x): %w", bytes, what, src, dst, err)
}

// Memset sets device memory on the default stream and waits for it.
func (g *GPU) Memset(p backend.DevicePtr, value byte, bytes int) error {
	return g.memset("Memset", p, value, bytes, g.host, true)
}

// MemsetAsync enqueues the setting of device memory.
func (g *GPU) MemsetAsync(p backend.DevicePtr, value byte, bytes int, s backend.Stream) error {
	return g.memset("MemsetAsync", p, value, bytes, s, false)
}

func (g *GPU) memset(method string, p backend.DevicePtr, value byte, bytes int, s backend.Stream, sync bool) error {
	d, err := g.device(p, bytes)
	if err == nil {
		err = g.do(method, s, bytes, g.cfg.DeviceBytesPerUS, sync, func() {
			for i := range d {
				d[i] = value
			}
		})
	}
	if err == nil && !sync && bytes > 0 {
		g.trc.Memset(uint64(s), uint64(p), value, uint64(bytes))
	}
	if err != nil {
		return fmt.Errorf("sim: set %d bytes at %#x: %w", bytes, p, err)
	}
	return nil
}
