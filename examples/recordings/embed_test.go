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

func write(t *testing.T) {
	if err := os.Remove(H200DecodeName); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	w, err := recording.Create(H200DecodeName, recording.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := collector.NewProcessor(synth.New(synth.Options{Duration: 8 * time.Second}), collector.ProcessorOptions{Taps: []collector.Tap{w}})
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
