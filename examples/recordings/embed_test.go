package recordings

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/exporters/recording"
	"github.com/lanetrace/lanetrace/internal/synth"
	"github.com/lanetrace/lanetrace/spanring"
)

var update = flag.Bool("update", false, "put a synthetic engine's recording in the place of the recorded one")

// maxBytes bounds the recording: it is part of the binary.
const maxBytes = 2 << 20

func TestH200Decode(t *testing.T) {
	if *update {
		write(t)
	}
	r := H200Decode()
	if r.Size() > maxBytes {
		t.Errorf("%s has %d bytes, at most %d", H200DecodeName, r.Size(), maxBytes)
	}
	f, err := recording.NewReader(r, r.Size(), H200DecodeName)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Damage(); err != nil {
		t.Fatal(err)
	}
	if len(f.Runs()) == 0 {
		t.Fatal("no runs")
	}
	readings(t, f)
	for i := range f.Runs() {
		s, err := f.Source(i)
		if err != nil {
			t.Fatal(err)
		}
		lanes, kernels, armed := make(map[string]int), 0, 0
		p, err := collector.NewProcessor(s, collector.ProcessorOptions{Observers: []collector.Observer{
			collector.ObserverFunc(func(s *collector.Step) {
				if s.Armed {
					armed++
				}
				for j := range s.Spans {
					switch s.Spans[j].Kind {
					case spanring.KindLane:
						lanes[s.Spans[j].Text.Text]++
					case spanring.KindKernel:
						kernels++
					}
				}
			}),
		}})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Drain(); err != nil {
			t.Fatal(err)
		}
		if n := p.Engine().Counters()[spanring.CtrRequests]; n == 0 {
			t.Errorf("run %d: no request came with a trace context", i)
		}
		if armed == 0 || kernels == 0 || lanes["admit"] == 0 || lanes["prefill"] == 0 || lanes["decode"] == 0 {
			t.Errorf("run %d: %d armed steps, %d kernels, lanes %v", i, armed, kernels, lanes)
		}
		a := p.Engine().Account()
		if bad := a.Unbalanced(); len(bad) > 0 {
			t.Errorf("run %d: the account does not balance: %v: %+v", i, bad, a)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// readings are those of the GPU that the first run was on: all of them, ten times a
// second.
func readings(t *testing.T, f *recording.File) {
	t.Helper()
	rs, err := f.Readings()
	if err != nil {
		t.Fatal(err)
	}
	defer rs.Close()
	run, often, health := f.Runs()[0], 0, 0
	for {
		g, ok := rs.Next()
		if !ok {
			break
		}
		r, err := spanring.DecodeDevice(g.Entries)
		if err != nil {
			t.Fatal(err)
		}
		if g.Device.ID() != run.Info.GPUUUID || g.Device.Name != run.Info.GPUName {
			t.Errorf("a reading of %s, %s", g.Device.ID(), g.Device.Name)
		}
		if r.Health {
			health++
			continue
		}
		_, watts := r.Get(spanring.DevicePowerMilliwatts)
		_, joules := r.Get(spanring.DeviceEnergyMillijoules)
		if _, failed := r.Get(spanring.DeviceFailed); failed || !watts || !joules {
			t.Errorf("at %d ns: failed %v, power %v, energy %v", r.MonoNS, failed, watts, joules)
		}
		often++
	}
	seconds := time.Duration(run.EndMonoNS - run.StartMonoNS).Seconds()
	if rs.Err() != nil || float64(often) < 9*seconds || float64(health) < 0.9*seconds {
		t.Errorf("%d and %d readings in %.1f s, %v", often, health, seconds, rs.Err())
	}
}

func write(t *testing.T) {
	if err := os.Remove(H200DecodeName); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	w, err := recording.Create(H200DecodeName, recording.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := synth.Options{Duration: 8 * time.Second, RequestEvery: 20, WallOffsetNS: time.Now().UnixNano() - spanring.MonoNS()}
	o.Readings(w)
	p, err := collector.NewProcessor(synth.New(o), collector.ProcessorOptions{Taps: []collector.Tap{w}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Drain(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	t.Fatal("written: run the test again without -update")
}
