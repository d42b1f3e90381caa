package cudaevents

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// oscillator is a pair of true clocks: the host's, and a GPU's that gains ppm on
// it, with a slow swing of the rate on top.
type oscillator struct {
	ppm, swingPPM, periodS float64
}

// gpu is the GPU's clock at a host time.
func (o *oscillator) gpu(hostNS int64) int64 {
	s := float64(hostNS) / 1e9
	gain := o.ppm * s
	if o.periodS > 0 {
		w := 2 * math.Pi / o.periodS
		gain += o.swingPPM / w * (1 - math.Cos(w*s))
	}
	return hostNS + int64(math.Round(gain*1e3))
}

// clockSim feeds a clock with anchors of an oscillator and checks what it maps.
type clockSim struct {
	t    testing.TB
	o    oscillator
	c    clock
	rng  *rand.Rand
	zero int64 // GPU clock where the timeline has its zero

	lastHost, lastGPU int64 // the last mapped
	worst             int64
	worstU            uint64
}

// anchor observes the clocks at a host time, delay ns into a try of that width.
func (s *clockSim) anchor(hostNS, width int64) {
	in := s.rng.Int64N(width + 1)
	lo, hi := hostNS-in, hostNS-in+width
	g := s.o.gpu(hostNS)
	if !s.c.known {
		s.zero = g - s.c.start(lo, hi)
		return
	}
	s.c.anchor(g-s.zero, lo, hi, 64)
}

// check maps a stamp taken at a host time.
func (s *clockSim) check(hostNS int64) {
	s.t.Helper()
	g := s.o.gpu(hostNS) - s.zero
	got, u := s.c.place(g, s.c.segs)
	off := got - hostNS
	if abs(off) > int64(u)+1 {
		s.t.Fatalf("at %d ns: %d ns off, uncertainty %d", hostNS, off, u)
	}
	if g >= s.lastGPU && got < s.lastHost || g <= s.lastGPU && got > s.lastHost {
		s.t.Fatalf("GPU %d maps to %d, %d mapped to %d", g, got, s.lastGPU, s.lastHost)
	}
	if g > s.lastGPU {
		s.lastGPU, s.lastHost = g, got
	}
	s.worst, s.worstU = max(s.worst, abs(off)), max(s.worstU, u)
}

func TestClockHolds(t *testing.T) {
	for _, tc := range []struct {
		name          string
		o             oscillator
		anchorEveryNS int64
		width         int64
		forS          int64
		worst         int64 // ns off, after the first 10 s
		worstU        uint64
	}{
		{"no drift", oscillator{}, 5e8, 6000, 60, 3000, 5000},
		{"10 ppm for an hour", oscillator{ppm: 10}, 5e8, 6000, 3600, 2500, 4500},
		{"minus 150 ppm", oscillator{ppm: -150}, 5e8, 6000, 120, 2500, 5000},
		{"warming up", oscillator{ppm: 12, swingPPM: 0.3, periodS: 120}, 5e8, 6000, 600, 3000, 5500},
		{"anchors 4 s apart", oscillator{ppm: 10}, 4e9, 6000, 600, 4000, 9000},
		{"warming up, narrow anchors far apart", oscillator{ppm: 12, swingPPM: 0.35, periodS: 120}, 4e9, 300, 600, 700, 1500},
		{"wide anchors", oscillator{ppm: 10}, 5e8, 200_000, 600, 60_000, 90_000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &clockSim{t: t, o: tc.o, rng: rand.New(rand.NewPCG(1, 2))}
			for h := int64(1e9); h < tc.forS*1e9; h += tc.anchorEveryNS {
				s.anchor(h, tc.width)
				for k := range int64(10) {
					s.check(h + k*tc.anchorEveryNS/10)
				}
				if h < 10e9 {
					s.worst, s.worstU = 0, 0
				}
			}
			if s.c.resets != 0 {
				t.Errorf("%d contradictions where there are none", s.c.resets)
			}
			if s.worst > tc.worst || s.worstU > tc.worstU {
				t.Errorf("worst %d ns off, uncertainty up to %d; want at most %d and %d", s.worst, s.worstU, tc.worst, tc.worstU)
			}
			t.Logf("worst %d ns off, uncertainty up to %d ns, rate %v", s.worst, s.worstU, s.c.newest().ratePPB)
		})
	}
}

