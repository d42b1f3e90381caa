//go:build cgo

package cuda

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime/cgo"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanetrace/lanetrace"
	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/launchtrace"
	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// GPU is one CUDA device; it implements backend.GPU.
type GPU struct {
	backend.Accounts
	backend.Lookups
	cfg  Config
	log  *slog.Logger
	lib  library
	ctx  primary
	info device
	dev  *lanetrace.Device
	host backend.Stream // what DefaultStream returns: all GPUs of the device have it
	led  *ledger.Ledger
	trc  *launchtrace.Recorder
	band bands
	ops  *backend.OpCache

	debugSync bool
	hostFree  func() (int64, error) // the host's available memory; for tests

	// life is held for reading as long as a call is in the driver. closing: Close
	// was called. released: the context is gone, telemetry's calls are refused too.
	life     sync.RWMutex
	closing  atomic.Bool
	released atomic.Bool

	kernels atomic.Pointer[[]*kernel]  // replaced, never changed
	streams atomic.Pointer[streamSet]  // replaced, never changed
	own     atomic.Pointer[streamSet]  // telemetry's; likewise
	active  atomic.Int32               // captures begun here and not ended
	spin    atomic.Pointer[spinKernel] // nil until it is loaded
	spinMu  sync.Mutex

	mu         sync.Mutex
	modules    *modules
	pinned     map[uintptr][]byte              // page-locked memory handed out, by place
	kept       map[backend.Stream][]cgo.Handle // of pinned memory that copies need
	events     map[backend.Event]struct{}
	captures   map[backend.Stream]*capture
	graphs     map[backend.Graph]*graph
	lastGraph  backend.Graph
	lastSerial uint64
	leaving    []leaving // destroyed streams
	orphans    [][]byte  // host memory of captures that are not ours

	stage stager
}

// streamSet is the streams made here, with a number of their own for drivers that
// cannot identify streams.
type streamSet map[backend.Stream]uint64

var _ backend.GPU = (*GPU)(nil)

// Open loads the driver's library, takes a reference to the device's primary
// context, and attaches it to the configuration's hub. It fails with a
// *LibraryError, which is ErrNoDriver, where there is no usable driver, and with
// the driver's own *Error otherwise.
func Open(cfg Config) (*GPU, error) {
	cfg, err := cfg.settle(os.Getenv)
	if err != nil {
		return nil, err
	}
	g := &GPU{
		cfg: cfg, log: cfg.Logger, hostFree: hostAvailable,
		pinned: make(map[uintptr][]byte), kept: make(map[backend.Stream][]cgo.Handle), events: make(map[backend.Event]struct{}),
		captures: make(map[backend.Stream]*capture), graphs: make(map[backend.Graph]*graph),
	}
	if g.led, err = cfg.Memory.NewLedger(ledger.Options{Logger: cfg.Logger}, os.Getenv); err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	if g.debugSync, err = backend.DebugSync(os.Getenv); err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	g.Accounts, g.ops = backend.AccountsOf(g.led), backend.NewOpCache(g)
	cfg.Trace.Ring, cfg.Trace.Resolve = cfg.Hub.Ring(), backend.ResolveAllocation(g.led)
	cfg.Trace.Logger = cfg.Logger
	cfg.Trace.Publish = func() bool { return cfg.Hub.Level() >= lanetrace.LevelBasic }
	g.trc = launchtrace.New(cfg.Trace)
	if g.lib, err = openLibrary(cfg.Library); err != nil {
		return nil, err
	}
	if err := g.open(); err != nil {
		g.lib.close()
		return nil, err
	}
	return g, nil
}

func (g *GPU) open() error {
	var step string
	var r Result
	g.info, step, r = g.lib.init(g.cfg.Ordinal)
	if r != Success {
		return g.lib.fail(fmt.Sprintf("%s %d of %d (%s)", step, g.cfg.Ordinal, g.info.count, g.cfg.Library), r)
	}
	if g.ctx, r = g.lib.retain(g.cfg.Ordinal); r != Success {
		return g.lib.fail(fmt.Sprintf("retain the primary context of device %d", g.cfg.Ordinal), r)
	}
	g.modules = newModules(g.lib, g.cfg.Ordinal)
	g.kernels.Store(new([]*kernel))
	if g.host, r = defaults.join(g.ctx); r != Success {
		_ = g.ctx.release()
		return g.lib.fail("create the default stream", r)
	}
	g.lastSerial = 2
	g.streams.Store(&streamSet{0: 1, g.host: g.lastSerial})
	g.own.Store(&streamSet{})
	g.stage.init(g)
	var err error
	if g.dev, err = g.cfg.Hub.Attach(driver{g}); err != nil {
		_ = defaults.leave(g.ctx)
		_ = g.ctx.release()
		return fmt.Errorf("cuda: open device %d: %w", g.cfg.Ordinal, err)
	}
	g.dev.AttachLedger(g.led)
	if ring := g.cfg.Hub.Ring(); ring != nil && ring.FD() >= 0 {
		if err := forkGuard(ring.FD()); err != nil {
			g.log.Warn("cuda: a forked child would keep the ring's lock", "reason", err.Error())
		}
	}
	return nil
}

