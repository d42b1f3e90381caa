package recording

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lanetrace/lanetrace/collector"
	"github.com/lanetrace/lanetrace/internal/synth"
)

// TestRunsEndAtOnce: engines end in goroutines of their own, and every run is whole.
func TestRunsEndAtOnce(t *testing.T) {
	var b bytes.Buffer
	w, err := NewWriter(&b, Options{})
	if err != nil {
		t.Fatal(err)
	}
	const runs = 16
	var wg sync.WaitGroup
	for range runs {
		p, err := collector.NewProcessor(synth.New(synth.Options{Duration: 20 * time.Millisecond}), collector.ProcessorOptions{Taps: []collector.Tap{w}})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if err := p.Drain(); err != nil {
				t.Error(err)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()), "x.ltrec")
	if err != nil {
		t.Fatal(err)
	}
	if f.Damage() != nil || len(f.Runs()) != runs {
		t.Errorf("%d runs, damage %v", len(f.Runs()), f.Damage())
	}
}

// TestRunNotRecorded: a run for which there is no room is an error of the recording's,
// and costs the others nothing.
func TestRunNotRecorded(t *testing.T) {
	var b bytes.Buffer
	w, err := NewWriter(&b, Options{})
	if err != nil {
		t.Fatal(err)
	}
	record := func() {
		t.Helper()
		p, err := collector.NewProcessor(synth.New(synth.Options{Duration: 20 * time.Millisecond}), collector.ProcessorOptions{Taps: []collector.Tap{w}})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(p.Drain(), p.Close()); err != nil {
			t.Fatal(err)
		}
	}
	record()
	if err := w.Err(); err != nil {
		t.Fatal(err)
	}
	w.nRuns = maxRuns
	record()
	for what, err := range map[string]error{"Err": w.Err(), "Flush": w.Flush(), "Close": w.Close(), "a second Close": w.Close()} {
		if err == nil || !strings.Contains(err.Error(), "holds 65535 runs") {
			t.Errorf("%s: %v", what, err)
		}
	}
	f, err := NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()), "x.ltrec")
	if err != nil {
		t.Fatal(err)
	}
	if f.Damage() != nil || len(f.Runs()) != 1 {
		t.Errorf("%d runs, damage %v", len(f.Runs()), f.Damage())
	}
}