// The rate is learnt from anchors far apart, and lets the clock go long without
// one.
func TestClockLearnsTheRate(t *testing.T) {
	s := &clockSim{t: t, o: oscillator{ppm: 11.8}, rng: rand.New(rand.NewPCG(3, 4))}
	for h := int64(1e9); h <= 31e9; h += 5e8 {
		s.anchor(h, 6000)
		s.check(h)
	}
	lo, hi := s.c.cur.set.rates()
	if lo > -11_800 || hi < -11_800 || hi-lo > 1600 {
		t.Errorf("rate of the offset between %.0f and %.0f ppb, want -11,800 within 1,600", lo, hi)
	}
	s.worst, s.worstU = 0, 0
	s.check(41e9)
	if s.worst > 8000 || s.worstU > 14_000 {
		t.Errorf("10 s after the last anchor %d ns off, uncertainty %d", s.worst, s.worstU)
	}
}

// Knowledge ages, the same way forwards and backwards.
func TestUncertaintyGrowsWithAge(t *testing.T) {
	s := &clockSim{t: t, o: oscillator{ppm: 11.8}, rng: rand.New(rand.NewPCG(3, 4))}
	for h := int64(1e9); h <= 31e9; h += 5e8 {
		s.anchor(h, 6000)
		s.check(h)
	}
	e := &s.c.cur
	for _, tc := range []struct {
		ageS float64
		more float64 // ns beyond what the polygon itself leaves open
	}{{0, 0}, {1, 40}, {-1, 40}, {10, 1300}, {-10, 1300}, {500, 500 * 5030}, {1000, 1000 * 5030}} {
		lo, hi := e.set.offsets(tc.ageS)
		lo2, hi2 := e.offsets(e.refGPU + int64(tc.ageS*1e9))
		if math.Abs(lo-lo2-tc.more) > 1 || math.Abs(hi2-hi-tc.more) > 1 {
			t.Errorf("%v s away: %v and %v ns more, want %v", tc.ageS, lo-lo2, hi2-hi, tc.more)
		}
	}
}

func TestClockBridgesIdleGaps(t *testing.T) {
	for _, gapS := range []int64{10, 600, 36_000} {
		s := &clockSim{t: t, o: oscillator{ppm: 10}, rng: rand.New(rand.NewPCG(5, 6))}
		h := int64(1e9)
		for ; h <= 20e9; h += 5e8 {
			s.anchor(h, 6000)
			s.check(h + 1e8)
		}
		h += gapS * 1e9
		g := s.c.resume(h-2000, h+4000)
		s.zero = s.o.gpu(h) - g
		if off := s.c.host(g) - h; abs(off) > 100_000 {
			t.Errorf("after %d s the map is %d ns off at the gap's end", gapS, off)
		}
		if gapS >= 600 { // the rate has moved by 3 ppm, and the next anchor is late
			s.o.ppm += 3
			s.zero = s.o.gpu(h) - g
			s.check(h + 3.9e9)
			h += 4e9
		}
		for end := h + 5e9; h < end; h += 5e8 {
			s.anchor(h+2e6, 6000)
			s.check(h + 3e6)
		}
		s.worst = 0
		s.check(h)
		if s.worst > 4000 {
			t.Errorf("5 s after a gap of %d s: %d ns off", gapS, s.worst)
		}
		if s.c.segs != 2 {
			t.Errorf("%d segments, want 2", s.c.segs)
		}
	}
}