// LaunchTrace records what regions of the engine enqueue.
func (g *GPU) LaunchTrace() *launchtrace.Recorder { return g.trc }

// DriverVersion is the CUDA version of the driver, major*1000 + minor*10.
func (g *GPU) DriverVersion() int { return g.info.driverVersion }

// UUID identifies the device, or the MIG instance.
func (g *GPU) UUID() [16]byte { return g.info.uuid }

// Capability is the compute capability, major*10 + minor.
func (g *GPU) Capability() int { return g.info.capability }

// Telemetry is the device's side of the hub.
func (g *GPU) Telemetry() *lanetrace.Device { return g.dev }

// Driver is the context as telemetry's recorder sees it, for recorders made
// without a hub.
func (g *GPU) Driver() cudaevents.Driver { return driver{g} }

// acquire keeps the context alive until release. It fails once Close was called:
// whoever holds life from then on gives it back at once, so that Close, which has
// held it for writing once, knows that nobody is in the driver.
func (g *GPU) acquire() bool {
	g.life.RLock()
	if g.closing.Load() {
		g.life.RUnlock()
		return false
	}
	return true
}

func (g *GPU) release() { g.life.RUnlock() }

// call runs f, one operation, unless the GPU is closed.
func (g *GPU) call(f func() Result) Result {
	if !g.acquire() {
		return ErrDeinitialized
	}
	defer g.release()
	return f()
}

// fail makes an error of a result; op says what was tried. It is for the failing
// path alone: its arguments allocate.
func (g *GPU) fail(r Result, op string, args ...any) *Error {
	return g.lib.fail(fmt.Sprintf(op, args...), r)
}

// kernel is a looked-up kernel; its handle is its place in the list plus 1.
type kernel struct {
	fn     uintptr
	id     spanring.NameID
	params []uint32 // sizes; nil where the driver cannot say
	nTile  uint32   // 0: its module does not say
	castsA bool
	name   string
}

// LoadModule loads PTX or a cubin. What the driver's compiler says to PTX that it
// refuses is in the error. A name can be loaded once.
func (g *GPU) LoadModule(name string, image []byte) error {
	var log string
	r := g.call(func() (r Result) {
		if len(image) == 0 {
			return ErrInvalidValue
		}
		log, r = g.modules.load(g.ctx, name, append(slices.Clip(image), 0))
		return r
	})
	if r == Success {
		return nil
	}
	err := g.fail(r, "load module %q of %d bytes", name, len(image))
	err.Detail = log
	return err
}

// HasModule reports whether a module is loaded.
func (g *GPU) HasModule(name string) bool {
	_, ok := g.modules.get(name)
	return ok && !g.closing.Load()
}

// Kernel looks up a kernel of a loaded module.
func (g *GPU) Kernel(module, function string) (h backend.Kernel, err error) {
	if r := g.call(func() Result {
		m, ok := g.modules.get(module)
		if !ok {
			return ErrNotFound
		}
		var sizes [backend.MaxArgs + 1]uint32
		fn, n, r := g.ctx.function(m, function, sizes[:])
		if r != Success {
			return r
		}
		k := &kernel{fn: fn, id: g.dev.Name(spanring.NameKernel, function), name: function}
		if n >= 0 {
			k.params = append([]uint32{}, sizes[:n]...)
		}
		// What a module says of a kernel is in globals that most do not have.
		k.nTile, _ = g.ctx.moduleWord(m, function+"_n_tile")
		e4m3, _ := g.ctx.moduleWord(m, function+"_a_e4m3")
		k.castsA = e4m3 != 0
		g.mu.Lock()
		defer g.mu.Unlock()
		next := append(slices.Clone(*g.kernels.Load()), k)
		g.kernels.Store(&next)
		h = backend.Kernel(len(next))
		g.trc.Name(uint64(fn), module+"::"+function)
		return Success
	}); r != Success {
		g.NoteFailed(module, function)
		err = g.fail(r, "look up kernel %s in module %q", function, module)
	}
	return h, err
}

// TotalMemory is the device's memory in bytes.
func (g *GPU) TotalMemory() (int64, error) {
	_, total, err := g.memInfo()
	return total, err
}

// DeviceFreeMemory is the driver's figure of free device memory in bytes.
func (g *GPU) DeviceFreeMemory() (int64, error) {
	free, _, err := g.memInfo()
	return free, err
}

// FreeMemory is what can be allocated, in bytes: the driver's figure or, on an
// integrated GPU, which shares the host's memory, what the host has available
// where that is more.
func (g *GPU) FreeMemory() (int64, error) {
	free, _, err := g.memInfo()
	if err == nil && g.info.integrated {
		var host int64
		if host, err = g.hostFree(); err == nil {
			free = max(free, host)
		}
	}
	return free, err
}

