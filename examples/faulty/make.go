package faulty

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lanetrace/lanetrace/backend"
	"github.com/lanetrace/lanetrace/ledger"
)

// redzone is what guard bands the engine has.
func redzone() ledger.Redzone { return ledger.Redzone{Bytes: guardBand} }

// fault does what was asked for and says it.
func (e *engine) fault(ctx context.Context) error {
	switch e.o.Fault {
	case Crash:
		return e.crash(ctx)
	case Hang:
		return e.hang(ctx)
	case Leak:
		e.leaking = true
		e.o.Faulted(fmt.Sprintf("from now on each step keeps %d KiB that nobody frees", leakedBytes>>10))
		return nil
	case Overrun:
		return e.overrun()
	case Perturb:
		return e.perturb()
	case Drop:
		return e.drop(ctx)
	}
	return fmt.Errorf("no such fault")
}

// crash has a prefill in flight, and waits for the end of the process.
func (e *engine) crash(ctx context.Context) error {
	if err := e.landed(ctx); err != nil {
		return err
	}
	st := e.hub.StepBegin()
	defer st.End()
	lane := e.dev.LaneBegin(st, e.prefill, e.s)
	err := e.launch("long_prefill", backend.Ptr(e.w), backend.U32(1<<20))
	lane.End()
	if err != nil {
		return err
	}
	e.o.Faulted("a prefill is on the GPU, and the step waits for it")
	<-ctx.Done()
	return nil
}

// hang enqueues a step on a GPU that stands still, and waits for it until ctx ends.
func (e *engine) hang(ctx context.Context) error {
	if err := e.landed(ctx); err != nil {
		return err
	}
	if err := e.gpu.Stall(e.s); err != nil {
		return err
	}
	st := e.hub.StepBegin()
	defer st.End()
	lane := e.dev.LaneBegin(st, e.decode, e.s)
	err := e.pass(e.c, hidden)
	lane.End()
	if err != nil {
		return err
	}
	e.o.Faulted("the GPU completes nothing any more, and the step waits for its decode")
	<-ctx.Done()
	if err := e.gpu.Resume(e.s); err != nil {
		return err
	}
	return e.gpu.Synchronize(e.s)
}

// leak forgets a buffer.
func (e *engine) leak() error {
	if _, err := e.gpu.Alloc(leakedBytes); err != nil {
		return fmt.Errorf("allocate a buffer: %w", err)
	}
	return nil
}

// overrun writes past a buffer's end and looks at the guard bands, as an engine does
// now and then.
func (e *engine) overrun() error {
	buffer, err := e.gpu.Alloc(4 * scratchWords)
	if err != nil {
		return fmt.Errorf("allocate a buffer: %w", err)
	}
	if err := e.launch("fill", backend.Ptr(buffer), backend.U32(scratchWords+pastWords)); err != nil {
		return err
	}
	n, err := e.gpu.ScanRedzones()
	if err != nil {
		return err
	}
	e.o.Faulted(fmt.Sprintf("a kernel wrote %d words into a buffer of %d; a scan of the guard bands found %d changed", scratchWords+pastWords, scratchWords, n))
	return nil
}

// perturb passes one step another width, and says what the launch trace noticed.
func (e *engine) perturb() error {
	rep, err := e.step(hidden - 1)
	if err != nil {
		return err
	}
	e.o.Faulted(fmt.Sprintf("one step passed mlp a width of %d, all others pass %d; the launch trace says\n%s", hidden-1, hidden, strings.TrimRight(rep.Text(), "\n")))
	return nil
}

// drop enqueues lanes for a GPU that stands still, more than there are event pairs.
func (e *engine) drop(ctx context.Context) error {
	if err := e.landed(ctx); err != nil {
		return err
	}
	if err := e.gpu.Stall(e.s); err != nil {
		return err
	}
	st := e.hub.StepBegin()
	for range burstLanes {
		lane := e.dev.LaneBegin(st, e.decode, e.s)
		err := e.launch("sample", backend.Ptr(e.c), backend.U32(8))
		lane.End()
		if err != nil {
			st.End()
			return err
		}
	}
	st.End()
	if err := e.gpu.Resume(e.s); err != nil {
		return err
	}
	if err := e.gpu.Synchronize(e.s); err != nil {
		return err
	}
	e.o.Faulted(fmt.Sprintf("one step enqueued %d lanes ahead of the GPU, and the engine has %d event pairs", burstLanes, pairs))
	return nil
}

// landed waits until no span is in flight, so that what the fault has in flight stands
// alone.
func (e *engine) landed(ctx context.Context) error {
	late := time.After(settleWait)
	for tick := time.NewTicker(time.Millisecond); ; {
		e.hub.Harvest()
		c := e.hub.Ring().Counters()
		if c.InFlight() == 0 {
			tick.Stop()
			return nil
		}
		select {
		case <-ctx.Done():
			tick.Stop()
			return nil
		case <-late:
			tick.Stop()
			return fmt.Errorf("%d spans still in flight after %v", c.InFlight(), settleWait)
		case <-tick.C:
		}
	}
}