// A slewed host clock contradicts what was learnt; the newest anchor then counts
// alone, and the clock is right again.
func TestClockRecoversFromContradiction(t *testing.T) {
	s := &clockSim{t: t, o: oscillator{ppm: 10}, rng: rand.New(rand.NewPCG(7, 8))}
	h := int64(1e9)
	for ; h <= 60e9; h += 5e8 {
		s.anchor(h, 6000)
		s.check(h)
	}
	// From here on the rate is 90 ppm another.
	turn := s.o.gpu(h)
	s.zero += int64(float64(h) * 90e-6)
	s.o.ppm = 100
	if d := s.o.gpu(h) - int64(float64(h)*90e-6) - turn; abs(d) > 2 {
		t.Fatalf("the turn is no turn: %d", d)
	}
	h += 5e8
	s.anchor(h, 6000) // 45 µs off
	if s.c.resets == 0 {
		t.Error("90 ppm within half a second were no contradiction")
	}
	for end := h + 20e9; h < end; h += 5e8 {
		s.anchor(h, 6000)
		s.check(h + 1e6)
	}
	s.worst, s.worstU = 0, 0
	s.check(h)
	if s.worst > 4000 || s.worstU > 8000 {
		t.Errorf("20 s later %d ns off, uncertainty %d", s.worst, s.worstU)
	}
}

// Spans alone tie the clock down: starts from below, ends from above.
func TestSpansBoundTheClock(t *testing.T) {
	s := &clockSim{t: t, o: oscillator{ppm: 10}, rng: rand.New(rand.NewPCG(9, 10))}
	s.anchor(1e9, 10_000_000) // somewhere within 10 ms
	for h := int64(1e9) + 1e6; h < 2e9; h += 1e7 {
		start, end := h, h+1_000_000
		b := spanBounds{
			gpuNS: s.o.gpu(start) - s.zero, durNS: s.o.gpu(end) - s.o.gpu(start), errNS: 64,
			enqueueMonoNS: start - 20_000, closedMonoNS: start - 10_000, seenMonoNS: end + 30_000,
		}
		if !s.c.span(&b, s.c.segs) {
			t.Fatal("a true span contradicts the clock")
		}
		if s.c.stale() {
			s.c.refit()
		}
		s.check(start)
	}
	s.worst, s.worstU = 0, 0
	s.check(2e9)
	if s.worst > 26_000 || s.worstU > 40_000 {
		t.Errorf("%d ns off, uncertainty %d, want what the spans allow: ±25 µs", s.worst, s.worstU)
	}
}

// Whatever the anchors say, the map never goes backwards, on any of its pieces.
func TestClockIsMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c clock
		h := int64(1e12)
		g := c.start(h, h+rapid.Int64Range(0, 1e7).Draw(t, "width"))
		type mapped struct{ g, host int64 }
		var all []mapped
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			step := rapid.Int64Range(1, 2e9).Draw(t, "step")
			g += step
			h += step + rapid.OneOf(rapid.Int64Range(-min(step/2, 3e6), 3e6), rapid.Int64Range(-3e9, 3e9)).Draw(t, "jump")
			w := rapid.Int64Range(0, 1e6).Draw(t, "width")
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				g = c.resume(h, h+w)
			case 1:
				b := spanBounds{gpuNS: g, durNS: 1000, errNS: 32, enqueueMonoNS: h - w, closedMonoNS: h - w, seenMonoNS: h + w + 1000}
				c.span(&b, c.segs)
				c.refit()
			default:
				c.anchor(g, h, h+w, 64)
			}
			at := g + rapid.Int64Range(-3e9, 5e8).Draw(t, "at")
			host, _ := c.place(at, c.segs)
			all = append(all, mapped{at, host})
		}
		for _, a := range all {
			// Mapped again, whatever was learnt since, it is where it was.
			if len(all) < 60 && c.host(a.g) != a.host {
				t.Fatalf("GPU %d mapped to %d and now to %d", a.g, a.host, c.host(a.g))
			}
			for _, b := range all {
				if a.g < b.g && a.host > b.host {
					t.Fatalf("GPU %d maps to %d, but %d to %d", a.g, a.host, b.g, b.host)
				}
			}
		}
	})
}
