package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
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

// GPU is a simulated GPU; it implements backend.GPU. One lock guards all of it
// but kernels' bodies and the memory itself.
type GPU struct {
	backend.Accounts
	backend.Lookups
	cfg    Config
	log    *slog.Logger
	dev    *lanetrace.Device
	mem    memory
	led    *ledger.Ledger
	trc    *launchtrace.Recorder
	ops    *backend.OpCache
	pinned hostMemory

	// allocating are allocations that are the device's and not yet on the ledger. They
	// are added under the lock while the GPU is not closing.
	allocating sync.WaitGroup

	debugSync bool
	bootNS    int64
	host      backend.Stream // what DefaultStream returns

	kernels    atomic.Pointer[[]*kernel] // replaced, never changed
	launchCall atomic.Int64              // ns

	mu      sync.Mutex
	changed *sync.Cond // an operation completed, or more
	workers sync.WaitGroup

	streams     []*stream // with a worker
	byHandle    map[backend.Stream]*stream
	freeStreams []backend.Stream // last in, first out: handles are used again
	lastStream  backend.Stream
	lastID      uint64

	events     map[cudaevents.Event]*event
	freeEvents []cudaevents.Event
	lastEvent  cudaevents.Event

	modules   map[string]Module
	graphs    map[backend.Graph]*graph
	lastGraph backend.Graph
	captures  int
	leftLanes []*cudaevents.GraphLanes // of graphs that are gone

	freeOps *op
	faults  map[string]fault
	sticky  code // what every call fails with since a kernel failed

	closing bool // Close was called: the engine's calls are refused
	closed  bool // the driver's too
	aborted bool // what is queued is dropped
}

var _ backend.GPU = (*GPU)(nil)

// Open makes a GPU and attaches it to the configuration's hub.
func Open(cfg Config) (*GPU, error) {
	cfg, err := cfg.settle()
	if err != nil {
		return nil, err
	}
	g := &GPU{
		cfg: cfg, log: cfg.Logger, lastStream: 0x5000, lastEvent: 0x9000,
		byHandle: make(map[backend.Stream]*stream), events: make(map[cudaevents.Event]*event),
		modules: make(map[string]Module), graphs: make(map[backend.Graph]*graph),
		faults: make(map[string]fault),
	}
	if g.led, err = cfg.Memory.NewLedger(ledger.Options{Logger: cfg.Logger}, os.Getenv); err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	if g.debugSync, err = backend.DebugSync(os.Getenv); err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	g.Accounts, g.ops = backend.AccountsOf(g.led), backend.NewOpCache(g)
	cfg.Trace.Ring, cfg.Trace.Resolve = cfg.Hub.Ring(), backend.ResolveAllocation(g.led)
	cfg.Trace.Logger = cfg.Logger
	cfg.Trace.Publish = func() bool { return cfg.Hub.Level() >= lanetrace.LevelBasic }
	g.trc = launchtrace.New(cfg.Trace)
	g.mem = memory{total: cfg.TotalMemory, next: firstAddress, free: make(map[int64][]backend.DevicePtr)}
	g.changed = sync.NewCond(&g.mu)
	g.kernels.Store(new([]*kernel))
	g.launchCall.Store(int64(cfg.LaunchCall))
	g.bootNS = g.now()
	if cfg.Clock != nil {
		cfg.Clock.attach(g)
	}
	g.mu.Lock()
	g.startStream(0)
	g.host = g.startStream(g.streamHandle()).handle
	g.mu.Unlock()
	if g.dev, err = cfg.Hub.Attach(driver{g}); err != nil {
		g.shutdown()
		return nil, fmt.Errorf("sim: open: %w", err)
	}
	g.dev.AttachLedger(g.led)
	return g, nil
}

// Telemetry is the GPU's side of the hub.
func (g *GPU) Telemetry() *lanetrace.Device { return g.dev }

// LaunchTrace records what regions of the engine enqueue.
func (g *GPU) LaunchTrace() *launchtrace.Recorder { return g.trc }

// Driver is the GPU as telemetry's recorder sees it, for recorders made without
// a hub.
func (g *GPU) Driver() cudaevents.Driver { return driver{g} }

// enter takes the lock for one of the engine's calls and returns the error that
// it is to give.
func (g *GPU) enter(method string) error {
	g.mu.Lock()
	if g.closing {
		return errClosed
	}
	return g.fault(method)
}

// kernel is a looked-up kernel; its handle is its place in the list plus 1.
type kernel struct {
	fn   *Function
	name string
	id   spanring.NameID
}

// LoadModule loads the registered module of that name. It can be loaded once.
func (g *GPU) LoadModule(name string, _ []byte) error {
	err := g.enter("LoadModule")
	defer g.mu.Unlock()
	if err == nil {
		m, ok := g.cfg.Modules[name]
		_, loaded := g.modules[name]
		switch {
		case !ok:
			err = errNotFound
		case loaded:
			err = errInvalidValue
		default:
			g.modules[name] = m
			return nil
		}
	}
	return fmt.Errorf("sim: load module %q: %w", name, err)
}

