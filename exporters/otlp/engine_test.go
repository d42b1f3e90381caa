package otlp

import (
	"testing"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/spanring"
)

var (
	testRun  = spanring.RunID{0xab, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	testInfo = spanring.Info{
		RunID: testRun, PID: 4711, Executable: "decode", Service: "chat", GPUUUID: "GPU-8c1f02aa-1111-2222-3333-444455556666",
		GPUName: "NVIDIA H200", Rank: spanring.Rank{Data: 2, Tensor: 0, Pipeline: -1, Expert: -1}, Producer: "lanetrace-go 0.1.0",
	}
)

const wallOffset = 1_764_000_000_000_000_000

// source is a run whose entries the test hands to its processor.
type source struct {
	info    spanring.Info
	names   map[spanring.NameID]spanring.Name
	entries []spanring.Words
	done    bool
}

func (s *source) Info() (spanring.Info, error) { return s.info, nil }
func (s *source) Poll(dst []spanring.Entry) (n int, done bool, err error) {
	for n < len(dst) && n < len(s.entries) {
		dst[n].Words = s.entries[n]
		n++
	}
	s.entries = s.entries[n:]
	return n, s.done && len(s.entries) == 0, nil
}
func (s *source) NowMonoNS() int64    { return 1e9 }
func (s *source) WallOffsetNS() int64 { return wallOffset }
func (s *source) Name(id spanring.NameID) (spanring.Name, bool) {
	n, ok := s.names[id]
	return n, ok
}
func (s *source) Counters() (spanring.Counters, error)       { return spanring.Counters{}, nil }
func (s *source) Contexts() ([]spanring.ContextState, error) { return nil, nil }
func (s *source) Account() spanring.Account                  { return spanring.Account{} }
func (s *source) Busy() ([]spanring.SlotEntry, error)        { return nil, nil }
func (s *source) Alive() (bool, error)                       { return !s.done, nil }
func (s *source) Close() error                               { return nil }

type wordser interface{ Words() spanring.Words }

func (s *source) push(es ...wordser) {
	for _, e := range es {
		s.entries = append(s.entries, e.Words())
	}
}

// newEngine is a processor all of whose steps are exported to x.
func newEngine(t testing.TB, x collector.Exporter, info spanring.Info) (*source, *collector.Processor) {
	t.Helper()
	s := &source{info: info, names: map[spanring.NameID]spanring.Name{
		1: {Kind: spanring.NameLane, Text: "prefill"}, 2: {Kind: spanring.NameLane, Text: "decode"},
		3: {Kind: spanring.NameKernel, Text: "gemm"}, 4: {Kind: spanring.NameKernel, Text: "soft\nmax"},
		5: {Kind: spanring.NameGraph, Text: "graph 32", GraphID: 99, GraphNodes: 200},
	}}
	p, err := collector.NewProcessor(s, collector.ProcessorOptions{Exporter: x, Selector: collector.SelectAll{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return s, p
}

// simpleStep is a step with so many lanes, one after another.
func simpleStep(n uint64, lanes int) []wordser {
	at := int64(n) * 1_000_000
	es := []wordser{&spanring.StepBegin{Step: n, MonoNS: at, Level: 2}}
	for i := range lanes {
		es = append(es, &spanring.Span{
			Kind: spanring.KindLane, Step: n, Ordinal: uint32(i + 1), Name: 2, Lane: 2,
			StartMonoNS: at + int64(i)*1000, RawNS: 900,
		})
	}
	return append(es, &spanring.StepEnd{Step: n, BeginNS: at, MonoNS: at + 50_000, Opened: uint32(lanes)})
}

func poll(t testing.TB, p *collector.Processor) {
	t.Helper()
	for {
		n, done, err := p.Poll()
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 || done {
			return
		}
	}
}
