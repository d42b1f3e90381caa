package sim

import (
	"fmt"
	"slices"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/cudaevents"
)

// faultable are the calls that FailNext knows: methods of backend.GPU, and of
// the driver that telemetry uses.
var faultable = []string{
	"Alloc", "AllocArena", "AllocHostPinned", "AllocManaged", "Anchor", "BeginCapture", "CopyDtoD", "CopyDtoD2DAsync", "CopyDtoDAsync", "CopyDtoH", "CopyDtoHAsync", "CopyDtoHOnStream",
	"CopyHtoD", "CopyHtoDAsync", "CopyHtoDAsyncRetained", "CreateEvent", "CreateEvents", "CreateStream", "DestroyEvent",
	"DestroyEvents", "DestroyGraph", "DestroyStream", "Elapsed", "EndCapture", "EventQuery",
	"EventSynchronize", "Free", "FreeArena", "FreeHostPinned", "Kernel", "Launch", "LaunchGraph", "LoadModule", "Memset",
	"MemsetAsync", "Pending", "Record", "RecordEvent", "RecordExternal", "Since", "Spin", "StreamID",
	"StreamIsCapturing", "StreamWaitEvent", "Synchronize",
}

type fault struct {
	result cudaevents.Result
	times  int
}

// FailNext makes the next times calls of a method of backend.GPU, or of
// cudaevents.Driver, fail with a result and do nothing else. "Record" is every
// record of a timed event, those of timed launches included; "StreamIsCapturing"
// every question for a stream's capture status. It fails for a method it does not
// know, so that a misspelt fault is no passing test.
func (g *GPU) FailNext(method string, r cudaevents.Result, times int) error {
	if !slices.Contains(faultable, method) {
		return fmt.Errorf("sim: no call %q to fail, only %v", method, faultable)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.faults[method] = fault{r, times}
	return nil
}

// fault is the error to give for a call, nil mostly. The caller holds the lock.
func (g *GPU) fault(method string) error {
	if len(g.faults) > 0 {
		if f, ok := g.faults[method]; ok && f.times > 0 {
			f.times--
			g.faults[method] = f
			if f.times == 0 {
				delete(g.faults, method)
			}
			return code(f.result)
		}
	}
	if g.closed {
		return errClosed
	}
	if g.sticky != 0 {
		return g.sticky
	}
	return nil
}

// Stall makes a stream complete nothing more, what it has begun included, until
// Resume. What was held back happens, and is stamped, after that.
func (g *GPU) Stall(s backend.Stream) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	st, err := g.stream(s)
	if err != nil {
		return fmt.Errorf("sim: stall stream %#x: %w", s, err)
	}
	g.advance(st)
	st.stalled = true
	return nil
}

// Resume ends a stream's stall.
func (g *GPU) Resume(s backend.Stream) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	st, err := g.stream(s)
	if err != nil {
		return fmt.Errorf("sim: resume stream %#x: %w", s, err)
	}
	if st.stalled {
		st.stalled = false
		now := g.now()
		st.freeNS = max(st.freeNS, now)
		if o := st.head; o != nil && o.fixed {
			o.endNS = max(o.endNS, now)
		}
		st.cond.Broadcast()
		g.changed.Broadcast()
	}
	return nil
}
