//go:build cgo

package cuda

import (
	"fmt"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/spanring"
)

// Launch enqueues a kernel; on armed steps it is timed. It is one crossing into C
// and does not allocate. Arguments are checked against the kernel's parameters
// where the driver knows them (from CUDA 12.4).
func (g *GPU) Launch(h backend.Kernel, l *backend.Launch) error {
	if !g.acquire() {
		return g.fail(ErrDeinitialized, "launch kernel %d", h)
	}
	defer g.release()
	ks := *g.kernels.Load()
	if h == 0 || uint64(h) > uint64(len(ks)) {
		return g.fail(ErrInvalidHandle, "launch kernel %d", h)
	}
	k := ks[h-1]
	if !k.accepts(l.Args) {
		return k.mismatch(l.Args)
	}
	if !g.hasStream(l.Stream) {
		return g.fail(ErrInvalidHandle, "launch %s on stream %#x", k.name, l.Stream)
	}
	d := kernelDesc(k.fn, l)
	r := g.launch(spanring.KindKernel, k.id, l.Stream, &d, &arguments{args: l.Args})
	if r == Success && g.debugSync {
		r = g.launched(l.Stream)
	}
	if r != Success {
		return g.fail(r, "launch %s on stream %#x, grid %v, block %v, %d bytes shared", k.name, l.Stream, l.Grid, l.Block, l.SharedBytes)
	}
	if g.trc.On() {
		var words [backend.MaxArgs]uint64
		g.trc.Kernel(uint64(l.Stream), uint64(k.fn), l.Grid, l.Block, l.SharedBytes, backend.ArgWords(&words, l.Args))
	}
	return nil
}

// launched waits for a launch, but for one that was captured.
func (g *GPU) launched(s backend.Stream) Result {
	if r := g.ctx.streamSettle(s); r != capturing {
		return r
	}
	return Success
}

// DebugSyncKernels reports whether every launch is waited for.
func (g *GPU) DebugSyncKernels() bool { return g.debugSync }

func (g *GPU) launch(kind spanring.Kind, name spanring.NameID, s backend.Stream, d *launchDesc, args *arguments) Result {
	if g.dev.Timing() {
		if tl, ok := g.dev.LaunchBegin(kind, s, name); ok {
			r := g.ctx.launchTimed(d, args, tl.Pair)
			g.dev.LaunchEnd(tl, r)
			return Result(r.LaunchResult)
		}
	}
	return g.ctx.launch(d, args)
}

// accepts reports whether the kernel can be called with args: the driver reads
// as many and as wide ones as it has parameters, whatever there is.
func (k *kernel) accepts(args []backend.Arg) bool {
	if len(args) > backend.MaxArgs || k.params != nil && len(k.params) != len(args) {
		return false
	}
	for i := range args {
		n := args[i].Size
		if n != 1 && n != 2 && n != 4 && n != 8 || k.params != nil && k.params[i] != uint32(n) {
			return false
		}
	}
	return true
}

func (k *kernel) mismatch(args []backend.Arg) error {
	e := &Error{Op: "launch " + k.name, Result: ErrInvalidValue}
	switch {
	case len(args) > backend.MaxArgs:
		e.Detail = fmt.Sprintf("%d arguments, at most %d", len(args), backend.MaxArgs)
	case k.params != nil && len(k.params) != len(args):
		e.Detail = fmt.Sprintf("%d arguments, it has %d parameters", len(args), len(k.params))
	default:
		sizes := make([]uint8, len(args))
		for i, a := range args {
			sizes[i] = a.Size
		}
		e.Detail = fmt.Sprintf("arguments of %d bytes, its parameters have %d", sizes, k.params)
	}
	return e
}

var _ cudaevents.Driver = driver{}
