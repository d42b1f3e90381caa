package report

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/synth"
)

func TestGPUTable(t *testing.T) {
	for _, tt := range []struct {
		name string
		g    collector.GPUTime
		want string
	}{
		{name: "no lanes"},
		{
			name: "lanes",
			g: collector.GPUTime{
				LaneNS: 8e9, WithinNS: 1e9, BetweenNS: 1e9,
				Bound: [collector.NumBounds]uint64{collector.BoundGPU: 1200, collector.BoundUnknown: 3},
			},
			want: `
GPU TIME                           total   share
  in lanes, on any stream         8.00 s  80.0 %
  in none, within steps           1.00 s  10.0 %
  in none, between steps          1.00 s  10.0 %
  steps limited by the GPU 1,200, by the host's launches 0, not known 3
`,
		},
		{
			name: "everything",
			g: collector.GPUTime{
				LaneNS: 5e9, BetweenNS: 1e9, UntimedNS: 4e9, LateNS: 3e6,
				ArmedLaneNS: 1e9, ArmedBusyNS: 8e8, ArmedLaneIdleNS: 25e7, ArmedBusyOutsideNS: 5e7,
			},
			want: `
GPU TIME                           total   share
  in lanes, on any stream         5.00 s  50.0 %
  in none, within steps             0 ns   0.0 %
  in none, between steps          1.00 s  10.0 %
  in none, lanes not timed        4.00 s  40.0 %
  off by up to 3.00 ms, which came late
  armed steps: kernels cover 75.0 % of lanes, 50.0 ms of kernels lie outside
  steps limited by the GPU 0, by the host's launches 0, not known 0
`,
		},
	} {
		var b strings.Builder
		gpuTable(&b, tt.g, 80)
		if d := cmp.Diff(tt.want, b.String()); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
}

// TestGPUTimeReport: the document says what the engine and the step know.
func TestGPUTimeReport(t *testing.T) {
	r := New(Options{})
	e := read(t, synth.Options{Duration: 300 * time.Millisecond}, r)
	g, doc := e.GPUTime(), r.Report(e)
	if g.LaneNS == 0 || doc.GPUTime.Lanes != g.LaneNS || doc.GPUTime.Within != g.WithinNS || doc.GPUTime.Between != g.BetweenNS {
		t.Errorf("document %+v, engine %+v", doc.GPUTime, g)
	}
	if n := doc.GPUTime.LimitedBy; len(n) != collector.NumBounds || n["gpu"] != g.Bound[collector.BoundGPU] || n["gpu"] == 0 {
		t.Errorf("limited by %v", n)
	}
	if a := doc.GPUTime.Armed; a.Lanes == 0 || a.Busy == 0 || a.Lanes+a.BusyOutside != a.Busy+a.LaneIdle {
		t.Errorf("armed %+v: lanes and kernels outside are not kernels and launch gaps", a)
	}
	s, d := r.Exemplary(), doc.Step.Derived
	if !s.Armed || d.Busy == nil || *d.Busy != s.Derived.BusyNS || *d.Queue != s.Derived.QueueNS || d.Lanes+d.Outside != d.Extent || d.LimitedBy != "gpu" {
		t.Errorf("step %d: %+v", s.Number, d)
	}
}
