package collector

import (
	"errors"
	"slices"
	"sync"

	"github.com/lanetrace/lanetrace/spanring"
)

// memSource is a Source whose entries and time a test sets.
type memSource struct {
	mu       sync.Mutex
	info     spanring.Info
	names    map[spanring.NameID]spanring.Name
	counters spanring.Counters
	contexts []spanring.ContextState
	queue    []spanring.Words
	seq      uint64
	nowNS    int64
	done     bool
	fail     error
	closed   bool
	missed   uint64 // before what is pushed
	lost     uint64
}

const testWallOffset = 1_700_000_000_000_000_000

var errTestClosed = errors.New("source closed")

func newMemSource(names ...string) *memSource {
	s := &memSource{
		info: spanring.Info{
			RunID: spanring.RunID{1, 2, 3}, PID: 4711, Service: "svc", Executable: "exe", Rank: spanring.NoRank, Producer: "test 1",
		},
		names: make(map[spanring.NameID]spanring.Name),
		nowNS: 1_000_000_000,
	}
	for i, n := range names {
		s.names[spanring.NameID(i+1)] = spanring.Name{Kind: spanring.NameKernel, Text: n}
	}
	return s
}

type wordser interface{ Words() spanring.Words }

func (s *memSource) push(es ...wordser) *memSource {
	for _, e := range es {
		s.queue = append(s.queue, e.Words())
	}
	return s
}

func (s *memSource) Info() (spanring.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return spanring.Info{}, errTestClosed
	}
	return s.info, nil
}

func (s *memSource) Poll(dst []spanring.Entry) (n int, done bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n < len(dst) && n < len(s.queue) {
		dst[n] = spanring.Entry{Seq: s.seq, Words: s.queue[n]}
		s.seq++
		n++
	}
	s.queue = s.queue[n:]
	if s.fail != nil {
		return n, true, s.fail
	}
	return n, s.done && len(s.queue) == 0, nil
}

func (s *memSource) NowMonoNS() int64    { return s.nowNS }
func (s *memSource) WallOffsetNS() int64 { return testWallOffset }
func (s *memSource) Name(id spanring.NameID) (spanring.Name, bool) {
	n, ok := s.names[id]
	return n, ok
}
func (s *memSource) Counters() (spanring.Counters, error) { return s.counters, nil }
func (s *memSource) Contexts() ([]spanring.ContextState, error) {
	return slices.Clone(s.contexts), nil
}
func (s *memSource) Account() spanring.Account {
	s.mu.Lock()
	defer s.mu.Unlock()
	return spanring.Account{
		Published: s.missed + s.seq + s.lost, Received: s.seq, Missed: s.missed, Lost: s.lost, Overwritten: s.lost,
	}
}
func (s *memSource) Busy() ([]spanring.SlotEntry, error) { return nil, nil }
func (s *memSource) Alive() (bool, error)                { return !s.done, nil }
func (s *memSource) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

// keep is an Observer and Exporter that keeps clones.
type keep struct {
	steps   []*Step
	reasons []ExportReason
	settle  bool // count as exported
}

func (k *keep) ObserveStep(s *Step) { k.steps = append(k.steps, s.Clone()) }
func (k *keep) Export(s *Step, r ExportReason) {
	k.steps = append(k.steps, s.Clone())
	k.reasons = append(k.reasons, r)
	if k.settle {
		s.Engine.Ledger().Export(s.Units())
	}
}

// Entries of a test's steps.

func begin(step uint64, ns int64) wordser {
	return &spanring.StepBegin{Step: step, MonoNS: ns, Level: 2}
}

func end(step uint64, beginNS, ns int64, opened uint32) wordser {
	return &spanring.StepEnd{Step: step, BeginNS: beginNS, MonoNS: ns, Opened: opened}
}

func lane(step uint64, ordinal uint32, name spanring.NameID, startNS int64, ns uint64) *spanring.Span {
	return &spanring.Span{
		Kind: spanring.KindLane, Step: step, Ordinal: ordinal, Name: name, Lane: uint16(name),
		StartMonoNS: startNS, RawNS: ns, LeadNS: 5000,
	}
}

func kernel(step uint64, ordinal, parent uint32, laneIndex uint16, name spanring.NameID, startNS int64, ns uint64) *spanring.Span {
	return &spanring.Span{
		Kind: spanring.KindKernel, Armed: true, Step: step, Ordinal: ordinal, Parent: parent, Name: name, Lane: laneIndex,
		StartMonoNS: startNS, RawNS: ns, CorrectionNS: 3040, Calibration: spanring.CalibrationMeasured, Gap: spanring.GapQueued,
	}
}

func failed(step uint64, ordinal uint32, r spanring.Reason, ns int64) wordser {
	return &spanring.SpanFailed{SpanKind: spanring.KindLane, Reason: r, Step: step, Ordinal: ordinal, EnqueueMonoNS: ns}
}
