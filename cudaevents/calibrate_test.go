package cudaevents_test

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/lanetrace/lanetrace/cudaevents"
	"github.com/lanetrace/lanetrace/cudaevents/scripted"
	"github.com/lanetrace/lanetrace/spanring"
)

func TestCalibration(t *testing.T) {
	type want struct {
		state            spanring.Calibration
		constant, within uint32
		log              string
	}
	h200 := cudaevents.Device{Name: "H200", Capability: 90}
	other := cudaevents.Device{Name: "L4", Capability: 89}
	noise := func(ns float64) func(*scripted.Driver) {
		return func(d *scripted.Driver) {
			r := rand.New(rand.NewPCG(21, 22))
			d.OnElapsed(func(_ cudaevents.Pair, t *cudaevents.Times) cudaevents.Result {
				t.DurationMS += float32(r.NormFloat64() * ns / 1e6)
				return cudaevents.Success
			})
		}
	}
	for _, tc := range []struct {
		name   string
		so     scripted.Options
		skip   bool // calibration not asked for
		script func(*scripted.Driver)
		want   want
	}{
		{name: "measured", so: scripted.Options{Device: h200}, want: want{spanring.CalibrationMeasured, 3040, 40, "pairs calibrated"}},
		{name: "another machine", so: scripted.Options{Device: h200, ConstantNS: 2200}, want: want{spanring.CalibrationMeasured, 2200, 40, "pairs calibrated"}},
		{name: "a little noise", so: scripted.Options{Device: h200}, script: noise(60), want: want{spanring.CalibrationMeasured, 3040, 80, "pairs calibrated"}},
		{name: "fixed part unknown", so: scripted.Options{Device: other}, want: want{spanring.CalibrationAssumed, 3040, 40, "pairs calibrated"}},
		{name: "too noisy", so: scripted.Options{Device: h200, ConstantNS: 5000}, script: noise(2000), want: want{spanring.CalibrationAssumed, 3040, 0, "too noisy"}},
		{name: "too noisy, unknown device", so: scripted.Options{Device: other}, script: noise(2000), want: want{spanring.CalibrationNone, 0, 0, "too noisy"}},
		{name: "no spin kernel", so: scripted.Options{Device: h200, NoSpin: true}, want: want{spanring.CalibrationAssumed, 3040, 0, ""}},
		{name: "no spin kernel, unknown device", so: scripted.Options{NoSpin: true}, want: want{spanring.CalibrationNone, 0, 0, ""}},
		{name: "not asked for", so: scripted.Options{Device: h200}, skip: true, want: want{spanring.CalibrationAssumed, 3040, 0, ""}},
		{name: "the first plug is too short", so: scripted.Options{Device: h200, CallNS: 12_000}, want: want{spanring.CalibrationMeasured, 3040, 40, "pairs calibrated"}},
		{name: "no plug is long enough", so: scripted.Options{Device: h200, CallNS: 400_000}, want: want{spanring.CalibrationAssumed, 3040, 0, "the plug ended"}},
		{name: "every fifth pair half a microsecond off", so: scripted.Options{Device: h200}, script: func(d *scripted.Driver) {
			n := 0
			d.OnElapsed(func(_ cudaevents.Pair, t *cudaevents.Times) cudaevents.Result {
				switch n++; n % 5 {
				case 0:
					t.DurationMS += 0.0005
				case 1:
					t.DurationMS -= 0.0005
				}
				return cudaevents.Success
			})
		}, want: want{spanring.CalibrationAssumed, 3040, 0, "too noisy"}},
		{name: "spins are refused", so: scripted.Options{Device: h200}, script: func(d *scripted.Driver) { d.FailAll(scripted.SpinPair, 701) }, want: want{spanring.CalibrationAssumed, 3040, 0, "enqueue spin 0"}},
		{name: "one bad try", so: scripted.Options{Device: h200}, script: func(d *scripted.Driver) { d.Fail(scripted.SpinPair, 3, 701) }, want: want{spanring.CalibrationMeasured, 3040, 40, "pairs calibrated"}},
		{name: "unreadable", so: scripted.Options{Device: h200}, script: func(d *scripted.Driver) { d.FailAll(scripted.Elapsed, 700) }, want: want{spanring.CalibrationAssumed, 3040, 0, "read pair 0"}},
		{name: "shorter than its kernel", so: scripted.Options{Device: h200}, script: func(d *scripted.Driver) {
			d.OnElapsed(func(_ cudaevents.Pair, t *cudaevents.Times) cudaevents.Result {
				t.DurationMS -= 0.0034
				return cudaevents.Success
			})
		}, want: want{spanring.CalibrationAssumed, 3040, 0, "impossible line"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.so.PollNS = ms
			if tc.so.CallNS == 0 {
				tc.so.CallNS = 2000
			}
			d := scripted.New(tc.so)
			if tc.script != nil {
				tc.script(d)
			}
			w, err := spanring.NewHeap(spanring.Options{Geometry: spanring.Geometry{LogEntries: 64, Slots: 8, Allocs: 1, NameBytes: 4096}})
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			r, err := cudaevents.New(d, w, cudaevents.Options{
				Now: d.Now, Calibrate: !tc.skip, Logger: slog.New(slog.NewTextHandler(&out, nil)),
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := r.EnsurePool(); err != nil {
				t.Fatal(err)
			}
			c := r.Clock()
			if c.Calibration != tc.want.state || abs64(int64(c.ConstantNS)-int64(tc.want.constant)) > int64(tc.want.within) {
				t.Errorf("constant %d ns, %v, spread %d ns; want %d ± %d, %v", c.ConstantNS, c.Calibration, c.SpreadNS, tc.want.constant, tc.want.within, tc.want.state)
			}
			if (c.SpreadNS > 0) != (c.Calibration != spanring.CalibrationNone) && tc.want.within == 0 {
				t.Errorf("spread %d ns, %v", c.SpreadNS, c.Calibration)
			}
			lines := strings.Count(out.String(), "\n")
			if !strings.Contains(out.String(), tc.want.log) || lines > 1 || (lines == 1) != (tc.want.log != "") {
				t.Errorf("log, want one line with %q:\n%s", tc.want.log, &out)
			}
			rd, err := spanring.NewHeapReader(w, spanring.ReaderOptions{})
			if err != nil {
				t.Fatal(err)
			}
			cs, err := rd.Contexts()
			if err != nil || len(cs) != 1 || cs[0].Calibration != c.Calibration || cs[0].ConstantNS != c.ConstantNS || cs[0].SpreadNS != c.SpreadNS {
				t.Errorf("context record %+v, %v", cs, err)
			}
			if got, want := w.Counter(spanring.CtrDriverCalls), d.Calls(); got != uint64(want) && !tc.so.NoSpin {
				t.Errorf("%d driver calls counted, %d made", got, want)
			}
			if got, want := d.LiveEvents(), 2*8+51; got != want {
				t.Errorf("%d events alive, want the pool's and the anchors' %d", got, want)
			}
			if v := d.Violations(); len(v) > 0 {
				t.Errorf("%q", v)
			}
		})
	}
}

// Whoever corrects with the measured constant gets the kernel's own time.
func TestCalibratedKernels(t *testing.T) {
	g := newRig(t, scripted.Options{CallNS: 1000, PollNS: ms, ConstantNS: 2900, Device: cudaevents.Device{Capability: 90}},
		cudaevents.Options{Pairs: 64, Calibrate: true})
	s := g.d.NewStream()
	for _, durNS := range []int64{929, 1537, 5600, 101_567, 1_010_654} {
		g.d.Work(s, ms)
		l, _ := g.r.Reserve(s, g.kernel(1))
		g.r.Launched(l, g.d.Launch(l.Pair, s, durNS))
		g.settle()
		spans, _, _ := g.log()
		sp := spans[0]
		if off := int64(sp.DurationNS()) - durNS; abs64(off) > int64(sp.DurationUncertaintyNS) || sp.DurationUncertaintyNS > 300 || sp.Calibration != spanring.CalibrationMeasured {
			t.Errorf("kernel of %d ns reads %d ± %d, %v", durNS, sp.DurationNS(), sp.DurationUncertaintyNS, sp.Calibration)
		}
	}
}
