package collector

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/lanetrace/lanetrace/spanring"
)

// EngineState is where a run stands.
type EngineState uint8

// The states of a run.
const (
	EngineLive  EngineState = iota // its producer runs
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

// Engine is one run of one engine. Its methods may be called from any goroutine.
type Engine struct {
	label  string
	src    Source
	ledger Ledger
	state  atomic.Uint32

	mu   sync.Mutex
	info spanring.Info     // as last read
	ctrs spanring.Counters // as last read

	attrs engineAttrs // attribute sets of its metrics, built once
	sum   summary     // what its steps added up to
}

// Label is the stable name of the engine in metrics: service name or executable,
// rank, GPU, and a number where live engines would be called the same.
func (e *Engine) Label() string { return e.label }

// Source is what the engine is read from.
func (e *Engine) Source() Source { return e.src }

// Ledger is the sidecar's line of the engine's loss account.
func (e *Engine) Ledger() *Ledger { return &e.ledger }

// State is where the run stands.
func (e *Engine) State() EngineState { return EngineState(e.state.Load()) }

// Info says who the producer is. When the source can no longer be asked it is
// what was last known.
func (e *Engine) Info() spanring.Info {
	i, err := e.src.Info()
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		e.info = i
	}
	return e.info
}

// RunID is the run's identity.
func (e *Engine) RunID() spanring.RunID {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.info.RunID
}

// Counters are the producer's. When the source can no longer be asked they are
// what was last known.
func (e *Engine) Counters() spanring.Counters {
	c, err := e.src.Counters()
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		e.ctrs = c
	}
	return e.ctrs
}

// Account is the engine's loss account as of the last Poll.
func (e *Engine) Account() Account {
	c := e.Counters()
	a := NewAccount(&c, e.src.Account(), e.ledger.Counts())
	a.Engine, a.RunID, a.State = e.label, e.RunID().String(), e.State().String()
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
