package collector

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/spanring"
)

// armRig is a live ring at level kernel, read by a processor.
type armRig struct {
	w *spanring.Writer
	e *Engine
}

func newArmRig(t *testing.T) *armRig {
	w := newRing(t, ringDir(t), spanring.Info{Service: "s", Level: levelKernel})
	p, err := NewProcessor(openRing(t, w), ProcessorOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &armRig{w: w, e: p.Engine()}
}

// slowNow is a step that has just ended.
func (r *armRig) slowNow() *Step {
	now := spanring.MonoNS()
	return &Step{Engine: r.e, Number: 9, HasBegin: true, HasEnd: true, BeginMonoNS: now - 1000, EndMonoNS: now}
}

// request writes a control file of an age.
func (r *armRig) request(t *testing.T, c spanring.Control, age time.Duration) {
	t.Helper()
	if err := spanring.WriteControl(r.w.Path(), c); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-age)
	if err := os.Chtimes(r.w.Path()+spanring.ControlSuffix, at, at); err != nil {
		t.Fatal(err)
	}
}

func (r *armRig) control(t *testing.T) spanring.Control {
	t.Helper()
	c, err := spanring.ReadControl(r.w.Path())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestSlowStepArms(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before func(t *testing.T, r *armRig, s *Step)
		o      ArmOptions
		want   ArmOutcome
		level  string // in the request that is written
	}{
		{name: "nothing was asked for before", want: ArmAsked},
		{
			name: "an operator's request for a level, acted on long ago",
			before: func(t *testing.T, r *armRig, _ *Step) {
				r.request(t, spanring.Control{ID: "op", Level: "kernel", ArmSteps: 3}, time.Hour)
			},
			want: ArmAsked, level: "kernel",
		},
		{
			name: "a level that the engine has left since",
			before: func(t *testing.T, r *armRig, _ *Step) {
				r.request(t, spanring.Control{ID: "op", Level: "lane"}, time.Hour)
			},
			want: ArmAsked,
		},
		{
			name: "a level that the engine may not have seen",
			before: func(t *testing.T, r *armRig, _ *Step) {
				r.request(t, spanring.Control{ID: "op", Level: "lane"}, 10*time.Second)
			},
			want: ArmPending,
		},
		{
			name: "a request of this moment",
			before: func(t *testing.T, r *armRig, _ *Step) {
				r.request(t, spanring.Control{ID: "op", ArmSteps: 100}, 0)
			},
			want: ArmPending,
		},
		{
			name:   "steps are being armed",
			before: func(_ *testing.T, r *armRig, _ *Step) { r.w.SetArming(64, 5) },
			want:   ArmPending,
		},
		{
			name:   "below level kernel",
			before: func(_ *testing.T, r *armRig, _ *Step) { r.w.SetLevel(levelLane) },
			want:   ArmLevel,
		},
		{
			name:   "a step of the past",
			before: func(_ *testing.T, _ *armRig, s *Step) { s.EndMonoNS -= int64(6 * time.Second) },
			want:   ArmStale,
		},
		{name: "off", o: ArmOptions{Steps: -1}, want: ArmOff},
		{
			name: "nonsense in the control file",
			before: func(t *testing.T, r *armRig, _ *Step) {
				if err := os.WriteFile(r.w.Path()+spanring.ControlSuffix, []byte("{nonsense"), 0o600); err != nil {
					t.Fatal(err)
				}
			},
			want: ArmFailed,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newArmRig(t)
			s := r.slowNow()
			if tt.before != nil {
				tt.before(t, r, s)
			}
			there, _ := os.ReadFile(r.w.Path() + spanring.ControlSuffix)
			NewArmer(tt.o).Slow(s)
			var want [NumArmOutcomes]uint64
			want[tt.want] = 1
			if d := cmp.Diff(want, r.e.SlowSteps()); d != "" {
				t.Errorf("outcome (-want +got):\n%s", d)
			}
			if tt.want != ArmAsked {
				now, _ := os.ReadFile(r.w.Path() + spanring.ControlSuffix)
				if !bytes.Equal(there, now) {
					t.Errorf("the request was changed to %s", now)
				}
				return
			}
			c := r.control(t)
			if c.ArmSteps != 8 || c.Level != tt.level || !strings.HasPrefix(c.ID, "slow-") {
				t.Errorf("request %+v", c)
			}
		})
	}
}

