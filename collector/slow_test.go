package collector

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/lanetrace/lanetrace/spanring"
)

// load makes steps of given lengths, one after another, whose host runs ahead.
type load struct {
	d    slowDetector
	n    uint64
	slow []uint64 // numbers of the steps that were called slow
}

func newLoad(o SlowOptions) *load { return &load{d: slowDetector{o: o.withDefaults()}} }

func (l *load) step(ns int64, change func(*Step)) bool {
	l.n++
	s := &Step{Number: l.n, HasBegin: true, HasEnd: true, EndMonoNS: ns / 3, Spans: []Span{laneOn(1, 0, 1000, 1000+ns, 5)}}
	if change != nil {
		change(s)
	}
	is := l.d.slow(s)
	if is {
		l.slow = append(l.slow, l.n)
	}
	return is
}

func attrs(a spanring.StepAttrs) func(*Step) {
	return func(s *Step) { s.HasAttrs, s.Attrs = true, a }
}

// around is a length in ns of about mean, whose logarithm is spread by sd.
func around(rnd *rand.Rand, mean float64, sd float64) int64 {
	return int64(mean * math.Exp(sd*rnd.NormFloat64()))
}

var (
	decodeAttrs  = attrs(spanring.StepAttrs{BatchSize: 32, DecodeTokens: 32, GraphMode: spanring.GraphReplay})
	prefillAttrs = attrs(spanring.StepAttrs{BatchSize: 33, DecodeTokens: 32, PrefillTokens: 900, GraphMode: spanring.GraphEager})
)

// TestPrefillIsNotSlow: 5 % of the steps are prefill and ten times longer, and
// nothing is wrong; with the engine's word for it and without.
func TestPrefillIsNotSlow(t *testing.T) {
	for _, tt := range []struct {
		name            string
		decode, prefill func(*Step)
	}{
		{"said", decodeAttrs, prefillAttrs},
		{"not said", nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for seed := range uint64(20) {
				rnd := rand.New(rand.NewPCG(seed, 1))
				l := newLoad(SlowOptions{})
				for range 20_000 {
					if rnd.Float64() < 0.05 {
						l.step(around(rnd, 20e6, 0.08), tt.prefill)
					} else {
						l.step(around(rnd, 2e6, 0.05), tt.decode)
					}
				}
				if len(l.slow) > 0 {
					t.Fatalf("seed %d: steps %v are called slow", seed, l.slow)
				}
			}
		})
	}
}

func TestOutlierIsSlow(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	l := newLoad(SlowOptions{})
	for range 5000 {
		l.step(around(rnd, 2e6, 0.05), decodeAttrs)
		if rnd.IntN(20) == 0 {
			l.step(around(rnd, 20e6, 0.05), prefillAttrs)
		}
	}
	if len(l.slow) > 0 {
		t.Fatalf("steps %v are called slow before", l.slow)
	}
	if !l.step(10e6, decodeAttrs) {
		t.Error("5 times its class, and not slow")
	}
	if l.step(10e6, prefillAttrs) {
		t.Error("half its class is called slow")
	}
	if !l.step(2e6, func(s *Step) { decodeAttrs(s); s.EndMonoNS = 10e6 }) {
		t.Error("5 times its class on the host, and not slow")
	}
	for name, change := range map[string]func(*Step){
		"armed":      func(s *Step) { s.Armed = true },
		"failed":     func(s *Step) { s.FailedCount = 1 },
		"incomplete": func(s *Step) { s.Incomplete = IncompleteTimeout },
		"no end":     func(s *Step) { s.HasEnd = false },
	} {
		if l.step(50e6, func(s *Step) { decodeAttrs(s); change(s) }) {
			t.Errorf("%s: judged", name)
		}
	}
	// Waiting for the step before is not slow: the lane starts late, and is as long
	// as ever.
	if l.step(2e6, func(s *Step) { decodeAttrs(s); s.Spans[0].StartMonoNS += 100e6 }) {
		t.Error("a step that waited for another is called slow")
	}
}

// TestRareOutliersStaySlow: what is not the way of one step in a hundred stays
// slow, however long it goes on.
func TestRareOutliersStaySlow(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 3))
	l := newLoad(SlowOptions{})
	const every = 250
	outliers := 0
	for i := range 50_000 {
		ns := around(rnd, 2e6, 0.05)
		if i > 1000 && i%every == 0 {
			ns *= 5
			outliers++
		}
		l.step(ns, decodeAttrs)
	}
	if len(l.slow) != outliers {
		t.Errorf("%d slow, want %d", len(l.slow), outliers)
	}
}

func TestNothingIsSlowBeforeTheWarmUp(t *testing.T) {
	l := newLoad(SlowOptions{WarmUp: 100})
	for range 99 {
		l.step(1e6, nil)
	}
	if l.step(50e6, nil) {
		t.Error("the 100th step is called slow")
	}
	if !l.step(50e6, nil) {
		t.Error("the 101st is not")
	}
	off := newLoad(SlowOptions{Factor: -1, WarmUp: 1})
	for range 10 {
		off.step(1e6, nil)
	}
	if off.step(1e9, nil) {
		t.Error("slow though it is off")
	}
}

