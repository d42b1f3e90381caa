package collector

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/lanetrace/lanetrace/ledger"
	"github.com/lanetrace/lanetrace/spanring"
)

// EngineState is where a run stands.
type EngineState uint8

// The states of a run.
const (
	EngineLive  EngineState = iota // its producer runs, or the collector left it running
	EngineEnded                    // its producer closed the ring
	EngineDied                     // its producer went without closing the ring
)

// String is the state's name.
func (s EngineState) String() string {
	switch s {
	case EngineEnded:
		return "ended"
	case EngineDied:
		return "died"
	}
	return "live"
}

// Engine is one run of one engine. Its methods may be called from any goroutine,
// also after the run's end: they then tell what was last known.
type Engine struct {
	label  string
	runID  spanring.RunID
	ledger Ledger
	state  atomic.Uint32
	taken  atomic.Uint64 // entries received whose spans the ledger has

	mu    sync.Mutex
	src   Source
	known known

	sum      summary       // what its steps added up to
	gpu      gpuTime       // how its devices spent their time; sum.mu guards it
	requests RequestCounts // sum.mu guards it
	mem      memory        // what is known of its device memory
	attrs    engineAttrs   // of its instruments, built once

	slowSteps [numArmOutcomes]atomic.Uint64 // by what became of arming
}

// known is what was last read from a source.
type known struct {
	closed   bool // the source has been closed: ask it no more
	info     spanring.Info
	counters spanring.Counters
	contexts []spanring.ContextState
	account  spanring.Account
	busy     []spanring.SlotEntry
	nowNS    int64
	memory   ledger.Memory
	allocs   []spanring.Alloc // room for the next scan
	labels   siteLabels
}

// Label is the stable name of the engine in metrics: service name or executable,
// rank, GPU, and a number where live engines would be called the same.
func (e *Engine) Label() string { return e.label }

// RunID is the run's identity.
func (e *Engine) RunID() spanring.RunID { return e.runID }

// Ledger is the sidecar's line of the engine's loss account.
func (e *Engine) Ledger() *Ledger { return &e.ledger }

// State is where the run stands.
func (e *Engine) State() EngineState { return EngineState(e.state.Load()) }

// Source is what the engine is read from. After the run's end it is closed.
func (e *Engine) Source() Source { return e.src }

// Info says who the producer is.
func (e *Engine) Info() spanring.Info {
	return ask(e, func(k *known) *spanring.Info { return &k.info }, func() (spanring.Info, error) { return e.src.Info() })
}

// Counters are the producer's.
func (e *Engine) Counters() spanring.Counters {
	return ask(e, func(k *known) *spanring.Counters { return &k.counters }, func() (spanring.Counters, error) { return e.src.Counters() })
}

// Contexts are the GPU contexts that the producer uses. The slice must not be
// changed.
func (e *Engine) Contexts() []spanring.ContextState {
	return ask(e, func(k *known) *[]spanring.ContextState { return &k.contexts }, func() ([]spanring.ContextState, error) { return e.src.Contexts() })
}

// Work is what the engine's closed steps did that ended after the sidecar began to read
// it: what its ring held by then is not in it. It only grows.
func (e *Engine) Work() Work {
	e.sum.mu.Lock()
	defer e.sum.mu.Unlock()
	return e.sum.since
}

// Busy are the pair slots in flight: after an engine's death, those it died with.
// The slice must not be changed.
func (e *Engine) Busy() []spanring.SlotEntry {
	return ask(e, func(k *known) *[]spanring.SlotEntry { return &k.busy }, func() ([]spanring.SlotEntry, error) { return e.src.Busy() })
}

// ReaderAccount is the reader's line of the loss account. What was read and is not
// taken apart yet is pending there, so that the sidecar's line has the spans of all
// that was received.
func (e *Engine) ReaderAccount() spanring.Account {
	return ask(e, func(k *known) *spanring.Account { return &k.account }, func() (spanring.Account, error) {
		taken := e.taken.Load()
		a := e.src.Account()
		if n := a.Received - min(a.Received, taken); n > 0 {
			a.Received -= n
			a.Pending += n
		}
		return a, nil
	})
}

// NowMonoNS is the source's time: see Source.
func (e *Engine) NowMonoNS() int64 {
	return ask(e, func(k *known) *int64 { return &k.nowNS }, func() (int64, error) { return e.src.NowMonoNS(), nil })
}

// ask gets something from the source, or what was last known of it when the
// source is closed or cannot tell.
func ask[T any](e *Engine, field func(*known) *T, get func() (T, error)) T {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := field(&e.known)
	if !e.known.closed {
		if v, err := get(); err == nil {
			*f = v
		}
	}
	return *f
}

// close keeps what is known of the run and closes its source, once.
func (e *Engine) close() error {
	e.Info()
	e.Counters()
	e.Contexts()
	e.Busy()
	e.ReaderAccount()
	e.NowMonoNS()
	e.Memory()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.known.closed {
		return nil
	}
	e.known.closed, e.known.allocs = true, nil
	if err := e.src.Close(); err != nil {
		return fmt.Errorf("close source of engine %s: %w", e.label, err)
	}
	return nil
}

// Account is the engine's loss account as of the last Poll.
func (e *Engine) Account() Account {
	c := e.Counters()
	a := NewAccount(&c, e.ReaderAccount(), e.ledger.Counts())
	a.Engine, a.RunID, a.State = e.label, e.runID.String(), e.State().String()
	return a
}

// EngineName is the label of an engine without the number: service name, else
// the executable, then rank and GPU as far as they are known.
func EngineName(i spanring.Info) string {
	var b strings.Builder
	name := CleanText(i.Service)
	if name == "" {
		name = CleanText(i.Executable)
	}
	if name == "" {
		name = "engine"
	}
	b.WriteString(name)
	for _, r := range []struct {
		tag string
		n   int32
	}{{"dp", i.Rank.Data}, {"tp", i.Rank.Tensor}, {"pp", i.Rank.Pipeline}, {"ep", i.Rank.Expert}} {
		if r.n >= 0 {
			fmt.Fprintf(&b, "-%s%d", r.tag, r.n)
		}
	}
	if g := gpuTag(i.GPUUUID); g != "" {
		b.WriteByte('-')
		b.WriteString(g)
	}
	return CutText(b.String(), MaxLabelBytes)
}

// gpuTag is "gpu" or "mig" and the first eight hexadecimal digits of a UUID in
// the driver's notation, "" for anything else. The UUID and not the ordinal: the
// ordinal depends on which devices a process was shown.
func gpuTag(uuid string) string {
	kind, rest, ok := strings.Cut(uuid, "-")
	if !ok || (kind != "GPU" && kind != "MIG") || len(rest) < 8 {
		return ""
	}
	for _, c := range rest[:8] {
		if !strings.ContainsRune("0123456789abcdefABCDEF", c) {
			return ""
		}
	}
	return strings.ToLower(kind + rest[:8])
}