// HasModule reports whether a module is loaded.
func (g *GPU) HasModule(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.modules[name]
	return ok && !g.closing
}

// Kernel looks up a kernel of a loaded module.
func (g *GPU) Kernel(module, function string) (backend.Kernel, error) {
	err := g.enter("Kernel")
	defer g.mu.Unlock()
	if err == nil {
		fn, ok := g.modules[module][function]
		if ok {
			old := *g.kernels.Load()
			next := append(slices.Clone(old), &kernel{&fn, function, g.dev.Name(spanring.NameKernel, function)})
			g.kernels.Store(&next)
			g.trc.Name(uint64(len(next)), module+"::"+function)
			return backend.Kernel(len(next)), nil
		}
		err = errNotFound
	}
	g.NoteFailed(module, function)
	return 0, fmt.Errorf("sim: look up kernel %s.%s: %w", module, function, err)
}

// spinCost is how long so many cycles of the GPU's clock keep it busy.
func (g *GPU) spinCost(cycles uint64) time.Duration {
	return time.Duration(float64(cycles)*1e3/float64(g.cfg.CyclesPerUS)) + spinFixed
}

// SpinKernel is a kernel of one u64 parameter that keeps its stream busy for so
// many cycles of the GPU's clock.
func SpinKernel() Function {
	return Function{
		Params: []uint8{8},
		Cost:   func(c *Call) time.Duration { return c.gpu.spinCost(c.U64(0)) },
	}
}

// TotalMemory is the device's memory in bytes.
func (g *GPU) TotalMemory() (int64, error) {
	total, _, err := g.memoryFigures()
	return total, err
}

// DeviceFreeMemory is what is not allocated, in bytes.
func (g *GPU) DeviceFreeMemory() (int64, error) {
	_, free, err := g.memoryFigures()
	return free, err
}

// FreeMemory is DeviceFreeMemory or, on an integrated GPU, what the host has
// available where that is more.
func (g *GPU) FreeMemory() (int64, error) {
	_, free, err := g.memoryFigures()
	if err == nil && g.cfg.HostAvailable > free {
		free = g.cfg.HostAvailable
	}
	return free, err
}

func (g *GPU) memoryFigures() (total, free int64, err error) {
	err = g.enter("")
	g.mu.Unlock()
	if err != nil {
		return 0, 0, fmt.Errorf("sim: memory figures: %w", err)
	}
	total, free = g.mem.figures()
	return total, free, nil
}

// SMCount is the number of multiprocessors.
func (g *GPU) SMCount() (int, error) { return g.cfg.SMs, nil }

// Name is the device's name.
func (g *GPU) Name() string { return g.cfg.Name }

// Close lets what is in flight complete, for DrainWait at the most, takes the
// GPU from its hub and ends its goroutines. What is not complete by then is
// dropped, which is an error. With a manual clock it waits for nothing. Closing
// twice does nothing.
func (g *GPU) Close() error {
	g.mu.Lock()
	if g.closing {
		g.mu.Unlock()
		return nil
	}
	g.closing = true
	g.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), g.cfg.DrainWait)
	defer cancel()
	if g.cfg.Clock != nil {
		cancel()
	}
	left := g.drain(ctx)
	g.allocating.Wait() // for a moment: since closing was set there are no more
	// While the ledger still writes to the ring.
	scratch := g.ops.Release(g.freeTaken)
	_, swept := g.sweep()
	g.freeArenas()
	err := errors.Join(scratch, swept, g.dev.Detach(ctx))
	g.mu.Lock()
	for _, gr := range g.graphs {
		g.leave(gr.lanes)
	}
	g.mu.Unlock()
	g.closeLanes()
	g.shutdown()
	if err != nil {
		return fmt.Errorf("sim: close: %w", err)
	}
	if left > 0 && g.cfg.Clock == nil {
		return fmt.Errorf("sim: close: %d streams still had work after %v, it was dropped: %w", left, g.cfg.DrainWait, errNotReady)
	}
	return nil
}

// drain waits until no stream has work left and returns how many have when ctx
// is over.
func (g *GPU) drain(ctx context.Context) int {
	stop := context.AfterFunc(ctx, func() {
		g.mu.Lock()
		g.changed.Broadcast()
		g.mu.Unlock()
	})
	defer stop()
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		left := 0
		for _, s := range g.streams {
			if g.advance(s) != holdEmpty {
				left++
			}
		}
		if left == 0 || ctx.Err() != nil {
			return left
		}
		g.changed.Wait()
	}
}

// shutdown ends every stream's goroutine.
func (g *GPU) shutdown() {
	g.mu.Lock()
	g.closing, g.closed, g.aborted = true, true, true
	for _, s := range g.streams {
		s.closing = true
	}
	g.wakeAll()
	g.mu.Unlock()
	g.workers.Wait()
	if g.cfg.Clock != nil {
		g.cfg.Clock.detach(g)
	}
}
