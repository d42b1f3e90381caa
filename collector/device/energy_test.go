package device

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
)

type opt = collector.Opt[float64]

func some(v float64) opt { return collector.Some(v) }

// one reading of a counter
type beat struct {
	at   time.Duration
	mJ   uint64
	work collector.Work
}

// steady is n readings at 10 Hz: 50 J, a step, four tokens generated and six of
// prompts each.
func steady(n int, from beat) (bs []beat) {
	for i := range uint64(n) {
		bs = append(bs, beat{from.at + time.Duration(i)*100*time.Millisecond, from.mJ + 50_000*i, collector.Work{
			Steps: from.work.Steps + i, DecodeTokens: from.work.DecodeTokens + 4*i, PrefillTokens: from.work.PrefillTokens + 6*i,
		}})
	}
	return bs
}

func TestEnergy(t *testing.T) {
	start := beat{time.Hour, 1 << 40, collector.Work{Steps: 900, DecodeTokens: 1000, PrefillTokens: 2000}}
	steps := func(bs []beat) []beat { // twice the energy at once, in the last reading
		bs[len(bs)-1].mJ += 450_000
		return bs
	}
	idle := func(bs []beat) []beat {
		for i := range bs {
			bs[i].work = start.work
		}
		return bs
	}
	flat := func(bs []beat) []beat {
		for i := range bs {
			bs[i].mJ = start.mJ
		}
		return bs
	}
	for _, c := range []struct {
		name  string
		beats []beat
		want  collector.DeviceEnergy
	}{
		{"nothing", nil, collector.DeviceEnergy{}},
		{"one", steady(1, start), collector.DeviceEnergy{Joules: some(0)}},
		{"nine: not yet live", steady(9, start), collector.DeviceEnergy{
			Joules: some(400), PerGenerated: some(12.5), PerToken: some(5)}},
		{"ten: live, no second yet", steady(10, start), collector.DeviceEnergy{
			Joules: some(450), PerGenerated: some(12.5), PerToken: some(5), LivePerGenerated: some(12.5), LivePerToken: some(5)}},
		{"a second", steady(11, start), collector.DeviceEnergy{
			Joules: some(500), PerGenerated: some(12.5), PerToken: some(5), LivePerGenerated: some(12.5), LivePerToken: some(5), PerStepEstimate: some(50)}},
		{"live is not since the start", steps(steady(101, start)), collector.DeviceEnergy{
			Joules: some(5450), PerGenerated: some(13.625), PerToken: some(5.45), LivePerGenerated: some(25), LivePerToken: some(10), PerStepEstimate: some(95)}},
		{"idle: energy and no tokens", idle(steady(20, start)), collector.DeviceEnergy{Joules: some(950)}},
		{"a counter that stands: no 0", flat(steady(20, start)), collector.DeviceEnergy{Joules: some(0)}},
		{"reset", append(steady(20, start), beat{time.Hour + 2*time.Second, 7, collector.Work{Steps: 5000, DecodeTokens: 90_000, PrefillTokens: 90_000}}),
			collector.DeviceEnergy{Joules: some(950), PerGenerated: some(12.5), PerToken: some(5), Breaks: [2]uint64{1, 0}}},
		{"after a reset", append(steady(20, start), steady(11, beat{time.Hour + 2*time.Second, 7, collector.Work{Steps: 5000, DecodeTokens: 90_000, PrefillTokens: 90_000}})...),
			collector.DeviceEnergy{Joules: some(1450), PerGenerated: some(1450. / 116), PerToken: some(5), LivePerGenerated: some(12.5), LivePerToken: some(5), PerStepEstimate: some(50), Breaks: [2]uint64{1, 0}}},
		{"wrap of 32 bits", []beat{{0, math.MaxUint32 - 9, collector.Work{}}, {100 * time.Millisecond, 20, collector.Work{DecodeTokens: 1}}},
			collector.DeviceEnergy{Joules: some(0), Breaks: [2]uint64{0, 1}}},
		{"wrap of 64 bits", []beat{{0, math.MaxUint64 - 9, collector.Work{}}, {100 * time.Millisecond, 20, collector.Work{DecodeTokens: 1}}},
			collector.DeviceEnergy{Joules: some(0), Breaks: [2]uint64{0, 1}}},
		{"too far from the end for a wrap", []beat{{0, math.MaxUint32 - 1e9, collector.Work{}}, {100 * time.Millisecond, 20, collector.Work{DecodeTokens: 1}}},
			collector.DeviceEnergy{Joules: some(0), Breaks: [2]uint64{1, 0}}},
		{"further than a device can", []beat{{0, 5, collector.Work{}}, {100 * time.Millisecond, 1 << 50, collector.Work{DecodeTokens: 1}}},
			collector.DeviceEnergy{Joules: some(0), Breaks: [2]uint64{1, 0}}},
		{"a minute unread is spanned", []beat{{0, 0, collector.Work{}}, {time.Minute, 42_000_000, collector.Work{Steps: 100, DecodeTokens: 1000}}},
			collector.DeviceEnergy{Joules: some(42_000), PerGenerated: some(42), PerToken: some(42), PerStepEstimate: some(420)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var e energy
			for _, b := range c.beats {
				e.add(int64(b.at), b.mJ, b.work)
			}
			if d := cmp.Diff(c.want, e.stats()); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

// The window does not grow, and nothing is allocated for it in the end.
func TestEnergyWindow(t *testing.T) {
	var e energy
	ns := int64(0)
	add := func() {
		ns += int64(MinInterval)
		e.add(ns, uint64(ns/1e6), collector.Work{})
	}
	for range 1000 {
		add()
	}
	if n := len(e.window); n < 100 || n > 102 {
		t.Errorf("%d readings are kept for a second", n)
	}
	if n := testing.AllocsPerRun(100, add); n != 0 {
		t.Errorf("%v allocations a reading", n)
	}
}

func FuzzEnergy(f *testing.F) {
	f.Add(uint64(0), uint64(5), uint64(3), int64(1e8), uint64(4))
	f.Add(uint64(math.MaxUint64), uint64(5), uint64(math.MaxUint32), int64(-1), uint64(0))
	f.Add(uint64(math.MaxUint32), uint64(0), uint64(1), int64(math.MaxInt64), uint64(1))
	f.Fuzz(func(t *testing.T, a, b, c uint64, ns int64, tokens uint64) {
		var e energy
		for i, mJ := range []uint64{a, b, c, a, c, b, b, c, a, b, c, c} {
			n := uint64(i) * (tokens % 1e6)
			e.add(int64(i)*(ns%1e12), mJ, collector.Work{Steps: n, DecodeTokens: n, PrefillTokens: n})
			s := e.stats()
			for _, o := range []opt{s.LivePerGenerated, s.LivePerToken, s.PerGenerated, s.PerToken, s.PerStepEstimate} {
				if o.Known && (!(o.Value > 0) || math.IsInf(o.Value, 0)) {
					t.Fatalf("%+v", s)
				}
			}
		}
	})
}