// TestLoadChangeDoesNotFlood: all steps become twice as long, at once or little by
// little, and short again.
func TestLoadChangeDoesNotFlood(t *testing.T) {
	const most = 22 // as slowDetector's comment says
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		l := newLoad(SlowOptions{})
		run := func(what string, n int, mean func(i int) float64) int {
			before := len(l.slow)
			for i := range n {
				l.step(around(rnd, mean(i), 0.05), decodeAttrs)
			}
			return len(l.slow) - before
		}
		flat := func(ns float64) func(int) float64 { return func(int) float64 { return ns } }
		if n := run("steady", 1000+rnd.IntN(4000), flat(2e6)); n > 0 {
			t.Fatalf("seed %d: %d slow in a steady load", seed, n)
		}
		n := run("twice", 10_000, flat(4e6))
		if n > most || n == 0 {
			t.Fatalf("seed %d: %d slow after a step change, want 1 to %d", seed, n, most)
		}
		if n := run("half", 10_000, flat(2e6)); n > 0 {
			t.Fatalf("seed %d: %d slow after the load fell", seed, n)
		}
		if n := run("ramp", 10_000, func(i int) float64 { return 2e6 * (1 + float64(i)/10_000) }); n > 0 {
			t.Fatalf("seed %d: %d slow in a slow rise", seed, n)
		}
	}
}

func TestClasses(t *testing.T) {
	of := func(a spanring.StepAttrs) stepClass {
		s := &Step{}
		attrs(a)(s)
		return classOf(s)
	}
	base := spanring.StepAttrs{BatchSize: 32, DecodeTokens: 32, GraphMode: spanring.GraphReplay}
	for name, change := range map[string]func(*spanring.StepAttrs){
		"mode":    func(a *spanring.StepAttrs) { a.GraphMode = spanring.GraphEager },
		"prefill": func(a *spanring.StepAttrs) { a.PrefillTokens = 1 },
		"size":    func(a *spanring.StepAttrs) { a.DecodeTokens = 48 },
	} {
		other := base
		change(&other)
		if of(base) == of(other) {
			t.Errorf("%s: one class", name)
		}
	}
	same := base
	same.DecodeTokens = 47
	if of(base) != of(same) {
		t.Error("32 and 47 tokens are two classes")
	}
	if classOf(&Step{}) == of(spanring.StepAttrs{}) {
		t.Error("steps of which nothing is said are in a class with those of size 0")
	}
	for i, n := range []uint64{0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 1 << 33, 3 << 32} {
		if want := []uint8{0, 2, 4, 5, 6, 7, 8, 9, 10, 11, 68, 69}[i]; sizeBucket(n) != want {
			t.Errorf("size %d is in bucket %d, want %d", n, sizeBucket(n), want)
		}
	}
}

// TestClassesAreBounded: an engine whose every step is of another class costs a
// bounded memory, and the classes in use stay.
func TestClassesAreBounded(t *testing.T) {
	l := newLoad(SlowOptions{})
	for i := range uint32(100_000) {
		l.step(2e6, decodeAttrs)
		l.step(3e6, attrs(spanring.StepAttrs{BatchSize: 1 << (i % 32), PrefillTokens: i % 3 * (1 << (i % 31)), GraphMode: spanring.GraphMode(i % 4)}))
		if len(l.d.classes) > maxSlowClasses {
			t.Fatalf("%d classes", len(l.d.classes))
		}
	}
	if !l.step(10e6, decodeAttrs) {
		t.Error("the class in use was forgotten")
	}
}

func TestSlowBuckets(t *testing.T) {
	for _, ns := range []int64{1, 1023, 1024, 1025, 1151, 1152, 2047, 2048, 1e6, 12_345_678, 1 << 39, 1 << 41, math.MaxInt64} {
		b := slowBucket(ns)
		if b < 0 || b >= slowBuckets {
			t.Fatalf("%d ns in bucket %d", ns, b)
		}
		if up := upperNS(b); ns >= up && b < slowBuckets-1 {
			t.Errorf("%d ns lies over the end of its bucket, %d", ns, up)
		} else if b > 0 && ns < upperNS(b-1) {
			t.Errorf("%d ns lies in the bucket before, up to %d", ns, upperNS(b-1))
		} else if b > 0 && b < slowBuckets-1 && float64(up) > 1.125*float64(ns) {
			t.Errorf("%d ns: the bucket goes up to %d", ns, up)
		}
	}
}

// TestSlowWithoutExporter: where no trace can be sent slow steps are told
// nevertheless, and count.
func TestSlowWithoutExporter(t *testing.T) {
	for _, c := range []struct {
		name   string
		given  bool
		told   int
		counts uint64
	}{{"a selector is given", true, 2, 2}, {"none is given, as where a recording is read", false, 0, 0}} {
		src := newMemSource("a")
		told := 0
		o := ProcessorOptions{}
		if c.given {
			o.Selector = NewLiveSelector(LiveOptions{OnSlow: func(s *Step) {
				told++
				NewArmer(ArmOptions{}).Slow(s)
			}})
		}
		p, _ := run(t, src, o)
		for n := uint64(1); n <= 300; n++ {
			at, long := int64(n)*1_000_000, int64(100_000)
			if n == 290 || n == 295 {
				long = 400_000
			}
			src.push(begin(n, at), lane(n, 1, 1, at+10, uint64(long)), end(n, at, at+long+20, 1))
		}
		pollAll(t, p)
		if got := p.Engine().SlowSteps()[ArmNoRing]; told != c.told || got != c.counts {
			t.Errorf("%s: %d steps told, %d counted; want %d and %d", c.name, told, got, c.told, c.counts)
		}
		if got := p.Engine().Ledger().Counts(); got.NotSelected[NotWanted] != 600 {
			t.Errorf("%s: ledger %+v", c.name, got)
		}
	}
}