func (g *GPU) memInfo() (free, total int64, err error) {
	if r := g.call(func() Result {
		f, t, r := g.ctx.memInfo()
		free, total = int64(f), int64(t)
		return r
	}); r != Success {
		err = g.fail(r, "ask for free memory")
	}
	return free, total, err
}

// SMCount is the number of multiprocessors.
func (g *GPU) SMCount() (int, error) { return g.info.sms, nil }

// Name is the device's name.
func (g *GPU) Name() string { return g.info.name }

// closePoll is how often Close looks whether work in flight is complete.
const closePoll = 100 * time.Microsecond

// Close waits for calls and work in flight, for DrainWait at the most, takes the
// context from its hub, frees everything that was made here and gives the context
// back. Where something is still running by then it frees nothing, since the
// driver might wait for ever, and says so. Closing twice does nothing.
func (g *GPU) Close() error {
	if !g.closing.CompareAndSwap(false, true) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), g.cfg.DrainWait)
	defer cancel()
	alone := poll(ctx, g.life.TryLock)
	if alone {
		g.life.Unlock()
		for s := range maps.Clone(g.captures) {
			g.ctx.captureAbort(s)
			g.giveUp(g.dropCapture(s))
		}
	}
	idle := alone && g.drain(ctx)
	var swept error
	if idle {
		// While the ledger still writes to the ring.
		swept = g.sweepAll()
	}
	err := g.dev.Detach(ctx)
	if !idle {
		g.released.Store(true)
		return errors.Join(g.fail(ErrNotReady, "close device %d: work still in flight after %v, the context is left as it is", g.cfg.Ordinal, g.cfg.DrainWait), err)
	}
	errs := append(g.freeAll(), swept, err)
	g.released.Store(true)
	if r := g.ctx.release(); r != Success {
		errs = append(errs, g.fail(r, "release the primary context of device %d", g.cfg.Ordinal))
	}
	return errors.Join(errs...)
}

// drain waits until nothing that was enqueued here is running, or the context has
// failed, after which nothing runs.
func (g *GPU) drain(ctx context.Context) bool {
	for s := range *g.streams.Load() {
		if s != 0 && !poll(ctx, func() bool { return g.quiet(s) }) {
			return false
		}
	}
	for _, l := range g.leaving {
		if l.end != 0 && !poll(ctx, func() bool { return g.ctx.stagedDone(l.end, false) != ErrNotReady }) {
			return false
		}
	}
	return true
}

// quiet reports whether a stream's work is complete, or the context has failed.
// While another GPU captures the default stream it cannot be asked, which would
// spoil that capture: it is not quiet then.
func (g *GPU) quiet(s backend.Stream) bool {
	if s != g.host {
		return g.ctx.streamQuery(s) != ErrNotReady
	}
	r := g.ctx.streamQuiet(s)
	return r != ErrNotReady && r != capturing
}

func poll(ctx context.Context, done func() bool) bool {
	for !done() {
		select {
		case <-ctx.Done():
			return done()
		case <-time.After(closePoll):
		}
	}
	return true
}

// freeAll frees what was made here. Nobody else is in the driver.
func (g *GPU) freeAll() (errs []error) {
	check := func(r Result, op string, args ...any) {
		if r != Success {
			errs = append(errs, g.fail(r, op, args...))
		}
	}
	for id, gr := range g.graphs {
		check(g.ctx.graphDestroy(gr.exec), "destroy graph %d", id)
		_ = gr.lanes.Close()
		for _, b := range gr.held {
			check(g.ctx.hostFree(b), "free a graph's host memory")
		}
	}
	for _, b := range g.orphans {
		check(g.ctx.hostFree(b), "free a capture's host memory")
	}
	g.stage.free(check)
	for e := range g.events {
		check(g.ctx.eventDestroy(e), "destroy event %#x", e)
	}
	for _, l := range g.leaving {
		if l.end != 0 {
			check(g.ctx.eventDestroy(l.end), "destroy an event of a stream's")
		}
		g.letGo(l.kept)
	}
	for s := range *g.streams.Load() {
		if s != 0 && s != g.host {
			check(g.ctx.streamDestroy(s), "destroy stream %#x", s)
		}
	}
	check(defaults.leave(g.ctx), "destroy the default stream")
	for _, b := range g.pinned {
		check(g.ctx.hostFree(b), "free %d bytes of page-locked memory", len(b))
	}
	for s := range g.kept {
		g.letGo(g.takeKept(s))
	}
	if err := g.modules.leave(g.ctx); err != nil {
		errs = append(errs, err)
	}
	if sp := g.spin.Load(); sp != nil {
		check(g.ctx.telModuleUnload(sp.module), "unload the spin kernel")
	}
	g.band.free(g, check)
	return errs
}