// TestSlowStepsArmNowAndThen: a row of slow steps writes one request in ten seconds
// of the engine's time, each with an id of its own.
func TestSlowStepsArmNowAndThen(t *testing.T) {
	r := newArmRig(t)
	a := NewArmer(ArmOptions{Steps: 3})
	for range 50 {
		a.Slow(r.slowNow())
	}
	first := r.control(t)
	want := [NumArmOutcomes]uint64{ArmAsked: 1, ArmLimited: 49}
	if d := cmp.Diff(want, r.e.SlowSteps()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	a.askedNS -= int64(10 * time.Second)
	r.request(t, first, 10*time.Second)
	a.Slow(r.slowNow())
	if c := r.control(t); c.ID == first.ID || c.ArmSteps != 3 {
		t.Errorf("second request %+v after %+v", c, first)
	}
}

// TestArmingThatFailsIsSaidOnce: no permission to write costs one warning, and a
// count each time it was tried.
func TestArmingThatFailsIsSaidOnce(t *testing.T) {
	r := newArmRig(t)
	var log bytes.Buffer
	a := NewArmer(ArmOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	// A directory in the control file's place can neither be read as one nor
	// replaced, also by root.
	if err := os.Mkdir(r.w.Path()+spanring.ControlSuffix, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		a.Slow(r.slowNow())
		a.askedNS -= int64(10 * time.Second)
	}
	if n := r.e.SlowSteps()[ArmFailed]; n != 3 {
		t.Errorf("%d failures counted", n)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, &log)
	}
}

// TestSlowStepOfARecordingArmsNothing: there is no ring to ask.
func TestSlowStepOfARecordingArmsNothing(t *testing.T) {
	src := newMemSource("a")
	p, _ := run(t, src, ProcessorOptions{})
	s := &Step{Engine: p.Engine(), EndMonoNS: src.nowNS}
	NewArmer(ArmOptions{}).Slow(s)
	if n := p.Engine().SlowSteps()[ArmNoRing]; n != 1 {
		t.Errorf("%v", p.Engine().SlowSteps())
	}
}

// TestSlowStepIsExportedAndArms runs the whole way, from a ring's entries to its
// control file.
func TestSlowStepIsExportedAndArms(t *testing.T) {
	w := newRing(t, ringDir(t), spanring.Info{Service: "s", Level: levelKernel})
	k := &keep{settle: true}
	sel := NewLiveSelector(LiveOptions{OneInN: -1, Slow: SlowOptions{WarmUp: 50}, OnSlow: NewArmer(ArmOptions{}).Slow})
	p, err := NewProcessor(openRing(t, w), ProcessorOptions{Exporter: k, Selector: sel})
	if err != nil {
		t.Fatal(err)
	}
	name := w.Name(spanring.NameLane, "decode")
	for n := uint64(1); n <= 60; n++ {
		at := spanring.MonoNS()
		length := uint64(30_000)
		if n == 60 {
			length *= 5
		}
		for _, e := range []wordser{begin(n, at), lane(n, 1, name, at, length), end(n, at, at+1_000, 1)} {
			words := e.Words()
			w.Append(&words)
		}
	}
	pollAll(t, p)
	if len(k.steps) != 1 || k.steps[0].Number != 60 || k.reasons[0] != ExportSlow {
		t.Fatalf("exported %d steps for %v", len(k.steps), k.reasons)
	}
	if c, err := spanring.ReadControl(w.Path()); err != nil || c.ArmSteps != 8 {
		t.Errorf("request %+v, %v", c, err)
	}
}
